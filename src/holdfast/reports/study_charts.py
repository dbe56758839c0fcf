"""Plots of a trade-off study: the frontier of every pair of measures, gains against each varied number, and who worked
on what when.

A frontier plot has the source across and the target up, both the metric itself in its unit; an arrow says where better
lies. Bars are the intervals of the paired change (seeds and samples), drawn around the trial's value. Names beside
points are placed here, so that none covers another: a name for which there is no room is left to the hover text and the
table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.study import Objective, StudyRecord
from holdfast.reports.figures import decimals_for, duration, number, plural, significant
from holdfast.reports.legacy_charts import LEGEND, Chart, axis, layout, plain, shorten
from holdfast.reports.markup import Column
from holdfast.reports.study_figures import (
    StudyCurve,
    TrialFigures,
    covered,
    direction,
    figure,
    gain_interval,
    gain_text,
    long_name,
    method_title,
    moment,
    shown_params,
    study_curves,
)
from holdfast.statistics.gains import Gain, mean_gain
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import Selection

COLOURS = ("accent", "second", "good", "third", "fourth")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot")
MANY = 60
"""With more points than this, bars are faint and curves unnamed."""
MOST_PARAMETERS = 6
"""Varied numbers that get panels."""
MOST_LANES = 40
"""Workers that get a lane."""


def kind_styles(kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Kind -> (colour, symbol), the same on every plot of a page."""
    others = [k for k in dict.fromkeys(kinds) if k != "direct"]
    styles = {k: (f"var(--{COLOURS[i % 5]})", SYMBOLS[(i + i // 5) % 5]) for i, k in enumerate(others)}
    return styles | {"direct": ("var(--bad)", "x")}


# ------------------------------------------------------------------------------------------------------------ frontier


def frontier_chart(
    record: StudyRecord,
    trials: Sequence[TrialFigures],
    pair: tuple[Objective, Objective],
    chosen: Selection | None,
    *,
    wide: bool = True,
) -> Chart | None:
    """One pair of measures, target up and source across; None where no whole trial has both.

    Args:
        record: the study.
        trials: figures of all its trials.
        pair: (target, source).
        chosen: the selection whose trial gets a ring.
        wide: whether the plot has the page's width, so that there is room for names.
    """
    up, across = pair
    gains: dict[int, tuple[Gain, Gain]] = {}
    for t in trials:
        if t.whole:
            s, g = mean_gain(t.trial, across, seeds=record.seeds), mean_gain(t.trial, up, seeds=record.seeds)
            if s is not None and g is not None:
                gains[t.trial.number] = (s, g)
    if not gains:
        return None
    drawn = [t for t in trials if t.trial.number in gains]
    start = next((s.before, g.before) for s, g in gains.values())
    numbers = [*gains, None]
    places = pareto([*((s.value, g.value) for s, g in gains.values()), (0.0, 0.0)])
    front = [numbers[i] for i in places]
    box = _Box(
        start,
        gains,
        {n for n in front if n is not None} | {t.trial.number for t in drawn if t.trial.kind == "direct"},
        wide=wide,
    )

    styles, curves = kind_styles([t.trial.kind for t in trials]), study_curves(drawn)
    ring = chosen is not None and chosen.chosen in gains
    named = _names(
        curves, gains, start, box, chosen.chosen if chosen is not None else None, many=len(drawn) > MANY or not wide
    )
    data: list[dict[str, Any]] = [_front(front, gains, start)] if len(front) > 1 else []
    shown: set[str] = set()
    split = {c.kind for c in curves if sum(o.kind == c.kind and o.joined for o in curves) in (2, 3, 4)}
    lines: dict[str, int] = {}
    for curve in curves:
        dash = DASHES[lines.get(curve.kind, 0) % 4]
        lines[curve.kind] = lines.get(curve.kind, 0) + curve.joined
        name = curve.name if curve.kind in split and curve.joined else method_title(curve.kind)
        more: dict[str, Any] = {
            "name": name,
            "ringed": chosen.chosen if chosen is not None else None,
            "legend": name not in shown,
            "faint": len(drawn) > MANY,
        }
        data.append(_trace(curve, gains, styles[curve.kind], dash, named, **more))
        shown.add(name)
    if ring:
        assert chosen is not None
        assert chosen.chosen is not None
        text = next(point_name(c, t) for c in curves for t in c.members if t.trial.number == chosen.chosen)
        data.append(_ring(gains[chosen.chosen], chosen.rule, text, named.get(chosen.chosen)))
    data.append(_start(start, gains, named.get("start", "top center")))

    height = 540 if wide else 340
    titles = [(plain(shorten(o.label, 60 if wide else 34)), f"({plain(o.unit)}, {direction(o)})") for o in (across, up)]
    annotations = [_arrow(right=across.higher_is_better, up=up.higher_is_better)]
    figure_ = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("<br>".join(titles[0]), zeroline=False, range=box.x),
            yaxis=axis(" ".join(titles[1]), zeroline=False, range=box.y),
            annotations=annotations,
            showlegend=wide,  # the plots beside the first one have its colours
            legend=LEGEND,
            margin={"l": 12, "r": 20, "t": 40 if wide else 16, "b": 12},
        ),
    }
    caption = (
        "Points and bars as above."
        if not wide
        else "Bars: 95 % intervals of the change from the start. Broad line: what no other trial beats on both sides."
    )
    if wide and any(c.joined for c in curves):
        caption += " Curves join trials of one method in the order of its strength."
    caption = f"{caption} {_outside(box.outside)}".rstrip()
    rows = [["start", "", number(start[1], 4), "", number(start[0], 4), ""]]
    for t in drawn:
        s, g = gains[t.trial.number]
        rows.append(
            [
                t.trial.label,
                str(t.trial.number),
                _value(g),
                covered(gain_text(g), gain_interval(g)),
                _value(s),
                covered(gain_text(s), gain_interval(s)),
            ]
        )
    columns = [Column(title="Label"), Column(title="Trial", numeric=True)]
    columns += [
        Column(title=title, numeric=True)
        for title in (f"Target ({up.unit})", "Gain", f"Source ({across.unit})", "Gain")
    ]
    return Chart(
        title=f"{up.label} against {across.label}",
        figure=figure_,
        caption=caption,
        columns=columns,
        rows=rows,
        height=height,
    )


class _Box:
    """The ranges of both axes: around the start, direct fine-tuning and the frontier; what lies far off does not
    stretch them."""

    def __init__(
        self, start: tuple[float, float], gains: Mapping[int, tuple[Gain, Gain]], core: set[int], *, wide: bool
    ) -> None:
        self.pixels = (960.0 if wide else 420.0, 390.0 if wide else 260.0)
        values = {n: (s.after, g.after) for n, (s, g) in gains.items()}
        self.outside: list[int] = []
        limits: list[tuple[float, float]] = []
        for side in (0, 1):
            middle = [start[side], *(values[n][side] for n in core)]
            low, high = min(middle), max(middle)
            spread = (
                (high - low)
                or max((abs(v[side] - start[side]) for v in values.values()), default=0.0)
                or abs(start[side])
                or 1.0
            )
            limits.append((low - spread, high + spread))
            self.outside += [n for n, v in values.items() if not limits[-1][0] <= v[side] <= limits[-1][1]]
        self.outside = sorted(set(self.outside))
        inside = [n for n in values if n not in self.outside]
        self.x, self.y = (self._range(side, start, [gains[n][side] for n in inside], limits[side]) for side in (0, 1))

    def _range(
        self, side: int, start: tuple[float, float], gains: Sequence[Gain], limit: tuple[float, float]
    ) -> list[float]:
        ends = [start[side], *(v for g in gains for v in (g.interval_after or (g.after, g.after)))]
        low, high = max(min(ends), limit[0]), min(max(ends), limit[1])
        margin = 0.07 * ((high - low) or 1.0)
        return [low - margin, high + margin]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """In pixels from the lower left corner."""
        return (
            (x - self.x[0]) / (self.x[1] - self.x[0]) * self.pixels[0],
            (y - self.y[0]) / (self.y[1] - self.y[0]) * self.pixels[1],
        )


_SIDES = (
    "top right",
    "top left",
    "bottom right",
    "bottom left",
    "top center",
    "bottom center",
    "middle right",
    "middle left",
)


def _names(
    curves: Sequence[StudyCurve],
    gains: Mapping[int, tuple[Gain, Gain]],
    start: tuple[float, float],
    box: _Box,
    chosen: int | None,
    *,
    many: bool,
) -> dict[int | str, str]:
    """Trial (or "start") -> where its name goes; trials without room for one are not among them.

    Greedy: the start, direct fine-tuning and the chosen trial first, then along the curves; a name may cover no point
    and no other name.
    """
    points = {n: box.place(s.after, g.after) for n, (s, g) in gains.items()}
    dots = [(x - 7, y - 7, x + 7, y + 7) for x, y in [*points.values(), box.place(*start)]]
    taken: list[tuple[float, float, float, float]] = []
    texts = {t.trial.number: name for c in curves for t in c.members if (name := point_name(c, t))}
    direct = [t.trial.number for c in curves if c.kind == "direct" for t in c.members]
    order = [*direct, *([chosen] if chosen in texts else []), *([] if many else texts)]
    found: dict[int | str, str] = {}
    wanted: list[tuple[int | str, str, tuple[float, float]]] = [("start", "start", box.place(*start))]
    wanted += [(n, texts[n], points[n]) for n in dict.fromkeys(order) if n in texts]
    bars = [b for pair in gains.values() for b in _bar_boxes(pair, box)]
    for key, text, (x, y) in wanted:
        others = [d for d in dots if not (d[0] <= x <= d[2] and d[1] <= y <= d[3])]
        for side, in_the_way in [
            *((s, bars) for s in _SIDES),
            *((s, []) for s in _SIDES),
        ]:  # on a bar only where there is no other place
            label = _label_box(x, y, len(text) * 6.2 + 4, side, 10 if key == chosen else 5)
            within = label[0] >= 0 and label[1] >= 0 and label[2] <= box.pixels[0] and label[3] <= box.pixels[1]
            if within and not any(_overlap(label, o) for o in (*others, *taken, *in_the_way)):
                found[key] = side
                taken.append(label)
                break
    return found


def _bar_boxes(pair: tuple[Gain, Gain], box: _Box) -> list[tuple[float, float, float, float]]:
    """The pixels of both interval bars."""
    (source, target), found = pair, []
    if source.interval_after is not None:
        (left, y), (right, _) = (box.place(v, target.after) for v in source.interval_after)
        found.append((left, y - 1, right, y + 1))
    if target.interval_after is not None:
        (x, bottom), (_, top) = (box.place(source.after, v) for v in target.interval_after)
        found.append((x - 1, bottom, x + 1, top))
    return found


def point_name(curve: StudyCurve, t: TrialFigures) -> str:
    """What stands beside a point: the strength where a legend names the rest, "direct" for that, the label of what
    stands alone, or its number."""
    if curve.kind == "direct":
        return "direct"
    if curve.joined:
        return curve.short(t.trial)
    return t.trial.label if len(t.trial.label) <= 24 else f"trial {t.trial.number}"


def _label_box(x: float, y: float, width: float, side: str, radius: float) -> tuple[float, float, float, float]:
    vertical, _, horizontal = side.partition(" ")
    left = {"right": x + radius, "left": x - radius - width, "center": x - width / 2}[horizontal]
    if vertical == "middle":
        left += radius if horizontal == "right" else -radius
    bottom = {"top": y + radius, "bottom": y - 14 - radius, "middle": y - 7}[vertical]
    return (left, bottom, left + width, bottom + 14)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _trace(
    curve: StudyCurve,
    gains: Mapping[int, tuple[Gain, Gain]],
    style: tuple[str, str],
    dash: str,
    named: Mapping[int | str, str],
    *,
    name: str,
    ringed: int | None,
    legend: bool,
    faint: bool,
) -> dict[str, Any]:
    colour, symbol = style
    pairs = [(t, *gains[t.trial.number]) for t in curve.members]
    texts = [
        plain(point_name(curve, t)) if t.trial.number in named and t.trial.number != ringed else ""
        for t in curve.members
    ]
    lines = "lines+" if curve.joined and len(pairs) > 1 else ""
    return {
        "type": "scatter",
        "mode": f"{lines}markers+text" if any(texts) else f"{lines}markers",
        "name": plain(name),
        "legendgroup": plain(name),
        "showlegend": legend,
        "x": [s.after for _, s, _ in pairs],
        "y": [g.after for _, _, g in pairs],
        "text": texts,
        "textposition": [named.get(t.trial.number, "top right") for t in curve.members],
        "textfont": {"size": 11, "color": "var(--muted)"},
        "meta": "named in legend",
        "error_x": _bars([s for _, s, _ in pairs], colour, faint=faint),
        "error_y": _bars([g for _, _, g in pairs], colour, faint=faint),
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"size": 8 if faint else 10, "color": colour, "symbol": symbol},
        "hovertemplate": [
            f"{hover(t)}<br>{_hover_side('source', s)}<br>{_hover_side('target', g)}<extra></extra>"
            for t, s, g in pairs
        ],
    }


def hover(t: TrialFigures) -> str:
    """The trial and its parameters, for hover text."""
    params = "".join(f"<br>{plain(long_name(k))} {plain(_setting(v))}" for k, v in shown_params(t.trial).items())
    return f"<b>trial {t.trial.number}</b> {plain(shorten(t.trial.label, 60))}{params}"


def _setting(value: Any) -> str:
    return shorten(significant(value) if isinstance(value, (int, float)) else str(value), 40)


def _hover_side(name: str, gain: Gain) -> str:
    return f"{name} {_value(gain)} (gain {covered(gain_text(gain), gain_interval(gain))})"


def _value(gain: Gain) -> str:
    return number(gain.after, decimals_for(gain.interval))


def _bars(gains: Sequence[Gain], colour: str, *, faint: bool) -> dict[str, Any]:
    half = [0.0 if math.isnan(g.half) else g.half for g in gains]
    return {
        "type": "data",
        "array": half,
        "color": colour,
        "thickness": 0.6 if faint else 1.2,
        "width": 0 if faint else 3,
    }


def _front(
    front: Sequence[int | None], gains: Mapping[int, tuple[Gain, Gain]], start: tuple[float, float]
) -> dict[str, Any]:
    at = [start if n is None else (gains[n][0].after, gains[n][1].after) for n in front]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto frontier",
        "x": [p[0] for p in at],
        "y": [p[1] for p in at],
        "line": {"color": "var(--muted)", "width": 7},
        "opacity": 0.22,
        "hoverinfo": "skip",
    }


