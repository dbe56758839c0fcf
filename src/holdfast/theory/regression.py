"""Label annealing in over-parametrised linear regression: three closed forms and their geometry.

Source: Memory Retaining Finetuning, section 4 and appendix B. A linear model is pre-trained on M rows (X~, y~) of D > M
numbers, from 0, and so ends at the solution of least norm; from there it is fine-tuned on N rows (X, y), N < D, in one
of three ways (lambda >= 0):

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

so the component outside the span is theta0's in all three, L2 included. Inside it, label annealing walks the straight
segment from P theta0 to m, every direction at one pace; L2 walks a curve, strong directions first. This is how
everything below is computed: no D x D matrix is ever formed. `theory.descent` reaches the same points step by step.

What each is best at follows from it (ours, the paper does not say it). At equal fine-tuning error L2 has the least
|theta - theta0|, label annealing the least |X theta - X theta0|. Which of the two means less forgetting depends on the
pre-training rows, since X~ theta0 = y~ makes the pre-training error |X~ (theta - theta0)|^2: where the pre-training
data feels a unit step alike in all directions V_i, it is the first; where it feels it in proportion to s_i^2, the
second (`sensitivities`).

Where the paper and this file differ:

- It prints `(XX)^-1` (theorem 1, section 4.3, appendix B.1), which does not exist for N != D; it means `(X X^T)^-1`.
- Section 4.3 says that label annealing adds back a component "along the direction [I - X^T (X X^T)^-1 X] theta0". It is
  `P theta0`, as in the equation below that sentence.
- Section 4.3 says of L2 that its "two terms overlap", unlike direct fine-tuning's, so that there is no clean intuition.
  Split by the span instead of by the two terms it has the same kept component as the others, and the two terms inside
  label annealing's span overlap as well.
- Lemma B.1 asks for a step below 1 / q_max. That is sufficient; the iteration converges below 2 / q_max
  (`theory.descent`).
- In theorem 1's bound, min{1/s^2, 1/(lambda + s^2), 1/((1 + lambda) s^2)}, the first term is never the least when
  lambda > 0.
- Appendix B.1 gives S in the compact SVD the shape d x d; it is n x n. Proposition 4.1 names problem (6), X and y; it
  means (4), X~ and y~. The proof said to be in appendix A is in appendix B.

Does not model: stochastic gradients, features that are learnt, the KL itself (a squared difference of predictions
stands for it).

Shape suffixes: D dimension, M pre-training rows, N fine-tuning rows, L weights (lambdas). All arrays are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from holdfast.config.decode import settings_value
from holdfast.errors import ConfigError, DataError, ShapeError, did_you_mean
from holdfast.theory.regression_settings import ProblemSettings

METHODS = ("direct", "l2", "label_annealing")
"""Ways to fine-tune; direct has no weight (lambda)."""

# ------------------------------------------------------------------------------------------------------------- problems


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The compact SVD of rows `[N, D]`: `left @ diag(values) @ right`."""

    left: np.ndarray
    """`[N, N]` orthogonal."""
    values: np.ndarray
    """`[N]`, largest first, all positive."""
    right: np.ndarray
    """`[N, D]`, orthonormal rows: a basis of the span."""

    def inside(self, vectors: np.ndarray) -> np.ndarray:
        """The projection of `[..., D]` onto the span."""
        return (vectors @ self.right.T) @ self.right


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """What `random_problem` drew the rows from, for errors on fresh inputs.

    A pre-training input is `z = scale * g`, g standard normal `[D]`; a fine-tuning input is `inside * P~ z + outside *
    (I - P~) z` with P~ the projection onto the span of the pre-training rows.
    """

    pretraining_theta: np.ndarray
    """`[D]`: pre-training targets are `x^T` this plus noise."""
    finetuning_theta: np.ndarray
    """`[D]`: the same for fine-tuning; `pretraining_theta + shift * u`, and u moves predictions as much as
    `pretraining_theta` does."""
    scale: np.ndarray
    """`[D]`, standard deviation of each pre-training feature; the squares sum to D."""
    inside: float
    """Factor of the part within the span of the pre-training rows."""
    outside: float
    """Factor of the rest."""
    noise: float
    """Standard deviation of the targets' noise, where the signal's is 1 in pre-training."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Two regression tasks with more unknowns than rows. Arrays are copied to float64 and made read-only.

    Raises:
        ShapeError: rows and targets do not fit together, or there are not fewer rows than columns.
        DataError: values that are not finite, or rows that depend on each other (no full row rank).
    """

    pretraining_inputs: np.ndarray
    """X~ `[M, D]`, M < D."""
    pretraining_targets: np.ndarray
    """y~ `[M]`."""
    finetuning_inputs: np.ndarray
    """X `[N, D]`, N < D."""
    finetuning_targets: np.ndarray
    """y `[N]`."""
    truth: Truth | None = None
    """Where the rows come from, if that is known."""

    def __post_init__(self) -> None:
        for side in ("pretraining", "finetuning"):
            for kind, dimensions in (("inputs", 2), ("targets", 1)):
                array = np.array(getattr(self, f"{side}_{kind}"), dtype=np.float64)
                if array.ndim != dimensions:
                    raise ShapeError(
                        f"{side}_{kind}: expected {dimensions} dimension{'s' * (dimensions > 1)}, got shape "
                        f"{array.shape}."
                    )
                if not np.isfinite(array).all():
                    raise DataError(
                        f"{side}_{kind}: expected finite numbers, got {int((~np.isfinite(array)).sum())} that are not."
                    )
                array.flags.writeable = False
                object.__setattr__(self, f"{side}_{kind}", array)
        inputs_MD, inputs_ND = self.pretraining_inputs, self.finetuning_inputs
        if inputs_MD.shape[1] != inputs_ND.shape[1]:
            columns = f"{inputs_MD.shape[1]} in pre-training and {inputs_ND.shape[1]} in fine-tuning"
            raise ShapeError(f"Expected as many columns in both tasks, got {columns}.")
        for side, inputs, targets in (
            ("pretraining", inputs_MD, self.pretraining_targets),
            ("finetuning", inputs_ND, self.finetuning_targets),
        ):
            rows, columns = inputs.shape
            if len(targets) != rows:
                raise ShapeError(f"{side}: expected a target a row, got {rows} rows and {len(targets)} targets.")
            if not 0 < rows < columns:
                raise ShapeError(
                    f"{side}: expected 1 row or more, and fewer rows than columns (more unknowns than equations), got "
                    f"{rows} x {columns}."
                )
        for side, factors in (("pretraining", self.pretraining_factors), ("finetuning", self.finetuning_factors)):
            least, most = factors.values[-1], factors.values[0]
            if not least > most * self.dimension * np.finfo(np.float64).eps:
                raise DataError(
                    f"{side}_inputs: expected rows that do not depend on each other (full row rank), got singular "
                    f"values from {most:.3g} down to "
                    f"{least:.3g}. Remove rows that repeat or combine others."
                )

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
    def theta0(self) -> np.ndarray:
        """`[D]`: the solution of least norm of the pre-training task, where gradient descent from 0 ends (proposition
        4.1)."""
        return _least_norm(self.pretraining_factors, self.pretraining_targets)

    @cached_property
    def least_norm(self) -> np.ndarray:
        """m `[D]`: the solution of least norm of the fine-tuning task, which knows nothing of pre-training."""
        return _least_norm(self.finetuning_factors, self.finetuning_targets)

    @cached_property
    def residual(self) -> np.ndarray:
        """r `[N]`: what pre-training leaves to be learnt, `U^T (y - X theta0)`, one number a singular direction."""
        return self.finetuning_factors.left.T @ (self.finetuning_targets - self.finetuning_inputs @ self.theta0)

    @property
    def nothing_to_learn(self) -> bool:
        """Whether theta0 fits the fine-tuning rows already, to rounding."""
        seen = np.linalg.norm(self.finetuning_targets) + np.linalg.norm(self.finetuning_inputs @ self.theta0)
        return bool(np.linalg.norm(self.residual) <= 1e-12 * seen)


