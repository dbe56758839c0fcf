"""Overtraining in a two-layer linear network: closed forms against autograd, an integrator, enumeration and gradient
descent on the matrices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from holdfast.errors import ConfigError, DataError
from holdfast.papers.theory.deep_linear import (
    LinearTasks,
    checkpoint_times,
    descent_factors,
    finetuned_losses,
    flow_values,
    half_times,
    harmful_in_finetuning,
    harmful_in_noise,
    inflection_point,
    minimiser,
    perturbed_loss,
    perturbed_losses,
    random_tasks,
    start_value,
)

FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
tasks_drawn = st.builds(
    random_tasks,
    dimension=st.integers(2, 8),
    ratio=st.floats(0.3, 0.95),
    flatness=st.floats(0, 1),
    spread=st.floats(0.05, 1),
    seed=st.integers(0, 10_000),
)


def tasks_of(pretraining, finetuning, seed: int = 0, flip: bool = False) -> LinearTasks:
    rng = np.random.default_rng(seed)
    size = np.size(pretraining)
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    left[:, 0] *= -1 if flip else 1
    return LinearTasks(pretraining=np.array(pretraining), finetuning=np.array(finetuning), left=left, right=right)


def slopes(first: np.ndarray, second: np.ndarray, target: np.ndarray, weight: float, anchor: np.ndarray):
    """Gradients of |W1 W2 - A|^2 + lambda |W1 W2 - anchor|^2, by autograd."""
    w = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (first, second)]
    theta = w[0] @ w[1]
    loss = ((theta - torch.tensor(target)) ** 2).sum() + weight * ((theta - torch.tensor(anchor)) ** 2).sum()
    loss.backward()
    return [x.grad.numpy() for x in w]


# --------------------------------------------------------------------------------------------------------------- noise


def test_noise_is_counted_in_full() -> None:
    """All values of a skewed noise (mean 0, variance gamma^2, third moment not 0) with their probabilities."""
    rng = np.random.default_rng(3)
    first, second, target = rng.standard_normal((3, 2, 2))
    gamma, expected = 0.8, 0.0
    for picks in itertools.product((0, 1), repeat=8):
        noise = gamma * np.where(np.array(picks).reshape(2, 2, 2) == 1, math.sqrt(2), -1 / math.sqrt(2))
        chance = np.prod([1 / 3 if p else 2 / 3 for p in picks])
        expected += chance * (((first + noise[0]) @ (second + noise[1]) - target) ** 2).sum()
    assert perturbed_loss(first, second, target, gamma) == pytest.approx(expected, rel=1e-12)
    lacking = expected - 8 * gamma**4  # the fourth-order term is no rounding
    assert perturbed_loss(first, second, target, gamma) != pytest.approx(lacking, rel=1e-3)


@FAST
@given(tasks=tasks_drawn, gamma=st.floats(0, 1))
def test_noise_after_n_features(tasks, gamma) -> None:
    """Lemma A.4, as a sum and as a difference, and on matrices in a basis of their own."""
    s, d = tasks.pretraining, tasks.dimension
    found = perturbed_losses(tasks, gamma)
    for n, values in enumerate(tasks.ideal_values()):
        expected = (s[n:] ** 2).sum() + 2 * d * gamma**2 * s[:n].sum() + d**3 * gamma**4
        assert found[n] == pytest.approx(expected, rel=1e-12)
        assert perturbed_loss(*tasks.factors(values), tasks.matrix(s), gamma) == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(np.diff(found), (2 * d * gamma**2 - s) * s, rtol=0, atol=1e-12 * found.max())


def test_inflection_point_counts_features() -> None:
    losses = np.array([[3, 2, 1, 2, 0], [3, 2, 1, 0.5, 0.5], [1, 2, 3, 4, 5]])
    assert inflection_point(np.diff(losses) > 0).tolist() == [2, 4, 0]
    tasks = tasks_of([1.0, 0.5, 0.2], [1.0, 1.0, 1.0])
    gamma = math.sqrt(0.3 / 6)  # 2 D gamma^2 = 0.3, between the second and the third
    assert inflection_point(harmful_in_noise(tasks, gamma)) == 2
    assert inflection_point(harmful_in_finetuning(tasks, 0.0)) == 2  # 1 > 2 * 0.2, not > 2 * 0.5
    assert inflection_point(harmful_in_finetuning(tasks, 3.1)) == 3


# ---------------------------------------------------------------------------------------------------------- fine-tuning


@FAST
@given(tasks=tasks_drawn, weight=st.floats(0, 5), n=st.integers(1, 8))
def test_the_minimiser_is_stationary_on_the_matrices(tasks, weight, n) -> None:
    """By autograd; with s and f the other way round, as A.11 and A.28 print it, it is not."""
    ideal = tasks.ideal_values()[min(n, tasks.dimension)]
    anchor, goal = tasks.matrix(ideal), tasks.matrix(tasks.finetuning)
    end = np.where(ideal > 0, minimiser(tasks, weight), 0)
    size = 8 * (1 + weight) * tasks.finetuning.max() ** 1.5 + 8
    for slope in slopes(*tasks.factors(end), goal, weight, anchor):
        assert np.abs(slope).max() < 1e-12 * size
    swapped = np.where(ideal > 0, (tasks.pretraining + weight * tasks.finetuning) / (1 + weight), 0)
    if np.abs(swapped - end).max() > 1e-3:
        assert max(np.abs(g).max() for g in slopes(*tasks.factors(swapped), goal, weight, anchor)) > 1e-6


@FAST
@given(tasks=tasks_drawn, weight=st.floats(0, 5), more=st.floats(0.1, 3))
def test_losses_after_fine_tuning(tasks, weight, more) -> None:
    """Theorems 4.6 and 4.7 on matrices, and the straight line."""
    s, f = tasks.pretraining, tasks.finetuning
    weights = np.array([weight, weight + more])
    old, new = finetuned_losses(tasks, weights)
    for place, lam in enumerate(weights):
        for n in range(tasks.dimension + 1):
            theta = tasks.matrix(np.where(np.arange(tasks.dimension) < n, (f + lam * s) / (1 + lam), 0))
            assert old[place, n] == pytest.approx(((theta - tasks.matrix(s)) ** 2).sum(), rel=1e-9, abs=1e-12)
            assert new[place, n] == pytest.approx(((theta - tasks.matrix(f)) ** 2).sum(), rel=1e-9, abs=1e-12)
    harmful = harmful_in_finetuning(tasks, weights)
    np.testing.assert_array_equal(harmful, f > (2 + weights[:, None]) * s)
    assert inflection_point(harmful)[1] >= inflection_point(harmful)[0]  # A.25 prints the opposite
    clear = np.abs(f - (2 + weight) * s) > 1e-9
    np.testing.assert_array_equal((np.diff(old[0]) > 0)[clear], harmful[0][clear])


# ---------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_flow_is_the_flow_of_the_matrices(weight) -> None:
    """An integrator on W1 and W2 with gradients by autograd, in a rotated basis."""
    tasks = tasks_of([1.0, 0.6, 0.3], [0.5, 0.9, 0.2], seed=1)
    start = np.array([0.05, 0.02, 0.01])
    first, second = tasks.factors(start)
    goal, anchor = tasks.matrix(tasks.finetuning), tasks.matrix(start)

    def pull(time: float, w: np.ndarray) -> np.ndarray:
        return -np.concatenate([g.ravel() for g in slopes(*w.reshape(2, 3, 3), goal, weight, anchor)])

    began = np.concatenate([first.ravel(), second.ravel()])
    times = np.array([0.5, 1.5, 4.0])
    path = solve_ivp(pull, (0, 4), began, t_eval=times, rtol=1e-9, atol=1e-11).y.T.reshape(3, 2, 3, 3)
    for time, (one, other) in zip(times, path, strict=True):
        expected = tasks.matrix(flow_values(time, start=start, target=tasks.finetuning, weight=weight))
        np.testing.assert_allclose(one @ other, expected, atol=1e-7)


def test_descent_is_the_gradients_step() -> None:
    rng = np.random.default_rng(5)
    first, second, target = rng.standard_normal((3, 4, 4)) / 2
    moved = descent_factors(first, second, target, rate=0.01, steps=1, weight=0.3)
    for before, after, slope in zip(
        (first, second), moved, slopes(first, second, target, 0.3, first @ second), strict=True
    ):
        np.testing.assert_allclose(after, before - 0.01 * slope, atol=1e-14)


def test_the_printed_start_cannot_reach_a_negative_determinant() -> None:
    """W1 = W2 = e^-tau I: its flow keeps det theta positive, and the last feature is not learnt in its time."""
    s = np.array([1.0, 0.5, 0.25])
    steps = round(float(checkpoint_times(s, 8.0)[-1]) / 0.01)
    for flip in (False, True):
        tasks = tasks_of(s, s, seed=4, flip=flip)
        goal, negative = tasks.matrix(s), np.linalg.det(tasks.matrix(s)) < 0
        alike = descent_factors(np.exp(-8) * np.eye(3), np.exp(-8) * np.eye(3), goal, rate=0.01, steps=steps)
        own = descent_factors(*tasks.factors(np.full(3, start_value(8.0))), goal, rate=0.01, steps=steps)
        assert ((own[0] @ own[1] - goal) ** 2).sum() < 1e-10
        missed = ((alike[0] @ alike[1] - goal) ** 2).sum()
        assert missed == pytest.approx(s[-1] ** 2, rel=0.01) if negative else missed < 1e-3


# ------------------------------------------------------------------------------------------------------------ bad input


# ------------------------------------------------------------------------------------------------------------ the study


@pytest.mark.parametrize("pretraining", [[1.0, 1.0], [0.5, 1.0], [1.0, 0.0], [1.0, math.nan]])
def test_tasks_that_cannot_be(pretraining) -> None:
    with pytest.raises(DataError, match="falling strictly"):
        tasks_of(pretraining, [1.0, 2.0])


def test_a_start_that_is_too_large() -> None:
    for times in (half_times, checkpoint_times):
        with pytest.raises(ConfigError, match=r"tau: expected e\^\(-2 tau\) below half of the smallest"):
            times(np.array([1.0, 0.5]), 0.3)
