"""The page of the theories, which draws its own plotly figures: sections and charts as markup, in the frame of `html`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.reports.html import POLICY, Html, _asset, _plotly_packed, _script_json, join, tag
from holdfast.reports.markup import Column, table
from holdfast.support.files import write_bytes_atomic


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with its words and its numbers."""

    title: str
    figure: dict[str, Any]
    """`{"data": [...], "layout": {...}}`."""
    caption: str
    columns: list[Column]
    rows: list[list[str]]
    height: int = 300
    """In CSS pixels; the width follows the page."""


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis in the house style."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "var(--muted)"}},
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "tickfont": {"size": 11, "color": "var(--muted)"},
        "automargin": True,
        "exponentformat": "e",
        **more,
    }


def layout(height: int, *, xaxis: dict[str, Any], yaxis: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout in the house style: transparent, so that the page's surface shows through."""
    return {
        "height": height,
        "margin": {"l": 12, "r": 12, "t": 12, "b": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {
            "bgcolor": "var(--raised)",
            "bordercolor": "var(--line)",
            "font": {"color": "var(--ink)", "size": 12},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--accent)"},
        "showlegend": False,
        "xaxis": xaxis,
        "yaxis": yaxis,
        **more,
    }


LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": 1.02,
    "yanchor": "bottom",
    "font": {"size": 12, "color": "var(--ink)"},
    "bgcolor": "rgba(0,0,0,0)",
}


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