_NOTHING_TO_LEARN = (
    "Expected something to learn, but theta0 fits the fine-tuning rows exactly. Give targets of "
    "another kind, such as shift or noise above 0."
)


def _factors(inputs: np.ndarray) -> Factors:
    left, values, right = np.linalg.svd(inputs, full_matrices=False)
    return Factors(left=left, values=values, right=right)


def _least_norm(factors: Factors, targets: np.ndarray) -> np.ndarray:
    found: np.ndarray = ((factors.left.T @ targets) / factors.values) @ factors.right
    found.flags.writeable = False
    return found


def random_problem(*, seed: int = 0, **settings: Any) -> Problem:
    """Two tasks in conflict: they share directions, and in those they want different parameters.

    Pre-training inputs are `z = scale * g`, g standard normal, `scale_j^2` falling like `j^-decay`. Fine-tuning inputs
    are fresh draws of z, of which the part inside the span of the pre-training rows and the part outside are stretched
    so that the first has the share `overlap` of the expected squared length (`Truth`). Targets are `x^T theta* + noise
    * g`. The signal of pre-training has variance 1 on fresh inputs: an error of 1 is that of knowing nothing.
      Everything here turns with the coordinates, so that features along the axes are no loss of generality.

    Args:
        seed: equal arguments give equal arrays.
        settings: of `ProblemSettings`: dimension D, pretrain_rows M, finetune_rows N, ...

    Raises:
        ConfigError: arguments that no problem can have, all of them together.
    """
    given = settings_value(ProblemSettings, settings)
    draw = np.random.default_rng(seed)
    variance = np.arange(1.0, given.dimension + 1) ** -given.decay
    scale = np.sqrt(variance * (given.dimension / variance.sum()))
    first, change = (
        direction / np.linalg.norm(scale * direction) for direction in draw.standard_normal((2, given.dimension))
    )
    second = first + given.shift * change
    inputs_MD = draw.standard_normal((given.pretrain_rows, given.dimension)) * scale
    fresh_ND = draw.standard_normal((given.finetune_rows, given.dimension)) * scale
    basis_MD = np.linalg.qr(inputs_MD.T)[0].T
    length_inside = float(((basis_MD * scale) ** 2).sum())
    inside = math.sqrt(given.overlap * given.dimension / length_inside)
    outside = math.sqrt((1 - given.overlap) * given.dimension / (given.dimension - length_inside))
    part_ND = fresh_ND @ basis_MD.T @ basis_MD
    inputs_ND = inside * part_ND + outside * (fresh_ND - part_ND)
    return Problem(
        pretraining_inputs=inputs_MD,
        pretraining_targets=inputs_MD @ first + given.noise * draw.standard_normal(given.pretrain_rows),
        finetuning_inputs=inputs_ND,
        finetuning_targets=inputs_ND @ second + given.noise * draw.standard_normal(given.finetune_rows),
        truth=Truth(
            pretraining_theta=first,
            finetuning_theta=second,
            scale=scale,
            inside=inside,
            outside=outside,
            noise=given.noise,
        ),
    )


