"""One self-contained HTML page: opens from `file://`, offline, on a phone, on paper, in the dark.

plotly.js is taken from the installed plotly package and inlined as gzip + base64 (about 2 MB instead of 5); the page
decompresses it with `DecompressionStream` and draws the figures once it is there. A Content-Security-Policy without any
origin makes the promise "no network" one that the browser keeps. Without scripts every figure still has its table of
numbers.

What this module knows nothing about: runs. It takes sections and charts.
"""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.reports.legacy_charts import Chart
from holdfast.reports.markup import Html, join, table, tag
from holdfast.support.files import to_jsonable, write_bytes_atomic

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:;"
    " base-uri 'none'; form-action 'none'"
)


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
    for mark, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(mark, code)
    return Html(text)


class Page:
    """Collects sections in reading order; `render` gives the document.

    Args:
        title: of the browser tab.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._body: list[Html] = []
        self._figures: list[dict[str, Any]] = []

    def add(self, *parts: Any) -> None:
        """Appends content; text that is not `Html` is escaped."""
        self._body.append(join(*parts))

    def section(self, title: str, *parts: Any, intro: str | None = None, anchor: str | None = None) -> None:
        """Appends a section with a heading."""
        self.add(tag("section", tag("h2", title), tag("p", intro, cls="intro") if intro else None, *parts, id=anchor))

    def chart(self, chart: Chart, *, heading: bool = True, width: str = "full") -> Html:
        """The markup of a chart; its figure is drawn when the page opens. `width` on wide screens: "full", "half" or
        "third"."""
        self._figures.append(chart.figure)
        return tag(
            "figure",
            tag("h3", chart.title) if heading else None,
            tag(
                "div",
                cls="plot",
                data_figure=len(self._figures) - 1,
                role="img",
                aria_label=f"{chart.title}. The numbers are in the table below the figure.",
                style=f"height:{chart.height}px",
            ),
            tag("figcaption", chart.caption) if chart.caption else None,
            tag("details", tag("summary", "Numbers"), table(chart.columns, chart.rows), cls="numbers"),
            cls=f"panel {width}",
        )

    def render(self) -> str:
        """The whole document."""
        head = join(
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="generator", content="holdfast"),
            tag("title", self.title),
            tag("style", Html(_asset("page.css"))),
            tag("noscript", tag("style", Html(".plot{display:none}"))),
        )
        without = tag(
            "noscript",
            tag(
                "p",
                "Scripts are off, so the figures are not drawn; their numbers are in the tables under each heading.",
                cls="banner",
            ),
        )
        scripts: Html | None = None
        if self._figures:
            scripts = join(
                tag("script", _script_json(self._figures), type="application/json", id="figures"),
                tag("script", Html(_plotly_packed()), type="text/plain", id="plotly-gzip"),
                tag("script", Html(_asset("page.js"))),
            )
        body = tag("body", tag("main", without if self._figures else None, *self._body), scripts)
        return f"<!doctype html>\n{tag('html', tag('head', head), body, lang='en')}\n"

    def write(self, path: Path) -> Path:
        """Writes the document atomically.

        Raises:
            StorageError: the disk is full or the folder cannot be written.
        """
        return write_bytes_atomic(path, self.render().encode())


def header(*, eyebrow: str, title: str, lead: str, status: tuple[str, str] | None = None, details: str = "") -> Html:
    """The top of a page: what it is, the name, the verdict in one sentence, a line of particulars. `status` is (text,
    tone)."""
    pill = tag("span", status[0], cls=f"pill {status[1]}") if status else None
    return tag(
        "header",
        tag("p", eyebrow, cls="eyebrow"),
        tag("h1", title, pill),
        tag("p", lead, cls="lead"),
        tag("p", details, cls="details") if details else None,
    )


def tiles(items: Sequence[tuple[str, str, str, str]]) -> Html:
    """A row of key figures: (label, figure, words below, tone)."""
    return tag(
        "div",
        *(
            tag(
                "div", tag("p", a, cls="label"), tag("p", b, cls=f"figure {tone}"), tag("p", c, cls="below"), cls="tile"
            )
            for a, b, c, tone in items
        ),
        cls="tiles",
    )


def facts(items: Sequence[tuple[str, str]]) -> Html:
    """Label and text, one pair a line."""
    return tag("dl", *(tag("div", tag("dt", a), tag("dd", b)) for a, b in items), cls="facts")


def banner(text: Any, tone: str = "flat") -> Html:
    """A message that must not be overlooked."""
    return tag("div", text, cls=f"banner {tone}")


def bullets(items: Sequence[Any]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))


def fold(title: str, *parts: Any) -> Html:
    """Content behind a heading that opens on a click."""
    return tag("details", tag("summary", title), *parts, cls="fold")
