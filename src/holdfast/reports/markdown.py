"""Blocks as Markdown that GitHub and the Hugging Face hub show alike: user text stays text, tables stay tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.printable import printable
from holdfast.reports import blocks as b
from holdfast.reports.charts import Chart

MOST_ROWS = 100
"""Longer tables end with a sentence on how many more rows there are."""


def escape(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line; an @ mentions nobody."""
    one_line = re.sub(r"\s+", " ", printable(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", one_line).replace("@", "@\u200b")


def code(text: str) -> str:
    """A code span for a table cell: backticks cannot be escaped inside, so they become quotes; a bar would end the
    cell."""
    return f"`{' '.join(printable(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def render(blocks: Iterable[Any], *, clean: Callable[[str], str] = str) -> str:
    """The blocks, one below the other; `clean` sees every text of the user's before it is escaped."""
    return "\n\n".join(part for x in blocks if x is not None for part in [_block(x, clean)] if part).rstrip() + "\n"


def document(page: b.Page) -> str:
    """A whole page; of a chart the table of its numbers."""
    return render(b.document(page))


def _text(content: Any, clean: Callable[[str], str]) -> str:
    if content is None:
        return ""
    if isinstance(content, (list, tuple)):
        return "".join(_text(part, clean) for part in content)
    if isinstance(content, b.Span):
        if content.form == "code":
            return code(clean(b.words(content.content)))
        inner = _text(content.content, clean)
        if content.link:
            return f"[{inner}]({content.link})"
        return {"sub": f"<br>{inner}" if inner else "", "strong": f"**{inner}**"}.get(content.form, inner)
    return escape(clean(str(content)))


def _block(x: Any, clean: Callable[[str], str]) -> str:
    match x:
        case b.Paragraph():
            return _text(x.content, clean)
        case b.Heading():
            return f"{'#' * x.level} {_text(x.text, clean)}"
        case b.Bullets():
            return "\n".join(f"- {_text(item, clean)}" for item in x.items)
        case b.Facts():
            return "\n".join(f"- {_text(label, clean)}: {_text(text, clean)}" for label, text in x.items)
        case b.Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", x.text)), default=0))
            return f"{fence}{x.language}\n{printable(x.text, breaks=True)}\n{fence}"
        case b.Banner():
            return "\n".join(f"> {line}" for line in (_text(x.content, clean), *(_text(i, clean) for i in x.items)))
        case b.Tiles():
            shown = [(b.Span(t.label, "strong"), f": {t.figure}", f" ({t.below})" if t.below else "") for t in x.items]
            return _block(b.Bullets(shown), clean)
        case b.Bars():
            return _block(b.Bullets([f"{name}: {text}" for name, text in x.texts]), clean)
        case Chart():
            parts = (b.Heading(x.title), x.table, b.Paragraph(x.caption) if x.caption else None)
            return render(parts, clean=clean).rstrip()
        case b.Panel():
            return render(x.blocks, clean=clean).rstrip()
        case b.Table() if x.numbers is not None:
            return "\n\n".join([_table(x, clean), _block(b.Fold("Numbers", [x.numbers]), clean)])
        case b.Table():
            return _table(x, clean)
        case b.Fold():
            summary = _text(x.title, clean)
            return f"<details>\n<summary>{summary}</summary>\n\n{render(x.blocks, clean=clean)}\n</details>"
        case b.Section():
            intro = b.Paragraph(x.intro) if x.intro else None
            return "\n\n".join([f"## {_text(x.title, clean)}", render([intro, *x.blocks], clean=clean).rstrip()])
    return ""


def _table(x: b.Table, clean: Callable[[str], str]) -> str:
    lines = [_line([_text(c.title, clean) for c in x.columns])]
    lines.append("|" + "|".join("---:" if c.numeric else "---" for c in x.columns) + "|")
    lines += [_line([_text(cell, clean) for cell in row]) for row in x.rows[:MOST_ROWS]]
    if len(x.rows) > MOST_ROWS:
        lines += ["", f"{len(x.rows) - MOST_ROWS} more rows are not shown."]
    above = [text for text in (_text(x.title, clean), _text(x.note, clean)) if text]
    return "\n".join([*(line for text in above for line in (text, "")), *lines])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(c.strip() for c in cells)} |"
