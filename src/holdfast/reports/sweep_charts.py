"""Plots of a sweep: the frontier of every pair of measures.

A frontier plot has keep across and learn up, both the metric itself in its unit; an arrow says
where better lies. Bars are the intervals of the paired change (seeds and samples), drawn around the
trial's value. A *curve* joins trials of one method that differ in its strength only, such as label
annealing at temperature 2 with growing weight. The legend, the hover text and the table say what
each point is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.records.figure import Figure
from holdfast.records.measure import decimals_for, number
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.reports.blocks import finite_or_none
from holdfast.reports.charts import COLOURS, SYMBOLS, Axis, Chart, Mark, Note, Value
from holdfast.reports.format import direction, shorten
from holdfast.reports.methods import kind_title
from holdfast.reports.study_page import lines
from holdfast.reports.sweep_figures import GAIN, TrialFigures, parameters_text, varied_params
from holdfast.statistics.gains import Gain, mean_gain
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import Selection

Gains = dict[int, tuple[Gain, Gain]]
"""Trial -> (keep gain, learn gain)."""
Range = tuple[float, float]
BARS = (
    "Bars: 95 % intervals of the change from the initial model. Thick line: the Pareto frontier. "
    "Thin curves join the trials of one method in order of strength."
)
WIDE: dict[str, Any] = {"height": 540, "width": "full", "legend": True}
NARROW: dict[str, Any] = {"height": 340, "width": "half", "legend": False}
"""Of the plots beside the first one, which have its colours."""
START_NUMBER = -1
"""The start, among trials."""
START: dict[str, Any] = {"colour": "ink", "symbol": "star", "size": 15}
FRONT: dict[str, Any] = {
    "kind": "line",
    "opacity": 0.22,
    "width": 7.0,
    "markers": False,
    "colour": "muted",
}
RING: dict[str, Any] = {"symbol": "circle-open", "colour": "ink", "size": 22.0}


def kind_styles(trials: Sequence[TrialFigures]) -> dict[str, dict[str, Any]]:
    """How each kind of trial is drawn: its colour and symbol are the same on every plot."""
    size = {"size": 10, "bars": 1.2}
    styles: dict[str, dict[str, Any]] = {"direct": size | {"colour": "bad", "symbol": "x"}}
    for t in trials:
        if t.trial.kind not in styles:
            index = len(styles) - 1
            look = {"colour": COLOURS[index % 5], "symbol": SYMBOLS[(index + index // 5) % 5]}
            styles[t.trial.kind] = size | look
    return styles


def window(
    core: Sequence[float], points: Mapping[int, tuple[float, Range | None]]
) -> tuple[Range, set[int]]:
    """A range around what matters, which whatever lies far off does not stretch.

    Args:
        core: values that must be seen.
        points: number -> (value, its interval).

    Returns:
        (the range that holds the core, and the points within reach with their intervals; the
        numbers of the others).
    """
    low, high = min(core), max(core)
    farthest = max((abs(value - low) for value, _ in points.values()), default=0.0)
    spread = (high - low) or farthest or abs(low) or 1.0
    ends = [low, high]
    outside = set()
    for trial, (value, interval) in points.items():
        if low - spread <= value <= high + spread:
            ends += interval or (value, value)
        else:
            outside.add(trial)
    bottom, top = max(min(ends), low - spread), min(max(ends), high + spread)
    margin = 0.07 * ((top - bottom) or 1.0)
    return (bottom - margin, top + margin), outside


def _outside_text(trials: Iterable[int]) -> str:
    """Which trials a plot does not show."""
    numbers = [str(trial) for trial in sorted(trials)]
    if not numbers:
        return ""
    return f" Outside the plot: {'trial' if len(numbers) == 1 else 'trials'} {', '.join(numbers)}."


# ------------------------------------------------------------------------------------------- curves


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialCurve:
    """Trials of one method that are joined on the plots."""

    name: str
    """The method, and what its trials have in common."""
    members: list[TrialFigures]
    strength: str | None = None
    """Key of the parameter that orders them; None where no line goes through them."""


def trial_curves(trials: Sequence[TrialFigures]) -> list[TrialCurve]:
    """Trials by method, then by all they have in common but the strength, each in the order of it;
    a trial alone in that is not joined."""
    kinds: dict[str, list[TrialFigures]] = {}
    for t in trials:
        kinds.setdefault(t.trial.kind, []).append(t)
    curves = []
    for members in kinds.values():
        curves += _curves_of_kind(members)
    return curves


def _curves_of_kind(trials: Sequence[TrialFigures]) -> list[TrialCurve]:
    title = kind_title(trials[0].trial)
    strength = strength_key([t.trial for t in trials])
    groups: dict[tuple[tuple[str, str], ...], list[TrialFigures]] = {}
    for t in trials:
        params = {
            key: repr(value) for key, value in t.trial.params.items()
        }  # to the last digit: random rates differ
        params.pop(strength or "", None)
        groups.setdefault(tuple(sorted(params.items())), []).append(t)
    shared = set.intersection(*map(set, groups))
    curves = []
    single = []
    for members in groups.values():
        if strength is None or len(members) < 2:
            single += members
            continue
        members.sort(key=lambda t: finite_or_none(t.trial.params.get(strength)) or 0.0)
        differences = dict(members[0].trial.params)
        for key in {strength, *dict(shared)}:
            differences.pop(key, None)
        name = ", ".join(filter(None, [title, parameters_text(differences)]))
        curves.append(TrialCurve(name=name, members=members, strength=strength))
    return [*curves, TrialCurve(name=title, members=single)] if single else curves


def strength_key(trials: Sequence[TrialRecord]) -> str | None:
    """The varied parameter that says how strongly trials of one kind hold on to the start; None
    where none of them has one."""
    from holdfast.retention.registry import declared

    values: dict[str, set[float]] = {}
    for trial in trials:
        for key, value in trial.params.items():
            if (strength := finite_or_none(value)) is not None:
                values.setdefault(key, set()).add(strength)
    methods = [cls for kind in trials[0].kind.split("+") if (cls := declared(kind)) is not None]
    for cls in sorted(methods, key=lambda cls: cls.place == "data"):
        for name in cls.strength:
            for key in values:
                if key.rsplit(".", 1)[-1] == name and len(values[key]) > 1:
                    return key
    return None


# ----------------------------------------------------------------------------------------- frontier


def frontier_chart(
    record: StudyRecord,
    trials: Sequence[TrialFigures],
    pair: tuple[Objective, Objective],
    chosen: Selection | None,
    *,
    wide: bool = True,
) -> Chart | None:
    """One pair of measures, learn up and keep across; None where no trial that counts has both.

    Args:
        record: the study.
        trials: figures of all its trials.
        pair: (learn, keep).
        chosen: the selection whose trial gets a ring.
        wide: whether the plot has the page's width, so that there is room for names.
    """
    up, across = pair
    gains: Gains = {}
    for t in trials:
        learn = mean_gain(t.trial, up, seeds=record.seeds) if t.counts else None
        keep = mean_gain(t.trial, across, seeds=record.seeds) if t.counts else None
        if keep is not None and learn is not None:
            gains[t.trial.number] = (keep, learn)
    if not gains:
        return None
    curves = trial_curves([t for t in trials if t.trial.number in gains])
    kinds = kind_styles(trials)
    rows = []
    styles = {"start": START}
    for curve in curves:
        styles[curve.name] = dict(kinds[curve.members[0].trial.kind])
        if curve.strength is None:
            styles[curve.name]["kind"] = "points"
        for t in curve.members:
            rows.append(_row(curve, t.trial, gains))
    start = _start_row(*next(iter(gains.values())))
    front = _front(gains)
    core = {*front, *(t.trial.number for t in trials if t.trial.kind == "direct")}
    x, far_across = _range(start["x"].value, core, {n: keep for n, (keep, _) in gains.items()})
    y, far_up = _range(start["y"].value, core, {n: learn for n, (_, learn) in gains.items()})
    how = BARS if wide else "Points and bars have the same meaning as in the first plot."
    arrow = _arrow(right=across.higher_is_better, up=up.higher_is_better)
    chart = lines(
        f"{up.label} against {across.label}",
        [*rows, start],
        Axis(title=_axis_title(across, "\n", wide=wide), range=x),
        Axis(title=_axis_title(up, " ", wide=wide), range=y),
        columns=_frontier_columns(up, across),
        styles=styles,
        caption=how + _outside_text(far_across | far_up),
        **{"order": "number", "notes": [arrow]} | (WIDE if wide else NARROW),
    )
    points = {}
    for row in [*rows, start]:
        points[row["number"]] = {"x": row["x"].value, "y": row["y"].value}
    marks = []
    if len(front) > 1:
        marks.append(Mark(rows=[points[trial] for trial in front], name="Pareto frontier", **FRONT))
    if chosen is not None and chosen.chosen in points:
        marks.append(Mark(rows=[points[chosen.chosen]], name=f"chosen ({chosen.rule})", **RING))
    return None if chart is None else dataclasses.replace(chart, marks=[*marks, *chart.marks])


def _row(curve: TrialCurve, trial: TrialRecord, gains: Gains) -> dict[str, Any]:
    """A trial: the metrics themselves, each with the interval of its change, and the changes."""
    keep, learn = gains[trial.number]
    row = {
        "line": curve.name,
        "number": trial.number,
        "label": trial.label,
        "trial": str(trial.number),
    }
    row |= {"settings": parameters_text(varied_params(trial))}
    row |= {"x": _after(keep), "keep": Value.of(keep, GAIN, sign=True)}
    return row | {"y": _after(learn), "learn": Value.of(learn, GAIN, sign=True)}


def _start_row(keep: Gain, learn: Gain) -> dict[str, Any]:
    row: dict[str, Any] = {"line": "start", "number": START_NUMBER, "label": "start"}
    for key, gain in (("x", keep), ("y", learn)):
        row[key] = Value(
            value=gain.before, text=number(gain.before, max(4, decimals_for(gain.interval)))
        )
    return row


def _after(gain: Gain) -> Value:
    value = Value.of(Figure(value=gain.after, over_samples=gain.interval_after))
    return dataclasses.replace(value, interval="")


def _front(gains: Gains) -> list[int]:
    """The trials on the Pareto frontier, along it, and the start."""
    numbers = [*gains, START_NUMBER]
    values = [(keep.value, learn.value) for keep, learn in gains.values()]
    return [numbers[index] for index in pareto([*values, (0.0, 0.0)])]


def _range(start: float, core: set[int], gains: Mapping[int, Gain]) -> tuple[Range, set[int]]:
    """The range of an axis around the start and the trials of the core; and the trials that lie far
    off."""
    points = {}
    core_values = [start]
    for trial, gain in gains.items():
        points[trial] = (gain.after, gain.interval_after)
        if trial in core:
            core_values.append(gain.after)
    return window(core_values, points)


def _frontier_columns(up: Objective, across: Objective) -> dict[str, str]:
    columns = {
        "label": "Label",
        "trial": "Trial",
        "settings": "Settings",
        "y": f"Target ({up.unit})",
    }
    return columns | {"learn": "Learn gain", "x": f"Keep ({across.unit})", "keep": "Keep gain"}


def _axis_title(side: Objective, between: str, *, wide: bool) -> str:
    return (
        f"{shorten(side.label, 60 if wide else 34)}{between}({side.unit}, "
        f"{direction(side.higher_is_better)})"
    )


def _arrow(*, right: bool, up: bool) -> Note:
    """In the corner of the worst, pointing away from it: that is where the fewest trials lie."""
    arrow: dict[str, Any] = {
        "showarrow": True,
        "arrowhead": 2,
        "arrowwidth": 2,
        "arrowcolor": "var(--good)",
    }
    arrow |= {
        "xanchor": "left" if right else "right",
        "ax": -34 if right else 34,
        "ay": 30 if up else -30,
    }
    x, y = 0.2 if right else 0.8, 0.15 if up else 0.85
    return Note(text="better", colour="good", paper=True, more=arrow, x=x, y=y)
