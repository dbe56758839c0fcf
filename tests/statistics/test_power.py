"""What answers can show before they are given: exact power of McNemar's test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from holdfast.statistics.paired import POWER
from holdfast.statistics.power import power, smallest_loss

LEVELS = (0.025, 0.025 / 12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("n", "flips"), [(100, 0.05), (200, 0.2), (2000, 0.1)])
def test_the_smallest_loss_is_seen_as_often_as_is_said(n: int, flips: float, level: float) -> None:
    loss = smallest_loss(n, flips, level)
    rate = max(flips, loss)
    shares = [(rate + loss) / 2, (rate - loss) / 2, 1 - rate]
    drawn = np.random.default_rng(0).multinomial(n, shares, 20_000)
    seen = binom.cdf(drawn[:, 1], drawn[:, 0] + drawn[:, 1], 0.5) < level
    assert seen.mean() == pytest.approx(POWER, abs=0.03)
    assert power(n, flips, loss, level) == pytest.approx(seen.mean(), abs=0.01)


@pytest.mark.parametrize("level", LEVELS)
def test_without_a_loss_the_power_is_at_most_the_level(level: float) -> None:
    assert 0.5 * level < power(1000, 0.1, 0.0, level) <= level


def test_more_questions_see_less_and_three_see_nothing() -> None:
    losses = [smallest_loss(n, 0.1, 0.025) for n in (100, 400, 1600, 6400)]
    assert losses == sorted(losses, reverse=True)
    assert smallest_loss(3, 0.1, 0.025) == 1.0
