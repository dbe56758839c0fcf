"""Charts as data and marks. A `Chart` holds rows (mappings with the numbers and the words), columns (which of them its
table shows) and marks (which of them are drawn, and how); the table under a figure and the words at the mouse are made
of the same rows, so that they cannot disagree with it. `plotly_figure` turns one into the dictionary that plotly draws.

Colours are names of custom properties ("good" is `var(--good)`); `page.js` puts their values in, so that one style
sheet decides the colours of text and plots, light and dark. No plotly import is needed to describe a figure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.printable import printable
from holdfast.records.measure import number
from holdfast.reports.blocks import Column, Table, Text, figure, words
from holdfast.reports.format import significant, squeeze

MOST_POINTS = 1200
"""A curve is drawn with at most this many points, so that a long run does not make a heavy page."""
SMOOTHED_FROM = 60
"""Logged values from which on a trailing mean is drawn over the raw curve."""
COMPACT_FROM = 15
"""Named lines from which on each takes one text line."""
SMALL = 210
"""Height of charts that only accompany others, in CSS pixels."""
COLOURS = ("accent", "second", "good", "third", "fourth", "bad")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot")

Row = Mapping[str, Any]
Item = Any
"""What a line of a table is about: a mapping, or a value with attributes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """A number to draw, its interval, and how both read."""

    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    interval: str = ""

    def reach(self) -> tuple[float, float]:
        """How far the interval reaches below and above the value; 0 where there is none."""
        ends = (self.low, self.high)
        low, high = (e if e is not None and math.isfinite(e) else self.value for e in ends)
        return rounded(max(0.0, self.value - low)), rounded(max(0.0, high - self.value))


@dataclasses.dataclass(frozen=True)
class Col:
    """A column of a table, declared: its title, and what it says of each item."""

    title: Text
    of: str | Callable[[Any], Any]
    """A key or an attribute of the items, or what makes the cell of one."""
    numeric: bool = True
    wide: bool = False
    """Takes the full width of a card on a phone."""
    folded: bool = False
    """A statistic, which a page folds away below the table."""

    def cell(self, row: Item) -> Text:
        """What the table says of an item here."""
        if callable(self.of):
            found = self.of(row)
        else:
            found = row.get(self.of) if isinstance(row, Mapping) else getattr(row, self.of)
        if isinstance(found, Value):
            return figure(found.text or significant(found.value), found.interval)
        return "" if found is None else significant(found) if isinstance(found, (int, float)) else found


def tabulate(items: Iterable[Item], columns: Sequence[Col], **options: Any) -> Table:
    """A line an item under declared columns; `options` are those of `Table`."""
    items = list(items)
    shown = [c for c in columns if not c.folded]
    folded = [dataclasses.replace(c, folded=False) for c in columns if c.folded]
    heads = [Column(title=c.title, numeric=c.numeric, wide=c.wide) for c in shown]
    rows = [[c.cell(item) for c in shown] for item in items]
    numbers = tabulate(items, [shown[0], *folded], tones=options.get("tones", ())) if folded else None
    return Table(columns=heads, rows=rows, numbers=numbers, **options)


