"""Paired comparisons: exact where exact values exist, covering what they claim, silent where there is nothing."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy.stats import binom, binomtest, chisquare

from holdfast.errors import DataError
from holdfast.evaluation.compare.samples import compare_samples, join
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.statistics import estimates
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio, estimate, joint_sums, resampled_sums
from holdfast.statistics.paired import bootstrap_p_value, mcnemar_exact


def an_evaluation(*metrics: str, primary: str | None = None, higher: bool = True) -> Evaluation:
    values = {m: Metric(value=0.0, n=1, unit="accuracy", higher_is_better=higher) for m in metrics}
    return Evaluation(
        suite="source",
        name="quiz",
        kind="task",
        primary=primary or metrics[0],
        metrics=values,
        settings={},
        model={},
        key="k",
    )


def right_wrong(values) -> list[dict]:
    return [{"doc": f"d{i}", "prompt": f"p{i}", "acc": float(v)} for i, v in enumerate(values)]


def text_rows(nats, tokens, sizes) -> list[dict]:
    return [
        {"doc": f"d{i}", "nats": float(a), "tokens": int(t), "bytes": int(b)}
        for i, (a, t, b) in enumerate(zip(nats, tokens, sizes, strict=True))
    ]


def compare_acc(before, after, **kwargs):
    [comparison] = compare_samples(
        right_wrong(before), right_wrong(after), an_evaluation("acc"), an_evaluation("acc"), **kwargs
    )
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
    assert comparison.p_value == pytest.approx(mcnemar_exact(gained, lost)), "symmetric"
    assert comparison.difference == pytest.approx((gained - lost) / len(before))


def test_pairing_sees_what_unpaired_errors_hide():
    """Ten of 400 answers lost, none gained: plain against the samples' own noise, invisible between two independent accuracies."""
    before = [1] * 200 + [0] * 200
    after = [0] * 10 + [1] * 190 + [0] * 200
    comparison = compare_acc(before, after)
    unpaired_error = math.sqrt(0.5 * 0.5 / 400 + 0.475 * 0.525 / 400)
    assert abs(comparison.difference) < 1.96 * unpaired_error
    assert comparison.p_value < 0.01
    assert comparison.verdict == "lost"
    assert comparison.interval[1] - comparison.interval[0] < 2 * 1.96 * unpaired_error / 2


def test_text_figures_are_ratios_of_sums_from_the_same_draws():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 200, 60)
    before = text_rows(tokens * 2.0 + rng.normal(0, 1, 60), tokens, tokens * 4)
    after = [{**row, "nats": row["nats"] + 0.1 * row["tokens"]} for row in before]
    names = ("nats_per_token", "bits_per_byte", "perplexity")
    nats, bits, perplexity = compare_samples(before, after, an_evaluation(*names), an_evaluation(*names))
    assert nats.difference == pytest.approx(0.1)
    assert nats.interval == pytest.approx((0.1, 0.1)), "the same change in every token leaves nothing to resample"
    assert bits.difference == pytest.approx(0.1 / 4 / math.log(2))
    assert perplexity.after / perplexity.before == pytest.approx(math.exp(0.1))
    assert (nats.unit, bits.unit, perplexity.unit) == ("nats/token", "bits/byte", "perplexity")
    assert all(
        not c.higher_is_better and c.verdict == "lost" and c.flips_lost is None for c in (nats, bits, perplexity)
    )
    assert [c.primary for c in (nats, bits, perplexity)] == [True, False, False]
    assert sum(r["nats"] for r in before) / tokens.sum() == pytest.approx(nats.before)


def test_long_documents_weigh_what_they_are():
    before = text_rows([10.0, 1000.0], [10, 1000], [10, 1000])
    after = text_rows([20.0, 1000.0], [10, 1000], [10, 1000])
    [comparison] = compare_samples(before, after, an_evaluation("nats_per_token"), an_evaluation("nats_per_token"))
    assert comparison.difference == pytest.approx(10 / 1010)


