"""Gradient descent on the objectives of `regression`, beside what their spectra say of every step.

Source: Memory Retaining Finetuning, theorem 1, proposition 4.1 and lemma B.1: on
`1/2 x^T Q x - p^T x` with p in the range of Q, gradient descent with a constant step leaves the
component that Q does not see as it was and shrinks every other by `1 - step * q_i` a step, so that
it ends at

```
x_infinity = (I - V V^T) x_0 + V Lambda^-1 V^T p          Q = V Lambda V^T, positive eigenvalues only
```

and is after t steps at the distance `sqrt(sum_i (1 - step * q_i)^(2t) e_i^2)` from there. The lemma
asks for a step below 1 / q_max; the iteration converges below 2 / q_max and not from there on, so
that is where a step is refused.

What q is: s^2 for direct fine-tuning, lambda + s^2 for L2, (1 + lambda) s^2 for label annealing, s
being the singular values of the fine-tuning rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.config.declare import Meta
from holdfast.papers.theory.regression import (
    PRETRAINING,
    Problem,
    check_method,
    closed_form,
    gradient,
)
from holdfast.papers.theory.results import Array, expect

MOST_STEPS = 50_000
"""Gradient descent stops there at the latest."""


def spectrum(problem: Problem, method: str, weight: float = 0.0) -> Array:
    """q: eigenvalues of the objective's Hessian within the span of its rows, largest first.

    Raises:
        ConfigError: an unknown method, or a weight that is not finite or below 0.
    """
    if method == PRETRAINING:
        return problem.pretraining_factors.values**2
    check_method(method)
    expect("weight (lambda)", weight, Meta(ge=0))
    squares: Array = problem.finetuning_factors.values**2
    return {"direct": squares, "l2": squares + weight, "label_annealing": squares * (1 + weight)}[
        method
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Descent:
    """Gradient descent with a constant step, beside what the spectrum says of it."""

    distances: Array
    """`[T + 1]`: |theta_t - closed form|_2 before the first step and after each."""
    predicted: Array
    """`[T + 1]`: the same from the spectrum, `sqrt(sum (1 - step q_i)^(2t) e_i^2)`."""
    size: float
    """The norm of the closed form."""


def gradient_descent(
    problem: Problem,
    method: str,
    weight: float = 0.0,
    *,
    step: float | None = None,
    tolerance: float = 1e-10,
) -> Descent:
    """Minimises one objective by gradient descent and compares every iterate with the closed form.

    Args:
        problem: the two tasks.
        method: one of `METHODS`, or `PRETRAINING`.
        weight: lambda, finite.
        step: below 2 / q_max; None: 0.99 of the paper's bound, 1 / q_max.
        tolerance: where to stop, relative to the norm of the closed form.

    Raises:
        ConfigError: as of `spectrum`, or a step at which the iteration does not converge.
    """
    eigenvalues = spectrum(problem, method, weight)
    bound = 1 / float(eigenvalues[0])
    step = 0.99 * bound if step is None else step
    expect(
        "step size (descent converges if it is below 2 / largest eigenvalue)",
        step,
        Meta(gt=0, lt=2 * bound),
    )
    if method == PRETRAINING:
        factors, theta, goal = (
            problem.pretraining_factors,
            np.zeros(problem.dimension),
            problem.theta0,
        )
    else:
        factors, theta, goal = (
            problem.finetuning_factors,
            problem.theta0,
            closed_form(problem, method, weight),
        )
    parts = (factors.right @ (theta - goal)) ** 2
    size = float(np.linalg.norm(goal))
    distances = [float(np.linalg.norm(theta - goal))]
    while distances[-1] > tolerance * size and len(distances) <= MOST_STEPS:
        theta = theta - step * gradient(problem, method, weight, theta)
        away = theta - goal
        distances.append(math.sqrt(float(away @ away)))
    factors_of_steps = np.abs(1 - step * eigenvalues) ** (2.0 * np.arange(len(distances))[:, None])
    return Descent(
        distances=np.array(distances), predicted=np.sqrt(factors_of_steps @ parts), size=size
    )
