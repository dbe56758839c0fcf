"""Blocks as one self-contained HTML page: opens from `file://`, offline, on a phone, on paper, in the dark.

plotly.js is taken from the installed plotly package and inlined as gzip + base64 (about 2 MB instead of 5); the page
decompresses it with `DecompressionStream` and draws the figures once it is there. A Content-Security-Policy without any
origin makes the promise "no network" one that the browser keeps. Without scripts every figure still has its table of
numbers.

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
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.support.files import to_jsonable, write_bytes_atomic

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:;"
    " base-uri 'none'; form-action 'none'"
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
    return value if isinstance(value, Html) else Html(html.escape(printable(str(value), breaks=True), quote=True))


def join(*parts: Any) -> Html:
    """Parts one after the other: `Html` as it is, spans in their form, all else escaped; None is left out, sequences
    are flattened."""
    out = []
    for part in parts:
        if isinstance(part, b.Span):
            out.append(_span(part))
        elif isinstance(part, (list, tuple)):
            out.append(join(*part))
        elif isinstance(part, Html):
            out.append(part)
        elif part is not None:
            out.append(_text(part))
    return Html("".join(out))


def _text(value: Any) -> Html:
    """Escaped text whose figures stay on one line."""
    return Html(_UNBROKEN.sub(r'<span class="whole">\g<0></span>', escape(value)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """One element. `cls` is the class; other underscores become hyphens; True is a bare attribute, None, False and an
    empty class leave it out."""
    text = ""
    for key, value in attributes.items():
        if value is None or value is False or (key == "cls" and not value):
            continue
        key = "class" if key == "cls" else key.replace("_", "-")
        text += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    return Html(f"<{name}{text}>" if name in _VOID else f"<{name}{text}>{join(*children)}</{name}>")


def _span(span: b.Span) -> Html:
    if span.picture:
        return tag("img", src=f"data:image/png;base64,{span.picture}", alt=b.words(span.content), cls="picture")
    inner = join(span.content)
    if span.value is not None:
        exact = f"{span.value:.9g}" if math.isfinite(span.value) else "NaN" if math.isnan(span.value) else "Infinity"
        inner = tag("data", inner, value=exact)
    if span.link:
        inner = tag("a", inner, href=span.link)
    if span.form in ("strong", "code"):
        return tag(span.form, inner)
    if span.form == "mark":
        return tag("span", inner, cls=span.tone)
    classes = f"{span.form or ('tone' if span.tone else '')} {span.tone}".strip()
    return tag("span", inner, cls=classes) if classes else inner


@functools.cache
def _plotly_packed() -> str:
    """plotly.js as base64 of gzip; no timestamp inside, so that equal runs give equal pages."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)).decode()


def _asset(name: str) -> str:
    return importlib.resources.files("holdfast.reports").joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> Html:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Html(text)


# ------------------------------------------------------------------------------------------------------------ the page


def write_page(page: b.Page, path: Path) -> Path:
    """Writes the document atomically and returns its path.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier page is intact.
    """
    return write_bytes_atomic(path, render(page).encode())


def render(page: b.Page) -> str:
    """The whole document."""
    figures: list[dict[str, Any]] = []
    main = join(_header(page), [_block(x, figures) for x in page.blocks if x is not None])
    without = "Scripts are off, so the figures are not drawn; their numbers are in the tables under each heading."
    noscript = tag("noscript", tag("p", without, cls="banner")) if figures else None
    footer = tag("footer", page.footer, " This page needs no network.")
    drawing = [tag("script", _script_json(figures), type="application/json", id="figures"), _plotly_script()]
    scripts = [*(drawing if figures else []), tag("script", Html(_asset("page.js")))]
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


def _plotly_script() -> Html:
    return tag("script", Html(_plotly_packed()), type="text/plain", id="plotly-gzip")


def _header(page: b.Page) -> Html:
    pill = tag("span", page.status[0], cls=f"pill {page.status[1]}") if page.status else None
    return tag(
        "header",
        tag("p", page.eyebrow, cls="eyebrow"),
        tag("h1", _breakable(page.title), pill),
        tag("p", page.lead, cls="lead"),
        tag("p", page.details, cls="details") if page.details else None,
    )


_IN_A_GRID = (Chart, b.Table, b.Panel)


def _blocks(found: Iterable[Any], figures: list[dict[str, Any]]) -> list[Html]:
    """Blocks in reading order; charts, tables and panels that follow each other share a grid."""
    out = []
    held = [x for x in found if x is not None]
    for grid, run in itertools.groupby(held, key=lambda x: isinstance(x, _IN_A_GRID)):
        parts = [_block(x, figures) for x in run]
        out += [tag("div", *parts, cls="panels")] if grid else parts
    return out


