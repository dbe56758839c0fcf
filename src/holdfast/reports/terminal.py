"""Blocks in a terminal: rich tables that fit into 80 columns. Charts, folds and markup stay on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.records.run import RunFolder
from holdfast.reports import blocks as b
from holdfast.reports.arms import Arm, read_tradeoff, side_title, table_cells
from holdfast.reports.figures import Row, count, duration, percent, read_run, significant, training_figures
from holdfast.reports.format import ascii_only

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLE = {"good": "green", "bad": "red", "flat": "dim", "warn": "yellow", "minor": "dim", "taken": "bold"}
PARAGRAPHS = {"note": "dim", "strong": "bold"}


class Printer:
    """Prints text and tables on a console, in plain ASCII where the console cannot show more; user text is never read
    as markup. `unbroken`: lines end where a terminal does, and nowhere where none is watching."""

    def __init__(self, console: Console | None, *, unbroken: bool = False) -> None:
        from rich.console import Console as RichConsole

        self.console = console if console is not None else RichConsole()
        self.fancy = (self.console.encoding or "").lower().replace("-", "").startswith("utf")
        self.unbroken = unbroken and not self.console.is_terminal

    def text(self, value: str) -> str:
        return value if self.fancy else ascii_only(value)

    def line(self, value: str = "", style: str | None = None) -> None:
        self.console.print(self.text(value), style=style, markup=False, highlight=False, soft_wrap=self.unbroken)

    def table(self, title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Columns as (title, is a figure); cells as (text, style)."""
        from rich.text import Text

        self._table(title, columns, [[Text(self.text(cell), style=style) for cell, style in cells] for cells in rows])

    def show(self, blocks: Iterable[Any]) -> None:
        """Prints blocks one after the other."""
        for x in blocks:
            match x:
                case b.Paragraph():
                    self.line(b.words(x.content), PARAGRAPHS.get(x.style, STYLE.get(x.style)))
                case b.Heading():
                    self.line(x.text, "bold")
                case b.Bullets():
                    for item in x.items:
                        self.line(f"- {b.words(item)}")
                case b.Facts():
                    for label, text in x.items:
                        self.line(f"{label:<9} {b.words(text)}")
                case b.Banner():
                    for text in (b.words(x.content), *x.items):
                        self.line(text, STYLE.get(x.tone))
                case b.Table():
                    self._block_table(x)
                case b.Section():
                    self.line(x.title, "bold")
                    self.show(x.blocks)

    def _block_table(self, x: b.Table) -> None:
        columns = [(b.words(c.title), c.numeric) for c in x.columns]
        if self.unbroken:
            self.line(b.words(x.title))
            for line in plain_table(columns, [[b.words(c) for c in row] for row in x.rows]):
                self.line(line)
            self.line()
            return
        tones = x.tones or [""] * len(x.rows)
        rows = [[self._rich(c, STYLE.get(t, "")) for c in row] for row, t in zip(x.rows, tones, strict=True)]
        self._table(b.words(x.title), columns, rows)

    def _rich(self, content: Any, style: str) -> Text:
        """Text with its tones; small print on a line of its own."""
        from rich.text import Text

        out = Text()
        if isinstance(content, (list, tuple)):
            for part in content:
                out.append_text(self._rich(part, style))
        elif isinstance(content, b.Span):
            if content.form == "sub":
                out.append("\n")
            out.append_text(self._rich(content.content, STYLE.get(content.tone, style)))
        elif content is not None:
            out.append(self.text(str(content)), style=style)
        return out

    def _table(self, title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        made = Table(
            title=Text(self.text(title), style="bold") if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD if self.fancy else box.ASCII,
            pad_edge=False,
            padding=(0, 1),
        )
        for name, figure in columns:
            made.add_column(
                Text(self.text(name)), justify="right" if figure else "left", no_wrap=figure, overflow="fold"
            )
        for cells in rows:
            made.add_row(*cells)
        self.console.print(made)


def plain_table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, one line a row: what a cell holds in several lines stands there side by side."""
    cells = [[title for title, _ in columns], *([" ".join(cell.split("\n")) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return [
        "  ".join(c.rjust(w) if f else c.ljust(w) for c, w, (_, f) in zip(row, widths, columns, strict=True)).rstrip()
        for row in cells
    ]


def print_run_summary(folder: RunFolder, console: Console | None = None) -> None:
    """Prints verdict, changes and cost of one run: the figures of its report.html.

    Raises:
        DataError: the folder has no readable run.json.
    """
    run = read_run(folder)
    out = Printer(console)
    record, trained = run.record, training_figures(run.record, run.metrics)
    out.line(f"{run.title} ({record.status})", "bold")
    out.line(run.verdict)
    if record.error:
        out.line(f"Stage {record.stage}: {record.error}", "red")
    for problem in run.problems:
        out.line(problem, "yellow")
    out.line()
    for suite in dict.fromkeys(r.raw.suite for r in run.rows):
        rows = [r for r in run.rows if r.raw.suite == suite]
        out.table(
            rows[0].group,
            [("Measure", False), ("Before", True), ("After", True), ("Difference", True), ("Verdict", False)],
            [_cells(r) for r in rows],
        )
    if run.levels:
        cells = [
            [(f"{v.which}, {v.group}: {v.name} ({v.unit})", ""), (v.value, ""), (v.interval, "dim"), (v.n, "dim")]
            for v in run.levels
        ]
        out.table(
            "Measured, but not compared",
            [("Model, measure", False), ("Value", True), ("Interval", True), ("n", True)],
            cells,
        )
    out.line(f"Method    {run.method}")
    if trained["steps"] is not None:
        out.line(
            f"Training  {significant(trained['steps'])} steps, {count(trained['tokens'])} tokens, "
            f"{duration(trained['seconds'])}"
        )
    move = run.largest_move
    if move is not None:
        out.line(
            f"Distance  up to {percent(100 * move.relative, sign=False)} of a layer's norm "
            f"({'layer ' if move.layer.isdigit() else ''}{move.layer})"
        )
    for text in (*run.missing, *(f"Note: {n}" for n in record.notes)):
        out.line(text, "dim")
    if folder.report_file.is_file():
        out.line(f"Report    {folder.report_file}")


def _cells(r: Row) -> list[tuple[str, str]]:
    arrow = "↑" if r.raw.higher_is_better else "↓"
    better = f"{arrow} is better"
    quiet = "" if r.raw.primary else "dim"
    verdict = f"{r.verdict}\n({r.relative})\np {r.p}, n {r.n}\n{r.test}" + (f"\n{r.flips}" if r.flips else "")
    # Text measures are known by their unit; a task may have several of one unit (acc and acc_norm), so those go by the
    # metric's name.
    what = r.unit if "/" in r.unit or r.metric == r.unit else r.metric
    return [
        (f"{r.name}\n{what}, {better}", quiet),
        (r.before, quiet),
        (r.after, quiet),
        (f"{r.difference}\n{r.interval}", quiet),
        (verdict, STYLE[r.tone]),
    ]


def print_tradeoff(
    arms: Sequence[Arm],
    console: Console | None = None,
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    metric: str = "nats_per_token",
) -> None:
    """Prints the table and the sentences of the trade-off page.

    Args:
        arms: as for `write_tradeoff_report`.
        console: where to print; the terminal by default.
        source: (suite, name) of what must be kept.
        target: (suite, name) of what is learnt.
        metric: key of the metric of both.

    Raises:
        UserError: no arms.
        DataError: a folder has no readable run.json.
    """
    figures = read_tradeoff(arms, source=source, target=target, metric=metric)
    out = Printer(console)
    rows = []
    if figures.start is not None and not any(f.arm.kind == "start" for f in figures.arms):
        rows.append(
            [
                ("start", "dim"),
                (figures.start.source_text, "dim"),
                (figures.start.target_text, "dim"),
                ("", ""),
                ("", ""),
            ]
        )
    for f in figures.arms:
        c = table_cells(f)
        tones = [STYLE[r.tone] if r is not None else "dim" for r in (f.source, f.target)]
        sides = [
            f"{c[f'{side} after']}\n{c[f'{side} change']}\n{c[f'{side} interval']}".rstrip()
            for side in ("Source", "Target")
        ]
        if f.arm.kind == "start" and figures.start is not None:
            sides = [figures.start.source_text, figures.start.target_text]
        shares = [c[k].partition(" [")[0] for k in ("Gain kept", "Loss share")]
        rows.append(
            [
                (f"{f.arm.label}\n{c['Time']}", ""),
                (sides[0], tones[0]),
                (sides[1], tones[1]),
                (shares[0], ""),
                (shares[1], ""),
            ]
        )
    columns = [("Arm, time", False), ("Source", True), ("Target", True), ("Gain kept", True), ("Loss share", True)]
    direction = next(
        (f"{r.unit}, {r.direction}" for f in figures.measured for r in (f.source,) if r is not None), figures.metric
    )
    out.table(f"{side_title(source)} and {side_title(target)}: {direction}", columns, rows)
    out.line(figures.verdict)
    out.line()
    for f in figures.arms:
        out.line(f"- {f.reading}")
    for note in figures.notes:
        out.line(f"Note: {note}", "dim")
