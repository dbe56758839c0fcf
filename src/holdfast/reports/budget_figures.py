"""A budget's trajectories for the page of a run: the constraint against its limit, and the strength that was found (see
`retention.budget`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.reports.legacy_charts import Chart, Curve, curves

BUDGET_KEYS = frozenset({"budget_constraint", "budget_limit", "budget_strength"})
"""What a budget logs; `training_charts` need not draw these a second time."""


def budget_charts(metrics: Sequence[Mapping[str, Any]], retention: Sequence[Mapping[str, Any]] = ()) -> list[Chart]:
    """Constraint and limit in one chart, the strength in another; empty for a run without a budget.

    Args:
        metrics: rows of `metrics.jsonl`.
        retention: the run's methods as recorded; tells what the budget is counted in.
    """
    in_points = any(entry.get("method") == "budget" and entry.get("metric_drop") is not None for entry in retention)
    charts = [
        curves(
            metrics,
            [
                Curve(key="budget_constraint", name="measured", colour="second"),
                Curve(key="budget_limit", name="budget", colour="bad"),
            ],
            title="Forgetting against its budget",
            unit="points" if in_points else "nats/token",
            caption="The budget holds for the end of the run. On the way the measured value may lie above it, as it "
            "does in a run whose strength is "
            "right from the start, and sinks to it with the learning rate.",
        ),
        curves(
            metrics,
            [Curve(key="budget_strength", name="strength", colour="third")],
            title="Strength found by the budget",
            unit="coefficient",
            may_be_log=True,
        ),
    ]
    return [c for c in charts if c is not None]


def without_budget(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows without what `budget_charts` draws."""
    return [{k: v for k, v in row.items() if k not in BUDGET_KEYS} for row in metrics]