def fold(*columns: Col) -> list[Col]:
    """Columns as statistics behind "Numbers"."""
    return [dataclasses.replace(c, folded=True) for c in columns]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis. `names` puts words at 0, 1, 2, ... from the top down."""

    title: str = ""
    log: bool = False
    range: tuple[float, float] | None = None
    ticks: Sequence[tuple[float, str]] = ()
    """(place, text); none: plotly's own."""
    names: Sequence[str] = ()
    length: int = 24
    """Characters of a name."""
    zero: bool = False
    """Draws the line at 0."""
    from_zero: bool = False
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of plotly's, where nothing above says it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """What is drawn of some of the rows. Rows without the x or the y are passed over; a `Value` brings its bars."""

    kind: str = "points"
    """"points"; "line" through them; "curves", a row each with lists; "bars" across, "columns" upright; "spans" from a
    `base`; "band" between the ends of y; "heat", a row of cells each."""
    x: str = "x"
    y: str = "y"
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Rows with these values."""
    rows: Sequence[Row] | None = None
    """These instead: some of the chart's rows in an order of their own, or lines and areas to read the others by, which
    the table need not show and which have no words at the mouse."""
    name: str = ""
    """In the legend."""
    colour: str = "accent"
    """"@key": each row's own."""
    symbol: str = "circle"
    hollow: bool = False
    size: float = 9
    width: float = 2.0
    dash: str = "solid"
    opacity: float = 1.0
    markers: bool = True
    """Points on lines."""
    text: str = ""
    """Key of the words beside a point."""
    side: str = "@side"
    legend: bool = True
    bars: float = 1.4
    """Thickness of the interval bars; 0 draws none."""
    base: str = "base"
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A reference line across or upright."""

    x: float | None = None
    y: float | None = None
    dash: str = "dot"
    colour: str = "muted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shade:
    """A stretch of the x axis with a coloured ground, its name at the top."""

    start: float
    end: float
    colour: str
    text: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """Words in the plot; `paper` counts places from 0 to 1 of the frame instead of in its units."""

    text: str
    x: float
    y: float
    colour: str = "muted"
    paper: bool = False
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with its words and its numbers."""

    title: str
    rows: Sequence[Row]
    columns: Sequence[Col]
    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    caption: str = ""
    height: int = 300
    """In CSS pixels; the width follows the page."""
    width: str = "full"
    """"full", "half" or "third" of the page, where there is room."""
    heading: bool = True
    legend: bool | None = None
    """None: where two marks or more have names."""
    rules: Sequence[Rule] = ()
    shades: Sequence[Shade] = ()
    notes: Sequence[Note] = ()
    order: str = ""
    """Key that the table's rows are sorted by."""
    layout: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of plotly's, where nothing above says it."""

    @property
    def table(self) -> Table:
        """The numbers of the figure."""
        held = sorted(self.rows, key=lambda r: r[self.order]) if self.order else self.rows
        return tabulate(held, self.columns, cards=False)


# ------------------------------------------------------------------------------------------------------- small helpers


def plain(text: str) -> str:
    """Text for inside a figure: plotly reads a little markup, `$...$` as TeX and `%{...}` as a variable there, so all
    are taken out of it."""
    text = printable(text, breaks=True)
    for mark, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("$", "&#36;"), ("%{", "&#37;{")):
        text = text.replace(mark, code)
    return text.replace("\n", "<br>")


def rounded(value: float, digits: int = 6) -> float:
    """Six significant digits draw a point as well as seventeen, in a third of the page."""
    return float(f"{value:.{digits}g}")


def finite(value: Any) -> float | None:
    """A number plotly can draw, or None for a gap."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def colour_of(place: int, models: int = 2) -> str:
    """The colour of the model at `place`, from 0, among so many."""
    return COLOURS[place % len(COLOURS)] if models > 1 else "accent"


def log_ticks(low: float, high: float, steps: Sequence[float] = (1, 2, 5), most: int = 4) -> list[tuple[float, str]]:
    """Ticks at `steps` times the powers of ten, or at the powers only where these are more than `most`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    places = [step * 10.0**power for power in powers for step in (steps if len(powers) <= most else (1,))]
    return [(place, significant(place) if place < 1e4 else f"{place:g}") for place in places]


def ticks_at(values: Sequence[float]) -> list[tuple[float, str]]:
    return [(v, significant(v)) for v in values]


def thin(
    xs: Sequence[float], ys: Sequence[float | None], most: int = MOST_POINTS
) -> tuple[list[float], list[float | None]]:
    """At most about `most` points: each bucket keeps its lowest and highest, in order, so that spikes and gaps
    survive."""
    if len(xs) <= most:
        return list(xs), list(ys)
    size = math.ceil(2 * len(xs) / most)
    keep: list[int] = []
    for start in range(0, len(xs), size):
        bucket = range(start, min(start + size, len(xs)))
        known = [(y, i) for i in bucket if (y := ys[i]) is not None]
        keep += sorted({min(known)[1], max(known)[1]}) if known else [start]
    return [xs[i] for i in keep], [ys[i] for i in keep]


def smooth(ys: Sequence[float | None], window: int) -> list[float | None]:
    """Trailing mean over `window` logged values, gaps left out of it."""
    import numpy as np

    if not ys:
        return []
    known = np.array([y is not None for y in ys])
    values = np.array([0.0 if y is None else y for y in ys])
    base = values[known].mean() if known.any() else 0.0  # sums of what is left keep their digits

    def trailing(of: Any) -> Any:
        sums = np.concatenate([np.zeros(window), np.cumsum(of)])
        return sums[window:] - sums[:-window]

    counts, sums = trailing(known.astype(float)), trailing(np.where(known, values - base, 0.0))
    return [base + s / c if c else None for s, c in zip(sums.tolist(), counts.tolist(), strict=True)]