def _ring(pair: tuple[Gain, Gain], rule: str, text: str, side: str | None) -> dict[str, Any]:
    """Around the chosen trial. It has the trial's name too, since plotly keeps names clear of the marker they belong
    to."""
    return {
        "type": "scatter",
        "mode": "markers+text" if side else "markers",
        "name": f"chosen ({rule})",
        "x": [pair[0].after],
        "y": [pair[1].after],
        "text": [plain(text)],
        "textposition": side or "top right",
        "textfont": {"size": 11, "color": "var(--ink)"},
        "meta": "named in legend",
        "marker": {
            "size": 22,
            "symbol": "circle-open",
            "color": "var(--ink)",
            "line": {"width": 2.5, "color": "var(--ink)"},
        },
        "hoverinfo": "skip",
    }


def _start(start: tuple[float, float], gains: Mapping[int, tuple[Gain, Gain]], side: str) -> dict[str, Any]:
    digits = [decimals_for(next(iter(gains.values()))[i].interval) for i in (0, 1)]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "start",
        "x": [start[0]],
        "y": [start[1]],
        "text": ["start"],
        "textposition": side,
        "textfont": {"size": 12, "color": "var(--ink)"},
        "meta": "named in legend",
        "marker": {"size": 15, "symbol": "star", "color": "var(--ink)"},
        "hovertemplate": f"<b>start</b><br>source {number(start[0], digits[0])}<br>target "
        f"{number(start[1], digits[1])}<extra></extra>",
    }


