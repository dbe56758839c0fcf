"""The theory of label annealing, checked and asked of random problems.

Source: Memory Retaining Finetuning, section 4. The paper proves where gradient descent ends and
measures nothing there. The comparison of what L2 and label annealing forget is ours: each is taken
at the lambda that leaves the same share of the start's fine-tuning error, for lambdas of different
methods mean different things.

L2's lambda has the unit of squared singular values, label annealing's has none. So L2's grid is the
same list times the mean squared singular value of the fine-tuning rows: if all singular values were
equal, equal places on the two grids would be the same estimator.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.linalg import norm

from holdfast.papers.theory.descent import gradient_descent
from holdfast.papers.theory.regression import (
    METHODS,
    PRETRAINING,
    Problem,
    along_segment,
    closed_form,
    errors,
    gradient,
    random_problem,
    sensitivities,
    weight_for,
)
from holdfast.papers.theory.results import Array, Check, Comparison, Finding, Theory, check, finding

WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Lambdas."""
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Of the start's fine-tuning error, at which the methods are compared."""
MIDDLE = 0.25
"""The share at which geometries are compared: half of the start's root-mean-square error."""
OVERLAPS = (0.25, 0.5, 0.75)
DECAYS = (0.0, 0.5, 1.0, 2.0)
GEOMETRY_SEEDS = 8
"""At most this many seeds a geometry."""
TOLERANCE = 1e-10
"""How near gradient descent must come to the closed form, relative to its norm."""
PENALISED = ("label_annealing", "l2")
NAMES = {
    PRETRAINING: "pre-training",
    "direct": "direct fine-tuning",
    "l2": "L2",
    "label_annealing": "label annealing",
}

EQUATIONS = """\
pre-training      ½‖X̃θ − ỹ‖²                         ends at   θ0 = X̃ᵀ(X̃X̃ᵀ)⁻¹ỹ
direct            ½‖Xθ − y‖²                         ends at   (I − P)θ0 + m
L2                ½‖Xθ − y‖² + λ/2‖θ − θ0‖²          ends at   (XᵀX + λI)⁻¹(Xᵀy + λθ0)
label annealing   ½‖Xθ − y‖² + λ/2‖Xθ − Xθ0‖²        ends at   (I − P)θ0 + λ/(1+λ)·Pθ0 + 1/(1+λ)·m

P = Xᵀ(XXᵀ)⁻¹X   projects onto the span of the new rows        m = Xᵀ(XXᵀ)⁻¹y   fits the new rows with least norm

All three are  θ0 + V·diag(fᵢ/sᵢ)·r  with X = U·diag(s)·Vᵀ and r = Uᵀ(y − Xθ0):
direct fᵢ = 1        label annealing fᵢ = 1/(1+λ)        L2 fᵢ = sᵢ²/(sᵢ² + λ)"""
"""Section 4, equations 4 and 6 to 8, and theorem 1; the last two lines are ours."""


def theory(seeds: int) -> Theory:
    """Draws the problems, checks every statement on the first, compares what the methods forget on
    all."""
    first = random_problem()
    lost = np.array([forgotten(random_problem(seed=seed), SHARES) for seed in range(seeds)])
    findings = []
    for number, share in enumerate(SHARES):
        findings.append(l2_forgets_less(f"{share:.0%} left", share, lost[:, :, number]))
    for decay, overlap in itertools.product(DECAYS, OVERLAPS):
        drawn = functools.partial(random_problem, overlap=overlap, decay=decay)
        problems = [drawn(seed=seed) for seed in range(min(seeds, GEOMETRY_SEEDS))]
        # Least-squares slope of log sensitivity on log squared singular value: 0 is where the old
        # rows feel the new rows' directions alike, which is L2's penalty, 1 where they feel them as
        # the new rows do, which is label annealing's.
        slopes = []
        for problem in problems:
            squares = problem.finetuning_factors.values**2
            slopes.append(np.polyfit(np.log(squares), np.log(sensitivities(problem)), 1)[0])
        where = f"overlap {overlap:g}, decay {decay:g}, slope {np.mean(slopes):.2f}"
        lost = np.array([forgotten(problem, (MIDDLE,))[:, 0] for problem in problems])
        findings.append(l2_forgets_less(where, MIDDLE, lost))
    return Theory(
        title="Label annealing in linear regression",
        source="Memory Retaining Finetuning, section 4 and appendix B",
        equations=EQUATIONS,
        problems="200 parameters, 120 old rows, 40 new rows, overlap 0.5, decay 0, shift 1, noise 0.1",
        seeds=seeds,
        checks=checks(first, random_problem(overlap=0.0)),
        findings=findings,
    )


def l2_forgets_less(where: str, share: float, lost: Array) -> Finding:
    """From pre-training errors `[seeds, 2]` at this share of the start's fine-tuning error."""
    return finding(
        f"L2 forgets less: {where}",
        f"pre-training error of L2 divided by that of label annealing, with {share:.0%} of the "
        "initial fine-tuning error left (ours)",
        lost[:, 1] / lost[:, 0],
    )


def forgotten(problem: Problem, shares: Sequence[float]) -> Array:
    """Pre-training errors `[2, shares]` of label annealing and L2 where they leave these shares of
    the start's fine-tuning error."""
    lost = []
    for method in PENALISED:
        weights = np.array([weight_for(problem, method, share) for share in shares])
        lost.append(errors(problem, closed_form(problem, method, weights)).pretraining)
    return np.array(lost)


