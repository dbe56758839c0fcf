"""Many random problems of `theory.deep_linear`: whether its closed forms hold, and when pre-training longer harms.

Source: Overtrained Language Models, section 4. Two kinds of result, as in `theory.averaging_study`:

- checks: the closed forms against gradient descent on the matrices, Monte Carlo and exact enumeration. One that fails
  is a mistake here or in the theory.
- statements: what theorems 4.4, 4.6 and 4.7 say of n = 1, 2, ..., asked of models as they are: pre-trained by gradient
  flow from e^-tau up to t_n, not ideal, and fine-tuned by gradient descent for a finite time. With an interval over
  seeds they hold, do not hold, or cannot be told.

The expectation over noise is exact. The first feature that raises the loss is counted from 1; where none of D does it
is D + 1, so that ratios exist.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, mistakes_in
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
from holdfast.theory.findings import EXACT, Check, Interval, Statement, Study, check_of, mean_interval, statement_of
from holdfast.theory.overtraining_settings import OvertrainingSettings, TasksSettings

LONGER = (1, 8, 16, 64)
"""Times the fine-tuning of the setting: what becomes of the loss when it goes on."""
DRAWN = 160
"""Places in time of the first problem's curves."""
RATE = 0.05
"""Learning rate of pre-training by gradient descent, over the first singular value."""
DRAWS = 1000
"""Of noise, in the Monte Carlo."""
ERRORS = 5.0
"""Standard errors that a Monte Carlo mean may lie off."""


@dataclass(frozen=True, kw_only=True)
class Along:
    """One modification along pre-training, means over seeds, by features learnt before it: 0 to D."""

    strength: float
    """gamma or lambda."""
    loss: list[Interval]
    """Pre-training loss after the modification."""
    sensitivity: list[Interval]
    """That minus the loss before it."""
    task: list[Interval]
    """Loss on the new task after fine-tuning; empty for noise."""
    inflection: Interval
    """Features learnt when one more first raises the loss; D where none does."""


@dataclass(frozen=True, kw_only=True)
class InTime:
    """The first problem along pre-training time."""

    pretraining: list[float]
    """s."""
    finetuning: list[float]
    """f."""
    checkpoints: list[float]
    """t_1 to t_D."""
    times: list[float]
    learnt: list[list[float]]
    """Singular values under gradient flow, one list a feature."""
    descended: list[list[float]]
    """The same by gradient descent, at `descent_times`."""
    descent_times: list[float]
    base: list[float]
    noisy: dict[str, list[float]]
    """Expected loss by gamma."""
    tuned: dict[str, list[float]]
    """Loss after fine-tuning by lambda."""
    longer: dict[str, list[float]]
    """Loss after fine-tuning at lambda 0, by how many times as long, at 0 features and t_1 to t_D."""


@dataclass(frozen=True, kw_only=True)
class OvertrainingStudy(Study):
    """Everything the page and the tables show."""

    subject: ClassVar[str] = "overtraining"
    setting: OvertrainingSettings
    base: list[Interval]
    """Pre-training loss by features learnt, 0 to D."""
    noise: list[Along]
    tuning: list[Along]
    """From lambda 0 on."""
    first: InTime
    statements: list[Statement]
    checks: list[Check]
    seconds: float
    notes: list[str]


def run_overtraining(
    setting: OvertrainingSettings, *, advance: Callable[[float], None] = lambda amount: None
) -> OvertrainingStudy:
    """Draws the problems, computes all figures, tests all closed forms, judges all statements.

    Args:
        setting: what to compute.
        advance: called with 1 after every problem; `work_of` says how many there are.

    Raises:
        ConfigError: a setting that cannot be, with all that is wrong.
    """
    Given().check(mistakes_in(setting))
    began = time.perf_counter()
    asked = {s.name: getattr(setting, s.name) for s in settings_of(TasksSettings)}
    rows = []
    for number in range(setting.seeds):
        rows.append(_Row(random_tasks(**asked, seed=setting.seed + number), setting))
        advance(1)
    level = setting.confidence
    base = np.array([r.base for r in rows])
    descent = _descended(rows[0], setting.tau)
    return OvertrainingStudy(
        setting=setting,
        base=_intervals(base, level),
        noise=[
            _along(gamma, np.array([r.noisy[place] for r in rows]), base, None, level)
            for place, gamma in enumerate(rows[0].gammas)
        ],
        tuning=[
            _along(
                weight, np.array([r.tuned[place] for r in rows]), base, np.array([r.task[place] for r in rows]), level
            )
            for place, weight in enumerate(rows[0].weights)
        ],
        first=_in_time(rows[0], setting, descent),
        statements=statements(rows, setting),
        checks=checks(rows, setting, descent),
        seconds=time.perf_counter() - began,
        notes=["One seed: there are no intervals, and no statement can be told."] if setting.seeds == 1 else [],
    )


