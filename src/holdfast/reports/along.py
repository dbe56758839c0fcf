"""What was measured while a model was trained: a line a point for the terminal, a chart a figure for the page.

The mass on the options is drawn with the level from which on the answer's format counts as learnt (Pattern Shifting or
Knowledge Losing, section 5): it is complete where the mass stays at 0.95 or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import decimals_for, interval_text, number
from holdfast.records.metrics import RESTATED
from holdfast.reports.charts import SMALL, Axis, Chart, Col, Mark, Rule, Value
from holdfast.reports.format import significant

COMPLETE = 0.95
"""Mean mass on the options from which on the format counts as learnt."""
MASS = "mass"
_SAME = {**RESTATED, "aligned": MASS}
"""Figures that say what another one says, by that one."""

Trajectory = Sequence[tuple[int, Mapping[tuple[str, str], Evaluation]]]
"""(optimiser steps, evaluations by suite and name), by step."""


def point_line(step: int, found: Sequence[Evaluation]) -> str:
    """One point in a line: of every entry the figure that leads, and the mass on the options."""
    parts = []
    for e in found:
        names = dict.fromkeys([e.primary, *([MASS] if MASS in e.metrics else [])])
        parts.append(f"{e.name} {', '.join(f'{name} {significant(e.metrics[name].value)}' for name in names)}")
    return f"step {step} measured: {'; '.join(parts)}"


def complete_from(points: Sequence[tuple[int, float]]) -> int | None:
    """The step from which on the mass stays at 0.95 or more until the end; None where it does not.

    Args:
        points: (optimiser steps, mean mass), by step.
    """
    found = None
    for step, mass in reversed(points):
        if not mass >= COMPLETE:
            break
        found = step
    return found


def completions(trajectory: Trajectory) -> dict[str, int | None]:
    """By entry with a mass: `complete_from` of it."""
    curves = _curves(trajectory)
    return {
        name: complete_from([(row["step"], row["value"].value) for row in rows])
        for (_, name, metric), rows in curves.items()
        if metric == MASS
    }


def along_charts(trajectory: Trajectory) -> list[Chart]:
    """A chart for each figure, its intervals as a band."""
    return [_chart(name, metric, rows) for (_, name, metric), rows in _curves(trajectory).items()]


def _curves(trajectory: Trajectory) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """By (suite, entry, metric): a row a point that has a number."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for step, evaluations in trajectory:
        for (suite, name), e in evaluations.items():
            for metric, m in e.metrics.items():
                if _SAME.get(metric) in e.metrics or not math.isfinite(m.value):
                    continue
                decimals = decimals_for(m.interval)
                low, high = m.interval if m.interval is not None else (None, None)
                text, interval = number(m.value, decimals), interval_text(m.interval, decimals)
                value = Value(value=m.value, low=low, high=high, text=text, interval=interval)
                row = {"step": step, "value": value, "n": m.n, "unit": m.unit, "confidence": m.confidence}
                found.setdefault((suite, name, metric), []).append(row)
    return found


def _chart(name: str, metric: str, rows: list[dict[str, Any]]) -> Chart:
    caption = f"Band: {100 * rows[0]['confidence']:g} % interval over samples."
    if metric == MASS:
        step = complete_from([(row["step"], row["value"].value) for row in rows])
        where = "which it does not yet" if step is None else f"which it does from step {step} on"
        caption += f" The format counts as learnt where the mass stays above the dotted line ({COMPLETE}), {where}."
    return Chart(
        title=f"{name}: {metric.replace('_', ' ')}",
        rows=rows,
        columns=[Col("Step", "step"), Col(metric.replace("_", " "), "value"), Col("n", "n")],
        marks=[
            Mark(kind="band", x="step", y="value"),
            Mark(kind="line", x="step", y="value", size=6, bars=0),
        ],
        x=Axis(title="optimiser step"),
        y=Axis(title=rows[0]["unit"]),
        rules=[Rule(y=COMPLETE)] if metric == MASS else [],
        caption=caption,
        height=SMALL + 40,
    )
