"""`holdfast inspect A [B]`: what a checkpoint holds and whether it is sound; how far another one is
from it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.checkpoints.sources import listing
from holdfast.cli.checkpoint_options import Workers, missing_folders
from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.printable import lines
from holdfast.support.environment import shown_seconds

if TYPE_CHECKING:
    from holdfast.checkpoints.summary import Inspection

DESCRIPTION = """\
For one checkpoint, adapter or residual folder: shows parameters, dtypes, files and origin, and checks that headers
match files, the index matches the shards, and the configuration matches the tensors. This reads headers only and
takes milliseconds. With --verify every byte is read: NaN and infinities are listed, and the content is compared with
the fingerprints that holdfast wrote into provenance.json. Exit code 1 if a check fails.

For two checkpoints: how far the weights moved from A to B, for every layer (or tensor) and in total:

  relative      norm of the difference, divided by the norm of A
  L2            norm of the difference, |B - A|
  cosine        between A and B; 1 is the same direction
  signs kept    share of weights with the same sign
"""
EPILOG = """\
examples
  holdfast inspect merged
  holdfast inspect merged --verify          # did it survive the copy?
  holdfast inspect merged --json | jq .provenance.parents

  holdfast inspect base tuned               # layer by layer
  holdfast inspect base tuned --per tensor
  # a page with a heat map of layers and modules
  holdfast inspect base tuned --plot distance.html
"""


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """`holdfast inspect`."""

    checkpoints: Annotated[tuple[str, ...], Meta(positional=True, least=1, metavar="A [B]")]
    """One checkpoint, adapter, residual or hub id; or two of them: the initial model and the
    result."""
    verify: bool = False
    """Read all bytes, and check for NaN, infinities and fingerprints (only with one checkpoint)."""
    per: Literal["layer", "tensor"] = "layer"
    """What each row of the table shows (only with two checkpoints)."""
    plot: Annotated[str | None, Meta(metavar="FILE.html")] = None
    """HTML page to write, with a heat map (only with two checkpoints)."""
    json: bool = False
    """Print everything as JSON on stdout."""
    workers: Workers = None
    """Number of threads that read (default: all cores)."""

    def problems(self) -> list[str]:
        """Folders that are not there, and what is of one checkpoint or of two only."""
        problems = missing_folders(self, "checkpoints")
        count = len(self.checkpoints)
        if count > 2:
            problems.append(Problem("checkpoints", f"expected one or two checkpoints, got {count}"))
        if self.verify and count == 2:
            problems.append(
                Problem("verify", "applies to one checkpoint only. Give one of the two")
            )
        if self.plot is not None and count != 2:
            problems.append(Problem("plot", "applies to two checkpoints only. Give a second one"))
        if self.plot is not None and not self.plot.endswith(".html"):
            problems.append(
                Problem("plot", f"expected a file that ends with .html, got {self.plot}")
            )
        return problems


COMMAND = Command(
    name="holdfast inspect",
    request=InspectRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="A [B] [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast inspect --help`."""
    request = COMMAND.read(argv)
    if len(request.checkpoints) == 2:
        print_distance(request)
        return 0

    from holdfast.checkpoints.summary import inspect_checkpoint
    from holdfast.support.files import to_jsonable

    with stoppable():
        inspection = inspect_checkpoint(
            request.checkpoints[0], verify=request.verify, workers=request.workers
        )
    if request.json:
        print_json({**to_jsonable(inspection), "sound": inspection.sound})
    else:
        print_inspection(inspection)
    return 0 if inspection.sound else 1


def print_distance(request: InspectRequest) -> None:
    """Shows how far the second checkpoint is from the first."""
    from holdfast.checkpoints.distance import distance
    from holdfast.reports.distance_report import distance_blocks, write_distance_report
    from holdfast.reports.terminal import Printer

    start, result = request.checkpoints
    with stoppable():
        distances = distance(start, result, workers=request.workers)
    console = stderr_console() if request.json else stdout_console()
    if request.json:
        print_json(distances)
    else:
        Printer(console).show(distance_blocks(distances, per=request.per))
        print_line(console, shown_seconds(distances.seconds))
    if request.plot is not None:
        print_line(console, f"plot: {write_distance_report(distances, request.plot)}")


def print_inspection(inspection: Inspection) -> None:
    """Prints what a checkpoint holds and whether it is sound."""
    from holdfast.reports.checkpoint_text import inspection_rows

    say = functools.partial(print_line, stdout_console())
    architecture = f", {inspection.architecture}" if inspection.architecture else ""
    say(f"{inspection.folder}: {inspection.kind}{architecture}", style="bold")
    files = listing(list(inspection.files), 4)
    for key, value in inspection_rows(inspection, files):
        if value:
            say(f"  {key:<12}{value}")
    say(lines("", "  checks"))
    for check in inspection.checks:
        mark, style = _MARKS[check.passed]
        say(f"  {mark:<8}{check.name}{f': {check.detail}' if check.detail else ''}", style=style)


_MARKS = {True: ("ok", None), False: ("FAILED", "bold red"), None: ("-", "dim")}
