"""Paired comparisons: exact where exact values exist, covering what they claim, silent where there is nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from holdfast.errors import DataError
from holdfast.evaluation.compare.samples import ComparisonOptions, compare_samples, join
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.statistics.paired import Flips

NATS = "nats_per_token"


def compared(before: list[dict], after: list[dict], *metrics: str, **options) -> list[Comparison]:
    values = {m: Metric(value=0.0, n=1, unit="accuracy", higher_is_better=True) for m in metrics}
    side = Evaluation(
        suite="keep", name="quiz", kind="task", primary=metrics[0], metrics=values, settings={}, model={}, key="k"
    )
    return compare_samples(before, after, side, side, ComparisonOptions(**options))


def right_wrong(values, column: str = "acc") -> list[dict]:
    return [{"doc": f"d{i}", "prompt": f"p{i}", column: float(v)} for i, v in enumerate(values)]


def text_rows(nats, tokens, sizes) -> list[dict]:
    return [
        {"doc": f"d{i}", "nats": float(a), "tokens": int(t), "bytes": int(b)}
        for i, (a, t, b) in enumerate(zip(nats, tokens, sizes, strict=True))
    ]


def compare_acc(before, after) -> Comparison:
    [comparison] = compared(right_wrong(before), right_wrong(after), "acc")
    return comparison


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (3, 9), (12, 12), (40, 17)])
def test_mcnemar_is_the_exact_binomial(lost, gained):
    before = [1] * lost + [0] * gained + [1, 0] * 20
    after = [0] * lost + [1] * gained + [1, 0] * 20
    comparison = compare_acc(before, after)
    assert comparison.test == "McNemar (exact)"
    assert (comparison.flips_lost, comparison.flips_gained) == (lost, gained)
    expected = binomtest(lost, lost + gained, 0.5).pvalue if lost + gained else 1.0
    assert comparison.p_value == pytest.approx(expected)
    assert comparison.p_value == pytest.approx(Flips(lost=gained, gained=lost, n=200).p_value()), "symmetric"
    assert comparison.difference == pytest.approx((gained - lost) / len(before))


def test_text_figures_are_ratios_of_sums():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 200, 60)
    before = text_rows(tokens * 2.0 + rng.normal(0, 1, 60), tokens, tokens * 4)
    after = [{**row, "nats": row["nats"] + 0.1 * row["tokens"]} for row in before]
    nats, bits, perplexity = compared(before, after, NATS, "bits_per_byte", "perplexity")
    assert nats.difference == pytest.approx(0.1)
    assert nats.interval == pytest.approx((0.1, 0.1)), "the same change in every token leaves no spread"
    assert bits.difference == pytest.approx(0.1 / 4 / math.log(2))
    assert perplexity.after / perplexity.before == pytest.approx(math.exp(0.1))
    assert (nats.unit, bits.unit, perplexity.unit) == ("nats/token", "bits/byte", "perplexity")
    assert all(
        not c.higher_is_better and c.verdict == "lost" and c.flips_lost is None for c in (nats, bits, perplexity)
    )
    assert [c.primary for c in (nats, bits, perplexity)] == [True, False, False]
    assert sum(r["nats"] for r in before) / tokens.sum() == pytest.approx(nats.before)


def test_identical_runs_differ_by_nothing():
    rows = text_rows([3.0, 4.0, 5.0], [2, 2, 2], [8, 8, 8])
    for c in compared(rows, rows, NATS, "perplexity"):
        assert (c.difference, c.interval, c.p_value, c.verdict) == (0.0, (0.0, 0.0), 1.0, "kept")


def test_answers_of_which_none_flipped_are_as_sure_as_their_number():
    """0 of n: a change of less than 1 - 0.025^(1/n) is not ruled out (Clopper and Pearson 1934)."""
    for column in ("acc", "f1"):
        for n, verdict in ((3, "not shown"), (400, "kept")):
            rows = right_wrong([1, 0.5 if column == "f1" else 0] + [1] * (n - 2), column)
            [c] = compared(rows, rows, column)
            high = binomtest(0, n).proportion_ci(0.95).high
            assert (c.difference, c.p_value, c.verdict) == (0.0, 1.0, verdict)
            assert c.interval == pytest.approx((-high, high))


def test_one_sample_says_nothing():
    [c] = compared(text_rows([3.0], [2], [8]), text_rows([9.0], [2], [8]), NATS)
    assert c.difference == 3.0
    assert math.isnan(c.interval[0])
    assert (c.p_value, c.verdict) == (1.0, "not shown")


def test_few_equal_changes_are_judged_by_their_number():
    """Without any spread the sign test is left: 5 of 5 in one direction have p 2^-4."""
    before = text_rows([10.0] * 5, [10] * 5, [40] * 5)
    [c] = compared(before, [{**row, "nats": 20.0} for row in before], NATS)
    assert c.p_value == pytest.approx(0.0625) and math.isnan(c.interval[0]) and c.verdict == "not shown"
    before = text_rows([10.0] * 10, [10] * 10, [40] * 10)
    [c] = compared(before, [{**row, "nats": 20.0} for row in before], NATS)
    assert c.p_value == pytest.approx(2**-9) and c.interval == pytest.approx((1.0, 1.0)) and c.verdict == "lost"


def test_repeated_documents_are_joined_in_order():
    rows = [{"doc": "same", "prompt": "p", "acc": v} for v in (1.0, 0.0, 1.0)]
    later = [{"doc": "same", "prompt": "p", "acc": v} for v in (1.0, 1.0, 1.0)]
    before, after = join(rows, later)
    assert [(a["acc"], b["acc"]) for a, b in zip(before, after, strict=True)] == [(1.0, 1.0), (0.0, 1.0), (1.0, 1.0)]
    with pytest.raises(DataError, match="1 of 3 occur only before, and 0 of 2 only after"):
        join(rows, later[:2])


def test_same_document_in_two_subtasks_is_two_samples():
    rows = [{"doc": "same", "prompt": "p", "task": t, "acc": v} for t, v in (("a", 1.0), ("b", 0.0))]
    before, after = join(rows, rows[::-1])
    assert [r["task"] for r in after] == [r["task"] for r in before] == ["a", "b"]


def test_other_samples_and_other_prompts_are_refused_with_counts():
    rows = right_wrong([1, 0, 1])
    other = [*rows[:2], {"doc": "x", "prompt": "", "acc": 1.0}, {"doc": "y", "prompt": "", "acc": 1.0}]
    with pytest.raises(DataError, match=r"keep/quiz.*1 of 3 occur only before, and 2 of 4 only after"):
        compared(rows, other, "acc")
    with pytest.raises(DataError, match=r"2 of 3 samples changed .*now with another prompt"):
        compared(rows, [rows[0], *({**r, "prompt": "chat"} for r in rows[1:])], "acc")
