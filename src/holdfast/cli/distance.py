"""`holdfast distance`: how far one checkpoint is from another, as a table, JSON or a page with a plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.cli.checkpoint_options import Workers, missing_folders, number_text, seconds_text
from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake

if TYPE_CHECKING:
    from holdfast.checkpoints.distance import CheckpointDistance, TensorDistance
    from holdfast.records.run import LayerDistance

DESCRIPTION = """\
How far did the weights move? Reads both checkpoints once, compares all tensors that both have, and prints for every layer
(or tensor), and in total:

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
    from holdfast.support.files import to_jsonable, write_json

    with stoppable():
        found = distance(*request.checkpoints, workers=request.workers)
    if request.json == "-":
        print_json(found)
        for note in found.notes:
            print_line(stderr_console(), f"note: {note}")
    else:
        show(found, per=request.per, sort=request.sort, top=request.top)
        if request.json is not None:
            print_line(stdout_console(), f"JSON: {write_json(request.json, found)}")
    if request.plot is not None:
        from holdfast.reports.distance_report import write_distance_report

        written = write_distance_report(to_jsonable(found), Path(request.plot))
        print_line(stderr_console() if request.json == "-" else stdout_console(), f"plot: {written}")
    return 0


def show(found: CheckpointDistance, *, per: str, sort: str, top: int | None) -> None:
    """Prints distances as a table, with the total and the notes below."""
    from rich.table import Table

    target = stdout_console()
    total = found.total
    target.print(
        f"{found.start} -> {found.result}: {len(found.tensors)} tensors, {total.parameters:,} parameters\n",
        soft_wrap=True,
        markup=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    table.add_column(per, overflow="fold")
    titles = ("shape", "dtypes") if per == "tensor" else ("parameters",)
    for title in (*titles, "L2", "relative", "cosine", "sign agreement"):
        table.add_column(title, justify="right", no_wrap=True)
    rows: Sequence[TensorDistance | LayerDistance] = (
        found.tensors if per == "tensor" else found.layers[:-1] if per == "layer" else ()
    )
    chosen = ordered(rows, sort)[:top]
    for row in chosen:
        table.add_row(*_cells(row))
    if chosen:
        table.add_section()
    table.add_row(
        "total", *(["", ""] if per == "tensor" else [f"{total.parameters:,}"]), *_figures(total), style="bold"
    )
    target.print(table)
    if len(chosen) < len(rows):
        target.print(f"\n{len(chosen)} of {len(rows)} {per}s shown (--top)")
    for note in found.notes:
        target.print(f"\nnote: {note}", soft_wrap=True, markup=False)
    target.print(f"\n{seconds_text(found.seconds)}")


def ordered(rows: Sequence[Any], sort: str) -> list[Any]:
    """Rows with what moved most first: largest norm, smallest cosine; by name in natural order; "none" leaves them. NaN
    comes last."""
    keys: dict[str, Callable[[Any], Any]] = {
        "none": lambda row: 0,
        "relative": lambda row: _last(-row.relative),
        "l2": lambda row: _last(-row.l2),
        "cosine": lambda row: _last(row.cosine),
        "name": lambda row: _natural(getattr(row, "name", None) or row.layer),
    }
    return sorted(rows, key=keys[sort])


def _cells(row: Any) -> list[str]:
    from rich.markup import escape

    if hasattr(row, "shape"):
        a, b = row.dtypes
        return [
            escape(row.name),
            " x ".join(map(str, row.shape)) or "scalar",
            a if a == b else f"{a}, {b}",
            *_figures(row),
        ]
    return [row.layer, f"{row.parameters:,}", *_figures(row)]


def _figures(row: Any) -> list[str]:
    cosine = "-" if math.isnan(row.cosine) else f"{row.cosine:.8f}"
    agreement = "-" if math.isnan(row.sign_agreement) else f"{row.sign_agreement:.4%}"
    return [number_text(row.l2), number_text(row.relative), cosine, agreement]


def _last(value: float) -> tuple[bool, float]:
    return (math.isnan(value), value)


def _natural(name: str) -> list[tuple[int, int, str]]:
    import re

    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
