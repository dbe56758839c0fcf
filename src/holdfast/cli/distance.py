"""`holdfast distance`: how far one checkpoint is from another, as a table, JSON or a page with a plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from holdfast.cli.checkpoint_options import Workers, missing_folders, seconds_text
from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake

DESCRIPTION = """\
How far did the weights move? Reads both checkpoints once, compares all tensors that both have, and prints for every
layer (or tensor), and in total:

  L2               norm of the difference, |B - A|
  relative         that over the norm of A
  cosine           between A and B; 1 is the same direction
  sign agreement   share of weights with the same sign
"""
EPILOG = """\
examples
  holdfast distance base tuned                                    # layer by layer
  holdfast distance base tuned --per tensor --sort relative --top 20
  holdfast distance base tuned --per total --json -               # JSON for a program
  holdfast distance base tuned --plot distance.html               # a page: heat map, layers, all tensors
"""


@dataclass(frozen=True, kw_only=True)
class DistanceRequest:
    """`holdfast distance`."""

    checkpoints: Annotated[
        tuple[str, str], Meta(positional=True, metavar="A B", expected="two checkpoints, as in 'holdfast distance A B'")
    ]
    """The start and the result: folders, adapters (compared as merged into A) or hub ids."""
    per: Literal["layer", "tensor", "total"] = "layer"
    """Rows of the table."""
    sort: Literal["none", "relative", "l2", "cosine", "name"] = "none"
    """Order of the rows: what moved most first, or by name; none: as in the model."""
    top: Annotated[int | None, Meta(ge=1)] = None
    """Show the first N rows only."""
    json: Annotated[str | None, Meta(metavar="FILE|-")] = None
    """Everything as JSON, in a file, or on stdout (-) in place of the table."""
    plot: Annotated[str | None, Meta(metavar="FILE.html")] = None
    """A page with plots, to be opened in a browser."""
    workers: Workers = None
    """Threads (all cores)."""

    def problems(self) -> list[Mistake]:
        """A page of another kind, and folders that are not there."""
        found = missing_folders(self, "checkpoints")
        if self.plot is not None and not self.plot.endswith(".html"):
            found.append(Mistake(path=("plot",), text=f"expected a file that ends with .html, got {self.plot}"))
        return found


COMMAND = Command(
    name="holdfast distance",
    request=DistanceRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="A B [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast distance --help`."""
    request = COMMAND.read(argv)

    from holdfast.checkpoints.distance import distance
    from holdfast.reports.distance_report import distance_blocks, read_distance, write_distance_report
    from holdfast.reports.terminal import Printer
    from holdfast.support.files import to_jsonable, write_json

    with stoppable():
        found = distance(*request.checkpoints, workers=request.workers)
    out = stderr_console() if request.json == "-" else stdout_console()
    record = to_jsonable(found)
    if request.json == "-":
        print_json(found)
        for note in found.notes:
            print_line(out, f"note: {note}")
    else:
        shown = distance_blocks(read_distance(record), per=request.per, sort=request.sort, top=request.top)
        Printer(out).show(shown)
        print_line(out, seconds_text(found.seconds))
        if request.json is not None:
            print_line(out, f"JSON: {write_json(request.json, found)}")
    if request.plot is not None:
        print_line(out, f"plot: {write_distance_report(record, Path(request.plot))}")
    return 0
