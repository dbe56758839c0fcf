"""Sequential fine-tuning with averaging (SFA) beside what it resembles: L2, EWC and Fisher merging.

Source: Soup to Go, section 4 and appendix A.2. theta_o is the old model, g the gradient of the new
task's loss, F the diagonal of the old model's Fisher information (L2: lambda everywhere):

```
SFA, every step   theta* = theta - alpha g(theta)         theta <- (1 - beta) theta* + beta theta_o       (4), (5)
penalty           theta <- theta - eta (g(theta) + F (theta - theta_o))                                   (2)
EWC as a merge    theta* = theta - eta g(theta)           theta <- (I - eta F) theta* + eta F theta_o     (13), (14)
Fisher merging    (l_o F_o theta_o + l_t F_t theta_t) / (l_o F_o + l_t F_t)                               (15)
prior             theta ~ N(theta_o, tau^2 I), y ~ N(X theta, sigma^2 I): its posterior's mode is L2's minimiser
                  with lambda = sigma^2 / tau^2, whose loss is ||y - X theta||^2                          (8) to (11)
```

The first two are one iteration where `beta = eta F` and `alpha = eta / (1 - eta F)`. The paper says
so for L2; taken for each parameter it holds for EWC as well (ours). Hence what (13), (14) are
exactly: SFA with alpha = eta, so the penalty `F / (1 - eta F)` in place of F. One such step differs
from the penalised one by `eta^2 F g(theta)`.

What p does (ours; the paper measures it). On a quadratic loss, in a direction of curvature h, k
steps and an average take what is kept, u = (theta - theta_t) / (theta_o - theta_t), to
`(1 - beta) (1 - alpha h)^k u + beta`, so to

```
u = beta / (1 - (1 - beta) (1 - alpha h)^k)
k = 1          u = lambda / (lambda + h): L2's shrinkage, strong directions are learnt first
k to infinity  u = beta in every direction: the straight segment from theta_o to theta_t, as WiSE-FT
```

so p goes from L2's penalty to interpolation, and how often is a choice of shape, not only of
strength.

Does not model: stochastic gradients, momentum, Adam.

Shape suffixes: D parameters. All arrays are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from holdfast.config.declare import Meta
from holdfast.papers.theory.results import Array, expect

Gradient = Callable[[Array], Array]
"""Of the new task's loss, `[D]` at `[D]`."""
Number = float | Array
"""One, or one a parameter or direction."""

# ----------------------------------------------------------------------------- one iteration, twice


def averaging_of(rate: Number, coefficient: Number) -> tuple[Any, Any]:
    """The SFA of every step that is a penalised gradient descent.

    Args:
        rate: eta, positive.
        coefficient: lambda, or lambda F `[D]`, 0 or more, below 1 / eta.

    Returns:
        (alpha, beta): SFA's rate and its weight on the old model, of the shape of both arguments
        together.

    Raises:
        ConfigError: a rate or a coefficient outside of these bounds; at eta lambda >= 1 no SFA is
            that descent.

    References: Soup to Go, section 4, below equation 7.
    """
    eta = np.asarray(rate, np.float64)
    expect("rate (eta)", eta, Meta(gt=0))
    beta = eta * coefficient
    expect("rate * coefficient (eta lambda)", beta, Meta(ge=0, lt=1))
    return (eta / (1 - beta))[()], beta[()]


def penalty_of(alpha: Number, beta: Number) -> tuple[Any, Any]:
    """The penalised gradient descent that is an SFA of every step, the other way round.

    Args:
        alpha: SFA's rate, positive.
        beta: weight on the old model, in [0, 1); one a parameter where it is `[D]`.

    Returns:
        (rate, coefficient): eta and lambda.

    Raises:
        ConfigError: an alpha or a beta outside of these bounds; at beta 1 nothing is learnt, which
            no finite lambda does.
    """
    expect("alpha", alpha, Meta(gt=0))
    expect("beta", beta, Meta(ge=0, lt=1))
    rate = np.asarray(alpha, np.float64) * (1 - np.asarray(beta, np.float64))
    return rate[()], (beta / rate)[()]


def averaged_path(
    gradient: Gradient,
    start: Array,
    old: Array,
    *,
    alpha: Number,
    beta: Number,
    steps: int,
    every: int = 1,
) -> Array:
    """SFA: gradient descent that is averaged with the old model at `every`-th steps and at the last
    (Algorithm 1).

    With `alpha = eta` and `beta = eta F` it is the EWC of two updates, equations 13 and 14.

    Returns:
        `[steps + 1, D]`: the start and theta after each step, averaged where it was.
    """
    path = [np.array(start, np.float64)]
    for step in range(1, steps + 1):
        theta = path[-1] - alpha * gradient(path[-1])
        if step % every == 0 or step == steps:
            theta = (1 - np.asarray(beta)) * theta + beta * old
        path.append(theta)
    return np.array(path)


