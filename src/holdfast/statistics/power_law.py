"""Powers: how one quantity moves with another, y ~ x^e, as the slope e of log y against log x (least squares)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from holdfast.errors import DataError
from holdfast.records.figure import CONFIDENCE, t_half_width


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y against log x.

    Raises:
        DataError: fewer than two different x, or a number that is not positive and finite.
    """
    if len(x) != len(y) or len(set(x)) < 2 or not all(0 < v < math.inf for v in (*x, *y)):
        raise DataError(f"Expected positive numbers at two and more places, got {list(y)} at {list(x)}.")
    found = statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y])
    return float(found.slope)


def exponent_over_seeds(
    x: Sequence[float], by_seed: Sequence[Sequence[float]], *, confidence: float = CONFIDENCE
) -> tuple[float, tuple[float, float] | None]:
    """The mean slope over seeds and its interval (Student's t; None of one seed).

    Args:
        x: places, the same for all seeds.
        by_seed: seed, place.
        confidence: level.
    """
    slopes = [exponent(x, y) for y in by_seed]
    mean = statistics.fmean(slopes)
    if len(slopes) < 2:
        return mean, None
    half = t_half_width(slopes, confidence=confidence)
    return mean, (mean - half, mean + half)
