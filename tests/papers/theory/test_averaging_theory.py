"""The theory of SFA: averaging is a penalty, EWC and Fisher merging are merges, what p does; for the project's own
methods too."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.methods.fisher import fisher as merged_checkpoints
from holdfast.errors import ConfigError
from holdfast.papers.theory.averaging import (
    averaged_path,
    averaging_of,
    fisher_merge,
    kept_share,
    penalised_path,
    penalty_of,
    random_quadratics,
)
from holdfast.retention.anchor import Anchors
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.protocol import StepInfo
from holdfast.retention.pull import Pull

FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
quadratics = st.builds(
    random_quadratics,
    dimension=st.integers(2, 10),
    decay=st.floats(0, 2),
    alignment=st.floats(0, 1),
    rotation=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)


# ------------------------------------------------------------------------------------------------ SFA every step and L2


@FAST
@given(rate=st.floats(1e-4, 1e2), share=st.floats(0, 0.999))
def test_both_parametrisations_are_one(rate, share) -> None:
    """beta = eta lambda, alpha = eta / (1 - eta lambda), as section 4 prints them, and back."""
    alpha, beta = averaging_of(rate, share / rate)
    assert beta == pytest.approx(rate * (share / rate), rel=1e-15)
    assert alpha == pytest.approx(rate / (1 - share), rel=1e-12)
    assert penalty_of(alpha, beta) == pytest.approx((rate, share / rate), rel=1e-12)
    with pytest.raises(ConfigError, match=r"eta lambda.: expected .* below 1, got 1\.001"):
        averaging_of(rate, 1.001 / rate)


@FAST
@given(problem=quadratics, share=st.floats(0, 0.95), seed=st.integers(0, 1000))
def test_sfa_every_step_is_l2_step_by_step(problem, share, seed) -> None:
    start = np.random.default_rng(seed).standard_normal(len(problem.old))
    rate = 0.9 / problem.curvature
    alpha, beta = averaging_of(rate, share / rate)
    averaged = averaged_path(problem.gradient, start, problem.old, alpha=alpha, beta=beta, steps=50)
    theta, penalised = start, [start]
    for _ in range(50):  # equation 2, written out
        slope = problem.new_hessian @ (theta - problem.new) + share / rate * (theta - problem.old)
        penalised.append(theta := theta - rate * slope)
    size = np.abs(penalised).max()
    np.testing.assert_allclose(averaged, penalised, rtol=0, atol=1e-12 * size)
    direct = penalised_path(problem.gradient, start, problem.old, rate=rate, coefficient=share / rate, steps=50)
    np.testing.assert_allclose(direct, penalised, rtol=0, atol=1e-13 * size)
    if share > 0.01:
        other = averaged_path(problem.gradient, start, problem.old, alpha=rate, beta=beta, steps=50)
        assert np.abs(other[1] - penalised[1]).max() > 1e-9 or np.allclose(start, problem.new, atol=1e-3)


class Tiny(torch.nn.Module):
    """Two layers in float64: neither quadratic nor convex."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()


def train(method, *, rate: float, steps: int) -> list[np.ndarray]:
    """The project's own method around SGD: theta after every step."""
    module = Tiny()
    named_parameters = dict(module.named_parameters())
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    active = method.start(Anchors(named_parameters))
    path = []
    for number in range(1, steps + 1):
        step = StepInfo(step=number, total_steps=steps, learning_rates=dict.fromkeys(named_parameters, rate))
        optimiser.zero_grad()
        rows = slice(3 * (number % 10), 3 * (number % 10) + 3)  # minibatches: the identity holds for each gradient
        (module.layers(inputs[rows]) - targets[rows]).square().mean().backward()
        with torch.no_grad():
            active.gradient(named_parameters, step)
            optimiser.step()
            active.weights(named_parameters, step)
        path.append(torch.cat([p.detach().flatten() for p in module.parameters()]).numpy().copy())
    return path


