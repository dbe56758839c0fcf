"""How one quantity moves with a power of another."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from holdfast.errors import DataError
from holdfast.statistics.power_law import exponent, exponent_over_seeds


def test_a_power_is_found() -> None:
    x = [1e6, 2e6, 8e6]
    assert exponent(x, [3 * v**-0.5 for v in x]) == pytest.approx(-0.5)
    noisy = [3.0, 1.1, 0.7]
    assert exponent(x, noisy) == pytest.approx(np.polyfit(np.log(x), np.log(noisy), 1)[0])


def test_seeds_give_an_interval() -> None:
    x, by_seed = [1.0, 2.0, 4.0], [[1.0, 2.0, 4.0], [1.0, 1.0, 2.0], [2.0, 2.0, 4.0]]
    slopes = [exponent(x, y) for y in by_seed]
    mean, interval = exponent_over_seeds(x, by_seed)
    assert mean == pytest.approx(np.mean(slopes))
    wanted = stats.t.interval(0.95, 2, loc=np.mean(slopes), scale=stats.sem(slopes))
    assert interval == pytest.approx(wanted)
    assert exponent_over_seeds(x, by_seed[:1]) == (slopes[0], None)
    assert exponent_over_seeds(x, [by_seed[0]] * 3)[1] == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(
    ("x", "y"), [([1, 1], [1, 2]), ([1], [1]), ([1, 2], [1, 0]), ([1, 2], [1, np.inf]), ([1, 2], [1])]
)
def test_what_has_none(x: list[float], y: list[float]) -> None:
    with pytest.raises(DataError, match="Expected positive numbers at two and more places"):
        exponent(x, y)
