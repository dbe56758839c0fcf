"""Charts as data and marks. A `Chart` holds rows (mappings with the numbers and the words), columns
(which of them its table shows) and marks (which of them are drawn, and how); the table under a
figure and the words at the mouse are made of the same rows, so that they cannot disagree with it.
`plotly_figure` turns one into the dictionary that plotly draws.

Colours are names of custom properties ("good" is `var(--good)`); `page.js` puts their values in, so
that one style sheet decides the colours of text and plots, light and dark. No plotly import is
needed to describe a figure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.printable import printable
from holdfast.records.measure import HasInterval, Measure
from holdfast.reports.blocks import Column, Table, Text, figure, plain_text
from holdfast.reports.format import ellipsize_middle, significant

MOST_POINTS = 1200
"""A curve is drawn with at most this many points, so that a long run does not make a heavy page."""
SMOOTHED_FROM = 60
"""Logged values from which on a trailing mean is drawn over the raw curve."""
SMALL = 210
"""Height of charts that only accompany others, in CSS pixels."""
COLOURS = ("accent", "second", "good", "third", "fourth", "bad")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot")

Row = Mapping[str, Any]
Rows = Sequence[Row]
Plotly = dict[str, Any]
"""What plotly reads."""
Traces = list[Plotly]
Item = Any
"""What a line of a table is about: a mapping, or a value with attributes."""
AS_IT_IS = Measure()
"""Of figures that stand without a unit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """A number to draw, its interval, and how both read."""

    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    interval: str = ""

    @classmethod
    def of(cls, known: HasInterval, measure: Measure = AS_IT_IS, *, sign: bool = False) -> Value:
        """A figure as a chart draws it, shares in percent; `sign` for differences and gains."""
        text, interval = measure.texts(known, sign=sign)
        factor = measure.factor
        low, high = [factor * end for end in measure.ends(known, sign=sign) or ()] or (None, None)
        return cls(value=factor * known.value, low=low, high=high, text=text, interval=interval)

    def reach(self) -> tuple[float, float]:
        """How far the interval reaches below and above the value; 0 where there is none."""
        low, high = finite(self.low), finite(self.high)
        below = 0.0 if low is None else max(0.0, self.value - low)
        above = 0.0 if high is None else max(0.0, high - self.value)
        return rounded(below), rounded(above)


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
            content = self.of(row)
        else:
            content = row.get(self.of) if isinstance(row, Mapping) else getattr(row, self.of)
        if isinstance(content, Value):
            return figure(content.text or significant(content.value), content.interval)
        if content is None:
            return ""
        return significant(content) if isinstance(content, (int, float)) else content


def tabulate(items: Iterable[Item], columns: Sequence[Col], **options: Any) -> Table:
    """A line an item under declared columns; `options` are those of `Table`."""
    items = list(items)
    above, folded, titles = [], [], []
    for column in columns:
        if column.folded:
            folded.append(dataclasses.replace(column, folded=False))
        else:
            above.append(column)
            titles.append(Column(title=column.title, numeric=column.numeric, wide=column.wide))
    rows = []
    for item in items:
        rows.append([column.cell(item) for column in above])
    numbers = (
        tabulate(items, [above[0], *folded], tones=options.get("tones", ())) if folded else None
    )
    return Table(columns=titles, rows=rows, numbers=numbers, **options)


def heads(titles: Mapping[str, str | Callable[[Any], Any]], *, words: int = 1) -> list[Col]:
    """Columns by their titles, the first `words` of them text, the others figures."""
    columns: list[Col] = []
    for title, of in titles.items():
        columns.append(Col(title, of, numeric=len(columns) >= words))
    return columns


