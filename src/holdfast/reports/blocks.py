"""A page is a list of blocks: plain values that say what is shown, not how. Two renderers read the
same list: `html` (one self-contained page) and `terminal` (rich); `markdown` reads text and tables.

Text is a string, a `Span`, or a sequence of both; it is never markup, each renderer escapes for
itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.printable import Lines, printable

if TYPE_CHECKING:
    from holdfast.reports.charts import Chart

T = TypeVar("T")
Tone = str
""""good", "bad", "warn", "flat", or "" for none."""
Text = Any
"""str, `Span`, None, or a sequence of these."""


@dataclasses.dataclass(frozen=True)
class Span:
    """Text that reads in a way of its own."""

    content: Text
    form: str = ""
    """"sub" (small, on a line of its own), "chip", "strong", "code", "mark" (its tone is a class of
    the styles)."""
    tone: Tone = ""
    link: str = ""
    """An address relative to the page's folder."""
    value: float | None = None
    """The number behind the text, for sorting."""


def sub(*content: Text, tone: Tone = "") -> Span:
    """Small print below."""
    return Span(content, "sub", tone)


def chip(text: str, tone: Tone = "flat") -> Span:
    """A word on a coloured ground."""
    return Span(text, "chip", tone)


def figure(text: str, interval: str = "", *, value: float | None = None, tone: Tone = "") -> Text:
    """A figure with its interval below."""
    return (Span(text, tone=tone, value=value), sub(interval) if interval else None)


def plain_text(content: Text, *, below: str = "\n") -> Lines:
    """Text without its forms, printable; `below` stands before small print."""
    if content is None:
        return Lines()
    if isinstance(content, Span):
        return Lines(
            (below if content.form == "sub" else "") + plain_text(content.content, below=below)
        )
    if isinstance(content, (list, tuple)):
        return Lines("".join(plain_text(item, below=below) for item in content))
    return printable(str(content))


# ------------------------------------------------------------------------------------------- blocks


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Running text."""

    content: Text
    style: str = ""
    """"note" and "intro" are quieter; "prose" is set narrower."""


@dataclasses.dataclass(frozen=True)
class Heading:
    """The title of what follows within a section."""

    text: str
    level: int = 3


@dataclasses.dataclass(frozen=True)
class Bullets:
    """One item a line."""

    items: Sequence[Text]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Label and text, one pair a line."""

    items: Sequence[tuple[str, Text]]


@dataclasses.dataclass(frozen=True)
class Code:
    """Commands, equations, configurations: as they are."""

    text: str
    language: str = ""
    """For Markdown: "python", "yaml", ..."""


@dataclasses.dataclass(frozen=True)
class Banner:
    """A message that must not be overlooked."""

    content: Text
    tone: Tone = "flat"
    items: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Tile:
    """One key figure."""

    label: str
    figure: str
    below: str = ""
    tone: Tone = ""

    @property
    def text(self) -> str:
        """In one line."""
        return f"{self.label}: {self.figure}" + (f" ({self.below})" if self.below else "")


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Key figures side by side."""

    items: Sequence[Tile]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    title: Text
    numeric: bool = False
    """Set in tabular figures, aligned to the right."""
    wide: bool = False
    """Takes the full width of a card on a phone."""


def columns(
    *titles: str, right: Sequence[int] | None = None, wide: Sequence[int] = ()
) -> list[Column]:
    """Columns by their titles: those at the places `right` hold figures; None: all but the
    first."""
    figures = range(1, len(titles)) if right is None else [index % len(titles) for index in right]
    declared = []
    for number, title in enumerate(titles):
        declared.append(Column(title=title, numeric=number in figures, wide=number in wide))
    return declared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]
    title: Text = ""
    kind: str = ""
    """Classes of the style sheet: "dense", "compared", "scores", "figures", "trials", ..."""
    tones: Sequence[str] = ()
    """One a row: "minor", "average", "taken" or ""."""
    groups: Sequence[tuple[str, int]] = ()
    """(title, columns) of blocks of columns after the first one."""
    note: str = ""
    """Small print above."""
    find: str = ""
    """What a row is called; the page then sorts, shortens and searches the table."""
    numbers: Table | None = None
    """Further columns of the same rows, which the page folds away below."""
    cards: bool = True
    """On narrow screens every row becomes a card with the column titles as labels."""


@dataclasses.dataclass(frozen=True)
class Fold:
    """Blocks behind a heading that opens on a click."""

    title: str
    blocks: Sequence[Block]
    open: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Blocks on a ground of their own; several stand side by side where there is room."""

    blocks: Sequence[Block]
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """Blocks under a heading; charts, tables and panels that follow each other share a grid."""

    title: str
    blocks: Sequence[Block | None]
    intro: str = ""
    anchor: str = ""


Block = Any
"""Any of the above, or a `holdfast.reports.charts.Chart`; None is passed over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """One document."""

    tab: str
    """Title of the browser's tab."""
    eyebrow: str
    """What the page is."""
    title: str
    lead: str
    """The answer in a sentence or two."""
    blocks: Sequence[Any]
    status: tuple[str, Tone] | None = None
    details: Text = ""
    footer: str = ""


# ----------------------------------------------------------------------------------- small patterns


def problems(title: str, items: Sequence[str], tone: Tone = "warn") -> list[Block]:
    """A banner with a list, nothing without items."""
    return [Banner(Span(title, "strong"), tone, items)] if items else []


def facts_or_nothing(items: Sequence[tuple[str, Text]]) -> list[Block]:
    return [Facts(items) if items else Paragraph("Not recorded.", "note")]


def fold_facts(title: str, items: Sequence[tuple[str, Text]]) -> Fold | None:
    """Label and text behind a heading, None without any."""
    return Fold(title, [Facts(items)]) if items else None


def notes(items: Sequence[str], title: str = "Notes", anchor: str = "") -> Section | None:
    """A section of sentences, None without any."""
    return Section(title, [Panel([Bullets(items)], "card")], anchor=anchor) if items else None


def widths(n: int) -> list[str]:
    """Widths of `n` charts that fill every row: one in full width, two or four two a row, else
    three a row as far as they go."""
    if n == 1:
        return ["full"]
    halves = {0: 0, 1: 4, 2: 2}[n % 3]
    return ["third"] * (n - halves) + ["half"] * halves


def present(items: Iterable[T | None]) -> list[T]:
    """What is there."""
    return [item for item in items if item is not None]


def paragraphs(texts: Iterable[str], style: str = "note", *, before: str = "") -> list[Paragraph]:
    """A paragraph a text, each with the same words before it."""
    return [Paragraph(f"{before}{text}", style) for text in texts]


def side_by_side(charts: Sequence[Chart | None]) -> list[Any]:
    """Charts two a row; a single one has the whole width."""
    drawn = present(charts)
    width = "half" if len(drawn) > 1 else "full"
    return [dataclasses.replace(chart, width=width) for chart in drawn]


def finite_or_none(value: Any) -> float | None:
    """A finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
