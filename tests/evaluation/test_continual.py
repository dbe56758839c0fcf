"""The matrix of sequential training and its measures: against the definitions, at the edges, and with intervals that
are paired over stages."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from evaluated_folders import TEXT, answers, texts, write
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.compare.continual import (
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    stage_matrix,
)
from holdfast.records.comparison import StageMatrix
from holdfast.records.evaluation import EvaluationFolder

R = np.array([[0.2, 0.3, 0.1], [0.8, 0.4, 0.1], [0.9, 0.7, 0.3], [0.5, 0.75, 0.6]])
"""Three tasks: scores at the start and after each stage."""


@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_measures_are_the_definitions(tasks):
    """Loops over l = 0..T and i = 1..T as they are written down."""
    scores = np.random.default_rng(tasks).random((tasks + 1, tasks))

    def r(stage, task):
        return scores[stage, task - 1]

    last = tasks
    assert average_accuracy(scores) == pytest.approx(sum(r(last, i) for i in range(1, last + 1)) / last)
    assert backward_transfer(scores) == pytest.approx(sum(r(last, i) - r(i, i) for i in range(1, last)) / (last - 1))
    best = {i: max(r(stage, i) for stage in range(last)) for i in range(1, last)}
    assert forgetting(scores) == pytest.approx(sum(best[i] - r(last, i) for i in range(1, last)) / (last - 1))
    assert forward_transfer(scores) == pytest.approx(
        sum(r(i - 1, i) - r(0, i) for i in range(2, last + 1)) / (last - 1)
    )
    many = np.stack([scores, 1 - scores])
    for measure in (average_accuracy, backward_transfer, forgetting, forward_transfer):
        assert measure(many) == pytest.approx([measure(scores), measure(1 - scores)]), "draws go along"


# ----------------------------------------------------------------------------------------------------------- a matrix


def stages(tmp_path: Path, table: np.ndarray = R, n: int = 400, seed: int = 0) -> list[EvaluationFolder]:
    """Folders with quizzes t0, t1, ... whose answers follow the table: hard questions are hard at every stage."""
    folders = []
    hard = np.random.default_rng(seed).random((table.shape[1], n))
    for stage, row in enumerate(table):
        for task, score in enumerate(row):
            folder = write(tmp_path / f"s{stage}", "keep", f"t{task}", answers((hard[task] < score).astype(float)))
        folders.append(folder)
    return folders


def made(folders: list[EvaluationFolder], names=("t0", "t1", "t2"), suite: str = "keep", **options) -> StageMatrix:
    labels = ["start", *(f"after {n}" for n in names)]
    return stage_matrix(folders, [(suite, n) for n in names], labels, **{"resamples": 400, **options})


def test_the_matrix_holds_the_scores_and_their_measures(tmp_path):
    folders = stages(tmp_path)
    found = made(folders)
    means = [[np.mean([r["acc"] for r in f.samples("keep", f"t{i}")]) for i in range(3)] for f in folders]
    assert np.array(found.scores) == pytest.approx(np.array(means))
    assert (found.tasks, found.stages, found.unit) == (
        ["t0", "t1", "t2"],
        ["start", "after t0", "after t1", "after t2"],
        "accuracy",
    )
    assert list(found.measures) == ["average_accuracy", "backward_transfer", "forgetting", "forward_transfer"]
    for name, measure in (
        ("average_accuracy", average_accuracy),
        ("backward_transfer", backward_transfer),
        ("forgetting", forgetting),
    ):
        metric = found.measures[name]
        assert metric.value == pytest.approx(measure(np.array(means)))
        low, high = metric.interval
        assert low < metric.value < high
        assert (metric.n, metric.confidence, metric.unit) == (1200, 0.95, "accuracy")
    assert [m.higher_is_better for m in found.measures.values()] == [True, True, False, True]
    assert found == made(folders), "deterministic"
    assert found != made(folders, seed=1)


def test_intervals_are_paired_over_stages_and_independent_over_tasks(tmp_path):
    """Backward transfer of nested answers: only the questions that flip are uncertain, and tasks add up as independent
    errors do."""
    table = np.array([[0.3, 0.3, 0.3], [0.6, 0.3, 0.3], [0.6, 0.6, 0.3], [0.5, 0.5, 0.6]])
    n = 900
    found = made(stages(tmp_path, table, n=n), resamples=3000)
    low, high = found.measures["backward_transfer"].interval
    scores = np.array(found.scores)
    error = math.sqrt(sum(d * (1 - d) / n for d in (scores[1, 0] - scores[3, 0], scores[2, 1] - scores[3, 1]))) / 2
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.08)
    unpaired = math.sqrt(4 * 0.25 / n) / 2
    assert error < 0.6 * unpaired


def test_lower_is_better_is_turned_and_said(tmp_path):
    folders = []
    for stage, levels in enumerate(((3.0, 3.0), (2.0, 2.9), (2.5, 2.0))):
        for task, level in enumerate(levels):
            nats = level * 10 + np.random.default_rng(task).normal(0, 1, 20)
            folder = write(tmp_path / f"s{stage}", "learn", f"t{task}", texts(nats), metrics=TEXT, kind="perplexity")
        folders.append(folder)
    found = made(folders, names=("t0", "t1"), suite="learn")
    assert found.unit == "nats/token, negated"
    assert np.array(found.scores)[:, 0] == pytest.approx([-3.0, -2.0, -2.5], abs=0.1)
    assert found.measures["forgetting"].value == pytest.approx(0.5)
    assert found.measures["backward_transfer"].value == pytest.approx(-0.5)
    assert found.measures["forward_transfer"].value == pytest.approx(0.1)


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_counts_have_to_fit(tmp_path):
    folders = stages(tmp_path)
    for names, given in ((("t0", "t1"), folders), ((), folders[:1]), (("t0", "t1", "t2"), folders[:3])):
        with pytest.raises(ConfigError, match="one more model than tasks"):
            made(given, names=names)


def test_stages_that_were_not_measured_alike_are_named_all_at_once(tmp_path):
    folders = stages(tmp_path)
    write(folders[1].path, "keep", "t0", answers([1] * 400), num_fewshot=5)
    write(folders[2].path, "keep", "t1", answers([1] * 399))
    (folders[3].path / "keep.t2.json").unlink()
    with pytest.raises(DataError) as caught:
        made(folders)
    text = str(caught.value)
    assert "keep/t0, after t0 against start: measured with different settings" in text
    assert "keep/t1: the two evaluations did not answer the same samples" in text
    assert "keep/t2, after t2 against start: measured only before" in text
    with pytest.raises(DataError, match="keep/t9: the initial model was not measured on this task"):
        made(folders, names=("t0", "t1", "t9"))
    with pytest.raises(DataError, match="found none"):
        made([folders[0], EvaluationFolder(tmp_path / "x"), EvaluationFolder(tmp_path / "y"), folders[1]])
