"""Fisher-weighted averaging: each parameter is averaged with weights that say how much each model's
loss depends on it.

    theta = sum_i w_i F_i theta_i / sum_i w_i F_i      elementwise [Matena and Raffel 2021, Eq. 4]

F_i is the diagonal of model i's Fisher information (mean squared gradients of the log-likelihood),
given as tensors of the same names and shapes. Where all w_i F_i are 0 no model minds, and the
result is the mean with weights w_i. The shares are computed in float64, because squared gradients
leave the range of float32 products, and the mean goes out from the model with the largest w_i as in
`linear`.

This does not estimate the Fisher information.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from holdfast.checkpoints.element_types import Array
from holdfast.checkpoints.methods.linear import mean_shares
from holdfast.checkpoints.methods.parameters import WeightedMethod
from holdfast.checkpoints.methods.protocol import Values
from holdfast.config.declare import Meta
from holdfast.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Fisher(WeightedMethod):
    """Mean of models, each parameter weighted by its Fisher information.

    References: Matena and Raffel, Merging Models with Fisher-Weighted Averaging, Eq. 4.
    """

    name: ClassVar[str] = "fisher"
    summary: ClassVar[str] = "mean of the models, weighted by Fisher information"
    source: ClassVar[str] = (
        "Merging Models with Fisher-Weighted Averaging (arXiv:2111.09832), Eq. 4"
    )
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (1, None)
    extras: ClassVar[str | None] = "Fisher diagonal"
    mean: ClassVar[bool] = True

    floor: Annotated[float, Meta(ge=0)] = 0.0
    """Smallest Fisher value. Smaller values are raised to it."""

    def among(self, owners: Sequence[int], models: int) -> Fisher:
        """The same on those models and their diagonals."""
        weights = self.weights_of(models)
        return dataclasses.replace(self, weights=tuple(weights[i] for i in owners))

    def merge(self, values: Values, statistics: Any) -> Array:
        """See `Recipe.merge`. A model that lacks the tensor takes no part.

        Raises:
            ModelError: a Fisher diagonal with negative values.
        """
        _check_diagonals(values)
        anchor, shares = mean_shares(self.weights_of(len(values.models)))
        importance = []
        for number, diagonal in enumerate(values.extras):
            of_model = diagonal if values.block.has_own(number) else np.zeros_like(diagonal)
            importance.append(np.maximum(of_model.astype(np.float64), self.floor) * shares[number])
        total = np.zeros_like(importance[0])
        for shared in importance:
            total += shared
        unknown = total == 0
        total[unknown] = 1
        merged = values.models[anchor]
        for number, model in enumerate(values.models):
            if number != anchor and shares[number] != 0:
                share = np.where(unknown, shares[number], importance[number] / total).astype(
                    model.dtype
                )
                merged = merged + share * (model - values.models[anchor])
        return merged


def _check_diagonals(values: Values) -> None:
    for number, diagonal in enumerate(values.extras, 1):
        negative = diagonal < 0
        if negative.any():
            raise ModelError(
                f"{values.block.name}: expected Fisher values of 0 or more, got {diagonal.min():g} "
                f"for model {number} (first negative at element "
                f"{values.start + int(negative.argmax()):,}). Give the mean of squared gradients."
            )
