"""Fisher-weighted averaging: each parameter is averaged with weights that say how much each model's loss depends on it.

    theta = sum_i w_i F_i theta_i / sum_i w_i F_i      elementwise [Matena and Raffel 2021, Eq. 4]

F_i is the diagonal of model i's Fisher information (mean squared gradients of the log-likelihood), given as tensors of
the same names and shapes. Where all w_i F_i are 0 no model minds, and the result is the mean with weights w_i. The
shares are computed in float64, because squared gradients leave the range of float32 products, and the mean goes out
from the model with the largest w_i as in `linear`.

This does not estimate the Fisher information.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from holdfast.checkpoints.element_types import Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.methods.linear import mean_shares
from holdfast.checkpoints.methods.protocol import Block, WeightedMethod, computed
from holdfast.config.declare import Meta
from holdfast.errors import ModelError


def fisher(
    models: Sequence[np.ndarray],
    diagonals: Sequence[np.ndarray],
    weights: Sequence[float] | None = None,
    floor: float = 0.0,
) -> np.ndarray:
    """Elementwise mean of models, weighted by their Fisher information.

    Args:
        models: float32 or float64 arrays of one shape and dtype.
        diagonals: arrays of that shape, 0 or more each.
        weights: one a model, 0 or more, not all 0; None: 1 each.
        floor: smaller Fisher values count as this.

    References: Matena and Raffel, Merging Models with Fisher-Weighted Averaging, NeurIPS 2022 (arXiv:2111.09832), Eq.
    4.
    """
    anchor, shares = mean_shares([1.0] * len(models) if weights is None else weights)
    importance = [
        np.maximum(diagonal.astype(np.float64), floor) * share
        for diagonal, share in zip(diagonals, shares, strict=True)
    ]
    total = importance[0].copy()
    for values in importance[1:]:
        total += values
    unknown = total == 0
    total[unknown] = 1
    merged = models[anchor]
    for i, model in enumerate(models):
        if i != anchor and shares[i] != 0:
            share = np.where(unknown, shares[i], importance[i] / total).astype(model.dtype)
            merged = merged + share * (model - models[anchor])
    return merged


@dataclass(frozen=True, kw_only=True)
class Fisher(WeightedMethod):
    """Mean of models, each parameter weighted by its Fisher information.

    References: Matena and Raffel, Merging Models with Fisher-Weighted Averaging, Eq. 4.
    """

    name: ClassVar[str] = "fisher"
    summary: ClassVar[str] = "mean of the models, weighted by Fisher information"
    source: ClassVar[str] = "Merging Models with Fisher-Weighted Averaging (arXiv:2111.09832), Eq. 4"
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (1, None)
    extras: ClassVar[str | None] = "Fisher diagonal"
    mean: ClassVar[bool] = True

    floor: Annotated[float, Meta(ge=0)] = 0.0
    """Fisher values below this count as this."""

    def among(self, owners: Sequence[int], models: int) -> Fisher:
        """The same on those models and their diagonals."""
        weights = self.weights_of(models)
        return dataclasses.replace(self, weights=tuple(weights[i] for i in owners))

    def combine(self, block: Block, state: Any, out: Operand) -> Flags:
        """See `MergeMethod.combine`. A model that lacks the tensor takes no part.

        Raises:
            ModelError: a Fisher diagonal with negative values.
        """
        models, weights = len(block.models), self.weights_of(len(block.models))

        def merged(piece: slice, values: list[np.ndarray]) -> np.ndarray:
            diagonals = values[1 + models :]
            for i, diagonal in enumerate(diagonals):
                if (diagonal < 0).any():
                    place = block.start + piece.start + int((diagonal < 0).argmax())
                    raise ModelError(
                        f"{block.name}: expected Fisher values of 0 or more, got {diagonal.min():g} for model {i + 1} "
                        f"(first negative at element "
                        f"{place:,}). Give the mean of squared gradients."
                    )
            own = [d if block.has_own(i) else np.zeros_like(d) for i, d in enumerate(diagonals)]
            return fisher(values[1 : 1 + models], own, weights, self.floor)

        return computed(block, out, merged)
