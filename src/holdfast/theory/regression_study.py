"""Many random problems of `theory.regression`: what each method forgets, with intervals over seeds, and whether the
closed forms hold.

Source: Memory Retaining Finetuning, section 4. The paper proves where gradient descent ends and measures nothing there;
the figures of this file are ours:

- errors on both tasks against lambda, mean over seeds;
- the frontier: pre-training error at equal fine-tuning error. Lambdas of different methods mean different things, equal
  errors do not;
- the same in other geometries: `overlap` and `decay` of `random_problem`;
- checks that the closed forms, their limits and gradient descent agree.

L2's lambda has the unit of squared singular values, label annealing's has none. So L2's grid is the same list times the
mean squared singular value of the fine-tuning rows: if all singular values were equal, equal places on the two grids
would be the same estimator.

Intervals are t-intervals over seeds, one random problem a seed; ratios are formed within a seed and averaged as
logarithms (geometric mean).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, mistakes_in
from holdfast.theory.descent import PRETRAINING, Descent, gradient_descent
from holdfast.theory.findings import (
    EXACT,
    Check,
    Interval,
    Study,
    check_of,
    geometric_interval,
    mean_interval,
)
from holdfast.theory.regression import (
    METHODS,
    Problem,
    along_segment,
    closed_form,
    errors,
    gradient,
    joint_solution,
    learnt_shares,
    random_problem,
    sensitivities,
    split,
    weight_for,
)
from holdfast.theory.regression_settings import ProblemSettings, RegressionSettings

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the start's fine-tuning error, at which the methods are compared."""
MIDDLE = 0.25
"""The share that words and the table of geometries lead with: half of the start's root-mean-square error."""
OVERLAPS = (0.25, 0.5, 0.75)
DECAYS = (0.0, 0.5, 1.0, 2.0)
GEOMETRY_SEEDS = 8
"""At most this many seeds a geometry."""
PENALISED = ("label_annealing", "l2")
NAMES = {PRETRAINING: "pre-training", "direct": "direct fine-tuning", "l2": "L2", "label_annealing": "label annealing"}
MOST_DRAWN = 240
"""Points kept of a curve of gradient descent."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The four errors of `theory.regression.Errors`, means over seeds."""

    pretraining: Interval
    finetuning: Interval
    fresh_pretraining: Interval
    fresh_finetuning: Interval


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method at one place of its grid."""

    weight: float
    """Lambda of label annealing; for L2 before it is multiplied by the mean squared singular value."""
    applied: float
    """Lambda in the objective, for L2 the mean over seeds."""
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class EqualError:
    """Both methods where they leave the same fine-tuning error."""

    share: float
    """Of the start's fine-tuning error."""
    finetuning: Interval
    pretraining: dict[str, Interval]
    """By method: what was forgotten."""
    ratio: Interval | None
    """L2's pre-training error over label annealing's, geometric mean; None where neither forgets anything."""
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Who forgets less at `MIDDLE` in problems of another shape."""

    overlap: float
    decay: float
    slope: Interval
    """Of log sensitivity on log squared singular value: 0 is where L2's penalty fits, 1 where label annealing's
    does."""
    forgotten: dict[str, Interval]
    ratio: Interval | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Directions:
    """One problem, singular direction by singular direction, strongest first."""

    squares: list[float]
    """Squared singular values of the fine-tuning rows."""
    sensitivities: list[float]
    """As of `theory.regression.sensitivities`."""
    learnt: dict[str, list[float]]
    """f by method at `MIDDLE`."""
    slope: float


@dataclass(frozen=True, kw_only=True)
class DescentCurve:
    """One run of gradient descent, thinned for drawing."""

    method: str
    weight: float
    applied: float
    step: float
    bound: float
    limit: float
    predicted_steps: int
    steps_needed: int | None
    relative_distance: float
    mismatch: float
    """Largest difference between a distance and its prediction, over the norm of the closed form."""
    at: list[int]
    """Steps."""
    distances: list[float]
    """Relative to the norm of the closed form."""
    predicted: list[float]


@dataclass(frozen=True, kw_only=True)
class RegressionStudy(Study):
    """Everything the page and the table show."""

    subject: ClassVar[str] = "regression"

    setting: RegressionSettings
    start: Figures
    direct: Figures
    joint: Figures
    """Least squares on both tasks' rows: what full replay reaches."""
    curves: dict[str, list[Point]]
    equal_errors: list[EqualError]
    geometries: list[Geometry]
    directions: Directions
    descents: list[DescentCurve]
    checks: list[Check]
    seconds: float
    notes: list[str]

    @property
    def middle(self) -> EqualError:
        """The comparison that words lead with."""
        return next(e for e in self.equal_errors if e.share == MIDDLE)


