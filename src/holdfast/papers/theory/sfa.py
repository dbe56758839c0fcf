"""The theory of averaging with the old model, checked and asked of random problems.

Source: Soup to Go, section 4 and appendices A.1 and A.2, and what its sections 4.1, 6.2, 6.3 and
6.4 observe on networks: the last is asked of pairs of quadratic tasks, turns with their geometry, and says nothing
about language models.

Methods are compared where they leave the same new-task loss (`MIDDLE` of the start's), for beta,
lambda and EWC's coefficient are no common scale. SFA takes its steps from theta_o in closed form;
L2 and EWC are at their minimisers. Fisher information is exact: the old Hessian's diagonal.
Penalised with the whole Hessian, which is the old loss itself, are the best trade-offs that there
are, as training on both tasks at once gives them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.linalg import norm

from holdfast.papers.theory.averaging import (
    Directions,
    Quadratics,
    averaged_path,
    averaging_of,
    fisher_merge,
    kept_share,
    penalised_path,
    penalised_regression,
    penalty_of,
    period,
    posterior_mode,
    random_quadratics,
)
from holdfast.papers.theory.results import Array, Check, Comparison, Finding, Theory, check, finding

STEPS = 200
"""Of gradient descent on the new task, each 1 over its largest curvature."""
P = (0.75, 0.5, 0.25, 0.17, 0.1)
"""Shares of the run from one average to the next. Findings are about the smallest."""
FRACTIONS = (1.0, *P, 1 / STEPS)
"""The same with once, at the end, and after every step."""
BETA = 0.5
"""Weight on the old model along p."""
MIDDLE = 0.25
"""Of the start's new-task loss: where methods are compared; half of its root-mean-square error."""
ALIGNMENTS = (0.0, 0.5, 1.0)
ROTATIONS = (0.0, 1.0)
GEOMETRY_SEEDS = 8
"""At most this many seeds a geometry."""
NAMES = {"l2": "L2", "ewc": "EWC", "both": "best possible"}
"""Penalties; `both` is the old loss itself, which is training on both tasks at once."""

EQUATIONS = """\
SFA, every step   θ* = θ − α g(θ)                       θ ← (1 − β) θ* + β θo                    (4), (5)
penalty F         θ ← θ − η (g(θ) + F (θ − θo))                                                  (2); L2: F = λ
the same where    β = ηF,   α = η / (1 − ηF)            for each parameter
EWC as a merge    θ* = θ − η g(θ)                       θ ← (I − ηF) θ* + ηF θo                  (13), (14)
                  less the penalised step: η² F g(θ);   as a penalty of its own: F / (1 − ηF)
Fisher merging    (lo Fo θo + lt Ft θt) / (lo Fo + lt Ft)                                        (15)
as a prior        θ ~ N(θo, τ² I), y ~ N(Xθ, σ² I): the mode is L2's minimiser, λ = σ²/τ²        (8) to (11)

SFA every k steps on a quadratic loss, share kept of a direction of curvature h:
after an average  u ← (1 − β)(1 − αh)ᵏ u + β            ends at   u = β / (1 − (1 − β)(1 − αh)ᵏ)
k = 1             u = λ / (λ + h), L2                   k → ∞     u = β in every direction"""
"""Section 4 and appendix A; the third, the sixth and the last four lines are ours."""


def theory(seeds: int) -> Theory:
    """Draws the problems, checks every identity on the first, asks of all what the paper
    observes."""
    return Theory(
        title="Averaging with the old model, compared with penalties",
        source="Soup to Go, section 4 and appendix A",
        equations=EQUATIONS,
        problems="two quadratic tasks of 40 parameters with curvatures 1/j and alignment 0.5; 200 "
        "steps, β 0.5",
        seeds=seeds,
        checks=checks(random_quadratics()),
        findings=[*observations(seeds), *geometries(min(seeds, GEOMETRY_SEEDS))],
    )


# -------------------------------------------------------------------------------------- one problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """One problem. Losses are `[3, ...]`: the old task's over direct fine-tuning's, the new task's
    over the start's, the distance to theta_o over that of the new task's optimum."""

    along_p: Array
    """`[3, P]`, of `FRACTIONS` at `BETA`."""
    equal: dict[str, float]
    """The old loss where `MIDDLE` of the new loss is left, by method; `p = 0.25` and the like."""


def outcome_of(problem: Quadratics) -> Outcome:
    """What every method keeps of one problem."""
    plain = problem.along()
    start = problem.losses(problem.old)[1]
    away = norm(problem.new - problem.old)

    def averaged(p: float, betas: Array) -> Array:
        every = period(p, STEPS)
        return kept_share(
            plain.values, alpha=1 / problem.curvature, beta=betas[:, None], every=every, steps=STEPS
        )

    direct = problem.losses(plain.theta(averaged(1.0, np.zeros(1))))[0, 0]

    def at_middle(along: Directions, shares: Callable[[Array], Array]) -> float:
        """The old loss at the strength, from 0 to 1, that leaves `MIDDLE` of the new loss: that
        rises with it."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            if along.new_loss(shares(np.array([middle])))[0] < MIDDLE * start:
                low = middle
            else:
                high = middle
        theta = along.theta(shares(np.array([(low + high) / 2])))
        return problem.losses(theta)[0, 0] / direct

    def by_share(along: Directions, share: Array) -> Array:
        """A penalty whose coefficient over the mean curvature goes from 0 to infinity as the share
        goes to 1."""
        return along.penalised(along.values.mean() * share / (1 - share))

    equal = {sfa(p): at_middle(plain, partial(averaged, p)) for p in FRACTIONS}
    for name, metric in (
        ("l2", None),
        ("ewc", np.diag(problem.old_hessian)),
        ("both", problem.old_hessian),
    ):
        along = problem.along(metric)
        equal[name] = at_middle(along, partial(by_share, along))
    shares = np.concatenate([averaged(p, np.array([BETA])) for p in FRACTIONS])
    along_p = problem.losses(plain.theta(shares)) / np.array([[direct], [start], [away]])
    return Outcome(along_p=along_p, equal=equal)


