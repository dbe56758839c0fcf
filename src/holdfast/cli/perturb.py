"""`holdfast perturb`: Gaussian noise on the weights, reproducible by seed and tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from holdfast.checkpoints.named import located
from holdfast.cli.checkpoint_options import DTYPE, Output, carry_out, missing_folders
from holdfast.cli.console import stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.decode import with_floats
from holdfast.config.values import Mistake, Refused
from holdfast.errors import did_you_mean
from holdfast.support.paths import expanded

DESCRIPTION = """\
Writes model + scale * std * noise: how sensitive is a model to random changes of its weights? The noise of every
element depends on nothing but the seed, the tensor's name and the element's place: the same request gives the same
bits anywhere.
"""
EPILOG = """\
examples
  holdfast perturb model --scale 0.01 --seed 1 --output_dir perturbed
  holdfast perturb model --scale 0.01 --seed 1 --std tensor --output_dir perturbed    # relative to each tensor as it is
  holdfast perturb model --scale 1 --seed 1 --std 0.001 --output_dir perturbed         # one number for all tensors

--std
  init      each tensor's standard deviation when the model was initialised, from its architecture (the default, and the
            paper's); norm weights and biases, which are initialised to constants, stay as they are
  tensor    the standard deviation of each tensor's present values (reads the model once before)
  FOLDER    the same of another checkpoint, such as a freshly initialised one
  NUMBER    this for every floating-point tensor
"""


def read_std(value: Any) -> str | float:
    """What `--std` means: "init", "tensor", a number, or the folder of a checkpoint.

    Raises:
        Refused: something else, with the nearest word.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = str(value)
    try:
        return float(text)
    except ValueError:
        pass
    if text not in ("init", "tensor") and not expanded(located(text)).is_dir():
        expected = "init, tensor, a number or the folder of a checkpoint"
        near = did_you_mean(text, ("init", "tensor"))
        raise Refused(Mistake(path=(), text=f"expected {expected}, got '{text}'.{near}"))
    return text


@dataclass(frozen=True, kw_only=True)
class _Noise:
    model: Annotated[str, Meta(positional=True, metavar="MODEL")]
    """Folder, adapter or hub id."""
    scale: Annotated[float, Meta(ge=0)]
    """Size of the noise, a multiple of the standard deviations (gamma); 0 copies, 0.01 is a beginning."""
    seed: int = 0
    """Seed of the noise."""
    std: Annotated[str | float, Meta(parse=read_std, metavar="init|tensor|FOLDER|NUMBER")] = "init"
    """What the scale multiplies; see below."""
    adapter_base: Annotated[str | None, Meta(metavar="MODEL")] = None
    """The model that an adapter belongs to (the one it names)."""
    dtype: Annotated[str | None, DTYPE] = None
    """Dtype of floating-point tensors (as they are)."""


@dataclass(frozen=True, kw_only=True)
class PerturbRequest(Output, _Noise):
    """`holdfast perturb`."""

    def problems(self) -> list[Mistake]:
        """Folders that are not there."""
        return missing_folders(self, "model", "adapter_base")


COMMAND = Command(
    name="holdfast perturb",
    request=PerturbRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="MODEL --scale X --seed N --output_dir FOLDER [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast perturb --help`."""
    request = with_floats(COMMAND.read(argv))

    from holdfast.checkpoints.perturb import prepare_perturb

    with stoppable():
        found = prepare_perturb(
            request.model,
            scale=request.scale,
            seed=request.seed,
            stds=stds_of(request.std, request.model, request.adapter_base),
            dtype=request.dtype,
            adapter_base=request.adapter_base,
        )
        spread = [value for value in getattr(found.recipe, "stds", {}).values() if value > 0]
        widths = f" (std {min(spread):.3g} to {max(spread):.3g})" if spread else ""
        still = len(found.plan.jobs) - len(spread)
        note = f"--std {request.std}: {len(spread)} tensors get noise{widths}, {still} stay as they are"
        return carry_out(found, request, [note])


def stds_of(std: str | float, model: str, adapter_base: str | None) -> Mapping[str, float] | str:
    """The standard deviations that `--std` means, by tensor, or "tensor".

    Raises:
        ModelError: a checkpoint cannot be read, or its architecture is not known (for "init").
    """
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.perturb import own_stds
    from holdfast.checkpoints.sources import folders_of

    if std == "tensor":
        return "tensor"
    if std == "init":
        from holdfast.training.fresh_init import init_stds

        folders = folders_of(open_source(model, base=adapter_base))
        return init_stds(
            next((f for f in reversed(folders) if (f / "config.json").is_file()), folders[-1]), stored=True
        )
    if isinstance(std, str):
        return own_stds(open_source(std))
    return {
        name: std
        for name, entry in open_source(model, base=adapter_base).entries.items()
        if entry.dtype.kind == "float"
    }
