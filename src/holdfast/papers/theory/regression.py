"""Label annealing in over-parametrised linear regression: three closed forms and their geometry.

Source: Memory Retaining Finetuning, section 4 and appendix B. A linear model is pre-trained on M
rows (X~, y~) of D > M numbers, from 0, and so ends at the solution of least norm; from there it is
fine-tuned on N rows (X, y), N < D, in one of three ways (lambda >= 0):

```
pre-training      1/2 |X~ t - y~|^2                                    theta0 = X~^T (X~ X~^T)^-1 y~
direct            1/2 |X t - y|^2                                      (I - P) theta0 + m
l2                1/2 |X t - y|^2 + lambda/2 |t - theta0|^2            (X^T X + lambda I)^-1 (X^T y + lambda theta0)
label_annealing   1/2 |X t - y|^2 + lambda/2 |X t - X theta0|^2        (I - P) theta0 + lambda/(1+lambda) P theta0
                                                                       + 1/(1+lambda) m

P = X^T (X X^T)^-1 X  projects onto the span of the fine-tuning rows;  m = X^T (X X^T)^-1 y  is the solution of least
norm.
```

One formula holds all three. With the SVD X = U S V^T and the residual r = U^T (y - X theta0),

```
theta = theta0 + V diag(f_i / s_i) r
direct: f_i = 1      label annealing: f_i = 1 / (1 + lambda)      l2: f_i = s_i^2 / (s_i^2 + lambda)
```

so the component outside the span is theta0's in all three, L2 included. Inside it, label annealing
walks the straight segment from P theta0 to m, every direction at one pace; L2 walks a curve, strong
directions first. This is how everything below is computed: no D x D matrix is ever formed.
`descent` reaches the same points step by step.

What each is best at follows from it (ours, the paper does not say it). At equal fine-tuning error
L2 has the least
|theta - theta0|, label annealing the least |X theta - X theta0|. Which of the two means less forgetting depends on the
pre-training rows, since X~ theta0 = y~ makes the pre-training error |X~ (theta - theta0)|^2: where
the pre-training data feels a unit step alike in all directions V_i, it is the first; where it feels
it in proportion to s_i^2, the second (`sensitivities`).

Where the paper and this file differ:

- It prints `(XX)^-1` (theorem 1, section 4.3, appendix B.1), which does not exist for N != D; it
  means `(X X^T)^-1`.
- Section 4.3 says that label annealing adds back a component "along the direction [I - X^T (X
  X^T)^-1 X] theta0". It is `P theta0`, as in the equation below that sentence.
- Section 4.3 says of L2 that its "two terms overlap", unlike direct fine-tuning's, so that there is
  no clean intuition. Split by the span instead of by the two terms it has the same kept component
  as the others, and the two terms inside label annealing's span overlap as well.
- Lemma B.1 asks for a step below 1 / q_max. That is sufficient; the iteration converges below 2 /
  q_max (`descent`).
- In theorem 1's bound, min{1/s^2, 1/(lambda + s^2), 1/((1 + lambda) s^2)}, the first term is never
  the least when lambda > 0.
- Appendix B.1 gives S in the compact SVD the shape d x d; it is n x n. Proposition 4.1 names
  problem (6), X and y; it means (4), X~ and y~. The proof said to be in appendix A is in appendix
  B.

Does not model: stochastic gradients, features that are learnt, the KL itself (a squared difference
of predictions stands for it).

Shape suffixes: D dimension, M pre-training rows, N fine-tuning rows, L weights (lambdas). All
arrays are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.linalg import norm
from numpy.typing import ArrayLike

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, DataError, ShapeError, did_you_mean
from holdfast.papers.theory.results import Array, expect

METHODS = ("direct", "l2", "label_annealing")
"""Ways to fine-tune; direct has no weight (lambda)."""
PRETRAINING = "pretraining"
"""The first stage as a method's name: from 0 on the pre-training rows."""

