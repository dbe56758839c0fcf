"""`holdfast residual`: what instruction tuning changed, taken out and put on another base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.checkpoints.policies import Policies
from holdfast.cli.checkpoint_options import DTYPE, Output, carry_out, missing_folders
from holdfast.cli.console import stoppable
from holdfast.config.command_line import Command, read_step
from holdfast.config.declare import Meta, part_of
from holdfast.config.decode import with_floats
from holdfast.errors import Problem

if TYPE_CHECKING:
    from holdfast.checkpoints.build import Prepared

HELP = """\
usage: holdfast residual extract|apply [options]

Updates an instruct model on new text without instruction data: continue to train its BASE on the new text, then add
back what instruction tuning had changed.

  residual    = instruct - base                      holdfast residual extract
  new model   = new base + scale * residual          holdfast residual apply

  both steps, measured and reported                  holdfast update
  budgets, siblings, derived models, scales          holdfast study

A residual works across sibling versions (Llama 3 and 3.1) and on models that were derived from the same ancestor.
Before anything is written, a sample of every layer is compared. If the models do not look related, a warning says so.

examples
  # in two steps: the residual is a folder that can be applied many times
  holdfast residual extract --instruct Llama-3-8B-Instruct --base Llama-3-8B \\
      --output_dir residual
  holdfast residual apply --residual residual --base Llama-3-8B-news \\
      --output_dir Llama-3-8B-Instruct-news

  # in one pass, without a residual folder
  holdfast residual apply --instruct Llama-3-8B-Instruct \\
      --old_base Llama-3-8B --base Llama-3-8B-news \\
      --output_dir Llama-3-8B-Instruct-news

'holdfast residual extract --help' and 'apply --help' explain the options.
"""

EXTRACT = """\
Writes instruct - base as a checkpoint of its own (residual.safetensors). If the residual is float32 (the default),
base + residual is the instruct model bit for bit, except for signs of zeros. This holds if the sum is saved in float32,
or in a narrower dtype that can represent the instruct model's numbers. The command prints how many values are not
recovered. The instruct model's tokenizer, chat template and generation settings are stored with the residual.
"""
EXTRACT_EPILOG = """\
examples
  holdfast residual extract --instruct instruct --base base \\
      --output_dir residual
  # only check whether the models look related
  holdfast residual extract --instruct instruct --base base \\
      --output_dir residual --dry_run
  # the instruct model is a LoRA adapter
  holdfast residual extract --instruct adapter --base base --output_dir residual
  # half the disk space, not exact
  holdfast residual extract --instruct instruct --base base \\
      --output_dir residual --dtype bfloat16
"""

APPLY = """\
Writes base + scale * residual. The result has the base's names, dtypes and shards, and the instruct model's
tokenizer, chat template and generation settings. The residual comes from a folder (--residual), or is computed in the
same pass from two models (--instruct minus --old_base).
"""
APPLY_EPILOG = """\
examples
  holdfast residual apply --residual residual --base new-base \\
      --output_dir new-instruct
  holdfast residual apply --residual residual --base new-base --scale 0.8 \\
      --output_dir new-instruct
  holdfast residual apply --instruct instruct --old_base base --base new-base \\
      --output_dir new-instruct
  holdfast residual apply --config apply.yaml

apply.yaml
  residual: residual
  base: new-base
  vocabulary: keep
  output_dir: new-instruct
