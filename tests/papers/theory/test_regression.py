"""The theory of label annealing: closed forms against the paper's formulas, the geometry, and how far descent
converges."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, DataError, ShapeError
from holdfast.papers.theory.descent import gradient_descent, spectrum
from holdfast.papers.theory.regression import (
    METHODS,
    closed_form,
    errors,
    gradient,
    random_problem,
    sensitivities,
    weight_for,
)

SMALL = {"dimension": 12, "pretrain_rows": 7, "finetune_rows": 4}
FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
problems = st.builds(
    lambda dimension, old, new, overlap, decay, shift, noise, seed: random_problem(
        dimension=dimension,
        pretrain_rows=min(old, dimension - 1),
        finetune_rows=min(new, dimension - 1),
        overlap=overlap,
        decay=decay,
        shift=shift,
        noise=noise,
        seed=seed,
    ),
    dimension=st.integers(3, 14),
    old=st.integers(1, 9),
    new=st.integers(1, 6),
    overlap=st.floats(0.05, 0.95),
    decay=st.floats(0, 1.5),
    shift=st.floats(0, 3),
    noise=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)


# --------------------------------------------------------------------------------------------------------- closed forms


def test_label_annealing_is_direct_fine_tuning_on_mixed_labels() -> None:
    """Which is where its name comes from: targets (y + lambda X theta0) / (1 + lambda)."""
    problem = random_problem(**SMALL)
    mixed = (problem.finetuning_targets + 3 * problem.finetuning_inputs @ problem.theta0) / 4
    annealed = dataclasses.replace(problem, finetuning_targets=mixed)
    assert closed_form(annealed, "direct") == pytest.approx(closed_form(problem, "label_annealing", 3.0), rel=1e-12)


# ------------------------------------------------------------------------------------------------------------- geometry


@FAST
@given(problem=problems, share=st.floats(0.01, 0.99))
def test_at_equal_error_l2_moves_parameters_least_and_label_annealing_predictions(problem, share) -> None:
    if np.linalg.norm(problem.residual) < 1e-9:
        return
    before = errors(problem, problem.theta0).finetuning
    moved = {}
    for method in ("l2", "label_annealing"):
        theta = closed_form(problem, method, weight_for(problem, method, share))
        assert errors(problem, theta).finetuning == pytest.approx(share * before, rel=1e-9)
        moved[method] = theta - problem.theta0
    length = {m: np.linalg.norm(v) for m, v in moved.items()}
    seen = {m: np.linalg.norm(problem.finetuning_inputs @ v) for m, v in moved.items()}
    assert length["l2"] <= length["label_annealing"] * (1 + 1e-9)
    assert seen["label_annealing"] <= seen["l2"] * (1 + 1e-9)


def test_a_sensitivity_is_what_a_unit_step_costs() -> None:
    """Along each singular direction of the fine-tuning rows, from where pre-training has no error."""
    problem = random_problem(**SMALL)
    costs = errors(problem, problem.theta0 + problem.finetuning_factors.right).pretraining
    assert sensitivities(problem) == pytest.approx(costs)


def test_overlap_is_the_share_inside_the_span() -> None:
    problem = random_problem(dimension=60, pretrain_rows=30, finetune_rows=29, overlap=0.3, seed=4)
    inside = problem.pretraining_factors.inside(problem.finetuning_inputs)
    assert (inside**2).sum() / (problem.finetuning_inputs**2).sum() == pytest.approx(0.3, abs=0.05)
    whole = random_problem(**SMALL, overlap=1.0)
    assert whole.pretraining_factors.inside(whole.finetuning_inputs) == pytest.approx(
        whole.finetuning_inputs, abs=1e-12
    )


# ----------------------------------------------------------------------------------------------------- gradient descent


@pytest.mark.parametrize("method", METHODS)
def test_the_lemmas_bound_is_sufficient_and_twice_it_is_the_limit(method) -> None:
    problem, weight = random_problem(**SMALL), 0.8
    limit = 2 / spectrum(problem, method, weight)[0]
    run = gradient_descent(problem, method, weight, step=0.95 * limit)
    assert run.distances[-1] <= 1e-10 * run.size
    for step in (limit, 1.2 * limit):
        with pytest.raises(ConfigError, match=r"step size \(descent converges if it is below 2 / .* above 0 and below"):
            gradient_descent(problem, method, weight, step=step)
    # Just above the limit the iteration grows.
    theta = problem.theta0 + problem.finetuning_factors.right[0]
    goal = closed_form(problem, method, weight)
    before = np.linalg.norm(theta - goal)
    for _ in range(400):
        theta = theta - 1.05 * limit * gradient(problem, method, weight, theta)
    assert np.linalg.norm(theta - goal) > 1e3 * before


@pytest.mark.parametrize(
    ("act", "kind", "text"),
    [
        (lambda p: closed_form(p, "label_anealing"), ConfigError, "Did you mean 'label_annealing'"),
        (lambda p: gradient(p, "drect", 0.0, p.theta0), ConfigError, "Did you mean 'direct'"),
        (lambda p: closed_form(p, "l2", -1.0), ConfigError, "expected a number of at least 0, got -1"),
        (lambda p: closed_form(p, "l2", [1.0, math.nan]), ConfigError, "expected a number of at least 0, got nan"),
        (lambda p: gradient_descent(p, "l2", math.inf), ConfigError, "a finite number of at least 0, got inf"),
        (lambda p: weight_for(p, "direct", 0.5), ConfigError, "expected one of l2, label_annealing, got 'direct'"),
        (lambda p: weight_for(p, "l2", 1.0), ConfigError, "share: expected a finite number above 0 and below 1"),
        (lambda p: random_problem(dimension=4, pretrain_rows=4), ShapeError, "fewer rows than columns, got 4 rows"),
        (lambda p: dataclasses.replace(p, finetuning_inputs=np.ones((4, 12))), DataError, "linearly independent rows"),
    ],
)
def test_what_cannot_be(act, kind, text) -> None:
    with pytest.raises(kind, match=text):
        act(random_problem(**SMALL))