@pytest.mark.parametrize("n", [8, 40])
def test_interval_covers_at_its_level(n):
    """Ratio data, 95% asked, few samples included (where the plain percentile interval is too narrow)."""
    rng = np.random.default_rng(n)
    covered, trials = 0, 300
    for trial in range(trials):
        tokens = rng.integers(10, 60, n)
        shift = rng.normal(0.05, 0.2, n)
        before = text_rows(tokens * 3.0, tokens, tokens)
        after = text_rows(tokens * (3.0 + shift), tokens, tokens)
        [c] = compare_samples(
            before, after, an_evaluation("nats_per_token"), an_evaluation("nats_per_token"), resamples=400, seed=trial
        )
        covered += c.interval[0] <= 0.05 <= c.interval[1]
    assert 0.91 <= covered / trials <= 0.985


def test_p_values_of_no_difference_are_uniform_enough():
    rng = np.random.default_rng(3)
    values = []
    for trial in range(300):
        before = [{"doc": str(i), "prompt": "", "f1": float(v)} for i, v in enumerate(rng.normal(0.5, 0.2, 25))]
        after = [{**row, "f1": row["f1"] + rng.normal(0, 0.1)} for row in before]
        [c] = compare_samples(before, after, an_evaluation("f1"), an_evaluation("f1"), resamples=400, seed=trial)
        assert c.test == "paired bootstrap"
        values.append(c.p_value)
    assert 0.02 <= np.mean(np.array(values) < 0.05) <= 0.085
    assert 0.4 <= np.mean(values) <= 0.6


def test_p_value_and_interval_agree():
    rng = np.random.default_rng(5)
    agreements = 0
    for trial in range(60):
        draws = rng.normal(0.05, 0.2, 30)
        before = [{"doc": str(i), "prompt": "", "f1": 0.0} for i in range(30)]
        after = [{**row, "f1": float(v)} for row, v in zip(before, draws, strict=True)]
        [c] = compare_samples(before, after, an_evaluation("f1"), an_evaluation("f1"), seed=trial)
        agreements += (c.p_value < 0.05) == (c.verdict != "within noise")
    assert agreements >= 58, "they may part only within resampling error of the level"