def penalised_path(
    gradient: Gradient,
    start: Array,
    old: Array,
    *,
    rate: Number,
    coefficient: Number,
    steps: int,
) -> Array:
    """Gradient descent on the new task's loss + 1/2 sum coefficient (theta - theta_o)^2 (equation
    2; 12 for EWC).

    Args:
        gradient: of the new task's loss.
        start: `[D]`.
        old: theta_o `[D]`.
        rate: eta.
        coefficient: lambda, or lambda F `[D]`.
        steps: of descent.

    Returns:
        `[steps + 1, D]`, as `averaged_path`.
    """
    path = [np.array(start, np.float64)]
    for _ in range(steps):
        before, pull = path[-1], np.asarray(coefficient) * (path[-1] - old)
        path.append(before - rate * (gradient(before) + pull))
    return np.array(path)


def fisher_merge(
    old: Array,
    new: Array,
    old_fisher: Array,
    new_fisher: Array,
    *,
    old_weight: float = 1.0,
    new_weight: float = 1.0,
) -> Array:
    """The minimiser of l_o/2 F_o (theta - theta_o)^2 + l_t/2 F_t (theta - theta_t)^2, parameter by
    parameter (equation 15).

    Where both Fishers vanish nothing decides, and the mean with the weights is returned, the plain
    average for equal ones. `checkpoints.methods.fisher` is the same on checkpoints.

    Args:
        old: theta_o `[D]`.
        new: theta_t `[D]`.
        old_fisher: F_o `[D]`, 0 or more.
        new_fisher: F_t `[D]`, 0 or more.
        old_weight: l_o, positive.
        new_weight: l_t, positive.

    Raises:
        ConfigError: a weight or a Fisher value outside of these bounds.
    """
    weights = np.array([[old_weight], [new_weight]])
    expect("weights (l)", weights, Meta(gt=0))
    shares = weights * np.stack([old_fisher, new_fisher])
    expect("Fisher values", shares, Meta(ge=0))
    shares[:, shares.sum(0) == 0] = weights
    return (shares[0] * old + shares[1] * new) / shares.sum(0)


# -------------------------------------------------------------------------------- the penalty as a prior


def posterior_mode(
    inputs: Array, outputs: Array, old: Array, *, variance: Number, noise: float
) -> Array:
    """The likeliest weights of a linear regression whose weights were theta_o before, by the rules
    for conditioned Gaussians.

    Args:
        inputs: X `[N, D]`.
        outputs: y `[N]`.
        old: theta_o `[D]`, the prior's mean.
        variance: of the prior, tau^2, positive; one a parameter where it is `[D]`, which is EWC's
            1 / F.
        noise: variance of y given X, sigma^2, positive.

    References: Soup to Go, appendix A.1 with a linear f.
    """
    expect("variance (tau^2)", variance, Meta(gt=0))
    expect("noise (sigma^2)", noise, Meta(gt=0))
    covariance = np.broadcast_to(np.asarray(variance, np.float64), old.shape)[:, None] * inputs.T
    marginal = inputs @ covariance + noise * np.eye(len(outputs))
    mode: Array = old + covariance @ np.linalg.solve(marginal, outputs - inputs @ old)
    return mode


def penalised_regression(
    inputs: Array, outputs: Array, old: Array, *, coefficient: Number
) -> Array:
    """The minimiser of ||y - X theta||^2 + sum coefficient (theta - theta_o)^2 (equation 11; with
    sigma^2 F for lambda, EWC's).

    Args:
        inputs: X `[N, D]`.
        outputs: y `[N]`.
        old: theta_o `[D]`.
        coefficient: lambda, or one a parameter `[D]`, positive.
    """
    pull = np.broadcast_to(np.asarray(coefficient, np.float64), old.shape)
    minimiser: Array = np.linalg.solve(
        inputs.T @ inputs + np.diag(pull), inputs.T @ outputs + pull * old
    )
    return minimiser


# -------------------------------------------------------------------------------------- what p does


def period(p: float, steps: int) -> int:
    """Steps between averages, as the method `sfa` counts them: round(p T), at least 1."""
    return max(1, round(p * steps))


