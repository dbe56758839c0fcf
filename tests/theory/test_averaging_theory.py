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
from holdfast.errors import ConfigError, DataError, ShapeError
from holdfast.retention.anchor import Anchors
from holdfast.retention.averaging import SequentialAveraging
from holdfast.retention.l2 import L2
from holdfast.retention.method import StepInfo
from holdfast.retention.pull import Pull
from holdfast.support.files import read_json, to_jsonable, write_json
from holdfast.theory import averaging_study
from holdfast.theory.averaging import (
    Quadratics,
    averaged_path,
    averaging_of,
    fisher_merge,
    kept_share,
    penalised_path,
    penalty_of,
    period,
    random_quadratics,
)
from holdfast.theory.averaging_settings import AveragingSettings
from holdfast.theory.averaging_study import (
    MIDDLE,
    AveragingStudy,
    elastic_order,
    named,
    run_averaging,
    work_of,
)
from holdfast.theory.findings import Interval, verdict

FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SMALL = AveragingSettings(dimension=8, steps=60, seeds=3, p=(0.5, 0.1), lambdas=(0.1, 1.0))
quadratics = st.builds(
    random_quadratics,
    dimension=st.integers(2, 10),
    decay=st.floats(0, 2),
    alignment=st.floats(0, 1),
    rotation=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)