def fold(columns: Iterable[Col]) -> list[Col]:
    """Columns as statistics behind "Numbers"."""
    return [dataclasses.replace(column, folded=True) for column in columns]


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
    more: Row = dataclasses.field(default_factory=dict)
    """Of plotly's, where nothing above says it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """What is drawn of some of the rows. Rows without the x or the y are passed over; a `Value`
    brings its bars."""

    kind: str = "points"
    """"points"; "line" through them; "curves", a row each with lists; "bars" across, "columns"
    upright; "band" between the ends of y; "heat", a row of cells each."""
    x: str = "x"
    y: str = "y"
    where: Row = dataclasses.field(default_factory=dict)
    """Rows with these values."""
    rows: Rows | None = None
    """These instead: some of the chart's rows in an order of their own, or lines and areas to read
    the others by, which the table need not show and which have no words at the mouse."""
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
    legend: bool = True
    bars: float = 1.4
    """Thickness of the interval bars; 0 draws none."""
    more: Row = dataclasses.field(default_factory=dict)


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
    more: Row = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with its words and its numbers."""

    title: str
    rows: Rows
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
    layout: Row = dataclasses.field(default_factory=dict)
    """Of plotly's, where nothing above says it."""

    @property
    def table(self) -> Table:
        """The numbers of the figure."""
        rows = sorted(self.rows, key=lambda row: row[self.order]) if self.order else self.rows
        return tabulate(rows, self.columns, cards=False)


# ------------------------------------------------------------------------------------ small helpers

_PLAIN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "\n": "<br>"})


def plain(text: str) -> str:
    """Text for inside a figure: plotly reads a little markup, `$...$` as TeX and `%{...}` as a
    variable there, so all are taken out of it."""
    return printable(text, breaks=True).translate(_PLAIN).replace("%{", "&#37;{")


def rounded(value: float, digits: int = 6) -> float:
    """Six significant digits draw a point as well as seventeen, in a third of the page."""
    return float(f"{value:.{digits}g}")


def finite(value: Any) -> float | None:
    """A number plotly can draw, or None for a gap."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def line_style(place: int) -> Plotly:
    """Colour and symbol of the points, and the dash of the line, at `place` among several."""
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    return {
        "colour": COLOURS[place % len(COLOURS)],
        "symbol": SYMBOLS[place % len(SYMBOLS)],
        "dash": dash,
    }


def log_ticks(
    low: float, high: float, steps: Sequence[float] = (1, 2, 5), most: int = 4
) -> list[tuple[float, str]]:
    """Ticks at `steps` times the powers of ten, or at the powers only where these are more than
    `most`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = []
    for power in powers:
        for step in steps if len(powers) <= most else (1,):
            tick = step * 10.0**power
            ticks.append((tick, significant(tick) if tick < 1e4 else f"{tick:g}"))
    return ticks


def ticks_at(values: Sequence[float]) -> list[tuple[float, str]]:
    return [(value, significant(value)) for value in values]


def thin(
    xs: Sequence[float], ys: Sequence[float | None], most: int = MOST_POINTS
) -> tuple[list[float], list[float | None]]:
    """At most about `most` points: each bucket keeps its lowest and highest, in order, so that
    spikes and gaps survive."""
    if len(xs) <= most:
        return list(xs), list(ys)
    size = math.ceil(2 * len(xs) / most)
    keep: list[int] = []
    for start in range(0, len(xs), size):
        bucket = range(start, min(start + size, len(xs)))
        points = [(y, i) for i in bucket if (y := ys[i]) is not None]
        keep += sorted({min(points)[1], max(points)[1]}) if points else [start]
    return [xs[i] for i in keep], [ys[i] for i in keep]


def smooth(ys: Sequence[float | None], window: int) -> list[float | None]:
    """Trailing mean over `window` logged values, gaps left out of it."""
    import numpy as np

    values = np.array(ys, dtype=float)  # gaps are NaN
    numbers = ~np.isnan(values)
    # sums of what is left keep their digits
    base = values[numbers].mean() if numbers.any() else 0.0
    padded = np.concatenate(
        [np.zeros((2, window)), [numbers, np.where(numbers, values - base, 0.0)]], axis=1
    )
    sums = padded.cumsum(axis=1)
    counts, totals = (sums[:, window:] - sums[:, :-window]).tolist()
    means = []
    for total, count in zip(totals, counts, strict=True):
        means.append(base + total / count if count else None)
    return means


# --------------------------------------------------------------------------------------- the engine


def _font(colour: str, size: int = 12) -> Plotly:
    return {"size": size, "color": f"var(--{colour})"}