# ----------------------------------------------------------------------------------------------------------- the engine


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """`{"data": [...], "layout": {...}}`."""
    data = [trace for mark in chart.marks for trace in _traces(mark, chart)]
    named = [t["name"] for t in data if t.get("name") and t.get("showlegend", True)]
    legend = len(named) > 1 if chart.legend is None else chart.legend
    characters = sum(len(n) + 9 for n in named)
    lines = min(3, 1 + characters // {"full": 120, "half": 52, "third": 36}[chart.width]) if legend else 0
    titled = any(s.text for s in chart.shades)
    layout: dict[str, Any] = {
        "height": chart.height,
        "margin": {"l": 12, "r": 16 + _right_of_plot(chart), "t": 12 + 22 * lines + 18 * titled, "b": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--raised)", "bordercolor": "var(--line)", "font": _font("ink")},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--accent)"},
        "showlegend": legend,
        "xaxis": _axis(chart.x),
        "yaxis": _axis(chart.y),
        "shapes": [*map(_shade, chart.shades), *map(_rule, chart.rules)],
        "annotations": [*map(_note, chart.notes), *(_note(_title(s)) for s in chart.shades if s.text)],
    }
    if legend:
        above = 1.02 + 18 * titled / max(chart.height - 80, 1)
        place = {"orientation": "h", "x": 0, "xanchor": "left", "y": above, "yanchor": "bottom", "font": _font("ink")}
        layout["legend"] = {**place, "bgcolor": "rgba(0,0,0,0)", "traceorder": "normal"}
    if chart.y.names:  # what the page shows on a phone
        layout["meta"] = {"narrow": [plain(squeeze(n, 17)) for n in chart.y.names]}
    return {"data": data, "layout": layout | dict(chart.layout)}


def _right_of_plot(chart: Chart) -> int:
    """Pixels that notes right of the plot take."""
    longest = max((len(n.text) for n in chart.notes if n.x == 1.0 and n.more.get("xanchor") == "left"), default=0)
    return 8 * longest


def _font(colour: str, size: int = 12) -> dict[str, Any]:
    return {"size": size, "color": f"var(--{colour})"}


def _axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {
        "title": {"text": plain(axis.title), "standoff": 8, "font": _font("muted")},
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "tickfont": _font("muted", 11),
        "automargin": True,
        "exponentformat": "e",
        "zeroline": axis.zero,
    }
    if axis.zero:
        found |= {"zerolinewidth": 2, "zerolinecolor": "var(--muted)"}
    if axis.log:
        found["type"] = "log"
    if axis.range is not None:
        found["range"] = [math.log10(v) for v in axis.range] if axis.log else list(axis.range)
    if axis.from_zero:
        found["rangemode"] = "tozero"
    ticks = [(place, plain(squeeze(text, axis.length))) for place, text in axis.ticks]
    if axis.names:
        ticks = [(place, plain(squeeze(n, axis.length))) for place, n in enumerate(axis.names)]
        found |= {"range": [len(axis.names) - 0.4, -0.6], "fixedrange": True, "ticklen": 4}
    if ticks:
        found |= {"tickvals": [place for place, _ in ticks], "ticktext": [text for _, text in ticks]}
    return found | dict(axis.more)


