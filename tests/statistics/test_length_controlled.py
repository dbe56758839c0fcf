"""The win rate at equal lengths against planted and independently fitted parameters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from holdfast.statistics.length_controlled import PRIOR_SCALE, fit, length_controlled, samplewise


def sigmoid(t):
    return 1 / (1 + np.exp(-np.asarray(t)))


def test_equal_lengths_give_the_raw_win_rate():
    y = np.array([0.9, 0.3, 0.5, 0.75, 1.0])
    for d in (0.0, 50.0):
        found = length_controlled(y, np.full(5, d))
        assert found.value == y.mean() and found.scale == 0.0 and found.t1 == 0.0
        assert sigmoid(found.t0) == pytest.approx(y.mean(), abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_fit_is_the_maximum(seed):
    """Against a general optimiser, on soft, hard and separable preferences."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 60))
    x = np.tanh(rng.normal(rng.normal(), 1.5, n))
    y = [rng.random(n), (rng.random(n) < 0.8).astype(float), (x > 0.3).astype(float)][seed % 3]
    y[0], y[1] = 0.0, 1.0
    counts = rng.multinomial(n, np.full(n, 1 / n), size=5).astype(float) + np.eye(5, n) + np.eye(5, n, k=1)
    counts[:, :2] += 1

    def loss(t, weights):
        z = t[0] + t[1] * x
        return float(weights @ (np.logaddexp(0, z) - y * z)) + t[1] ** 2 / (2 * PRIOR_SCALE**2)

    for t, weights in zip(fit(x, y, counts), counts, strict=True):
        best = minimize(loss, np.zeros(2), args=(weights,), method="BFGS", options={"gtol": 1e-9})
        assert loss(t, weights) <= best.fun + 1e-9
        assert t == pytest.approx(best.x, abs=1e-4)


def test_length_that_separates_winners_from_losers_stays_finite():
    d = np.array([-300.0, -200, -100, 100, 200, 300])
    found = length_controlled((d > 0).astype(float), d)
    assert found.value == pytest.approx(0.5, abs=1e-9)
    assert 1 < found.t1 < 10


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_winning_or_losing_everything(value):
    found = length_controlled(np.full(20, value), np.linspace(-100, 300, 20))
    assert found.value == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_figure_as_a_mean_over_pairs_with_its_spread(seed):
    """The mean is the figure, a pair's part that of the fit without it, and equal lengths leave preferences."""
    rng = np.random.default_rng(seed)
    d = rng.normal(60, 100, 80)
    y = 1 / (1 + np.exp(-0.4 - 1.2 * np.tanh(d / 90) + rng.normal(0, 0.7, 80)))
    found = length_controlled(y, d)
    values = samplewise(y, d, found)
    assert values.mean() == pytest.approx(found.value)
    counts = np.ones((80, 80)) - np.eye(80)
    t0 = fit(np.tanh(d / found.scale), y, counts)[:, 0]
    left_out = 1 / (1 + np.exp(-t0))
    jackknife = 79 * (left_out.mean() - left_out)
    assert values - values.mean() == pytest.approx(jackknife, abs=0.4 * jackknife.std())
    assert samplewise(y, np.zeros(80), length_controlled(y, np.zeros(80))) == pytest.approx(y)
    won = length_controlled(np.ones(8), d[:8])
    assert samplewise(np.ones(8), d[:8], won) == pytest.approx(np.full(8, won.value))
