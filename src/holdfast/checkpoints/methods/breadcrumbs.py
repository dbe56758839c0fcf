"""Model breadcrumbs: leave out the largest and the smallest changes of each tensor, add up the rest.

    theta = theta_0 + scale * sum_i w_i m_i delta_i,   delta_i = theta_i - theta_0
                                                       [Davari
                                                       and
                                                       Belilovsky
                                                       2023,
                                                       Section 3]

m_i keeps the share `density` of the elements of delta_i that comes right below the share `gamma` of largest magnitude;
the rest, the smallest, goes. In the paper's terms gamma is 1 - gamma and density is gamma - beta. Masks are made tensor
by tensor, as in the paper and in mergekit.

The two thresholds are the exact magnitudes at those ranks, and what equals one of them stays; where magnitudes are
equal, as they often are in bfloat16, more than the share can stay. Nothing stays of a tensor with fewer than 1 /
density elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from holdfast.checkpoints.dtypes import Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.methods import order_statistics
from holdfast.checkpoints.methods.order_statistics import Found, Search
from holdfast.checkpoints.methods.protocol import (
    Block,
    Each,
    WeightedMethod,
    computed,
    each_problems,
    of_each,
)
from holdfast.config.declare import Meta

EVERYTHING = (0.0, float("inf"))
NOTHING = (float("inf"), 0.0)
"""Thresholds that no magnitude lies between."""


def kept_ranks(density: float, gamma: float, n: int) -> list[int]:
    """The ranks (from 0, the smallest) of the smallest and the largest magnitude that stay of n; empty where none
    does. At density 1 all stay, whatever gamma says, as in mergekit."""
    stay, outliers = int(density * n), int(gamma * n) if density < 1 else 0
    lowest = max(0, n - stay - outliers)
    return [lowest, lowest + stay - 1] if stay else []


def thresholds(delta: np.ndarray, density: float, gamma: float) -> tuple[float, float]:
    """The smallest and the largest |delta| (in float32) that stay."""
    ordered = np.sort(np.abs(delta.ravel().astype(np.float32)))
    ranks = kept_ranks(density, gamma, ordered.size)
    return (float(ordered[ranks[0]]), float(ordered[ranks[1]])) if ranks else NOTHING


def breadcrumbs(
    base: np.ndarray,
    models: Sequence[np.ndarray],
    bounds: Sequence[tuple[float, float]],
    weights: Sequence[float] | None = None,
    scale: float = 1.0,
) -> np.ndarray:
    """`base + scale * sum_i weights_i * m_i * (models_i - base)`, m_i = 1 where the change's magnitude is within
    `bounds[i]`.

    Args:
        base: float32 or float64 array.
        models: arrays of the base's shape and dtype.
        bounds: smallest and largest magnitude (of the change as float32) that stay, one pair a model.
        weights: one a model; None: 1 each.
        scale: the paper's alpha.

    References: Davari and Belilovsky, Model Breadcrumbs, ECCV 2024 (arXiv:2312.06795), Section 3.
    """
    total = base
    for model, (lowest, highest), weight in zip(
        models, bounds, [1.0] * len(models) if weights is None else weights, strict=True
    ):
        delta = model - base
        magnitude = np.abs(delta.astype(np.float32, copy=False))
        mask = (magnitude >= np.float32(lowest)) & (magnitude <= np.float32(highest))
        delta *= base.dtype.type(scale * weight)
        delta *= mask
        total = total + delta
    return total


@dataclass(frozen=True, kw_only=True)
class Breadcrumbs(WeightedMethod):
    """Task arithmetic without the largest and smallest changes of each tensor.

    References: Davari and Belilovsky, Model Breadcrumbs: Scaling Multi-Task Model Merging with Sparse Masks, Section 3.
    """

    name: ClassVar[str] = "breadcrumbs"
    summary: ClassVar[str] = "leave out the largest and the smallest changes of each tensor, add up the rest"
    source: ClassVar[str] = "Model Breadcrumbs (arXiv:2312.06795), Section 3"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (1, None)

    density: Annotated[Each, Meta(gt=0, le=1, one_word=True)] = 0.9
    """Share of each tensor's changes that stays. One number, or one a model."""
    gamma: Annotated[Each, Meta(ge=0, lt=1, one_word=True)] = 0.01
    """Share of the largest changes that is left out; density + gamma is at most 1. One number, or one a model."""
    scale: float = 1.0
    """Factor on the sum of the changes (alpha in the paper)."""

    @property
    def scope(self) -> str:
        return "tensor" if self.rounds() else "none"

    def problems(self, models: int | None = None) -> list[str]:
        found = super().problems(models)
        found += each_problems("density", self.density, models) + each_problems("gamma", self.gamma, models)
        for density, gamma in self._shares() if not found else ():
            if density < 1 and gamma < 1 and density + gamma > 1 + 1e-9:
                given = f"{density:g} + {gamma:g}"
                found.append(f"{self.name}: expected density + gamma of at most 1, got {given}; lower one of them")
        return list(dict.fromkeys(found))

    def _shares(self) -> list[tuple[float, float]]:
        """Density and gamma of each model, or of all."""
        count = max(len(value) if isinstance(value, tuple) else 1 for value in (self.density, self.gamma))
        return list(zip(of_each(self.density, count), of_each(self.gamma, count), strict=False))

    def rounds(self) -> int:
        return 0 if all(density == 1 for density, _ in self._shares()) else 2

    def measure(self, round: int, block: Block, state: Search | Found | None) -> np.ndarray:
        return order_statistics.measure(block, state, self._ranks, by_tensor=True)

    def settle(self, round: int, total: np.ndarray, state: Search | Found | None) -> Search | Found:
        return order_statistics.settle(total, state, self._ranks)

    def combine(self, block: Block, state: Found | None, out: Operand) -> Flags:
        bounds = (
            [EVERYTHING] * len(block.models)
            if state is None
            else [(m[0], m[1]) if m else NOTHING for m in state.magnitudes]
        )
        return computed(
            block, out, lambda _, values: breadcrumbs(values[0], values[1:], bounds, self.weights, self.scale)
        )

    def _ranks(self, model: int, n: int) -> list[int]:
        shares = self._shares()
        return kept_ranks(*shares[model if len(shares) > 1 else 0], n)
