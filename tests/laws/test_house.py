"""Laws of the house: who may import whom, what must be written down, what may not stand anywhere.

Everything is read from the source (ast) or seen from a fresh interpreter; nothing heavy is imported here. An exception
is a line in a table with its reason, and a test fails when it is no longer needed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from syntax_trees import no_collection, parsed_package  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[2]

LAYERS: list[set[str]] = [
    {"printable"},
    {"errors"},
    {"support"},
    {"config", "records"},
    {"statistics"},
    {"ops", "checkpoints", "data"},
    {"retention", "models", "generation"},
    {"training", "evaluation"},
    {"reports", "testing"},
    {"runs"},
    {"studies"},
    {"papers"},
    {"cli"},
    {"__main__"},
]
"""Imports go down, without exceptions: a module imports from its own package and from lower layers."""

ONLY_IN: dict[str, set[str]] = {
    "trl": {"training", "runs"},
    "peft": {"training"},
    "openai": {"support"},
    "accelerate": {"training", "runs"},
    "lm_eval": {"evaluation"},
    "inspect_ai": {"evaluation"},
    "plotly": {"reports"},
    "transformers": {
        "checkpoints",
        "training",
        "evaluation",
        "runs",
        "papers",
        "studies",
        "data",
        "models",
        "generation",
        "support",
    },
    "datasets": {"training", "evaluation", "runs", "papers", "studies", "data", "support"},
    "torch": {
        "ops",
        "checkpoints",
        "retention",
        "models",
        "generation",
        "training",
        "runs",
        "evaluation",
        "papers",
        "studies",
        "support",
    },
}
"""Which rooms know a library, imports for type checkers aside."""

LIGHT = [
    "holdfast",
    "holdfast.errors",
    "holdfast.records.run",
    "holdfast.support.ledger",
    "holdfast.support.endpoint",
    "holdfast.data.prepare.run",
    "holdfast.cli.data_select",
    "holdfast.data.select.run",
    "holdfast.runs.cost",
    "holdfast.records.residual",
    "holdfast.reports.update_report",
    "holdfast.studies.update.plan",
    "holdfast.cli.update",
    "holdfast.cli.data",
    "holdfast.cli.main",
    "holdfast.retention.registry",
    "holdfast.reports",
    "holdfast.evaluation.suite",
    "holdfast.evaluation.entries",
    "holdfast.evaluation.shipped",
    "holdfast.evaluation.judge.judge",
    "holdfast.evaluation.code.sandbox",
    "holdfast.evaluation.code.code_scores",
    "holdfast.evaluation.judge.answers",
    "holdfast.evaluation.compare.folders",
    "holdfast.evaluation.compare.gate",
    "holdfast.evaluation.compare.joint_scores",
    "holdfast.evaluation.averages",
    "holdfast.evaluation.compare.continual",
    "holdfast.cli.compare",
    "holdfast.cli.evaluate",
    "holdfast.records.study",
    "holdfast.statistics.selection",
    "holdfast.reports.sweep_report",
    "holdfast.reports.sweep_text",
    "holdfast.papers.theory.label_annealing",
    "holdfast.papers.theory.overtraining",
    "holdfast.papers.theory.page",
    "holdfast.papers.theory.sfa",
    "holdfast.papers.overtraining.page",
    "holdfast.cli.reproduce",
    "holdfast.cli.sweep",
    "holdfast.studies.engine.space",
    "holdfast.studies.sweep.study",
    "holdfast.evaluation.compare.samples",
    "holdfast.runs.launch",
    "holdfast.runs.config",
]
"""Modules that load without torch."""


@dataclass(frozen=True)
class Import:
    """One imported module: by whom, where, and when it is loaded."""

    file: str
    line: int
    module: str
    when: str
    """"at import", "in a function" or "for type checkers"."""
    names: tuple[str, ...] = ()
    """What is taken from the module, where something is."""

    @property
    def room(self) -> str:
        """The package (or module) below `holdfast` that imports."""
        return room_of(self.file)

    @property
    def target(self) -> str | None:
        """The package below `holdfast` that is imported; None for anything outside."""
        top, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if top == "holdfast" and rest else None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module} {self.when}"


def room_of(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


sources = cache(parsed_package)


@cache
def imports() -> list[Import]:
    return [found for file, tree in sources().items() for found in imports_of(file, tree)]


@pytest.fixture(scope="module", autouse=True)
def let_go_of_the_trees() -> Iterator[None]:
    """A million objects, which the collector would look through at every run of a trainer of the same process."""
    yield
    sources.cache_clear()
    calls.cache_clear()


BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)


def imports_of(file: str, node: ast.AST, when: str = "at import") -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(file, child.lineno, alias.name, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno}: relative import; the house writes whole names"
            if child.module == "holdfast":  # `from holdfast import results`
                yield from (
                    Import(file, child.lineno, f"holdfast.{a.name}", when)
                    for a in child.names
                    if not a.name.startswith("__")
                )
            else:
                names = tuple(alias.name for alias in child.names)
                yield Import(file, child.lineno, str(child.module), when, names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from imports_of(file, ast.Module(child.body, []), "for type checkers")
            yield from imports_of(file, ast.Module(child.orelse, []), when)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports_of(file, child, when if when == "for type checkers" else "in a function")
        elif isinstance(child, BLOCKS):  # no expression has an import in it
            yield from imports_of(file, child, when)


def layer_of(room: str) -> int:
    for number, rooms in enumerate(LAYERS):
        if room in rooms:
            return number
    raise AssertionError(f"{room} is in no layer: add it to LAYERS, and to the architecture")


def goes_down(found: Import) -> bool:
    return found.target == found.room or layer_of(str(found.target)) < layer_of(found.room)


# --------------------------------------------------------------------------------------------------------------- layers


def test_imports_go_down_the_layers():
    """Lazy imports too: a layer that can only work with a higher one present is not below it."""
    inside = [i for i in imports() if i.target is not None and i.room != "__init__"]
    assert len(inside) > 100, "the walk over the imports is broken"
    assert [str(i) for i in inside if not goes_down(i)] == []


def module_of(file: str) -> str:
    return "holdfast." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_no_file_imports_itself_by_way_of_others():
    """Imports within functions count, those for type checkers do not."""
    needs: dict[str, set[str]] = {module_of(file): set() for file in sources()}
    for found in imports():
        importer = module_of(found.file)
        if importer in needs and found.when != "for type checkers":
            named = {found.module, *(f"{found.module}.{name}" for name in found.names)}
            needs[importer] |= {module for module in named if module in needs and module != importer}
    assert sum(map(len, needs.values())) > 1000, "the walk over the imports is broken"
    while free := {module for module, others in needs.items() if not others}:  # the lowest go first
        needs = {module: others - free for module, others in needs.items() if module not in free}
    assert needs == {}, "these import each other, or one that does"


def test_the_top_module_imports_nothing_until_asked():
    assert [
        str(i) for i in imports() if i.file == "__init__.py" and i.target is not None and i.when != "for type checkers"
    ] == []


def test_libraries_stay_in_their_rooms():
    assert {i.module.partition(".")[0] for i in imports()} >= set(ONLY_IN), "a library of the table is not used at all"
    strays = [
        str(i)
        for i in imports()
        if i.when != "for type checkers"
        and i.module.partition(".")[0] in ONLY_IN
        and i.room not in ONLY_IN[i.module.partition(".")[0]]
    ]
    assert strays == []


def test_the_method_rooms_know_no_trainer():
    """Type checkers aside only `datasets` may be named, by methods that change data, and transformers by the one module
    that asks it which tensors a model has."""
    hosts = {"trl", "peft", "accelerate", "datasets", "transformers"}
    found = [
        i for i in imports() if i.room in ("ops", "checkpoints", "retention") and i.module.partition(".")[0] in hosts
    ]
    found = [i for i in found if not (i.room == "retention" and i.when == "for type checkers")]
    assert {(i.file, i.module.partition(".")[0], i.when) for i in found} == {
        ("checkpoints/fit.py", "transformers", "in a function")
    }


def test_records_and_errors_need_python_only():
    outside = [i for i in imports() if (i.file == "errors.py" or i.room == "records") and i.target is None]
    assert [str(i) for i in outside if i.module.partition(".")[0] not in sys.stdlib_module_names] == []


def test_light_modules_load_no_torch():
    code = "\n".join(
        [
            "import importlib, sys",
            *(
                f"importlib.import_module({m!r}); print({m!r}, *({{'torch', 'transformers'}} & set(sys.modules)))"
                for m in LIGHT
            ),
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == LIGHT


def test_nothing_happens_at_import_but_definitions():
    """No module calls for effect at its top level (the command's `__main__` aside)."""
    effects = [
        f"{file}:{node.lineno}"
        for file, tree in sources().items()
        for node in tree.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and file != "__main__.py"
    ]
    assert effects == []


OUTLETS = {
    "cli/console.py": "what commands print",
    "support/environment.py": "`say`, a line on a console",
    "reports/terminal.py": "blocks",
    "config/command_line.py": "the text of --help",
    "cli/schema.py": "a JSON Schema, made of names of ours",
    "cli/checkpoint_options.py": "a table whose cells are printable",
    "cli/check.py": "examples in colour, whose pieces are printable",
    "cli/quickstart.py": "a text of ours with markup",
    "papers/worlds/tuned.py": "a text of ours",
    "cli/study_commands.py": "the status table, whose cells are printable",
    "evaluation/worker.py": "a file, whose end the main process shows",
}
"""Who may print: each shows text of others through `holdfast.printable`."""


def test_only_outlets_print():
    outlets = (".print", "stdout.write", "stderr.write")
    assert {file for file, _, name in calls() if name == "print" or name.endswith(outlets)} == set(OUTLETS)


# ----------------------------------------------------------------------------------------------------------- docstrings


def test_every_file_says_what_it_is():
    """An empty `__init__.py` has nothing to say."""
    assert [file for file, tree in sources().items() if tree.body and not ast.get_docstring(tree)] == []


def public_definitions() -> Iterator[
    tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, ast.ClassDef | None]
]:
    """Every public function, class and method of a public class, with the class that holds it."""

    def below(
        file: str, holder: ast.Module | ast.ClassDef
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, ast.ClassDef | None]]:
        for node in holder.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith(
                "_"
            ):
                yield file, node, holder if isinstance(holder, ast.ClassDef) else None
                if isinstance(node, ast.ClassDef):
                    yield from below(file, node)

    for file, tree in sources().items():
        yield from below(file, tree)


