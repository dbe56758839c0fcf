"""The page of a trade-off study: what it says at every stage of one, and what its plots show."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic_studies import (
    START,
    compared,
    finished_frontier,
    frontier,
    nothing_finished,
    objective,
    one_seed,
    points_study,
    record,
    seed_run,
)
from test_every_page import as_text

from holdfast.records.comparison import Comparison
from holdfast.records.study import SeedRun, StudyRecord, TrialRecord
from holdfast.reports.charts import plotly_figure
from holdfast.reports.html import render
from holdfast.reports.sweep_charts import frontier_chart
from holdfast.reports.sweep_figures import (
    read_trials,
    varied_params,
)
from holdfast.reports.sweep_report import sweep_page
from holdfast.statistics.selection import select_all

COMMAND = "holdfast train --config chosen.yaml"
YAML = "learning_rate: 1.0e-4\nretention:\n  - label_annealing: {weight: 30.0}\n"


def page(study: StudyRecord, here: Path = Path("nowhere"), **more: Any):
    return sweep_page(study, here, selections=select_all(study), **{"command": COMMAND, "config_yaml": YAML, **more})


def words(study: StudyRecord, **more: Any) -> str:
    """The page's text on one line."""
    return re.sub(r"\s+", " ", as_text(page(study, **more)))


# ---------------------------------------------------------------------------------------------------------------- page


def test_the_page_says_by_what_was_chosen():
    """In one sentence."""
    study = finished_frontier()
    slower = dataclasses.replace(
        study.trials[0], number=40, runs=[dataclasses.replace(r, comparisons=worse(r)) for r in study.trials[0].runs]
    )
    study = dataclasses.replace(study, trials=[*study.trials, slower], validation=objective("validation", "quiz"))
    sentence = (
        "quiz (validation) serves to choose the trial, and to choose the learning rate of direct fine-tuning. It is "
        "not part of the reported answers. The chosen trial is the best of 20 trials by quiz and the keep side, so its "
        "results are optimistic"
    )
    assert study.direct is slower and sentence in page(study).lead
    assert words(study).count("quiz (validation) serves") == 1 and "validation" not in words(finished_frontier())


def worse(run: SeedRun) -> list[Comparison]:
    """Half of what was gained on the target, twice that on what chooses."""
    scale = {"answers": 0.5, "quiz": 2.0}
    return [compared(c.name, scale.get(c.name, 1.0) * c.gain) for c in run.comparisons]


@pytest.mark.parametrize(
    ("study", "more", "there", "absent"),
    [
        (nothing_finished(), {}, ["so none can be chosen."], ["Train the chosen", "The rules side by side"]),
        (record([], status="running", finished=None), {}, ["No trial has begun yet."], []),
        (
            frontier(),
            {},
            ["The study is still running: 19 of 24 trials count so far.", "1 of 3 seeds", "1 seed so far"],
            [],
        ),
        (
            finished_frontier(seeds=(4,)),
            {},
            [
                "cover samples only, because there is one seed",
                "No stability: the study has one seed",
                "The chosen trial is the best of 19 trials on the same data, so its results are optimistic; one seed",
            ],
            ["On held-out seeds"],
        ),
        (
            one_seed([(-0.1, 0.1)]),
            {},
            ["The rule paper chooses no trial: no trial improves learn over the initial model"],
            [],
        ),
    ],
)
def test_what_there_is_and_what_there_is_not(study, more, there, absent):
    text = words(study, **more)
    assert [p for p in there if p not in text] + [p for p in absent if p in text] == []


def test_links_lead_to_the_runs_reports_that_are_there(tmp_path):
    study = finished_frontier()
    for folder in (tmp_path / "runs" / "0003" / "seed-1", tmp_path.parent / "outside"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text("x")
    assert re.findall(r'<a href="([^"#]+)"', render(page(study, tmp_path))) == ["runs/0003/seed-1/report.html"]
    runs = [dataclasses.replace(r, folder="../outside") for r in study.trials[0].runs]
    away = dataclasses.replace(study, trials=[dataclasses.replace(study.trials[0], runs=runs), *study.trials[1:]])
    assert "outside" not in render(page(away, tmp_path))


# --------------------------------------------------------------------------------------------------------------- plots


def drawn(study: StudyRecord, chosen=None, *, wide: bool = True):
    chart = frontier_chart(study, read_trials(study), (study.learn, study.keep), chosen, wide=wide)
    assert chart is not None
    return chart


def named(chart, name: str) -> list[dict[str, Any]]:
    return [d for d in plotly_figure(chart)["data"] if d.get("name") == name]


def test_points_stand_where_the_metric_is_and_the_arrow_points_to_better():
    chart = drawn(points_study([[(0.5, -0.3)], [(0.3, -0.1)]], direct=0))
    (direct,), (start,) = named(chart, "direct fine-tuning"), named(chart, "start")
    assert (*direct["x"], *direct["y"]) == pytest.approx((START["prose"] + 0.3, START["answers"] - 0.5))
    assert (start["x"], start["y"]) == ([START["prose"]], [START["answers"]])
    layout = plotly_figure(chart)["layout"]
    assert layout["annotations"][0]["ax"] > 0  # lower is better: to the lower left
    assert "lower is better" in layout["xaxis"]["title"]["text"]
    study = finished_frontier()
    up = frontier_chart(study, read_trials(study), study.pairs[2], None)
    assert plotly_figure(up)["layout"]["annotations"][0]["ax"] < 0


def test_the_chosen_trial_has_a_ring():
    study = finished_frontier()
    [chosen, *_] = select_all(study)
    [ring] = named(drawn(study, chosen), f"chosen ({chosen.rule})")
    assert ring["marker"]["symbol"] == "circle-open" and len(ring["x"]) == 1


def test_what_lies_far_off_does_not_stretch_the_plot():
    study = finished_frontier()
    runs = [seed_run(seed, [compared(name, -6.0) for name in START]) for seed in study.seeds]
    wild = dataclasses.replace(study.trials[1], number=40, runs=runs)
    chart = drawn(dataclasses.replace(study, trials=[*study.trials, wild]))
    low, high = plotly_figure(chart)["layout"]["xaxis"]["range"]
    assert low < (START["prose"] + START["code"]) / 2 < high < 4
    assert "Outside the plot: trial 40." in chart.caption
    assert "40" in [row[1] for row in chart.table.rows]  # the table has it
    assert "Outside" not in drawn(study).caption


def test_a_trial_that_nobody_has_begun_has_no_kind_and_varies_what_is_fixed():
    waiting = TrialRecord(number=1, state="waiting", kind="", label="", params={"max_steps": 4}, settings={}, runs=[])
    assert varied_params(waiting) == {"max_steps": 4}
    assert varied_params(dataclasses.replace(waiting, kind="l2", params={"method": "l2 #2"})) == {}
