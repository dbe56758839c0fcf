"""Tables as markup, for the page of the theories."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from holdfast.reports.html import Html, join, tag

__all__ = ["Column", "Html", "join", "table", "tag"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    numeric: bool = False
    """Set in tabular figures, aligned to the right."""
    wide: bool = False
    """Takes the full width of a card on a phone."""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str | None = None,
    cards: bool = False,
    classes: Sequence[str] = (),
) -> Html:
    """A table inside a container that scrolls by itself.

    Args:
        columns: the header.
        rows: one cell a column; text is escaped.
        caption: said above the table, to screen readers too.
        cards: on narrow screens every row becomes a card with the column titles as labels.
        classes: one class a row, or empty.
    """
    head = tag("tr", *(tag("th", c.title, scope="col", cls="num" if c.numeric else None) for c in columns))
    body = []
    for index, cells in enumerate(rows):
        out = []
        for place, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            cls = " ".join(k for k, on in (("num", column.numeric), ("wide", column.wide)) if on) or None
            out.append(
                tag(
                    "th" if place == 0 else "td",
                    cell,
                    cls=cls,
                    data_label=column.title,
                    scope="row" if place == 0 else None,
                )
            )
        body.append(tag("tr", *out, cls=(classes[index] or None) if classes else None))
    inner = join(tag("caption", caption) if caption else None, tag("thead", head), tag("tbody", *body))
    return tag("div", tag("table", inner, cls="cards" if cards else None), cls="scroll", tabindex="0")