def test_identical_runs_differ_by_nothing():
    rows = text_rows([3.0, 4.0, 5.0], [2, 2, 2], [8, 8, 8])
    for c in compare_samples(
        rows, rows, an_evaluation("nats_per_token", "perplexity"), an_evaluation("nats_per_token", "perplexity")
    ):
        assert (c.difference, c.interval, c.p_value, c.verdict) == (0.0, (0.0, 0.0), 1.0, "within noise")
    c = compare_acc([1, 1, 1], [1, 1, 1])
    assert (c.difference, c.interval, c.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_one_sample_says_nothing():
    [c] = compare_samples(
        text_rows([3.0], [2], [8]),
        text_rows([9.0], [2], [8]),
        an_evaluation("nats_per_token"),
        an_evaluation("nats_per_token"),
    )
    assert c.difference == 3.0
    assert math.isnan(c.interval[0])
    assert (c.p_value, c.verdict) == (1.0, "within noise")


def test_two_samples_cannot_be_significant():
    assert bootstrap_p_value(np.ones(4000), n=2) > 0.05


def test_samples_are_joined_by_document_in_any_order():
    before = right_wrong([1, 0, 1, 1])
    after = list(reversed(right_wrong([1, 0, 0, 1])))
    [c] = compare_samples(before, after, an_evaluation("acc"), an_evaluation("acc"))
    assert (c.flips_lost, c.flips_gained) == (1, 0)


def test_repeated_documents_are_joined_in_order():
    rows = [{"doc": "same", "prompt": "p", "acc": v} for v in (1.0, 0.0, 1.0)]
    later = [{"doc": "same", "prompt": "p", "acc": v} for v in (1.0, 1.0, 1.0)]
    before, after = join(rows, later)
    assert [(a["acc"], b["acc"]) for a, b in zip(before, after, strict=True)] == [(1.0, 1.0), (0.0, 1.0), (1.0, 1.0)]
    with pytest.raises(DataError, match="1 of 3 occur only before, 0 of 2 only after"):
        join(rows, later[:2])


def test_same_document_in_two_subtasks_is_two_samples():
    rows = [{"doc": "same", "prompt": "p", "task": t, "acc": v} for t, v in (("a", 1.0), ("b", 0.0))]
    before, after = join(rows, rows[::-1])
    assert [r["task"] for r in after] == [r["task"] for r in before] == ["a", "b"]


def test_other_samples_and_other_prompts_are_refused_with_counts():
    rows = right_wrong([1, 0, 1])
    other = [*rows[:2], {"doc": "x", "prompt": "", "acc": 1.0}, {"doc": "y", "prompt": "", "acc": 1.0}]
    with pytest.raises(DataError, match=r"source/quiz.*1 of 3 occur only before, 2 of 4 only after"):
        compare_samples(rows, other, an_evaluation("acc"), an_evaluation("acc"))
    with pytest.raises(DataError, match="2 of 3 samples were asked with another prompt"):
        compare_samples(
            rows, [rows[0], *({**r, "prompt": "chat"} for r in rows[1:])], an_evaluation("acc"), an_evaluation("acc")
        )


def test_metrics_without_per_sample_values_are_left_out():
    evaluation = an_evaluation("acc", "bleu")
    assert [c.metric for c in compare_samples(right_wrong([1, 0]), right_wrong([1, 1]), evaluation, evaluation)] == [
        "acc"
    ]


# ----------------------------------------------------------------------------------------------------------- the draws


def drawn_one_by_one(columns: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """The bootstrap as it is written down: n rows with replacement, summed."""
    rng = np.random.default_rng(seed)
    return np.stack([columns[rng.integers(0, len(columns), len(columns))].sum(0) for _ in range(resamples)])


def answers_of_two(n: int, seed: int = 0) -> np.ndarray:
    """`[n, 3]`: right or wrong before and after, correlated, and a 1 a row: at most four distinct rows."""
    rng = np.random.default_rng(seed)
    before = rng.random(n) < 0.6
    after = np.where(rng.random(n) < 0.8, before, rng.random(n) < 0.5)
    return np.column_stack([before, after, np.ones(n)]).astype(float)


@pytest.mark.parametrize(
    "columns",
    [answers_of_two(400), np.random.default_rng(0).gamma(2.0, 1.0, size=(400, 3))],
    ids=["few kinds", "all distinct"],
)
def test_sums_are_those_of_rows_drawn_with_replacement(columns):
    """Mean, covariance and tails agree with the plain bootstrap, whichever way the rows are drawn."""
    quick, plain = (
        resampled_sums(columns, resamples=20_000, seed=3),
        drawn_one_by_one(columns, resamples=20_000, seed=4),
    )
    assert quick.shape == plain.shape and quick.dtype == np.float64
    error = columns.std(0) * math.sqrt(400 / 20_000) + 1e-9
    assert (np.abs(quick.mean(0) - columns.sum(0)) < 4 * error).all()
    assert np.cov(quick.T) == pytest.approx(400 * np.cov(columns.T, bias=True), abs=0.04 * 400 * columns.var(0).max())
    differences = [sums[:, 1] - sums[:, 0] for sums in (quick, plain)]
    tails = [np.quantile(d, [0.001, 0.025, 0.5, 0.975, 0.999]) for d in differences]
    assert np.abs(tails[0] - tails[1]).max() < 0.25 * differences[1].std()


def test_counts_of_a_kind_are_binomial():
    """Half of 32 rows are of one kind: each count occurs as often as the binomial says."""
    columns = np.repeat([[0.0], [1.0]], 16, axis=0)
    draws = 40_000
    seen = np.bincount(resampled_sums(columns, resamples=draws, seed=0)[:, 0].astype(int), minlength=33)
    expected = draws * binom.pmf(np.arange(33), 32, 0.5)
    common = expected > 20
    assert chisquare(seen[common], expected[common] * seen[common].sum() / expected[common].sum()).pvalue > 0.001
    assert seen[~common].sum() < 100


@pytest.mark.parametrize("n", [1, 2, 15, 33, 500])
@pytest.mark.parametrize("kinds", [1, 2, 40, 500])
def test_every_draw_has_n_rows_and_columns_of_one_call_are_paired(n, kinds):
    values = np.random.default_rng(n).integers(0, kinds, n).astype(float)
    sums = resampled_sums(np.column_stack([values, np.ones(n), 3 * values + 2]), resamples=50, seed=n)
    assert (sums[:, 1] == n).all()
    assert sums[:, 2] == pytest.approx(3 * sums[:, 0] + 2 * n)
    assert np.array_equal(
        sums, resampled_sums(np.column_stack([values, np.ones(n), 3 * values + 2]), resamples=50, seed=n)
    ), "equal seed, equal draws"
    assert len(np.unique(values)) == 1 or not np.array_equal(
        sums, resampled_sums(np.column_stack([values, values, values]), resamples=50, seed=n + 1)
    )


@pytest.mark.parametrize(
    "columns", [answers_of_two(300), np.random.default_rng(1).normal(size=(300, 2))], ids=["few kinds", "all distinct"]
)
def test_how_many_are_drawn_at_a_time_changes_nothing(columns, monkeypatch):
    whole = resampled_sums(columns, resamples=101, seed=5)
    monkeypatch.setattr(estimates, "_CELLS", 700)
    assert resampled_sums(columns, resamples=101, seed=5) == pytest.approx(whole, abs=1e-9)


def test_the_order_of_the_samples_does_not_matter_where_few_are_distinct():
    columns = answers_of_two(300)
    assert np.array_equal(
        resampled_sums(columns, resamples=50, seed=2), resampled_sums(columns[::-1], resamples=50, seed=2)
    )


@pytest.mark.parametrize("kinds", [5, 1000])
def test_equal_columns_have_equal_sums_to_the_last_bit(kinds):
    """So that nothing is made of two models that say the same, however numbers are rounded."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=kinds)[rng.integers(0, kinds, 1000)]
    sums = resampled_sums(np.column_stack([values, np.full(1000, 3.0)] * 5), resamples=301, seed=1)
    assert (sums[:, ::2] == sums[:, :1]).all() and (sums[:, 1::2] == 3000).all()


def test_figures_drawn_together_are_columns_of_one_draw():
    columns = answers_of_two(200)
    parts = joint_sums({"a": columns[:, :2], "b": columns[:, 2:]}, resamples=30, seed=4)
    assert list(parts) == ["a", "b"]
    assert np.array_equal(np.hstack(list(parts.values())), resampled_sums(columns, resamples=30, seed=4))


def test_many_questions_cost_no_more_than_few():
    """Where they are of few kinds: drawing them one by one would take many times as long."""
    began = time.perf_counter()
    resampled_sums(answers_of_two(200_000), resamples=4000, seed=0)
    assert time.perf_counter() - began < 2.0, "these are 800 million rows"


def test_estimate_matches_the_t_interval_for_normal_data():
    from scipy.stats import t

    values = np.random.default_rng(2).normal(1.0, 0.3, 12)
    value, interval = estimate(Ratio(numerator="x"), [{"x": float(v)} for v in values], resamples=20_000)
    half = t.ppf(0.975, 11) * values.std(ddof=1) / math.sqrt(12)
    assert value == pytest.approx(values.mean())
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)


def test_estimate_of_one_document_has_no_interval():
    assert estimate(TEXT_FIGURES["nats_per_token"], text_rows([4.0], [2], [8])) == (2.0, None)
