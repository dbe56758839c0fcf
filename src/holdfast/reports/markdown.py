"""Text and tables as Markdown that GitHub and the Hugging Face hub show alike: user text stays
text, tables stay tables. Charts are for pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.printable import printable
from holdfast.reports import blocks as b

MOST_ROWS = 100
"""Longer tables end with a sentence on how many more rows there are."""


def escape(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line; an @ mentions nobody."""
    one_line = (
        re.sub(r"\s+", " ", printable(text))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", one_line).replace("@", "@\u200b")


def code(text: str) -> str:
    """A code span for a table cell: backticks cannot be escaped inside, so they become quotes; a
    bar would end the cell."""
    return (
        f"`{' '.join(printable(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
    )


def render(blocks: Iterable[Any], *, clean: Callable[[str], str] = str) -> str:
    """The blocks, one below the other; `clean` sees every text of the user's before it is
    escaped."""
    texts = [_block(x, clean) for x in b.present(blocks)]
    return "\n\n".join(filter(None, texts)).rstrip() + "\n"


def _text(content: Any, clean: Callable[[str], str]) -> str:
    if content is None:
        return ""
    if isinstance(content, (list, tuple)):
        return "".join(_text(item, clean) for item in content)
    if isinstance(content, b.Span):
        if content.form == "code":
            return code(clean(b.plain_text(content.content)))
        inner = _text(content.content, clean)
        if content.link:
            return f"[{inner}]({content.link})"
        return {"sub": f"<br>{inner}" if inner else "", "strong": f"**{inner}**"}.get(
            content.form, inner
        )
    return escape(clean(str(content)))


def _block(x: Any, clean: Callable[[str], str]) -> str:
    match x:
        case b.Paragraph():
            return _text(x.content, clean)
        case b.Heading():
            return f"{'#' * x.level} {_text(x.text, clean)}"
        case b.Bullets():
            return "\n".join(f"- {_text(item, clean)}" for item in x.items)
        case b.Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", x.text)), default=0))
            return f"{fence}{x.language}\n{printable(x.text, breaks=True)}\n{fence}"
        case b.Table():
            numbers = None if x.numbers is None else b.Fold("Numbers", [x.numbers])
            return "\n\n".join(
                filter(None, (_table(x, clean), "" if numbers is None else _block(numbers, clean)))
            )
        case b.Fold():
            summary = _text(x.title, clean)
            return f"<details>\n<summary>{summary}</summary>\n\n{render(x.blocks, clean=clean)}\n</details>"
        case b.Section():
            return render(
                (b.Heading(x.title, 2), b.Paragraph(x.intro), *x.blocks), clean=clean
            ).rstrip()
    raise AssertionError(f"no such block in Markdown: {x!r}")


def _table(x: b.Table, clean: Callable[[str], str]) -> str:
    lines = [f"{_text(text, clean)}\n" for text in (x.title, x.note) if text]
    lines.append(_line([column.title for column in x.columns], clean))
    lines.append(f"|{'|'.join('---:' if column.numeric else '---' for column in x.columns)}|")
    for row in x.rows[:MOST_ROWS]:
        lines.append(_line(row, clean))
    if len(x.rows) > MOST_ROWS:
        lines.append(f"\n{len(x.rows) - MOST_ROWS} more rows are not shown.")
    return "\n".join(lines)


def _line(cells: Iterable[Any], clean: Callable[[str], str]) -> str:
    return f"| {' | '.join(_text(cell, clean).strip() for cell in cells)} |"
