"""Intervals: Student's t over seeds, the bootstrap over samples, and how parts of noise go together.

- *Seeds.* A mean of n values has the half-width t_{n-1} s / sqrt(n).
- *Samples.* Bootstrap figures give the *expanded* percentile interval (Hesterberg 2015, "What Teachers Should Know
  About the Bootstrap", section 4.3): the plain percentile interval is too narrow by sqrt((n - 1) / n) and by normal
  against t quantiles, which matters for a few dozen samples and vanishes for thousands.
- *Both.* Seeds share their samples, so more seeds do not shrink the samples' part: half^2 = seeds^2 + samples^2.

scipy.special is imported where it is used: scipy.stats gives the same numbers and takes a second to load.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

CONFIDENCE = 0.95
"""The level of intervals where nothing else is asked for."""


@functools.cache
def t_quantile(df: int, p: float) -> float:
    """The p-quantile (0 < p < 1) of Student's t with `df` >= 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def normal_quantile(p: float) -> float:
    """The p-quantile (0 < p < 1) of the standard normal distribution."""
    return statistics.NormalDist().inv_cdf(p)


def rescaled(confidence: float, *, known: float = CONFIDENCE) -> float:
    """By how much a normal interval at the level `known` grows when it is wanted at `confidence`."""
    if confidence == known:
        return 1.0
    return normal_quantile(0.5 + confidence / 2) / normal_quantile(0.5 + known / 2)


def t_half_width(values: Sequence[float], *, confidence: float = CONFIDENCE) -> float:
    """Half-width of the t-interval of the mean of independent values; 0 for a single one, which shows no spread, NaN
    where one is not finite."""
    n = len(values)
    if n < 2:
        return 0.0
    if not all(map(math.isfinite, values)):
        return math.nan
    return t_quantile(n - 1, 0.5 + confidence / 2) * statistics.stdev(values) / math.sqrt(n)


def seeds_and_samples(
    by_seed: Sequence[float], samples_half: float, *, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Interval of the mean over seeds that covers training seeds and evaluated samples (module docstring).

    Args:
        by_seed: the figure of each seed, at least one.
        samples_half: half-width of the samples' part at `CONFIDENCE`; 0 where it could not be had.
        confidence: level of the interval.

    Returns:
        None for one seed without a samples' part: nothing is known of its noise.
    """
    if len(by_seed) < 2 and samples_half == 0:
        return None
    mean = statistics.fmean(by_seed)
    half = math.hypot(t_half_width(by_seed, confidence=confidence), rescaled(confidence) * samples_half)
    return (mean - half, mean + half)


def chance_of_zero(interval_at: Callable[[float], tuple[float, float] | None]) -> float:
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


def expanded_interval(values: np.ndarray, *, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile interval at the expanded levels `Phi(-+ sqrt(n / (n - 1)) t_{n-1})`.

    Args:
        values: `[B]` bootstrap figures; NaNs, as of resamples of empty documents, are left out.
        n: samples behind each of them.
        confidence: level of the interval, in (0, 1).

    Returns:
        (low, high); NaNs for n < 2 or nothing but NaNs, the whole line where one of them is infinite.
    """
    from scipy.special import ndtr

    values = values[~np.isnan(values)]
    if n < 2 or values.size == 0:
        return (math.nan, math.nan)
    if np.isinf(values).any():  # leaving these out would make the interval narrower than what it stands for
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
    high = float(betaincinv(trials - successes, successes + 1, level)) if successes < trials else 0.0
    return low, 1.0 - high
