"""Ridge regression on early signs: its solution, intervals that hold, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.errors import DataError
from holdfast.statistics.forecast import FEWEST_GROUPS, Example, fit, held_out, outside, predict

NAMES = ("one", "two", "three")
RESOLUTION = 0.02


def examples(count: int, *, noise: float, seed: int = 0, per_group: int = 2, shift: float = 0.0) -> list[Example]:
    """Losses whose asinh is linear in three features, of which the third says nothing; groups of equal settings."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        x = rng.standard_normal(3)
        data = "abc"[number % 3]
        offset = shift if data == "c" else 0.0
        for member in range(per_group):
            t = 1.0 + 2.0 * x[0] - 0.5 * x[1] + offset + noise * rng.standard_normal()
            axes = {"data": data, "method": f"m{number}"}
            loss = RESOLUTION * math.sinh(t)
            features = dict(zip(NAMES, map(float, x), strict=True))
            found.append(
                Example(run=f"{number}-{member}", entry="e", unit="u", features=features, loss=loss, axes=axes)
            )
    return found


def test_an_exact_relation_is_found() -> None:
    known = examples(60, noise=0.0)
    linear = fit(known, resolution=RESOLUTION, level=0.9)
    assert linear.penalty == 0.01 and linear.half < 0.01
    weights = np.array(linear.weights) / np.array(linear.scale)
    np.testing.assert_allclose(weights, [2.0, -0.5, 0.0], atol=2e-3)
    new = examples(5, noise=0.0, seed=7)
    for example in new:
        loss, (low, high) = predict(linear, example.features)
        assert loss == pytest.approx(example.loss, rel=0.02, abs=2e-3) and low <= loss <= high


def test_the_weights_are_those_of_the_augmented_least_squares() -> None:
    """Ridge as ordinary least squares with rows of the penalty's root below, in float64."""
    known = examples(30, noise=0.3)
    linear = fit(known, resolution=RESOLUTION, level=0.9)
    x = np.array([[e.features[n] for n in NAMES] for e in known])
    t = np.arcsinh(np.array([e.loss for e in known]) / RESOLUTION)
    z = (x - x.mean(0)) / x.std(0)
    root = math.sqrt(linear.penalty * len(z) / 100)
    rows = np.vstack([z, root * np.eye(3)])
    expected = np.linalg.lstsq(rows, np.concatenate([t - t.mean(), np.zeros(3)]), rcond=None)[0]
    np.testing.assert_allclose(linear.weights, expected, rtol=1e-10)
    assert linear.intercept == pytest.approx(t.mean())


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_hold_for_new_runs_of_the_same_kind(level: float) -> None:
    inside = []
    for seed in range(40):
        linear = fit(examples(40, noise=0.4, seed=seed), resolution=RESOLUTION, level=level)
        for example in examples(10, noise=0.4, seed=1000 + seed, per_group=1):
            _, (low, high) = predict(linear, example.features)
            inside.append(low <= example.loss <= high)
    assert level - 0.05 < np.mean(inside) < level + 0.07


def test_held_out_says_when_other_data_behave_otherwise() -> None:
    alike, differing = (examples(60, noise=0.2, shift=shift) for shift in (0.0, 3.0))
    good, predicted = held_out(alike, "data", resolution=RESOLUTION, level=0.9) or pytest.fail("nothing")
    bad, _ = held_out(differing, "data", resolution=RESOLUTION, level=0.9) or pytest.fail("nothing")
    assert good.values == 3 and good.rows + good.refused == len(alike) and len(predicted) == good.rows
    assert good.r2_scaled > 0.95 and 0.8 < good.coverage <= 1
    assert bad.r2_scaled < good.r2_scaled - 0.1 and bad.coverage < good.coverage
    came, loss = (np.array([getattr(p, n) for p in predicted]) for n in ("came", "loss"))
    assert good.r2 == pytest.approx(1 - ((came - loss) ** 2).sum() / ((came - came.mean()) ** 2).sum())


def test_beyond_the_fit_nothing_is_said() -> None:
    known = examples(30, noise=0.2)
    linear = fit(known, resolution=RESOLUTION, level=0.9)
    inside = {"one": 0.0, "two": 0.0, "three": 0.0}
    assert outside(linear, inside) == ""
    reach = max(e.features["two"] for e in known) - min(e.features["two"] for e in known)
    far = max(e.features["two"] for e in known) + 0.2 * reach
    assert outside(linear, {**inside, "two": far}).startswith(f"two {far:.3g} (fitted on")
    assert outside(linear, {**inside, "one": -math.inf}) == "one is not finite"


def test_few_runs_are_refused() -> None:
    with pytest.raises(DataError, match=f"at least {FEWEST_GROUPS} runs that differ by more than their seed, got 11"):
        fit(examples(FEWEST_GROUPS - 1, noise=0.1, per_group=3), resolution=RESOLUTION, level=0.9)
    with pytest.raises(DataError, match=r"at least 99 measures for intervals of 99 %, got 24"):
        fit(examples(FEWEST_GROUPS, noise=0.1), resolution=RESOLUTION, level=0.99)
    few = examples(FEWEST_GROUPS, noise=0.1)
    assert held_out(few, "data", resolution=RESOLUTION, level=0.9) is None
