"""Averages over entries: the mean of the figures, and an interval from draws that figures of one entry share and
different entries do not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.evaluation.averages import SUITE, averages_of
from holdfast.evaluation.entries import Average, EvaluationPlan
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.statistics.estimates import estimate, figure_for

MODEL = {"name": "tiny", "hash": "aaa"}
N = 400


@pytest.fixture
def folder(tmp_path: Path) -> EvaluationFolder:
    return EvaluationFolder(tmp_path / "tiny")


def coins(seed: int, *, p: float = 0.5, n: int = N) -> list[float]:
    return (np.random.default_rng(seed).random(n) < p).astype(float).tolist()


def put(
    folder: EvaluationFolder,
    name: str,
    columns: dict[str, list[float]],
    *,
    higher: bool = True,
    whole: dict[str, float] | None = None,
) -> None:
    """An entry with figures that are means of columns; "name#" counts parts; `whole` has figures without values a
    question."""
    n = len(next(iter(columns.values())))
    rows = [{"doc": str(i), **{column: values[i] for column, values in columns.items()}} for i in range(n)]
    metrics = {}
    for metric in (c for c in columns if not c.endswith("#")):
        figure = figure_for(metric, rows, higher_is_better=higher, unit="accuracy")
        assert figure is not None
        value, interval = estimate(figure, rows)
        metrics[metric] = Metric(
            value=value, n=n, unit=figure.unit, higher_is_better=figure.higher_is_better, interval=interval
        )
    for metric, value in (whole or {}).items():
        metrics[metric] = Metric(value=value, n=n, unit=metric, higher_is_better=higher)
    primary = next(iter(metrics))
    evaluation = Evaluation(
        suite="keep",
        name=name,
        kind="task",
        primary=primary,
        metrics=metrics,
        settings={},
        model=MODEL,
        key=f"key of {name}",
    )
    folder.write(evaluation, rows)


def average(folder: EvaluationFolder, *members: tuple[str, str | None], **settings) -> Evaluation:
    made = Average(name="all", members=tuple(("keep", name, metric) for name, metric in members))
    [found] = averages_of(folder, EvaluationPlan(averages=(made,), **settings), MODEL)
    return found


def width(evaluation: Evaluation) -> float:
    interval = evaluation.metrics["average"].interval
    assert interval is not None
    assert interval[0] <= evaluation.metrics["average"].value <= interval[1]
    return interval[1] - interval[0]


def test_the_mean_counts_every_figure_once(folder: EvaluationFolder) -> None:
    put(folder, "long", {"acc": coins(1, p=0.8)})
    put(folder, "short", {"acc": coins(2, p=0.2, n=10)})
    found = average(folder, ("long", None), ("short", None))
    expected = (
        folder.find("keep", "long").metrics["acc"].value + folder.find("keep", "short").metrics["acc"].value
    ) / 2
    assert found.metrics["average"].value == pytest.approx(expected)
    assert (found.suite, found.kind, found.primary, found.metrics["average"].n) == (SUITE, "average", "average", 2)
    assert found.settings["members"] == [{"suite": "keep", "name": n, "metric": "acc"} for n in ("long", "short")]
    assert found.model == MODEL


def test_figures_of_one_entry_share_its_draws(folder: EvaluationFolder) -> None:
    right = coins(1)
    put(folder, "one", {"acc": right, "wrong": [1 - r for r in right], "again": list(right)})
    assert width(average(folder, ("one", "acc"), ("one", "wrong"))) == pytest.approx(0.0, abs=1e-12), (
        "what one gains the other loses"
    )
    own = width(average(folder, ("one", "acc")))
    assert width(average(folder, ("one", "acc"), ("one", "again"))) == pytest.approx(own, rel=0.1), (
        "the same figure twice is no more certain"
    )


def test_one_question_has_no_interval(folder: EvaluationFolder) -> None:
    put(folder, "one", {"acc": [1.0]})
    put(folder, "many", {"acc": coins(1)})
    found = average(folder, ("one", None), ("many", None))
    assert found.metrics["average"].interval is None
    assert math.isfinite(found.metrics["average"].value)


def test_a_figure_without_values_a_question_leaves_no_interval(folder: EvaluationFolder) -> None:
    """Nothing is known of the spread of a corpus's BLEU, so the average's is unknown too."""
    put(folder, "one", {"acc": coins(1)}, whole={"bleu": 0.25})
    found = average(folder, ("one", "acc"), ("one", "bleu")).metrics["average"]
    assert found.value == pytest.approx((folder.find("keep", "one").metrics["acc"].value + 0.25) / 2)
    assert found.interval is None


def instructions(n: int = 150) -> dict[str, list[float]]:
    """As IFEval has them: 1 to 3 instructions an answer, of which some were followed, and whether all were."""
    rng = np.random.default_rng(7)
    asked = rng.integers(1, 4, n)
    followed = rng.binomial(asked, 0.6)
    return {
        "inst": followed.astype(float).tolist(),
        "inst#": asked.astype(float).tolist(),
        "prompt": (followed == asked).astype(float).tolist(),
    }


def test_parts_of_a_question_are_a_ratio_of_sums(folder: EvaluationFolder) -> None:
    columns = instructions()
    put(folder, "ifeval", columns)
    metrics = folder.find("keep", "ifeval").metrics
    followed, asked = np.array(columns["inst"]), np.array(columns["inst#"])
    assert metrics["inst"].value == pytest.approx(followed.sum() / asked.sum())
    assert metrics["inst"].value != pytest.approx((followed / asked).mean(), abs=1e-3), "else this test shows nothing"
    assert metrics["inst"].unit == metrics["prompt"].unit == "accuracy"
    picked = np.random.default_rng(0).integers(0, len(asked), (20000, len(asked)))
    ratios = followed[picked].sum(1) / asked[picked].sum(1)
    assert metrics["inst"].interval == pytest.approx(np.quantile(ratios, [0.025, 0.975]), abs=0.006)


def test_names_of_metrics_may_be_short(folder: EvaluationFolder) -> None:
    put(folder, "gsm8k", {"exact_match,strict-match": coins(1)})
    assert average(folder, ("gsm8k", "exact_match")).settings["members"][0]["metric"] == "exact_match,strict-match"
    put(folder, "gsm8k", {"exact_match,strict-match": coins(1), "exact_match,flexible-extract": coins(2)})
    with pytest.raises(
        ConfigError,
        match=r"'gsm8k' has no metric 'exact_match'.*It has: exact_match,strict-match, exact_match,flexible-extract",
    ):
        average(folder, ("gsm8k", "exact_match"))
    with pytest.raises(
        ConfigError,
        match=r"averages.all: 'gsm8k' has no metric 'exactmatch,strict-match'. Did you mean "
        r"'exact_match,strict-match'\?",
    ):
        average(folder, ("gsm8k", "exactmatch,strict-match"))


def test_both_directions_are_no_average(folder: EvaluationFolder) -> None:
    put(folder, "up", {"acc": coins(1)})
    put(folder, "down", {"loss": coins(2)}, higher=False)
    with pytest.raises(ConfigError, match=r"averages.all: .*all better when lower; got both. Split the average"):
        average(folder, ("up", None), ("down", None))


def test_the_key_follows_the_members(folder: EvaluationFolder) -> None:
    put(folder, "one", {"acc": coins(1), "other": coins(2)})
    keys = [
        average(folder, ("one", "acc")).key,
        average(folder, ("one", "other")).key,
        average(folder, ("one", "acc"), seed=1).key,
    ]
    assert len(set(keys)) == 3
    assert average(folder, ("one", "acc")).key == keys[0]
    assert average(folder, ("one", "acc")) == average(folder, ("one", "acc"))
