"""`holdfast merge`: one checkpoint out of several, by any of the methods of `checkpoints.methods`."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import (
    add_output,
    add_policies,
    carry_out,
    dtype_of,
    plan_request,
    policies_of,
    stoppable,
)
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import did_you_mean

if TYPE_CHECKING:
    from holdfast.checkpoints.merge import Prepared

DESCRIPTION = """\
Merges checkpoints of one architecture into a new one, at about the speed of copying it and in little memory. Nothing is
dropped in silence: what does not fit is refused with a list, or follows the policy that you name. Arithmetic is in float32
with one rounding at the end. The inputs are never modified. Adapters (LoRA) count as models: they are merged into their
base on the fly. The result carries its tokenizer and a record of where it comes from (provenance.json).
"""
EPILOG = """\
examples
  # a soup of three fine-tunes
  holdfast merge run-1 run-2 run-3 --output_dir soup

  # keep what the base knew: go half the way to the fine-tune (WiSE-FT)
  holdfast merge tuned --base base --method wise_ft --alpha 0.5 --output_dir half-way

  # two skills on one base; first look at the plan
  holdfast merge math code --base base --method ties --density 0.3 --weights 0.6 0.4 --output_dir both --dry_run
  holdfast merge math code --base base --method ties --density 0.3 --weights 0.6 0.4 --output_dir both

  # a LoRA adapter into its base
  holdfast merge adapter --adapter_base base --output_dir merged

  # the request as a file; anything on the command line wins
  holdfast merge --config merge.yaml --density 0.5

merge.yaml
  method: ties
  base: base
  models:
    - {model: math, weight: 0.6}      # or plain names, and weights: [0.6, 0.4] beside them
    - {model: code, weight: 0.4}
  density: 0.3
  dtype: bfloat16
  output_dir: both

A YAML of mergekit is taken as it is, where the method is here: --config mergekit.yml --output_dir FOLDER.
Paths in a YAML are relative to where the command runs.

methods and their options
"""
USAGE = "MODEL [MODEL ...] --output_dir FOLDER [--method METHOD] [--base BASE] [options]"


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast merge --help`."""
    from holdfast.cli.mergekit_yaml import translate

    parser = build_parser()
    request = Request(parser, argv, translate=translate)
    if request.on("list"):
        _print_methods()
        return 0
    with stoppable():
        return carry_out(plan_merge(request), request)


def plan_merge(request: Request) -> Prepared:
    """Checks and plans a request.

    Raises:
        HoldfastError: one `ConfigError` with all mistakes in the options; else see `prepare_merge`.
    """
    from holdfast.checkpoints.merge import prepare_merge

    models, weights = models_of(request)
    base, fisher, adapter_base = request.text("base", None), request.texts("fisher"), request.text("adapter_base", None)
    method = _method(request, weights, len(models))
    request.required("output_dir", "where to write, as in --output_dir merged")
    if not models:
        request.problems.append(
            "no models: expected the checkpoints to merge, as in 'holdfast merge A B --output_dir merged'"
        )
    request.whole("workers", None, least=1)
    settings: dict[str, Any] = {
        "base": base,
        "fisher": fisher,
        "adapter_base": adapter_base,
        "layout": request.text("layout", None),
        "tokenizer": request.text("tokenizer", None),
        "dtype": dtype_of(request),
        "policies": policies_of(request),
    }
    folders = [("model", m) for m in models] + [("--fisher", f) for f in fisher]
    folders += [
        (option, name) for option, name in (("--base", base), ("--adapter_base", adapter_base)) if name is not None
    ]
    return plan_request(
        request, lambda: prepare_merge(method, models, **settings), folders if models else [("model", "")]
    )


def models_of(request: Request) -> tuple[list[str], Any]:
    """The models, and the weights as they were written (None: not given); mistakes are added to the request's problems.

    Models on the command line take the place of the YAML's, and its weights leave with them. Where some models of a
    YAML have a weight, the others have 1.
    """
    problems = request.problems
    weights = request.raw("weights")
    if "models" in request.given:
        return request.texts("models"), request.given.get("weights")
    value = request.from_yaml.get("models", [])
    entries = value if isinstance(value, list) else [value]
    models, own = [], []
    for i, entry in enumerate(entries, 1):
        if isinstance(entry, dict):
            unknown = [key for key in entry if key not in ("model", "weight")]
            problems += [
                f"models, entry {i}: unknown key '{key}'.{did_you_mean(str(key), ('model', 'weight'))}"
                for key in unknown
            ]
            if not isinstance(entry.get("model"), str):
                problems.append(f"models, entry {i}: expected {{model: FOLDER, weight: 0.5}}, got {entry}")
                continue
            models.append(entry["model"])
            own.append(entry.get("weight"))
        elif isinstance(entry, (str, int, float)) and not isinstance(entry, bool):
            models.append(str(entry))
            own.append(None)
        else:
            problems.append(f"models, entry {i}: expected a folder, or {{model: FOLDER, weight: 0.5}}, got {entry!r}")
    if any(w is not None for w in own):
        if "weights" in request.from_yaml:
            problems.append("weights: given beside the models and with them; keep one of the two")
        if weights is None:
            weights = [1.0 if w is None else w for w in own]
    return models, weights