# --------------------------------------------------------------------------------------------------------- closed forms


def check_method(method: str) -> None:
    """Raises `ConfigError` with the nearest name where `method` is none of `METHODS`."""
    if method not in METHODS:
        raise ConfigError(
            f"expected a method among {', '.join(METHODS)}, got '{method}'.{did_you_mean(method, METHODS)}"
        )


def learnt_shares(problem: Problem, method: str, weight: ArrayLike = 0.0) -> np.ndarray:
    """f: the share of the residual that a method learns in every singular direction of the fine-tuning rows, `[...,
    N]`.

    Args:
        problem: the two tasks.
        method: one of `METHODS`.
        weight: lambda, `[...]`, 0 to infinity; direct fine-tuning takes no notice of it.

    Raises:
        ConfigError: an unknown method, a negative weight or NaN.
    """
    check_method(method)
    weights = np.asarray(weight, dtype=np.float64)[..., None]
    if not (weights >= 0).all():
        raise ConfigError(f"weight (lambda): expected 0 or more, got {float(np.min(weights)):g}")
    squares_N = problem.finetuning_factors.values**2
    relative = {"direct": 0.0, "label_annealing": weights, "l2": weights / squares_N}[method]
    return 1 / (1 + relative + np.zeros(weights.shape[:-1] + squares_N.shape))


