"""Gradient descent on the objectives of `theory.regression`, beside what their spectra say of every step.

Source: Memory Retaining Finetuning, theorem 1, proposition 4.1 and lemma B.1: on `1/2 x^T Q x - p^T x` with p in the
range of Q, gradient descent with a constant step leaves the component that Q does not see as it was and shrinks every
other by `1 - step * q_i` a step, so that it ends at

```
x_infinity = (I - V V^T) x_0 + V Lambda^-1 V^T p          Q = V Lambda V^T, positive eigenvalues only
```

and is after t steps at the distance `sqrt(sum_i (1 - step * q_i)^(2t) e_i^2)` from there: the number of steps is known
beforehand. The lemma asks for a step below 1 / q_max; the iteration converges below 2 / q_max and not from there on, so
that is where a step is refused.

What q is: s^2 for direct fine-tuning, lambda + s^2 for L2, (1 + lambda) s^2 for label annealing, s being the singular
values of the fine-tuning rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.errors import ConfigError, DataError, ShapeError, did_you_mean
from holdfast.theory.regression import METHODS, Problem, closed_form, gradient

PRETRAINING = "pretraining"
"""The first stage as a method's name: from 0 on the pre-training rows."""


def step_bound(problem: Problem, method: str, weight: float = 0.0) -> float:
    """The step below which the paper's theorem 1 (proposition 4.1 for "pretraining") promises convergence: 1 / q_max,
    q_max the largest eigenvalue of the objective's Hessian: s^2 for direct fine-tuning, lambda + s^2 for L2, (1 +
    lambda) s^2 for label annealing.
    """
    return 1 / float(_spectrum(problem, method, weight)[0])


def common_step_bound(problem: Problem, weight: float) -> float:
    """Theorem 1's bound for all three objectives at once: min{1/s^2, 1/(lambda + s^2), 1/((1 + lambda) s^2)}."""
    return min(step_bound(problem, method, weight) for method in METHODS)


def _spectrum(problem: Problem, method: str, weight: float) -> np.ndarray:
    """Eigenvalues of the objective's Hessian within the span of its rows, largest first."""
    if method == PRETRAINING:
        return problem.pretraining_factors.values**2
    if method not in METHODS:
        known = (PRETRAINING, *METHODS)
        raise ConfigError(f"expected a method among {', '.join(known)}, got '{method}'.{did_you_mean(method, known)}")
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(f"weight (lambda): expected a finite number of at least 0, got {weight:g}")
    squares: np.ndarray = problem.finetuning_factors.values**2
    return {"direct": squares, "l2": squares + weight, "label_annealing": squares * (1 + weight)}[method]


@dataclass(frozen=True, kw_only=True, eq=False)
class Descent:
    """Gradient descent with a constant step, beside what the spectrum says of it."""

    method: str
    weight: float
    step: float
    bound: float
    """The paper's: 1 / q_max."""
    limit: float
    """2 / q_max; from there on the iteration no longer converges."""
    distances: np.ndarray
    """`[T + 1]`: |theta_t - closed form|_2 before the first step and after each."""
    predicted: np.ndarray
    """`[T + 1]`: the same from the spectrum, `sqrt(sum (1 - step q_i)^(2t) e_i^2)`."""
    predicted_steps: int
    """Steps to the tolerance, by the spectrum."""
    steps_needed: int | None
    """The first step within the tolerance; None where it was not reached."""
    allowed: float
    """The distance that counts as reached: tolerance times the norm of the closed form."""
    theta: np.ndarray
    """`[D]`, the last iterate."""
    goal: np.ndarray
    """`[D]`, the closed form for this start."""

    @property
    def steps(self) -> int:
        return len(self.distances) - 1

    @property
    def relative_distance(self) -> float:
        """The last distance over the norm of the closed form."""
        return float(self.distances[-1] / (np.linalg.norm(self.goal) or 1.0))


