"""NearSwap: where a model is near the base take the model's value, elsewhere move the base towards it by at most t.

    theta = theta_0 + w (theta_1 - theta_0),   w = min(1, t / |theta_1 - theta_0|)      elementwise [alchemonaut 2024]

So differences of t or less are taken over whole and larger ones are cut down to t: the base's strong features stay, and
what is weak takes on the model's. mergekit 0.1.5 divides by at least 1e-6, which matters for a t below that only.

Steps of t are smaller than what 16 bits resolve where |theta_0| is above 256 t (bfloat16) or 2048 t (float16): with the
default t of 1e-4 a bfloat16 result keeps the base there. Write float32 to keep all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from holdfast.checkpoints.dtypes import Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.methods.protocol import Block, MergeMethod, computed
from holdfast.config.declare import Meta


def nearswap(base: np.ndarray, model: np.ndarray, t: float) -> np.ndarray:
    """The base moved towards the model by at most t an element; float32 or float64 arrays of one shape and dtype.

    References: alchemonaut, QuartetAnemoi-70B (model card on the Hugging Face hub), 2024.
    """
    step = base.dtype.type(t)
    difference = model - base
    return np.where(np.abs(difference) <= step, model, base + np.clip(difference, -step, step))


@dataclass(frozen=True, kw_only=True)
class NearSwap(MergeMethod):
    """The base, with the model's values where the two are near.

    References: alchemonaut, QuartetAnemoi-70B.
    """

    name: ClassVar[str] = "nearswap"
    summary: ClassVar[str] = (
        "move the base towards one model by at most t an element; what is nearer becomes the model's"
    )
    source: ClassVar[str] = "alchemonaut, QuartetAnemoi-70B-t0.0001 (2024)"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (1, 1)

    t: Annotated[float, Meta(ge=0)] = 1e-4
    """How far each element may move: 0 is the base, more than the largest difference the model."""

    def combine(self, block: Block, state: Any, out: Operand) -> Flags:
        return computed(block, out, lambda _, values: nearswap(values[0], values[1], self.t))