def closed_form(problem: Problem, method: str, weight: ArrayLike = 0.0) -> np.ndarray:
    """The parameters at which gradient descent from theta0 ends (theorem 1), `[..., D]`.

    Limits: weight 0 is direct fine-tuning for both (for L2 the limit; its formula has no inverse there), weight
    infinity is theta0.

    Args:
        problem: the two tasks.
        method: one of `METHODS`.
        weight: lambda, `[...]`.

    Raises:
        ConfigError: as of `learnt_shares`.
    """
    factors = problem.finetuning_factors
    found: np.ndarray = (
        problem.theta0 + (learnt_shares(problem, method, weight) * (problem.residual / factors.values)) @ factors.right
    )
    return found


def joint_solution(problem: Problem) -> np.ndarray:
    """`[D]`: the least-squares solution of both tasks' rows together that is nearest to theta0, what full replay of the
    pre-training rows reaches.

    Where M + N <= D and all rows together have full rank it has no error on either task: nothing has to be forgotten.
    """
    inputs = np.vstack([problem.pretraining_inputs, problem.finetuning_inputs])
    targets = np.concatenate([problem.pretraining_targets, problem.finetuning_targets])
    found: np.ndarray = problem.theta0 + np.linalg.lstsq(inputs, targets - inputs @ problem.theta0, rcond=None)[0]
    return found


def gradient(problem: Problem, method: str, weight: float, theta: np.ndarray) -> np.ndarray:
    """The gradient `[D]` of a method's objective (equations 6, 7, 8) at `theta` `[D]`, straight from the objective."""
    check_method(method)
    inputs, start = problem.finetuning_inputs, problem.theta0
    found: np.ndarray = inputs.T @ (inputs @ theta - problem.finetuning_targets)
    if method == "l2":
        found = found + weight * (theta - start)
    elif method == "label_annealing":
        found = found + weight * (inputs.T @ (inputs @ (theta - start)))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Errors:
    """Mean squared errors of parameters `[..., D]`, each `[...]`."""

    pretraining: np.ndarray
    """|X~ theta - y~|^2 / M: 0 at theta0, so it is what was forgotten."""
    finetuning: np.ndarray
    """|X theta - y|^2 / N."""
    fresh_pretraining: np.ndarray | None = None
    """Expected over fresh pre-training inputs, noise left out; None where the problem's truth is not known."""
    fresh_finetuning: np.ndarray | None = None
    """The same for fine-tuning inputs."""