def sfa(p: float) -> str:
    """SFA at one p, as a method."""
    return f"p = {p:g}"


def at_equal_loss(
    name: str, outcomes: Sequence[Outcome], method: str, other: str, source: str = ""
) -> Finding:
    """That a method's old loss is below that of another, a ratio a problem."""
    what = (
        f"old-task loss of {NAMES.get(method, method)} divided by that of "
        f"{NAMES.get(other, other)}, at equal new-task loss{source}"
    )
    return finding(
        name, what, [outcome.equal[method] / outcome.equal[other] for outcome in outcomes]
    )


# ----------------------------------------------------------------------------------------- findings


def observations(seeds: int) -> list[Finding]:
    """What the paper observes."""
    outcomes = [outcome_of(random_quadratics(seed=seed)) for seed in range(seeds)]
    along = np.array([outcome.along_p[:, :-1] for outcome in outcomes])
    old, new, distance = along[:, 0], along[:, 1], along[:, 2]
    both = old + new
    nearer = (
        "distance to theta_o divided by the distance at the next larger p, at the worst p "
        "(section 6.3)"
    )
    saved = (
        "old-task loss plus new-task loss (each as a share of its maximum): the sum at p = 0.1 "
        "divided by the sum at p = 1 (our measure of section 6.2)"
    )
    small = sfa(P[-1])
    return [
        finding(
            "a smaller p forgets less",
            "old-task loss at p = 0.1 divided by the loss at p = 1 (section 6.2)",
            old[:, -1] / old[:, 0],
        ),
        finding(
            "each smaller p ends closer to the old model",
            nearer,
            (distance[:, 1:] / distance[:, :-1]).max(1),
        ),
        finding(
            "a smaller p saves more loss on the old task than it costs on the new task",
            saved,
            both[:, -1] / both[:, 0],
        ),
        at_equal_loss(
            "frequent averaging beats a single averaging",
            outcomes,
            small,
            sfa(1.0),
            " (section 6.4)",
        ),
        at_equal_loss("SFA beats L2", outcomes, small, "l2", " (figure 1)"),
        at_equal_loss("L2 beats EWC", outcomes, "l2", "ewc", " (figure 1)"),
        at_equal_loss("SFA beats EWC", outcomes, small, "ewc", " (figure 1)"),
    ]


def geometries(seeds: int) -> list[Finding]:
    """Methods against L2 in problems of other shapes."""
    results = []
    for rotation, alignment in itertools.product(ROTATIONS, ALIGNMENTS):
        drawn = partial(random_quadratics, alignment=alignment, rotation=rotation)
        outcomes = [outcome_of(drawn(seed=seed)) for seed in range(seeds)]
        for method in (sfa(1.0), sfa(P[-1]), "ewc", "both"):
            name = (
                f"{NAMES.get(method, method)} beats L2: alignment {alignment:g}, rotation "
                f"{rotation:g}"
            )
            results.append(at_equal_loss(name, outcomes, method, "l2"))
    return results


# ------------------------------------------------------------------------------------------- checks


def checks(problem: Quadratics) -> list[Check]:
    """Every identity, on one quadratic problem and one of logistic regression."""
    return [*step_checks(problem), merge_check(problem), prior_check(), *period_checks(problem)]


