"""Overtraining in a two-layer linear network: what a fixed modification costs after n features have
been learnt.

Source: Overtrained Language Models, section 4 and appendix A. theta = W1 W2, pre-trained by
gradient flow on the loss
|theta - A_pre|_F^2 with A_pre = U diag(s_1 > ... > s_D > 0) V^T, from W1 = e^-tau U, W2 = e^-tau V^T; fine-tuned on
A_ft = U diag(f) V^T. The network is then D numbers: singular value x = w^2 of theta, w of either
factor (lemma A.7), each with its own path

```
flow, target f, lambda (theta - start)^2     dx/dt = 4 x (f - x + lambda (a - x)),  a = x at the start
                                             x(t) = c x0 / (x0 + (c - x0) e^(-r t))
                                             c = (f + lambda a) / (1 + lambda),  r = 4 (f + lambda a)
a step of gradient descent                   w <- w + 2 eta w (f - w^2 + lambda (a - w^2))
```

so that pre-training learns one feature after the other, the n-th at about tau / (2 s_n). After n of
them:

```
noise gamma on every entry of W1 and W2      L = sum_{i>n} s_i^2 + 2 D gamma^2 sum_{i<=n} s_i + D^3 gamma^4    (A.4)
    feature n raises it where                s_n < 2 D gamma^2
fine-tuning                                  x_i -> c_i for i <= n; 0 stays 0                                  (A.23)
    pre-training loss                        L = sum_{i<=n} ((f_i - s_i) / (1 + lambda))^2 + sum_{i>n} s_i^2
    loss on the new task                     sum_{i<=n} (lambda (f_i - s_i) / (1 + lambda))^2 + sum_{i>n} f_i^2
    feature n raises the first where         |f_n - s_n| > (1 + lambda) s_n, so f_n > (2 + lambda) s_n
```

The noise formula holds for any factors and any noise that is independent with mean 0: no higher
term is missing. That 0 stays 0 is about the ideal model. From a real one, where nothing is 0,
fine-tuning for ever reaches c everywhere.

Not the paper's start, W1 = W2 = e^-tau I: that needs U = V. The flow keeps the sign of det theta,
so from there an A_pre with a negative determinant is never reached; its last feature stays
unlearnt.

Both tasks have their features in falling order, as the paper defines them (sections 4.1, 4.3).
Fine-tuning needs it: of the ends that a model of n features may come to, n of the f each, only that
with the n largest is stable, the others are saddles, which rounding leaves. `any_order` draws such
tasks: on their D numbers the formulas hold, on matrices only at first.

Does not model: minibatches (lemmas A.12 to A.17 bound them), momentum, depth above two, tasks with
singular vectors of their own. The bounds of A.2 and A.6 and assumption A.21 are not checked.

Shape suffixes: D features. All arrays are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.config.declare import Meta
from holdfast.errors import DataError
from holdfast.papers.theory.results import Array, expect

Number = float | Array
GAP = 0.25
"""The logarithm of a ratio of neighbouring singular values is drawn within this share of the
logarithm of `ratio`."""

# ---------------------------------------------------------------------------------------- the tasks


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearTasks:
    """A pre-training and a fine-tuning task with the same singular vectors.

    Raises:
        DataError: singular values that are not above 0, or not strictly falling.
    """

    pretraining: Array
    """s `[D]`, strictly falling, above 0."""
    finetuning: Array
    """f `[D]`, strictly falling, above 0."""
    left: Array
    """U `[D, D]`, orthogonal."""
    right: Array
    """V `[D, D]`, orthogonal."""
    any_order: bool = False
    """f need not fall, which the paper does not treat (module docstring)."""

    def __post_init__(self) -> None:
        falling = (np.diff(self.pretraining, append=0.0) < 0).all()
        if self.any_order:
            falling &= (self.finetuning > 0).all()
        else:
            falling &= (np.diff(self.finetuning, append=0.0) < 0).all()
        if not falling:
            got = f"{self.pretraining.tolist()} and {self.finetuning.tolist()}"
            raise DataError(
                f"Expected positive singular values in strictly falling order, got {got}. With "
                "any_order=True, those of fine-tuning may be in any order."
            )

    @property
    def dimension(self) -> int:
        return len(self.pretraining)

    def matrix(self, values: Array) -> Array:
        """U diag(values) V^T `[..., D, D]` of `[..., D]`."""
        return (self.left * values[..., None, :]) @ self.right.T

    def factors(self, values: Array) -> tuple[Array, Array]:
        """The balanced W1, W2 `[D, D]` whose product has these singular values `[D]`, 0 or more."""
        roots = np.sqrt(values)
        return self.left * roots, roots[:, None] * self.right.T

    def ideal_values(self) -> Array:
        """`[D + 1, D]`: singular values of the ideal model after 0 to D features."""
        return np.tri(self.dimension + 1, self.dimension, -1) * self.pretraining

    def misaligned_after(self, alpha: float) -> int:
        """The smallest r for which the tasks are (alpha, r)-misaligned, f_i > alpha s_i for all i >
        r (definition 4.5); D where only that is, of which it says nothing."""
        aligned = self.finetuning <= alpha * self.pretraining
        return int(np.flatnonzero(aligned).max(initial=-1)) + 1


def random_tasks(
    *,
    dimension: int = 8,
    ratio: float = 0.65,
    flatness: float = 0.5,
    spread: float = 0.3,
    any_order: bool = False,
    seed: int = 0,
) -> LinearTasks:
    """Two tasks drawn by seed.

    Args:
        dimension: D: inputs, hidden units, outputs, and features to learn.
        ratio: below 1: each singular value of the pre-training task over the one before, about; the
            first is 1.
        flatness: how evenly the fine-tuning task weighs the features: its singular values are about
            those of pre-training to the power of 1 - flatness.
        spread: standard deviation of the logarithms of the fine-tuning task's singular values about
            that; they are then put in falling order.
        any_order: they stay as drawn.
        seed: equal arguments give equal arrays.
    """
    rng = np.random.default_rng(seed)
    gaps = math.log(ratio) * rng.uniform(1 - GAP, 1 + GAP, dimension - 1)
    pretraining = np.exp(np.concatenate([[0.0], np.cumsum(gaps)]))
    drawn = np.exp(spread * rng.standard_normal(dimension))
    left, right = np.linalg.qr(rng.standard_normal((2, dimension, dimension)))[0]
    finetuning = pretraining ** (1 - flatness) * drawn
    return LinearTasks(
        pretraining=pretraining,
        finetuning=finetuning if any_order else np.sort(finetuning)[::-1],
        left=left,
        right=right,
        any_order=any_order,
    )


# ------------------------------------------------------------------------------------- closed forms


def squared_loss(values: Array, target: Array) -> Array:
    """|theta - A|_F^2 `[...]` of singular values `[..., D]` in a common basis."""
    return ((values - target) ** 2).sum(-1)


def perturbed_loss(first: Array, second: Array, target: Array, gamma: Number) -> Array:
    """E |(W1 + Z1)(W2 + Z2) - A|_F^2 over independent noise of mean 0 and standard deviation gamma:
    for any factors.

    Args:
        first: W1 `[D, D]`.
        second: W2 `[D, D]`.
        target: A `[D, D]`.
        gamma: any shape.

    Returns:
        Of gamma's shape: |W1 W2 - A|^2 + D gamma^2 (|W1|^2 + |W2|^2) + D^3 gamma^4. Terms that are
        odd in Z1 or in Z2 have mean 0, and |Z1 Z2|^2 sums D^2 entries of variance D gamma^4.
    """
    variance = np.square(gamma)
    size = len(target)
    loss, norms = ((first @ second - target) ** 2).sum(), (first**2).sum() + (second**2).sum()
    return loss + size * variance * norms + size**3 * variance**2


def perturbed_losses(tasks: LinearTasks, gamma: Number, values: Array | None = None) -> Array:
    """The same for balanced factors (lemma A.4): 2 D gamma^2 sum(values) is added, and D^3 gamma^4.

    Args:
        tasks: the pre-training task counts.
        gamma: `[...]`.
        values: singular values of models `[N, D]`; None: the ideal model after 0 to D features.

    Returns:
        `[..., N]`.
    """
    variance = np.square(np.asarray(gamma))[..., None]
    values = tasks.ideal_values() if values is None else values
    size = tasks.dimension
    loss = squared_loss(values, tasks.pretraining)
    return loss + 2 * size * variance * values.sum(-1) + size**3 * variance**2


def minimiser(tasks: LinearTasks, weight: Number) -> Array:
    """Where fine-tuning takes learnt features: (f + lambda s) / (1 + lambda), `[..., D]` of lambda
    `[...]`.

    Raises:
        ConfigError: a lambda that is not finite or below 0.
    """
    weights = np.asarray(weight, np.float64)[..., None]
    expect("weight (lambda)", weights, Meta(ge=0))
    return (tasks.finetuning + weights * tasks.pretraining) / (1 + weights)


def finetuned_losses(tasks: LinearTasks, weight: Number) -> tuple[Array, Array]:
    """Both losses after fine-tuning the ideal model, by features learnt before (theorems 4.6 and
    4.7).

    Their learnt parts lie on a line: sqrt(forgotten) + sqrt(left to learn) = |f - s| over the
    learnt features, lambda being the place on the way from s to f.

    Args:
        tasks: both.
        weight: lambda `[...]`, 0 or more.

    Returns:
        (pre-training loss, fine-tuning loss without the penalty), each `[..., D + 1]`.
    """
    values = minimiser(tasks, weight)

    def loss(target: Array) -> Array:
        return _running((values - target) ** 2) + (target**2).sum() - _running(target**2)

    return loss(tasks.pretraining), loss(tasks.finetuning)


def _running(terms: Array) -> Array:
    """Sums over the first 0 to D terms, `[..., D + 1]`."""
    return np.concatenate([np.zeros((*terms.shape[:-1], 1)), np.cumsum(terms, -1)], -1)


def harmful_in_noise(tasks: LinearTasks, gamma: Number) -> Array:
    """Whether learning feature n raises the perturbed loss, `[..., D]`: s_n < 2 D gamma^2
    (proposition 4.3)."""
    threshold = 2 * tasks.dimension * np.square(np.asarray(gamma))[..., None]
    return tasks.pretraining < threshold


def harmful_in_finetuning(tasks: LinearTasks, weight: Number) -> Array:
    """Whether learning feature n raises the pre-training loss after fine-tuning, `[..., D]`: f_n >
    (2 + lambda) s_n."""
    weights = np.asarray(weight)[..., None]
    return np.abs(tasks.finetuning - tasks.pretraining) > (1 + weights) * tasks.pretraining


def inflection_point(rises: Array) -> Array:
    """Features learnt when one more first raises a loss (definition 4.2).

    D where none does. 0, the first feature already does, is beyond the definition, which begins at
    t_1.

    Args:
        rises: `[..., D]` of true and false: `np.diff(losses) > 0`, `harmful_in_noise` or
            `harmful_in_finetuning`.

    Returns:
        `[...]` of whole numbers.
    """
    return np.where(rises.any(-1), rises.argmax(-1), rises.shape[-1])


def monotone_after(rises: Array) -> Array:
    """Features learnt from which on every further one raises a loss: what theorem A.25 calls the
    inflection point in place of definition 4.2. D where the last one does not; else as
    `inflection_point`."""
    falls = ~np.asarray(rises)
    last = falls.shape[-1] - 1 - falls[..., ::-1].argmax(-1)
    return np.where(falls.any(-1), last + 1, 0)


# ------------------------------------------------------------------------------------ paths in time


def flow_values(time: Number, *, start: Number, target: Number, weight: Number = 0.0) -> Array:
    """Singular values under gradient flow, sigmoids in time; arguments broadcast.

    Args:
        time: 0 or more.
        start: singular values at time 0, which the penalty holds on to; 0 stays 0.
        target: of the task, positive.
        weight: lambda, 0 or more.
    """
    ground = np.asarray(start, np.float64)
    pull = target + weight * ground
    end = pull / (1 + np.asarray(weight))
    left = np.exp(-4 * pull * np.asarray(time))
    divisor = np.where(ground == 0, 1.0, ground + (end - ground) * left)
    return np.where(ground == 0, 0.0, end * ground / divisor)


def start_value(tau: float) -> float:
    """e^-2tau: every singular value of theta when pre-training starts."""
    return math.exp(-2 * tau)


def half_times(singular_values: Array, tau: float, rate: float = 0.0) -> Array:
    """When each feature is half learnt, `[D]`; about tau / (2 s).

    Args:
        singular_values: s `[D]`, more than twice e^-2tau.
        tau: of the start.
        rate: of gradient descent, whose steps make growth slower (steps times rate are returned);
            0: gradient flow.

    Raises:
        ConfigError: the start is not below half of every singular value.
    """
    _small_start(singular_values, tau)
    pace = 4 * singular_values if rate == 0 else 2 * np.log1p(2 * rate * singular_values) / rate
    return np.log(singular_values / start_value(tau) - 1) / pace


def checkpoint_times(singular_values: Array, tau: float) -> Array:
    """t_1 < ... < t_D of theorem 4.1 under gradient flow: when feature n lacks as much as feature n
    + 1 has.

    Both are then below e^(-2 tau (s_n - s_{n+1}) / (s_n + s_{n+1})) for s <= 1, so that theorem
    A.1's C is the least of (s_n - s_{n+1}) / (s_n + s_{n+1}).

    Raises:
        ConfigError: the start is not below half of every singular value.
    """
    _small_start(singular_values, tau)
    following = np.append(singular_values[1:], 0.0)
    return (2 * tau + np.log(singular_values)) / (2 * (singular_values + following))


def _small_start(singular_values: Array, tau: float) -> None:
    half = float(np.min(singular_values)) / 2
    expect(
        "start value e^(-2 tau) (less than half of the smallest singular value)",
        start_value(tau),
        Meta(gt=0, lt=half),
    )


def step_bound(tasks: LinearTasks, weight: float = 0.0) -> float:
    """Assumption A.8's bound on fine-tuning's learning rate: 1 / (4 (lambda + 2) max(s, f))."""
    return 1 / (4 * (weight + 2) * float(max(tasks.pretraining.max(), tasks.finetuning.max())))


def descent_values(
    start: Array, target: Array, *, rate: float, steps: int, weight: float = 0.0, every: int = 0
) -> Array:
    """Gradient descent on both balanced factors, as the singular values of their product (lemma
    A.7).

    Args:
        start: singular values `[..., D]`, 0 or more; the penalty holds on to them.
        target: of the task, `[D]`.
        rate: eta, positive.
        steps: 0 or more.
        weight: lambda, 0 or more.
        every: the values after each so many steps, and at the start, in place of the last alone.

    Returns:
        `[..., D]`, or `[1 + steps // every, ..., D]`.
    """
    roots, pull = np.sqrt(start), target + weight * np.asarray(start)
    path = [roots]
    for step in range(1, steps + 1):
        roots = roots * (1 + 2 * rate * (pull - (1 + weight) * roots**2))
        if every and step % every == 0:
            path.append(roots)
    return np.square(path if every else roots)


def descent_factors(
    first: Array, second: Array, target: Array, *, rate: float, steps: int, weight: float = 0.0
) -> tuple[Array, Array]:
    """The same on the matrices themselves, for any factors: |theta - target|^2 + lambda |theta -
    start|^2.

    Args:
        first: W1 `[D, D]`.
        second: W2 `[D, D]`.
        target: A `[D, D]`.
        rate: eta, positive.
        steps: 0 or more.
        weight: lambda, 0 or more.

    Returns:
        W1 and W2 after the last step.
    """
    pull = target + weight * (first @ second)
    for _ in range(steps):
        slope = 2 * rate * ((1 + weight) * (first @ second) - pull)
        first, second = first - slope @ second.T, second - first.T @ slope
    return first, second