CLEAR = "rgba(0,0,0,0)"
LAYOUT: Plotly = {
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": {"family": "var(--font)", **_font("ink")},
    "hoverlabel": {"bgcolor": "var(--raised)", "bordercolor": "var(--line)", "font": _font("ink")},
    "modebar": {"bgcolor": CLEAR, "color": "var(--muted)", "activecolor": "var(--accent)"},
}
LEGEND: Plotly = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "yanchor": "bottom",
    "traceorder": "normal",
}
LEGEND |= {"bgcolor": CLEAR, "font": _font("ink")}
LEGEND_LINE = {"full": 120, "half": 52, "third": 36}
"""Characters of a legend that fit into one line, by the chart's width."""
AXIS: Plotly = {
    "gridcolor": "var(--grid)",
    "linecolor": "var(--line)",
    "zerolinecolor": "var(--line)",
}
AXIS |= {"tickfont": _font("muted", 11), "automargin": True, "exponentformat": "e"}
ZERO_LINE = {"zerolinewidth": 2, "zerolinecolor": "var(--muted)"}
GROUND: Plotly = {"opacity": 0.13, "line": {"width": 0}, "layer": "below"}
ABOVE_PLOT = {"yref": "paper", "xanchor": "center", "yanchor": "bottom"}
"""Where the name of a shade stands: no bar lies on it."""
ON_PAPER = {"xref": "paper", "yref": "paper"}
HEAT: Plotly = {"type": "heatmap", "hovertemplate": "%{text}<extra></extra>"}
HEAT |= {"hoverongaps": False, "showscale": False}
HEAT |= {"colorscale": [[n / 3, f"var(--heat-{n})"] for n in range(4)], "xgap": 2, "ygap": 2}
NO_WORDS = {"hoverinfo": "skip"}


