"""Overtraining in a two-layer linear network: closed forms against autograd, an integrator, enumeration and gradient
descent on the matrices; and a study whose checks see each of them broken."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from holdfast.errors import ConfigError, DataError, ShapeError
from holdfast.support.files import read_json, to_jsonable, write_json
from holdfast.theory import overtraining_study
from holdfast.theory.deep_linear import (
    LinearTasks,
    checkpoint_times,
    descent_factors,
    descent_values,
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
    squared_loss,
    start_value,
    step_bound,
)
from holdfast.theory.overtraining_settings import OvertrainingSettings
from holdfast.theory.overtraining_study import OvertrainingStudy, run_overtraining, work_of

FAST = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SMALL = OvertrainingSettings(dimension=4, ratio=0.5, tau=120, seeds=4, gammas=(0.1, 0.3), lambdas=(0.5, 2.0))
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
    return LinearTasks(pretraining=pretraining, finetuning=finetuning, left=left, right=right)


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


@FAST
@given(tasks=tasks_drawn, gamma=st.floats(0.01, 1), more=st.floats(1, 3))
def test_larger_noise_never_turns_later(tasks, gamma, more) -> None:
    harmful = harmful_in_noise(tasks, np.array([gamma, gamma * more]))
    assert inflection_point(harmful)[1] <= inflection_point(harmful)[0]
    assert not (np.diff(harmful.astype(int)) < 0).any()  # theorem 4.4: past the turn every feature harms
    clear = np.abs(tasks.pretraining - 2 * tasks.dimension * gamma**2) > 1e-9
    np.testing.assert_array_equal((np.diff(perturbed_losses(tasks, gamma)) > 0)[clear], harmful[0][clear])


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
    forgotten = old - squared_loss(tasks.ideal_values(), s)
    assert (np.diff(forgotten) > -1e-12 * old.max()).all()
    assert (new[1, 1:] - new[0, 1:] > -1e-12 * new.max()).all()
    left = new - squared_loss(tasks.ideal_values(), f) + np.append(0, np.cumsum((f - s) ** 2))
    whole = np.sqrt(np.append(0, np.cumsum((f - s) ** 2)))
    line = np.sqrt(np.maximum(forgotten, 0)) + np.sqrt(np.maximum(left, 0))
    np.testing.assert_allclose(line, np.broadcast_to(whole, line.shape), atol=1e-6)
    harmful = harmful_in_finetuning(tasks, weights)
    np.testing.assert_array_equal(harmful, f > (2 + weights[:, None]) * s)
    assert inflection_point(harmful)[1] >= inflection_point(harmful)[0]  # A.25 prints the opposite
    clear = np.abs(f - (2 + weight) * s) > 1e-9
    np.testing.assert_array_equal((np.diff(old[0]) > 0)[clear], harmful[0][clear])


def test_a_weaker_task_never_turns() -> None:
    tasks = tasks_of([1.0, 0.4, 0.1], [0.2, 0.01, 0.05])
    assert not harmful_in_finetuning(tasks, 0.0).any()
    assert (np.diff(finetuned_losses(tasks, 0.0)[0]) < 0).all()


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


def test_descent_on_matrices_is_descent_on_singular_values() -> None:
    tasks = tasks_of([1.0, 0.5, 0.2], [0.4, 0.9, 0.3], seed=2)
    start = np.full(3, start_value(5.0))
    factors = descent_factors(*tasks.factors(start), tasks.matrix(tasks.pretraining), rate=0.1, steps=120)
    values = descent_values(start, tasks.pretraining, rate=0.1, steps=120)
    np.testing.assert_allclose(factors[0] @ factors[1], tasks.matrix(values), atol=1e-12)
    kept = descent_values(start, tasks.pretraining, rate=0.1, steps=120, every=60)
    assert kept.shape == (3, 3) and (kept[-1] == values).all() and kept[0] == pytest.approx(start)


@FAST
@given(tasks=tasks_drawn, tau=st.floats(10, 200))
def test_features_are_learnt_one_after_another(tasks, tau) -> None:
    """Theorem A.1 with its constant, and half of each feature at its time."""
    s = tasks.pretraining
    marks, halves = checkpoint_times(s, tau), half_times(s, tau)
    assert (np.diff(marks) > 0).all() and (np.diff(halves) > 0).all()
    np.testing.assert_allclose(flow_values(halves, start=start_value(tau), target=s), s / 2, rtol=1e-9)
    real = flow_values(marks[:, None], start=start_value(tau), target=s)
    following = np.append(s[1:], 0)
    exponent = ((s - following) / (s + following)).min()
    apart = np.linalg.norm(np.sqrt(real) - np.sqrt(tasks.ideal_values()[1:]), axis=1)
    assert (apart <= math.sqrt(len(s)) * math.exp(-exponent * tau) + 1e-9).all()


def test_finite_steps_are_slower_as_predicted() -> None:
    s = np.array([1.0, 0.5])
    path = descent_values(np.full(2, start_value(40.0)), s, rate=0.2, steps=1000, every=1)
    crossed = (path >= s / 2).argmax(0) * 0.2
    np.testing.assert_allclose(crossed, half_times(s, 40.0, 0.2), rtol=0.02)
    assert (crossed > 1.05 * half_times(s, 40.0)).all()


def test_nothing_stays_nothing_and_a_trace_grows() -> None:
    target = np.array([0.8, 0.6])
    assert descent_values(np.zeros(2), target, rate=0.1, steps=500).tolist() == [0, 0]
    assert flow_values(1e6, start=np.array([0.0, 1e-30]), target=target) == pytest.approx([0, 0.6])
    assert descent_values(np.full(2, 1e-6), target, rate=0.1, steps=500) == pytest.approx(target)


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


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"pretraining": [1.0, 1.0]}, DataError, "singular values that fall strictly, got 1 followed by 1. Sort them"),
        ({"pretraining": [0.5, 1.0]}, DataError, "got 0.5 followed by 1"),
        ({"pretraining": [1.0, math.nan]}, DataError, "pretraining: expected finite singular values above 0, got nan"),
        ({"finetuning": [1.0, 0.0]}, DataError, "finetuning: expected finite singular values above 0, got 0. Leave"),
        ({"finetuning": [1.0]}, ShapeError, "finetuning: expected [2], got [1]"),
        ({"left": np.ones((2, 2))}, DataError, "left: expected an orthogonal matrix. Take U and V of an SVD."),
        ({"right": np.eye(3)}, ShapeError, "right: expected [2, 2], got [3, 3]"),
    ],
)
def test_tasks_that_cannot_be(change, error, text) -> None:
    sound = {"pretraining": [1.0, 0.5], "finetuning": [1.0, 2.0], "left": np.eye(2), "right": np.eye(2)}
    with pytest.raises(error) as caught:
        LinearTasks(**{**sound, **change})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: perturbed_losses(t, -0.1), "gamma: expected 0 or more, got -0.1"),
        (lambda t: harmful_in_noise(t, math.nan), "gamma: expected 0 or more, got nan"),
        (lambda t: minimiser(t, [0.5, -2.0]), "weight (lambda): expected 0 or more, got -2"),
        (lambda t: harmful_in_finetuning(t, math.inf), "weight (lambda): expected 0 or more, got inf"),
        (lambda t: descent_values(t.finetuning, t.finetuning, rate=0, steps=1), "rate: expected a positive number"),
        (lambda t: start_value(-1), "tau: expected a positive number, got -1"),
        (lambda t: checkpoint_times(t.pretraining, 0.3), "tau: expected e^(-2 tau) below half of the smallest"),
        (lambda t: half_times(t.pretraining, 0.3), "Give a larger tau."),
        (lambda t: random_tasks(dimension=1, ratio=1.0), "dimension: expected a whole number of at least 2"),
        (lambda t: random_tasks(flatness=0, spread=0), "changes nothing"),
    ],
)
def test_arguments_that_cannot_be(call, text) -> None:
    with pytest.raises(ConfigError) as caught:
        call(tasks_of([1.0, 0.5], [1.0, 2.0]))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tau": 2.0}, "tau: expected at least 3.3, so that e^(-2 tau) is small beside the last singular value"),
        ({"ratio": 0.1}, "dimension, ratio: the last singular value may be 0.0002"),
        ({"spread": 0.0, "flatness": 0.0}, "flatness, spread: with both 0 fine-tuning is pre-training over again"),
    ],
)
def test_settings_that_cannot_be(change, text) -> None:
    with pytest.raises(ConfigError) as caught:
        run_overtraining(dataclasses.replace(SMALL, **change))
    assert text in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ the study


@pytest.fixture(scope="module")
def study() -> OvertrainingStudy:
    return run_overtraining(SMALL)


def test_the_study_holds_and_comes_back_from_json(study, tmp_path) -> None:
    assert study.passed and len(study.checks) == 13 and work_of(SMALL) == 4
    assert all(s.ratio.value < 1 for s in study.statements[:5])
    assert [study.statements[place].verdict for place in (0, 2)] == ["holds"] * 2
    assert OvertrainingStudy.from_json(read_json(write_json(tmp_path / "a.json", study))) == study
    with pytest.raises(DataError, match="the record that 'holdfast theory overtraining' writes"):
        OvertrainingStudy.from_json({**to_jsonable(study), "base": "none"})


def test_figures_are_means_over_the_problems(study) -> None:
    """The ideal model's closed forms, which models as trained are near to."""
    drawn = [random_tasks(dimension=4, ratio=0.5, seed=seed) for seed in range(4)]
    for along in study.noise:
        expected = np.mean([perturbed_losses(t, along.strength) for t in drawn], 0)
        assert [i.value for i in along.loss] == pytest.approx(expected.tolist(), rel=1e-6)
        turns = [inflection_point(harmful_in_noise(t, along.strength)) for t in drawn]
        assert along.inflection.value == pytest.approx(np.mean(turns))
    assert [a.strength for a in study.tuning] == [0, 0.5, 2.0]
    for along in study.tuning:
        old, new = np.mean([finetuned_losses(t, along.strength) for t in drawn], 0)
        assert [i.value for i in along.loss] == pytest.approx(old.tolist(), rel=1e-3, abs=1e-4)
        assert [i.value for i in along.task] == pytest.approx(new.tolist(), rel=1e-3, abs=1e-4)
    assert step_bound(drawn[0], 1.0) < 1 / 12


