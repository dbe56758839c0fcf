"""`holdfast extract-lora`: what tuning changed, as a LoRA adapter."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.checkpoints.lora_settings import LoraSettings
from holdfast.cli.checkpoint_options import DTYPE, missing_folders, seconds_text, size_text
from holdfast.cli.console import print_json, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, part_of
from holdfast.config.values import Mistake

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.extract_lora import ExtractedLora, Part

DESCRIPTION = """\
Writes the low-rank part of tuned - base as a LoRA adapter that PEFT loads: for every matrix the best product of two
thin ones, with scaling 1. It says how much of the difference is in the adapter, matrix by matrix, and what is not:
norms and biases, which LoRA has no factors for, are named, or saved whole with --others save. One tensor is in memory
at a time. The inputs are never modified.
"""
EPILOG = """\
examples
  holdfast extract-lora tuned --base base --output_dir adapter                   # rank 32
  holdfast extract-lora tuned --base base --rank 128 --others save --output_dir adapter
  holdfast extract-lora tuned --base base --energy 0.9 --output_dir adapter      # each matrix the rank that it needs
  holdfast extract-lora tuned --base base --svd randomized --output_dir adapter  # large models

  holdfast merge adapter --adapter_base base --output_dir nearly-tuned           # what it gives back
  holdfast distance tuned nearly-tuned

A model with tokens of its own: give the base these tokens first, and extract from that
  holdfast merge base tuned --weights 1 0 --tokenizer union --output_dir base-with-tokens
"""


@dataclass(frozen=True, kw_only=True)
class _Between:
    tuned: Annotated[str, Meta(positional=True, metavar="TUNED")]
    """The tuned model: folder or hub id."""
    base: Annotated[str, Meta(metavar="BASE")]
    """What it was tuned from; the adapter names it as its base."""
    output_dir: Annotated[Path, Meta(metavar="FOLDER")]
    """Folder to write; it is complete or absent, whatever happens meanwhile."""


@dataclass(frozen=True, kw_only=True)
class ExtractLoraRequest(LoraSettings, _Between):
    """`holdfast extract-lora`."""

    dtype: Annotated[str, DTYPE] = "float32"
    """Dtype of the adapter."""
    overwrite: bool = False
    """Replace the folder if it is there and holdfast wrote it."""
    json: bool = False
    """Print the outcome as JSON on stdout."""
    no_sync: bool = False
    """Do not wait until the disk has it all: quicker, but a power cut may lose it."""

    def problems(self) -> list[str | Mistake]:  # type: ignore[override]
        """Settings that exclude each other, and folders that are not there."""
        return [*missing_folders(self, "tuned", "base"), *super().problems()]


COMMAND = Command(
    name="holdfast extract-lora",
    request=ExtractLoraRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="TUNED --base BASE --output_dir FOLDER [--rank R | --energy SHARE] [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast extract-lora --help`."""
    import time

    request = COMMAND.read(argv)

    from holdfast.checkpoints.extract_lora import WEIGHTS, extract_lora

    began = time.monotonic()
    with stoppable():
        found = extract_lora(
            request.tuned,
            request.base,
            request.output_dir,
            settings=LoraSettings(**vars(part_of(request, LoraSettings))),
            dtype=request.dtype,
            overwrite=request.overwrite,
            sync=not request.no_sync,
        )
    size = size_text((found.folder / WEIGHTS).stat().st_size)
    line = (
        f"Wrote {found.folder}: {size} in {seconds_text(time.monotonic() - began)}; it keeps {_share(found.kept)} of "
        f"the squared difference"
    )
    print(line, file=sys.stderr if request.json else sys.stdout)
    if request.json:
        print_json({**found.record, "folder": found.folder, "kept": found.kept})
    else:
        show(found, stdout_console())
    return 0


def show(found: ExtractedLora, target: Console) -> None:
    """What the adapter holds by kind of module, and what it does not hold."""
    from rich.table import Table

    kinds: dict[str, list[Part]] = {}
    for part in found.parts:
        kinds.setdefault(
            ".".join(part.name.split(".")[-2:]) if part.how != "lora" else part.name.split(".")[-2], []
        ).append(part)
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in ("changed", "tensors", "in the adapter", "kept", "least"):
        table.add_column(column, justify="left" if column in ("changed", "in the adapter") else "right")
    for name, parts in kinds.items():
        squares = sum(p.squares for p in parts)
        kept = 1 - sum(p.lost for p in parts) / squares if squares else 0.0
        table.add_row(name, str(len(parts)), _how(parts), _share(kept), _share(min(p.kept for p in parts)))
    target.print(table)
    advice = {
        "left out": "--others save keeps norms and biases whole, --embeddings save embeddings and head.",
        "out of reach": "transformers renames or stacks them on loading, so that no adapter reaches them.",
    }
    for how, text in advice.items():
        if left := sum(p.how == how for p in found.parts):
            target.print(
                f"{left} changed tensors are not in the adapter; {text}",
                soft_wrap=True,
                highlight=False,
            )


def _how(parts: Sequence[Part]) -> str:
    ranks = sorted({p.rank for p in parts if p.how == "lora"})
    shown = [f"rank {ranks[0]}" + (f" to {ranks[-1]}" if len(ranks) > 1 else "")] if ranks else []
    return ", ".join([*shown, *sorted({p.how for p in parts} - {"lora"})])


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