def gradient_descent(
    problem: Problem,
    method: str,
    weight: float = 0.0,
    *,
    start: np.ndarray | None = None,
    step: float | None = None,
    steps: int | None = None,
    tolerance: float = 1e-10,
    most_steps: int = 200_000,
) -> Descent:
    """Minimises one objective by gradient descent and compares every iterate with the closed form.

    Lemma B.1: the component that the Hessian does not see stays as it was, every other shrinks towards the closed form
    by `1 - step * q_i` a step, so that the number of steps is known beforehand.

    Args:
        problem: the two tasks.
        method: one of `METHODS`, or "pretraining".
        weight: lambda, finite.
        start: `[D]`; None: theta0, or 0 for pre-training. From elsewhere the goal keeps the start's component outside
            the span (not for L2, which forgets its start).
        step: None: 0.99 of the paper's bound. From the bound up to twice it the iteration converges as well, though the
            theorem does not say so.
        steps: None: until the tolerance is reached.
        tolerance: relative to the norm of the closed form.
        most_steps: where to stop in any case.

    Raises:
        ConfigError: an unknown method, a weight that is not finite, or a step at which the iteration does not converge.
        ShapeError: a start of another shape.
    """
    spectrum = _spectrum(problem, method, weight)
    bound = 1 / float(spectrum[0])
    step = 0.99 * bound if step is None else float(step)
    if not 0 < step < 2 * bound:
        raise ConfigError(
            f"step: expected above 0 and below {2 * bound:.6g} (2 over the largest eigenvalue of the {method} "
            f"objective, {spectrum[0]:.6g}), got "
            f"{step:.6g}, with which gradient descent {'goes nowhere' if step <= 0 else 'does not converge'}. The "
            f"paper's bound is {bound:.6g}."
        )
    first = method == PRETRAINING
    default = np.zeros(problem.dimension) if first else problem.theta0
    theta = np.array(default if start is None else start, dtype=np.float64)
    if theta.shape != (problem.dimension,):
        raise ShapeError(f"start: expected [{problem.dimension}], got {list(theta.shape)}.")

    factors = problem.pretraining_factors if first else problem.finetuning_factors
    goal = problem.theta0 if first else closed_form(problem, method, weight)
    outside = theta - default
    outside = outside - factors.inside(outside)
    if method != "l2":
        goal = goal + outside
    away = factors.right @ (theta - goal)
    rates = np.append(1 - step * spectrum, 1 - step * weight if method == "l2" else 1.0)
    parts = np.append(away**2, (outside @ outside) if method == "l2" else 0.0)
    allowed = tolerance * float(np.linalg.norm(goal) or 1.0)
    predicted_steps = _first_below(rates, parts, allowed)

    wanted = min(most_steps, math.ceil(1.05 * predicted_steps) + 10) if steps is None else steps
    distances = [float(np.linalg.norm(theta - goal))]
    inputs = problem.pretraining_inputs if first else problem.finetuning_inputs
    targets = problem.pretraining_targets if first else problem.finetuning_targets
    for _ in range(wanted):
        if steps is None and distances[-1] <= allowed:
            break
        slope = inputs.T @ (inputs @ theta - targets) if first else gradient(problem, method, weight, theta)
        theta = theta - step * slope
        distances.append(math.sqrt(float((away := theta - goal) @ away)))
    reached = np.flatnonzero(np.array(distances) <= allowed)
    return Descent(
        method=method,
        weight=weight,
        step=step,
        bound=bound,
        limit=2 * bound,
        distances=np.array(distances),
        predicted=_predicted(rates, parts, np.arange(len(distances))),
        predicted_steps=predicted_steps,
        steps_needed=int(reached[0]) if len(reached) else None,
        allowed=allowed,
        theta=theta,
        goal=goal,
    )


def _predicted(rates: np.ndarray, parts: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Distances after `steps` `[T]` from the factor a step and the squared distance at the start of every direction; in
    blocks, as T may be large."""
    with np.errstate(under="ignore"):
        blocks = [
            np.sqrt((np.abs(rates) ** (2.0 * block[:, None])) @ parts)
            for block in np.array_split(steps, 1 + len(steps) // 4096)
        ]
    return np.concatenate(blocks)


def _first_below(rates: np.ndarray, parts: np.ndarray, allowed: float) -> int:
    """The first step whose predicted distance is at most `allowed`, by doubling and bisection: the prediction falls
    with every step."""

    def after(step: int) -> float:
        return float(_predicted(rates, parts, np.array([step]))[0])

    if after(0) <= allowed:
        return 0
    high = 1
    while after(high) > allowed and high < 1 << 60:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if after(middle) <= allowed else (middle, high)
    return high


def quadratic_limit(hessian: np.ndarray, slope: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Where gradient descent on `1/2 x^T Q x - p^T x` ends: `(I - V V^T) x_0 + V Lambda^-1 V^T p` (lemma B.1), straight
    from the eigenvectors.

    The plain reference for the closed forms; it forms what they avoid.

    Args:
        hessian: Q `[D, D]`, symmetric, no negative eigenvalue.
        slope: p `[D]`, in the range of Q.
        start: x_0 `[D]`.

    Raises:
        DataError: Q is not symmetric or has a negative eigenvalue, or p has a component outside its range (the
            objective has no minimum).
    """
    if not np.allclose(hessian, hessian.T, rtol=1e-10, atol=1e-12 * float(np.abs(hessian).max())):
        raise DataError("hessian: expected a symmetric matrix, got one that differs from its transpose.")
    values, vectors = np.linalg.eigh(hessian)
    floor = float(np.abs(values).max()) * len(values) * np.finfo(np.float64).eps
    if values[0] < -floor:
        raise DataError(f"hessian: expected no negative eigenvalue, got {values[0]:.3g}.")
    seen = vectors[:, values > floor]
    lost = slope - seen @ (seen.T @ slope)
    if float(np.linalg.norm(lost)) > 1e-8 * float(np.linalg.norm(slope)):
        raise DataError(
            f"slope: expected a vector in the range of the hessian, got one with {np.linalg.norm(lost):.3g} outside "
            f"it, so no minimum."
        )
    found: np.ndarray = start - seen @ (seen.T @ start) + seen @ ((seen.T @ slope) / values[values > floor])
    return found