# ----------------------------------------------------------------------------------------- problems


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The compact SVD of rows `[N, D]`: `left @ diag(values) @ right`."""

    left: Array
    """`[N, N]` orthogonal."""
    values: Array
    """`[N]`, largest first, all positive."""
    right: Array
    """`[N, D]`, orthonormal rows: a basis of the span."""

    def inside(self, vectors: Array) -> Array:
        """The projection of `[..., D]` onto the span."""
        return (vectors @ self.right.T) @ self.right


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Two regression tasks with more unknowns than rows, none of which depends on others.

    Raises:
        ShapeError: there are not fewer rows than columns.
        DataError: rows that depend on each other (no full row rank).
    """

    pretraining_inputs: Array
    """X~ `[M, D]`, M < D."""
    pretraining_targets: Array
    """y~ `[M]`."""
    finetuning_inputs: Array
    """X `[N, D]`, N < D."""
    finetuning_targets: Array
    """y `[N]`."""

    def __post_init__(self) -> None:
        for side, factors in (
            ("pretraining", self.pretraining_factors),
            ("finetuning", self.finetuning_factors),
        ):
            rows, columns = len(factors.left), factors.right.shape[1]
            if rows >= columns:
                raise ShapeError(
                    f"{side}: expected fewer rows than columns, got {rows} rows and {columns} "
                    "columns."
                )
            if not factors.values[-1] > factors.values[0] * columns * np.finfo(np.float64).eps:
                raise DataError(f"{side}: expected linearly independent rows (full row rank).")

    @property
    def dimension(self) -> int:
        return int(self.finetuning_inputs.shape[1])

    @cached_property
    def pretraining_factors(self) -> Factors:
        return _factors(self.pretraining_inputs)

    @cached_property
    def finetuning_factors(self) -> Factors:
        return _factors(self.finetuning_inputs)

    @cached_property
    def theta0(self) -> Array:
        """`[D]`: the solution of least norm of the pre-training task, where gradient descent from 0
        ends (proposition 4.1)."""
        return _least_norm(self.pretraining_factors, self.pretraining_targets)

    @cached_property
    def least_norm(self) -> Array:
        """m `[D]`: the solution of least norm of the fine-tuning task, which knows nothing of
        pre-training."""
        return _least_norm(self.finetuning_factors, self.finetuning_targets)

    @cached_property
    def residual(self) -> Array:
        """r `[N]`: what pre-training leaves to be learnt, `U^T (y - X theta0)`, one number a
        singular direction."""
        return self.finetuning_factors.left.T @ (
            self.finetuning_targets - self.finetuning_inputs @ self.theta0
        )


def _factors(inputs: Array) -> Factors:
    left, values, right = np.linalg.svd(inputs, full_matrices=False)
    return Factors(left=left, values=values, right=right)


def _least_norm(factors: Factors, targets: Array) -> Array:
    return ((factors.left.T @ targets) / factors.values) @ factors.right


