"""Blocks in a terminal: rich tables that fit into 80 columns. Charts, folds and markup stay on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.reports import blocks as b
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

        made = [[Text(self.text(cell), style=style) for cell, style in cells] for cells in rows]
        self.console.print(self.made(title, columns, made))

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
        self.console.print(self.made(b.words(x.title), columns, rows))

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

    def made(self, title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Text]]) -> Any:
        """The table that rich prints."""
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
        return made


def plain_table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, one line a row: what a cell holds in several lines stands there side by side."""
    cells = [[title for title, _ in columns], *([" ".join(cell.split("\n")) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return [
        "  ".join(c.rjust(w) if f else c.ljust(w) for c, w, (_, f) in zip(row, widths, columns, strict=True)).rstrip()
        for row in cells
    ]