def run_regression(
    setting: RegressionSettings, *, advance: Callable[[float], None] = lambda amount: None
) -> RegressionStudy:
    """Draws the problems, computes all figures, tests all statements.

    Args:
        setting: what to compute.
        advance: called with 1 after every problem; `work_of` says how many there are.

    Raises:
        ConfigError: a setting that cannot be, with all that is wrong.
        DataError: a problem in which there is nothing to learn (no shift, no noise, full overlap).
    """
    Given().check(mistakes_in(setting))
    began = time.perf_counter()
    weights = tuple(sorted(set(setting.weights)))
    rows: list[_Row] = []
    for number in range(setting.seeds):
        problem = random_problem(**_problem_arguments(setting), seed=setting.seed + number)
        rows.append(_row(problem, weights))
        if number == 0:
            first = problem
        advance(1)
    notes = []
    if setting.seeds == 1:
        notes.append("One seed: there are no intervals, and no verdict on which method forgets less.")
    geometries = []
    for overlap, decay in geometry_grid(setting):
        geometries.append(_geometry(setting, overlap, decay))
        advance(min(setting.seeds, GEOMETRY_SEEDS))
    runs = descents(first, weights, tolerance=setting.tolerance, most_steps=setting.most_steps)
    squares = first.finetuning_factors.values**2
    shapes = {m: learnt_shares(first, m, weight_for(first, m, MIDDLE)).tolist() for m in PENALISED}
    felt = sensitivities(first)
    level = setting.confidence
    return RegressionStudy(
        setting=dataclasses.replace(setting, weights=weights),
        start=_figures([r.start for r in rows], level),
        direct=_figures([r.direct for r in rows], level),
        joint=_figures([r.joint for r in rows], level),
        curves={
            m: [
                Point(
                    weight=weight,
                    applied=float(np.mean([r.applied[m][place] for r in rows])),
                    figures=_figures([r.curves[m][:, place] for r in rows], level),
                )
                for place, weight in enumerate(weights)
            ]
            for m in PENALISED
        },
        equal_errors=[_equal_error(rows, place, level) for place in range(len(SHARES))],
        geometries=geometries,
        directions=Directions(
            squares=squares.tolist(), sensitivities=felt.tolist(), learnt=shapes, slope=_slope(squares, felt)
        ),
        descents=[_curve(run, relative) for run, relative in runs],
        checks=checks(first, weights, [run for run, _ in runs], setting),
        seconds=time.perf_counter() - began,
        notes=notes,
    )


def work_of(setting: RegressionSettings) -> int:
    """How many problems `run_regression` goes through."""
    return setting.seeds + len(geometry_grid(setting)) * min(setting.seeds, GEOMETRY_SEEDS)


def geometry_grid(setting: RegressionSettings) -> list[tuple[float, float]]:
    """(overlap, decay) of the other geometries."""
    return [(overlap, decay) for decay in DECAYS for overlap in OVERLAPS]


# ---------------------------------------------------------------------------------------------------------- one problem


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """One seed's figures. Errors are `[4, ...]` in the order of `Figures`."""

    start: np.ndarray
    direct: np.ndarray
    joint: np.ndarray
    applied: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]
    """`[4, L]`."""
    equal: dict[str, np.ndarray]
    """`[4, shares]`."""
    scale: float
    """Mean squared pre-training target: what an error of nothing is small against."""


def _row(problem: Problem, weights: Sequence[float], shares: Sequence[float] = SHARES) -> _Row:
    mean_square = float((problem.finetuning_factors.values**2).mean())
    applied = {"label_annealing": np.array(weights), "l2": np.array(weights) * mean_square}
    equal = {m: np.array([weight_for(problem, m, share) for share in shares]) for m in PENALISED}
    return _Row(
        start=_stacked(problem, problem.theta0),
        direct=_stacked(problem, closed_form(problem, "direct")),
        joint=_stacked(problem, joint_solution(problem)),
        applied=applied,
        curves={m: _stacked(problem, closed_form(problem, m, applied[m])) for m in PENALISED},
        equal={m: _stacked(problem, closed_form(problem, m, equal[m])) for m in PENALISED},
        scale=float((problem.pretraining_targets**2).mean()),
    )


