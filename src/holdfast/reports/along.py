"""What was measured while a model was trained: a line a point for the terminal, a chart a figure
for the page.

The mass on the options is drawn with the level from which on the answer's format counts as learnt
(Pattern Shifting or Knowledge Losing, section 5): it is complete where the mass stays at 0.95 or
more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.evaluation import Evaluation
from holdfast.records.metrics import RESTATED
from holdfast.reports.charts import SMALL, Axis, Chart, Mark, Rule, Value, heads
from holdfast.reports.format import significant

COMPLETE = 0.95
"""Mean mass on the options from which on the format counts as learnt."""
MASS = "mass"
_SAME = {**RESTATED, "aligned": MASS}
"""Figures that say what another one says, by that one."""

Trajectory = Sequence[tuple[int, Mapping[tuple[str, str], Evaluation]]]
"""(optimiser steps, evaluations by suite and name), by step."""


Points = list[dict[str, Any]]
"""Of one figure, by step: rows of its chart."""


def point_line(step: int, evaluations: Sequence[Evaluation]) -> str:
    """One point in a line: of every entry the figure that leads, and the mass on the options."""
    parts = []
    for e in evaluations:
        figures = [f"{e.primary} {significant(e.metrics[e.primary].value)}"]
        if MASS in e.metrics and e.primary != MASS:
            figures.append(f"{MASS} {significant(e.metrics[MASS].value)}")
        parts.append(f"{e.name} {', '.join(figures)}")
    return f"step {step} measured: {'; '.join(parts)}"


def complete_from(points: Sequence[tuple[int, float]]) -> int | None:
    """The step from which on the mass stays at 0.95 or more until the end; None where it does not.

    Args:
        points: (optimiser steps, mean mass), by step.
    """
    first = None
    for step, mass in reversed(points):
        if not mass >= COMPLETE:
            break
        first = step
    return first


def _mass_complete_from(points: Points) -> int | None:
    return complete_from([(point["step"], point["value"].value) for point in points])


def completions(trajectory: Trajectory) -> dict[str, int | None]:
    """By entry with a mass: `complete_from` of it."""
    steps = {}
    for (_, name, metric), points in _curves(trajectory).items():
        if metric == MASS:
            steps[name] = _mass_complete_from(points)
    return steps


def along_charts(trajectory: Trajectory) -> list[Chart]:
    """A chart for each figure, its intervals as a band."""
    charts = []
    for (_, name, metric), points in _curves(trajectory).items():
        charts.append(_chart(name, metric, points))
    return charts


def _curves(trajectory: Trajectory) -> dict[tuple[str, str, str], Points]:
    """By (suite, entry, metric): a row a point that has a number."""
    curves: dict[tuple[str, str, str], Points] = {}
    for step, evaluations in trajectory:
        for (suite, name), e in evaluations.items():
            for key, metric in e.metrics.items():
                if _SAME.get(key) not in e.metrics and math.isfinite(metric.value):
                    point = {
                        "step": step,
                        "value": Value.of(metric),
                        "n": metric.n,
                        "metric": metric,
                    }
                    curves.setdefault((suite, name, key), []).append(point)
    return curves


def _chart(name: str, key: str, points: Points) -> Chart:
    metric, title = points[0]["metric"], key.replace("_", " ")
    caption = f"Band: {100 * metric.confidence:g} % interval over samples."
    rules = []
    if key == MASS:
        rules = [Rule(y=COMPLETE)]
        step = _mass_complete_from(points)
        where = "not reached yet" if step is None else f"from step {step} on"
        caption += (
            f" The answer format counts as learnt once the probability on the options stays above "
            f"the dotted line ({COMPLETE}): {where}."
        )
    marks = [
        Mark(kind="band", x="step", y="value"),
        Mark(kind="line", x="step", y="value", size=6, bars=0),
    ]
    columns = heads({"Step": "step", title: "value", "n": "n"}, words=0)
    return Chart(
        title=f"{name}: {title}",
        rows=points,
        columns=columns,
        marks=marks,
        x=Axis(title="optimiser step"),
        y=Axis(title=metric.unit),
        rules=rules,
        caption=caption,
        height=SMALL + 40,
    )
