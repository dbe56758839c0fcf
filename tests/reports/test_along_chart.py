"""What is shown of a model that was measured while it was trained."""

from __future__ import annotations

import math

import pytest

from holdfast.evaluation.text.answer_position import ALIGNED
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.reports.along import COMPLETE, along_charts, complete_from, completions, point_line
from holdfast.reports.charts import plotly_figure


def evaluation(mass: float, *, name: str = "letters", interval: tuple[float, float] | None = (0.0, 1.0)) -> Evaluation:
    share = {"unit": "probability", "higher_is_better": True, "n": 40, "interval": interval}
    metrics = {"acc": Metric(value=0.5, **share), "mass": Metric(value=mass, **share)}
    metrics["aligned"] = Metric(value=0.1, **share)
    return Evaluation(
        suite="keep",
        name=name,
        kind="multiple_choice_letters",
        primary="acc",
        metrics=metrics,
        settings={},
        model={},
        key="k",
    )


def trajectory(*masses: float) -> list:
    return [(10 * i, {("keep", "letters"): evaluation(mass)}) for i, mass in enumerate(masses)]


@pytest.mark.parametrize(
    ("masses", "step"),
    [
        ((0.1, 0.96, 0.99), 10),
        ((0.1, 0.96, 0.9, 0.95), 30),
        ((0.1, 0.96, 0.94), None),
        ((1.0, 1.0), 0),
        ((), None),
        ((0.99, math.nan), None),
    ],
)
def test_the_format_is_complete_where_the_mass_stays(masses, step):
    assert complete_from([(10 * i, mass) for i, mass in enumerate(masses)]) == step
    assert COMPLETE == ALIGNED


def test_a_chart_a_figure_with_intervals_and_the_level_of_the_mass():
    charts = {chart.title: chart for chart in along_charts(trajectory(0.1, 0.5, 0.97))}
    assert list(charts) == ["letters: acc", "letters: mass"], "what says the same is not drawn twice"
    mass = charts["letters: mass"]
    assert [rule.y for rule in mass.rules] == [COMPLETE] and "from step 20 on" in mass.caption
    assert charts["letters: acc"].rules == []
    low, high, line = plotly_figure(mass)["data"]
    assert (
        (low["y"], high["y"]) == ([0.0] * 3, [1.0] * 3) and line["y"] == [0.1, 0.5, 0.97] and line["x"] == [0, 10, 20]
    )
    assert len(mass.table.rows) == 3
    assert completions(trajectory(0.1, 0.2)) == {"letters": None}


def test_what_is_not_finite_is_left_out():
    points = [*trajectory(0.1, 0.2), (20, {("keep", "letters"): evaluation(math.nan, interval=None)})]
    [_, mass] = along_charts(points)
    assert [row["step"] for row in mass.rows] == [0, 10]


def test_a_point_is_one_line():
    line = point_line(5, [evaluation(0.25), evaluation(1.0, name="other")])
    assert line == "step 5 measured: letters acc 0.5, mass 0.25; other acc 0.5, mass 1"