def _arrow(*, right: bool, up: bool) -> dict[str, Any]:
    """In the corner of the worst, pointing away from it: that is where the fewest trials lie."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.2 if right else 0.8,
        "xanchor": "left" if right else "right",
        "y": 0.15 if up else 0.85,
        "ax": -34 if right else 34,
        "ay": 30 if up else -30,
        "text": "better",
        "showarrow": True,
        "arrowhead": 2,
        "arrowwidth": 2,
        "arrowcolor": "var(--good)",
        "font": {"size": 13, "color": "var(--good)"},
    }


# ---------------------------------------------------------------------------------------------------------- parameters


def varied_numbers(trials: Sequence[TrialFigures]) -> list[str]:
    """Keys of the varied parameters with at least three different numbers among the whole trials, those of most trials
    first."""
    values: dict[str, list[float]] = {}
    for t in trials:
        for key, value in t.trial.params.items() if t.whole else ():
            if (read := figure(value)) is not None:
                values.setdefault(key, []).append(read)
    wanted = [k for k, v in values.items() if len(set(v)) >= 3]
    return sorted(wanted, key=lambda k: -len(values[k]))


def parameter_charts(record: StudyRecord, trials: Sequence[TrialFigures]) -> list[tuple[Chart, Chart]]:
    """(target gain, source gain) against each varied number, logarithmic where its values span more than a factor of
    ten."""
    styles = kind_styles([t.trial.kind for t in trials])
    return [
        (_parameter(key, record.target, trials, styles), _parameter(key, record.source, trials, styles))
        for key in varied_numbers(trials)[:MOST_PARAMETERS]
    ]


def _parameter(
    key: str, side: Objective, trials: Sequence[TrialFigures], styles: Mapping[str, tuple[str, str]]
) -> Chart:
    found = [
        (t, value, t.target if side.side == "target" else t.source)
        for t in trials
        if t.whole and (value := figure(t.trial.params.get(key))) is not None
    ]
    points = [(t, value, gain) for t, value, gain in found if gain is not None]
    values = sorted({value for _, value, _ in points})
    log = values[0] > 0 and values[-1] / values[0] > 10
    data = []
    for kind in dict.fromkeys(t.trial.kind for t, _, _ in points):
        mine = sorted(((t, v, g) for t, v, g in points if t.trial.kind == kind), key=lambda p: p[1])
        colour, symbol = styles[kind]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(method_title(kind)),
                "x": [v for _, v, _ in mine],
                "y": [g.value for _, _, g in mine],
                "error_y": _bars([g for _, _, g in mine], colour, faint=len(points) > MANY),
                "marker": {"size": 7 if len(points) > MANY else 9, "color": colour, "symbol": symbol},
                "hovertemplate": [
                    f"{hover(t)}<br>gain {covered(gain_text(g), gain_interval(g))}<extra></extra>" for t, _, g in mine
                ],
            }
        )
    limits, outside = _limits([(t.trial.number, g) for t, _, g in points])
    ticks: dict[str, Any] = {"type": "log"} if log else {}
    if len(values) <= 7:
        ticks |= {"tickvals": values, "ticktext": [significant(v) for v in values]}
    elif log:
        powers = range(math.floor(math.log10(values[0])), math.ceil(math.log10(values[-1])) + 1)
        steps = (1, 3) if len(powers) <= 4 else (1,)
        marks = [step * 10.0**power for power in powers for step in steps]
        ticks |= {"tickvals": marks, "ticktext": [significant(v) for v in marks]}
    height = 280
    name = long_name(key)
    shape = layout(
        height,
        xaxis=axis(plain(name), zeroline=False, **ticks),
        yaxis=axis(f"gain ({plain(side.unit)}) → better", zeroline=True, zerolinewidth=2, **limits),
    )
    if len(data) > 1:
        shape |= {"showlegend": True, "legend": LEGEND, "margin": {"l": 12, "r": 12, "t": 30, "b": 12}}
    columns = [
        Column(title="Trial"),
        Column(title=name, numeric=True),
        Column(title=f"Gain ({side.unit})", numeric=True),
    ]
    rows = [
        [f"{t.trial.number}", significant(v), covered(gain_text(g), gain_interval(g))]
        for t, v, g in sorted(points, key=lambda p: p[1])
    ]
    title = f"{side.side.capitalize()} against {name}"
    return Chart(
        title=title,
        figure={"data": data, "layout": shape},
        caption=_outside(outside),
        columns=columns,
        rows=rows,
        height=height,
    )


def _limits(gains: Sequence[tuple[int, Gain]]) -> tuple[dict[str, Any], list[int]]:
    """A range without the trials that lie far off from nearly all others, and those trials; no range where there are
    none."""
    values = sorted(g.value for _, g in gains)
    low, high = values[len(values) // 10], values[-1 - len(values) // 10]
    spread = 2 * (high - low)
    outside = [n for n, g in gains if spread > 0 and not low - spread <= g.value <= high + spread]
    if not outside:
        return {}, []
    ends = [v for n, g in gains if n not in outside for v in (g.interval or (g.value, g.value))]
    bottom, top = max(min(ends), low - spread), min(max(ends), high + spread)
    return {"range": [bottom - 0.06 * (top - bottom), top + 0.06 * (top - bottom)]}, sorted(outside)


def _outside(numbers: Sequence[int]) -> str:
    """Which trials a plot does not show."""
    if not numbers:
        return ""
    more = "…" if len(numbers) > 8 else ""
    return f"Outside the plot: {'trial' if len(numbers) == 1 else 'trials'} {', '.join(map(str, numbers[:8]))}{more}."


# ---------------------------------------------------------------------------------------------------------------- time


STATE_COLOURS = {"complete": "accent", "pruned": "second", "failed": "bad", "lost": "flat", "running": "good"}


def time_chart(record: StudyRecord) -> Chart | None:
    """Trials over time, one lane a worker; None where no trial lasted any time that is known."""
    known = [(t, begun) for t in record.trials if (begun := moment(t.started)) is not None]
    if not known:
        return None
    first = min(begun for _, begun in known)
    ends = [moment(t.finished) for t, _ in known] + [moment(record.finished)]
    latest = max([*(e for e in ends if e is not None), *(begun for _, begun in known)])
    again = {t.number: begun for t, begun in known}
    workers = sorted({t.worker or "unknown" for t, _ in known})[:MOST_LANES]
    spans = []
    for t, begun in known:
        end = moment(t.finished) or (again.get(t.continued_by) if t.continued_by is not None else None) or latest
        if (t.worker or "unknown") in workers:
            spans.append((t, (begun - first).total_seconds(), max(0.0, (end - begun).total_seconds())))
    whole = max((at + lasted for _, at, lasted in spans), default=0.0)
    if whole == 0:
        return None
    size, unit = next(
        (s, u)
        for s, u in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
        if whole >= 3 * s or s == 1.0
    )
    data = []
    for state in dict.fromkeys(t.state for t, _, _ in spans):
        mine = [(t, at, lasted) for t, at, lasted in spans if t.state == state]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(state),
                "y": [plain(shorten(t.worker or "unknown", 22)) for t, _, _ in mine],
                "x": [max(lasted, 0.006 * whole) / size for _, _, lasted in mine],  # what just began shows as a stroke
                "base": [at / size for _, at, _ in mine],
                "marker": {
                    "color": f"var(--{STATE_COLOURS.get(state, 'flat')})",
                    "line": {"width": 1, "color": "var(--surface)"},
                },
                "hovertemplate": [
                    f"<b>trial {t.number}</b> {plain(shorten(t.label, 60))}<br>{plain(state)}, "
                    f"{duration(lasted)}<extra></extra>"
                    for t, _, lasted in mine
                ],
            }
        )
    height = 110 + 30 * len(workers)
    shown = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(f"{unit} since the first trial began", zeroline=False, rangemode="tozero"),
            yaxis=axis(
                "",
                type="category",
                categoryorder="array",
                categoryarray=[plain(shorten(w, 22)) for w in reversed(workers)],
                fixedrange=True,
            ),
            barmode="overlay",
            bargap=0.3,
            showlegend=len(data) > 1,
            legend=LEGEND,
            margin={"l": 12, "r": 12, "t": 34, "b": 12},
        ),
    }
    busy, overhead = (
        math.fsum(s for t in record.trials for s in (r.seconds for r in t.runs)),
        math.fsum(t.overhead for t in record.trials),
    )
    caption = f"{plural(len(workers), 'worker')}, {duration(busy)} in finished runs"
    caption += (
        f", {duration(overhead)} on the study's bookkeeping ({100 * overhead / busy:.1f} %)." if busy > 0 else "."
    )
    columns = [
        Column(title="Worker"),
        *(Column(title=title, numeric=True) for title in ("Trials", "Busy", "Share of the time")),
    ]
    rows = []
    for worker in workers:
        lasted = [d for t, _, d in spans if (t.worker or "unknown") == worker]
        rows.append([worker, str(len(lasted)), duration(math.fsum(lasted)), f"{100 * math.fsum(lasted) / whole:.0f} %"])
    return Chart(title="Trials over time", figure=shown, caption=caption, columns=columns, rows=rows, height=height)
