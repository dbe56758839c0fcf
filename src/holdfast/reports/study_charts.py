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
from holdfast.reports.charts import (
    COLOURS,
    DASHES,
    SYMBOLS,
    Axis,
    Chart,
    Col,
    Mark,
    Note,
    Value,
    log_ticks,
    plain,
    ticks_at,
)
from holdfast.reports.format import decimals_for, direction, duration, number, plural, shorten, significant
from holdfast.reports.methods import kind_title
from holdfast.reports.study_figures import (
    StudyCurve,
    TrialFigures,
    covered,
    figure,
    gain_texts,
    long_name,
    moment,
    shown_params,
    study_curves,
)
from holdfast.statistics.gains import Gain, mean_gain
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import Selection

MANY = 60
"""With more points than this, bars are faint and curves unnamed."""
MOST_PARAMETERS = 6
"""Varied numbers that get panels."""
MOST_LANES = 40
"""Workers that get a lane."""


def kind_styles(kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Kind -> (colour, symbol), the same on every plot of a page."""
    others = [k for k in dict.fromkeys(kinds) if k != "direct"]
    return {k: (COLOURS[i % 5], SYMBOLS[(i + i // 5) % 5]) for i, k in enumerate(others)} | {"direct": ("bad", "x")}


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
            s, g = (mean_gain(t.trial, o, seeds=record.seeds) for o in (across, up))
            if s is not None and g is not None:
                gains[t.trial.number] = (s, g)
    if not gains:
        return None
    drawn = [t for t in trials if t.trial.number in gains]
    start = next((s.before, g.before) for s, g in gains.values())
    numbers = [*gains, None]
    front = [numbers[i] for i in pareto([*((s.value, g.value) for s, g in gains.values()), (0.0, 0.0)])]
    direct = {t.trial.number for t in drawn if t.trial.kind == "direct"}
    box = _Box(start, gains, {n for n in front if n is not None} | direct, wide=wide)
    ring = chosen.chosen if chosen is not None and chosen.chosen in gains else None
    faint = len(drawn) > MANY
    curves = study_curves(drawn)
    named = _names(curves, gains, start, box, ring, many=faint or not wide)

    digits = [decimals_for(next(iter(gains.values()))[i].interval) for i in (0, 1)]
    rows: list[dict[str, Any]] = [
        {
            "label": "start",
            "trial": "",
            "order": 0,
            "x": Value(value=start[0], text=number(start[0], max(4, digits[0]))),
            "y": Value(value=start[1], text=number(start[1], max(4, digits[1]))),
            "kind": "start",
            "name": "start",
            "side": named.get("start", "top center"),
        }
    ]
    for t, curve, place in ((t, c, place) for place, c in enumerate(curves) for t in c.members):
        n = t.trial.number
        rows.append(
            {
                "label": t.trial.label,
                "trial": str(n),
                "order": 1 + drawn.index(t),
                "x": _around(gains[n][0]),
                "y": _around(gains[n][1]),
                "source gain": covered(*gain_texts(gains[n][0])),
                "target gain": covered(*gain_texts(gains[n][1])),
                "settings": settings_text(t),
                "curve": place,
                "name": point_name(curve, t) if n in named and n != ring else "",
                "ring": point_name(curve, t) if n == ring else None,
                "side": named.get(n, "top right"),
            }
        )
    return Chart(
        title=f"{up.label} against {across.label}",
        rows=rows,
        order="order",
        columns=[
            Col("Label", "label", numeric=False),
            Col("Trial", "trial"),
            Col("Settings", "settings", numeric=False),
            Col(f"Target ({up.unit})", lambda r: r["y"].text),
            Col("Target gain", "target gain"),
            Col(f"Source ({across.unit})", lambda r: r["x"].text),
            Col("Source gain", "source gain"),
        ],
        marks=_frontier_marks(trials, curves, rows, front, gains, start, chosen, ring, faint=faint),
        x=Axis(title=_axis_title(across, 60 if wide else 34, "\n"), range=box.x),
        y=Axis(title=_axis_title(up, 60 if wide else 34, " "), range=box.y),
        notes=[_arrow(right=across.higher_is_better, up=up.higher_is_better)],
        caption=_frontier_caption(curves, box, wide=wide),
        height=540 if wide else 340,
        width="full" if wide else "half",
        legend=wide,  # the plots beside the first one have its colours
    )


def _frontier_caption(curves: Sequence[StudyCurve], box: _Box, *, wide: bool) -> str:
    caption = "Points and bars as above."
    if wide:
        caption = (
            "Bars: 95 % intervals of the change from the start. Broad line: what no other trial beats on both sides."
        )
        if any(c.joined for c in curves):
            caption += " Curves join trials of one method in the order of its strength."
    return f"{caption} {_outside(box.outside)}".rstrip()


def _axis_title(side: Objective, length: int, between: str) -> str:
    return f"{shorten(side.label, length)}{between}({side.unit}, {direction(side.higher_is_better)})"


def _around(gain: Gain) -> Value:
    """The metric itself with the interval of its change."""
    low, high = gain.interval_after or (None, None)
    return Value(value=gain.after, low=low, high=high, text=number(gain.after, decimals_for(gain.interval)))


def _frontier_marks(
    trials: Sequence[TrialFigures],
    curves: Sequence[StudyCurve],
    rows: Sequence[Mapping[str, Any]],
    front: Sequence[int | None],
    gains: Mapping[int, tuple[Gain, Gain]],
    start: tuple[float, float],
    chosen: Selection | None,
    ring: int | None,
    *,
    faint: bool,
) -> list[Mark]:
    styles = kind_styles([t.trial.kind for t in trials])
    marks: list[Mark] = []
    if len(front) > 1:
        at = [start if n is None else (gains[n][0].after, gains[n][1].after) for n in front]
        line = [{"x": x, "y": y} for x, y in at]
        broad: dict[str, Any] = {"opacity": 0.22, "width": 7.0, "markers": False, "colour": "muted"}
        marks.append(Mark(kind="line", rows=line, name="Pareto frontier", **broad))
    split = {c.kind for c in curves if sum(o.kind == c.kind and o.joined for o in curves) in (2, 3, 4)}
    shown: set[str] = set()
    lines: dict[str, int] = {}
    for place, curve in enumerate(curves):
        name = curve.name if curve.kind in split and curve.joined else kind_title(curve.kind)
        colour, symbol = styles[curve.kind]
        dash = DASHES[lines.get(curve.kind, 0) % 4]
        lines[curve.kind] = lines.get(curve.kind, 0) + curve.joined
        texts = any(r.get("curve") == place and r["name"] for r in rows)
        marks.append(
            Mark(
                kind="line" if curve.joined and len(curve.members) > 1 else "points",
                where={"curve": place},
                name=name,
                legend=name not in shown,
                colour=colour,
                symbol=symbol,
                dash=dash,
                size=8 if faint else 10,
                bars=0.6 if faint else 1.2,
                text="name" if texts else "",
                more={"legendgroup": plain(name)},
            )
        )
        shown.add(name)
    if ring is not None and chosen is not None:
        # It has the trial's name too, since plotly keeps names clear of the marker they belong to.
        held = [r | {"x": r["x"].value, "y": r["y"].value} for r in map(dict, rows) if r.get("ring")]
        circle: dict[str, Any] = {"symbol": "circle-open", "colour": "ink", "size": 22.0}
        marks.append(Mark(rows=held, name=f"chosen ({chosen.rule})", text="ring", **circle))
    return [*marks, Mark(where={"kind": "start"}, name="start", colour="ink", symbol="star", size=15, text="name")]


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
    ) -> tuple[float, float]:
        ends = [start[side], *(v for g in gains for v in (g.interval_after or (g.after, g.after)))]
        low, high = max(min(ends), limit[0]), min(max(ends), limit[1])
        margin = 0.07 * ((high - low) or 1.0)
        return (low - margin, high + margin)

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


def settings_text(t: TrialFigures) -> str:
    """A trial's parameters in one line."""
    params = shown_params(t.trial).items()
    return ", ".join(f"{long_name(k)} {_setting(v)}" for k, v in params)


def _setting(value: Any) -> str:
    return shorten(significant(value) if isinstance(value, (int, float)) else str(value), 40)


def _arrow(*, right: bool, up: bool) -> Note:
    """In the corner of the worst, pointing away from it: that is where the fewest trials lie."""
    point = {"xanchor": "left" if right else "right", "ax": -34 if right else 34, "ay": 30 if up else -30}
    head = {"showarrow": True, "arrowhead": 2, "arrowwidth": 2, "arrowcolor": "var(--good)"}
    place = {"x": 0.2 if right else 0.8, "y": 0.15 if up else 0.85}
    return Note(text="better", colour="good", paper=True, more=point | head, **place)


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
    keys = varied_numbers(trials)[:MOST_PARAMETERS]
    return [(_parameter(key, record.target, trials), _parameter(key, record.source, trials)) for key in keys]


def _parameter(key: str, side: Objective, trials: Sequence[TrialFigures]) -> Chart:
    found = [
        (t, value, gain)
        for t in trials
        if t.whole and (value := figure(t.trial.params.get(key))) is not None
        for gain in [t.target if side.side == "target" else t.source]
        if gain is not None
    ]
    values = sorted({value for _, value, _ in found})
    log = values[0] > 0 and values[-1] / values[0] > 10
    rows = []
    for t, value, gain in sorted(found, key=lambda p: p[1]):
        low, high = gain.interval or (None, None)
        text, interval = gain_texts(gain)
        drawn = Value(value=gain.value, low=low, high=high, text=text, interval=interval)
        rows.append(
            {"trial": str(t.trial.number), "x": value, "y": drawn, "kind": t.trial.kind, "label": t.trial.label}
        )
    limits, outside = _limits([(t.trial.number, g) for t, _, g in found])
    ticks = ticks_at(values) if len(values) <= 7 else log_ticks(values[0], values[-1], (1, 3)) if log else []
    name, faint = long_name(key), len(found) > MANY
    styles = kind_styles([t.trial.kind for t in trials])
    return Chart(
        title=f"{side.side.capitalize()} against {name}",
        rows=rows,
        columns=[
            Col("Trial", "trial", numeric=False),
            Col("Label", "label", numeric=False),
            Col(name, "x"),
            Col(f"Gain ({side.unit})", "y"),
        ],
        marks=[
            Mark(
                where={"kind": kind},
                name=kind_title(kind),
                colour=styles[kind][0],
                symbol=styles[kind][1],
                size=7 if faint else 9,
                bars=0.6 if faint else 1.2,
            )
            for kind in dict.fromkeys(t.trial.kind for t, _, _ in found)
        ],
        x=Axis(title=name, log=log, ticks=ticks),
        y=Axis(title=f"gain ({side.unit}) → better", zero=True, range=limits),
        caption=_outside(outside),
        height=280,
        width="half",
    )


def _limits(gains: Sequence[tuple[int, Gain]]) -> tuple[tuple[float, float] | None, list[int]]:
    """A range without the trials that lie far off from nearly all others, and those trials; no range where there are
    none."""
    values = sorted(g.value for _, g in gains)
    low, high = values[len(values) // 10], values[-1 - len(values) // 10]
    spread = 2 * (high - low)
    outside = [n for n, g in gains if spread > 0 and not low - spread <= g.value <= high + spread]
    if not outside:
        return None, []
    ends = [v for n, g in gains if n not in outside for v in (g.interval or (g.value, g.value))]
    bottom, top = max(min(ends), low - spread), min(max(ends), high + spread)
    return (bottom - 0.06 * (top - bottom), top + 0.06 * (top - bottom)), sorted(outside)


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
    known = {t.number: (t, begun) for t in record.trials if (begun := moment(t.started)) is not None}
    if not known:
        return None
    begins = [begun for _, begun in known.values()]
    ends = [moment(t.finished) for t, _ in known.values()] + [moment(record.finished)]
    first, latest = min(begins), max([*(e for e in ends if e is not None), *begins])
    workers = sorted({t.worker or "unknown" for t, _ in known.values()})[:MOST_LANES]
    spans = []
    for t, begun in known.values():
        taken_over = known.get(t.continued_by) if t.continued_by is not None else None
        end = moment(t.finished) or (taken_over[1] if taken_over else latest)
        if (t.worker or "unknown") in workers:
            spans.append((t, (begun - first).total_seconds(), max(0.0, (end - begun).total_seconds())))
    whole = max((at + lasted for _, at, lasted in spans), default=0.0)
    if whole == 0:
        return None
    units = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
    size, unit = next((s, u) for s, u in units if whole >= 3 * s or s == 1.0)
    lanes = {w: shorten(w, 22) for w in workers}
    rows = [
        {
            "trial": f"{t.number}, {shorten(t.label, 60)}",
            "worker": lanes[t.worker or "unknown"],
            "state": t.state,
            "lasted": duration(lasted),
            "x": max(lasted, 0.006 * whole) / size,  # what just began shows as a stroke
            "base": at / size,
        }
        for t, at, lasted in spans
    ]
    busy = math.fsum(r.seconds for t in record.trials for r in t.runs)
    overhead = math.fsum(t.overhead for t in record.trials)
    shares = []
    for worker in workers:
        mine = [d for t, _, d in spans if (t.worker or "unknown") == worker]
        total = math.fsum(mine)
        shares.append(f"{worker}: {plural(len(mine), 'trial')}, {duration(total)} ({100 * total / whole:.0f} %)")
    caption = f"{plural(len(workers), 'worker')}, {duration(busy)} in finished runs"
    caption += f", {duration(overhead)} on the study's bookkeeping ({100 * overhead / busy:.1f} %)" if busy > 0 else ""
    return Chart(
        title="Trials over time",
        heading=False,
        rows=rows,
        columns=[
            Col("Trial", "trial", numeric=False),
            Col("Worker", "worker", numeric=False),
            Col("State", "state", numeric=False),
            Col("Time", "lasted"),
        ],
        marks=[
            Mark(kind="spans", y="worker", where={"state": state}, name=state, colour=STATE_COLOURS.get(state, "flat"))
            for state in dict.fromkeys(t.state for t, _, _ in spans)
        ],
        x=Axis(title=f"{unit} since the first trial began", from_zero=True),
        y=Axis(
            more={
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [lanes[w] for w in reversed(workers)],
                "fixedrange": True,
            }
        ),
        caption=f"{caption}. Busy: {'; '.join(shares)}.",
        height=110 + 30 * len(workers),
        layout={"barmode": "overlay", "bargap": 0.3},
    )
