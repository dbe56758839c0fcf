"""`holdfast residual`: what instruction tuning changed, taken out and put on another base; and the study of it."""

from __future__ import annotations

from collections.abc import Callable
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
from holdfast.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from holdfast.checkpoints.merge import Prepared

HELP = """\
usage: holdfast residual extract|apply|study|worker|status|report [options]

Keeps an instruct model current without instruction data: continue to train its BASE on new text, then add back what
instruction tuning had changed.

  residual    = instruct - base                      holdfast residual extract
  new model   = new base + scale * residual          holdfast residual apply

  all of it with one command, measured and reported  holdfast update
  budgets, siblings, derived models, scales          holdfast residual study
    join it from another machine, watch it           holdfast residual worker|status|report

It works across sibling versions (Llama 3 and 3.1) and on models derived from the same ancestor. Before anything is
written a sample of every layer is compared: a "residual" between models that are no relatives is warned about.

examples
  # in two steps: the residual is a folder of its own, to be kept and applied many times
  holdfast residual extract --instruct Llama-3-8B-Instruct --base Llama-3-8B --output_dir residual
  holdfast residual apply --residual residual --base Llama-3-8B-news --output_dir Llama-3-8B-Instruct-news

  # in one pass, nothing in between
  holdfast residual apply --instruct Llama-3-8B-Instruct --old_base Llama-3-8B --base Llama-3-8B-news \\
      --output_dir Llama-3-8B-Instruct-news

  # a study: three budgets of new text, base and instruct continued, siblings' residuals
  holdfast residual study --config study.yaml

'holdfast residual extract --help', 'apply --help' and 'study --help' explain the options.
"""

EXTRACT = """\
Writes instruct - base as a checkpoint of its own (residual.safetensors). In float32, the default, putting it back on the
base gives the instruct model bit for bit in nearly all cases; how many values do not come back is counted and said. The
instruct model's tokenizer, chat template and generation settings are kept with it.
"""
EXTRACT_EPILOG = """\
examples
  holdfast residual extract --instruct instruct --base base --output_dir residual
  holdfast residual extract --instruct instruct --base base --output_dir residual --dry_run   # do they look related?
  holdfast residual extract --instruct adapter --base base --output_dir residual              # a LoRA adapter
  holdfast residual extract --instruct instruct --base base --output_dir residual --dtype bfloat16   # half the space
"""

