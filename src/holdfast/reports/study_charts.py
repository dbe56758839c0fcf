"""Plots of a trade-off study: the frontier of every pair of measures, gains against each varied number, and who worked
on what when.

A frontier plot has the source across and the target up, both the metric itself in its unit; an arrow says where better
lies. Bars are the intervals of the paired change (seeds and samples), drawn around the trial's value. Names stand
beside points while these are few; of more the legend, the hover text and the table say what each is.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.records.measure import decimals_for, number
from holdfast.records.study import Objective, StudyRecord
from holdfast.reports.blocks import known
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
from holdfast.reports.format import direction, duration, plural, shorten, significant
from holdfast.reports.methods import kind_title
from holdfast.reports.study_figures import (
    StudyCurve,
    TrialFigures,
    covered,
    gain_texts,
    long_name,
    moment,
    shown_params,
    study_curves,
)
from holdfast.statistics.gains import Gain, mean_gain
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import Selection

Gains = dict[int, tuple[Gain, Gain]]
"""Trial -> (source gain, target gain)."""
MANY = 60
"""With more points than this, bars are faint."""
FEW = 16
"""So many points have names beside them."""
MOST_PARAMETERS = 6
"""Varied numbers that get panels."""
MOST_LANES = 40
"""Workers that get a lane."""


def kind_styles(kinds: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Kind -> (colour, symbol), the same on every plot of a page."""
    others = [k for k in dict.fromkeys(kinds) if k != "direct"]
    return {k: (COLOURS[i % 5], SYMBOLS[(i + i // 5) % 5]) for i, k in enumerate(others)} | {"direct": ("bad", "x")}


# --------------------------------------------------------------------------------------------------------------- range


def window(
    core: Sequence[float], points: Mapping[int, tuple[float, tuple[float, float] | None]], reach: float = 1.0
) -> tuple[tuple[float, float], list[int]]:
    """A range around what matters, which whatever lies far off does not stretch.

    Args:
        core: values that must be seen.
        points: number -> (value, its interval).
        reach: how far beyond the core the range may go, in widths of the core.

    Returns:
        (the range that holds the core, and the points within reach with their intervals; the numbers of the others).
    """
    low, high = min(core), max(core)
    spread = reach * (high - low) or max((abs(v - low) for v, _ in points.values()), default=0.0) or abs(low) or 1.0
    outside = [n for n, (v, _) in points.items() if not low - spread <= v <= high + spread]
    ends = [low, high, *(e for n, (v, i) in points.items() if n not in outside for e in (i or (v, v)))]
    bottom, top = max(min(ends), low - spread), min(max(ends), high + spread)
    margin = 0.07 * ((top - bottom) or 1.0)
    return (bottom - margin, top + margin), outside


def _outside(numbers: Sequence[int]) -> str:
    """Which trials a plot does not show."""
    if not numbers:
        return ""
    more = "…" if len(numbers) > 8 else ""
    return f"Outside the plot: {'trial' if len(numbers) == 1 else 'trials'} {', '.join(map(str, numbers[:8]))}{more}."


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
    gains: Gains = {}
    for t in trials:
        sides = [mean_gain(t.trial, o, seeds=record.seeds) if t.whole else None for o in (across, up)]
        if sides[0] is not None and sides[1] is not None:
            gains[t.trial.number] = (sides[0], sides[1])
    if not gains:
        return None
    drawn = [t for t in trials if t.trial.number in gains]
    first = next(iter(gains.values()))
    start = (first[0].before, first[1].before)
    front = [[*gains, None][i] for i in pareto([*((s.value, g.value) for s, g in gains.values()), (0.0, 0.0)])]
    core = {n for n in front if n is not None} | {t.trial.number for t in drawn if t.trial.kind == "direct"}
    x, y, outside = ranges(start, gains, core)
    ring = chosen.chosen if chosen is not None and chosen.chosen in gains else None
    faint, few = len(drawn) > MANY, wide and len(drawn) <= FEW
    curves = study_curves(drawn)
    before = [
        Value(value=v, text=number(v, max(4, decimals_for(g.interval)))) for v, g in zip(start, first, strict=True)
    ]
    rows: list[dict[str, Any]] = [
        {"label": "start", "trial": "", "order": 0, "x": before[0], "y": before[1], "kind": "start"}
    ]
    for place, curve in enumerate(curves):
        for t in curve.members:
            n = t.trial.number
            source, target = gains[n]
            row = {"label": t.trial.label, "trial": str(n), "order": 1 + drawn.index(t), "settings": settings_text(t)}
            row |= {"x": _around(source), "y": _around(target), "curve": place, "ring": n == ring}
            row |= {"name": point_name(curve, t), "side": "top right"} if few else {}
            rows.append(
                row | {"source gain": covered(*gain_texts(source)), "target gain": covered(*gain_texts(target))}
            )
    marks = _curve_marks(kind_styles([t.trial.kind for t in trials]), curves, rows, faint=faint)
    if len(front) > 1:
        at = [start if n is None else tuple(g.after for g in gains[n]) for n in front]
        broad: dict[str, Any] = {"opacity": 0.22, "width": 7.0, "markers": False, "colour": "muted"}
        marks[:0] = [Mark(kind="line", rows=[{"x": a, "y": b} for a, b in at], name="Pareto frontier", **broad)]
    if ring is not None and chosen is not None:
        held = [r | {"x": r["x"].value, "y": r["y"].value} for r in rows if r.get("ring")]
        circle: dict[str, Any] = {"symbol": "circle-open", "colour": "ink", "size": 22.0}
        marks.append(Mark(rows=held, name=f"chosen ({chosen.rule})", **circle))
    marks.append(Mark(where={"kind": "start"}, name="start", colour="ink", symbol="star", size=15))
    how = "Points and bars as above."
    if wide:
        how = (
            "Bars: 95 % intervals of the change from the start. Broad line: not exceeded on both sides by any other "
            "trial."
        )
        if any(c.joined for c in curves):
            how += " Curves join trials of one method in the order of its strength."
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
        marks=marks,
        x=Axis(title=_axis_title(across, "\n", wide=wide), range=x),
        y=Axis(title=_axis_title(up, " ", wide=wide), range=y),
        notes=[_arrow(right=across.higher_is_better, up=up.higher_is_better)],
        caption=f"{how} {_outside(outside)}".rstrip(),
        height=540 if wide else 340,
        width="full" if wide else "half",
        legend=wide,  # the plots beside the first one have its colours
    )


def _axis_title(side: Objective, between: str, *, wide: bool) -> str:
    return f"{shorten(side.label, 60 if wide else 34)}{between}({side.unit}, {direction(side.higher_is_better)})"


def _around(gain: Gain) -> Value:
    """The metric itself with the interval of its change."""
    low, high = gain.interval_after or (None, None)
    return Value(value=gain.after, low=low, high=high, text=number(gain.after, decimals_for(gain.interval)))


def _curve_marks(
    styles: Mapping[str, tuple[str, str]],
    curves: Sequence[StudyCurve],
    rows: Sequence[Mapping[str, Any]],
    *,
    faint: bool,
) -> list[Mark]:
    """A line or points a curve; curves of one method differ in their dashes, and have names of their own while they are
    few."""
    joined = collections.Counter(c.kind for c in curves if c.joined)
    lines: collections.Counter[str] = collections.Counter()
    marks: list[Mark] = []
    for place, curve in enumerate(curves):
        own = curve.joined and joined[curve.kind] in (2, 3, 4)
        name = curve.name if own else kind_title(curve.members[0].trial)
        colour, symbol = styles[curve.kind]
        marks.append(
            Mark(
                kind="line" if curve.joined and len(curve.members) > 1 else "points",
                where={"curve": place},
                name=name,
                legend=name not in (m.name for m in marks),
                colour=colour,
                symbol=symbol,
                dash=DASHES[lines[curve.kind] % 4],
                text="name" if any("name" in r for r in rows) else "",
                more={"legendgroup": plain(name)},
                **_size(faint=faint, size=10),
            )
        )
        lines[curve.kind] += curve.joined
    return marks


def _size(*, faint: bool, size: int) -> dict[str, Any]:
    return {"size": size - 2, "bars": 0.6} if faint else {"size": size, "bars": 1.2}


Range = tuple[float, float]


def ranges(start: tuple[float, float], gains: Gains, core: set[int]) -> tuple[Range, Range, list[int]]:
    """The ranges of both axes around the start, direct fine-tuning and the frontier, and the trials that lie far
    off."""

    def side(i: int, numbers: Iterable[int]) -> tuple[Range, list[int]]:
        seen = [start[i], *(gains[n][i].after for n in core)]
        return window(seen, {n: (gains[n][i].after, gains[n][i].interval_after) for n in numbers})

    outside = sorted({n for i in (0, 1) for n in side(i, gains)[1]})
    within = [n for n in gains if n not in outside]
    return side(0, within)[0], side(1, within)[0], outside


def point_name(curve: StudyCurve, t: TrialFigures) -> str:
    """What stands beside a point: the strength where a legend names the rest, else what tells the trial from others of
    its method."""
    if curve.joined:
        return curve.short(t.trial)
    return shorten(t.trial.label.removeprefix("direct fine-tuning, ").replace("direct fine-tuning", "direct"), 24)


def settings_text(t: TrialFigures) -> str:
    """A trial's parameters in one line."""
    params = shown_params(t.trial).items()
    return ", ".join(f"{long_name(k, [t.trial])} {shorten(significant(v), 40)}" for k, v in params)


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
            if (read := known(value)) is not None:
                values.setdefault(key, []).append(read)
    wanted = [k for k, v in values.items() if len(set(v)) >= 3]
    return sorted(wanted, key=lambda k: -len(values[k]))


def parameter_charts(record: StudyRecord, trials: Sequence[TrialFigures]) -> list[tuple[Chart, Chart]]:
    """(target gain, source gain) against each varied number, logarithmic where its values span more than a factor of
    ten."""
    keys = varied_numbers(trials)[:MOST_PARAMETERS]
    return [(_parameter(key, record.target, trials), _parameter(key, record.source, trials)) for key in keys]


def _parameter(key: str, side: Objective, trials: Sequence[TrialFigures]) -> Chart:
    rows: list[dict[str, Any]] = []
    points = {}
    for t in sorted(trials, key=lambda t: known(t.trial.params.get(key)) or 0.0):
        value, gain = known(t.trial.params.get(key)), t.target if side.side == "target" else t.source
        if t.whole and value is not None and gain is not None:
            points[t.trial.number] = (gain.value, gain.interval)
            row = {"trial": str(t.trial.number), "label": t.trial.label, "kind": t.trial.kind, "x": value}
            rows.append(row | {"y": _gain_value(gain), "name": kind_title(t.trial)})
    values = sorted({r["x"] for r in rows})
    log = values[0] > 0 and values[-1] / values[0] > 10
    gains = sorted(v for v, _ in points.values())
    limits, outside = window(gains[len(gains) // 10 : len(gains) - len(gains) // 10], points, reach=2.0)
    ticks = ticks_at(values) if len(values) <= 7 else log_ticks(values[0], values[-1], (1, 3)) if log else []
    name = long_name(key, [t.trial for t in trials])
    styles = kind_styles([t.trial.kind for t in trials])
    size = _size(faint=len(rows) > MANY, size=9)
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
            Mark(where={"kind": kind}, name=method, colour=styles[kind][0], symbol=styles[kind][1], **size)
            for kind, method in {r["kind"]: r["name"] for r in rows}.items()
        ],
        x=Axis(title=name, log=log, ticks=ticks),
        y=Axis(title=f"gain ({side.unit}) → better", zero=True, range=limits if outside else None),
        caption=_outside(sorted(outside)),
        height=280,
        width="half",
    )


def _gain_value(gain: Gain) -> Value:
    low, high = gain.interval or (None, None)
    text, interval = gain_texts(gain)
    return Value(value=gain.value, low=low, high=high, text=text, interval=interval)


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