def random_problem(
    *,
    dimension: int = 200,
    pretrain_rows: int = 120,
    finetune_rows: int = 40,
    overlap: float = 0.5,
    decay: float = 0.0,
    shift: float = 1.0,
    noise: float = 0.1,
    seed: int = 0,
) -> Problem:
    """Two tasks in conflict: they share directions, and in those they want different parameters.

    Pre-training inputs are `z = scale * g`, g standard normal, `scale_j^2` falling like `j^-decay`.
    Fine-tuning inputs are fresh draws of z, of which the part inside the span of the pre-training
    rows and the part outside are stretched so that the first has the share `overlap` of the
    expected squared length. Targets are `x^T theta* + noise * g`. The signal of pre-training has
    variance 1 on fresh inputs: an error of 1 is that of knowing nothing. Everything here turns with
    the coordinates, so that features along the axes are no loss of generality.

    Args:
        dimension: D.
        pretrain_rows: M, fewer than D.
        finetune_rows: N, fewer than D.
        overlap: 0 to 1; at 0 all fine-tuning rows are orthogonal to those of pre-training.
        decay: the j-th feature's variance is proportional to j^-decay, in both tasks.
        shift: how far apart the parameters of the two tasks are, over the size of the old ones,
            both as the standard deviation of predictions.
        noise: standard deviation of the noise in the targets.
        seed: equal arguments give equal arrays.

    Raises:
        ShapeError, DataError: rows that no `Problem` can have, such as more than the overlap leaves
            room for.
    """
    draw = np.random.default_rng(seed)
    variance = np.arange(1.0, dimension + 1) ** -decay
    scale = np.sqrt(variance * (dimension / variance.sum()))
    first, change = (
        direction / norm(scale * direction) for direction in draw.standard_normal((2, dimension))
    )
    second = first + shift * change
    inputs_MD = draw.standard_normal((pretrain_rows, dimension)) * scale
    fresh_ND = draw.standard_normal((finetune_rows, dimension)) * scale
    basis_MD = np.linalg.qr(inputs_MD.T)[0].T
    length_inside = float(((basis_MD * scale) ** 2).sum())
    inside = math.sqrt(overlap * dimension / length_inside)
    outside = math.sqrt((1 - overlap) * dimension / (dimension - length_inside))
    part_ND = fresh_ND @ basis_MD.T @ basis_MD
    inputs_ND = inside * part_ND + outside * (fresh_ND - part_ND)
    return Problem(
        pretraining_inputs=inputs_MD,
        pretraining_targets=inputs_MD @ first + noise * draw.standard_normal(pretrain_rows),
        finetuning_inputs=inputs_ND,
        finetuning_targets=inputs_ND @ second + noise * draw.standard_normal(finetune_rows),
    )


# ------------------------------------------------------------------------------------- closed forms


def check_method(method: str, known: Sequence[str] = METHODS) -> None:
    """Raises `ConfigError` with the nearest name where a method is not `known`."""
    if method not in known:
        raise ConfigError(
            f"method: expected one of {', '.join(known)}, got "
            f"'{method}'.{did_you_mean(method, known)}"
        )


def learnt_shares(problem: Problem, method: str, weight: ArrayLike = 0.0) -> Array:
    """f: the share of the residual that a method learns in every singular direction of the
    fine-tuning rows, `[..., N]`.

    Args:
        problem: the two tasks.
        method: one of `METHODS`.
        weight: lambda, `[...]`, 0 to infinity; direct fine-tuning takes no notice of it.

    Raises:
        ConfigError: an unknown method, a negative weight or NaN.
    """
    check_method(method)
    weights = np.asarray(weight, dtype=np.float64)[..., None]
    expect("weight (lambda)", weights, Meta(ge=0, finite=False))
    squares_N = problem.finetuning_factors.values**2
    relative = {"direct": 0.0, "label_annealing": weights, "l2": weights / squares_N}[method]
    return 1 / (1 + relative + np.zeros(weights.shape[:-1] + squares_N.shape))


def closed_form(problem: Problem, method: str, weight: ArrayLike = 0.0) -> Array:
    """The parameters at which gradient descent from theta0 ends (theorem 1), `[..., D]`.

    Limits: weight 0 is direct fine-tuning for both (for L2 the limit; its formula has no inverse
    there), weight infinity is theta0.

    Args:
        problem: the two tasks.
        method: one of `METHODS`.
        weight: lambda, `[...]`.

    Raises:
        ConfigError: as of `learnt_shares`.
    """
    factors = problem.finetuning_factors
    return (
        problem.theta0
        + (learnt_shares(problem, method, weight) * (problem.residual / factors.values))
        @ factors.right
    )


