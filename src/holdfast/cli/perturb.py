"""`holdfast perturb`: Gaussian noise on the weights, reproducible by seed and tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.checkpoint_options import (
    add_output,
    all_here,
    carry_out,
    dtype_of,
    missing_folders,
    plan_request,
    stoppable,
)
from holdfast.cli.request import Request, RequestParser

if TYPE_CHECKING:
    from holdfast.checkpoints.merge import Prepared

DESCRIPTION = """\
Writes model + scale * std * noise: how sensitive is a model to random changes of its weights? The noise of every element
depends on the seed, the tensor's name and the element's place alone, so the same request gives the same bits anywhere.
"""
EPILOG = """\
examples
  holdfast perturb model --scale 0.01 --seed 1 --output_dir perturbed
  holdfast perturb model --scale 0.01 --seed 1 --std tensor --output_dir perturbed     # relative to each tensor as it is
  holdfast perturb model --scale 1 --seed 1 --std 0.001 --output_dir perturbed         # one number for all tensors

--std
  init      each tensor's standard deviation when the model was initialised, from its architecture (the default, and the
            paper's); norm weights and biases, which are initialised to constants, stay as they are
  tensor    the standard deviation of each tensor's present values (reads the model once before)
  FOLDER    the same of another checkpoint, such as a freshly initialised one
  NUMBER    this for every floating-point tensor
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast perturb --help`."""
    request = Request(build_parser(), argv)
    with stoppable():
        return carry_out(plan_perturb(request), request)


def plan_perturb(request: Request) -> Prepared:
    """Checks and plans a request.

    Raises:
        HoldfastError: one `ConfigError` with all mistakes in the options; else see `prepare_perturb`.
    """
    from holdfast.checkpoints.perturb import prepare_perturb

    models = request.texts("model")
    if len(models) != 1:
        request.problems.append(f"expected one model, got {len(models)}{': ' + ', '.join(models) if models else ''}")
    model = models[0] if models else ""
    request.required("scale", "the size of the noise, as a multiple of --std; 0.01 is a beginning")
    scale, seed, dtype = request.number("scale", 0.0), request.whole("seed", 0), dtype_of(request)
    request.required("output_dir", "where to write")
    request.whole("workers", None, least=1)
    adapter_base, std = request.text("adapter_base", None), request.text("std", "init")
    folders = [("model", model)] + ([("--adapter_base", adapter_base)] if adapter_base else [])
    _check_std(std, request)
    if not request.unknown:
        request.problems += missing_folders(folders)
    if request.problems and not all_here(name for _, name in folders):
        request.check()
    stds: Mapping[str, float] | str = {} if request.problems else stds_of(std, model, adapter_base)
    found = plan_request(
        request,
        lambda: prepare_perturb(model, scale=scale, seed=seed, stds=stds, dtype=dtype, adapter_base=adapter_base),
        folders,
    )
    spread = [value for value in getattr(found.recipe, "stds", {}).values() if value > 0]
    still = len(found.plan.jobs) - len(spread)
    widths = f" (std {min(spread):.3g} to {max(spread):.3g})" if spread else ""
    request.notes.append(f"--std {std}: {len(spread)} tensors get noise{widths}, {still} stay as they are")
    return found


def stds_of(std: str, model: str, adapter_base: str | None) -> Mapping[str, float] | str:
    """The standard deviations that `--std` means, by tensor, or "tensor".

    Raises:
        ModelError: a checkpoint cannot be read, or its architecture is not known (for "init").
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.perturb import own_stds
    from holdfast.checkpoints.sources import folders_of

    if std == "tensor":
        return std
    if std == "init":
        from holdfast.training.fresh_init import init_stds

        folders = folders_of(open_source(model, base=adapter_base))
        return init_stds(
            next((f for f in reversed(folders) if (f / "config.json").is_file()), folders[-1]), stored=True
        )
    number = _number(std)
    if number is None:
        return own_stds(open_source(std))
    return {
        name: number
        for name, entry in open_source(model, base=adapter_base).entries.items()
        if entry.dtype.kind == "float"
    }


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(
        prog="holdfast perturb",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="MODEL --scale X --seed N --output_dir FOLDER [options]",
    )
    parser.words("model", "MODEL", "folder, adapter or hub id")
    parser.one("scale", "X", "size of the noise, a multiple of the standard deviations (gamma); 0 copies")
    parser.one("seed", "N", "of the noise (0)")
    parser.one("std", "init|tensor|FOLDER|NUMBER", "what the scale multiplies (init); see below")
    parser.one("adapter_base", "MODEL", "the model that an adapter belongs to (the one it names)")
    parser.one("dtype", "DTYPE", "of floating-point tensors (as they are)")
    add_output(parser)
    return parser


def _check_std(std: str, request: Request) -> None:
    if std in ("init", "tensor") or _number(std) is not None or Path(std).expanduser().is_dir():
        return
    from holdfast.errors import did_you_mean

    request.problems.append(
        f"{request.named('std')}: expected init, tensor, a number or the folder of a checkpoint, got "
        f"'{std}'.{did_you_mean(std, ('init', 'tensor'))}"
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