def work_of(setting: OvertrainingSettings) -> int:
    """How many problems `run_overtraining` goes through."""
    return setting.seeds


# ---------------------------------------------------------------------------------------------------------- one problem


class _Row:
    """One seed's figures, by features learnt 0 to D in the last place."""

    def __init__(self, tasks: LinearTasks, setting: OvertrainingSettings) -> None:
        self.tasks = tasks
        self.gammas, self.weights = sorted(set(setting.gammas)), [0.0, *sorted(set(setting.lambdas))]
        self.times = np.append(0.0, checkpoint_times(tasks.pretraining, setting.tau))
        self.values = _pretrained(tasks, setting, self.times)
        self.base = squared_loss(self.values, tasks.pretraining)
        self.noisy = perturbed_losses(tasks, np.array(self.gammas), self.values)
        tuned = np.array([_finetuned(tasks, self.values, weight, setting.finetune_time) for weight in self.weights])
        self.tuned, self.task = squared_loss(tuned, tasks.pretraining), squared_loss(tuned, tasks.finetuning)


def _pretrained(tasks: LinearTasks, setting: OvertrainingSettings, times: np.ndarray) -> np.ndarray:
    """Singular values `[T, D]` at times `[T]` of pre-training."""
    return flow_values(times[:, None], start=start_value(setting.tau), target=tasks.pretraining)


def _finetuned(tasks: LinearTasks, values: np.ndarray, weight: float, length: float) -> np.ndarray:
    """By gradient descent, with half of the paper's largest step or a little less."""
    steps = math.ceil(2 * length / step_bound(tasks, weight))
    return descent_values(values, tasks.finetuning, rate=length / steps, steps=steps, weight=weight)


def _intervals(values: np.ndarray, confidence: float) -> list[Interval]:
    """Over the first axis, one a place of the second."""
    return [mean_interval(column, confidence) for column in values.T]


def _along(strength: float, losses: np.ndarray, base: np.ndarray, task: np.ndarray | None, confidence: float) -> Along:
    return Along(
        strength=strength,
        loss=_intervals(losses, confidence),
        sensitivity=_intervals(losses - base, confidence),
        task=[] if task is None else _intervals(task, confidence),
        inflection=mean_interval(inflection_point(np.diff(losses) > 0).astype(float), confidence),
    )