# ------------------------------------------------------------------------------------------- checks


def checks(problem: Problem, apart: Problem) -> list[Check]:
    """Every statement of section 4, on one problem.

    Args:
        problem: the two tasks.
        apart: two tasks whose rows are orthogonal.
    """
    factors, theta0 = problem.finetuning_factors, problem.theta0
    squares = factors.values**2
    annealing = np.array(WEIGHTS)
    ridge = annealing * squares.mean()
    weights = {
        PRETRAINING: np.zeros(1),
        "direct": np.zeros(1),
        "label_annealing": annealing,
        "l2": ridge,
    }
    forms = {method: closed_form(problem, method, weights[method]) for method in METHODS}
    size = norm(theta0)
    results: list[Check] = []
    steps = []
    for method, name in NAMES.items():
        grid = weights[method]
        ends_and_middle = sorted({grid[0], grid[len(grid) // 2], grid[-1]})
        runs = [
            gradient_descent(problem, method, weight, tolerance=TOLERANCE)
            for weight in ends_and_middle
        ]
        ends = [(0, run.distances[-1], run.size) for run in runs]
        results.append(
            check(
                f"descent: {name}",
                "distance between the last step of gradient descent and the closed form, at "
                "three lambdas if the method has one",
                *ends,
                allowed=TOLERANCE,
            )
        )
        steps += [(run.predicted, run.distances, run.size) for run in runs]

    def add(name: str, formula: str, *comparisons: Comparison) -> None:
        results.append(check(name, formula, *comparisons))

    add(
        "gradient descent converges as the spectrum predicts",
        "sqrt(sum (1 - step q_i)^2t e_i^2) against the distance to the closed form after "
        "every step t",
        *steps,
    )

    slopes = []
    for method in METHODS:
        for weight, theta in zip(weights[method], forms[method], strict=True):
            steepest = (squares[0] * (1 + weight) + weight) * (norm(theta) + size)
            slopes.append((0, norm(gradient(problem, method, weight, theta)), steepest))
    add(
        "gradients vanish",
        "gradient of the objectives (6), (7) and (8) at the closed forms",
        *slopes,
    )

    printed = printed_forms(problem, weights)
    formulas = [(forms[method], printed[method], size) for method in METHODS]
    add(
        "formulas of theorem 1",
        "the closed forms as printed, but with (X X^T)^-1 in place of (XX)^-1",
        *formulas,
    )

    outside = []
    for form in forms.values():
        moved = form - theta0
        outside.append((0, norm(moved - factors.inside(moved), axis=-1), size))
    add(
        "component that every method keeps",
        "(I - P) theta equals (I - P) theta0 for all three methods",
        *outside,
    )

    along, off = along_segment(problem, forms["label_annealing"])
    segment = "label annealing lies at the fraction 1/(1 + lambda) of the way from P theta0 to m"
    add("straight segment", segment, (1 / (1 + annealing), along, 1), (0, off, 1))

    least = (
        "at equal fine-tuning error, L2 moves theta least and label annealing moves X theta "
        "least; the number is how much further, as a share, it moves than the other method (ours)"
    )
    add("least movement", least, (0, excess_movement(problem), 1))

    lost = (
        errors(apart, closed_form(apart, "direct")).pretraining
        / (apart.pretraining_targets**2).mean()
    )
    orthogonal = (
        "direct fine-tuning forgets nothing if its rows are orthogonal to those of "
        "pre-training (section 4.3)"
    )
    add("orthogonal tasks", orthogonal, (0, math.sqrt(lost), 1))
    return results


def printed_forms(problem: Problem, weights: dict[str, Array]) -> dict[str, Any]:
    """Theorem 1's formulas `[L, D]` by N x N systems in place of the SVD; L2 by
    `(X^T X + a I)^-1 X^T = X^T (X X^T + a I)^-1`."""
    inputs, targets, theta0 = problem.finetuning_inputs, problem.finetuning_targets, problem.theta0
    gram = inputs @ inputs.T
    inside = inputs.T @ np.linalg.solve(gram, inputs @ theta0)
    least_norm = inputs.T @ np.linalg.solve(gram, targets)
    learnt = 1 / (1 + weights["label_annealing"])[:, None]
    ridges = []
    for weight in weights["l2"]:
        shifted = gram + weight * np.eye(len(gram))
        rescaled = theta0 - inputs.T @ np.linalg.solve(shifted, inputs @ theta0)
        ridges.append(inputs.T @ np.linalg.solve(shifted, targets) + rescaled)
    return {
        "direct": (theta0 - inside + least_norm)[None],
        "label_annealing": theta0 - learnt * inside + learnt * least_norm,
        "l2": np.array(ridges),
    }


def excess_movement(problem: Problem) -> Array:
    """By how much, relative, L2 moves theta more than label annealing, and label annealing the
    predictions more than L2; 0 where it is less."""
    inputs, excess = problem.finetuning_inputs, []
    for share in SHARES:
        annealed, ridge = (
            closed_form(problem, method, weight_for(problem, method, share)) - problem.theta0
            for method in PENALISED
        )
        for larger, smaller in ((ridge, annealed), (inputs @ annealed, inputs @ ridge)):
            excess.append(norm(larger) / norm(smaller) - 1)
    return np.maximum(excess, 0)
