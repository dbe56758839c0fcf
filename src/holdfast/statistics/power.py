"""What right / wrong answers of two models can show, before any are measured.

Of n questions a share psi will flip, and the true loss is d: (psi + d) / 2 are lost, (psi - d) / 2
gained. Given m flips McNemar's exact test shows a loss where at most c(m) of them are gains, so
that its power is, exactly,

    sum_m  Binomial(m; n, psi)  P(gains <= c(m) | m flips, each a gain with (psi - d) / (2 psi))
"""

from __future__ import annotations

import math

import numpy as np

from holdfast.statistics.paired import POWER


def power(n: int, flips: float, loss: float, level: float) -> float:
    """The chance that a loss is shown.

    Args:
        n: questions.
        flips: share of them that two models answer differently, in (0, 1]; at least `loss`.
        loss: the true one, a share of all questions.
        level: of the one-sided test.
    """
    from scipy.stats import binom

    rate = max(flips, loss)
    reach = 8.0 * math.sqrt(n * rate * (1.0 - rate)) + 8.0
    first, last = max(0, math.floor(n * rate - reach)), min(n, math.ceil(n * rate + reach))
    flipped = np.arange(first, last + 1)
    gains = binom.ppf(level, flipped, 0.5)
    most = np.where(binom.cdf(gains, flipped, 0.5) < level, gains, gains - 1.0)
    detected = binom.cdf(most, flipped, (rate - loss) / (2.0 * rate))
    return float((binom.pmf(flipped, n, rate) * detected).sum())


def smallest_loss(n: int, flips: float, level: float) -> float:
    """The smallest true loss that is shown with a chance of `POWER`; 1 where not even that is.

    Args:
        n: questions.
        flips: share of them that two models answer differently, where nothing was lost.
        level: of the one-sided test.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        loss = (low + high) / 2.0
        if power(n, flips, loss, level) >= POWER:
            high = loss
        else:
            low = loss
    return high
