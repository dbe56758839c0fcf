"""Paired tests: two models on the same samples, is the change more than chance?

- Right / wrong answers: McNemar's exact test. Only flips count; with b samples lost and c gained, p is the two-sided
  binomial probability of a split as uneven as (b, c) under 1/2 (McNemar 1947).
- All others: paired bootstrap. Samples are drawn with replacement and both models' figures are formed from the same
  draw. With q = (b + 1) / (B + 1) the smaller tail of B draws beyond 0, the p-value is 2 T_{n-1}(sqrt((n-1)/n)
  Phi^-1(q)): the level at which the expanded percentile interval (see `intervals`) touches 0, so that p and interval
  agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast.statistics.intervals import CONFIDENCE, expanded_interval

MCNEMAR = "McNemar (exact)"
BOOTSTRAP = "paired bootstrap"


def mcnemar_exact(lost: int, gained: int) -> float:
    """Two-sided exact p-value of McNemar's test from the numbers of flips; 1 without flips."""
    from scipy.special import bdtr

    # under 1/2 the distribution is symmetric: splits at least as uneven as this one are its two tails
    return min(1.0, 2.0 * float(bdtr(min(lost, gained), lost + gained, 0.5)))


def bootstrap_p_value(draws: Sequence[float] | np.ndarray, *, n: int) -> float:
    """Two-sided p-value of "no difference" from bootstrap differences (module docstring).

    Args:
        draws: `[B]` bootstrap differences; NaNs are left out, and with an infinite one p is NaN.
        n: samples behind each.
    """
    from scipy.special import ndtri, stdtr

    values = np.asarray(draws, dtype=np.float64)
    values = values[~np.isnan(values)]
    if n < 2 or values.size == 0:
        return 1.0
    if np.isinf(values).any():
        return math.nan
    tail = (min(int((values <= 0).sum()), int((values >= 0).sum())) + 1) / (values.size + 1)
    return min(1.0, 2.0 * float(stdtr(n - 1, math.sqrt((n - 1) / n) * ndtri(min(tail, 0.5)))))


def paired_bootstrap(
    draws: np.ndarray, *, n: int, same: bool, confidence: float = CONFIDENCE
) -> tuple[tuple[float, float], float]:
    """(interval, p-value) of a difference of two models.

    Args:
        draws: `[B]` bootstrap differences.
        n: samples behind each.
        same: whether the two models do not differ in a single sample: the interval is then zero wide, and p is 1.
        confidence: level of the interval, in (0, 1).
    """
    if same:
        return (0.0, 0.0), 1.0
    return expanded_interval(draws, n=n, confidence=confidence), bootstrap_p_value(draws, n=n)
