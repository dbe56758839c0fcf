"""Blocks in a terminal: rich tables that fit into 80 columns, of a chart the table of its
numbers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from holdfast.printable import Lines, printable
from holdfast.reports import blocks as b
from holdfast.reports.charts import Chart
from holdfast.reports.format import ascii_only

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

STYLE = {
    "good": "green",
    "bad": "red",
    "flat": "dim",
    "warn": "yellow",
    "minor": "dim",
    "taken": "bold",
}
STYLE |= {"note": "dim", "strong": "bold"}
LABEL = 16
"""Characters that a row's name keeps in a narrow terminal."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """Blocks as something that rich prints, in a `rich.live.Live` too."""

    blocks: Sequence[b.Block]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from Printer(console).rendered(self.blocks)


class Printer:
    """Prints text and tables on a console, in plain ASCII where the console cannot show more; user
    text is never read as markup. Lines end where a terminal does; where none is watching a row of a
    table is one line."""

    def __init__(self, console: Console | None) -> None:
        from rich.console import Console as RichConsole

        self.console = console if console is not None else RichConsole()
        self.fancy = (self.console.encoding or "").lower().replace("-", "").startswith("utf")
        self.unbroken = not self.console.is_terminal

    def text(self, value: str) -> str:
        """What can be printed here of a text; line breaks stay only in `Lines`."""
        value = printable(value)
        return value if self.fancy else ascii_only(value)

    def show(self, blocks: Iterable[b.Block]) -> None:
        """Prints blocks one after the other."""
        for x in self.rendered(blocks):
            is_command = getattr(x, "no_wrap", None) is True  # one line, however long
            self.console.print(x, soft_wrap=self.unbroken or is_command)

    def rendered(self, blocks: Iterable[b.Block]) -> Iterator[Any]:
        """What rich prints of each block."""
        for x in blocks:
            match x:
                case b.Table():
                    yield from self._table(x)
                case Chart():
                    yield from self._table(dataclasses.replace(x.table, title=x.title))
                    yield self._line(x.caption, "dim")
                case b.Section():
                    intro = b.Paragraph(x.intro, "note") if x.intro else None
                    yield from self.rendered([b.Heading(x.title), intro, *x.blocks])
                case b.Fold():
                    yield from self.rendered([b.Heading(x.title), *x.blocks])
                case b.Panel():
                    yield from self.rendered([b.Paragraph(""), *x.blocks])
                case b.Code():
                    for text in x.text.splitlines():
                        line = self._line(f"  {text}")
                        line.no_wrap = True
                        yield line
                case _:
                    for text, style in _lines(x):
                        yield self._line(text, style)

    def _line(self, value: str, style: str = "") -> Text:
        from rich.text import Text

        return Text(self.text(value), style=style)

    def _table(self, x: b.Table) -> Iterator[Any]:
        if x.note:
            yield self._line(x.note, "dim")
        columns = [(b.plain_text(column.title), column.numeric) for column in x.columns]
        title = b.plain_text(x.title)
        if self.unbroken:
            cells = [list(map(b.plain_text, row)) for row in x.rows]
            yield from map(self._line, (title, *plain_table(columns, cells), ""))
        else:
            rows = []
            for index, row in enumerate(x.rows):
                style = STYLE.get(x.tones[index], "") if x.tones else ""
                rows.append([self._rich(cell, style) for cell in row])
            for start, end in self._parts(columns, rows):
                chosen = [[*row[:1], *row[start:end]] for row in rows]
                yield self._rich_table(title, [*columns[:1], *columns[start:end]], chosen)
                title = Lines()
        if x.numbers is not None:
            yield from self._table(x.numbers)

    def _rich(self, content: Any, style: str) -> Text:
        """Text with its tones; small print on a line of its own."""
        from rich.text import Text

        out = Text()
        if isinstance(content, (list, tuple)):
            for item in content:
                out.append_text(self._rich(item, style))
        elif isinstance(content, b.Span):
            if content.form == "sub":
                out.append("\n")
            out.append_text(self._rich(content.content, STYLE.get(content.tone, style)))
        elif content is not None:
            out.append(self.text(str(content)), style=style)
        return out

    def _parts(
        self, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]
    ) -> list[tuple[int, int]]:
        """The columns, from one to another, of each table that a table is shown as: all of them
        where they fit, else as many at a time as do. The first one is shown with each."""
        needed = _needed(columns, rows)
        if len(columns) < 3 or sum(needed) + 2 * len(needed) <= self.console.width:
            return [(1, len(columns))]
        starts: list[int] = []
        left = 0
        for index, width in enumerate(needed[1:], 1):
            if width + 2 > left:
                starts.append(index)
                left = self.console.width - needed[0] - 2
            left -= width + 2
        return list(itertools.pairwise([*starts, len(columns)]))

    def _rich_table(
        self, title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]
    ) -> Any:
        """The table that rich prints."""
        from rich import box
        from rich.table import Table

        frame = box.SIMPLE_HEAD if self.fancy else box.ASCII
        table = Table(title_justify="left", box=frame, pad_edge=False, padding=(0, 1, 0, 0))
        table.title = self._line(title, "bold") if title else None
        needed = _needed(columns, rows)
        # else figures break at spaces: they are never cut
        fits = sum(needed) + 2 * len(needed) <= self.console.width
        for (name, figure), width in zip(columns, needed, strict=True):
            size = {"min_width": width if fits else None, "no_wrap": figure and fits}
            justify: Literal["right", "left"] = "right" if figure else "left"
            table.add_column(self._line(name), justify=justify, overflow="fold", **size)  # type: ignore[arg-type]
        for cells in rows:
            table.add_row(*cells)
        return table


def _needed(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]) -> list[int]:
    """The characters that each column takes at least: titles and figures are not broken, names
    break between words."""
    needed = []
    for index, (title, figure) in enumerate(columns):
        text = "\n".join(row[index].plain for row in rows)
        width = _longest(text.split("\n"))
        if not figure:
            width = max(_longest(text.split()), min(width, LABEL))
        needed.append(max(width, _longest(title.split("\n"))))
    return needed


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _lines(x: b.Block) -> Iterator[tuple[str, str]]:
    """A block of text as (line, style)."""
    match x:
        case b.Paragraph():
            yield b.plain_text(x.content), STYLE.get(x.style, "")
        case b.Heading():
            yield x.text, "bold"
        case b.Bullets():
            yield from ((Lines(f"- {b.plain_text(item)}"), "") for item in x.items)
        case b.Facts():
            yield from ((line, "") for line in _fact_lines(x))
        case b.Banner():
            style = STYLE.get(x.tone, "")
            yield from ((text, style) for text in (b.plain_text(x.content), *x.items))
        case b.Tiles():
            yield from ((tile.text, STYLE.get(tile.tone, "")) for tile in x.items)


def _fact_lines(facts: b.Facts) -> list[str]:
    """Labels and their texts, in two columns."""
    width = max(9, 1 + _longest(label for label, _ in facts.items))
    lines = []
    for label, text in facts.items:
        lines.append(f"{label:<{width}} {b.plain_text(text, below=' ')}")
    return lines


def plain_table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, one line a row: what a cell holds in several lines stands there side by
    side."""
    padded = []
    for index, (title, figure) in enumerate(columns):
        cells = [title.replace("\n", " ")]
        for row in rows:
            cells.append(row[index].replace("\n", " "))
        width = _longest(cells)
        padded.append([cell.rjust(width) if figure else cell.ljust(width) for cell in cells])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