def step_checks(problem: Quadratics) -> list[Check]:
    """Averaging as a penalty, step by step."""
    size, old = len(problem.old), problem.old
    rng = np.random.default_rng(0)
    start = rng.standard_normal(size)
    inputs = rng.standard_normal((2 * size, size))
    labels = (inputs @ problem.new > 0).astype(np.float64)

    def logistic(theta: Array) -> Array:
        return inputs.T @ (1 / (1 + np.exp(-(inputs @ theta))) - labels) / len(labels)

    fisher = scaled_fisher(problem.old_hessian)
    results = []
    merges = []
    remainders = []
    for task, gradient, curvature in (
        ("quadratic", problem.gradient, problem.curvature),
        ("logistic", logistic, float(norm(inputs, 2) ** 2) / (4 * len(inputs))),
    ):
        rate = 0.5 / curvature
        averaged = partial(averaged_path, gradient, start, old, steps=STEPS)
        penalised = partial(penalised_path, gradient, start, old, steps=STEPS)
        pulled = penalised(rate=rate, coefficient=0.6 * curvature)
        alpha, beta = averaging_of(rate, 0.6 * curvature)
        results.append(
            check(
                f"SFA is L2: {task}",
                f"SFA after every step against gradient descent with L2, {task} task, at each "
                f"of {STEPS} steps (section 4)",
                against(pulled, averaged(alpha=alpha, beta=beta)),
            )
        )

        pull = fisher * curvature
        exact = penalised(rate=rate, coefficient=pull)
        alpha, beta = averaging_of(rate, pull)
        merged = averaged(alpha=rate, beta=rate * pull)
        _, stronger = penalty_of(rate, rate * pull)
        merges.append(against(exact, averaged(alpha=alpha, beta=beta)))
        merges.append(
            against(penalised(rate=rate * (1 - rate * pull), coefficient=stronger), merged)
        )
        remainder = merged[1] - exact[1] - rate**2 * pull * gradient(start)
        remainders.append((0, remainder, np.abs(exact).max()))
    merge = check(
        "EWC is a merge",
        "penalised steps equal merges with alpha = eta / (1 - eta F); the merges of equations 13 "
        "and 14 equal steps with the penalty F / (1 - eta F)",
        *merges,
    )
    step = "one step of equations 13 and 14 minus the penalised step equals eta^2 F g"
    remainder_check = check("EWC merge: remainder", step, *remainders)
    return [*results, merge, remainder_check]


def against(path: Array, number: Array) -> Comparison:
    """Two paths, relative to the furthest that the first goes."""
    return path, number, np.abs(path).max()


def scaled_fisher(hessian: Array) -> Array:
    """The diagonal of a Hessian, at most 1."""
    diagonal = np.diag(hessian)
    return diagonal / diagonal.max()


def merge_check(problem: Quadratics) -> Check:
    """Fisher merging as a minimiser."""
    old, new = problem.old, problem.new
    ours, theirs = scaled_fisher(problem.old_hessian), np.diag(problem.new_hessian).copy()
    ours[0] = theirs[0] = 0  # where both vanish
    merged = fisher_merge(old, new, ours, theirs, old_weight=2.0)
    slope = 2 * ours * (merged - old) + theirs * (merged - new)
    away = norm(new - old)
    mean = (2 * old[0] + new[0]) / 3
    return check(
        "Fisher merging minimises",
        "the gradient of both quadratic penalties is 0 at the merged weights (equation 15); where "
        "both Fishers are 0, the merged weights are the weighted mean",
        (0, slope, away),
        (mean, merged[0], away),
    )


def prior_check() -> Check:
    """The old model as a prior: L2 with equal precision, EWC with the Fisher information's."""
    rng = np.random.default_rng(0)
    inputs, outputs, old = rng.standard_normal((30, 12)), rng.standard_normal(30), np.ones(12)
    fisher, noise, variance = rng.uniform(0.1, 2.0, 12), 0.7, 0.3
    plain = posterior_mode(inputs, outputs, old, variance=variance, noise=noise)
    weighed = posterior_mode(inputs, outputs, old, variance=1 / fisher, noise=noise)
    l2 = penalised_regression(inputs, outputs, old, coefficient=noise / variance)
    ewc = penalised_regression(inputs, outputs, old, coefficient=noise * fisher)
    return check(
        "the penalty is a prior",
        "the mode under a Gaussian prior around theta_o is the minimiser of L2 with lambda = "
        "sigma^2 / tau^2 (equations 8 to 11); with a prior of precision F, the mode is the "
        "minimiser of EWC",
        (l2, plain, np.abs(l2).max()),
        (ewc, weighed, np.abs(ewc).max()),
    )


def period_checks(problem: Quadratics) -> list[Check]:
    """What p does, in closed form."""
    old, along, alpha = problem.old, problem.along(), 1 / problem.curvature
    away = norm(problem.new - old)
    last: list[Comparison] = []
    for p in FRACTIONS:
        for beta in (0.1, BETA, 0.9):
            every = period(p, STEPS)
            share = kept_share(along.values, alpha=alpha, beta=beta, every=every, steps=STEPS)
            path = averaged_path(
                problem.gradient, old, old, alpha=alpha, beta=beta, every=every, steps=STEPS
            )
            last.append((along.theta(share), path[-1], away))
    _, penalty = penalty_of(alpha, BETA)
    fixed_point = partial(kept_share, along.values, alpha=alpha, beta=BETA)
    ends = (
        "k = 1 gives the minimiser of L2; k to infinity gives the segment from theta_o to the "
        "optimum"
    )
    often = along.penalised(penalty), fixed_point(every=1), 1
    seldom = BETA, fixed_point(every=10**12), 1
    return [
        check(
            "closed form for every p",
            "closed form of SFA's last step at every p and three betas, against the iterated steps",
            *last,
        ),
        check("SFA with k = 1 and with k to infinity", ends, often, seldom),
    ]
