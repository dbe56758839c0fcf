"""Spherical interpolation between two models, tensor by tensor.

With omega the angle between the flattened tensors a and b:

    theta = sin((1 - t) omega) / sin(omega) a + sin(t omega) / sin(omega) b      [Shoemake 1985]

The operands are not normalised, as mergekit does it, so norms are interpolated too. Where a and b
are nearly parallel (|cos omega| > 0.9995), and where one of them is zero and has no angle, this is
the plain `(1 - t) a + t b`. t = 0 and t = 1 are copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.checkpoints.element_types import DType
from holdfast.checkpoints.kernels import moments
from holdfast.checkpoints.methods.linear import mean_as_sum
from holdfast.checkpoints.methods.protocol import MergeMethod, Statistics, Sum
from holdfast.config.declare import Meta

PARALLEL = 0.9995
"""|cos| above which the interpolation is linear: sin(omega) loses its digits there."""


def slerp_weights(t: float, dot: float, norm_a: float, norm_b: float) -> tuple[float, float] | None:
    """The factors on a and b, or None where the interpolation is linear.

    Args:
        t: in [0, 1].
        dot, norm_a, norm_b: inner product and L2 norms of the flattened tensors.
    """
    if t in (0.0, 1.0) or not (norm_a > 0 and norm_b > 0):
        return None
    cosine = dot / norm_a / norm_b
    if not abs(cosine) <= PARALLEL:
        return None
    omega = math.acos(cosine)
    return math.sin((1 - t) * omega) / math.sin(omega), math.sin(t * omega) / math.sin(omega)


@dataclass(frozen=True, kw_only=True)
class Slerp(MergeMethod):
    """Spherical interpolation between two models.

    References: Shoemake 1985; mergekit's `slerp` for its use on weights.
    """

    name: ClassVar[str] = "slerp"
    summary: ClassVar[str] = "spherical interpolation between two models, tensor by tensor"
    source: ClassVar[str] = (
        "Shoemake, Animating rotation with quaternion curves (1985); on weights: mergekit's slerp"
    )
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[int, int | None]] = (2, 2)

    t: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Position between the two models: 0 is the first, 1 the second."""

    def passes(self) -> int:
        return 1

    def weights_of(self, models: int) -> tuple[float, ...]:
        return 1 - self.t, self.t

    def statistics(self) -> Statistics:
        sums = yield lambda block: moments(block.models[0], block.models[1])
        norm_a, norm_b = math.sqrt(sums[2]), math.sqrt(sums[3])
        return slerp_weights(self.t, float(sums[4]), norm_a, norm_b)

    def as_sum(self, models: Sequence[DType], statistics: tuple[float, float] | None) -> Sum:
        if statistics is None:
            return mean_as_sum((1 - self.t, self.t), (1, 2))
        weight_a, weight_b = statistics
        return Sum(None, [(weight_a, 1, None), (weight_b, 2, None)])