def logistic(seed: int, dimension: int = 6):
    """The gradient of a logistic regression, and its largest curvature."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((20, dimension))
    labels = (rng.random(20) > 0.5).astype(np.float64)
    curvature = np.linalg.norm(inputs, 2) ** 2 / 80

    def gradient(theta: np.ndarray) -> np.ndarray:
        return inputs.T @ (1 / (1 + np.exp(-inputs @ theta)) - labels) / 20

    return gradient, curvature


# ------------------------------------------------------------------------------------------------ SFA every step and L2


@FAST
@given(rate=st.floats(1e-4, 1e2), share=st.floats(0, 0.999))
def test_both_parametrisations_are_one(rate, share) -> None:
    """beta = eta lambda, alpha = eta / (1 - eta lambda), as section 4 prints them, and back."""
    alpha, beta = averaging_of(rate, share / rate)
    assert beta == pytest.approx(rate * (share / rate), rel=1e-15)
    assert alpha == pytest.approx(rate / (1 - share), rel=1e-12)
    assert penalty_of(alpha, beta) == pytest.approx((rate, share / rate), rel=1e-12)


@pytest.mark.parametrize(
    ("convert", "arguments", "text"),
    [
        (averaging_of, (0.5, 2.0), "rate * coefficient (eta lambda): expected below 1"),
        (averaging_of, (0.5, 3.0), "got 1.5"),
        (averaging_of, (0.0, 1.0), "rate (eta): expected a positive number, got 0"),
        (averaging_of, (0.1, -1.0), "coefficient (lambda): expected 0 or more, got -1"),
        (averaging_of, (math.nan, 1.0), "rate (eta)"),
        (averaging_of, (0.5, np.array([0.1, 2.5])), "got 1.25"),
        (penalty_of, (0.1, 1.0), "beta: expected at least 0 and below 1, got 1"),
        (penalty_of, (0.1, -0.1), "beta: expected"),
        (penalty_of, (0.1, math.nan), "beta: expected"),
        (penalty_of, (-0.1, 0.5), "alpha: expected a positive number"),
    ],
)
def test_parametrisations_that_cannot_be(convert, arguments, text) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(*arguments)
    assert text in str(caught.value)


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


@pytest.mark.parametrize("seed", range(5))
def test_on_a_task_that_is_not_quadratic_too(seed) -> None:
    gradient, curvature = logistic(seed)
    start, old = np.random.default_rng(seed + 100).standard_normal((2, 6))
    rate, coefficient = 0.5 / curvature, 0.7 * curvature
    alpha, beta = averaging_of(rate, coefficient)
    averaged = averaged_path(gradient, start, old, alpha=alpha, beta=beta, steps=300)
    penalised = penalised_path(gradient, start, old, rate=rate, coefficient=coefficient, steps=300)
    assert np.abs(averaged - penalised).max() < 1e-12
    end = penalised[-1]
    assert np.abs(gradient(end) + coefficient * (end - old)).max() < 1e-12  # and it ends at L2's minimiser


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
            active.add_gradient(named_parameters, step)
            optimiser.step()
            active.after_step(named_parameters, step)
        path.append(torch.cat([p.detach().flatten() for p in module.parameters()]).numpy().copy())
    return path


def test_the_projects_own_sfa_and_l2_take_the_same_steps() -> None:
    steps, rate, coefficient = 60, 0.2, 1.5
    alpha, beta = averaging_of(rate, coefficient)
    averaging = SequentialAveraging(p=1 / steps, beta=float(beta), keep="device")
    assert averaging.period(steps) == 1
    averaged = train(averaging, rate=float(alpha), steps=steps)
    penalised = train(L2(coefficient=coefficient), rate=rate, steps=steps)
    np.testing.assert_allclose(averaged, penalised, rtol=0, atol=1e-12)
    rarely = train(dataclasses.replace(averaging, p=0.5), rate=float(alpha), steps=steps)
    assert np.abs(np.array(rarely) - penalised).max() > 1e-2


# ------------------------------------------------------------------------------------------------------- EWC as a merge


def elastic_case(task: str):
    """(gradient, start, theta_o, F, a rate at which eta F stays below 1)."""
    rng = np.random.default_rng(3)
    if task == "logistic":
        gradient, curvature = logistic(3)
        start, old = rng.standard_normal((2, 6))
    else:
        problem = random_quadratics(dimension=6, seed=3)
        gradient, curvature, old, start = problem.gradient, problem.curvature, problem.old, rng.standard_normal(6)
    return gradient, start, old, curvature * rng.uniform(0, 1.5, 6), 0.5 / curvature


@pytest.mark.parametrize("task", ["quadratic", "logistic"])
def test_equations_13_and_14_differ_at_second_order(task) -> None:
    gradient, start, old, fisher, rate = elastic_case(task)
    apart = []
    for eta in (rate, rate / 2):
        moved = start - eta * gradient(start)
        merged = (1 - eta * fisher) * moved + eta * fisher * old  # as printed
        path = averaged_path(gradient, start, old, alpha=eta, beta=eta * fisher, steps=1)
        np.testing.assert_allclose(path[-1], merged, rtol=0, atol=1e-15)
        exact = start - eta * (gradient(start) + fisher * (start - old))
        apart.append(merged - exact)
        np.testing.assert_allclose(apart[-1], eta**2 * fisher * gradient(start), rtol=0, atol=1e-15)
    assert np.linalg.norm(apart[0]) / np.linalg.norm(apart[1]) == pytest.approx(4, abs=1e-9)
    assert elastic_order(gradient, start, old, fisher, rate) == pytest.approx(2, abs=0.02)
    # over a time of training, so twice as many steps of half the length, one order is lost
    ends = []
    for halvings in range(2):
        eta, steps = 0.01 * rate / 2**halvings, 200 * 2**halvings
        merged = averaged_path(gradient, start, old, alpha=eta, beta=eta * fisher, steps=steps)[-1]
        ends.append(
            np.linalg.norm(merged - penalised_path(gradient, start, old, rate=eta, coefficient=fisher, steps=steps)[-1])
        )
    assert ends[0] / ends[1] == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("task", ["quadratic", "logistic"])
def test_ewc_is_exactly_a_merge(task) -> None:
    gradient, start, old, fisher, rate = elastic_case(task)
    exact = penalised_path(gradient, start, old, rate=rate, coefficient=fisher, steps=100)
    split = penalised_path(gradient, start, old, rate=rate, coefficient=fisher, steps=100, split=True)
    np.testing.assert_allclose(split, exact, rtol=0, atol=1e-13)
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
    gradient, start, old, fisher, rate = elastic_case("quadratic")
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
            pull.add_gradient({"w": parameter}, step)
            parameter -= rate * parameter.grad
            pull.after_step({"w": parameter}, step)
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


def test_where_both_fishers_vanish_it_is_the_plain_average() -> None:
    assert fisher_merge(np.ones(2), np.zeros(2), np.zeros(2), np.array([0.0, 3.0])).tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"old_weight": 0.0}, ConfigError, "old_weight, new_weight: expected positive numbers, got 0"),
        ({"old_fisher": np.array([1.0, -2.0])}, DataError, "Fisher values of 0 or more, got -2"),
        ({"new_fisher": np.array([1.0, math.nan])}, DataError, "got nan"),
    ],
)
def test_merges_that_cannot_be(arguments, kind, text) -> None:
    sound = {"old": np.ones(2), "new": np.ones(2), "old_fisher": np.ones(2), "new_fisher": np.ones(2)}
    with pytest.raises(kind, match=r"expected|Expected") as caught:
        fisher_merge(**(sound | arguments))
    assert text in str(caught.value)


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


@pytest.mark.parametrize("every", [1, 3, 20])
@pytest.mark.parametrize("beta", [0.05, 0.5, 0.95])
def test_the_fixed_point_is_reached(every, beta) -> None:
    problem = random_quadratics(dimension=5, seed=4)
    alpha, along = 0.9 / problem.curvature, problem.along()
    limit = along.theta(kept_share(along.values, alpha=alpha, beta=beta, every=every))
    path = averaged_path(
        problem.gradient, problem.old, problem.old, alpha=alpha, beta=beta, steps=3000 // every * every, every=every
    )
    np.testing.assert_allclose(path[-1], limit, rtol=0, atol=1e-12)
    if every == 1:  # L2's minimiser
        _, penalty = penalty_of(alpha, beta)
        theta = np.linalg.solve(
            problem.new_hessian + penalty * np.eye(5), problem.new_hessian @ problem.new + penalty * problem.old
        )
        np.testing.assert_allclose(limit, theta, rtol=0, atol=1e-13)


def test_p_1_averages_once_and_periods_are_the_methods() -> None:
    problem = random_quadratics(dimension=5, seed=5)
    arguments = {"alpha": 1 / problem.curvature, "steps": 40}
    once = averaged_path(problem.gradient, problem.old, problem.old, beta=0.3, every=period(1.0, 40), **arguments)
    direct = averaged_path(problem.gradient, problem.old, problem.old, beta=0.0, **arguments)
    np.testing.assert_array_equal(once[:-1], direct[:-1])
    np.testing.assert_allclose(once[-1], 0.7 * direct[-1] + 0.3 * problem.old, rtol=0, atol=1e-15)
    for steps in (1, 7, 40, 200, 399):
        for p in (1.0, 0.75, 0.5, 0.25, 0.17, 0.1, 0.001):
            assert period(p, steps) == SequentialAveraging(p=p).period(steps)


def test_averages_come_when_the_projects_method_averages() -> None:
    """Once where a period ends with the run, and after the last step in any case."""
    method, zero = SequentialAveraging(p=0.3, beta=0.5), np.zeros(1)
    for steps in (10, 9, 12):
        path = averaged_path(
            lambda theta: -np.ones(1), zero, zero, alpha=1.0, beta=0.5, steps=steps, every=method.period(steps)
        )
        averaged = [after < before + 1 for before, after in zip(path[:-1, 0], path[1:, 0], strict=True)]
        assert averaged == [method.averages_at(t, steps) for t in range(1, steps + 1)]


def test_limits_of_what_is_kept() -> None:
    curvature = np.array([0.0, 0.1, 1.0])
    assert kept_share(curvature, alpha=1.0, beta=0.0, every=1).tolist() == [1, 0, 0]  # direct; flat directions stay
    assert kept_share(curvature, alpha=1.0, beta=1.0, every=5, steps=12).tolist() == [1, 1, 1]
    assert kept_share(curvature, alpha=1.0, beta=0.3, every=10**9)[1:] == pytest.approx([0.3, 0.3])
    assert kept_share(curvature, alpha=1.0, beta=0.0, every=7, steps=20) == pytest.approx((1 - curvature) ** 20)
    assert kept_share(0.5, alpha=1.0, beta=np.array([[0.1], [0.2]]), every=2).shape == (2, 1)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"alpha": 2.0}, "alpha * curvature: expected at least 0 and below 2, got 2"),
        ({"curvature": -1.0}, "alpha * curvature"),
        ({"beta": 1.1}, "beta: expected 0 to 1, got 1.1"),
        ({"every": 0}, "every, steps: expected 1 or more, got 0 and None"),
        ({"steps": 0}, "got 1 and 0"),
    ],
)
def test_closed_forms_that_cannot_be(changes, text) -> None:
    with pytest.raises(ConfigError) as caught:
        kept_share(**({"curvature": 1.0, "alpha": 0.5, "beta": 0.5, "every": 1} | changes))
    assert text in str(caught.value)


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


def test_alignment_and_rotation_are_what_they_say() -> None:
    spectrum = np.arange(1.0, 7) ** -1.0
    single = random_quadratics(dimension=6, rotation=0.0, alignment=1.0, seed=1)
    np.testing.assert_array_equal(single.old_hessian, np.diag(spectrum))
    alike = random_quadratics(dimension=6, rotation=1.0, alignment=1.0, seed=1)
    np.testing.assert_array_equal(alike.old_hessian, alike.new_hessian)
    assert np.abs(alike.old_hessian - np.diag(np.diag(alike.old_hessian))).max() > 0.05
    for problem in (single, alike, random_quadratics(dimension=6, alignment=0.0, seed=1)):
        for hessian in (problem.old_hessian, problem.new_hessian):
            np.testing.assert_allclose(np.linalg.eigvalsh(hessian)[::-1], spectrum, atol=1e-14)
    again = random_quadratics(dimension=6, seed=1)
    np.testing.assert_array_equal(again.new, random_quadratics(dimension=6, seed=1).new)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"new": np.zeros(3)}, ShapeError, "new: expected [2], got [3]"),
        ({"new_hessian": np.eye(3)}, ShapeError, "new_hessian: expected [2, 2], got [3, 3]"),
        ({"old_hessian": np.diag([1.0, 0.0])}, DataError, "old_hessian: expected a symmetric matrix with positive"),
        ({"old_hessian": np.array([[1.0, 0.5], [0.0, 1.0]])}, DataError, "old_hessian"),
    ],
)
def test_problems_that_cannot_be(changes, kind, text) -> None:
    sound = {"old": np.zeros(2), "new": np.ones(2), "old_hessian": np.eye(2), "new_hessian": np.eye(2)}
    with pytest.raises(kind) as caught:
        Quadratics(**(sound | changes))
    assert text in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------- study


@pytest.fixture(scope="module")
def study() -> AveragingStudy:
    return run_averaging(SMALL)


def test_a_study_holds_and_survives_json(study, tmp_path) -> None:
    assert study.passed and len(study.checks) == 10 and len(study.statements) == 7
    again = AveragingStudy.from_json(read_json(write_json(tmp_path / "s.json", study)))
    assert again == study
    with pytest.raises(DataError, match="theory averaging"):
        AveragingStudy.from_json({"setting": 1})
    assert "verdict" in to_jsonable(study)["statements"][0]


def test_figures_of_a_study_are_those_of_its_problems(study) -> None:
    """From the plain iteration, not from closed forms."""
    points: dict[str, list[np.ndarray]] = {"p": [], "once": []}
    for seed in range(SMALL.seeds):
        problem = random_quadratics(dimension=8, seed=seed)

        def figures(beta: float, every: int, problem: Quadratics = problem) -> np.ndarray:
            path = averaged_path(
                problem.gradient,
                problem.old,
                problem.old,
                alpha=1 / problem.curvature,
                beta=beta,
                steps=60,
                every=every,
            )
            away = path[-1] - problem.old
            left = path[-1] - problem.new
            return np.array(
                [away @ problem.old_hessian @ away, left @ problem.new_hessian @ left, np.linalg.norm(away)]
            )

        apart = problem.new - problem.old
        unit = np.array([figures(0.0, 60)[0], apart @ problem.new_hessian @ apart, np.linalg.norm(apart)])
        points["p"].append(figures(0.5, 30) / unit)
        points["once"].append(figures(0.2, 60) / unit)
    found = {
        "p": next(p for p in study.curves["p"] if p.strength == 0.5),
        "once": next(p for p in study.curves["once"] if p.strength == 0.2),
    }
    for name, point in found.items():
        mean = np.mean(points[name], axis=0)
        assert [point.old.value, point.new.value, point.distance.value] == pytest.approx(mean.tolist(), rel=1e-9)
        assert point.old.low < point.old.value < point.old.high


def test_methods_are_compared_at_equal_new_loss(study) -> None:
    """The shares learnt leave `MIDDLE` of the new loss in every method; every step is L2; nothing beats both tasks."""
    problem = random_quadratics(dimension=8, seed=0)
    along = problem.along()
    for m, shares in study.learnt.items():
        left = along.new_loss(1 - np.array(shares)) / problem.losses(problem.old)[1]
        assert left == pytest.approx(MIDDLE, rel=1e-9), m
    assert study.equal[named(1 / 60)].value == pytest.approx(study.equal["l2"].value, rel=1e-4)
    assert all(study.equal["both"].value <= value.value for value in study.equal.values())


def test_geometry_decides_which_p_forgets_least() -> None:
    study = run_averaging(AveragingSettings(dimension=16, steps=100, seeds=6, p=(0.1,)))
    ratios = {(g.alignment, g.rotation): g for g in study.geometries}
    assert len(ratios) == 6
    aligned, apart = ratios[1.0, 1.0], ratios[0.0, 1.0]
    assert aligned.along_p[0].high < 0.95 and apart.along_p[0].low > 1
    assert aligned.along_p[0].value == pytest.approx(aligned.best.value, rel=1e-3)  # the segment is the frontier
    for alignment in (0.0, 0.5, 1.0):  # a diagonal Fisher that is the old loss
        assert ratios[alignment, 0.0].ewc.value == pytest.approx(ratios[alignment, 0.0].best.value, rel=1e-9)
    assert apart.ewc.value > apart.best.value * 1.1


def test_verdicts() -> None:
    assert verdict(Interval(value=0.5, low=None, high=None, n=1)) == "cannot tell"
    assert verdict(Interval(value=0.5, low=0.4, high=0.9, n=3)) == "holds"
    assert verdict(Interval(value=1.5, low=1.1, high=1.9, n=3)) == "does not hold"
    assert verdict(Interval(value=0.9, low=0.8, high=1.1, n=3)) == "cannot tell"
    assert verdict(Interval(value=1.0, low=1.0, high=1.0, n=3)) == "cannot tell"


def test_statements_are_ratios_of_the_figures(study) -> None:
    found = {s.name: s for s in study.statements}
    one = dataclasses.replace(SMALL, seeds=1)
    single = run_averaging(one)
    ratios = {s.name: s.ratio.value for s in single.statements}
    old = {p.strength: p.old.value for p in single.curves["p"]}
    assert ratios["smaller p forgets less"] == pytest.approx(old[0.1] / old[1.0], rel=1e-12)
    new = {p.strength: p.new.value for p in single.curves["p"]}
    assert ratios["saves more than it costs"] == pytest.approx((old[0.1] + new[0.1]) / (old[1.0] + new[1.0]), rel=1e-12)
    assert ratios["often beats once"] == pytest.approx(single.equal["p = 0.1"].value / single.equal["p = 1"].value)
    assert ratios["L2 beats EWC"] == pytest.approx(single.equal["l2"].value / single.equal["ewc"].value)
    assert all(s.verdict == "cannot tell" for s in single.statements) and len(single.notes) == 1
    assert all(s.verdict == verdict(s.ratio) for s in found.values()) and study.notes == []


def test_p_that_does_not_divide_the_run_is_no_step_of_its_own() -> None:
    """p = 0.75 leaves a last stretch of a quarter and so ends nearer to theta_o than p = 0.5."""
    worst = "each smaller p ends nearer"
    for p, expected in (((0.75, 0.5, 0.1), "does not hold"), ((0.5, 0.25, 0.125), "holds")):
        found = run_averaging(dataclasses.replace(SMALL, p=p, steps=64, seeds=4))
        assert next(s.verdict for s in found.statements if s.name == worst) == expected


@pytest.mark.parametrize(
    ("name", "wrong", "failing"),
    [
        ("averaging_of", lambda rate, f: (rate, rate * f), "SFA is L2: quadratic"),
        ("averaging_of", lambda rate, f: (rate, rate * f), "EWC is a merge"),
        ("kept_share", lambda h, **more: kept_share(h, **(more | {"every": more["every"] + 1})), "closed form along p"),
        ("kept_share", lambda h, **more: kept_share(h, **more) * (1 + 1e-6), "fixed point"),
        ("fisher_merge", lambda old, new, *more, **w: (old + new) / 2, "Fisher merging minimises"),
        (
            "averaged_path",
            lambda *a, **k: averaged_path(*a, **(k | {"beta": 1.01 * k["beta"]})),
            "EWC merge: remainder",
        ),
        (
            "averaged_path",
            lambda *a, **k: averaged_path(*a, **(k | {"beta": 1.01 * k["beta"]})),
            "EWC merge: second order",
        ),
        ("penalty_of", lambda alpha, beta: (alpha, beta / alpha), "ends of p"),
    ],
)
def test_a_broken_identity_fails_its_check(name, wrong, failing, monkeypatch) -> None:
    monkeypatch.setattr(averaging_study, name, wrong)
    found = averaging_study.checks(random_quadratics(dimension=6, seed=2), SMALL)
    assert failing in [c.name for c in found if not c.passed]


@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": 2},
        {"decay": 0.0},
        {"decay": 4.0, "dimension": 30},
        {"alignment": 1.0, "rotation": 0.0},
        {"p": (0.001,), "beta": 0.01},
        {"steps": 3, "dimension": 2},
        {"seeds": 1, "seed": 7, "beta": 0.99},
    ],
    ids=str,
)
def test_unusual_studies(changes) -> None:
    found = run_averaging(dataclasses.replace(SMALL, **changes))
    assert found.passed, [c for c in found.checks if not c.passed]
    assert all(math.isfinite(v.value) for v in found.equal.values())


def test_progress_and_mistakes() -> None:
    calls: list[float] = []
    run_averaging(SMALL, advance=calls.append)
    assert sum(calls) == work_of(SMALL) == 3 + 6 * 3
    with pytest.raises(ConfigError) as caught:
        run_averaging(dataclasses.replace(SMALL, beta=1.0, alignment=2.0, p=(1.5,)))
    assert all(name in str(caught.value) for name in ("beta", "alignment", "p[0]"))
    with pytest.raises(ConfigError, match=r"direct fine-tuning leaves .* Give more"):
        run_averaging(dataclasses.replace(SMALL, steps=1, dimension=40))
