"""Intervals against values known otherwise: quantiles of Student's t from 30 digits of the incomplete beta function."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from holdfast.records.figure import rescaled, seeds_and_samples, t_half_width
from holdfast.statistics.intervals import expanded_interval
from holdfast.support.quantiles import t_quantile


@pytest.mark.parametrize(
    ("df", "p", "value"),
    [
        (1, 0.975, 12.706204736174705),
        (2, 0.975, 4.302652729749464),
        (4, 0.025, -2.7764451051977943),
        (9, 0.9, 1.3830287383966322),
        (30, 0.9995, 3.645958635042022),
        (101, 0.3, -0.5260596375248581),
    ],
)
def test_t_quantiles(df, p, value):
    assert t_quantile(df, p) == pytest.approx(value, rel=1e-12)
    assert t_quantile(df, 1 - p) == pytest.approx(-value, rel=1e-10)


def test_t_half_width():
    values = [0.10, 0.14, 0.09]
    assert t_half_width(values) == pytest.approx(4.302652729749464 * statistics.stdev(values) / math.sqrt(3), rel=1e-14)
    assert t_half_width([0.3]) == 0.0
    assert t_half_width([0.1, 0.1, 0.1]) == 0.0
    assert math.isnan(t_half_width([0.1, math.inf]))


def test_seeds_and_samples():
    assert seeds_and_samples([0.5], 0.0) is None
    assert seeds_and_samples([0.5], 0.2) == (0.3, 0.7)
    half = math.hypot(t_half_width([1.0, 2.0], confidence=0.99), 0.2 * 2.5758293035489004 / 1.959963984540054)
    assert seeds_and_samples([1.0, 2.0], 0.2, confidence=0.99) == pytest.approx((1.5 - half, 1.5 + half), rel=1e-12)
    assert rescaled(0.95, known=0.99) * rescaled(0.99, known=0.95) == pytest.approx(1.0)


def test_bootstrap_intervals_by_hand():
    draws = np.arange(101.0)
    level = statistics.NormalDist().cdf(math.sqrt(3 / 2) * -4.302652729749464)  # n = 3
    assert expanded_interval(draws, n=3) == pytest.approx((100 * level, 100 * (1 - level)))
    assert expanded_interval(np.append(draws, math.nan), n=3) == expanded_interval(draws, n=3)
    for infinite in (math.inf, -math.inf):  # left out, it would make the interval narrower than it is
        assert expanded_interval(np.append(draws, infinite), n=3) == (-math.inf, math.inf)
    assert all(map(math.isnan, expanded_interval(draws, n=1)))
