"""Blocks as one self-contained HTML page: opens from `file://`, offline, on a phone, on paper, in
the dark.

plotly.js is taken from the installed plotly package and inlined as gzip + base64 (about 2 MB
instead of 5); the page decompresses it with `DecompressionStream` and draws the figures once it is
there. A Content-Security-Policy without any origin makes the promise "no network" one that the
browser keeps. Without scripts every figure still has its table of numbers.

HTML is built so that text cannot become markup: every child of `tag` that is not `Html` is escaped.

    tag("td", "a < b", cls="num")   ->   <td class="num">a &lt; b</td>
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import importlib.resources
import itertools
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.printable import printable
from holdfast.reports import blocks as b
from holdfast.reports.charts import Chart, Traces, plotly_figure
from holdfast.support.files import to_jsonable, write_bytes_atomic

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: "
    "blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
NO_SCRIPTS = (
    "JavaScript is off, so the figures are not drawn. Their numbers are in the tables under each "
    "heading."
)
_VOID = {"meta", "br", "hr", "img", "link", "input"}
_JOINT = re.compile(r"(?<=\w)[_/]+(?=\w)|(?<=[^\W\d])[.,](?=[^\W\d])")
"""What joins the words of a name."""
_NUMBER = r"[+\u2212-]?(?:\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|∞|n/a)"
_FIGURE = rf"{_NUMBER}(?: (?:%|pt)(?!\w))?"
_UNBROKEN = re.compile(rf"(?:{_FIGURE} )?\[{_FIGURE}, {_FIGURE}\]|{_NUMBER} (?:%|pt)(?!\w)")
"""A figure with its unit or its interval, which stays on one line."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """`value` as text of a page; `Html` stays as it is."""
    return (
        value
        if isinstance(value, Html)
        else Html(html.escape(printable(str(value), breaks=True), quote=True))
    )


def join(*parts: Any) -> Html:
    """Parts one after the other: `Html` as it is, spans in their form, all else escaped; None is
    left out, sequences are flattened."""
    return Html("".join(map(_inline, parts)))


def _inline(content: Any) -> Html:
    match content:
        case b.Span():
            return _span(content)
        case list() | tuple():
            return join(*content)
        case Html():
            return content
        case None:
            return Html()
    return _text(content)


def _text(value: Any) -> Html:
    """Escaped text whose figures stay on one line."""
    return Html(_UNBROKEN.sub(r'<span class="whole">\g<0></span>', escape(value)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """One element. `cls` is the class; other underscores become hyphens; True is a bare attribute,
    None, False and an empty class leave it out."""
    text = ""
    for key, value in attributes.items():
        if value is None or value is False or (key == "cls" and not value):
            continue
        key = "class" if key == "cls" else key.replace("_", "-")
        text += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    if name in _VOID:
        return Html(f"<{name}{text}>")
    return Html(f"<{name}{text}>{join(*children)}</{name}>")


def _span(span: b.Span) -> Html:
    inner = join(span.content)
    if span.value is not None:
        exact = (
            f"{span.value:.9g}"
            if math.isfinite(span.value)
            else "NaN"
            if math.isnan(span.value)
            else "Infinity"
        )
        inner = tag("data", inner, value=exact)
    if span.link:
        inner = tag("a", inner, href=span.link)
    if span.form in ("strong", "code"):
        return tag(span.form, inner)
    classes = f"{span.form or ('tone' if span.tone else '')} {span.tone}".strip()
    return tag("span", inner, cls=classes) if classes else inner


@functools.cache
def _plotly_packed() -> str:
    """plotly.js as base64 of gzip; no timestamp inside, so that equal runs give equal pages."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(
        gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    ).decode()