def _descended(row: _Row, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Pre-training by gradient descent: times `[T]` and singular values `[T, D]`, until all features are learnt."""
    s = row.tasks.pretraining
    rate = RATE / float(s[0])
    every = max(1, round(half_times(s, tau)[0] / rate / 200))
    steps = math.ceil(1.25 * row.times[-1] / rate)
    path = descent_values(np.full(len(s), start_value(tau)), s, rate=rate, steps=steps, every=every)
    return np.arange(len(path)) * rate * every, path


def _in_time(row: _Row, setting: OvertrainingSettings, descent: tuple[np.ndarray, np.ndarray]) -> InTime:
    tasks, marks = row.tasks, row.times[1:]
    times = np.union1d(np.geomspace(marks[0] / 4, marks[-1] * 1.25, DRAWN), marks)
    values = _pretrained(tasks, setting, times)
    at = np.unique(np.searchsorted(descent[0], times[:-4:4]))

    def tuned(start: np.ndarray, weight: float, length: float) -> list[float]:
        moved = flow_values(length, start=start, target=tasks.finetuning, weight=weight)
        found: list[float] = squared_loss(moved, tasks.pretraining).tolist()
        return found

    return InTime(
        pretraining=tasks.pretraining.tolist(),
        finetuning=tasks.finetuning.tolist(),
        checkpoints=marks.tolist(),
        times=times.tolist(),
        learnt=values.T.tolist(),
        descended=descent[1][at].T.tolist(),
        descent_times=descent[0][at].tolist(),
        base=squared_loss(values, tasks.pretraining).tolist(),
        noisy={f"{g:g}": perturbed_losses(tasks, g, values).tolist() for g in row.gammas},
        tuned={f"{w:g}": tuned(values, w, setting.finetune_time) for w in row.weights},
        longer={f"{k}": tuned(row.values, 0.0, k * setting.finetune_time) for k in LONGER},
    )


# ----------------------------------------------------------------------------------------------------------- statements


def statements(rows: Sequence[_Row], setting: OvertrainingSettings) -> list[Statement]:
    """What the theorems say, as ratios that are below 1 where it is so here too."""
    gammas, weights = rows[0].gammas, rows[0].weights
    middle = len(gammas) // 2
    noise, tuning = (
        inflection_point(np.diff(losses) > 0) for losses in ([r.noisy for r in rows], [r.tuned for r in rows])
    )
    found: list[Statement] = []

    def add(name: str, source: str, what: str, values: Sequence[float] | np.ndarray) -> None:
        found.append(statement_of(name, source, what, values, setting.confidence))

    def growth(losses: np.ndarray, base: np.ndarray) -> float:
        felt = (losses - base)[..., 1:]
        return float(_ratios(felt[..., :-1], felt[..., 1:]).max())

    before = "sensitivity after n - 1 features over that after n, the worst n and"
    add("noise costs more with each feature", "prop. 4.3", f"{before} gamma", [growth(r.noisy, r.base) for r in rows])
    add("so does fine-tuning", "theorem 4.6", f"{before} lambda", [growth(r.tuned, r.base) for r in rows])
    what = "the first feature that raises the loss, at"
    if len(gammas) > 1:
        ratios = (noise[:, -1] + 1) / (noise[:, 0] + 1)
        add("larger noise turns earlier", "section 4.2", f"{what} gamma {gammas[-1]:g} over {gammas[0]:g}", ratios)
    ratios = (tuning[:, 0] + 1) / (tuning[:, -1] + 1)
    add("larger lambda turns later", "theorem 4.7", f"{what} lambda 0 over {weights[-1]:g}", ratios)
    what = "loss on the new task at one lambda over that at the next, the worst pair and n"
    add(
        "lambda costs on the new task",
        "theorem 4.7",
        what,
        [_ratios(r.task[:-1], r.task[1:])[:, 1:].max() for r in rows],
    )
    for name, source, at, losses, turns in (
        ("noise", "theorem 4.4", f"gamma {gammas[middle]:g}", [r.noisy[middle] for r in rows], noise[:, middle]),
        ("fine-tuning", "theorem 4.7", "lambda 0", [r.tuned[0] for r in rows], tuning[:, 0]),
    ):
        turned = [_ratios(x[n:-1], x[n + 1 :]).max() for x, n in zip(losses, turns, strict=True) if n < len(x) - 1]
        if turned:
            what = (
                f"loss before a feature over that after it, the worst past the first rise; {at}, {len(turned)} problems"
            )
            add(f"{name}: once up, ever up", source, what, turned)
    return found


def _ratios(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Ratios that have a logarithm: what is not positive counts as nothing."""
    floor = EXACT * float(np.abs(after).max())
    return np.maximum(before, floor) / np.maximum(after, floor)


# --------------------------------------------------------------------------------------------------------------- checks


def checks(rows: Sequence[_Row], setting: OvertrainingSettings, descent: tuple[np.ndarray, np.ndarray]) -> list[Check]:
    """Every closed form as a number that has to be small, on the first problem; on all where it says so.

    Args:
        rows: the problems.
        setting: for the start of pre-training and the seed of the noise.
        descent: times `[T]` and singular values `[T, D]` of pre-training by gradient descent on the first problem.
    """
    tasks = rows[0].tasks
    found = [_matrix_check(tasks), _sigmoid_check(tasks), *_order_checks(rows[0], setting.tau, descent)]
    return [*found, *_noise_checks(rows, setting.seed), *_tuning_checks(rows)]


def _matrix_check(tasks: LinearTasks) -> Check:
    s, f = tasks.pretraining, tasks.finetuning
    # No deeper: rounding of 1e-16 in rotated matrices starts features that an e^-2tau far below it would hold back.
    tau, weight = 8 - math.log(s[-1]) / 2, 0.5
    start, goals = np.full(tasks.dimension, start_value(tau)), (tasks.matrix(s), tasks.matrix(f))
    first: dict[str, Any] = {"rate": RATE / s[0], "steps": math.ceil(checkpoint_times(s, tau)[0] * s[0] / RATE)}
    second: dict[str, Any] = {"rate": step_bound(tasks, weight) / 2, "steps": 200, "weight": weight}
    factors = descent_factors(*tasks.factors(start), goals[0], **first)
    values = descent_values(start, s, **first)
    tuned, moved = descent_factors(*factors, goals[1], **second), descent_values(values, f, **second)
    apart = [np.abs(w[0] @ w[1] - tasks.matrix(x)).max() / s[0] for w, x in ((factors, values), (tuned, moved))]
    what = (
        f"gradient descent on matrices with U and V drawn at random, against D numbers: {first['steps']} steps of "
        f"pre-training, then {second['steps']} of fine-tuning (lemma A.7)"
    )
    return check_of("the network is D numbers", what, apart)


def _sigmoid_check(tasks: LinearTasks) -> Check:
    s = tasks.pretraining
    tau = 2 - math.log(s[-1]) / 2  # a short way up, on which the steps are what differs
    start, span = np.full(tasks.dimension, start_value(tau)), 1.5 * float(half_times(s, tau)[0])
    goal = flow_values(np.linspace(0, span, 21)[:, None], start=start, target=s)
    every = math.ceil(span * s[0] / 0.005 / 20)
    paths = [descent_values(start, s, rate=span / 20 / n, steps=20 * n, every=n) for n in (every, 2 * every)]
    misses = [float(np.abs(path - goal).max() / s[0]) for path in paths]
    what = "gradient descent less the sigmoid of gradient flow: halving the step halves it, so its order is 1"
    note = f"{misses[0]:.1e} at a step of 0.005 / s_1, {misses[1]:.1e} at half of it"
    return check_of("every feature is a sigmoid", what, abs(math.log2(misses[0] / misses[1]) - 1), 0.05, note)


def _order_checks(row: _Row, tau: float, descent: tuple[np.ndarray, np.ndarray]) -> list[Check]:
    s, ideal = row.tasks.pretraining, row.tasks.ideal_values()
    predicted = half_times(s, tau, RATE / float(s[0]))
    crossed = descent[0][(descent[1] >= s / 2).argmax(0)]
    what = "when gradient descent has half of each feature, against log(s / start) / (2 log(1 + 2 eta s)) steps"
    note = f"{len(s)} features, {'' if (np.diff(crossed) > 0).all() else 'not '}one after another"
    found = [check_of("times of the features", what, np.abs(crossed / predicted - 1), 0.03, note)]
    following = np.append(s[1:], 0.0)
    exponent = float(((s - following) / (s + following)).min())
    distance = np.linalg.norm(np.sqrt(row.values) - np.sqrt(ideal), axis=1)[1:]
    bound = math.sqrt(len(s)) * math.exp(-exponent * tau) + EXACT
    what = (
        "factors at t_n against the ideal ones, allowed sqrt(D) e^(-C tau) with C the least (s_n - s_n+1)/(s_n + s_n+1)"
    )
    return [*found, check_of("near the ideal model", what, distance, bound, f"C is {exponent:.3g} (theorem A.1)")]


def _noise_checks(rows: Sequence[_Row], seed: int) -> list[Check]:
    tasks = rows[0].tasks
    s, gammas = tasks.pretraining, np.array(rows[0].gammas)
    rng = np.random.default_rng(seed)
    first, second, target = rng.standard_normal((3, 2, 2))
    total = 0.0
    for signs in itertools.product((-1.0, 1.0), repeat=8):
        noise = 0.7 * np.array(signs).reshape(2, 2, 2)
        total += (((first + noise[0]) @ (second + noise[1]) - target) ** 2).sum() / 256
    expected = float(perturbed_loss(first, second, target, 0.7))
    what = (
        "all 256 signs of noise of size gamma on factors of 2 x 2: the formula needs no normal law, and lacks no term"
    )
    found = [check_of("noise, every sign", what, abs(total / expected - 1))]

    ideal = perturbed_losses(tasks, gammas)
    draws = rng.standard_normal((2, DRAWS, tasks.dimension, tasks.dimension))
    worst, allowed = 0.0, 0.0
    for n, values in enumerate(tasks.ideal_values()):
        first, second = tasks.factors(values)
        for place, gamma in enumerate(gammas):
            made = (first + gamma * draws[0]) @ (second + gamma * draws[1]) - tasks.matrix(s)
            losses = (made**2).sum((1, 2))
            off = abs(losses.mean() / ideal[place, n] - 1)
            error = ERRORS * losses.std(ddof=1) / math.sqrt(DRAWS) / ideal[place, n]
            if off / error >= worst / (allowed or 1.0):
                worst, allowed = off, error
    what = f"Monte Carlo of {DRAWS} draws at every n and gamma, the furthest; {ERRORS:g} standard errors are allowed"
    found.append(check_of("noise, drawn", what, worst, float(allowed)))
    steps = np.diff(ideal) - (2 * tasks.dimension * gammas[:, None] ** 2 - s) * s
    what = "learning feature n changes it by (2 D gamma^2 - s_n) s_n: equal, where (2) and (14) print at least"
    found.append(check_of("noise, one more feature", what, np.abs(steps) / ideal.max()))
    real = [inflection_point(np.diff(perturbed_losses(r.tasks, gammas)) > 0) for r in rows]
    rule = [inflection_point(harmful_in_noise(r.tasks, gammas)) for r in rows]
    reversals = [np.diff(one).max(initial=0) for one in real]
    what = (
        "features between the turn of the loss and the smallest n with s_n < 2 D gamma^2, and turns that come later at "
        "a larger gamma; all problems"
    )
    apart = [np.abs(np.subtract(real, rule)).max(), *reversals]
    return [*found, check_of("inflection against gamma", what, apart, 0.0)]


def _tuning_checks(rows: Sequence[_Row]) -> list[Check]:
    tasks, weights = rows[0].tasks, np.array(rows[0].weights)
    s, f, ideal = tasks.pretraining, tasks.finetuning, tasks.ideal_values()
    ends = []
    for weight in weights:
        rate = step_bound(tasks, weight)
        # A step divides what is left by 1 - 4 eta (1 + lambda) c, at the slowest feature's end c.
        pace = 4 * rate * float((f + weight * s).min())
        steps = math.ceil(30 / pace)
        ends.append(descent_values(ideal, f, rate=rate, steps=steps, weight=weight))
    goal = minimiser(tasks, weights)
    reached = goal[:, None] * (ideal > 0)
    swapped = float(np.abs((s + weights[:, None] * f) / (1 + weights[:, None]) - goal).max() / f.max())
    what = "gradient descent from each ideal model at each lambda, against (f + lambda s) / (1 + lambda) and 0"
    note = f"A.11 and A.28 print s and f the other way round, {swapped:.2g} away; A.23 as here"
    found = [check_of("where fine-tuning ends", what, np.abs(np.array(ends) - reached).max() / f.max(), note=note)]

    old, new = finetuned_losses(tasks, weights)
    made = tasks.matrix(reached)
    losses = [((made - tasks.matrix(target)) ** 2).sum((-2, -1)) for target in (s, f)]
    apart = [np.abs(losses[0] - old).max() / old.max(), np.abs(losses[1] - new).max() / new.max()]
    found.append(
        check_of("losses after fine-tuning", "both closed forms against |theta - A|_F^2 of the matrices", apart)
    )
    forgotten = old - squared_loss(ideal, s)
    left = new - (squared_loss(ideal, f) - _learnt(f, s))
    whole = np.sqrt(_learnt(f, s))
    line = np.sqrt(np.maximum(forgotten, 0)) + np.sqrt(np.maximum(left, 0)) - whole
    what = "sqrt(forgotten) + sqrt(left to learn) is |f - s| over the learnt features at every lambda"
    found.append(check_of("a straight line between the tasks", what, np.abs(line).max() / whole.max(), 1e-6))
    turns = [inflection_point(np.diff(finetuned_losses(r.tasks, weights)[0]) > 0) for r in rows]
    rule = [inflection_point(harmful_in_finetuning(r.tasks, weights)) for r in rows]
    reversals = [(-np.diff(one)).max(initial=0) for one in turns]
    what = (
        "features between the turn of the loss and the smallest n with |f_n - s_n| > (1 + lambda) s_n, and turns that "
        "come earlier at a larger lambda; all problems"
    )
    note = "A.25 prints the opposite inequality"
    found.append(
        check_of("inflection against lambda", what, [np.abs(np.subtract(turns, rule)).max(), *reversals], 0.0, note)
    )
    start = np.full(tasks.dimension, 1e-3 * float(min(s.min(), f.min())))
    rate = step_bound(tasks, 1.0)
    steps = math.ceil(80 / (4 * rate * float((f + start).min())))
    arrived = descent_values(start, f, rate=rate, steps=steps, weight=1.0)
    what = "from a start that is small, not 0, fine-tuning for long takes every feature to (f + lambda x)/(1 + lambda)"
    found.append(check_of("0 stays 0 only for a while", what, np.abs(arrived - (f + start) / 2).max() / f.max()))
    return found


def _learnt(f: np.ndarray, s: np.ndarray) -> np.ndarray:
    """|f - s|^2 over the first 0 to D features."""
    return np.append(0.0, np.cumsum((f - s) ** 2))