def _stacked(problem: Problem, theta: np.ndarray) -> np.ndarray:
    found = errors(problem, theta)
    assert found.fresh_pretraining is not None and found.fresh_finetuning is not None
    return np.stack([found.pretraining, found.finetuning, found.fresh_pretraining, found.fresh_finetuning])


def _figures(stacked: Sequence[np.ndarray], confidence: float) -> Figures:
    values = np.array(stacked)
    names = [f.name for f in dataclasses.fields(Figures)]
    return Figures(**{name: mean_interval(values[:, place], confidence) for place, name in enumerate(names)})


def ratio_interval(above: np.ndarray, below: np.ndarray, scale: np.ndarray, confidence: float) -> Interval | None:
    """Geometric mean of `above / below` over seeds; None where both are rounding."""
    if (np.maximum(above, below) <= 1e-18 * scale).any():
        return None
    return geometric_interval(above / below, confidence)


def verdict(ratio: Interval | None) -> str:
    """Which method forgets less, from the interval of L2's pre-training error over label annealing's."""
    if ratio is None:
        return "neither forgets"
    if ratio.low is None or ratio.high is None:
        return "one seed, no verdict"
    return (
        "label annealing forgets less"
        if ratio.low > 1 + EXACT
        else "L2 forgets less"
        if ratio.high < 1 - EXACT
        else "no difference beyond noise"
    )


def _equal_error(rows: Sequence[_Row], place: int, confidence: float) -> EqualError:
    forgotten = {m: np.array([r.equal[m][0, place] for r in rows]) for m in PENALISED}
    ratio = ratio_interval(forgotten["l2"], forgotten["label_annealing"], np.array([r.scale for r in rows]), confidence)
    return EqualError(
        share=SHARES[place],
        finetuning=mean_interval([r.equal["label_annealing"][1, place] for r in rows], confidence),
        pretraining={m: mean_interval(values, confidence) for m, values in forgotten.items()},
        ratio=ratio,
        verdict=verdict(ratio),
    )


def _geometry(setting: RegressionSettings, overlap: float, decay: float) -> Geometry:
    arguments = _problem_arguments(setting) | {"overlap": overlap, "decay": decay}
    rows, slopes = [], []
    for number in range(min(setting.seeds, GEOMETRY_SEEDS)):
        problem = random_problem(**arguments, seed=setting.seed + number)
        rows.append(_row(problem, (), (MIDDLE,)))
        slopes.append(_slope(problem.finetuning_factors.values**2, sensitivities(problem)))
    forgotten = {m: np.array([r.equal[m][0, 0] for r in rows]) for m in PENALISED}
    ratio = ratio_interval(
        forgotten["l2"], forgotten["label_annealing"], np.array([r.scale for r in rows]), setting.confidence
    )
    return Geometry(
        overlap=overlap,
        decay=decay,
        slope=mean_interval(slopes, setting.confidence),
        forgotten={m: mean_interval(values, setting.confidence) for m, values in forgotten.items()},
        ratio=ratio,
        verdict=verdict(ratio),
    )


def _slope(squares: np.ndarray, felt: np.ndarray) -> float:
    """Least-squares slope of log sensitivity on log squared singular value; NaN for a single direction or where nothing
    is felt."""
    if len(squares) < 2 or not (felt > 0).all():
        return math.nan
    return float(np.polyfit(np.log(squares), np.log(felt), 1)[0])


def _problem_arguments(setting: RegressionSettings) -> dict[str, Any]:
    return {s.name: getattr(setting, s.name) for s in settings_of(ProblemSettings)}


# --------------------------------------------------------------------------------------------------------------- checks