def _method(request: Request, weights: Any, models: int) -> Any:
    """The method as asked for; its name where the name is unknown, its defaults where parameters have mistakes, which
    are noted."""
    from holdfast.checkpoints.methods.registry import METHODS, find_method, parameters_of, parse_merge_method

    name = request.text("method", "linear")
    cls = find_method(name)
    known = {p.name for p in parameters_of(cls)} if cls is not None else set()
    given: dict[str, Any] = {}
    for parameter in dict.fromkeys(p.name for m in METHODS.values() for p in parameters_of(m)):
        value = weights if parameter == "weights" else request.raw(parameter)
        if value is None:
            continue
        if cls is not None and parameter not in known:
            takers = [m for m, c in METHODS.items() if parameter in {p.name for p in parameters_of(c)}]
            own = f" Its own: {', '.join(f'--{p}' for p in sorted(known))}." if known else ""
            request.problems.append(f"{request.named(parameter)}: {cls.name} does not take it; {_listed(takers)}.{own}")
            continue
        if parameter == "weights" and isinstance(value, list):
            words = [str(v) for v in value if not _is_number(v)]
            if words:
                request.problems.append(
                    f"{request.named('weights')}: expected numbers, got {', '.join(words)}. Name the models first, or "
                    f"write --weights 0.5,0.5"
                )
                continue
            value = " ".join(str(v) for v in value)
        given[parameter] = value
    method, problems = parse_merge_method(name, given, models=models if models else None)
    request.problems += problems
    return method if method is not None else cls() if cls is not None else name


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]} do" if len(names) > 1 else f"{names[0]} does"


def _is_number(value: Any) -> bool:
    try:
        return bool([float(v) for v in str(value).replace(",", " ").split()]) and not isinstance(value, bool)
    except ValueError:
        return False


# ----------------------------------------------------------------------------------------------------------------- help


def build_parser() -> RequestParser:
    """The options, those of all methods among them."""
    from holdfast.checkpoints.methods.registry import METHODS, parameters_of

    parser = RequestParser(prog="holdfast merge", description=DESCRIPTION, epilog=EPILOG + methods_help(), usage=USAGE)
    parser.words("models", "MODEL", "checkpoint folders, adapters or hub ids, in the order of the weights")
    parser.one("method", "METHOD", "see below (linear)")
    parser.switch("list", "show the methods as a table")
    parser.one("base", "BASE", "what the models were tuned from, for methods that work on changes")
    parser.one("adapter_base", "MODEL", "the model that adapters belong to (--base, else the one each adapter names)")
    parser.one(
        "layout",
        "PARENT",
        "whose names, dtypes, shards and config the result takes: base, 1, 2, ... or its folder (base, else 1)",
    )
    parser.one(
        "tokenizer",
        "PARENT",
        "whose vocabulary, tokenizer, chat template and generation settings it takes (the layout's)",
    )
    parser.one(
        "dtype", "DTYPE", "of floating-point tensors: bfloat16, float16, float32, ... (the layout's, tensor by tensor)"
    )
    parser.many("fisher", "FOLDER", "Fisher diagonals, one checkpoint a model, for --method fisher")
    for cls in METHODS.values():
        for parameter in parameters_of(cls):
            if parameter.name in parser.values:
                continue
            if parameter.name == "weights":
                parser.many("weights", "W", argparse.SUPPRESS)
            elif isinstance(parameter.default, bool) or "bool" in str(parameter.type):
                parser.switch(parameter.name, argparse.SUPPRESS)
            else:
                parser.one(parameter.name, parameter.name.upper(), argparse.SUPPRESS)
    add_policies(parser)
    add_output(parser)
    return parser


def methods_help() -> str:
    """Every method with its source and its options, from the registry."""
    from holdfast.checkpoints.methods.registry import ALIASES, METHODS, parameters_of

    lines = []
    for name, cls in METHODS.items():
        others = ", ".join(alias for alias, target in ALIASES.items() if target == name)
        lines.append(f"  {name}: {cls.summary}{f' (also: {others})' if others else ''}")
        lines += textwrap.wrap(
            f"takes {_takes(cls)}; from: {cls.source}", 116, initial_indent="      ", subsequent_indent="          "
        )
        for parameter in parameters_of(cls):
            default = "" if parameter.default in (None, "") else f" ({_shown(parameter.default)})"
            lines += textwrap.wrap(
                f"--{parameter.name}{default}: {parameter.help}",
                116,
                initial_indent="      ",
                subsequent_indent="          ",
            )
    return "\n".join(lines) + "\n"


def _takes(cls: Any) -> str:
    fewest, most = cls.models
    count = f"{fewest} or more models" if most is None else f"{fewest} model{'s' if fewest > 1 else ''}"
    return count + (" and a base" if cls.needs_base else "") + (f" and a {cls.extras} each" if cls.extras else "")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _print_methods() -> None:
    from rich.table import Table

    from holdfast.checkpoints.methods.registry import METHODS, parameters_of
    from holdfast.cli.options import console

    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("what it does, and its source", ratio=3)
    table.add_column("what it takes, and its options", ratio=2)
    for name, cls in METHODS.items():
        options = " ".join(f"--{p.name}" for p in parameters_of(cls))
        table.add_row(name, f"{cls.summary}\n[dim]{cls.source}[/dim]", f"{_takes(cls)}\n{options}")
    console().print(table)