APPLY = """\
Writes base + scale * residual. The result has the base's names, dtypes and shards, and the instruct model's tokenizer,
chat template and generation settings. The residual comes from a folder (--residual), or is taken in the same pass from
the two models it lies between (--instruct and --old_base).
"""
APPLY_EPILOG = """\
examples
  holdfast residual apply --residual residual --base new-base --output_dir new-instruct
  holdfast residual apply --residual residual --base new-base --scale 0.8 --output_dir new-instruct
  holdfast residual apply --instruct instruct --old_base base --base new-base --output_dir new-instruct
  holdfast residual apply --config apply.yaml

apply.yaml
  residual: residual
  base: new-base
  vocabulary: keep
  output_dir: new-instruct
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast residual --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    step, *rest = argv
    if step in OF_STUDIES:
        from holdfast.cli import residual_study

        return residual_study.run(rest) if step == "study" else residual_study.run_on_study(step, rest)
    if step not in STEPS:
        raise ConfigError(
            f"expected 'holdfast residual extract', 'apply', 'study', 'worker', 'status' or 'report', got "
            f"'{step}'.{did_you_mean(step, [*STEPS, *OF_STUDIES])}"
        )
    parser, plan = STEPS[step]
    request = Request(parser(), rest)
    with stoppable():
        return carry_out(plan(request), request)


def plan_extract(request: Request) -> Prepared:
    """Checks and plans `extract`.

    Raises:
        HoldfastError: one `ConfigError` with all mistakes in the options; else see `prepare_extract`.
    """
    from holdfast.checkpoints.residual import prepare_extract

    instruct = request.required("instruct", "the tuned model")
    base = request.required("base", "what it was tuned from")
    request.required("output_dir", "where to write the residual")
    request.whole("workers", None, least=1)
    adapter_base = request.text("adapter_base", None)
    settings: dict[str, Any] = {
        "dtype": dtype_of(request, "float32"),
        "policies": policies_of(request),
        "adapter_base": adapter_base,
    }
    return plan_request(
        request,
        lambda: prepare_extract(instruct, base, **settings),
        _named(instruct=instruct, base=base, adapter_base=adapter_base),
    )


def plan_apply(request: Request) -> Prepared:
    """Checks and plans `apply`, from a residual or in one pass.

    Raises:
        HoldfastError: one `ConfigError` with all mistakes in the options; else see `prepare_apply` and
            `prepare_transfer`.
    """
    from holdfast.checkpoints.residual import prepare_apply, prepare_transfer

    residual, instruct, old_base = (request.text(name, None) for name in ("residual", "instruct", "old_base"))
    if residual is not None and (instruct is not None or old_base is not None):
        request.problems.append(
            "--residual and --instruct with --old_base are two ways to name the same thing; give one of them"
        )
    elif residual is None and (instruct is None or old_base is None):
        lacking = " and ".join(f"--{n}" for n, v in (("instruct", instruct), ("old_base", old_base)) if v is None)
        request.problems.append(
            f"{lacking} missing: expected --residual FOLDER, or --instruct and --old_base, between which the residual "
            f"is taken in one pass"
        )
    base = request.required("base", "the model to put the residual on")
    request.required("output_dir", "where to write the result")
    request.whole("workers", None, least=1)
    adapter_base = request.text("adapter_base", None)
    if residual is not None and adapter_base is not None:
        request.problems.append("--adapter_base goes with --instruct: a residual is no adapter")
    whose = "residual" if residual is not None else "instruct"
    settings: dict[str, Any] = {
        "scale": request.number("scale", 1.0),
        "dtype": dtype_of(request),
        "policies": policies_of(request),
        "tokenizer": request.choice("tokenizer", (whose, "base"), whose),
    }
    folders = _named(residual=residual, instruct=instruct, old_base=old_base, base=base, adapter_base=adapter_base)
    if residual is not None:
        return plan_request(request, lambda: prepare_apply(residual, base, **settings), folders)
    return plan_request(
        request,
        lambda: prepare_transfer(instruct or "", old_base or "", base, adapter_base=adapter_base, **settings),
        folders,
    )


def extract_parser() -> RequestParser:
    """The options of `holdfast residual extract`."""
    parser = RequestParser(
        prog="holdfast residual extract",
        description=EXTRACT,
        epilog=EXTRACT_EPILOG,
        usage="--instruct MODEL --base MODEL --output_dir FOLDER [options]",
    )
    parser.one("instruct", "MODEL", "the tuned model: folder, adapter or hub id")
    parser.one("base", "MODEL", "what it was tuned from")
    parser.one("adapter_base", "MODEL", "the model that an adapter belongs to (--base)")
    parser.one("dtype", "DTYPE", "of the residual (float32); bfloat16 takes half the space and is not exact")
    add_policies(parser)
    add_output(parser)
    return parser


def apply_parser() -> RequestParser:
    """The options of `holdfast residual apply`."""
    parser = RequestParser(
        prog="holdfast residual apply",
        description=APPLY,
        epilog=APPLY_EPILOG,
        usage="(--residual FOLDER | --instruct MODEL --old_base MODEL) --base MODEL --output_dir FOLDER [options]",
    )
    parser.one("residual", "FOLDER", "what 'holdfast residual extract' wrote")
    parser.one("instruct", "MODEL", "in place of --residual: the tuned model")
    parser.one("old_base", "MODEL", "with --instruct: what that was tuned from, the OLD base")
    parser.one("base", "MODEL", "the model to put the residual on: the NEW base, usually the old one trained further")
    parser.one("scale", "X", "factor on the residual (1, as in the paper)")
    parser.one("adapter_base", "MODEL", "the model that an adapter belongs to (for --instruct the old base)")
    parser.one("dtype", "DTYPE", "of floating-point tensors (the base's, tensor by tensor)")
    parser.one(
        "tokenizer",
        "WHOSE",
        "vocabulary, tokenizer, chat template and generation settings: residual (or instruct), base (residual's)",
    )
    add_policies(parser)
    add_output(parser)
    return parser


def _named(**folders: str | None) -> list[tuple[str, str]]:
    return [(f"--{option}", name) for option, name in folders.items() if name is not None]


OF_STUDIES = ("study", "worker", "status", "report")
STEPS: dict[str, tuple[Callable[[], RequestParser], Callable[[Request], Any]]] = {
    "extract": (extract_parser, plan_extract),
    "apply": (apply_parser, plan_apply),
}
"""Step: its options, and what plans it."""
