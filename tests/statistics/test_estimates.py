"""Bootstrap draws and intervals of figures: against rows drawn one by one, and against Student's t."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.statistics.estimates import TEXT_FIGURES, Ratio, estimate, joint_sums, resampled_sums


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


@pytest.mark.parametrize("n", [1, 2, 15, 33, 500])
@pytest.mark.parametrize("kinds", [1, 2, 40, 500])
def test_every_draw_has_n_rows_and_columns_of_one_call_are_paired(n, kinds):
    values = np.random.default_rng(n).integers(0, kinds, n).astype(float)
    sums = resampled_sums(np.column_stack([values, np.ones(n), 3 * values + 2]), resamples=50, seed=n)
    assert (sums[:, 1] == n).all()
    assert sums[:, 2] == pytest.approx(3 * sums[:, 0] + 2 * n)
    again = resampled_sums(np.column_stack([values, np.ones(n), 3 * values + 2]), resamples=50, seed=n)
    assert np.array_equal(sums, again), "equal seed, equal draws"


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


def test_estimate_matches_the_t_interval_for_normal_data():
    from scipy.stats import t

    values = np.random.default_rng(2).normal(1.0, 0.3, 12)
    value, interval = estimate(Ratio(numerator="x"), [{"x": float(v)} for v in values], resamples=20_000)
    half = t.ppf(0.975, 11) * values.std(ddof=1) / math.sqrt(12)
    assert value == pytest.approx(values.mean())
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)


def test_estimate_of_one_document_has_no_interval():
    assert estimate(TEXT_FIGURES["nats_per_token"], [{"nats": 4.0, "tokens": 2}]) == (2.0, None)


@pytest.mark.parametrize(("right", "limits"), [(1.0, (0.9119, 1.0)), (0.0, (0.0, 0.0881))])
def test_a_share_whose_samples_all_agree_has_exact_limits(right, limits):
    """Those of scipy.stats.binomtest(40, 40).proportion_ci(): no resample of forty right answers has a wrong one."""
    figure = Ratio(numerator="acc", unit="accuracy")
    assert estimate(figure, [{"acc": right}] * 40) == (right, pytest.approx(limits, abs=1e-4))
    parts = Ratio(numerator="strict_acc", denominator="strict_acc#", unit="accuracy")
    rows = [{"strict_acc": right * k, "strict_acc#": k} for k in (1, 2, 3, 2)]
    value, (low, high) = estimate(parts, rows)
    assert value == right and high - low == pytest.approx(1 - 0.025**0.25)  # four questions, not eight parts


def test_what_is_no_share_keeps_its_bootstrap():
    assert estimate(Ratio(numerator="reward", unit="points"), [{"reward": 1.0}] * 40) == (1.0, (1.0, 1.0))
    assert estimate(Ratio(numerator="nats", denominator="tokens"), [{"nats": 1.0, "tokens": 1}] * 40)[1] == (1.0, 1.0)