def _asset(name: str) -> str:
    return importlib.resources.files("holdfast.reports").joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> Html:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(
        to_jsonable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Html(text)


# ----------------------------------------------------------------------------------------- the page


def write_page(page: b.Page, path: Path) -> Path:
    """Writes the document atomically and returns its path.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier page is intact.
    """
    return write_bytes_atomic(path, render(page).encode())


def render(page: b.Page) -> str:
    """The whole document."""
    figures: Traces = []
    main = join(_header(page), [_block(x, figures) for x in page.blocks])
    footer = tag("footer", page.footer, " This page needs no network.")
    noscript, scripts = None, []
    if figures:
        noscript = tag("noscript", tag("p", NO_SCRIPTS, cls="banner"))
        scripts.append(tag("script", _script_json(figures), type="application/json", id="figures"))
        scripts.append(tag("script", Html(_plotly_packed()), type="text/plain", id="plotly-gzip"))
    scripts.append(tag("script", Html(_asset("page.js"))))
    return _document(page.tab, [noscript, main, footer], scripts)


def part(x: b.Block) -> Html:
    """A block on its own, without what its plots draw."""
    return _block(x, [])


def _document(tab: str, main: Any, scripts: Any) -> str:
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="holdfast"),
        tag("title", escape(tab)),
        tag("style", Html(_asset("page.css"))),
        tag("noscript", tag("style", Html(".plot{display:none}"))),
    )
    body = tag("body", tag("main", main), scripts)
    return f"<!doctype html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def _header(page: b.Page) -> Html:
    pill = tag("span", page.status[0], cls=f"pill {page.status[1]}") if page.status else None
    title = tag("h1", _breakable(page.title), pill)
    details = tag("p", page.details, cls="details") if page.details else None
    return tag(
        "header",
        tag("p", page.eyebrow, cls="eyebrow"),
        title,
        tag("p", page.lead, cls="lead"),
        details,
    )


_IN_A_GRID = (Chart, b.Table, b.Panel)


def _blocks(blocks: Iterable[b.Block], figures: Traces) -> list[Html]:
    """Blocks in reading order; charts, tables and panels that follow each other share a grid."""
    out = []
    for grid, run in itertools.groupby(b.present(blocks), key=lambda x: isinstance(x, _IN_A_GRID)):
        parts = [_block(x, figures) for x in run]
        out += [tag("div", *parts, cls="panels")] if grid else parts
    return out


def _block(x: b.Block, figures: Traces) -> Html:
    match x:
        case Chart():
            return _chart(x, figures)
        case b.Fold():
            return _fold(x, figures)
        case b.Panel():
            return tag("div", *_blocks(x.blocks, figures), cls=f"panel {x.kind}".strip())
        case b.Section():
            intro = tag("p", x.intro, cls="intro") if x.intro else None
            return tag(
                "section",
                tag("h2", x.title),
                intro,
                *_blocks(x.blocks, figures),
                id=x.anchor or None,
            )
    return _text_block(x)


def _text_block(x: b.Block) -> Html:
    """A block in which there are no charts."""
    match x:
        case None:
            return Html()
        case b.Paragraph():
            return tag("p", x.content, cls=x.style)
        case b.Heading():
            return tag("h3", x.text)
        case b.Bullets():
            return _list(x.items)
        case b.Facts():
            return tag("dl", *(_fact(label, text) for label, text in x.items), cls="facts")
        case b.Code():
            return tag("pre", tag("code", x.text), cls="block", tabindex="0")
        case b.Banner():
            return tag(
                "div", x.content, _list(x.items) if x.items else None, cls=f"banner {x.tone}"
            )
        case b.Tiles():
            return tag("div", *map(_tile, x.items), cls=f"tiles n{len(x.items)}")
        case b.Table():
            return _table_panel(x)
    raise AssertionError(f"no such block: {x!r}")


def _table_panel(x: b.Table) -> Html:
    title = tag("h3", x.title) if x.title else None
    note = tag("p", x.note, cls="note above") if x.note else None
    return tag(
        "div", title, note, _tables(x), cls=f"panel {x.kind}".strip(), data_find=x.find or None
    )


