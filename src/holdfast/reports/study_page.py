"""The frame of a study's page: what failed, the answer, the study's own sections, notes, how to
read the page, and how the study was made; and the charts and tables that studies share.

A study's own sections are `lines`, `scatter` and `grid` over its figures. How a figure reads, its
`Measure` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.figure import Figure
from holdfast.records.measure import Measure
from holdfast.reports import blocks as b
from holdfast.reports.blocks import (
    Bullets,
    Facts,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tone,
)
from holdfast.reports.charts import (
    DASHES,
    Axis,
    Chart,
    Col,
    Item,
    Mark,
    Value,
    line_style,
    tabulate,
)
from holdfast.reports.format import count, duration, flatten, hardware_rows, joined, plural

if TYPE_CHECKING:
    from rich.console import Console

TONES: dict[str, Tone] = {
    "finished": "good",
    "complete": "good",
    "running": "warn",
    "interrupted": "warn",
    "pruned": "warn",
    "lost": "warn",
    "failed": "bad",
}
"""Of the states of a study and of its jobs; "waiting" has none."""
MOST_NAMES = 14
"""Lines that a chart's legend names; with more of them the table and the words at the mouse do."""

Cells = Mapping[Text, str | Callable[[Any], Any]]
"""Columns of a table by title: a key or an attribute of its items, or what makes the cell of
one."""


# ------------------------------------------------------------------------------------------ figures


def cell(measure: Measure, figure: Figure | None, *, sign: bool = False, missing: str = "") -> Text:
    """A figure in a table, its interval below it; `missing` where there is none."""
    return missing if figure is None else b.figure(*measure.texts(figure, sign=sign))


def measure_axis(measure: Measure, title: str = "") -> Axis:
    """An axis of a measure, by the measure's own title unless another is given; losses run
    downwards, so that better is up and to the right."""
    reverse = {} if measure.higher_is_better else {"autorange": "reversed"}
    return Axis(title=title or measure.axis, more=reverse)


def steps_axis(title: str, names: Sequence[str], first: int = 0) -> Axis:
    """An axis with a name at each of the places `first`, `first` + 1, ..., and half a place of room
    at its ends."""
    ticks = list(enumerate(names, first))
    return Axis(title=title, ticks=ticks, range=(first - 0.5, first + len(names) - 0.5))


# ------------------------------------------------------------------------------------------- charts


