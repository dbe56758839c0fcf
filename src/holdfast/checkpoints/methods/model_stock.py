"""Model Stock: how far to go from the base to the mean of the models, from the angle between what
they changed.

With delta_i = theta_i - theta_0 of N models and cos the mean of cos(delta_i, delta_j) over all
pairs i < j, tensor by tensor:

    t = N cos / (1 + (N - 1) cos),   theta = t mean_i theta_i + (1 - t) theta_0      [Jang et al. 2024]

The paper takes fine-tunes that differ by their seed, whose changes are of one size and one angle
apart: then this is the point in the plane (N = 2) or hyperplane of base and models that lies
nearest to the centre of all such fine-tunes. Changes at right angles share nothing (t = 0, the
base); equal ones share all (t = 1, the models).

Two departures from mergekit 0.1.5. Where the mean cosine is negative the formula leaves the stretch
between base and mean: it extrapolates away from the models and has a pole at cos = -1 / (N - 1).
There t is 0 here. And cosines are those of the changes whatever their size, where mergekit lowers
those of changes whose norms multiply to less than 1e-6. A change of 0 has no angle; its cosines
count as 0. Angles of single filters are not here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.element_types import DType
from holdfast.checkpoints.kernels import moments
from holdfast.checkpoints.methods.linear import mean_as_sum
from holdfast.checkpoints.methods.protocol import Block, MergeMethod, Statistics, Sum


def stock_ratio(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """t in [0, 1]: how far from the base to the mean of the models.

    Args:
        products: `[..., N, N]` inner products of the models' changes, N of 2 or more.

    Returns:
        `[...]`. 0 where products are not finite.
    """
    count = products.shape[-1]
    norms = np.sqrt(np.diagonal(products, axis1=-2, axis2=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = products / norms[..., :, None] / norms[..., None, :]
    cosines = np.where((norms[..., :, None] > 0) & (norms[..., None, :] > 0), cosines, 0.0)
    rows, columns = np.triu_indices(count, 1)
    mean = np.clip(cosines[..., rows, columns], -1, 1).mean(-1)
    mean = np.where(mean > 0, mean, 0.0)  # NaN, too
    return np.asarray(count * mean / (1 + (count - 1) * mean))


@dataclass(frozen=True, kw_only=True)
class ModelStock(MergeMethod):
    """The base moved towards the mean of the models, as far as their changes agree.

    References: Jang et al., Model Stock: All we need is just a few fine-tuned models.
    """

    name: ClassVar[str] = "model_stock"
    summary: ClassVar[str] = "interpolate base and the models' mean, weighted by their angles"
    source: ClassVar[str] = "Model Stock (arXiv:2403.19522), for any number of models"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (2, None)

    def passes(self) -> int:
        return 1

    def statistics(self) -> Statistics:
        """t; inner products of changes follow from squared distances between base and models."""
        squares = yield _squared_distances
        to_base = squares[0, 1:]
        between = squares[1:, 1:] + squares[1:, 1:].T
        return float(stock_ratio((to_base[:, None] + to_base[None, :] - between) / 2))

    def as_sum(self, models: Sequence[DType], statistics: float) -> Sum:
        count = len(models)
        return mean_as_sum((1 - statistics, *[statistics / count] * count), range(count + 1))


def _squared_distances(block: Block) -> NDArray[np.float64]:
    """`[N + 1, N + 1]` between base and models, of which the part above the diagonal is filled."""
    assert block.base is not None
    points = [block.base, *block.models]
    squares = np.zeros((len(points), len(points)))
    for i, j in itertools.combinations(range(len(points)), 2):
        squares[i, j] = moments(points[i], points[j])[1]
    return squares