def gradient(problem: Problem, method: str, weight: float, theta: Array) -> Array:
    """The gradient `[D]` of a method's objective (equations 4, 6, 7, 8) at `theta` `[D]`, straight
    from the objective.

    Raises:
        ConfigError: an unknown method.
    """
    check_method(method, (PRETRAINING, *METHODS))
    inputs, targets = problem.finetuning_inputs, problem.finetuning_targets
    if method == PRETRAINING:
        inputs, targets = problem.pretraining_inputs, problem.pretraining_targets
    slope: Array = inputs.T @ (inputs @ theta - targets)
    moved = theta - problem.theta0
    if method == "l2":
        slope = slope + weight * moved
    elif method == "label_annealing":
        slope = slope + weight * (inputs.T @ (inputs @ moved))
    return slope


@dataclass(frozen=True, kw_only=True, eq=False)
class Errors:
    """Mean squared errors of parameters `[..., D]` on the rows of both tasks, each `[...]`."""

    pretraining: Array
    """|X~ theta - y~|^2 / M: 0 at theta0, so it is what was forgotten."""
    finetuning: Array
    """|X theta - y|^2 / N."""


def errors(problem: Problem, theta: Array) -> Errors:
    """How wrong parameters `[..., D]` are on the rows of both tasks."""

    def on_rows(inputs: Array, targets: Array) -> Array:
        return np.asarray(((theta @ inputs.T - targets) ** 2).mean(-1))

    return Errors(
        pretraining=on_rows(problem.pretraining_inputs, problem.pretraining_targets),
        finetuning=on_rows(problem.finetuning_inputs, problem.finetuning_targets),
    )


def weight_for(problem: Problem, method: str, share: float) -> float:
    """The weight (lambda) at which a method leaves a share of the start's fine-tuning error, which
    makes methods comparable.

    Label annealing leaves `(lambda / (1 + lambda))^2`; for L2 the equation
    `sum (1 - f_i)^2 r_i^2 = share * sum r_i^2` is solved by bisection, to float64's last digits.

    Args:
        problem: the two tasks.
        method: "l2" or "label_annealing".
        share: above 0 and below 1.

    Raises:
        ConfigError: a share outside of that, or a method without a weight.
    """
    check_method(method, METHODS[1:])
    expect("share", share, Meta(gt=0, lt=1))
    root = math.sqrt(share)
    annealing = root / (1 - root)
    if method == "label_annealing":
        return annealing
    squares, residual = (
        problem.finetuning_factors.values**2,
        problem.residual / norm(problem.residual),
    )
    # Only the weakest and the strongest direction.
    low, high = math.log(annealing * squares[-1]), math.log(annealing * squares[0])
    for _ in range(80):
        middle = (low + high) / 2
        left = float(((math.exp(middle) / (math.exp(middle) + squares) * residual) ** 2).sum())
        low, high = (low, middle) if left > share else (middle, high)
    return math.exp((low + high) / 2)


# ----------------------------------------------------------------------------------------- geometry


def along_segment(problem: Problem, theta: Array) -> tuple[Array, Array]:
    """Where the inside part of parameters `[..., D]` lies relative to the segment from P theta0 (0)
    to m (1).

    Returns:
        (place along it, distance from the line through it), each `[...]`; the distance is in units
        of the segment's length. Label annealing lies at `1 / (1 + lambda)` with distance 0; L2
        leaves the line unless all singular values are equal.
    """
    start = problem.finetuning_factors.inside(problem.theta0)
    way = problem.least_norm - start
    length = float(norm(way))
    moved = problem.finetuning_factors.inside(theta) - start
    along = moved @ way / length**2
    return along, norm(moved - along[..., None] * way, axis=-1) / length


def sensitivities(problem: Problem) -> Array:
    """|X~ v_i|^2 / M `[N]`: how much pre-training error a unit step along the i-th singular
    direction of the fine-tuning rows costs.

    Alike for all i: the penalty of L2 is the right one. In proportion to s_i^2: that of label
    annealing is. (Exact where the X~ v_i are orthogonal.)
    """
    return ((problem.pretraining_inputs @ problem.finetuning_factors.right.T) ** 2).mean(0)
