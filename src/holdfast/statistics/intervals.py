"""Intervals over samples: the bootstrap, and exact ones of a share. Those of figures are in
`records.figure`.

Bootstrap figures give the *expanded* percentile interval (Hesterberg 2015, "What Teachers Should
Know About the Bootstrap", section 4.3): the plain percentile interval is too narrow by sqrt((n - 1)
/ n) and by normal against t quantiles, which matters for a few dozen samples and vanishes for
thousands.

scipy.special is imported where it is used: scipy.stats gives the same numbers and takes a second to
load.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from holdfast.records.figure import CONFIDENCE
from holdfast.support.quantiles import t_quantile


def two_sided_p(interval_at: Callable[[float], tuple[float, float] | None]) -> float:
    """Two-sided chance of "it is 0": what is left at the level at which an interval just holds 0.

    Args:
        interval_at: the interval at a level in (0, 1); None: nothing is known of the noise.

    Returns:
        In [0, 1]; NaN where there is no interval.
    """
    if interval_at(CONFIDENCE) is None:
        return math.nan
    low, high = 0.0, 50.0  # -log2 of the chance; beyond, 1 - chance is 1
    for _ in range(60):
        middle = (low + high) / 2
        ends = interval_at(1 - 2.0**-middle)
        assert ends is not None
        low, high = (low, middle) if ends[0] <= 0 <= ends[1] else (middle, high)
    return float(2.0**-low)


def expanded_interval(
    values: np.ndarray, *, n: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Percentile interval at the expanded levels `Phi(-+ sqrt(n / (n - 1)) t_{n-1})`.

    Args:
        values: `[B]` bootstrap figures; NaNs, as of resamples of empty documents, are left out.
        n: samples behind each of them.
        confidence: level of the interval, in (0, 1).

    Returns:
        (low, high); NaNs for n < 2 or nothing but NaNs, the whole line where one of them is
        infinite.
    """
    from scipy.special import ndtr

    values = values[~np.isnan(values)]
    if n < 2 or values.size == 0:
        return (math.nan, math.nan)
    if np.isinf(
        values
    ).any():  # leaving these out would make the interval narrower than what it stands for
        return (-math.inf, math.inf)
    level = float(ndtr(math.sqrt(n / (n - 1)) * t_quantile(n - 1, (1 - confidence) / 2)))
    low, high = np.quantile(values, [level, 1 - level])
    return (float(low), float(high))


def known_interval(interval: tuple[float, float]) -> tuple[float, float] | None:
    """The interval, None where it could not be had (NaN)."""
    return None if math.isnan(interval[0]) else interval


def clopper_pearson(successes: int, trials: int, level: float) -> tuple[float, float]:
    """Exact limits of a share, each at `level` (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    low = float(betaincinv(successes, trials - successes + 1, level)) if successes else 0.0
    high = (
        float(betaincinv(trials - successes, successes + 1, level)) if successes < trials else 0.0
    )
    return low, 1.0 - high
