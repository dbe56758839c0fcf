"""The names of the keys of `trl sft` and `accelerate launch`, read from the libraries' source files.

Importing TRL takes seconds, most of them for PEFT and bitsandbytes. A study that has a mistyped key is refused by the
names alone, so it does not import them.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from holdfast.config.declare import parse_source

_DATACLASSES = (
    ("trl", "scripts/utils.py", "ScriptArguments", ()),
    ("transformers", "training_args.py", "TrainingArguments", ()),
    ("trl", "trainer/base_config.py", "_BaseConfig", ("TrainingArguments",)),
    ("trl", "trainer/sft_config.py", "SFTConfig", ("_BaseConfig",)),
    ("trl", "trainer/model_config.py", "ModelConfig", ()),
    ("trl", "scripts/utils.py", "DatasetMixtureConfig", ()),
)
"""Package, file, class and the names of its base classes."""


def trl_keys() -> list[str]:
    """The fields of TRL's dataclasses. Empty where a file or a class is not where it is expected, or a class has other
    base classes."""
    names: list[str] = []
    for package, file, class_name, bases in _DATACLASSES:
        fields = _fields(_tree(package, file), class_name, bases)
        if not fields:
            return []
        names += fields
    return names


def launch_keys() -> list[str]:
    """The options of `accelerate launch`, by the names that its parser gives them. Empty where its file is not where it
    is expected."""
    names: list[str] = []
    for call in ast.walk(_tree("accelerate", "commands/launch.py")):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".add_argument")):
            continue
        words = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
        options = [word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]
        destinations = [ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "dest"]
        names += [*destinations, *options][:1]
    return names


def _tree(package: str, file: str) -> ast.Module:
    """The syntax tree of a file of an installed package, which is not imported; empty where there is no such file."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or []
    for folder in folders:
        path = Path(folder, file)
        if path.is_file():
            return parse_source(path.read_text(encoding="utf-8"))
    return ast.Module(body=[], type_ignores=[])


def _fields(tree: ast.Module, class_name: str, bases: tuple[str, ...]) -> list[str]:
    """Names that the constructor of a class takes; empty without such a class."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    if not classes or tuple(ast.unparse(base) for base in classes[0].bases) != bases:
        return []
    fields = [line for line in classes[0].body if isinstance(line, ast.AnnAssign)]
    return [ast.unparse(field.target) for field in fields if not _is_set_by_the_class(field)]


def _is_set_by_the_class(field: ast.AnnAssign) -> bool:
    """Whether a field is declared with `init=False`: the constructor does not take it."""
    return isinstance(field.value, ast.Call) and any(
        keyword.arg == "init" and ast.unparse(keyword.value) == "False" for keyword in field.value.keywords
    )