def kept_share(
    curvature: Number, *, alpha: float, beta: Number, every: int, steps: int | None = None
) -> Array:
    """What SFA keeps of the way from the optimum back to theta_o, in directions of a quadratic
    loss.

    Args:
        curvature: h, 0 or more, below 2 / alpha; any shape.
        alpha: SFA's rate.
        beta: weight on the old model, in [0, 1]; broadcasts with the curvature.
        every: k, steps between averages.
        steps: T, from theta_o on, with an average after the last in any case; None: the fixed
            point, after an average.

    Returns:
        u: 1 is theta_o, 0 the new task's optimum. The distance to theta_o is (1 - u) of that
            between the two, the
        distance to the optimum u of it.

    Raises:
        ConfigError: a rate with which the steps do not converge, a beta outside of [0, 1], no step
            between averages.
    """
    weight = np.asarray(beta, np.float64)
    shrinkage = alpha * np.asarray(curvature, np.float64)
    expect("alpha * curvature", shrinkage, Meta(ge=0, lt=2))
    expect("beta", weight, Meta(ge=0, le=1))
    expect("every", every, Meta(ge=1))
    factor = (1 - weight) * (1 - shrinkage) ** every
    still = factor == 1  # no average, no curvature: theta stays where it was
    limit = np.where(still, 1.0, weight / np.where(still, 1.0, 1 - factor))
    if steps is None:
        return limit
    cycles, rest = divmod(steps, every)
    share: Array = limit + factor**cycles * (1 - limit)
    return (1 - weight) * (1 - shrinkage) ** rest * share + weight if rest else share


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratics:
    """Two tasks whose losses are quadratic, each with its own optimum: 1/2 (theta - optimum)^T
    Hessian (theta - optimum).

    A task of linear regression with unit noise is one, and its Hessian is its exact Fisher
    information.
    """

    old_hessian: Array
    """`[D, D]`, symmetric and positive definite."""
    new_hessian: Array
    """`[D, D]`, the same."""
    old: Array
    """theta_o `[D]`, the optimum of the old task, where fine-tuning starts."""
    new: Array
    """`[D]`, the optimum of the new task."""

    @cached_property
    def curvature(self) -> float:
        """The new task's largest; descent converges with rates below 2 over it."""
        return float(np.linalg.eigvalsh(self.new_hessian)[-1])

    def gradient(self, theta: Array) -> Array:
        """Of the new task's loss, `[D]`."""
        return self.new_hessian @ (theta - self.new)

    def losses(self, theta: Array) -> Array:
        """`[3, ...]` at `[..., D]`: the old task's loss, the new task's, the distance to
        theta_o."""
        away, left = theta - self.old, theta - self.new
        old = np.einsum("...i,ij,...j->...", away, self.old_hessian, away) / 2
        new = np.einsum("...i,ij,...j->...", left, self.new_hessian, left) / 2
        return np.stack([old, new, np.linalg.norm(away, axis=-1)])

    def along(self, metric: Array | None = None) -> Directions:
        """The directions in which the new loss and a distance to theta_o are both sums of squares.

        Args:
            metric: of the distance, `[D, D]`, or `[D]` for a diagonal one (EWC's Fisher); None:
                plain (L2, SFA).
        """
        if metric is None:
            whitened = np.eye(len(self.old))
        else:
            matrix = np.diag(metric) if metric.ndim == 1 else metric
            whitened = np.linalg.inv(np.linalg.cholesky(matrix)).T
        values, vectors = np.linalg.eigh(whitened.T @ self.new_hessian @ whitened)
        basis = whitened @ vectors
        return Directions(
            start=self.old,
            basis=basis,
            values=values,
            away=np.linalg.solve(basis, self.new - self.old),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Directions:
    """Fine-tuning as the share learnt of each direction: theta = theta_o + basis (share * away), 1
    - share is kept."""

    start: Array
    """theta_o `[D]`."""
    basis: Array
    """`[D, D]`, one direction a column, of length 1 in the metric."""
    values: Array
    """`[D]`: curvature of the new loss along each, rising."""
    away: Array
    """`[D]`: how far the new optimum is along each."""

    def theta(self, kept: Array) -> Array:
        """`[..., D]` for kept shares `[..., D]`."""
        return self.start + ((1 - kept) * self.away) @ self.basis.T

    def new_loss(self, kept: Array) -> Array:
        """The new task's loss `[...]`, as `Quadratics.losses` has it."""
        return (kept**2) @ (self.values * self.away**2) / 2

    def penalised(self, coefficient: Number) -> Array:
        """Shares kept `[..., D]` by the minimiser of the new loss + coefficient/2 distance^2:
        lambda / (lambda + h)."""
        weight = np.asarray(coefficient, np.float64)[..., None]
        return weight / (weight + self.values)


def random_quadratics(
    *,
    dimension: int = 40,
    decay: float = 1.0,
    alignment: float = 0.5,
    rotation: float = 1.0,
    seed: int = 0,
) -> Quadratics:
    """Two tasks with curvatures j^-decay each.

    Both optima are drawn alike in all directions; nothing depends on how far apart they are.

    Args:
        dimension: D.
        decay: 0: all curvatures alike.
        alignment: 0 to 1. 1: both tasks feel the same directions equally much; 0: directions drawn
            on their own.
        rotation: 0 to 1: how far the old task's directions are from single parameters. 0: each is
            one, so that a diagonal Fisher information holds all; 1: drawn at random.
        seed: equal arguments give equal arrays.
    """
    rng = np.random.default_rng(seed)
    curvatures = np.arange(1.0, dimension + 1) ** -decay
    old_basis = _turned(rng, dimension, rotation)
    new_basis = old_basis @ _turned(rng, dimension, 1 - alignment)
    old, new = rng.standard_normal((2, dimension))

    def hessian(basis: Array) -> Array:
        product: Array = basis * curvatures @ basis.T
        return (product + product.T) / 2

    return Quadratics(
        old_hessian=hessian(old_basis), new_hessian=hessian(new_basis), old=old, new=new
    )


def _turned(rng: np.random.Generator, dimension: int, share: float) -> Array:
    """An orthogonal matrix between the identity (0) and one drawn uniformly (1)."""
    drawn = rng.standard_normal((dimension, dimension)) / np.sqrt(dimension)
    return np.linalg.qr((1 - share) * np.eye(dimension) + share * drawn)[0]
