"""Overtraining in a two-layer linear network beside its checks (`test_theory_checks`): closed forms against autograd
and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, DataError
from holdfast.papers.theory.deep_linear import (
    LinearTasks,
    checkpoint_times,
    descent_factors,
    half_times,
    harmful_in_finetuning,
    harmful_in_noise,
    inflection_point,
    minimiser,
    monotone_after,
    random_tasks,
)

FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
tasks_drawn = st.builds(
    random_tasks,
    dimension=st.integers(2, 8),
    ratio=st.floats(0.3, 0.95),
    any_order=st.booleans(),
    flatness=st.floats(0, 1),
    spread=st.floats(0.05, 1),
    seed=st.integers(0, 10_000),
)


def tasks_of(pretraining, finetuning, seed: int = 0, flip: bool = False, any_order: bool = False) -> LinearTasks:
    rng = np.random.default_rng(seed)
    size = np.size(pretraining)
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    left[:, 0] *= -1 if flip else 1
    tasks = {"pretraining": np.array(pretraining), "finetuning": np.array(finetuning)}
    return LinearTasks(**tasks, left=left, right=right, any_order=any_order)


def slopes(first: np.ndarray, second: np.ndarray, target: np.ndarray, weight: float, anchor: np.ndarray):
    """Gradients of |W1 W2 - A|^2 + lambda |W1 W2 - anchor|^2, by autograd."""
    w = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (first, second)]
    theta = w[0] @ w[1]
    loss = ((theta - torch.tensor(target)) ** 2).sum() + weight * ((theta - torch.tensor(anchor)) ** 2).sum()
    loss.backward()
    return [x.grad.numpy() for x in w]


# --------------------------------------------------------------------------------------------------------------- noise


def test_inflection_point_counts_features() -> None:
    losses = np.array([[3, 2, 1, 2, 0], [3, 2, 1, 0.5, 0.5], [1, 2, 3, 4, 5]])
    assert inflection_point(np.diff(losses) > 0).tolist() == [2, 4, 0]
    tasks = tasks_of([1.0, 0.5, 0.2], [1.0, 1.0, 1.0], any_order=True)
    gamma = math.sqrt(0.3 / 6)  # 2 D gamma^2 = 0.3, between the second and the third
    assert inflection_point(harmful_in_noise(tasks, gamma)) == 2
    assert inflection_point(harmful_in_finetuning(tasks, 0.0)) == 2  # 1 > 2 * 0.2, not > 2 * 0.5
    assert inflection_point(harmful_in_finetuning(tasks, 3.1)) == 3


def test_both_definitions_of_the_inflection_point() -> None:
    """Definition 4.2 takes the first rise, theorem A.25 the one from which on there is no fall; both come later with
    lambda."""
    rises = np.array([[False, True, False, True], [True] * 4, [False] * 4, [True, True, True, False]])
    assert inflection_point(rises).tolist() == [1, 0, 4, 0] and monotone_after(rises).tolist() == [3, 0, 4, 4]
    for seed in range(50):
        tasks = random_tasks(seed=seed)
        harmful = harmful_in_finetuning(tasks, np.array([0.0, 0.5, 1.0, 3.0]))
        for turn in (inflection_point(harmful), monotone_after(harmful)):
            assert (np.diff(turn) >= 0).all()


def test_misaligned_tasks() -> None:
    """Definition 4.5: f_i > alpha s_i for all i > r."""
    tasks = tasks_of([1.0, 0.5, 0.2, 0.1], [1.9, 1.1, 0.3, 0.25])
    assert [tasks.misaligned_after(alpha) for alpha in (1.0, 2.0, 2.4, 4.0)] == [0, 3, 3, 4]


def test_features_fall_unless_any_order_will_do() -> None:
    drawn = [random_tasks(seed=seed, any_order=True).finetuning for seed in range(20)]
    assert sum(bool((np.diff(f) < 0).all()) for f in drawn) < 5
    for seed, finetuning in enumerate(drawn):
        assert random_tasks(seed=seed).finetuning.tolist() == sorted(finetuning, reverse=True)


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


# ---------------------------------------------------------------------------------------------------------------- paths


def test_descent_is_the_gradients_step() -> None:
    rng = np.random.default_rng(5)
    first, second, target = rng.standard_normal((3, 4, 4)) / 2
    moved = descent_factors(first, second, target, rate=0.01, steps=1, weight=0.3)
    for before, after, slope in zip(
        (first, second), moved, slopes(first, second, target, 0.3, first @ second), strict=True
    ):
        np.testing.assert_allclose(after, before - 0.01 * slope, atol=1e-14)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("pretraining", [[1.0, 1.0], [0.5, 1.0], [1.0, 0.0], [1.0, math.nan]])
def test_tasks_that_cannot_be(pretraining) -> None:
    with pytest.raises(DataError, match=r"strictly falling order, got \["):
        tasks_of(pretraining, [2.0, 1.0])
    for finetuning in ([1.0, 0.0], [1.0, 2.0], [1.0, 1.0]):
        with pytest.raises(DataError, match="positive singular values in strictly falling order"):
            tasks_of([1.0, 0.5], finetuning)
    assert tasks_of([1.0, 0.5], [1.0, 2.0], any_order=True).dimension == 2
    with pytest.raises(DataError, match="positive singular values"):
        tasks_of([1.0, 0.5], [1.0, 0.0], any_order=True)


def test_a_start_that_is_too_large() -> None:
    text = r"start value e\^\(-2 tau\) \(less than half of the smallest .* below 0.25, got 0.54"
    for times in (half_times, checkpoint_times):
        with pytest.raises(ConfigError, match=text):
            times(np.array([1.0, 0.5]), 0.3)


@pytest.mark.parametrize("weight", [-0.5, math.inf, math.nan])
def test_a_weight_that_cannot_be(weight) -> None:
    with pytest.raises(ConfigError, match=r"weight \(lambda\): expected a finite number of at least 0, got"):
        minimiser(tasks_of([1.0, 0.5], [2.0, 1.0]), [0.0, weight])
