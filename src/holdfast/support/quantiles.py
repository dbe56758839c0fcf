"""Quantiles of distributions. scipy.special is imported where it is used: scipy.stats gives the
same numbers and takes a second to load."""

from __future__ import annotations

import functools
import statistics


@functools.cache
def t_quantile(df: int, p: float) -> float:
    """The p-quantile (0 < p < 1) of Student's t with `df` >= 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def normal_quantile(p: float) -> float:
    """The p-quantile (0 < p < 1) of the standard normal distribution."""
    return statistics.NormalDist().inv_cdf(p)
