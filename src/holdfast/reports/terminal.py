"""Blocks in a terminal: rich tables that fit into 80 columns, of a chart the table of its numbers. Markup stays on the
page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.printable import Lines, printable
from holdfast.reports import blocks as b
from holdfast.reports.charts import Chart
from holdfast.reports.format import ascii_only

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

STYLE = {"good": "green", "bad": "red", "flat": "dim", "warn": "yellow", "minor": "dim", "taken": "bold"}
LABEL = 16
"""Characters that a row's name keeps in a narrow terminal."""
PARAGRAPHS = {"note": "dim", "strong": "bold"}


@dataclasses.dataclass(frozen=True)
class Shown:
    """Blocks as something that rich prints, in a `rich.live.Live` too."""

    blocks: Sequence[b.Block]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from Printer(console).rendered(self.blocks)


class Printer:
    """Prints text and tables on a console, in plain ASCII where the console cannot show more; user text is never read
    as markup. Lines end where a terminal does; where none is watching a row of a table is one line."""

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
            self.console.print(x, soft_wrap=self.unbroken)

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
                case _:
                    for text, style in _lines(x):
                        yield self._line(text, style)

    def _line(self, value: str, style: str | None = None) -> Text:
        from rich.text import Text

        return Text(self.text(value), style=style or "")

    def _table(self, x: b.Table) -> Iterator[Any]:
        if x.note:
            yield self._line(x.note, "dim")
        columns = [(b.words(c.title), c.numeric) for c in x.columns]
        if self.unbroken:
            lines = plain_table(columns, [[b.words(c) for c in row] for row in x.rows])
            yield from (self._line(text) for text in (b.words(x.title), *lines, ""))
            if x.numbers is not None:
                yield from self._table(x.numbers)
            return
        tones = x.tones or [""] * len(x.rows)
        rows = [[self._rich(c, STYLE.get(t, "")) for c in row] for row, t in zip(x.rows, tones, strict=True)]
        for place, chosen in enumerate(self._parts(columns, rows)):
            part = [columns[i] for i in chosen], [[row[i] for i in chosen] for row in rows]
            yield self._made(b.words(x.title) if place == 0 else "", *part)
        if x.numbers is not None:
            yield from self._table(x.numbers)

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

    def _parts(self, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]) -> list[list[int]]:
        """The columns of each table that a table is shown as: all of them where they fit, else as many at a time as do,
        the first one with each."""
        needed = _needed(columns, rows)
        if len(columns) < 3 or sum(needed) + 2 * len(needed) <= self.console.width:
            return [list(range(len(columns)))]
        room = self.console.width - needed[0] - 2
        parts: list[list[int]] = []
        left = 0
        for i, width in enumerate(needed[1:], 1):
            if width + 2 > left:
                parts.append([0])
                left = room
            parts[-1].append(i)
            left -= width + 2
        return parts

    def _made(self, title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]) -> Any:
        """The table that rich prints."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        made = Table(
            title=Text(self.text(title), style="bold") if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD if self.fancy else box.ASCII,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        needed = _needed(columns, rows)
        fits = sum(needed) + 2 * len(needed) <= self.console.width  # else figures break at spaces: they are never cut
        for (name, figure), width in zip(columns, needed, strict=True):
            made.add_column(
                Text(self.text(name)),
                justify="right" if figure else "left",
                min_width=width if fits else None,
                no_wrap=figure and fits,
                overflow="fold",
            )
        for cells in rows:
            made.add_row(*cells)
        return made


def _needed(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]) -> list[int]:
    """The characters that each column takes at least: titles and figures are not broken, names break between words."""
    needed = []
    for place, (title, figure) in enumerate(columns):
        lines = [line for row in rows for line in row[place].plain.split("\n")]
        width = max(map(len, lines), default=0)
        if not figure:
            longest_word = max((len(word) for line in lines for word in line.split()), default=0)
            width = max(longest_word, min(width, LABEL))
        needed.append(max(width, *map(len, title.split("\n"))))
    return needed


def _lines(x: b.Block) -> list[tuple[str, str | None]]:
    """A block of text as (line, style)."""
    match x:
        case b.Paragraph():
            return [(b.words(x.content), PARAGRAPHS.get(x.style, STYLE.get(x.style)))]
        case b.Heading():
            return [(x.text, "bold")]
        case b.Bullets():
            return [(Lines(f"- {b.words(item)}"), None) for item in x.items]
        case b.Facts():
            width = max([9, *(len(label) + 1 for label, _ in x.items)])
            return [(f"{label:<{width}} {b.words(text, below=' ')}", None) for label, text in x.items]
        case b.Banner():
            return [(text, STYLE.get(x.tone)) for text in (b.words(x.content), *x.items)]
        case b.Code():
            return [(f"  {line}", None) for line in x.text.splitlines()]
        case b.Tiles():
            shown = [(t, f" ({t.below})" if t.below else "") for t in x.items]
            return [(f"{t.label}: {t.figure}{below}", STYLE.get(t.tone)) for t, below in shown]
        case b.Bars():
            return [(f"  {name}: {text}", None) for name, text in x.texts]
    return []


def plain_table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, one line a row: what a cell holds in several lines stands there side by side."""
    titles = [title for title, _ in columns]
    cells = [[" ".join(cell.split("\n")) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return [
        "  ".join(c.rjust(w) if f else c.ljust(w) for c, w, (_, f) in zip(row, widths, columns, strict=True)).rstrip()
        for row in cells
    ]