def _block(x: Any, figures: list[dict[str, Any]]) -> Html:
    match x:
        case b.Paragraph():
            return tag("p", x.content, cls=x.style)
        case b.Heading():
            return tag("h3", x.text)
        case b.Bullets():
            return tag("ul", *(tag("li", item) for item in x.items))
        case b.Facts():
            return tag(
                "dl", *(tag("div", tag("dt", _breakable(a)), tag("dd", _breakable(c))) for a, c in x.items), cls="facts"
            )
        case b.Code():
            return tag("pre", tag("code", x.text), cls="block", tabindex="0")
        case b.Banner():
            items = tag("ul", *(tag("li", i) for i in x.items)) if x.items else None
            return tag("div", x.content, items, cls=f"banner {x.tone}")
        case b.Tiles():
            return tag("div", *(_tile(t) for t in x.items), cls=f"tiles n{len(x.items)}")
        case b.Table():
            title = tag("h3", x.title) if x.title else None
            note = tag("p", x.note, cls="note above") if x.note else None
            return tag("div", title, note, _whole(x), cls=f"panel {x.kind}".strip(), data_find=x.find or None)
        case Chart():
            return _chart(x, figures)
        case b.Fold():
            inner = [_whole(y) if isinstance(y, b.Table) and not y.title else _block(y, figures) for y in x.blocks]
            kinds = {f"{y.kind}" for y in x.blocks if isinstance(y, b.Table)}
            body = tag("div", *inner, cls=" ".join(sorted(kinds)))
            return tag("details", tag("summary", x.title), body, cls="fold", open=x.open)
        case b.Panel():
            return tag("div", *_blocks(x.blocks, figures), cls=f"panel {x.kind}".strip())
        case b.Bars():
            return join([_bar(*item, text) for item, (_, text) in zip(x.items, x.texts, strict=True)])
        case b.Markup():
            return escape(x.html)
        case b.Section():
            intro = tag("p", x.intro, cls="intro") if x.intro else None
            return tag("section", tag("h2", x.title), intro, *_blocks(x.blocks, figures), id=x.anchor or None)
    raise AssertionError(f"no such block: {x!r}")


def _tile(tile: b.Tile) -> Html:
    parts = (("label", tile.label), (f"figure {tile.tone}".strip(), tile.figure), ("below", tile.below))
    lines = [tag("p", _breakable(text), cls=kind) for kind, text in parts]
    return tag("div", *lines, cls="tile main" if tile.main else "tile")


def _bar(name: str, share: float, stands_out: bool, text: str) -> Html:
    track = tag("div", tag("div", cls="bar", style=f"width:{100 * share:.1f}%"), cls="track")
    parts = (tag("span", name, cls="name"), track, tag("span", text, cls="part"))
    return tag("div", *parts, cls="share taken-bar" if stands_out else "share")


def _chart(chart: Chart, figures: list[dict[str, Any]]) -> Html:
    figures.append(plotly_figure(chart))
    label = f"{chart.title}. The numbers are in the table below the figure."
    plot = tag(
        "div",
        cls="plot",
        data_figure=len(figures) - 1,
        role="img",
        aria_label=label,
        style=f"height:{chart.height}px",
    )
    return tag(
        "figure",
        tag("h3", chart.title) if chart.heading else None,
        plot,
        tag("figcaption", chart.caption) if chart.caption else None,
        _numbers(chart.table),
        cls=f"panel {chart.width}",
    )


def _whole(x: b.Table) -> Html:
    """A table, and its further columns where it has some."""
    return join(table(x), None if x.numbers is None else _numbers(x.numbers))


def _numbers(x: b.Table) -> Html:
    return tag("details", tag("summary", "Numbers"), table(x), cls="numbers")


def table(x: b.Table) -> Html:
    """A table inside a container that scrolls by itself."""
    heads = [tag("th", c.title, scope="col", cls="num" if c.numeric else None) for c in x.columns]
    rows = [tag("tr", *heads)]
    edges: set[int] = set()
    if x.groups:
        heads[0] = tag("th", x.columns[0].title, scope="col", rowspan=2)
        edges = {1 + sum(n for _, n in x.groups[:place]) for place in range(len(x.groups))}
        titles = [tag("th", t, scope="colgroup", colspan=n, cls="block edge") for t, n in x.groups]
        rows = [tag("tr", heads[0], *titles), tag("tr", *(h for h in heads[1:]))]
    body = []
    for place, cells in enumerate(x.rows):
        out = [_cell(i, c, cell, i in edges) for i, (c, cell) in enumerate(zip(x.columns, cells, strict=True))]
        body.append(tag("tr", *out, cls=x.tones[place] if x.tones else None))
    inner = tag("table", tag("thead", *rows), tag("tbody", *body), cls="cards" if x.cards and not x.groups else None)
    return tag("div", inner, cls="scroll", tabindex="0")


def _cell(place: int, column: b.Column, cell: Any, edge: bool) -> Html:
    kinds = (("edge", edge), ("num", column.numeric), ("wide", column.wide))
    title = b.words(column.title, below=" ").replace("\u200b", "")
    found = {"cls": " ".join(k for k, on in kinds if on), "data_label": title}
    inner = cell if place else _breakable(cell)
    return tag("td" if place else "th", inner, **found, scope=None if place else "row")


def _breakable(name: Any) -> Any:
    """A name that a narrow column may break behind its joints, and nowhere else."""
    if isinstance(name, (list, tuple)):
        return [_breakable(part) for part in name]
    if not isinstance(name, str) or isinstance(name, Html):
        return name
    return Html(_JOINT.sub(r"\g<0><wbr>", _text(name)))