def test_the_projects_own_sfa_and_l2_take_the_same_steps() -> None:
    steps, rate, coefficient = 60, 0.2, 1.5
    alpha, beta = averaging_of(rate, coefficient)
    averaging = SequentialAveraging(p=1 / steps, beta=float(beta), reference_device="device")
    assert averaging.period(steps) == 1
    averaged = train(averaging, rate=float(alpha), steps=steps)
    penalised = train(L2(coefficient=coefficient), rate=rate, steps=steps)
    np.testing.assert_allclose(averaged, penalised, rtol=0, atol=1e-12)
    rarely = train(dataclasses.replace(averaging, p=0.5), rate=float(alpha), steps=steps)
    assert np.abs(np.array(rarely) - penalised).max() > 1e-2


# ------------------------------------------------------------------------------------------------------- EWC as a merge


def elastic_case():
    """(gradient, start, theta_o, F, a rate at which eta F stays below 1)."""
    rng = np.random.default_rng(3)
    problem = random_quadratics(dimension=6, seed=3)
    fisher = problem.curvature * rng.uniform(0, 1.5, 6)
    return problem.gradient, rng.standard_normal(6), problem.old, fisher, 0.5 / problem.curvature


def test_ewc_is_exactly_a_merge() -> None:
    gradient, start, old, fisher, rate = elastic_case()
    exact = penalised_path(gradient, start, old, rate=rate, coefficient=fisher, steps=100)
    alpha, beta = averaging_of(rate, fisher)
    merged = averaged_path(gradient, start, old, alpha=alpha, beta=beta, steps=100)
    np.testing.assert_allclose(merged, exact, rtol=0, atol=1e-13)
    printed = averaged_path(gradient, start, old, alpha=rate, beta=rate * fisher, steps=4000)[-1]
    stronger = fisher / (1 - rate * fisher)  # what equations 13 and 14 minimise
    np.testing.assert_allclose(gradient(printed) + stronger * (printed - old), 0, atol=1e-12)
    assert np.abs(gradient(printed) + fisher * (printed - old)).max() > 1e-3