def _rule(rule: Rule) -> dict[str, Any]:
    line = {"color": f"var(--{rule.colour})", "width": 1.3, "dash": rule.dash}
    if rule.x is not None:
        return {"type": "line", "x0": rule.x, "x1": rule.x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    return {"type": "line", "y0": rule.y, "y1": rule.y, "xref": "paper", "x0": 0, "x1": 1, "line": line}


def _shade(shade: Shade) -> dict[str, Any]:
    ground = {"fillcolor": f"var(--{shade.colour})", "opacity": 0.13, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect", "x0": shade.start, "x1": shade.end, "yref": "paper", "y0": 0, "y1": 1, **ground}


def _title(shade: Shade) -> Note:
    more = {"yref": "paper", "xanchor": "center", "yanchor": "bottom"}  # above the plot: no bar lies on it
    return Note(text=shade.text, x=(shade.start + shade.end) / 2, y=1, colour="muted", more=more)


def _note(note: Note) -> dict[str, Any]:
    paper = {"xref": "paper", "yref": "paper"} if note.paper else {}
    found = {
        **paper,
        "x": note.x,
        "y": note.y,
        "text": plain(note.text),
        "showarrow": False,
        "font": _font(note.colour),
    }
    return found | dict(note.more)


def _traces(mark: Mark, chart: Chart) -> list[dict[str, Any]]:
    rows = [r for r in (chart.rows if mark.rows is None else mark.rows) if mark.where.items() <= r.items()]
    if mark.kind in ("points", "line", "bars", "columns", "spans", "band"):
        rows = [r for r in rows if r.get(mark.x) is not None and r.get(mark.y) is not None]
    if not rows:
        return []
    draw = {"curves": _curves, "heat": _heat, "band": _band}.get(mark.kind, _cartesian)
    found = draw(mark, chart, rows)
    for trace in found:
        if mark.name and "name" not in trace:
            trace["name"] = plain(squeeze(mark.name, 34))
        if not mark.legend or not trace.get("name"):
            trace["showlegend"] = False
        if mark.opacity != 1:
            trace["opacity"] = mark.opacity
        trace |= dict(mark.more)
    return found


def _number(value: Any) -> float | None:
    return finite(value.value if isinstance(value, Value) else value)


def _each(mark_field: str, rows: Sequence[Row]) -> Any:
    """A field that is one for all, or each row's own."""
    return [r.get(mark_field[1:], "") for r in rows] if mark_field.startswith("@") else mark_field


def _colour(mark: Mark, rows: Sequence[Row]) -> Any:
    found = _each(mark.colour, rows)
    return f"var(--{found})" if isinstance(found, str) else [f"var(--{c or 'accent'})" for c in found]


def _hover(mark: Mark, chart: Chart, rows: Sequence[Row]) -> dict[str, Any]:
    """What the table says of each row."""
    own = {id(r) for r in chart.rows}
    if not any(id(r) in own for r in rows):
        return {"hoverinfo": "skip"}
    texts = []
    for row in rows:
        if id(row) not in own:
            texts.append("")
            continue
        head, *rest = (words(c.cell(row), below=" ") for c in chart.columns)
        lines = [f"{plain(words(c.title))}: {plain(t)}" for c, t in zip(chart.columns[1:], rest, strict=True) if t]
        title = f"{plain(mark.name)}: " if mark.name and mark.name not in head and mark.kind == "bars" else ""
        texts.append("<br>".join([f"<b>{title}{plain(head)}</b>", *lines]))
    return {"hovertext": texts, "hoverinfo": "text"}


def _error(values: Sequence[Any], colour: Any, thickness: float) -> dict[str, Any] | None:
    """Interval bars; None where no value has an interval."""
    if not thickness or not any(isinstance(v, Value) and (v.low is not None or v.high is not None) for v in values):
        return None
    reach = [v.reach() if isinstance(v, Value) else (0.0, 0.0) for v in values]
    ends = {"arrayminus": [low for low, _ in reach], "array": [high for _, high in reach]}
    tint = colour if isinstance(colour, str) else "var(--ink)"
    return {"type": "data", "symmetric": False, **ends, "color": tint, "thickness": thickness, "width": 3}


def _cartesian(mark: Mark, chart: Chart, rows: Sequence[Row]) -> list[dict[str, Any]]:
    xs, ys, colour = [r[mark.x] for r in rows], [r[mark.y] for r in rows], _colour(mark, rows)
    trace: dict[str, Any] = {"x": [_plotted(v) for v in xs], "y": [_plotted(v) for v in ys]}
    if mark.kind in ("bars", "columns", "spans"):
        trace |= {"type": "bar", "marker": {"color": colour, "cornerradius": 3}}
        if mark.kind != "columns":
            trace["orientation"] = "h"
        if mark.kind == "spans":
            trace["base"] = [r[mark.base] for r in rows]
        colour = "var(--ink)"
    else:
        lines = "lines" if mark.kind == "line" else ""
        parts = [lines, "markers" if mark.markers or not lines else "", "text" if mark.text else ""]
        symbol = _each(mark.symbol, rows)
        fill = "var(--surface)" if mark.hollow else colour
        trace |= {
            "type": "scatter",
            "mode": "+".join(p for p in parts if p),
            "line": {"color": colour, "width": mark.width, "dash": mark.dash},
            "marker": {"size": mark.size, "symbol": symbol, "color": fill, "line": {"color": colour, "width": 2}},
        }
        if mark.text:
            sides = _each(mark.side, rows)
            trace |= {"text": [plain(str(r.get(mark.text) or "")) for r in rows], "cliponaxis": False}
            trace |= {"textposition": sides, "textfont": _font("muted", 11)}
            trace |= {"meta": "named in legend"} if mark.name else {}
    for key, values in (("error_x", xs), ("error_y", ys)):
        error = _error(values, colour, mark.bars)
        if error is not None:
            trace[key] = error
    return [trace | _hover(mark, chart, rows)]


def _plotted(value: Any) -> Any:
    """A number as it is drawn; words of a category stay."""
    return plain(value) if isinstance(value, str) else (None if (v := _number(value)) is None else rounded(v))


def _curves(mark: Mark, chart: Chart, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A trace a row: its lists, thinned; a long one pale with its trailing mean above, unless the row has `markers`."""
    found = []
    for row in rows:
        colour = f"var(--{row.get('colour', mark.colour)})"
        xs, ys = list(row[mark.x]), [finite(v) for v in row[mark.y]]
        line = {"color": colour, "width": mark.width, "dash": row.get("dash", mark.dash)}
        points = row.get("markers", False)
        shared = {"type": "scatter", "opacity": mark.opacity}
        if row.get("smooth") and len(xs) >= SMOOTHED_FROM:
            x, y = thin(xs, ys)
            pale = {"mode": "lines", "x": x, "y": y, "line": {**line, "width": 1}, "opacity": 0.3, "hoverinfo": "skip"}
            found.append({**shared, **pale, "name": "", "showlegend": False})
            ys = smooth(ys, max(5, len(xs) // 40))
        x, y = thin(xs, ys)
        name = plain(squeeze(str(row.get("name", mark.name)), 34))
        legend = plain(squeeze(str(row.get("legend", row.get("name", mark.name))), 34))
        trace = {**shared, "mode": "lines+markers" if points else "lines", "x": x, "y": y, "name": legend, "line": line}
        trace["marker"] = {"size": row.get("size", 5), "symbol": row.get("symbol", "circle")}
        hover = (
            {"hoverinfo": "skip"} if mark.rows is not None else {"hovertemplate": f"{name} %{{y:.5g}}<extra></extra>"}
        )
        found.append(trace | hover)
    return found


def _band(mark: Mark, chart: Chart, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A pale area between the ends of the intervals; nothing where one has none."""
    held: list[Value] = [r[mark.y] for r in rows]
    if any(v.low is None or v.high is None for v in held):
        return []
    line = {"width": 0, "color": f"var(--{mark.colour})"}
    style: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": [_plotted(r[mark.x]) for r in rows], "line": line}
    style |= {"hoverinfo": "skip", "showlegend": False, "name": ""}
    fill = {"fill": "tonexty", "fillcolor": f"var(--{mark.colour})26"}  # two digits of opacity after #rrggbb
    return [{**style, "y": [v.low for v in held]}, {**style, "y": [v.high for v in held], **fill}]


def _heat(mark: Mark, chart: Chart, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row of cells each: lists of shades under `y`, of words under `mark.text`."""
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": list(range(len(rows[0][mark.y]))),
        "y": list(range(len(rows))),
        "z": [[None if (f := finite(v)) is None else rounded(f) for v in r[mark.y]] for r in rows],
        "text": [[plain(t) for t in r[mark.text]] for r in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
        "showscale": False,
        "colorscale": [[n / 3, f"var(--heat-{n})"] for n in range(4)],
        "xgap": 2,
        "ygap": 2,
    }
    return [trace]


# --------------------------------------------------------------------------------------------------------- chart makers


def figures_at_right(texts: Sequence[str], tones: Sequence[str]) -> list[Note]:
    """The figure of each row, right of the plot, where no bar can lie on it."""
    found = []
    for place, (text, tone) in enumerate(zip(texts, tones, strict=True)):
        colour = "ink" if tone == "flat" else tone
        more = {"xref": "paper", "xanchor": "left", "xshift": 8}
        found.append(Note(text=text, x=1.0, y=place, colour=colour, more=more))
    return found


def logged_curves(
    metrics: Sequence[Mapping[str, Any]],
    wanted: Sequence[tuple[str, str, str, bool]],
    *,
    title: str,
    unit: str,
    caption: str = "",
    height: int = 300,
    may_be_log: bool = False,
) -> Chart | None:
    """Logged quantities against the optimiser step; None where none was logged.

    Args:
        metrics: rows of the log.
        wanted: (key, name, colour, whether its points are marked) of each curve.
        title: of the chart.
        unit: of all of them.
        caption: what stands first below.
        height: in CSS pixels.
        may_be_log: on a logarithmic axis where positive values span more than a factor of 20.
    """
    rows, everything, gaps = [], [], 0
    for key, name, colour, marked in wanted:
        points = [(m["step"], m[key]) for m in metrics if "step" in m and m.get(key) is not None]
        if points:
            ys = [y for _, y in points]
            known = [v for y in ys if (v := finite(y)) is not None]
            everything += known
            gaps += len(ys) - len(known)
            row = {"name": name, "colour": colour, "x": [x for x, _ in points], "y": ys, "known": known}
            rows.append(row | {"markers": marked or len(points) < 20, "smooth": not marked})
    if not rows:
        return None
    log = may_be_log and bool(everything) and min(everything) > 0 and max(everything) / min(everything) > 20
    sentences = [caption, "Logarithmic axis." if log else ""]
    sentences.append(
        f"{gaps} logged {'value is' if gaps == 1 else 'values are'} not finite and shown as gaps." if gaps else ""
    )

    def cell(pick: Callable[[Row], Any]) -> Callable[[Row], str]:
        return lambda r: significant(pick(r)) if r["known"] else "n/a"

    return Chart(
        title=title,
        rows=rows,
        columns=[
            Col("Curve", "name", numeric=False),
            Col("First", cell(lambda r: r["y"][0])),
            Col("Lowest", cell(lambda r: min(r["known"]))),
            Col("Highest", cell(lambda r: max(r["known"]))),
            Col("Last", cell(lambda r: r["y"][-1])),
            Col("Values logged", lambda r: len(r["y"])),
        ],
        marks=[Mark(kind="curves", width=2.2)],
        x=Axis(title="optimiser step"),
        y=Axis(title=unit, log=log, ticks=log_ticks(min(everything), max(everything)) if log else ()),
        caption=" ".join(s for s in sentences if s),
        height=height,
        layout={"hovermode": "x unified"},
    )


def moved(relative: float) -> str:
    """A relative distance in percent with three significant digits: moves of a millionth are as common as moves of a
    tenth."""
    return f"{significant(float(f'{100 * relative:.3g}'))} %" if math.isfinite(relative) else number(relative)


def signs_kept(share: float) -> str:
    """A share of parameters in percent, two decimals."""
    return f"{number(100 * share, 2)} %" if math.isfinite(share) else number(share)


def layer_chart(distance: Sequence[Any], **changes: Any) -> Chart | None:
    """Relative L2 distance of each layer (`LayerDistance`) from the start, as bars in the order of the model; signs
    kept where they were recorded."""
    if not distance:
        return None
    endless = [d.layer for d in distance if not math.isfinite(d.relative)]
    signs = any(math.isfinite(d.sign_agreement) for d in distance)
    rows = [
        {"x": d.layer, "y": 100 * d.relative, "d": d, "colour": "accent" if d.layer.isdigit() else "second"}
        for d in distance
    ]
    caption = (
        "L2 norm of (result \u2212 start) over the L2 norm of the start, per layer; other colour: outside the blocks."
    )
    if endless:
        caption += f" Not drawn, because the start's norm is 0: {', '.join(endless)}."
    chart = Chart(
        title="Distance from the start, layer by layer",
        rows=rows,
        columns=[
            Col("Layer", "x", numeric=False),
            Col("Relative L2", lambda r: moved(r["d"].relative)),
            Col("L2", lambda r: significant(float(r["d"].l2))),
            Col("Cosine", lambda r: number(r["d"].cosine, 6)),
            *([Col("Signs kept", lambda r: signs_kept(r["d"].sign_agreement))] if signs else []),
            Col("Parameters", lambda r: f"{r['d'].parameters:,}"),
        ],
        marks=[Mark(kind="columns", colour="@colour")],
        x=Axis(title="layer", more={"type": "category", "tickangle": "auto"}),
        y=Axis(title="% of the layer's norm", from_zero=True),
        caption=caption,
        height=290,
        layout={"bargap": 0.25},
    )
    return dataclasses.replace(chart, **changes)
