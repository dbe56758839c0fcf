"""The theory of label annealing: closed forms against the paper's formulas, gradient descent against both, the
geometry, and who forgets less."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.decode import mistakes_in
from holdfast.errors import ConfigError, DataError, ShapeError
from holdfast.support.files import read_json, to_jsonable, write_json
from holdfast.theory import descent as descent_module
from holdfast.theory import regression_study
from holdfast.theory.descent import PRETRAINING, common_step_bound, gradient_descent, quadratic_limit, step_bound
from holdfast.theory.findings import Interval, mean_interval
from holdfast.theory.regression import (
    METHODS,
    Problem,
    along_segment,
    closed_form,
    errors,
    gradient,
    illustration,
    joint_solution,
    learnt_shares,
    random_problem,
    sensitivities,
    split,
    weight_for,
)
from holdfast.theory.regression_study import (
    MIDDLE,
    SHARES,
    RegressionSettings,
    RegressionStudy,
    run_regression,
    verdict,
    work_of,
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
weights = st.floats(-6, 6).map(lambda power: 10.0**power)


def with_old_rows(inputs: np.ndarray, new: np.ndarray, *, start: np.ndarray, targets: np.ndarray) -> Problem:
    """Two tasks of given rows; the pre-training targets are such that theta0 is `start` seen through the old rows."""
    return Problem(
        pretraining_inputs=inputs, pretraining_targets=inputs @ start, finetuning_inputs=new, finetuning_targets=targets
    )


# --------------------------------------------------------------------------------------------------------- closed forms


@FAST
@given(problem=problems, weight=weights)
def test_closed_forms_are_the_papers_formulas(problem, weight) -> None:
    """Literally, with d x d inverses; with `(X X^T)^-1` where the paper prints `(XX)^-1`, which has no shape."""
    x, y, theta0 = problem.finetuning_inputs, problem.finetuning_targets, problem.theta0
    old = problem.pretraining_inputs
    eye = np.eye(problem.dimension)
    gram = np.linalg.inv(x @ x.T)
    projection, least_norm = x.T @ gram @ x, x.T @ gram @ y
    scale = np.linalg.norm(theta0) + np.linalg.norm(least_norm)
    tolerance = 1e-14 * np.linalg.cond(x) ** 2 * scale + 1e-12 * scale
    assert np.allclose(
        theta0,
        old.T @ np.linalg.inv(old @ old.T) @ problem.pretraining_targets,
        atol=1e-14 * np.linalg.cond(old) ** 2 * scale + 1e-12,
    )
    assert np.allclose(closed_form(problem, "direct"), (eye - projection) @ theta0 + least_norm, atol=tolerance)
    annealed = (eye - projection) @ theta0 + weight / (1 + weight) * projection @ theta0 + least_norm / (1 + weight)
    assert np.allclose(closed_form(problem, "label_annealing", weight), annealed, atol=tolerance)
    inverse = np.linalg.inv(x.T @ x + weight * eye)
    condition = 1 + np.linalg.norm(x) ** 2 / weight
    assert np.allclose(
        closed_form(problem, "l2", weight),
        inverse @ (x.T @ y + weight * theta0),
        atol=tolerance + 1e-15 * condition * scale * 10,
    )
    if len(x) != problem.dimension:
        with pytest.raises(ValueError):
            x @ x


@FAST
@given(problem=problems, weight=weights)
def test_closed_forms_minimise_their_objectives(problem, weight) -> None:
    strongest = problem.finetuning_factors.values[0] ** 2
    for method in METHODS:
        theta = closed_form(problem, method, weight)
        size = (strongest * (1 + weight) + weight) * (np.linalg.norm(theta) + np.linalg.norm(problem.theta0))
        assert np.linalg.norm(gradient(problem, method, weight, theta)) <= 1e-13 * size
        # A gradient that is zero everywhere would pass: away from the minimum it is not, along what the rows see.
        aside = theta + problem.finetuning_factors.right[0]
        assert np.linalg.norm(gradient(problem, method, weight, aside)) > 0.5 * strongest


def test_gradients_are_those_of_the_objectives() -> None:
    problem = random_problem(**SMALL)
    x, y, theta0 = problem.finetuning_inputs, problem.finetuning_targets, problem.theta0
    penalties = {
        "direct": lambda t: 0.0,
        "l2": lambda t: 0.5 * 0.7 * ((t - theta0) ** 2).sum(),
        "label_annealing": lambda t: 0.5 * 0.7 * ((x @ (t - theta0)) ** 2).sum(),
    }
    theta = np.random.default_rng(1).standard_normal(problem.dimension)
    for method, penalty in penalties.items():
        objective = lambda t: 0.5 * ((x @ t - y) ** 2).sum() + penalty(t)
        numeric = [
            (objective(theta + 1e-5 * e) - objective(theta - 1e-5 * e)) / 2e-5 for e in np.eye(problem.dimension)
        ]
        assert gradient(problem, method, 0.7, theta) == pytest.approx(numeric, rel=1e-6)


@FAST
@given(problem=problems)
def test_limits_in_lambda(problem) -> None:
    direct, theta0 = closed_form(problem, "direct"), problem.theta0
    squares = problem.finetuning_factors.values**2
    scale = np.linalg.norm(direct) + np.linalg.norm(theta0)
    for method, unit in (("label_annealing", 1.0), ("l2", None)):
        small, large = (1e-13 * (unit or squares[-1]), 1e13 * (unit or squares[0]))
        assert np.array_equal(closed_form(problem, method, 0.0), direct)
        assert np.allclose(closed_form(problem, method, math.inf), theta0, rtol=0, atol=1e-14 * scale)
        assert np.allclose(closed_form(problem, method, small), direct, atol=1e-11 * scale)
        assert np.allclose(closed_form(problem, method, large), theta0, atol=1e-11 * scale)


def test_weights_are_taken_together() -> None:
    problem = random_problem(**SMALL)
    grid = np.array([[0.1, 1.0, 5.0], [0.0, 2.0, 1e4]])
    for method in METHODS:
        found = closed_form(problem, method, grid)
        assert found.shape == (2, 3, 12)
        one_by_one = np.array([[closed_form(problem, method, w) for w in row] for row in grid])
        assert np.allclose(found, one_by_one, rtol=1e-13, atol=1e-14)


def test_label_annealing_is_direct_fine_tuning_on_mixed_labels() -> None:
    """Which is where its name comes from: targets (y + lambda X theta0) / (1 + lambda)."""
    problem = random_problem(**SMALL)
    mixed = (problem.finetuning_targets + 3 * problem.finetuning_inputs @ problem.theta0) / 4
    annealed = dataclasses.replace(problem, finetuning_targets=mixed)
    assert closed_form(annealed, "direct") == pytest.approx(closed_form(problem, "label_annealing", 3.0), rel=1e-12)


@pytest.mark.parametrize("method", ["label_anealing", "L2", ""])
def test_unknown_methods_are_named(method) -> None:
    with pytest.raises(ConfigError, match="expected a method among direct, l2, label_annealing") as caught:
        closed_form(random_problem(**SMALL), method)
    assert ("Did you mean 'label_annealing'" in str(caught.value)) == (method == "label_anealing")


@pytest.mark.parametrize("weight", [-1.0, math.nan])
def test_weights_below_zero_are_refused(weight) -> None:
    for method in METHODS:
        with pytest.raises(ConfigError, match="0 or more"):
            closed_form(random_problem(**SMALL), method, weight)


# ------------------------------------------------------------------------------------------------------------- geometry


@FAST
@given(problem=problems, weight=weights)
def test_the_outside_component_is_the_starts_for_all_three(problem, weight) -> None:
    start = split(problem, problem.theta0)
    assert np.allclose(start.outside + start.inside, problem.theta0, atol=1e-14)
    for method in METHODS:
        theta = closed_form(problem, method, weight)
        scale = np.linalg.norm(theta) + np.linalg.norm(problem.theta0)
        assert np.allclose(split(problem, theta).outside, start.outside, atol=1e-13 * scale)
    assert np.allclose(split(problem, problem.least_norm).outside, 0, atol=1e-13 * np.linalg.norm(problem.least_norm))


@FAST
@given(problem=problems, weight=weights)
def test_label_annealing_walks_the_segment(problem, weight) -> None:
    if problem.nothing_to_learn:
        return
    place, off = along_segment(problem, closed_form(problem, "label_annealing", weight))
    assert place == pytest.approx(1 / (1 + weight), abs=1e-9) and off < 1e-9
    mixed = weight / (1 + weight) * split(problem, problem.theta0).inside + problem.least_norm / (1 + weight)
    scale = np.linalg.norm(problem.theta0) + np.linalg.norm(problem.least_norm)
    assert np.allclose(
        split(problem, closed_form(problem, "label_annealing", weight)).inside, mixed, atol=1e-12 * scale
    )


def test_section_4_3_says_the_wrong_component_comes_back() -> None:
    """What label annealing adds to direct fine-tuning's theta0 part is lambda/(1+lambda) P theta0, not of (I - P)
    theta0."""
    problem = random_problem(**SMALL)
    start, weight = split(problem, problem.theta0), 3.0
    part = closed_form(problem, "label_annealing", weight) - problem.least_norm / (1 + weight)
    added = part - start.outside
    assert added == pytest.approx(weight / (1 + weight) * start.inside, abs=1e-13)
    assert np.abs(added - weight / (1 + weight) * start.outside).max() > 0.01


def test_l2_shrinks_by_direction_and_leaves_the_segment() -> None:
    problem = random_problem(**SMALL, decay=1.0)
    factors = problem.finetuning_factors
    theta = closed_form(problem, "l2", 2.0)
    learnt = (factors.right @ (theta - problem.theta0)) * factors.values / problem.residual
    assert learnt == pytest.approx(factors.values**2 / (factors.values**2 + 2), rel=1e-9)
    assert learnt == pytest.approx(learnt_shares(problem, "l2", 2.0), rel=1e-9)
    assert along_segment(problem, theta)[1] > 0.01


@FAST
@given(problem=problems, weight=weights)
def test_on_a_flat_spectrum_l2_is_label_annealing(problem, weight) -> None:
    factors = problem.finetuning_factors
    flat = dataclasses.replace(problem, finetuning_inputs=3 * factors.left @ factors.right, truth=None)
    expected = closed_form(flat, "label_annealing", weight)
    assert np.allclose(closed_form(flat, "l2", 9 * weight), expected, atol=1e-12 * (1 + np.abs(expected).max()))


@FAST
@given(problem=problems, share=st.floats(0.01, 0.99))
def test_at_equal_error_l2_moves_parameters_least_and_label_annealing_predictions(problem, share) -> None:
    if problem.nothing_to_learn:
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


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_which_method_forgets_less_is_decided_by_what_pretraining_feels(alike, seed) -> None:
    """Old rows that feel all new directions alike: L2 at every share. In proportion to s^2: label annealing at every
    share."""
    draw = np.random.default_rng(seed)
    new = draw.standard_normal((4, 12)) * np.arange(1, 13)
    right = np.linalg.svd(new, full_matrices=False)[2]
    outside = draw.standard_normal((4, 12))
    outside -= outside @ right.T @ right
    old = (right if alike else new) + outside
    problem = with_old_rows(old, new, start=draw.standard_normal(12), targets=draw.standard_normal(4) * 10)
    values = np.log(problem.finetuning_factors.values**2)
    assert np.polyfit(values, np.log(sensitivities(problem)), 1)[0] == pytest.approx(0.0 if alike else 1.0, abs=1e-9)
    for share in SHARES:
        lost = {
            m: errors(problem, closed_form(problem, m, weight_for(problem, m, share))).pretraining
            for m in ("l2", "label_annealing")
        }
        assert (lost["l2"] < lost["label_annealing"]) == alike


def test_the_illustrations_differ_only_in_the_old_data() -> None:
    one, other = illustration(alike=True), illustration(alike=False)
    assert one.theta0 == pytest.approx(other.theta0) and one.least_norm == pytest.approx(other.least_norm)
    for problem, less in ((one, "l2"), (other, "label_annealing")):
        lost = {
            m: errors(problem, closed_form(problem, m, weight_for(problem, m, MIDDLE))).pretraining
            for m in ("l2", "label_annealing")
        }
        assert min(lost, key=lost.get) == less


def test_orthogonal_tasks_forget_nothing() -> None:
    problem = random_problem(**SMALL, overlap=0.0)
    assert np.abs(problem.pretraining_inputs @ problem.finetuning_inputs.T).max() < 1e-12
    for method in METHODS:
        found = errors(problem, closed_form(problem, method, 0.5))
        assert found.pretraining < 1e-24
    assert errors(problem, closed_form(problem, "direct")).finetuning < 1e-24
    assert (
        errors(
            random_problem(**SMALL, overlap=0.5), closed_form(random_problem(**SMALL, overlap=0.5), "direct")
        ).pretraining
        > 0.01
    )


def test_overlap_is_the_share_inside_the_span() -> None:
    problem = random_problem(dimension=60, pretrain_rows=30, finetune_rows=29, overlap=0.3, seed=4)
    inside = problem.pretraining_factors.inside(problem.finetuning_inputs)
    assert (inside**2).sum() / (problem.finetuning_inputs**2).sum() == pytest.approx(0.3, abs=0.05)
    whole = random_problem(**SMALL, overlap=1.0)
    assert whole.pretraining_factors.inside(whole.finetuning_inputs) == pytest.approx(
        whole.finetuning_inputs, abs=1e-12
    )


def test_joint_solution_fits_both_where_there_is_room() -> None:
    problem = random_problem(dimension=12, pretrain_rows=7, finetune_rows=4)
    found = errors(problem, joint_solution(problem))
    assert found.pretraining < 1e-20 and found.finetuning < 1e-20
    crowded = random_problem(dimension=12, pretrain_rows=9, finetune_rows=7)
    found = errors(crowded, joint_solution(crowded))
    assert found.pretraining > 1e-3 and found.finetuning > 1e-3
    assert (
        found.pretraining * 9 + found.finetuning * 7 < errors(crowded, closed_form(crowded, "direct")).pretraining * 9
    )


def test_errors_on_rows_are_means() -> None:
    problem, theta = illustration(alike=True), np.array([0.5, -1.0, 2.0])
    found = errors(problem, theta)
    old = [
        ((row @ theta) - target) ** 2
        for row, target in zip(problem.pretraining_inputs, problem.pretraining_targets, strict=True)
    ]
    assert found.pretraining == pytest.approx(sum(old) / 2)
    assert found.finetuning == pytest.approx(((2 * 0.5 - 3.8) ** 2 + (0.6 * -1.0 + 0.24) ** 2) / 2)


def test_errors_on_fresh_inputs_are_expectations() -> None:
    """Against a sample drawn as `Truth` says."""
    problem = random_problem(**SMALL, decay=0.7, overlap=0.4, noise=0.0)
    truth = problem.truth
    theta = closed_form(problem, "label_annealing", [0.2, 2.0])
    fresh = np.random.default_rng(0).standard_normal((400_000, 12)) * truth.scale
    part = problem.pretraining_factors.inside(fresh)
    found = errors(problem, theta)
    old = ((fresh @ (theta - truth.pretraining_theta).T) ** 2).mean(0)
    new = (((truth.inside * part + truth.outside * (fresh - part)) @ (theta - truth.finetuning_theta).T) ** 2).mean(0)
    assert found.fresh_pretraining == pytest.approx(old, rel=0.02)
    assert found.fresh_finetuning == pytest.approx(new, rel=0.02)
    assert np.linalg.norm(truth.scale * truth.pretraining_theta) == pytest.approx(1.0)
    assert np.linalg.norm(truth.scale * (truth.finetuning_theta - truth.pretraining_theta)) == pytest.approx(1.0)
    assert (truth.scale**2).sum() == pytest.approx(12.0)
    with pytest.raises(ShapeError, match=r"expected \[..., 12\]"):
        errors(problem, np.zeros(11))
    unknown = dataclasses.replace(problem, truth=None)
    assert errors(unknown, theta).fresh_pretraining is None


def test_the_same_seed_gives_the_same_problem() -> None:
    one, two, other = (random_problem(**SMALL, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.finetuning_inputs, two.finetuning_inputs) and np.array_equal(one.theta0, two.theta0)
    assert not np.array_equal(one.finetuning_inputs, other.finetuning_inputs)


# ------------------------------------------------------------------------------------------------------------- problems


def rows(count: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, columns))


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"pretraining_inputs": rows(5, 7)},
            ShapeError,
            "as many columns in both tasks, got 7 in pre-training and 6 in fine-tuning",
        ),
        (
            {"pretraining_targets": np.zeros(2)},
            ShapeError,
            "pretraining: expected a target a row, got 3 rows and 2 targets",
        ),
        (
            {"finetuning_targets": np.zeros((2, 1))},
            ShapeError,
            r"finetuning_targets: expected 1 dimension, got shape \(2, 1\)",
        ),
        ({"finetuning_inputs": np.zeros(6)}, ShapeError, r"finetuning_inputs: expected 2 dimensions, got shape \(6,\)"),
        (
            {"finetuning_inputs": rows(6, 6), "finetuning_targets": np.zeros(6)},
            ShapeError,
            "fewer rows than columns .* got 6 x 6",
        ),
        ({"finetuning_inputs": rows(0, 6), "finetuning_targets": np.zeros(0)}, ShapeError, "1 row or more"),
        (
            {"finetuning_inputs": np.vstack([rows(1, 6)] * 2)},
            DataError,
            "full row rank.* Remove rows that repeat or combine others",
        ),
        ({"finetuning_inputs": np.zeros((2, 6))}, DataError, "full row rank"),
        (
            {"pretraining_inputs": np.full((3, 6), np.nan)},
            DataError,
            "pretraining_inputs: expected finite numbers, got 18",
        ),
    ],
)
def test_problems_that_cannot_be(changes, kind, text) -> None:
    sound = {
        "pretraining_inputs": rows(3, 6),
        "pretraining_targets": np.ones(3),
        "finetuning_inputs": rows(2, 6, 1),
        "finetuning_targets": np.ones(2),
    }
    Problem(**sound)
    with pytest.raises(kind, match=text):
        Problem(**{**sound, **changes})


def test_inputs_are_copied_and_cannot_be_changed() -> None:
    mine = rows(2, 6)
    problem = Problem(
        pretraining_inputs=rows(3, 6, 1),
        pretraining_targets=[1, 2, 3],
        finetuning_inputs=mine,
        finetuning_targets=[0, 1],
    )
    mine[0, 0] = 99
    assert problem.finetuning_inputs[0, 0] != 99 and problem.finetuning_targets.dtype == np.float64
    for array in (problem.finetuning_inputs, problem.theta0, problem.least_norm):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_all_mistakes_of_a_random_problem_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        random_problem(dimension=10, pretrain_rows=10, finetune_rows=0, overlap=1.5, decay=-1, shift=math.nan, noise=-2)
    names = ["overlap", "decay", "shift", "noise", "pretrain_rows", "finetune_rows"]
    assert [p.partition(":")[0] for p in caught.value.problems] == names
    with pytest.raises(ConfigError, match=r"room for 3, got finetune_rows 4. Give at most 3 rows"):
        random_problem(dimension=10, pretrain_rows=7, finetune_rows=4, overlap=0)
    with pytest.raises(ConfigError, match="inside the span of the pre-training rows, which has room for 3"):
        random_problem(dimension=10, pretrain_rows=3, finetune_rows=4, overlap=1)


def test_nothing_to_learn_is_an_error() -> None:
    problem = random_problem(**SMALL, overlap=1.0, shift=0.0, noise=0.0)
    assert problem.nothing_to_learn
    for act in (lambda: weight_for(problem, "l2", 0.5), lambda: along_segment(problem, problem.theta0)):
        with pytest.raises(DataError, match="theta0 fits the fine-tuning rows exactly"):
            act()


@pytest.mark.parametrize(
    ("method", "share", "text"),
    [("direct", 0.5, "a method with a weight"), ("l2", 0.0, "above 0"), ("l2", 1.0, "below 1")],
)
def test_weight_for_refuses(method, share, text) -> None:
    with pytest.raises(ConfigError, match=text):
        weight_for(random_problem(**SMALL), method, share)


# ----------------------------------------------------------------------------------------------------- gradient descent


@pytest.mark.parametrize("weight", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("method", [PRETRAINING, *METHODS])
def test_descent_reaches_the_closed_form_in_the_predicted_steps(method, weight) -> None:
    problem = random_problem(dimension=40, pretrain_rows=20, finetune_rows=10, decay=0.5)
    run = gradient_descent(problem, method, 0.0 if method in (PRETRAINING, "direct") else weight, tolerance=1e-11)
    assert run.relative_distance <= 1e-11
    assert run.steps_needed == pytest.approx(run.predicted_steps, abs=1)
    assert np.abs(run.distances - run.predicted).max() < 1e-12 * np.linalg.norm(run.goal)
    assert (np.diff(run.distances) < 0).all()
    goal = problem.theta0 if method == PRETRAINING else closed_form(problem, method, weight)
    assert np.array_equal(run.goal, goal) and run.theta == pytest.approx(goal, abs=1e-10)


def test_the_common_bound_serves_all_three() -> None:
    problem, weight = random_problem(**SMALL), 1.5
    bound = common_step_bound(problem, weight)
    square = problem.finetuning_factors.values[0] ** 2
    assert bound == pytest.approx(min(1 / square, 1 / (weight + square), 1 / ((1 + weight) * square)))
    assert bound < step_bound(problem, "direct")  # the first of the three terms is never the least
    for method in METHODS:
        assert gradient_descent(problem, method, weight, step=0.999 * bound).relative_distance <= 1e-10


@pytest.mark.parametrize("method", METHODS)
def test_the_lemmas_bound_is_sufficient_and_twice_it_is_the_limit(method) -> None:
    problem, weight = random_problem(**SMALL), 0.8
    limit = 2 * step_bound(problem, method, weight)
    assert gradient_descent(problem, method, weight, step=0.95 * limit).relative_distance <= 1e-10
    for step in (limit, 1.2 * limit):
        with pytest.raises(ConfigError, match=r"does not converge\. The paper's bound is"):
            gradient_descent(problem, method, weight, step=step)
    # Not our say-so: just above the limit the iteration grows.
    theta = problem.theta0 + problem.finetuning_factors.right[0]
    goal = closed_form(problem, method, weight)
    before = np.linalg.norm(theta - goal)
    for _ in range(400):
        theta = theta - 1.05 * limit * gradient(problem, method, weight, theta)
    assert np.linalg.norm(theta - goal) > 1e3 * before


def test_from_another_start_the_outside_component_stays_except_for_l2() -> None:
    problem = random_problem(**SMALL)
    start = np.random.default_rng(5).standard_normal(12)
    for method in ("direct", "label_annealing"):
        run = gradient_descent(problem, method, 0.5, start=start)
        assert run.relative_distance <= 1e-10
        assert split(problem, run.theta).outside == pytest.approx(split(problem, start).outside, abs=1e-10)
        assert split(problem, run.theta).inside == pytest.approx(
            split(problem, closed_form(problem, method, 0.5)).inside, abs=1e-8
        )
    run = gradient_descent(problem, "l2", 0.5, start=start)
    assert run.relative_distance <= 1e-10
    assert run.theta == pytest.approx(closed_form(problem, "l2", 0.5), abs=1e-8)
    assert (
        run.predicted_steps > gradient_descent(problem, "l2", 0.5).predicted_steps
    )  # the outside component goes only at the pace of lambda
    assert np.abs(run.distances - run.predicted).max() < 1e-11


@FAST
@given(problem=problems, weight=st.floats(0.1, 10), seed=st.integers(0, 100))
def test_lemma_b1_is_the_plain_reference(problem, weight, seed) -> None:
    x, y, theta0 = problem.finetuning_inputs, problem.finetuning_targets, problem.theta0
    seen, slope = x.T @ x, x.T @ y
    quadratics = {
        "direct": (seen, slope),
        "label_annealing": ((1 + weight) * seen, slope + weight * seen @ theta0),
        "l2": (seen + weight * np.eye(problem.dimension), slope + weight * theta0),
    }
    for method, (hessian, pull) in quadratics.items():
        expected = closed_form(problem, method, weight)
        tolerance = 1e-13 * np.linalg.cond(x) ** 2 * (1 + np.abs(expected).max() + np.abs(theta0).max())
        assert np.allclose(quadratic_limit(hessian, pull, theta0), expected, atol=tolerance)


def test_lemma_b1_refuses_what_has_no_minimum() -> None:
    with pytest.raises(DataError, match="no minimum"):
        quadratic_limit(np.diag([1.0, 0.0]), np.array([1.0, 1.0]), np.zeros(2))
    with pytest.raises(DataError, match="no negative eigenvalue"):
        quadratic_limit(np.diag([1.0, -1.0]), np.array([1.0, 0.0]), np.zeros(2))
    with pytest.raises(DataError, match="symmetric"):
        quadratic_limit(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([1.0, 0.0]), np.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"method": "l3"}, "expected a method among pretraining, direct, l2, label_annealing, got 'l3'"),
        ({"method": "l2", "weight": math.inf}, "a finite number"),
        ({"method": "l2", "weight": -1.0}, "a finite number of at least 0"),
        ({"method": "direct", "step": 0.0}, "goes nowhere"),
        ({"method": "direct", "step": math.nan}, "does not converge"),
    ],
)
def test_descent_refuses(arguments, text) -> None:
    with pytest.raises(ConfigError, match=text):
        gradient_descent(random_problem(**SMALL), **arguments)
    with pytest.raises(ShapeError, match=r"start: expected \[12\], got \[3\]"):
        gradient_descent(random_problem(**SMALL), "direct", start=np.zeros(3))


def test_descent_stops_and_says_how_far_it_would_go() -> None:
    problem = random_problem(**SMALL)
    run = gradient_descent(problem, "direct", most_steps=5)
    assert run.steps == 5 and run.steps_needed is None and run.predicted_steps > 5
    assert gradient_descent(problem, "direct", steps=0).distances.shape == (1,)
    at_goal = gradient_descent(problem, "direct", start=closed_form(problem, "direct"))
    assert at_goal.steps_needed == 0 and at_goal.predicted_steps == 0
    many = gradient_descent(problem, "direct", steps=9000)  # longer than one block of the prediction
    assert many.predicted.shape == (9001,) and many.relative_distance < 1e-14


# ------------------------------------------------------------------------------------------------------------ the study


@pytest.fixture(scope="module")
def study() -> RegressionStudy:
    return run_regression(RegressionSettings(**SMALL, seeds=4, weights=(0.1, 1.0, 10.0)))


def test_a_study_holds_and_survives_json(study, tmp_path) -> None:
    assert study.passed and len(study.checks) == 14
    assert all(c.value <= c.allowed for c in study.checks)
    assert RegressionStudy.from_json(read_json(write_json(tmp_path / "a.json", study))) == study
    with pytest.raises(DataError, match="holdfast theory regression"):
        RegressionStudy.from_json({"setting": {}})
    with pytest.raises(DataError, match="holdfast theory regression"):
        RegressionStudy.from_json({**to_jsonable(study), "checks": [{"name": "x"}]})


def test_figures_of_a_study_are_those_of_its_problems(study) -> None:
    one_by_one = [random_problem(**SMALL, seed=seed) for seed in range(4)]
    direct = [errors(p, closed_form(p, "direct")).pretraining for p in one_by_one]
    assert study.direct.pretraining == mean_interval(direct, 0.95)
    assert study.start.pretraining.value < 1e-20 and study.direct.finetuning.value < 1e-20
    annealed = [errors(p, closed_form(p, "label_annealing", 1.0)).fresh_pretraining for p in one_by_one]
    assert study.curves["label_annealing"][1].figures.fresh_pretraining.value == pytest.approx(np.mean(annealed))
    ridge = [errors(p, closed_form(p, "l2", (p.finetuning_factors.values**2).mean())).finetuning for p in one_by_one]
    assert study.curves["l2"][1].figures.finetuning.value == pytest.approx(np.mean(ridge))
    ratios = []
    for p in one_by_one:
        lost = {
            m: errors(p, closed_form(p, m, weight_for(p, m, MIDDLE))).pretraining for m in ("l2", "label_annealing")
        }
        ratios.append(lost["l2"] / lost["label_annealing"])
    assert study.middle.ratio.value == pytest.approx(np.exp(np.mean(np.log(ratios))))
    for curve, falls in (("pretraining", True), ("finetuning", False)):
        for method in ("l2", "label_annealing"):
            values = [getattr(point.figures, curve).value for point in study.curves[method]]
            assert values == sorted(values, reverse=falls)


def test_the_verdict_turns_with_the_geometry() -> None:
    """The finding: an even spectrum favours L2, an uneven one that both tasks share label annealing."""
    sizes = {"dimension": 60, "pretrain_rows": 36, "finetune_rows": 12, "seeds": 8, "weights": (1.0,)}
    even = run_regression(RegressionSettings(**sizes, decay=0.0))
    assert even.middle.verdict == "L2 forgets less"
    uneven = run_regression(RegressionSettings(**sizes, decay=2.0, overlap=0.75, most_steps=2000))
    assert uneven.middle.verdict == "label annealing forgets less"
    assert uneven.passed
    late = [c for c in uneven.checks if "stopped after 2,000 of" in c.note]
    assert late and all("on its way" in c.what for c in late)


@pytest.mark.parametrize("wrong", [1e-6, math.nan])
def test_a_broken_closed_form_fails_its_checks(wrong, monkeypatch) -> None:
    """A NaN is larger than no number, and fails all the same."""
    sound = regression_study.closed_form

    def broken(problem, method, weight=0.0):
        return sound(problem, method, weight) * (1 + wrong if method == "label_annealing" else 1)

    monkeypatch.setattr(regression_study, "closed_form", broken)
    monkeypatch.setattr(descent_module, "closed_form", broken)
    found = run_regression(RegressionSettings(**SMALL, seeds=2, weights=(1.0,)))
    failed = {c.name for c in found.checks if not c.passed}
    assert {"descent: label annealing", "gradients vanish", "formulas of theorem 1", "kept component"} <= failed
    assert math.isfinite(wrong) or {"limits", "straight segment", "least movement"} <= failed
    assert not found.passed


def test_one_seed_has_no_intervals_and_no_verdict() -> None:
    found = run_regression(RegressionSettings(**SMALL, seeds=1, weights=(1.0,)))
    assert found.middle.ratio.low is None and found.middle.verdict == "one seed, no verdict"
    assert any("One seed" in note for note in found.notes)


@pytest.mark.parametrize("sizes", [(2, 1, 1), (3, 2, 1), (6, 5, 5), (6, 1, 5)])
def test_the_smallest_problems(sizes) -> None:
    dimension, old, new = sizes
    found = run_regression(
        RegressionSettings(
            dimension=dimension, pretrain_rows=old, finetune_rows=new, seeds=2, weights=(0.5,), most_steps=3000
        )
    )
    assert found.passed, [c for c in found.checks if not c.passed]


def test_progress_counts_every_problem() -> None:
    setting, done = RegressionSettings(**SMALL, seeds=2, weights=(1.0,)), []
    run_regression(setting, advance=done.append)
    assert sum(done) == work_of(setting)


def test_a_settings_mistakes_come_together() -> None:
    with pytest.raises(ConfigError) as caught:
        run_regression(
            RegressionSettings(
                dimension=5, pretrain_rows=9, weights=(0.0, math.inf), seeds=0, tolerance=2.0, confidence=1.0, seed=-1
            )
        )
    names = [p.partition(":")[0] for p in caught.value.problems]
    expected = [
        "seeds",
        "seed",
        "tolerance",
        "weights[0]",
        "weights[1]",
        "confidence",
        "pretrain_rows",
        "finetune_rows",
    ]
    assert names == expected
    assert [m.path for m in mistakes_in(RegressionSettings(weights=()))] == [("weights",)]


def test_intervals() -> None:
    assert mean_interval([1.0, 3.0], 0.95).high == pytest.approx(2 + 12.7062047 * math.sqrt(2) / math.sqrt(2), rel=1e-6)
    assert mean_interval([2.0], 0.95) == Interval(value=2.0, low=None, high=None, n=1)
    assert verdict(None) == "neither forgets"
    for low, high, expected in (
        (1.1, 1.2, "label annealing forgets less"),
        (0.8, 0.9, "L2 forgets less"),
        (0.9, 1.1, "no difference beyond noise"),
    ):
        assert verdict(Interval(value=1.0, low=low, high=high, n=3)) == expected


def test_the_theory_loads_only_numpy() -> None:
    code = (
        "import sys, holdfast.theory.regression_study; print(*({'torch', 'scipy', 'rich', 'plotly'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
