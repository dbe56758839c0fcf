"""HTML built so that text cannot become markup: every child that is not `Html` is escaped.

    tag("td", "a < b", cls="num")   ->   <td class="num">a &lt; b</td>

Only what the report pages need; not a template language.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

_VOID = {"meta", "br", "hr", "img", "link"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """`value` as text of a page; `Html` stays as it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(*parts: Any) -> Html:
    """Parts one after the other, each escaped unless it is `Html`; None is left out, sequences are flattened."""
    out = []
    for part in parts:
        if part is None:
            continue
        out.append(join(*part) if isinstance(part, (list, tuple)) else escape(part))
    return Html("".join(out))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """One element. `cls` is the class; other underscores become hyphens; True is a bare attribute, None and False leave
    it out."""
    text = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = "class" if key == "cls" else key.replace("_", "-")
        text += f" {key}" if value is True else f' {key}="{html.escape(str(value), quote=True)}"'
    return Html(f"<{name}{text}>" if name in _VOID else f"<{name}{text}>{join(*children)}</{name}>")


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
