"""The theory of SFA beside its checks (`test_theory_checks`): both ways to write a step, the step of the project's own
`ewc`, where penalties end, and what no formula takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


# ------------------------------------------------------------------------------------------------------- EWC as a merge


def elastic_case():
    """(gradient, start, theta_o, F, a rate at which eta F stays below 1)."""
    rng = np.random.default_rng(3)
    problem = random_quadratics(dimension=6, seed=3)
    fisher = problem.curvature * rng.uniform(0, 1.5, 6)
    return problem.gradient, rng.standard_normal(6), problem.old, fisher, 0.5 / problem.curvature


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
