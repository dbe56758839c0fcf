"""Paired tests against enumeration, simulation and scipy: one test gives verdict, interval and p, whatever the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from holdfast.evaluation.compare.samples import ComparisonOptions, compare_samples
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.statistics.intervals import clopper_pearson
from holdfast.statistics.paired import Flips, Moments, moments, paired_test

LEVEL = 0.025

# ---------------------------------------------------------------------------------------------------------- one test


def rows_of(kind: str, values: np.ndarray, sizes: np.ndarray) -> list[dict[str, Any]]:
    """One model's rows; `values` in [0, 1]."""
    found = []
    for i, (value, size) in enumerate(zip(values.tolist(), sizes.tolist(), strict=True)):
        text = {"nats": (2 + value) * size, "tokens": size, "bytes": 4 * size}
        found.append({"doc": str(i), "acc": float(value > 0.5), "f1": value, **(text if kind == "text" else {})})
    return found


def side_of(name: str, **metric: Any) -> Evaluation:
    """An evaluation of one metric."""
    metrics = {name: Metric(value=0.5, **metric)}
    return Evaluation(suite="s", name="e", kind="task", primary=name, metrics=metrics, settings={}, model={}, key="")


METRICS = {
    "acc": ("acc", "accuracy", True),
    "f1": ("f1", "f1", True),
    "text": ("nats_per_token", "nats/token", False),
    "bits": ("bits_per_byte", "bits/byte", False),
    "perplexity": ("perplexity", "perplexity", False),
}


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(list(METRICS)),
    n=st.integers(1, 120),
    changed=st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]),
    shift=st.floats(-0.5, 0.5),
    confidence=st.sampled_from([0.5, 0.75, 0.9, 0.95, 0.99]),
    seed=st.integers(0, 2**32 - 1),
)
def test_interval_p_and_verdict_agree(kind, n, changed, shift, confidence, seed):
    """Whatever is compared: the interval excludes 0 <=> p < 1 - confidence <=> "lost" or "gained" without a margin."""
    from holdfast.records.margins import parse_margins

    rng = np.random.default_rng(seed)
    name, unit, higher = METRICS[kind]
    sizes = np.ceil(np.exp(rng.normal(3, 1, n)))
    before = rng.random(n)
    after = np.clip(np.where(rng.random(n) < changed, before + shift + rng.normal(0, 0.3, n), before), 0, 1)
    rows = [rows_of("text" if unit not in ("accuracy", "f1") else kind, side, sizes) for side in (before, after)]
    side = side_of(name, n=n, unit=unit, higher_is_better=higher)
    [c] = compare_samples(*rows, side, side, ComparisonOptions(confidence=confidence, margins=parse_margins(["0"])))
    excluded = c.interval[0] > 0 or c.interval[1] < 0
    assert excluded == (c.p_value < 1 - confidence) == (c.verdict in ("lost", "gained"))
    assert math.isnan(c.interval[0]) or c.interval[0] <= c.difference <= c.interval[1]
    test = paired_test(c)
    assert test is not None and test.interval(confidence) == c.interval and test.p_value() == c.p_value


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 300),
    flips=st.integers(0, 40),
    lost=st.floats(0, 1),
    value=st.floats(-0.4, 0.4),
    level=st.sampled_from([0.005, 0.025, 0.1]),
)
def test_limits_of_flips_are_where_p_is_the_level(n, flips, lost, value, level):
    flips = min(n, flips)
    test = Flips(lost=round(lost * flips), gained=flips - round(lost * flips), n=n)
    low, high = test.limits(level)
    assert -1 <= low <= test.estimate <= high <= 1
    if abs(high - value) > 1e-9:
        assert (test.p_below(value) < level) == (high < value)
    if abs(low - value) > 1e-9:
        assert (test.p_above(value) < level) == (low > value)
    exact = binomtest(test.lost, flips, 0.5).pvalue if flips else 1.0
    assert test.p_value() == pytest.approx(exact, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(2, 200),
    power=st.integers(1, 5),
    value=st.floats(-3, 3),
    level=st.sampled_from([1e-6, 0.005, 0.025, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_limits_of_means_are_where_p_is_the_level(n, power, value, level, seed):
    values = np.random.default_rng(seed).normal(size=n) ** power
    test = moments(float(values.mean()), {"all": (values - values.mean()) / n}, scale=1.0)
    low, high = test.limits(level)
    assert low <= test.estimate <= high
    at = test.estimate + value * test.error
    assert (test.p_below(at) < level) == (high < at) and (test.p_above(at) < level) == (low > at)


def test_paired_limits_of_a_skewed_mean_have_the_p_of_their_level():
    test = Moments(difference=0.3, error=1.0, skewness=0.6, df=40.0, n=50)
    low, high = test.limits(LEVEL)
    assert (test.p_below(high), test.p_above(low)) == pytest.approx((LEVEL, LEVEL), rel=1e-9)


@pytest.mark.parametrize(("shift", "kind"), [(2.0**-21, "text"), (-(2.0**-21), "text"), (2.0**-22, "f1")])
def test_a_difference_that_is_rounding_is_kept(shift, kind):
    """All samples moved the same way by less than sums in float32 are exact: no verdict of a loss or a gain."""
    rng = np.random.default_rng(0)
    values, sizes = rng.uniform(0.2, 0.8, 60), np.full(60, 20.0)
    name, unit, higher = METRICS[kind]
    for factor, verdicts in ((1.0, {"kept"}), (8.0, {"lost within the margin", "gained within the margin"})):
        moved = values * (1 + factor * shift * rng.uniform(0.5, 1.0, 60))
        moved = moved * (1 + 2 * factor * shift) if kind == "text" else moved
        side = side_of(name, n=60, unit=unit, higher_is_better=higher)
        found = compare_samples(rows_of(kind, values, sizes), rows_of(kind, moved, sizes), side, side)[0]
        assert found.verdict in verdicts
        assert (found.difference == 0.0) == (verdicts == {"kept"})


def test_p_has_no_floor():
    assert Flips(lost=900, gained=100, n=1000).p_value() == pytest.approx(binomtest(100, 1000, 0.5).pvalue, rel=1e-9)
    assert Moments(difference=1.0, error=0.05, n=1000, df=999.0).p_value() < 1e-60
    assert Flips(lost=900, gained=100, n=10_000).p_below(-0.01) < 1e-12


# ------------------------------------------------------------------------------------------------------------- flips


def test_clopper_pearson_is_scipys():
    for k, n in ((0, 5), (5, 5), (3, 17), (40, 1000)):
        known = binomtest(k, n).proportion_ci(0.95)
        assert clopper_pearson(k, n, LEVEL) == pytest.approx((known.low, known.high), rel=1e-12)


# ------------------------------------------------------------------------------------------------------------- means


def test_without_skewness_it_is_students_t():
    values = np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]) + 0.7
    test = moments(0.7, {"all": (values - 0.7) / 6}, scale=1.0)
    known = ttest_1samp(values, 0.0)
    assert (test.skewness, test.df) == pytest.approx((0.0, 5.0), abs=1e-12)
    assert test.p_value() == pytest.approx(known.pvalue, rel=1e-10)
    assert test.interval(0.9) == pytest.approx(tuple(known.confidence_interval(0.9)), rel=1e-10)


def test_independent_groups_add_their_moments():
    rng = np.random.default_rng(0)
    one, two = rng.exponential(size=40), rng.normal(size=90)
    parts = {"one": (one - one.mean()) / 40, "two": (two - two.mean()) / 90}
    test = moments(0.0, parts, scale=1.0)
    assert test.error == pytest.approx(math.hypot(one.std(ddof=1) / 40**0.5, two.std(ddof=1) / 90**0.5))
    third = sum(((v - v.mean()) ** 3).mean() / len(v) ** 2 for v in (one, two))
    assert test.skewness == pytest.approx(third / test.error**3)
    noise = [(((v - v.mean()) ** 4).mean() - v.var() ** 2) / len(v) ** 3 for v in (one, two)]
    assert test.df == pytest.approx(2 * test.error**4 / sum(noise))
    assert test.n == 40


# ------------------------------------------------------------------------------------------------------------- power


def test_the_samples_needed_are_those_of_80_percent_power():
    flips = Flips(lost=10, gained=10, n=200)
    assert 200 * flips.needed(0.02, LEVEL) == pytest.approx(2000, rel=0.1)  # (1.96 + 0.84)^2 * 0.1 / 0.02^2
    mean = Moments(difference=0.0, error=0.1, n=100, df=99.0)
    assert mean.detectable(LEVEL) == pytest.approx(0.1 * (1.9842 + 0.8416), rel=1e-3)
    assert mean.needed(0.1, LEVEL) == pytest.approx(2.8258**2, rel=1e-3)


# ----------------------------------------------------------------------------------------------------------- records


def test_records_of_earlier_versions_have_no_test_but_what_flips_say():
    known: dict[str, Any] = {"suite": "s", "name": "e", "metric": "m", "unit": "nats/token", "higher_is_better": False}
    known |= {"n": 9, "before": 2.0, "after": 2.1, "difference": 0.1, "interval": (0.0, 0.2), "p_value": 0.05}
    old = Comparison.from_json(known | {"test": "paired bootstrap"})
    assert paired_test(old) is None and old.verdict == "not shown" and old.tolerated == 0.01
    flips = Comparison.from_json(known | {"test": "McNemar (exact)", "flips_lost": 3, "flips_gained": 1})
    assert paired_test(flips) == Flips(lost=3, gained=1, n=9)


@pytest.mark.parametrize(("loss", "margin", "rate"), [(0.05, 0.01, 0.15), (-0.03, 0.01, 0.15), (0.0, 0.02, 0.1)])
def test_so_many_samples_decide_as_is_said(loss: float, margin: float, rate: float) -> None:
    measured = Flips(lost=round(500 * (rate + loss)), gained=round(500 * (rate - loss)), n=1000)
    n = math.ceil(1000 * measured.decides(-margin, 0.025))
    drawn = np.random.default_rng(0).multinomial(n, [(rate + loss) / 2, (rate - loss) / 2, 1 - rate], 400)
    hits = 0
    for lost, gained, _ in drawn:
        test = Flips(lost=int(lost), gained=int(gained), n=n)
        hits += test._rejects(-margin, 0.025) if loss > margin else test._turned._rejects(margin, 0.025)
    assert hits / 400 == pytest.approx(0.8, abs=0.06)


def test_moments_decide_on_what_they_measured_and_never_at_the_value_itself() -> None:
    test = Moments(difference=-0.03, error=0.01, n=100)
    assert test.decides(0.0, 0.025) == pytest.approx(test.needed(0.03, 0.025))
    assert test.decides(-0.03, 0.025) == math.inf == Flips(lost=3, gained=0, n=100).decides(-0.03, 0.025)
