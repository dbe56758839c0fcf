"""`holdfast quickstart`: the trade-off between learning and keeping, on this machine, now."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast.cli.options import OptionParser, console

DESCRIPTION = """\
Trains a small language model on the English prose that every Python carries, fine-tunes it on source code with each
retention method, and shows what each one learnt and what it kept. About three minutes on two CPU cores; no network,
no GPU, no files of yours. The base model is kept and reused the next time; an interrupted quickstart continues.
"""
EPILOG = """\
examples
  holdfast quickstart                          # everything, into ./holdfast-quickstart
  holdfast quickstart --quick                  # half a minute: does it run here at all?
  holdfast quickstart --output_dir /tmp/try --seed 1
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast quickstart --help`."""
    options = _parser().parse(argv)

    from holdfast.studies.quickstart import quickstart

    quickstart(
        output_dir=options.output_dir,
        seed=options.seed,
        workers=options.workers,
        quick=options.quick,
        only=options.only,
        console=console(),
    )
    return 0


def _parser() -> OptionParser:
    parser = OptionParser(prog="holdfast quickstart", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("holdfast-quickstart"),
        metavar="FOLDER",
        help="where to write (./holdfast-quickstart)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (0)")
    workers = default_workers()
    parser.add_argument(
        "--workers",
        type=_at_least_one,
        default=workers,
        metavar="N",
        help=f"fine-tuning runs at the same time ({workers} here)",
    )
    parser.add_argument("--quick", action="store_true", help="a check of half a minute; its figures mean little")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ARM",
        help="one way of fine-tuning, such as direct or sfa; repeatable (all)",
    )
    return parser


def default_workers() -> int:
    """2 where this process may use two cores, else 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 if cores >= 2 else 1


def _at_least_one(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value