def undocumented() -> list[str]:
    """Public definitions that owe a docstring and have none.

    It is owed unless the body is one or two statements, which the name and the types say as well, or the method fills
    in one that a base class or a protocol documents.
    """
    protocols = {
        child.name
        for tree in sources().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in node.bases)
        for child in node.body
        if isinstance(child, ast.FunctionDef) and ast.get_docstring(child)
    }
    found = []
    for file, node, holder in public_definitions():
        inherited = holder is not None and (bool(holder.bases) or node.name in protocols)
        short = not isinstance(node, ast.ClassDef) and len(node.body) <= 2
        if not (ast.get_docstring(node) or inherited or short):
            found.append(f"{file} {holder.name + '.' if holder else ''}{node.name}")
    return found


def test_every_public_name_is_documented():
    assert len(list(public_definitions())) > 200, "the walk over the definitions is broken"
    assert undocumented() == []


# ------------------------------------------------------------------------------------------------------ what may not be


@cache
def calls() -> list[tuple[str, ast.Call, str]]:
    """Every call in the package with the dotted name that is called."""
    return [
        (file, node, ast.unparse(node.func))
        for file, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]


def test_nothing_unpickles():
    """No pickle and its kin, no `torch.load`, no numpy objects: weights are safetensors, records are JSON."""
    kin = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert [str(i) for i in imports() if i.module.partition(".")[0] in kin] == []
    loads = [
        f"{file}:{node.lineno}"
        for file, node, name in calls()
        if name in ("torch.load", "torch.save", "pd.read_pickle", "pandas.read_pickle")
    ]
    assert loads == []
    assert [
        f"{f}:{n.lineno}"
        for f, n, _ in calls()
        for k in n.keywords
        if k.arg == "allow_pickle" and not is_false(k.value)
    ] == []


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_remote_code_is_only_what_the_user_asks_for():
    """`trust_remote_code` is passed on from the config, never switched on."""
    found = [(f, n.lineno, k.value) for f, n, _ in calls() for k in n.keywords if k.arg == "trust_remote_code"]
    assert found, "nothing passes trust_remote_code on; has it been renamed?"
    assert [f"{file}:{line}" for file, line, value in found if isinstance(value, ast.Constant) and value.value] == []
    ran = [
        f"{file}:{node.lineno}"
        for file, node, name in calls()
        if name in ("eval", "exec", "builtins.eval", "builtins.exec")
    ]
    assert [place for place in ran if not place.startswith("evaluation/code/sandbox_child.py:")] == [], (
        "text is run as a program in the sandbox alone"
    )
    assert len(ran) == 1, "the sandbox runs its program in one place"


def test_only_the_command_line_prints():
    """A library draws on the console it is given, or logs."""
    assert any(name == "print" for _, _, name in calls())
    assert [
        f"{file}:{node.lineno}" for file, node, name in calls() if name == "print" and not file.startswith("cli/")
    ] == []