def test_the_projects_own_ewc_takes_the_exact_step() -> None:
    """`Pull` with a Fisher diagonal is what `ewc` runs: through the gradient the penalised step; decoupled,
    equations 13 and 14, the pull taken at theta*."""
    gradient, start, old, fisher, rate = elastic_case()
    for decoupled in (False, True):
        parameter = torch.nn.Parameter(torch.tensor(start))
        pull = Pull(
            {"w": torch.tensor(old)},
            importance={"w": torch.tensor(fisher)},
            strength=1.0,
            decoupled=decoupled,
            prefix="ewc",
        )
        step = StepInfo(step=1, total_steps=1, learning_rates={"w": rate})
        parameter.grad = torch.tensor(gradient(start))
        with torch.no_grad():
            pull.gradient({"w": parameter}, step)
            parameter -= rate * parameter.grad
            pull.weights({"w": parameter}, step)
        path = (
            averaged_path(gradient, start, old, alpha=rate, beta=rate * fisher, steps=1)
            if decoupled
            else penalised_path(gradient, start, old, rate=rate, coefficient=fisher, steps=1)
        )
        np.testing.assert_allclose(parameter.detach().numpy(), path[-1], rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------------------------- Fisher merging


@FAST
@given(seed=st.integers(0, 10_000), old_weight=st.floats(0.05, 20), new_weight=st.floats(0.05, 20))
def test_the_fisher_merge_minimises_both_penalties_and_is_the_projects(seed, old_weight, new_weight) -> None:
    rng = np.random.default_rng(seed)
    old, new = rng.standard_normal((2, 30))
    fishers = rng.exponential(size=(2, 30)) * 10.0 ** rng.integers(-8, 3, (2, 30))
    fishers[:, :4], fishers[0, 4:8], fishers[1, 8:12] = 0, 0, 0
    merged = fisher_merge(old, new, *fishers, old_weight=old_weight, new_weight=new_weight)

    def penalties(theta: np.ndarray) -> np.ndarray:
        return (old_weight * fishers[0] * (theta - old) ** 2 + new_weight * fishers[1] * (theta - new) ** 2) / 2

    for other in (old, new, merged + 0.01, merged - 0.01, *rng.standard_normal((5, 30))):
        assert (penalties(merged) <= penalties(other) + 1e-13).all()
    slope = old_weight * fishers[0] * (merged - old) + new_weight * fishers[1] * (merged - new)
    assert (np.abs(slope) <= 1e-14 * (old_weight * fishers[0] + new_weight * fishers[1])).all()
    mean = (old_weight * old + new_weight * new) / (old_weight + new_weight)
    np.testing.assert_allclose(merged[:4], mean[:4], rtol=0, atol=1e-15)
    np.testing.assert_allclose(merged[4:8], new[4:8], rtol=1e-15)
    theirs = merged_checkpoints([old, new], list(fishers), [old_weight, new_weight])
    np.testing.assert_allclose(merged, theirs, rtol=0, atol=1e-14)


# ---------------------------------------------------------------------------------------------------------- what p does


@FAST
@given(
    problem=quadratics,
    beta=st.floats(0, 1),
    every=st.integers(1, 25),
    steps=st.integers(1, 60),
    share=st.floats(0.05, 1.9),
)
def test_the_closed_form_is_the_iteration(problem, beta, every, steps, share) -> None:
    alpha, along = share / problem.curvature, problem.along()
    path = averaged_path(problem.gradient, problem.old, problem.old, alpha=alpha, beta=beta, steps=steps, every=every)
    kept = kept_share(along.values, alpha=alpha, beta=beta, every=every, steps=steps)
    size = np.linalg.norm(problem.new - problem.old)
    np.testing.assert_allclose(along.theta(kept), path[-1], rtol=0, atol=1e-12 * size)
    distances = [np.linalg.norm((1 - kept) * along.away), np.linalg.norm(kept * along.away)]
    expected = [np.linalg.norm(path[-1] - problem.old), np.linalg.norm(path[-1] - problem.new)]
    np.testing.assert_allclose(distances, expected, rtol=0, atol=1e-12 * size)
    old, new, distance = problem.losses(path[-1])
    assert along.new_loss(kept) == pytest.approx(new, abs=1e-12 * size**2)
    away = path[-1] - problem.old
    assert (old, distance) == pytest.approx((away @ problem.old_hessian @ away / 2, expected[0]), abs=1e-12)


# ------------------------------------------------------------------------------------------------------------- problems


@FAST
@given(problem=quadratics, weight=st.floats(-3, 3).map(lambda power: 10.0**power))
def test_penalties_are_at_their_minimisers(problem, weight) -> None:
    matrices = {"l2": None, "ewc": np.diag(problem.old_hessian), "both": problem.old_hessian}
    for name, metric in matrices.items():
        along = problem.along(metric)
        theta = along.theta(along.penalised(weight))
        penalty = {"l2": np.eye(len(theta)), "ewc": np.diag(np.diag(problem.old_hessian)), "both": problem.old_hessian}
        slope = problem.gradient(theta) + weight * penalty[name] @ (theta - problem.old)
        size = np.linalg.norm(problem.new - problem.old) * (1 + weight)
        np.testing.assert_allclose(slope, 0, atol=1e-10 * size)
        assert along.new_loss(along.penalised(weight)) == pytest.approx(problem.losses(theta)[1], rel=1e-7, abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------- study


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: averaging_of(0.0, 1.0), r"rate \(eta\): expected a finite number above 0, got 0"),
        (lambda: averaging_of(0.1, np.array([1.0, -2.0])), r"eta lambda\): expected .* of at least 0 .*, got -0.2"),
        (lambda: averaging_of(0.1, math.nan), r"eta lambda\): expected .*, got nan"),
        (lambda: penalty_of(-0.1, 0.5), "alpha: expected a finite number above 0, got -0.1"),
        (lambda: penalty_of(0.1, 1.0), "beta: expected .* of at least 0 and below 1, got 1"),
        (lambda: kept_share([0.5, 20.0], alpha=0.1, beta=0.5, every=1), r"alpha \* curvature: .* below 2, got 2"),
        (lambda: kept_share(0.5, alpha=0.1, beta=1.5, every=1), "beta: expected .* at most 1, got 1.5"),
        (lambda: kept_share(0.5, alpha=0.1, beta=0.5, every=0), "every: expected .* at least 1, got 0"),
        (lambda: fisher_merge(*np.ones((3, 2)), np.array([1.0, -1.0])), "Fisher values: expected .*, got -1"),
        (lambda: fisher_merge(*np.ones((4, 2)), old_weight=0.0), r"weights \(l\): expected .* above 0, got 0"),
    ],
)
def test_what_is_outside_of_a_formulas_domain_is_refused(act, text) -> None:
    with pytest.raises(ConfigError, match=text):
        act()