def lines(
    title: str,
    rows: Iterable[Mapping[str, Any]],
    x: Axis,
    y: Axis,
    *,
    columns: Mapping[str, str],
    levels: Mapping[str, Value] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Chart | None:
    """A line for each `line` of the rows, in the order of their first rows; None without rows.

    Args:
        title: of the chart.
        rows: each with `line`, `x` and `y`: numbers or values, or two lists, of a row that is a
            whole curve.
        x: the axis across.
        y: the axis upright.
        columns: of the table below the chart, titles by key; "end" is the last y of a curve.
        levels: drawn across the chart, by name.
        styles: what the mark of a line has other than its colour, symbol and dash, by the line's
            name.
        options: of `Chart`.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["line"], []).append(dict(row))
    if not groups:
        return None
    marks, ordered = [], []
    for index, (name, members) in enumerate(groups.items()):
        ordered += members
        kind = "line" if len(members) > 1 else "points"
        style: dict[str, Any] = {"name": name, "kind": kind, **line_style(index)}
        if isinstance(members[0]["x"], list):
            style["kind"] = "curves"
            members[0]["end"] = members[0]["y"][-1]
        style |= (styles or {}).get(name, {})
        marks.append(Mark(where={"line": name}, **style))
    across, sentences = _level_marks(levels or {}, x)
    heads = []
    for key, text in columns.items():
        heads.append(Col(text, key, numeric=not isinstance(ordered[0][key], str)))
    settings: dict[str, Any] = {
        "legend": None if len(marks) <= MOST_NAMES else False,
        "height": 360,
    } | options
    settings["caption"] = " ".join([*filter(None, [settings.get("caption")]), *sentences])
    return Chart(
        title=title, rows=ordered, columns=heads, marks=[*across, *marks], x=x, y=y, **settings
    )


def _level_marks(levels: Mapping[str, Value], x: Axis) -> tuple[list[Mark], list[str]]:
    """The lines across a chart whose x axis has a range, and a sentence on each."""
    marks, sentences = [], []
    for index, (name, level) in enumerate(levels.items()):
        row = {"x": list(x.range or ()), "y": [level.value] * 2}
        dash = DASHES[1 + index % 3]
        marks.append(Mark(kind="curves", rows=[row], name=name, colour="muted", dash=dash))
        sentences.append(f"{name.capitalize()}: {level.text}.")
    return marks, sentences


def scatter(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    x: Axis,
    y: Axis,
    *,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Chart | None:
    """Points, those of one `line` alike; see `lines`."""
    points = {}
    for row in rows:
        points[row["line"]] = {**(styles or {}).get(row["line"], {}), "kind": "points"}
    return lines(title, rows, x, y, styles=points, **options)


# --------------------------------------------------------------------------------- sections, tables


def section(
    title: str, *blocks: b.Block | None, intro: str = "", anchor: str = ""
) -> Section | None:
    """Blocks under a heading, charts that follow each other two a row; None where all are
    missing."""
    present = [block for block in blocks if block is not None]
    placed: list[b.Block] = []
    for are_charts, run in itertools.groupby(present, key=lambda block: isinstance(block, Chart)):
        neighbours = list(run)
        placed += b.side_by_side(neighbours) if are_charts else neighbours
    return Section(title, placed, intro=intro, anchor=anchor) if placed else None


def grid(items: Iterable[Item], cells: Cells, *, words: int = 1, **options: Any) -> Table:
    """A line an item; the first `words` columns hold words, the others figures. `options` are those
    of `Table`."""
    columns = []
    for index, (title, of) in enumerate(cells.items()):
        columns.append(Col(title, of, numeric=index >= words, wide=index == 0))
    return tabulate(items, columns, **options)


def state_chip(state: str, text: str = "") -> Span:
    """A job's state, or another text, on the ground that the state has on every page."""
    return b.chip(text or state, TONES.get(state, "flat"))


def jobs_section(title: str, jobs: Sequence[Any], cells: Cells) -> Section:
    """Every job (`label`, `state`, `tokens`, `seconds`) with the further columns `cells`."""
    columns: dict[Text, Any] = {"Model": "label", "State": lambda job: state_chip(job.state)}
    columns["Tokens"] = lambda job: count(job.tokens) if job.tokens else ""
    columns["Time"] = lambda job: duration(job.seconds) if job.seconds else ""
    return Section(title, [grid(jobs, columns | dict(cells), words=2)], anchor="models")


# ----------------------------------------------------------------------------------------- the page


def study_page(
    record: Any,
    what: str,
    lead: str,
    sections: Iterable[b.Block | None],
    *,
    reading: Sequence[str],
    jobs: Sequence[Any] = (),
    details: Sequence[str] = (),
    facts: Iterable[tuple[str, Text]] = (),
) -> Page:
    """The page of a study.

    Args:
        record: of the study: its name, status, times, notes, configuration, versions and hardware.
        what: the kind of study, in a word or two.
        lead: the answer in a sentence or two.
        sections: of its own; None is passed over.
        reading: how to read the page, a sentence or two an item.
        jobs: what it made (`label`, `state`, `reason`, `seconds`): which of them failed, and how
            long they took.
        details: below the answer.
        facts: how it was made, beside what every record says of that.
    """
    failures = [f"{job.label}: {job.reason}" for job in jobs if job.state == "failed"]
    about: list[tuple[str, Text]] = [("Begun", record.created), ("Finished", record.finished)]
    seconds = sum(job.seconds for job in jobs)
    about += [("Computing", duration(seconds) if seconds else ""), *facts]
    about += [*hardware_rows(record.hardware), *record.versions.items()]
    known = Facts([fact for fact in about if fact[1]])
    blocks = [*b.problems(f"{plural(len(failures), 'job')} failed.", failures), *sections]
    blocks.append(b.notes(record.notes, anchor="notes"))
    blocks.append(
        Section("How to read this page", [Panel([Bullets(reading)], "card")], anchor="reading")
    )
    blocks.append(Section("The study", [Panel([known], "card")]))
    blocks.append(b.fold_facts("Configuration", flatten(record.config)))
    tone = TONES.get(record.status, "flat")
    all_details = joined(*details, record.created)
    return Page(
        tab=f"{record.name}: holdfast {what}",
        eyebrow=f"holdfast {what}",
        title=record.name,
        lead=lead,
        status=(record.status, tone),
        details=all_details,
        blocks=blocks,
        footer="Written by holdfast from the study's records.",
    )


def print_study(
    record: Any,
    lead: str,
    blocks: Iterable[b.Block],
    folder: str | Path,
    console: Console | None = None,
) -> None:
    """Prints the answer, some blocks of the page, the notes, and where the page is.

    Args:
        record: of the study.
        lead: the answer.
        blocks: what to show of it.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    from holdfast.reports.terminal import Printer

    head = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead)]
    notes = b.paragraphs(record.notes, before="Note: ")
    Printer(console).show(
        [*head, *blocks, *notes, Paragraph(f"Page: {Path(folder) / 'report.html'}")]
    )
