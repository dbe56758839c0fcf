"""Many random problems of `theory.averaging`: whether its identities hold, and what SFA, L2 and EWC forget.

Source: Soup to Go, section 4, and what its sections 4.1, 6.2 and 6.3 observe on networks. Two kinds of result, which
are not to be confused:

- checks: identities, as numbers that have to be rounding. One that fails is a mistake here or in the theory.
- statements: what the paper observes, asked of two quadratic tasks, with an interval over seeds: holds, does not hold,
  or cannot tell. They may turn with the geometry, and say nothing about language models.

Methods are compared where they leave the same new-task loss (`MIDDLE` of the start's), for beta, lambda and EWC's
coefficient are no common scale. SFA takes its steps from theta_o in closed form; L2 and EWC are at their minimisers.
Fisher information is exact: the old Hessian's diagonal. Penalised with the whole Hessian, which is the old loss itself,
are the best trade-offs that there are, as training on both tasks at once gives them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, mistakes_in
from holdfast.errors import ConfigError
from holdfast.theory.averaging import (
    Directions,
    Gradient,
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
from holdfast.theory.averaging_settings import AveragingSettings, QuadraticsSettings
from holdfast.theory.findings import (
    EXACT,
    Check,
    Interval,
    Statement,
    Study,
    check_of,
    geometric_interval,
    mean_interval,
    statement_of,
)
from holdfast.theory.regression_study import GEOMETRY_SEEDS

MIDDLE = 0.25
"""Of the start's new-task loss: where methods are compared; half of its root-mean-square error."""
BETAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ALIGNMENTS = (0.0, 0.5, 1.0)
ROTATIONS = (0.0, 1.0)
PENALTIES = ("l2", "ewc", "both")
"""`both`: the old loss itself as the penalty, which is training on both tasks at once."""
NAMES = {"l2": "L2", "ewc": "EWC"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method at one strength, means over seeds."""

    strength: float
    """p, beta, or the coefficient before it is multiplied by the mean curvature."""
    old: Interval
    """The old task's loss over direct fine-tuning's."""
    new: Interval
    """The new task's loss over the start's."""
    distance: Interval
    """To theta_o, over that of the new task's optimum."""


@dataclass(frozen=True, kw_only=True)
class AlignedTasks:
    """At equal new-task loss in problems of another shape: the old loss over L2's."""

    alignment: float
    rotation: float
    along_p: list[Interval]
    """One a p, as `AveragingStudy.fractions`."""
    ewc: Interval
    best: Interval
    """Of the best trade-off that there is."""


@dataclass(frozen=True, kw_only=True)
class AveragingStudy(Study):
    """Everything the page and the tables show."""

    subject: ClassVar[str] = "averaging"

    setting: AveragingSettings
    fractions: list[float]
    """p, falling from 1 (once, at the end) to 1 / steps (after every step)."""
    direct: Point
    curves: dict[str, list[Point]]
    """`p`: along p at the setting's beta; `once`, `often`: along beta at p = 1 and at the smallest p asked for; and
    `PENALTIES`."""
    equal: dict[str, Interval]
    """The old loss over direct fine-tuning's where `MIDDLE` of the new loss is left, by method; `p = 0.25` and the
    like."""
    geometries: list[AlignedTasks]
    curvatures: list[float]
    """Of the first problem's new task, over the largest."""
    learnt: dict[str, list[float]]
    """Shares of each of these directions that is learnt at `MIDDLE`, by method."""
    statements: list[Statement]
    checks: list[Check]
    seconds: float
    notes: list[str]


def run_averaging(
    setting: AveragingSettings, *, advance: Callable[[float], None] = lambda amount: None
) -> AveragingStudy:
    """Draws the problems, computes all figures, tests all identities, judges all statements.

    Args:
        setting: what to compute.
        advance: called with 1 after every problem; `work_of` says how many there are.

    Raises:
        ConfigError: a setting that cannot be, with all that is wrong; so few steps that direct fine-tuning does not
            learn as much as the comparison asks for.
    """
    Given().check(mistakes_in(setting))
    began = time.perf_counter()
    fractions = sorted({1.0, 1 / setting.steps, *setting.p}, reverse=True)
    asked = {s.name: getattr(setting, s.name) for s in settings_of(QuadraticsSettings)}
    rows = []
    for number in range(setting.seeds):
        rows.append(_Row(random_quadratics(**asked, seed=setting.seed + number), setting, fractions))
        advance(1)
    geometries = []
    for alignment, rotation in geometry_grid():
        shape = {**asked, "alignment": alignment, "rotation": rotation}
        ratios = []
        for number in range(min(setting.seeds, GEOMETRY_SEEDS)):
            equal = _Row(random_quadratics(**shape, seed=setting.seed + number), setting, fractions).equal
            ratios.append([equal[m] / equal["l2"] for m in (*map(named, fractions), "ewc", "both")])
            advance(1)
        *along, ewc, best = (geometric_interval(column, setting.confidence) for column in np.transpose(ratios))
        geometries.append(AlignedTasks(alignment=alignment, rotation=rotation, along_p=along, ewc=ewc, best=best))
    level, first = setting.confidence, rows[0]
    return AveragingStudy(
        setting=setting,
        fractions=fractions,
        direct=_points([r.direct for r in rows], [0.0], level)[0],
        curves={
            name: _points([r.curves[name][1] for r in rows], places.tolist(), level)
            for name, (places, _) in first.curves.items()
        },
        equal={m: mean_interval([r.equal[m] for r in rows], level) for m in first.equal},
        geometries=geometries,
        curvatures=(first.plain.values / first.plain.values[-1]).tolist(),
        learnt={m: first.learnt[m].tolist() for m in (*map(named, fractions), "l2")},
        statements=statements(rows, setting),
        checks=checks(first.problem, setting),
        seconds=time.perf_counter() - began,
        notes=["One seed: there are no intervals, and no statement can be told."] if setting.seeds == 1 else [],
    )


def geometry_grid() -> list[tuple[float, float]]:
    """(alignment, rotation) of the other geometries."""
    return [(alignment, rotation) for rotation in ROTATIONS for alignment in ALIGNMENTS]


def work_of(setting: AveragingSettings) -> int:
    """How many problems `run_averaging` goes through."""
    return setting.seeds + len(geometry_grid()) * min(setting.seeds, GEOMETRY_SEEDS)


def named(p: float) -> str:
    """SFA at one p, as a method."""
    return f"p = {p:g}"


# ---------------------------------------------------------------------------------------------------------- one problem


class _Row:
    """One seed's figures: `curves` and `direct` hold `[3, places]`, the parts of `Point`."""

    def __init__(self, problem: Quadratics, setting: AveragingSettings, fractions: Sequence[float]) -> None:
        self.problem, self.plain = problem, problem.along()
        diagonal = np.diag(problem.old_hessian)
        metrics = {"l2": self.plain, "ewc": problem.along(diagonal), "both": problem.along(problem.old_hessian)}
        self._alpha, self._steps = 1 / problem.curvature, setting.steps
        self._start, self._away = problem.losses(problem.old)[1], np.linalg.norm(problem.new - problem.old)
        self._forgotten = 1.0
        self.direct = self._figures(self.plain, self._averaged(1.0)(np.zeros(1)))
        self._forgotten, self.direct[0] = self.direct[0, 0], 1.0
        if not self.direct[1, 0] < MIDDLE:
            raise ConfigError(
                f"steps: direct fine-tuning leaves {100 * self.direct[1, 0]:.0f} % of the new task's loss after "
                f"{setting.steps}; expected less than {100 * MIDDLE:.0f} %, where methods are compared. Give more."
            )
        often = self._averaged(min(setting.p))
        grids = {"p": np.array(fractions), "once": np.array(BETAS), "often": np.array(BETAS)}
        kept = {
            "p": np.concatenate([self._averaged(p)(np.array([setting.beta])) for p in fractions]),
            "once": self._averaged(1.0)(grids["once"]),
            "often": often(grids["often"]),
        }
        self.curves = {m: (grids[m], self._figures(self.plain, kept[m])) for m in kept}
        self.learnt: dict[str, np.ndarray] = {}
        self.equal: dict[str, float] = {}
        lambdas = np.array(sorted(set(setting.lambdas)))
        for m, along in metrics.items():
            self.curves[m] = lambdas, self._figures(along, along.penalised(lambdas * along.values.mean()))
            self._compare(m, along, partial(_by_share, along))
        for p in fractions:
            self._compare(named(p), self.plain, self._averaged(p))

    def _averaged(self, p: float) -> Callable[[np.ndarray], np.ndarray]:
        """SFA at p: shares kept `[B, D]` at weights beta `[B]`."""
        arguments: dict[str, Any] = {"alpha": self._alpha, "every": period(p, self._steps), "steps": self._steps}
        return lambda beta: kept_share(self.plain.values, beta=beta[:, None], **arguments)

    def _figures(self, along: Directions, kept: np.ndarray) -> np.ndarray:
        return self.problem.losses(along.theta(kept)) / np.array([[self._forgotten], [self._start], [self._away]])

    def _compare(self, method: str, along: Directions, kept: Callable[[np.ndarray], np.ndarray]) -> None:
        """Finds the strength, from 0 to 1, at which `MIDDLE` of the new loss is left: it rises with the strength."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = np.array([(low + high) / 2])
            less = along.new_loss(kept(middle))[0] < MIDDLE * self._start
            low, high = (middle[0], high) if less else (low, middle[0])
        found = kept(np.array([(low + high) / 2]))
        self.learnt[method] = 1 - found[0]
        self.equal[method] = float(self._figures(along, found)[0, 0])


def _by_share(along: Directions, share: np.ndarray) -> np.ndarray:
    """What a penalty keeps, its coefficient over the mean curvature going from 0 to infinity as the share to 1."""
    return along.penalised(along.values.mean() * share / (1 - share))


def _points(figures: Sequence[np.ndarray], strengths: Sequence[float], confidence: float) -> list[Point]:
    stacked = np.array(figures)
    return [
        Point(
            strength=strength,
            **{
                name: mean_interval(stacked[:, part, place], confidence)
                for part, name in enumerate(("old", "new", "distance"))
            },
        )
        for place, strength in enumerate(strengths)
    ]


# ----------------------------------------------------------------------------------------------------------- statements


def statements(rows: Sequence[_Row], setting: AveragingSettings) -> list[Statement]:
    """What the paper observes, as ratios that are below 1 where it is so here too."""
    least = min(setting.p)
    small, listed = named(least), sorted(setting.p, reverse=True)
    places = [0, *(rows[0].curves["p"][0].tolist().index(p) for p in listed)]
    along = np.array([r.curves["p"][1][:, places] for r in rows])
    old, new, distance = along[:, 0], along[:, 1], along[:, 2]
    at_beta = f"at beta {setting.beta:g}"
    found: list[Statement] = []

    def add(name: str, source: str, what: str, values: np.ndarray) -> None:
        found.append(statement_of(name, source, what, values, setting.confidence))

    def add_equal(name: str, source: str, one: str, other: str) -> None:
        values = np.array([r.equal[one] / r.equal[other] for r in rows])
        what = f"old loss of {NAMES.get(one, one)} over {NAMES.get(other, other)}, at equal new-task loss"
        add(name, source, what, values)

    what = f"old loss at {small} over p = 1, {at_beta}"
    add("smaller p forgets less", "section 6.2", what, old[:, -1] / old[:, 0])
    what = f"distance to theta_o over that at the next larger p, the worst of {len(listed)}, {at_beta}"
    add("each smaller p ends nearer", "section 6.3", what, (distance[:, 1:] / distance[:, :-1]).max(1))
    what = f"old loss and new loss together, as shares of the most, at {small} over p = 1, {at_beta} (our measure)"
    add("saves more than it costs", "section 6.2", what, (old[:, -1] + new[:, -1]) / (old[:, 0] + new[:, 0]))
    add_equal("often beats once", "section 6.2", small, named(1.0))
    add_equal("SFA beats L2", "figure 1", small, "l2")
    add_equal("L2 beats EWC", "figure 1", "l2", "ewc")
    add_equal("SFA beats EWC", "figure 1", small, "ewc")
    return found


# --------------------------------------------------------------------------------------------------------------- checks

ORDER_STEPS = 8
"""Steps after which the order of EWC's two updates is measured."""
RATES = (1e-3, 5e-4)
"""Over the largest curvature, for that."""


def checks(problem: Quadratics, setting: AveragingSettings) -> list[Check]:
    """Every identity as a number that has to be small, on one quadratic problem and one of logistic regression."""
    size = len(problem.old)
    rng = np.random.default_rng(setting.seed)
    start = rng.standard_normal(size)
    inputs = rng.standard_normal((2 * size, size))
    labels = (inputs @ problem.new > 0).astype(np.float64)

    def logistic(theta: np.ndarray) -> np.ndarray:
        found: np.ndarray = inputs.T @ (1 / (1 + np.exp(-(inputs @ theta))) - labels) / len(labels)
        return found

    fisher = np.diag(problem.old_hessian) / np.diag(problem.old_hessian).max()
    tasks: dict[str, tuple[Gradient, float]] = {
        "quadratic": (problem.gradient, problem.curvature),
        "logistic": (logistic, float(np.linalg.norm(inputs, 2) ** 2) / (4 * len(inputs))),
    }
    along, old, steps = problem.along(), problem.old, min(setting.steps, 200)
    away = float(np.linalg.norm(problem.new - old))
    found: list[Check] = []

    def add(name: str, what: str, values: Any, allowed: float = EXACT, note: str = "") -> None:
        found.append(check_of(name, what, values, allowed, note))

    def apart(path: np.ndarray, other: np.ndarray) -> float:
        return float(np.abs(path - other).max() / np.abs(other).max())

    for task, (gradient, curvature) in tasks.items():
        rate, coefficient = 0.5 / curvature, 0.6 * curvature
        alpha, beta = averaging_of(rate, coefficient)
        averaged = averaged_path(gradient, start, old, alpha=alpha, beta=beta, steps=steps)
        penalised = penalised_path(gradient, start, old, rate=rate, coefficient=coefficient, steps=steps)
        what = f"SFA after every step and L2 by gradient descent, {task} task, every one of {steps} steps (section 4)"
        add(f"SFA is L2: {task}", what, apart(averaged, penalised))
    differences, rests = [], []
    for gradient, curvature in tasks.values():
        rate, pull = 0.5 / curvature, fisher * curvature
        arguments: dict[str, Any] = {"gradient": gradient, "start": start, "old": old, "steps": steps}
        exact = penalised_path(**arguments, rate=rate, coefficient=pull)
        alpha, beta = averaging_of(rate, pull)
        differences.append(apart(averaged_path(**arguments, alpha=alpha, beta=beta), exact))
        differences.append(apart(penalised_path(**arguments, rate=rate, coefficient=pull, split=True), exact))
        merged = averaged_path(**arguments, alpha=rate, beta=rate * pull)
        _, stronger = penalty_of(rate, rate * pull)
        scaled = penalised_path(**arguments, rate=rate * (1 - rate * pull), coefficient=stronger)
        differences.append(apart(merged, scaled))
        rests.append(np.abs(merged[1] - exact[1] - rate**2 * pull * gradient(start)).max() / np.abs(exact).max())
    add(
        "EWC is a merge",
        "the penalised steps as merges with alpha = eta / (1 - eta F); as two updates, the penalty's gradient taken "
        "before the first; and equations 13, 14 as the penalty F / (1 - eta F)",
        differences,
    )
    add("EWC merge: remainder", "one step of equations 13, 14 less the penalised one is eta^2 F g", rests)
    orders = [elastic_order(gradient, start, old, fisher * c, 1 / c) for gradient, c in tasks.values()]
    add(
        "EWC merge: second order",
        f"{ORDER_STEPS} steps of both: halving eta divides the difference by 4, so its order is 2",
        np.abs(np.array(orders) - 2),
        0.05,
        f"orders {', '.join(f'{order:.3f}' for order in orders)}",
    )
    ours, theirs = fisher.copy(), np.diag(problem.new_hessian).copy()
    ours[0] = theirs[0] = 0  # where both vanish
    merged = fisher_merge(old, problem.new, ours, theirs, old_weight=2.0)
    slope = 2 * ours * (merged - old) + theirs * (merged - problem.new)
    plain = merged[0] - (2 * old[0] + problem.new[0]) / 3
    add(
        "Fisher merging minimises",
        "gradient of both quadratic penalties at the merge (equation 15); the mean where both Fishers vanish",
        [np.abs(slope).max() / away, abs(plain) / away],
    )
    misses, fixed = [], []
    alpha = 1 / problem.curvature
    for p in (1.0, *setting.p, 1 / setting.steps):
        for beta in (0.1, setting.beta, 0.9):
            every = period(p, setting.steps)
            path = averaged_path(problem.gradient, old, old, alpha=alpha, beta=beta, steps=setting.steps, every=every)
            kept = kept_share(along.values, alpha=alpha, beta=beta, every=every, steps=setting.steps)
            misses.append(np.abs(path[-1] - along.theta(kept)).max() / away)
            rest = along.theta(kept_share(along.values, alpha=alpha, beta=beta, every=every))
            cycle = averaged_path(problem.gradient, rest, old, alpha=alpha, beta=beta, steps=every, every=every)
            fixed.append(np.abs(cycle[-1] - rest).max() / away)
    add("closed form along p", "SFA's last step at every p and three betas, against the iteration", misses)
    add("fixed point", "k steps and an average leave it where it is", fixed)
    _, penalty = penalty_of(alpha, setting.beta)
    ends = [kept_share(along.values, alpha=alpha, beta=setting.beta, every=1) - along.penalised(penalty)]
    ends.append(kept_share(along.values, alpha=alpha, beta=setting.beta, every=10**12) - setting.beta)
    add("ends of p", "k = 1 is L2's minimiser, k to infinity the segment from theta_o to the optimum", np.abs(ends))
    shares = np.array(
        [kept_share(along.values, alpha=alpha, beta=setting.beta, every=k) for k in range(1, setting.steps + 1)]
    )
    distance = np.linalg.norm((1 - shares) * along.away, axis=1) / away
    add(
        "more often is nearer",
        "the fixed point's distance to theta_o never falls as k grows",
        [0.0, *(distance[:-1] - distance[1:])],
    )
    return found


def elastic_order(gradient: Gradient, start: np.ndarray, old: np.ndarray, fisher: np.ndarray, unit: float) -> float:
    """The order in eta of the difference between EWC as two updates (equations 13, 14) and as one.

    Args:
        gradient: of the new task's loss.
        start: `[D]`.
        old: theta_o `[D]`.
        fisher: F `[D]`.
        unit: `RATES` are times this.

    Returns:
        log2 of what halving eta divides the difference after `ORDER_STEPS` steps by.
    """
    apart = []
    for share in RATES:
        rate = share * unit
        merged = averaged_path(gradient, start, old, alpha=rate, beta=rate * fisher, steps=ORDER_STEPS)
        exact = penalised_path(gradient, start, old, rate=rate, coefficient=fisher, steps=ORDER_STEPS)
        apart.append(float(np.linalg.norm(merged[-1] - exact[-1])))
    return math.log2(apart[0] / apart[1])