def test_fine_tuning_for_long_brings_all_checkpoints_together() -> None:
    found = run_overtraining(dataclasses.replace(SMALL, tau=10, seeds=1)).first.longer
    spread = [max(v) - min(v) for v in found.values()]
    assert spread[-1] < 1e-6 < 0.1 < spread[0]


BROKEN = {
    "noise, every sign": ("perturbed_loss", lambda f: lambda a, b, t, g: f(a, b, t, g) - 8 * g**4),
    "noise, drawn": ("perturbed_losses", lambda f: lambda t, g, v=None: f(t, g, v) * 1.1),
    "noise, one more feature": ("perturbed_losses", lambda f: lambda t, g, v=None: f(t, 1.1 * np.asarray(g), v)),
    "inflection against gamma": ("harmful_in_noise", lambda f: lambda t, g: ~f(t, g)),
    "where fine-tuning ends": ("minimiser", lambda f: lambda t, w: t.finetuning + t.pretraining - f(t, w)),
    "losses after fine-tuning": ("finetuned_losses", lambda f: lambda t, w: (f(t, w)[0] * 1.01, f(t, w)[1])),
    "a straight line between the tasks": ("finetuned_losses", lambda f: lambda t, w: (f(t, w)[0], f(t, w)[1] * 0.9)),
    "inflection against lambda": ("harmful_in_finetuning", lambda f: lambda t, w: f(t, 2 * w + 1)),
    "the network is D numbers": ("descent_factors", lambda f: lambda *a, **k: f(*a, **{**k, "rate": 0.9 * k["rate"]})),
    "every feature is a sigmoid": ("flow_values", lambda f: lambda t, **k: f(1.1 * np.asarray(t), **k)),
    "times of the features": ("half_times", lambda f: lambda s, t, r=0.0: 1.1 * f(s, t, r)),
    "near the ideal model": ("checkpoint_times", lambda f: lambda s, t: 0.8 * f(s, t)),
    "0 stays 0 only for a while": ("descent_values", lambda f: lambda x, t, **k: f(x, 1.1 * t, **k)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_check_can_fail(name, monkeypatch) -> None:
    """A closed form that is a little wrong is seen by the check of its name."""
    where, broken = BROKEN[name]
    monkeypatch.setattr(overtraining_study, where, broken(getattr(overtraining_study, where)))
    found = run_overtraining(dataclasses.replace(SMALL, seeds=2))
    assert name in [c.name for c in found.checks if not c.passed]
    assert not found.passed


def test_one_seed_tells_nothing() -> None:
    found = run_overtraining(dataclasses.replace(SMALL, seeds=1, gammas=(0.1,)))
    assert {s.verdict for s in found.statements} == {"cannot tell"} and "One seed" in found.notes[0]
    assert "larger noise turns earlier" not in [s.name for s in found.statements]
