"""`holdfast merge`: one checkpoint out of several, by any of the methods of
`checkpoints.methods`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.checkpoints.mergekit import is_mergekit, translate
from holdfast.checkpoints.methods.registry import ALIASES, METHODS, find_method, parse_merge_method
from holdfast.checkpoints.policies import Policies
from holdfast.cli.checkpoint_options import DTYPE, Output, carry_out, missing_folders
from holdfast.cli.console import stoppable
from holdfast.config.command_line import Command, find_option
from holdfast.config.declare import Meta, Setting, part_of, settings_of
from holdfast.config.decode import decode
from holdfast.config.help import Section
from holdfast.config.raw_request import RawRequest
from holdfast.config.schema import json_schema, setting_schema
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, Problem
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.checkpoints.methods.protocol import MergeMethod

DESCRIPTION = """\
Merges checkpoints of one architecture into a new one, with little memory and about as fast as a copy. If tensors do
not fit together, the merge stops and lists them, unless you choose how to treat them. Arithmetic is in float32 with
one rounding at the end. The inputs are never modified. LoRA adapters count as models, and are merged into their base
on the fly. The result has a tokenizer and a record of its origin (provenance.json).
"""
MERGE_YAML = """\
merge.yaml
  method: ties
  base: base
  models: [math, code]
  weights: [0.6, 0.4]
  density: 0.3
  dtype: bfloat16
  output_dir: both

holdfast also reads YAML files of mergekit: --config mergekit.yml --output_dir FOLDER. If a file uses features that
holdfast does not have, the error lists all of them. Paths in a YAML file are relative to the folder in which the
command runs.
"""
OWN_METHODS = """\
A method of your own is a class in a file (--method my_method.py:Name), in a module (package.module:Name), or behind an
entry point of the group holdfast.merge_methods. Its parameters become options, like those of the built-in methods.
"""
EXAMPLES = """\
examples
  # a soup of three fine-tunes
  holdfast merge run-1 run-2 run-3 --output_dir soup

  # keep what the base knew: half the way from base to fine-tune (WiSE-FT)
  holdfast merge tuned --base base --method wise_ft --alpha 0.5 \\
      --output_dir half-way

  # two skills on one base; the first command only shows the plan
  holdfast merge math code --base base --method ties --density 0.3 \\
      --weights 0.6 0.4 --output_dir both --dry_run
  holdfast merge math code --base base --method ties --density 0.3 \\
      --weights 0.6 0.4 --output_dir both

  # a LoRA adapter into its base
  holdfast merge adapter --adapter_base base --output_dir merged

  # the request as a file; options override it
  holdfast merge --config merge.yaml --density 0.5
"""
EPILOG = """\
example
  holdfast merge math code --base base --method ties --density 0.3 \\
      --output_dir both