def _list(items: Iterable[b.Text]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))


def _fact(label: str, text: b.Text) -> Html:
    return tag("div", tag("dt", _breakable(label)), tag("dd", _breakable(text)))


def _fold(fold: b.Fold, figures: Traces) -> Html:
    inner, kinds = [], set()
    for x in fold.blocks:
        is_table = isinstance(x, b.Table)
        inner.append(_tables(x) if is_table and not x.title else _block(x, figures))
        kinds |= {x.kind} if is_table else set()
    body = tag("div", *inner, cls=" ".join(sorted(kinds)))
    return tag("details", tag("summary", fold.title), body, cls="fold", open=fold.open)


def _tile(tile: b.Tile) -> Html:
    label = tag("p", _breakable(tile.label), cls="label")
    figure = tag("p", _breakable(tile.figure), cls=f"figure {tile.tone}".strip())
    below = tag("p", _breakable(tile.below), cls="below")
    return tag("div", label, figure, below, cls="tile")


def _chart(chart: Chart, figures: Traces) -> Html:
    figures.append(plotly_figure(chart))
    label = f"{chart.title}. The numbers are in the table below the figure."
    height = f"height:{chart.height}px"
    plot = tag(
        "div", cls="plot", data_figure=len(figures) - 1, role="img", aria_label=label, style=height
    )
    title = tag("h3", chart.title) if chart.heading else None
    caption = tag("figcaption", chart.caption) if chart.caption else None
    return tag("figure", title, plot, caption, _numbers(chart.table), cls=f"panel {chart.width}")


def _tables(x: b.Table) -> Html:
    """A table, and its further columns where it has some."""
    return join(table(x), None if x.numbers is None else _numbers(x.numbers))


def _numbers(x: b.Table) -> Html:
    return tag("details", tag("summary", "Numbers"), table(x), cls="numbers")


def table(x: b.Table) -> Html:
    """A table inside a container that scrolls by itself."""
    titles = [tag("th", c.title, scope="col", cls="num" if c.numeric else None) for c in x.columns]
    head = [tag("tr", *titles)]
    edges = []
    if x.groups:
        first, edge = tag("th", x.columns[0].title, scope="col", rowspan=2), 1
        groups = []
        for title, size in x.groups:
            groups.append(tag("th", title, scope="colgroup", colspan=size, cls="block edge"))
            edges.append(edge)
            edge += size
        head = [tag("tr", first, *groups), tag("tr", *titles[1:])]
    body = []
    for number, row in enumerate(x.rows):
        cells = []
        for index, (column, content) in enumerate(zip(x.columns, row, strict=True)):
            cells.append(_cell(column, content, first=index == 0, edge=index in edges))
        body.append(tag("tr", *cells, cls=x.tones[number] if x.tones else None))
    inner = tag(
        "table",
        tag("thead", *head),
        tag("tbody", *body),
        cls="cards" if x.cards and not x.groups else None,
    )
    return tag("div", inner, cls="scroll", tabindex="0")


def _cell(column: b.Column, content: Any, *, first: bool, edge: bool) -> Html:
    kinds = ("edge" if edge else "", "num" if column.numeric else "", "wide" if column.wide else "")
    label = b.plain_text(column.title, below=" ").replace("\u200b", "")
    about = {"cls": " ".join(filter(None, kinds)), "data_label": label}
    return (
        tag("th", _breakable(content), **about, scope="row")
        if first
        else tag("td", content, **about)
    )


def _breakable(name: Any) -> Any:
    """A name that a narrow column may break behind its joints, and nowhere else."""
    if isinstance(name, (list, tuple)):
        return list(map(_breakable, name))
    if not isinstance(name, str) or isinstance(name, Html):
        return name
    return Html(_JOINT.sub(r"\g<0><wbr>", _text(name)))
