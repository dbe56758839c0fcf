"""`holdfast transplant`: a model with another model's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.cli.checkpoint_options import DTYPE, Output, carry_out, missing_folders
from holdfast.cli.console import stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake

DESCRIPTION = """\
Gives a model the tokenizer of another. Rows of embeddings and head for tokens that both have are copied, whatever the
tokenizers' kinds; the others become the mean of the rows of the tokens into which the model's own tokenizer cuts them,
and where there is none the mean of all. Everything else stays as it is. How many rows came about in which way is said.
Tokenizer files and chat template are the donor's; ids of special tokens in the configurations follow.

The result has to be trained: it reads its new tokens roughly. It is for distillation between models of different
tokenizers, for speculative decoding with a small model, and for a vocabulary that suits another language.
"""
EPILOG = """\
examples
  holdfast transplant model --tokenizer donor --output_dir model-with-donors-tokens --dry_run    # how many are common?
  holdfast transplant model --tokenizer donor --output_dir model-with-donors-tokens
  holdfast transplant model --tokenizer donor --pad_to_multiple_of 64 --chat_template chatml --output_dir out

Models that only were given a few tokens more: holdfast merge ... --tokenizer union
"""


@dataclass(frozen=True, kw_only=True)
class _Onto:
    model: Annotated[str, Meta(positional=True, metavar="MODEL")]
    """The model: folder, adapter or hub id."""
    tokenizer: Annotated[str, Meta(metavar="DONOR")]
    """Folder or hub id with the tokenizer that it gets; weights need not be there."""
    pad_to_multiple_of: Annotated[int, Meta(ge=1)] = 1
    """Rows are added until their number is a multiple of this."""
    adapter_base: Annotated[str | None, Meta(metavar="MODEL")] = None
    """The model that an adapter belongs to (the one that it names)."""
    chat_template: Annotated[str | None, Meta(metavar="TEMPLATE")] = None
    """Its chat template: chatml, a .jinja file, or the text (the donor's)."""
    dtype: Annotated[str | None, DTYPE] = None
    """Dtype of floating-point tensors (the model's, tensor by tensor)."""


@dataclass(frozen=True, kw_only=True)
class TransplantRequest(Output, _Onto):
    """`holdfast transplant`."""

    def problems(self) -> list[Mistake]:
        """Folders that are not there."""
        return missing_folders(self, "model", "tokenizer", "adapter_base")


COMMAND = Command(
    name="holdfast transplant",
    request=TransplantRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="MODEL --tokenizer DONOR --output_dir FOLDER [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast transplant --help`."""
    request = COMMAND.read(argv)

    from holdfast.checkpoints.transplant import prepare_transplant

    with stoppable():
        prepared = prepare_transplant(
            request.model,
            request.tokenizer,
            multiple=request.pad_to_multiple_of,
            adapter_base=request.adapter_base,
            chat_template=request.chat_template,
            dtype=request.dtype,
        )
        return carry_out(prepared, request)