def errors(problem: Problem, theta: np.ndarray) -> Errors:
    """How wrong parameters `[..., D]` are on both tasks, on their rows and, where the truth is known, on fresh inputs.

    Raises:
        ShapeError: the last dimension is not D.
    """
    if theta.shape[-1] != problem.dimension:
        raise ShapeError(f"theta: expected [..., {problem.dimension}], got {list(theta.shape)}.")

    def on_rows(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.asarray(((theta @ inputs.T - targets) ** 2).mean(-1))

    seen = {
        "pretraining": on_rows(problem.pretraining_inputs, problem.pretraining_targets),
        "finetuning": on_rows(problem.finetuning_inputs, problem.finetuning_targets),
    }
    truth = problem.truth
    if truth is None:
        return Errors(**seen)
    away = theta - truth.finetuning_theta
    part = problem.pretraining_factors.inside(away)
    # An input is S z with S symmetric, so x^T away = z^T (S away).
    seen_through = truth.inside * part + truth.outside * (away - part)
    fresh_pretraining = ((truth.scale * (theta - truth.pretraining_theta)) ** 2).sum(-1)
    return Errors(
        **seen, fresh_pretraining=fresh_pretraining, fresh_finetuning=((truth.scale * seen_through) ** 2).sum(-1)
    )


def weight_for(problem: Problem, method: str, share: float) -> float:
    """The weight (lambda) at which a method leaves a share of the start's fine-tuning error, which makes methods
    comparable.

    Label annealing leaves `(lambda / (1 + lambda))^2`; for L2 the equation `sum (1 - f_i)^2 r_i^2 = share * sum r_i^2`
    is solved by bisection, to float64's last digits.

    Args:
        problem: the two tasks.
        method: "l2" or "label_annealing".
        share: above 0 and below 1.

    Raises:
        ConfigError: a share outside of that, or a method without a weight.
        DataError: the start has no fine-tuning error.
    """
    if method not in ("l2", "label_annealing"):
        raise ConfigError(f"expected a method with a weight, l2 or label_annealing, got '{method}'.")
    if not 0 < share < 1:
        raise ConfigError(f"share: expected above 0 and below 1, got {share:g}")
    if problem.nothing_to_learn:
        raise DataError(_NOTHING_TO_LEARN)
    root = math.sqrt(share)
    annealing = root / (1 - root)
    if method == "label_annealing":
        return annealing
    squares, residual = problem.finetuning_factors.values**2, problem.residual / np.linalg.norm(problem.residual)
    low, high = (
        math.log(annealing * squares[-1]),
        math.log(annealing * squares[0]),
    )  # only the weakest and the strongest direction
    for _ in range(80):
        middle = (low + high) / 2
        left = float(((math.exp(middle) / (math.exp(middle) + squares) * residual) ** 2).sum())
        low, high = (low, middle) if left > share else (middle, high)
    return math.exp((low + high) / 2)


# ------------------------------------------------------------------------------------------------------------- geometry


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Parameters split by the span of the fine-tuning rows; `outside + inside` is the whole."""

    outside: np.ndarray
    """(I - P) theta `[..., D]`: invisible to the fine-tuning rows; what all three methods keep."""
    inside: np.ndarray
    """P theta `[..., D]`: what fine-tuning sees and changes."""


def split(problem: Problem, theta: np.ndarray) -> Split:
    """Parameters `[..., D]` as what lies outside and inside the span of the fine-tuning rows."""
    inside = problem.finetuning_factors.inside(theta)
    return Split(outside=theta - inside, inside=inside)


def along_segment(problem: Problem, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the inside part of parameters `[..., D]` lies relative to the segment from P theta0 (0) to m (1).

    Returns:
        (place along it, distance from the line through it), each `[...]`; the distance is in units of the segment's
        length. Label annealing lies at `1 / (1 + lambda)` with distance 0; L2 leaves the line unless all singular
        values are equal.

    Raises:
        DataError: P theta0 and m are the same point.
    """
    start = problem.finetuning_factors.inside(problem.theta0)
    way = problem.least_norm - start
    length = float(np.linalg.norm(way))
    if problem.nothing_to_learn:
        raise DataError(_NOTHING_TO_LEARN)
    moved = split(problem, theta).inside - start
    place = moved @ way / length**2
    return place, np.linalg.norm(moved - place[..., None] * way, axis=-1) / length


def sensitivities(problem: Problem) -> np.ndarray:
    """|X~ v_i|^2 / M `[N]`: how much pre-training error a unit step along the i-th singular direction of the
    fine-tuning rows costs.

    Alike for all i: the penalty of L2 is the right one. In proportion to s_i^2: that of label annealing is. (Exact
    where the X~ v_i are orthogonal.)
    """
    felt: np.ndarray = ((problem.pretraining_inputs @ problem.finetuning_factors.right.T) ** 2).mean(0)
    return felt


# --------------------------------------------------------------------------------------------------------- illustration


def illustration(*, alike: bool) -> Problem:
    """Three parameters and two rows a task, so that everything can be drawn: the fine-tuning rows span the plane of the
    first two axes.

    theta0, m and the paths of all methods are the same for both values of `alike`; what the pre-training data makes of
    them is not.

    Args:
        alike: the pre-training error feels both directions of that plane alike, so that L2 forgets less; otherwise in
            proportion to the squared singular values, 4 and 0.36, so that label annealing does.
    """
    strong, weak = 2.0, 0.6
    first, second = (1.0, 1.0) if alike else (strong, weak)
    inputs = np.array([[first, 0.0, 0.3 * first], [0.0, second, 0.4 * second]])
    return Problem(
        pretraining_inputs=inputs,
        pretraining_targets=inputs @ np.array([0.9, 0.6, 0.3 * 0.9 + 0.4 * 0.6]),
        finetuning_inputs=np.array([[strong, 0.0, 0.0], [0.0, weak, 0.0]]),
        finetuning_targets=np.array([strong * 1.9, weak * -0.4]),
    )
