"""The committed studies as tables and pictures: `python docs/records.py` writes both anew from their records.

A folder of docs/examples has a record, README.md, and chart.svg: the first chart of the record's page. Between two
marks the README has the page's lead and its first table. `make docs` draws the whole page.
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "checks/oracles")]

from pages import EXAMPLES, blocks_of, record_pages

from holdfast.reports.blocks import Table, plain_text
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.reports.html import write_page
from holdfast.reports.markdown import escape

__all__ = ["EXAMPLES", "record_pages", "write_page"]

BEGIN, END = "<!-- from the record -->", "<!-- end of the record -->"
PICTURE = "chart.svg"
LARGEST = 300_000
"""Bytes of a record."""
WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 20, 16, 56
LEGEND_LINE = 18
COLOURS = {
    "accent": "#2f62d9",
    "second": "#c8690f",
    "third": "#7a4fc4",
    "fourth": "#0e7c92",
    "good": "#0b7f66",
    "bad": "#c2363f",
    "muted": "#5b6678",
    "ink": "#17202e",
    "surface": "#ffffff",
}


def main() -> None:
    """Writes table and picture of every record."""
    for folder, page in studies():
        readme = folder / "README.md"
        chart = first(page, Chart)
        (folder / PICTURE).write_text(svg(chart), encoding="utf-8")
        readme.write_text(with_record(readme.read_text(encoding="utf-8"), page), encoding="utf-8")


def studies() -> Iterator[tuple[Path, Any]]:
    """The folders of studies, and the page of each."""
    for name, page in record_pages():
        if not name.endswith("/run.json"):
            yield (EXAMPLES / name).parent, page


def first(page: Any, kind: type) -> Any:
    """The first block of a kind."""
    return next(block for block in blocks_of(page) if isinstance(block, kind))


def with_record(text: str, page: Any) -> str:
    """A README with what its record says between the marks; at its end where it has none."""
    title = first(page, Chart).title
    parts = [BEGIN, escape(page.lead), f"![{escape(title)}]({PICTURE})", markdown(first(page, Table)), END]
    block = "\n\n".join(parts)
    if BEGIN not in text:
        return f"{text.rstrip()}\n\n{block}\n"
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return before + block + after


def markdown(table: Any) -> str:
    """A table without its links, which lead to files of the machine that ran the study."""
    rows = [[column.title for column in table.columns], *table.rows]
    lines = []
    for row in rows:
        cells = [escape(plain_text(cell, below=" ")) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    marks = ["--:" if column.numeric else "---" for column in table.columns]
    lines.insert(1, f"|{'|'.join(marks)}|")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------- picture


class Scale:
    """One axis: values to places in the picture."""

    def __init__(self, values: list[float], start: float, end: float, *, log: bool) -> None:
        self.log = log
        self.start, self.end = start, end
        known = [self.on_axis(value) for value in values if not log or value > 0]
        self.low, self.high = min(known), max(known)
        margin = 0.05 * (self.high - self.low or 1.0)
        self.low, self.high = self.low - margin, self.high + margin

    def on_axis(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def place(self, value: float) -> float:
        share = (self.on_axis(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Four or five round values."""
        if self.log:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            return [(10.0**power, f"{10.0**power:g}") for power in powers]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        while (self.high - self.low) / step > 6:
            step *= 2
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [(number * step, f"{number * step:.4g}") for number in numbers]