def plotly_figure(chart: Chart) -> Plotly:
    """`{"data": [...], "layout": {...}}`."""
    data: Traces = []
    for mark in chart.marks:
        data += _traces(mark, chart)
    names = [trace["name"] for trace in data if trace.get("name") and trace.get("showlegend", True)]
    legend = len(names) > 1 if chart.legend is None else chart.legend
    lines = (
        min(3, 1 + sum(len(name) + 9 for name in names) // LEGEND_LINE[chart.width])
        if legend
        else 0
    )
    titles = []
    for shade in chart.shades:
        if shade.text:
            titles.append(
                Note(text=shade.text, x=(shade.start + shade.end) / 2, y=1, more=ABOVE_PLOT)
            )
    above = 18 if titles else 0
    margin = {"l": 12, "r": 16 + _right_of_plot(chart), "t": 12 + 22 * lines + above, "b": 12}
    layout = LAYOUT | {"height": chart.height, "margin": margin, "showlegend": legend}
    layout |= {"xaxis": _axis(chart.x), "yaxis": _axis(chart.y)}
    layout["shapes"] = [*map(_shade, chart.shades), *map(_rule, chart.rules)]
    layout["annotations"] = [*map(_note, chart.notes), *map(_note, titles)]
    if legend:
        layout["legend"] = LEGEND | {"y": 1.02 + above / max(chart.height - 80, 1)}
    if chart.y.names:  # what the page shows on a phone
        layout["meta"] = {"narrow": [plain(ellipsize_middle(name, 17)) for name in chart.y.names]}
    return {"data": data, "layout": layout | dict(chart.layout)}


def _right_of_plot(chart: Chart) -> int:
    """Pixels that notes right of the plot take."""
    longest = 0
    for note in chart.notes:
        if note.x == 1.0 and note.more.get("xanchor") == "left":
            longest = max(longest, len(note.text))
    return 8 * longest


def _axis(axis: Axis) -> Plotly:
    title = {"text": plain(axis.title), "standoff": 8, "font": _font("muted")}
    layout: Plotly = AXIS | {"title": title, "zeroline": axis.zero}
    if axis.zero:
        layout |= ZERO_LINE
    if axis.log:
        layout["type"] = "log"
    if axis.range is not None:
        layout["range"] = list(map(math.log10, axis.range) if axis.log else axis.range)
    if axis.from_zero:
        layout["rangemode"] = "tozero"
    if axis.names:
        layout |= {"range": [len(axis.names) - 0.4, -0.6], "fixedrange": True, "ticklen": 4}
    ticks = list(enumerate(axis.names)) or axis.ticks
    if ticks:
        layout["tickvals"] = [at for at, _ in ticks]
        layout["ticktext"] = [plain(ellipsize_middle(text, axis.length)) for _, text in ticks]
    return layout | dict(axis.more)


def _rule(rule: Rule) -> Plotly:
    along, across, at = ("y", "x", rule.x) if rule.x is not None else ("x", "y", rule.y)
    line = {"color": f"var(--{rule.colour})", "width": 1.3, "dash": rule.dash}
    ends = {f"{across}0": at, f"{across}1": at, f"{along}0": 0, f"{along}1": 1}
    return {"type": "line", f"{along}ref": "paper", "line": line} | ends


def _shade(shade: Shade) -> Plotly:
    ends = {"x0": shade.start, "x1": shade.end, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "rect", "fillcolor": f"var(--{shade.colour})"} | GROUND | ends


def _note(note: Note) -> Plotly:
    text = {"text": plain(note.text), "showarrow": False, "font": _font(note.colour)}
    return (ON_PAPER if note.paper else {}) | {"x": note.x, "y": note.y} | text | dict(note.more)


def _traces(mark: Mark, chart: Chart) -> Traces:
    rows = []
    for row in chart.rows if mark.rows is None else mark.rows:
        lacks_a_place = mark.kind not in ("curves", "heat") and None in (
            row.get(mark.x),
            row.get(mark.y),
        )
        if mark.where.items() <= row.items() and not lacks_a_place:
            rows.append(row)
    if not rows:
        return []
    draw = {"curves": _curves, "heat": _heat, "band": _band}.get(mark.kind, _cartesian)
    traces = draw(mark, chart, rows)
    for trace in traces:
        if mark.name and "name" not in trace:
            trace["name"] = plain(ellipsize_middle(mark.name, 34))
        if not mark.legend or not trace.get("name"):
            trace["showlegend"] = False
        if mark.opacity != 1:
            trace["opacity"] = mark.opacity
        trace |= dict(mark.more)
    return traces


def _each(mark_field: str, rows: Rows) -> Any:
    """A field that is one for all, or each row's own."""
    return (
        [row.get(mark_field[1:], "") for row in rows] if mark_field.startswith("@") else mark_field
    )


def _colour(mark: Mark, rows: Rows) -> Any:
    colour = _each(mark.colour, rows)
    return (
        f"var(--{colour})"
        if isinstance(colour, str)
        else [f"var(--{c or 'accent'})" for c in colour]
    )


def _hover(mark: Mark, chart: Chart, rows: Rows) -> Plotly:
    """What the table says of each row."""
    in_table = set(map(id, chart.rows))
    if in_table.isdisjoint(map(id, rows)):
        return NO_WORDS
    texts = [_hover_text(mark, chart, row) if id(row) in in_table else "" for row in rows]
    return {"hovertext": texts, "hoverinfo": "text"}


def _hover_text(mark: Mark, chart: Chart, row: Row) -> str:
    head = plain_text(chart.columns[0].cell(row), below=" ")
    name = (
        f"{plain(mark.name)}: "
        if mark.name and mark.name not in head and mark.kind == "bars"
        else ""
    )
    lines = [f"<b>{name}{plain(head)}</b>"]
    for column in chart.columns[1:]:
        if text := plain_text(column.cell(row), below=" "):
            lines.append(f"{plain(plain_text(column.title))}: {plain(text)}")
    return "<br>".join(lines)


def _error(values: Sequence[Any], colour: Any, thickness: float) -> Plotly | None:
    """Interval bars; None where no value has an interval."""
    below, above, known = [], [], False
    for value in values:
        low, high = value.reach() if isinstance(value, Value) else (0.0, 0.0)
        below.append(low)
        above.append(high)
        known |= isinstance(value, Value) and (value.low, value.high) != (None, None)
    if not thickness or not known:
        return None
    tint = colour if isinstance(colour, str) else "var(--ink)"
    bars = {"type": "data", "symmetric": False, "color": tint, "thickness": thickness, "width": 3}
    return bars | {"arrayminus": below, "array": above}


def _cartesian(mark: Mark, chart: Chart, rows: Rows) -> Traces:
    colour = _colour(mark, rows)
    bars = mark.kind in ("bars", "columns")
    trace = _bars(mark, colour) if bars else _points(mark, rows, colour)
    for axis, key in (("x", mark.x), ("y", mark.y)):
        values = [row[key] for row in rows]
        trace[axis] = list(map(_plotted, values))
        error = _error(values, "var(--ink)" if bars else colour, mark.bars)
        if error is not None:
            trace[f"error_{axis}"] = error
    return [trace | _hover(mark, chart, rows)]


def _bars(mark: Mark, colour: Any) -> Plotly:
    trace: Plotly = {"type": "bar", "marker": {"color": colour, "cornerradius": 3}}
    if mark.kind != "columns":
        trace["orientation"] = "h"
    return trace


def _points(mark: Mark, rows: Rows, colour: Any) -> Plotly:
    lines = "lines" if mark.kind == "line" else ""
    modes = [lines, "markers" if mark.markers or not lines else ""]
    trace: Plotly = {"type": "scatter", "mode": "+".join(filter(None, modes))}
    trace["line"] = {"color": colour, "width": mark.width, "dash": mark.dash}
    trace["marker"] = {
        "size": mark.size,
        "symbol": _each(mark.symbol, rows),
        "line": {"color": colour, "width": 2},
    }
    trace["marker"]["color"] = "var(--surface)" if mark.hollow else colour
    return trace


def _plotted(value: Any) -> Any:
    """A number as it is drawn, None for a gap; words of a category stay."""
    if isinstance(value, str):
        return plain(value)
    number = finite(value.value if isinstance(value, Value) else value)
    return None if number is None else rounded(number)


def _curves(mark: Mark, chart: Chart, rows: Rows) -> Traces:
    """A trace a row: its lists, thinned; a long one pale with its trailing mean above, unless the
    row has `markers`."""
    traces = []
    for row in rows:
        line = {"color": f"var(--{row.get('colour', mark.colour)})", "width": mark.width}
        line["dash"] = row.get("dash", mark.dash)
        xs, ys = list(row[mark.x]), list(map(finite, row[mark.y]))
        if row.get("smooth") and len(xs) >= SMOOTHED_FROM:
            pale = {
                "type": "scatter",
                "mode": "lines",
                "name": "",
                "showlegend": False,
                "opacity": 0.3,
            }
            x, y = thin(xs, ys)
            traces.append(pale | NO_WORDS | {"x": x, "y": y, "line": line | {"width": 1}})
            ys = smooth(ys, max(5, len(xs) // 40))
        x, y = thin(xs, ys)
        name = str(row.get("name", mark.name))
        mode = "lines+markers" if row.get("markers") else "lines"
        trace = {
            "type": "scatter",
            "mode": mode,
            "x": x,
            "y": y,
            "line": line,
            "opacity": mark.opacity,
        }
        trace["name"] = plain(ellipsize_middle(str(row.get("legend", name)), 34))
        trace["marker"] = {"size": row.get("size", 5), "symbol": row.get("symbol", "circle")}
        hover = {"hovertemplate": f"{plain(ellipsize_middle(name, 34))} %{{y:.5g}}<extra></extra>"}
        traces.append(trace | (hover if mark.rows is None else NO_WORDS))
    return traces


def _band(mark: Mark, chart: Chart, rows: Rows) -> Traces:
    """A pale area between the ends of the intervals; nothing where one has none."""
    lows, highs = ([getattr(row[mark.y], end) for row in rows] for end in ("low", "high"))
    if any(finite(end) is None for end in (*lows, *highs)):
        return []
    line = {"width": 0, "color": f"var(--{mark.colour})"}
    edge = {
        "type": "scatter",
        "mode": "lines",
        "line": line,
        "showlegend": False,
        "name": "",
    } | NO_WORDS
    edge["x"] = [_plotted(row[mark.x]) for row in rows]
    fill = {
        "fill": "tonexty",
        "fillcolor": f"var(--{mark.colour})26",
    }  # two digits of opacity after #rrggbb
    return [edge | {"y": lows}, edge | {"y": highs} | fill]


def _heat(mark: Mark, chart: Chart, rows: Rows) -> Traces:
    """A row of cells each: lists of shades under `y`, of words under "texts"."""
    places = {"x": list(range(len(rows[0][mark.y]))), "y": list(range(len(rows)))}
    shades = [list(map(_plotted, row[mark.y])) for row in rows]
    return [HEAT | places | {"z": shades, "text": [list(map(plain, row["texts"])) for row in rows]}]