"""


def method_schema() -> dict[str, Any]:
    """JSON Schema of `method`: the names here, and references to own code."""
    return {"anyOf": [{"enum": [*METHODS, *ALIASES]}, {"type": "string"}]}


@dataclass(frozen=True, kw_only=True)
class _Merge:
    models: Annotated[tuple[str, ...], Meta(positional=True, least=1, metavar="MODEL ...")]
    """Checkpoint folders, adapters (or BASE+ADAPTER) or hub ids, in the same order as
    --weights."""
    method: Annotated[str, Meta(json_schema=method_schema)] = "linear"
    """One of the methods, or a class of your own, as my_method.py:Name."""
    base: Annotated[str | None, Meta(metavar="BASE")] = None
    """Base of the fine-tuned models, for methods that use differences from it."""
    adapter_base: Annotated[str | None, Meta(metavar="MODEL")] = None
    """Base of the adapters (default: --base, else the base that each adapter names)."""
    layout: Annotated[str | None, Meta(metavar="PARENT", section="result")] = None
    """Model that gives the result its tensor names, dtypes, shards and config: base, 1, 2, ... or a
    folder (default: base, else 1)."""
    tokenizer: Annotated[str | None, Meta(metavar="PARENT", section="result")] = None
    """Model that gives the result its vocabulary, tokenizer, chat template and generation settings
    (default: that of --layout)."""
    chat_template: Annotated[str | None, Meta(metavar="TEMPLATE", section="result")] = None
    """Chat template of the result: auto (the one that most of the merged models have), chatml, a
    .jinja file, or the text itself (default: the tokenizer's)."""
    dtype: Annotated[str | None, DTYPE] = None
    """Dtype of floating-point tensors: bfloat16, float16, float32, ... (default: that of
    --layout)."""
    fisher: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FOLDER")] = ()
    """Fisher diagonals, one per model, for --method fisher."""


@dataclass(frozen=True, kw_only=True)
class MergeRequest(Output, Policies, _Merge):
    """`holdfast merge`, without the parameters of the method."""

    def problems(self) -> list[str]:  # type: ignore[override]
        """Folders that are not there, and a method in the place of a model."""
        for name in self.models:
            if name in METHODS and not expanded(name).exists():
                return [
                    f"models: expected a checkpoint, got the method {name}. Write --method {name}"
                ]
        return missing_folders(self, "models", "base", "adapter_base", "fisher")


def command(
    own: type[MergeMethod] | None = None, *, notes: list[str] | None = None
) -> Command[MergeRequest]:
    """The command with the parameters of all methods.

    Args:
        own: a method of the user's own, whose parameters are options too.
        notes: gets what is worth knowing about a translated request of mergekit.
    """
    added = [] if own is None else [own]
    return Command(
        name="holdfast merge",
        request=MergeRequest,
        description=DESCRIPTION,
        epilog=EPILOG,
        sections=(
            *(_method_section(cls) for cls in [*METHODS.values(), *added]),
            Section(
                name="examples", summary="soups, WiSE-FT, weights, adapters, a file", text=EXAMPLES
            ),
            Section(
                name="yaml",
                summary="an example of merge.yaml; reading mergekit's files",
                text=MERGE_YAML,
            ),
            Section(name="own_methods", summary="your own class as a method", text=OWN_METHODS),
        ),
        usage="MODEL [MODEL ...] --output_dir FOLDER [--method METHOD] [--base BASE] [options]",
        more=parameters([*added, *METHODS.values()]),
        adapt=functools.partial(_adapt, notes=[] if notes is None else notes),
    )


def parameters(methods: Iterable[type[MergeMethod]]) -> tuple[Setting, ...]:
    """The parameters of methods as a command line takes them; what a value may be, each method says
    itself."""
    options: dict[str, Setting] = {}
    for cls in methods:
        for setting in settings_of(cls):
            hidden = dataclasses.replace(setting.meta, hidden=True)
            options.setdefault(setting.name, dataclasses.replace(setting, meta=hidden))
    return tuple(options.values())


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast merge --help`."""
    notes: list[str] = []
    parsed = command(_own_method(argv), notes=notes)
    request, method = read_request(parsed, parsed.given(argv))

    from holdfast.checkpoints.merge import prepare_merge

    names = ("base", "adapter_base", "fisher", "layout", "tokenizer", "dtype", "chat_template")
    settings = {name: getattr(request, name) for name in names}
    with stoppable():
        prepared = prepare_merge(
            method, request.models, policies=part_of(request, Policies), **settings
        )
        return carry_out(prepared, request, notes)


def read_request(
    parsed: Command[MergeRequest], given: RawRequest
) -> tuple[MergeRequest, MergeMethod]:
    """The request and its method out of what was given. Models on the command line take the place
    of the YAML's, whose weights leave with them.

    Raises:
        ConfigError: with every mistake at once.
    """
    if "models" in given.from_line and "weights" not in given.from_line:
        given.values.pop("weights", None)
    options = [setting.name for setting in parsed.more]
    values = {name: value for name, value in given.take(*options).items() if value is not None}
    request, problems = decode(MergeRequest, given.values, also=options)
    method, wrong = _method(given, values)
    given.check([*problems, *wrong])
    assert request is not None and method is not None
    return request, method


def _own_method(argv: list[str]) -> type[MergeMethod] | None:
    """The class of the user's own that a request names, whose parameters are options; None where it
    names none."""
    name = find_option(argv, "method")
    if name is None and (file := find_option(argv, "config")) is not None:
        name = str(read_yaml(file).values.get("method", ""))
    try:
        cls = find_method(name) if name else None
    except ConfigError:
        return None  # reading the request says so, with everything else
    return cls if cls not in METHODS.values() else None


def _method(
    given: RawRequest, values: Mapping[str, Any]
) -> tuple[MergeMethod | None, list[Problem]]:
    """The method with its parameters, and every mistake in them and in what depends on the
    method."""
    from holdfast.checkpoints.merge import MergeOptions, request_problems

    try:
        cls = find_method(str(given.values.get("method", "linear")))
    except ConfigError as error:
        return None, error.problems
    names = _parameter_names(cls)
    mistakes = [Problem(name, _not_taken(name, cls)) for name in values if name not in names]
    method, wrong = parse_merge_method(
        cls, {name: value for name, value in values.items() if name in names}
    )
    mistakes += wrong
    models, fisher = _items(given, "models"), _items(given, "fisher")
    if method is None or not models or fisher is None:
        return method, mistakes
    parents: dict[str, Any] = {}
    for name in ("base", "layout", "tokenizer"):
        if given.values.get(name) is not None:
            parents[name] = str(given.values[name])
    options = MergeOptions(fisher=fisher, **parents)
    mistakes += request_problems(method, [str(model) for model in models], options)
    return method, mistakes


def _items(given: RawRequest, key: str) -> list[Any] | None:
    """The items of a list, a text as its only item; None where it is neither."""
    value = given.values.get(key) or []
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else None


def _not_taken(name: str, cls: type[MergeMethod]) -> str:
    takers = [other.name for other in METHODS.values() if name in _parameter_names(other)]
    who = (
        f"{', '.join(takers[:-1])} and {takers[-1]} do" if len(takers) > 1 else f"{takers[0]} does"
    )
    options = ", ".join(f"--{option}" for option in sorted(_parameter_names(cls)))
    return f"{cls.name} does not take this option; {who}." + (
        f" Its own: {options}." if options else ""
    )


def _parameter_names(cls: type[MergeMethod]) -> list[str]:
    return [setting.name for setting in settings_of(cls)]


# --------------------------------------------------------------------------------------------- YAML


def _adapt(file: RawRequest, *, notes: list[str]) -> None:
    """A request written for mergekit becomes one of holdfast's."""
    if is_mergekit(file.values):
        file.values, problems = translate(file.values, notes)
        file.problems += problems


def merge_schema() -> dict[str, Any]:
    """JSON Schema of the file that `--config` takes. A key that several methods have may be what
    any of them takes."""
    schema = json_schema(
        MergeRequest, title="holdfast merge", description="The file of 'holdfast merge --config'."
    )
    del schema["required"]  # the command line may say it
    alternatives: dict[str, list[dict[str, Any]]] = {}
    for cls in METHODS.values():
        for setting in settings_of(cls):
            known = alternatives.setdefault(setting.name, [])
            if (described := setting_schema(setting)) not in known:
                known.append(described)
    for name, known in alternatives.items():
        schema["properties"][name] = known[0] if len(known) == 1 else {"anyOf": known}
    return schema


# --------------------------------------------------------------------------------------------- help


def _method_section(cls: type[MergeMethod]) -> Section:
    """The help on a method: what it takes, its options, where it is from, an example."""
    aliases = ", ".join(alias for alias, target in ALIASES.items() if target == cls.name)
    models = "tuned" if cls.models == (1, 1) else "math code"
    base = " --base base" if cls.needs_base else ""
    extras = " --fisher math code" if cls.extras else ""
    text = f"""\
takes {_takes(cls)}{f"; also called {aliases}" if aliases else ""}
from: {cls.source}

example
  holdfast merge {models}{base}{extras} --method {cls.name} --output_dir merged
"""
    return Section(name=cls.name, summary=cls.summary, group="methods", declared=cls, text=text)


def _takes(cls: type[MergeMethod]) -> str:
    fewest, most = cls.models
    count = (
        f"{fewest} or more models" if most is None else f"{fewest} model{'s' if fewest > 1 else ''}"
    )
    if cls.needs_base:
        count += " and a base"
    return f"{count} and a {cls.extras} each" if cls.extras else count