def svg(chart: Any) -> str:
    """A chart of lines and points, with its intervals, as SVG."""
    figure = plotly_figure(chart)
    traces = [trace for trace in figure["data"] if trace["type"] == "scatter"]
    points = [[number for number in trace["x"] if number is not None] for trace in traces]
    heights = [[number for number in trace["y"] if number is not None] for trace in traces]
    named = [trace for trace in traces if trace.get("name") and trace.get("showlegend", True)]
    legend = named if len(named) > 1 else []
    top = TOP + LEGEND_LINE * math.ceil(len(legend) / 3)
    across = Scale([x for xs in points for x in xs], LEFT, WIDTH - RIGHT, log=chart.x.log)
    upright = Scale([y for ys in heights for y in ys], HEIGHT - BOTTOM, top, log=chart.y.log)
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', *axes(chart, across, upright)]
    for trace in traces:
        parts += drawn(trace, across, upright)
    for number, trace in enumerate(legend):
        x, y = LEFT + number % 3 * (WIDTH - LEFT) / 3, TOP + LEGEND_LINE * (number // 3)
        parts.append(f'<circle cx="{x:.0f}" cy="{y - 4:.0f}" r="4" fill="{colour_of(trace)}"/>')
        parts.append(text(x + 9, y, trace["name"], anchor="start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12">', f"<title>{html.escape(chart.title)}</title>", *parts, "</svg>", ""])


def axes(chart: Any, across: Scale, upright: Scale) -> list[str]:
    """Grid, ticks and titles."""
    parts = []
    for value, words_ in chart.x.ticks or across.ticks():
        x = across.place(value)
        parts.append(f'<path d="M{x:.1f} {upright.start:.1f}V{upright.end:.1f}" stroke="#e9ecf1"/>')
        parts.append(text(x, upright.start + 18, words_))
    for value, words_ in chart.y.ticks or upright.ticks():
        y = upright.place(value)
        parts.append(f'<path d="M{across.start:.1f} {y:.1f}H{across.end:.1f}" stroke="#e9ecf1"/>')
        parts.append(text(LEFT - 8, y + 4, words_, anchor="end"))
    middle = (upright.start + upright.end) / 2
    parts.append(text((across.start + across.end) / 2, HEIGHT - 12, " ".join(chart.x.title.split())))
    turned = f' transform="rotate(-90 16 {middle:.1f})"'
    parts.append(text(16, middle, " ".join(chart.y.title.split()), more=turned))
    return parts


def drawn(trace: dict[str, Any], across: Scale, upright: Scale) -> list[str]:
    """A trace: its line, its points with their intervals, and the words beside them."""
    places, parts = [], []
    colour = colour_of(trace)
    for number, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
        if x is None or y is None:
            continue
        places.append((across.place(x), upright.place(y)))
        parts += interval(trace, number, x, y, across, upright, colour)
        if "markers" in trace["mode"]:
            parts.append(f'<circle cx="{places[-1][0]:.1f}" cy="{places[-1][1]:.1f}" r="4" fill="{colour}"/>')
        if trace.get("text"):
            parts.append(text(places[-1][0] + 7, places[-1][1] - 5, trace["text"][number], anchor="start"))
    if "lines" in trace["mode"]:
        dashed = "" if trace["line"].get("dash", "solid") == "solid" else ' stroke-dasharray="5 4"'
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.insert(0, f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
    return parts


def interval(
    trace: dict[str, Any], number: int, x: float, y: float, across: Scale, upright: Scale, colour: str
) -> list[str]:
    """The bars of a point's intervals, cut at the frame."""
    parts = []
    if error := trace.get("error_y"):
        low, high = upright.place(y - error["arrayminus"][number]), upright.place(y + error["array"][number])
        ends = max(min(low, upright.start), upright.end), max(min(high, upright.start), upright.end)
        parts.append(f'<path d="M{across.place(x):.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{colour}" opacity="0.6"/>')
    if (error := trace.get("error_x")) and not across.log:
        low, high = across.place(x - error["arrayminus"][number]), across.place(x + error["array"][number])
        ends = max(min(low, across.end), across.start), max(min(high, across.end), across.start)
        parts.append(f'<path d="M{ends[0]:.1f} {upright.place(y):.1f}H{ends[1]:.1f}" stroke="{colour}" opacity="0.6"/>')
    return parts


def colour_of(trace: dict[str, Any]) -> str:
    """The colour of a trace; of one with a colour a point the first."""
    value = trace["line"]["color"]
    name = value if isinstance(value, str) else value[0]
    return COLOURS.get(re.sub(r"var\(--(\w+)\)", r"\1", name), COLOURS["muted"])


def text(x: float, y: float, content: str, *, anchor: str = "middle", more: str = "") -> str:
    plain = html.escape(html.unescape(re.sub(r"<[^>]+>", " ", content)))
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{COLOURS["muted"]}"{more}>{plain}</text>'


if __name__ == "__main__":
    main()