"""


Model = Annotated[str, Meta(metavar="MODEL")]
OptionalModel = Annotated[str | None, Meta(metavar="MODEL")]


@dataclass(frozen=True, kw_only=True)
class _Between:
    instruct: Model
    """The tuned model: folder, adapter or hub id."""
    base: Model
    """The base that the model was tuned from."""
    adapter_base: OptionalModel = None
    """Base of the adapter (default: --base)."""
    dtype: Annotated[str, DTYPE] = "float32"
    """Dtype of the residual; bfloat16 takes half the disk space and is not exact."""


@dataclass(frozen=True, kw_only=True)
class ExtractRequest(Output, Policies, _Between):
    """`holdfast residual extract`."""

    def problems(self) -> list[str]:
        """Folders that are not there."""
        return missing_folders(self, "instruct", "base", "adapter_base")


@dataclass(frozen=True, kw_only=True)
class _Onto:
    residual: Annotated[str | None, Meta(metavar="FOLDER")] = None
    """Folder that 'holdfast residual extract' wrote."""
    instruct: OptionalModel = None
    """The tuned model, given in place of --residual."""
    old_base: OptionalModel = None
    """With --instruct: the OLD base, from which the instruct model was tuned."""
    base: Model
    """Model to which the residual is added: the NEW base, usually the old base trained further."""
    scale: float = 1.0
    """Factor by which the residual is multiplied (1 in the paper)."""
    adapter_base: OptionalModel = None
    """Base of the adapter (default for --instruct: --old_base)."""
    dtype: Annotated[str | None, DTYPE] = None
    """Dtype of floating-point tensors (default: as in the base, tensor by tensor)."""
    tokenizer: Literal["residual", "instruct", "base"] | None = None
    """What gives the result its vocabulary, tokenizer, chat template and generation settings
    (default: the residual, or the instruct model)."""


@dataclass(frozen=True, kw_only=True)
class ApplyRequest(Output, Policies, _Onto):
    """`holdfast residual apply`."""

    def problems(self) -> list[str]:
        """A residual that is named twice or not at all, and folders that are not there."""
        problems = missing_folders(self, "residual", "instruct", "old_base", "base", "adapter_base")
        missing = [f"--{name}" for name in ("instruct", "old_base") if getattr(self, name) is None]
        if self.residual is not None and len(missing) < 2:
            text = "expected either --residual, or --instruct with --old_base, got both."
            problems.append(Problem("residual", text))
        elif self.residual is None and missing:
            problems.append(
                f"{' and '.join(missing)} missing: expected --residual FOLDER, or --instruct and "
                "--old_base to compute the residual in one pass."
            )
        if self.residual is not None and self.adapter_base is not None:
            problems.append(
                Problem("adapter_base", "needs --instruct, because a residual is not an adapter.")
            )
        if self.tokenizer not in (None, self.source, "base"):
            problems.append(
                Problem(
                    "tokenizer", f"expected one of {self.source}, base, got '{self.tokenizer}'."
                )
            )
        return problems

    @property
    def source(self) -> str:
        """Which option the residual comes from."""
        return "residual" if self.residual is not None else "instruct"


EXTRACTION = Command(
    name="holdfast residual extract",
    request=ExtractRequest,
    description=EXTRACT,
    epilog=EXTRACT_EPILOG,
    usage="--instruct MODEL --base MODEL --output_dir FOLDER [options]",
)
APPLICATION = Command(
    name="holdfast residual apply",
    request=ApplyRequest,
    description=APPLY,
    epilog=APPLY_EPILOG,
    usage="(--residual FOLDER | --instruct MODEL --old_base MODEL) --base MODEL --output_dir FOLDER [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast residual --help`."""
    step, rest = read_step(argv, STEPS, command="holdfast residual", text=HELP)
    command, plan = STEPS[step]
    request = with_floats(command.read(rest))
    with stoppable():
        return carry_out(plan(request), request)


def plan_extract(request: ExtractRequest) -> Prepared:
    """Plans `extract`.

    Raises:
        HoldfastError: see `prepare_extract`.
    """
    from holdfast.checkpoints.residual import prepare_extract

    return prepare_extract(
        request.instruct,
        request.base,
        dtype=request.dtype,
        policies=part_of(request, Policies),
        adapter_base=request.adapter_base,
    )


def plan_apply(request: ApplyRequest) -> Prepared:
    """Plans `apply`, from a residual or in one pass.

    Raises:
        HoldfastError: see `prepare_apply` and `prepare_transfer`.
    """
    from holdfast.checkpoints.residual import prepare_apply, prepare_transfer

    settings: dict[str, Any] = {
        "scale": request.scale,
        "dtype": request.dtype,
        "policies": part_of(request, Policies),
        "tokenizer": request.tokenizer or request.source,
    }
    if request.residual is not None:
        return prepare_apply(request.residual, request.base, **settings)
    assert request.instruct is not None and request.old_base is not None
    return prepare_transfer(
        request.instruct,
        request.old_base,
        request.base,
        adapter_base=request.adapter_base,
        **settings,
    )


STEPS: dict[str, tuple[Command[Any], Callable[[Any], Prepared]]] = {
    "extract": (EXTRACTION, plan_extract),
    "apply": (APPLICATION, plan_apply),
}
"""Step: its command, and what plans it."""