def descents(
    problem: Problem, weights: Sequence[float], *, tolerance: float, most_steps: int
) -> list[tuple[Descent, float]]:
    """Gradient descent on all objectives: (run, weight on the common grid), pre-training first; of the weights, the
    ends and the middle one."""
    weights = sorted({weights[0], weights[len(weights) // 2], weights[-1]})
    mean_square = float((problem.finetuning_factors.values**2).mean())
    wanted = [(PRETRAINING, 0.0, 0.0), ("direct", 0.0, 0.0)]
    wanted += [(m, weight, weight * (mean_square if m == "l2" else 1.0)) for m in PENALISED for weight in weights]
    return [
        (gradient_descent(problem, m, applied, tolerance=tolerance, most_steps=most_steps), relative)
        for m, relative, applied in wanted
    ]


def _curve(run: Descent, weight: float) -> DescentCurve:
    size = float(np.linalg.norm(run.goal)) or 1.0
    at = np.unique(np.linspace(0, run.steps, min(run.steps + 1, MOST_DRAWN)).astype(int))
    return DescentCurve(
        method=run.method,
        weight=weight,
        applied=run.weight,
        step=run.step,
        bound=run.bound,
        limit=run.limit,
        predicted_steps=run.predicted_steps,
        steps_needed=run.steps_needed,
        relative_distance=run.relative_distance,
        mismatch=_mismatch(run),
        at=at.tolist(),
        distances=(run.distances[at] / size).tolist(),
        predicted=(run.predicted[at] / size).tolist(),
    )


def checks(
    problem: Problem, weights: Sequence[float], runs: Sequence[Descent], setting: RegressionSettings
) -> list[Check]:
    """Every statement of section 4 as a number that has to be small, on one problem.

    Args:
        problem: the two tasks.
        weights: of label annealing; L2's are scaled as everywhere in this file.
        runs: gradient descent on all objectives, as `descents` gives them.
        setting: for the tolerances, and for a companion problem with orthogonal tasks.
    """
    factors, theta0 = problem.finetuning_factors, problem.theta0
    squares = factors.values**2
    grids = {
        "direct": np.zeros(1),
        "label_annealing": np.array(weights),
        "l2": np.array(weights) * float(squares.mean()),
    }
    forms = {m: closed_form(problem, m, grid) for m, grid in grids.items()}
    size = float(np.linalg.norm(theta0))
    direct = forms["direct"][0]
    annealed = forms["label_annealing"]
    found = [_descent_check(m, [r for r in runs if r.method == m], setting.tolerance) for m in (PRETRAINING, *METHODS)]

    def add(name: str, what: str, value: float, allowed: float = EXACT, note: str = "") -> None:
        found.append(check_of(name, what, value, allowed, note))

    distances = "distance to the closed form after every step, against its prediction (lemma B.1)"
    add("steps as the spectrum says", distances, _worst(_mismatch(r) for r in runs))
    slopes = [
        np.linalg.norm(gradient(problem, m, float(w), theta))
        / ((squares[0] * (1 + w) + w) * (np.linalg.norm(theta) + size))
        for m, grid in grids.items()
        for w, theta in zip(grid, forms[m], strict=True)
    ]
    add("gradients vanish", "gradient of objectives (6), (7), (8) at the closed forms", _worst(slopes))
    printed = _printed_forms(problem, grids)
    away = _worst(np.abs(printed[m] - forms[m]).max() for m in METHODS)
    add("formulas of theorem 1", "the closed forms as printed, with (X X^T)^-1 for (XX)^-1", away / size)
    outside = _worst(np.linalg.norm(split(problem, theta - theta0).outside, axis=-1).max() for theta in forms.values())
    add("kept component", "(I - P) theta equals (I - P) theta0 for all three methods", outside / size)
    place, off = along_segment(problem, annealed)
    walked = _worst([np.abs(place - 1 / (1 + grids["label_annealing"])).max(), off.max()])
    add("straight segment", "label annealing lies at 1/(1 + lambda) between P theta0 and m", walked)
    tiny, huge = 1e-12 * squares[-1], 1e12 * squares[0]
    ends = [closed_form(problem, "l2", tiny) - direct, closed_form(problem, "label_annealing", 1e-12) - direct]
    ends += [closed_form(problem, "l2", huge) - theta0, closed_form(problem, "label_annealing", 1e12) - theta0]
    add(
        "limits",
        "lambda to 0 gives direct fine-tuning, lambda to infinity gives theta0",
        _worst(float(np.linalg.norm(e)) for e in ends) / size,
    )
    moved = (printed["l2"] - theta0) @ factors.right.T * factors.values
    shrunk = moved - squares / (squares + grids["l2"][:, None]) * problem.residual
    add(
        "L2's shrinkage",
        "L2 learns s^2/(s^2 + lambda) of every singular direction",
        float(np.abs(shrunk).max() / np.abs(problem.residual).max()),
    )
    flat = dataclasses.replace(problem, finetuning_inputs=factors.left @ factors.right, truth=None)
    alike = closed_form(flat, "l2", weights) - closed_form(flat, "label_annealing", weights)
    add(
        "flat spectrum",
        "with all singular values 1, L2 and label annealing are the same estimator",
        float(np.abs(alike).max()) / size,
    )
    add("least movement", "at equal error L2 moves theta least, label annealing X theta", _least_movement(problem))
    room = setting.dimension - setting.pretrain_rows
    if setting.finetune_rows <= room:
        apart = random_problem(**(_problem_arguments(setting) | {"overlap": 0.0}), seed=setting.seed)
        lost = errors(apart, closed_form(apart, "direct")).pretraining / (apart.pretraining_targets**2).mean()
        add(
            "orthogonal tasks",
            "direct fine-tuning on rows orthogonal to pre-training forgets nothing (section 4.3)",
            math.sqrt(float(lost)),
        )
    return found


def _descent_check(method: str, runs: Sequence[Descent], tolerance: float) -> Check:
    """Whether the closed form was reached; of runs that were stopped before, whether they are where the spectrum
    says."""
    name = f"descent: {NAMES[method]}"
    late = [r for r in runs if r.predicted_steps > r.steps and r.steps_needed is None]
    value = _worst(r.relative_distance for r in runs)
    if not late:
        what = "gradient descent reaches the closed form" + (f", at {len(runs)} lambdas" if len(runs) > 1 else "")
        return Check(name=name, what=what, value=value, allowed=tolerance, passed=value <= tolerance)
    slowest = max(late, key=lambda r: r.predicted_steps)
    value = _worst(_mismatch(r) for r in runs)
    what = "gradient descent is on its way to the closed form where the spectrum says"
    note = (
        f"stopped after {slowest.steps:,} of {slowest.predicted_steps:,} steps, at a relative distance of "
        f"{slowest.relative_distance:.2g}"
    )
    return Check(name=name, what=what, value=value, allowed=EXACT, passed=value <= EXACT, note=note)


def _worst(values: Iterable[float]) -> float:
    """The largest; NaN where one is, which Python's `max` drops, and a check of NaN fails."""
    return float(np.max([float(value) for value in values]))


def _mismatch(run: Descent) -> float:
    """Largest difference between a distance and its prediction, over the norm of the closed form."""
    return float(np.abs(run.distances - run.predicted).max()) / (float(np.linalg.norm(run.goal)) or 1.0)


def _printed_forms(problem: Problem, grids: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Theorem 1's formulas `[L, D]` by N x N systems in place of the SVD; L2 by `(X^T X + a I)^-1 X^T = X^T (X X^T + a
    I)^-1`."""
    inputs, targets, theta0 = problem.finetuning_inputs, problem.finetuning_targets, problem.theta0
    gram = inputs @ inputs.T
    seen = inputs.T @ np.linalg.solve(gram, inputs @ theta0)
    least_norm = inputs.T @ np.linalg.solve(gram, targets)
    kept = 1 / (1 + grids["label_annealing"])[:, None]
    ridges = []
    for weight in grids["l2"]:
        shifted = gram + weight * np.eye(len(gram))
        rescaled = theta0 - inputs.T @ np.linalg.solve(shifted, inputs @ theta0)
        ridges.append(inputs.T @ np.linalg.solve(shifted, targets) + rescaled)
    return {
        "direct": (theta0 - seen + least_norm)[None],
        "label_annealing": theta0 - kept * seen + kept * least_norm,
        "l2": np.array(ridges),
    }


def _least_movement(problem: Problem) -> float:
    """By how much, relative, L2 moves theta more than label annealing, or label annealing the predictions more than L2;
    at most 0 in theory."""
    excess = []
    for share in SHARES:
        moved = {m: closed_form(problem, m, weight_for(problem, m, share)) - problem.theta0 for m in PENALISED}
        length = {m: float(np.linalg.norm(v)) for m, v in moved.items()}
        seen = {m: float(np.linalg.norm(problem.finetuning_inputs @ v)) for m, v in moved.items()}
        excess += [length["l2"] / length["label_annealing"] - 1, seen["label_annealing"] / seen["l2"] - 1]
    return _worst([0.0, *excess])
