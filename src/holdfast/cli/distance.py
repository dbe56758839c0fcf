"""`holdfast distance`: how far one checkpoint is from another, as a table, JSON or a page with a plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import (
    missing_folders,
    number_text,
    print_json,
    seconds_text,
    stderr_console,
    stdout_console,
    stoppable,
)
from holdfast.cli.request import Request, RequestParser

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
PER = ("layer", "tensor", "total")
SORT = ("none", "relative", "l2", "cosine", "name")


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast distance --help`."""
    request = Request(build_parser(), argv)
    pair = request.texts("checkpoints")
    if len(pair) != 2:
        request.problems.append(
            f"expected two checkpoints, got {len(pair)}{': ' + ', '.join(pair) if pair else ''}, as in 'holdfast "
            f"distance A B'"
        )
    per, sort = request.choice("per", PER, "layer"), request.choice("sort", SORT, "none")
    top, workers = request.whole("top", None, least=1), request.whole("workers", None, least=1)
    plot, target = request.text("plot", None), request.text("json", None)
    if plot is not None and not plot.endswith(".html"):
        request.problems.append(f"--plot: expected a file that ends with .html, got {plot}")
    if not request.unknown:
        request.problems += missing_folders(("checkpoint", name) for name in pair)
    request.check()

    from holdfast.checkpoints.distance import distance
    from holdfast.support.files import to_jsonable, write_json

    with stoppable():
        found = distance(pair[0], pair[1], workers=workers)
    if target == "-":
        print_json(found)
        for note in found.notes:
            stderr_console().print(f"note: {note}", soft_wrap=True, markup=False)
    else:
        show(found, per=per, sort=sort, top=top)
        if target is not None:
            stdout_console().print(f"JSON: {write_json(target, found)}", soft_wrap=True, markup=False)
    if plot is not None:
        from holdfast.reports.distance_report import write_distance_report

        written = write_distance_report(to_jsonable(found), Path(plot))
        (stderr_console() if target == "-" else stdout_console()).print(
            f"plot: {written}", soft_wrap=True, markup=False
        )
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


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(
        prog="holdfast distance", description=DESCRIPTION, epilog=EPILOG, usage="A B [options]", yaml=False
    )
    parser.words(
        "checkpoints", "A B", "the start and the result: folders, adapters (compared as merged into A) or hub ids"
    )
    parser.one("per", "|".join(PER), "rows of the table (layer)")
    parser.one("sort", "|".join(SORT), "order of the rows: what moved most first, or by name (none: as in the model)")
    parser.one("top", "N", "show the first N rows only")
    parser.one("json", "FILE|-", "everything as JSON, in a file, or on stdout in place of the table")
    parser.one("plot", "FILE.html", "a page with plots, to be opened in a browser")
    parser.one("workers", "N", "threads (all cores)")
    return parser


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
