"""The samples' part of figures that share their samples: its algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.records.figure import Figure, SamplesPart
from holdfast.records.study import SampleCorrelation
from holdfast.statistics.samples_part import Contributions, part_of
from holdfast.statistics.samples_part import correlation as correlation_of
from holdfast.statistics.shares import fieller, kept_share

TARGET, SOURCE = ("learn", "functions", "nats_per_token"), ("keep", "prose", "nats_per_token")
Z = 1.959963984540054


def correlation(entry, influences):
    """Of arrays that are of the same samples."""
    made = {n: Contributions(samples=tuple(map(str, range(len(w)))), values=w) for n, w in influences.items()}
    found = correlation_of(entry, made)
    assert found is not None
    return found


def figure(trial, by_seed, halves, found) -> Figure:
    return Figure(
        value=sum(by_seed) / len(by_seed),
        by_seed=dict(enumerate(by_seed)),
        samples_half=math.hypot(*halves.values()),
        samples_part=part_of(trial, halves, found),
    )


def test_a_correlation_is_numpy_s_and_what_has_no_spread_goes_along_with_nothing():
    rng = np.random.default_rng(0)
    influences = {4: rng.normal(size=30), 7: rng.normal(size=30) + 1.0, 9: np.zeros(30)}
    found = correlation(TARGET, influences)
    assert (found.trials, found.rows[0], found.rows[2]) == ([4, 7, 9], [], [0.0, 0.0])
    assert (
        found.between(7, 4)
        == found.between(4, 7)
        == pytest.approx(np.corrcoef(influences[4], influences[7])[0, 1], abs=1e-6)
    )
    assert found.between(9, 9) == 1.0
    with pytest.raises(KeyError):
        found.between(4, 5)


def test_other_samples_and_single_ones_have_no_correlation():
    one, other = (Contributions(samples=names, values=np.array([1.0, -1.0])) for names in (("a", "b"), ("a", "c")))
    found = correlation_of(TARGET, {0: one, 1: other, 2: one})
    assert found is not None and found.trials == [0, 2] and found.between(0, 2) == 1.0
    assert correlation_of(TARGET, {0: Contributions(samples=("a",), values=np.zeros(1))}) is None
    assert correlation_of(TARGET, {}) is None


def test_sums_of_figures_are_what_the_samples_themselves_give():
    """Of any sum of three trials' gains on two entries: the half-width that float64 moments of the summed influences
    give."""
    rng = np.random.default_rng(1)
    common = {e: rng.normal(size=n) for e, n in ((TARGET, 40), (SOURCE, 60))}
    influences = {e: {t: common[e] * (t + 1) + rng.normal(size=len(common[e])) for t in range(3)} for e in common}
    found = [correlation(e, parts) for e, parts in influences.items()]
    halves = {
        e: {t: Z * w.std(ddof=1) / math.sqrt(len(w)) for t, w in parts.items()} for e, parts in influences.items()
    }
    parts = [part_of(t, {e: halves[e][t] / 2 for e in halves}, found) for t in range(3)]
    weights = (1.0, -0.7, 0.2)
    whole = SamplesPart.total(zip(weights, parts, strict=True))
    by_hand = sum(
        (Z / 2) ** 2
        * sum(f * w for f, w in zip(weights, influences[e].values(), strict=True)).var(ddof=1)
        / len(common[e])
        for e in common
    )
    assert whole is not None and whole.half == pytest.approx(math.sqrt(by_hand), rel=1e-5)
    assert whole.times(-2.0).half == pytest.approx(2 * whole.half)
    assert SamplesPart.total([(1.0, parts[0]), (-1.0, parts[0])]).half == 0.0


def test_what_is_not_known_counts_as_independent():
    found = [SampleCorrelation(entry=TARGET, trials=[0, 1], rows=[[], [0.9]])]
    one, two, unknown = (figure(t, (0.2, 0.3), {TARGET: 0.1}, found) for t in (0, 1, 2))
    assert unknown.samples_part is None and part_of(0, {SOURCE: 0.1}, found) is None
    assert part_of(0, {TARGET: math.nan}, found) is None
    assert (one - unknown).samples_half == pytest.approx(math.hypot(0.1, 0.1))
    assert (one - two).samples_half == pytest.approx(0.1 * math.sqrt(0.2))
    assert (one.samples_covariance(unknown), one.samples_covariance(two)) == (0.0, pytest.approx(0.009))
    assert SamplesPart.total([(1.0, one.samples_part), (1.0, None)]) is None


def test_a_trial_beside_itself_has_a_difference_without_noise():
    found = [SampleCorrelation(entry=TARGET, trials=[0], rows=[[]])]
    alone = figure(0, (0.2,), {TARGET: 0.1}, found)
    nothing = alone - alone
    assert nothing.interval_at(0.95) == (0.0, 0.0)


def test_a_share_takes_the_samples_of_both_trials_as_pairs():
    """Fieller's interval with the covariance that a correlation of 0.9 gives, where both were measured alike."""
    shared = [SampleCorrelation(entry=TARGET, trials=[0, 1], rows=[[], [0.9]])]
    direct, ours = (figure(trial, (gain,), {TARGET: 0.05}, shared) for trial, gain in ((0, 0.5), (1, 0.4)))
    variance = 0.05**2
    expected = fieller(0.4, 0.5, v_aa=variance, v_ab=0.9 * variance, v_bb=variance)
    assert kept_share(ours, direct).interval == pytest.approx(expected, rel=1e-6)
