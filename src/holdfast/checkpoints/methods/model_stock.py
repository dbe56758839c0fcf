"""Model Stock: how far to go from the base to the mean of the models, from the angle between what they changed.

With delta_i = theta_i - theta_0 of N models and cos the mean of cos(delta_i, delta_j) over all pairs i < j, tensor by
tensor:

    t = N cos / (1 + (N - 1) cos),   theta = t mean_i theta_i + (1 - t) theta_0      [Jang et al. 2024]

The paper takes fine-tunes that differ by their seed, whose changes are of one size and one angle apart: then this is
the point in the plane (N = 2) or hyperplane of base and models that lies nearest to the centre of all such fine-tunes.
Changes at right angles share nothing (t = 0, the base); equal ones share all (t = 1, the models).

Three departures from mergekit 0.1.5. Where the mean cosine is negative the formula leaves the stretch between base and
mean: it extrapolates away from the models and has a pole at cos = -1 / (N - 1). There t is 0 here. And cosines are
those of the changes whatever their size, where mergekit lowers those of changes whose norms multiply to less than 1e-6.
With `filter_wise` a filter is a row with all its further dimensions, where mergekit takes the last dimension alone. A
change of 0 has no angle; its cosines count as 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.dtypes import DType, Operand
from holdfast.checkpoints.kernels import Flags, moments
from holdfast.checkpoints.memory import zeros
from holdfast.checkpoints.methods.linear import mean_as_sum
from holdfast.checkpoints.methods.protocol import Block, MergeMethod, Sum, computed, pieces


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


def model_stock(base: np.ndarray, models: Sequence[np.ndarray], *, filter_wise: bool = False) -> np.ndarray:
    """Model Stock of one tensor.

    Args:
        base: float32 or float64 array.
        models: arrays of the base's shape and dtype, two or more.
        filter_wise: an angle for every row (index of the first dimension) of a tensor with two dimensions or more.

    References: Jang et al., Model Stock: All we need is just a few fine-tuned models, ECCV 2024 (arXiv:2403.19522).
    """
    rows = base.shape[0] if filter_wise and base.ndim > 1 else 1
    changes_NRC = np.stack([(m - base).reshape(rows, -1).astype(np.float64) for m in models])
    t_R = stock_ratio(np.einsum("irc,jrc->rij", changes_NRC, changes_NRC))
    t = t_R.astype(base.dtype).reshape(rows, *[1] * (base.ndim - 1)) if rows > 1 else base.dtype.type(t_R[0])
    return base + t * _mean_change(base, models)


@dataclass(frozen=True, kw_only=True)
class ModelStock(MergeMethod):
    """The base moved towards the mean of the models, as far as their changes agree.

    References: Jang et al., Model Stock: All we need is just a few fine-tuned models.
    """

    name: ClassVar[str] = "model_stock"
    summary: ClassVar[str] = "from the base towards the models' mean, as far as the angles between their changes allow"
    source: ClassVar[str] = "Model Stock (arXiv:2403.19522), for any number of models"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (2, None)

    filter_wise: bool = False
    """An angle for every row of a matrix (every filter of a convolution), not one for the whole tensor."""

    @property
    def scope(self) -> str:
        return "tensor"

    def rounds(self) -> int:
        return 1

    def measure(self, round: int, block: Block, state: Any) -> np.ndarray:
        """Squared distances between base and models: float64 `[rows, N + 1, N + 1]`, of which the part above the
        diagonal is filled."""
        assert block.base is not None
        points = [block.base, *block.models]
        pairs = list(itertools.combinations(range(len(points)), 2))
        rows = self._rows(block)
        total = zeros((rows, len(points), len(points)), np.float64)
        if rows == 1:
            for i, j in pairs:
                total[0, i, j] = moments(points[i], points[j])[1]
            return total
        columns = block.size // rows
        for piece, values in pieces(block):
            # NaN and infinities are named in the last pass
            first, starts = _row_starts(block.start + piece.start, piece.stop - piece.start, columns)
            for i, j in pairs:
                with np.errstate(over="ignore", invalid="ignore"):
                    square = np.square(np.subtract(values[j], values[i], dtype=np.float64))
                total[first : first + len(starts), i, j] += np.add.reduceat(square, starts)
        return total

    def settle(self, round: int, total: np.ndarray, state: Any) -> np.ndarray:
        """t for every row, `[rows]`: inner products of changes follow from distances."""
        to_base = total[:, 0, 1:]
        between = total[:, 1:, 1:] + np.swapaxes(total[:, 1:, 1:], 1, 2)
        return stock_ratio((to_base[:, :, None] + to_base[:, None, :] - between) / 2)

    def as_sum(self, models: Sequence[DType], state: np.ndarray) -> Sum | None:
        if len(state) > 1:
            return None
        t, count = float(state[0]), len(models)
        return mean_as_sum((1 - t, *[t / count] * count), range(count + 1))

    def combine(self, block: Block, state: np.ndarray, out: Operand) -> Flags:
        if len(state) == 1:
            return super().combine(block, state, out)
        columns = block.size // len(state)

        def merged(piece: slice, values: list[np.ndarray]) -> np.ndarray:
            base, *models = values
            start = block.start + piece.start
            row = np.arange(start, start + len(base)) // columns
            return base + state[row].astype(base.dtype) * _mean_change(base, models)

        return computed(block, out, merged)

    def _rows(self, block: Block) -> int:
        return block.shape[0] if self.filter_wise and len(block.shape) > 1 and block.size else 1


def _mean_change(base: np.ndarray, models: Sequence[np.ndarray]) -> np.ndarray:
    total = models[0] - base
    for model in models[1:]:
        total = total + (model - base)
    return total / base.dtype.type(len(models))


def _row_starts(start: int, count: int, columns: int) -> tuple[int, NDArray[np.int64]]:
    """The first row that elements [start, start + count) touch, and where each row begins among them."""
    first, last = start // columns, math.ceil((start + count) / columns)
    return first, np.maximum(np.arange(first, last) * columns - start, 0)
