"""Karcher mean: the models' directions averaged on the sphere, their norms on the line, tensor by tensor.

With u_i = theta_i / |theta_i| and weights w_i that sum to 1, the mean direction u is where the weighted arcs to the
models cancel, and is found by going along them:

    v = sum_i w_i log_u(u_i),   u <- exp_u(v)  until v = 0       [Karcher 1977; Afsari 2011]
    theta = (sum_i w_i |theta_i|) u

log_u(x) = a / sin(a) (x - cos(a) u) with cos(a) = <u, x>;  exp_u(v) = cos |v| u + sin |v| v / |v|. For two models this
is slerp of their directions.

u never leaves the span of the models, so the search needs nothing but their inner products, and the result is a
weighted sum: one pass measures, one adds up. It runs in float64 until it stands still (mergekit 0.1.5 stops after ten
steps, computes in the storage dtype, and passes over tensors with a norm of 1e-5 or less). A model whose tensor is 0
has no direction; it lowers the norm only. Where the directions have no mean (they cancel, or one lies opposite to it)
this is the plain weighted mean.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.dtypes import DType
from holdfast.checkpoints.kernels import moments
from holdfast.checkpoints.methods.linear import mean_as_sum, mean_shares
from holdfast.checkpoints.methods.protocol import Block, Sum, WeightedMethod

STEPS = 1000
"""After which a search that does not come to rest is given up; models at right angles take about ten."""
REST = 1e-7
"""Length (radians) of a step, for each model, below which one that is no shorter than the step before is the noise of
float64 inner products."""
OPPOSITE = -0.9995
"""Cosine below which a direction counts as opposite, where the arc to it is not unique."""


def karcher_factors(products: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64] | None:
    """The factor on each model, or None where their directions have no mean.

    Args:
        products: `[N, N]` inner products of the flattened tensors.
        shares: `[N]`, 0 or more, summing to 1.

    Returns:
        `[N]`; 0 for models without a direction.
    """
    norms = np.sqrt(np.diagonal(products))
    share = np.where(norms > 0, shares, 0.0)
    if not np.isfinite(products).all() or not share.sum() > 0:
        return None
    share /= share.sum()
    inverse = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    cosines = products * inverse[:, None] * inverse[None, :]
    rest = REST * len(share)
    if not (size := _length(share, cosines)) > rest:
        return None
    at, before = share / size, np.inf  # u, as factors on the u_i
    for _ in range(STEPS):
        reach = np.clip(cosines @ at, -1, 1)
        if (reach[share > 0] < OPPOSITE).any():
            return None
        angle = np.arccos(reach)
        sine = np.sin(angle)
        pull = share * np.divide(angle, sine, out=np.ones_like(angle), where=sine > 1e-9)
        step = pull - (pull @ reach) * at
        length = _length(step, cosines)
        if length == 0 or before <= length <= rest:
            return at * inverse * float(np.dot(shares, norms))
        before = length
        at = np.cos(length) * at + np.sin(length) * step / length
        at /= _length(at, cosines)
    return None


def karcher(models: Sequence[np.ndarray], weights: Sequence[float] | None = None) -> np.ndarray:
    """Karcher mean of one tensor.

    Args:
        models: float32 or float64 arrays of one shape and dtype, one or more.
        weights: one a model, 0 or more, not all 0; None: 1 each.

    References: Karcher, Riemannian center of mass and mollifier smoothing, 1977; mergekit's `karcher` for its use on
    weights.
    """
    _, shares = mean_shares([1.0] * len(models) if weights is None else weights)
    flat = np.stack([m.ravel().astype(np.float64) for m in models])
    factors = karcher_factors(flat @ flat.T, shares)
    merged = (np.asarray(shares) if factors is None else factors) @ flat
    return merged.reshape(models[0].shape).astype(models[0].dtype)


@dataclass(frozen=True, kw_only=True)
class Karcher(WeightedMethod):
    """Mean of directions on the sphere, times the mean norm.

    References: Karcher, Riemannian center of mass and mollifier smoothing; mergekit's `karcher`.
    """

    name: ClassVar[str] = "karcher"
    summary: ClassVar[str] = "mean of the models' directions on the sphere, times their mean norm, tensor by tensor"
    source: ClassVar[str] = (
        "Karcher, Riemannian center of mass (1977); on weights: mergekit's karcher (arXiv:2603.04972)"
    )
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (1, None)
    mean: ClassVar[bool] = True

    @property
    def scope(self) -> str:
        return "tensor"

    def rounds(self) -> int:
        return 1

    def measure(self, round: int, block: Block, state: Any) -> np.ndarray:
        """float64 `[2, N, N]`: inner products, and squared distances above the diagonal."""
        count = len(block.models)
        total = np.zeros((2, count, count))
        for i, j in itertools.combinations(range(count), 2):
            _, apart, total[0, i, i], total[0, j, j], product = moments(block.models[i], block.models[j])[:5]
            total[0, i, j] = total[0, j, i] = product
            total[1, i, j] = apart
        if count == 1:
            total[0] = moments(block.models[0], block.models[0])[2]
        return total

    def settle(self, round: int, total: np.ndarray, state: Any) -> NDArray[np.float64] | None:
        if not total[1].any():  # equal models stay what they are
            return None
        _, shares = mean_shares(self.weights_of(len(total[0])))
        return karcher_factors(total[0], shares)

    def as_sum(self, models: Sequence[DType], state: NDArray[np.float64] | None) -> Sum:
        weights = self.weights_of(len(models))
        if state is None:
            return mean_as_sum(weights, range(1, 1 + len(models)))
        return Sum(None, [(float(factor), i, None) for i, factor in enumerate(state, 1)])


def _length(factors: NDArray[np.float64], cosines: NDArray[np.float64]) -> float:
    """|sum_i factors_i u_i|."""
    return math.sqrt(max(0.0, float(factors @ cosines @ factors)))
