"""SCE: select the elements on which the models differ most, calculate each model's weight from its energy there, erase
what goes against the common sign; tensor by tensor.

With delta_i = theta_i - theta_0, and S the share `density` of the elements, of those that differ between models at
all, whose variance over the models is largest:

    s_i  = delta_i on S, 0 elsewhere
    w_i  = sum of s_i^2 over the tensor / sum over all models
    A    = {i : sign(s_i) = sign(sum_j s_j)}                          elementwise
    theta = theta_0 + sum over A of w_i s_i / sum over A of w_i       [Wan et al. 2024, SCE]

Semantics "mergekit" (0.1.5) takes equal weights where the mean squares of all changes add up to less than 1e-6, as of
two models whose weights moved by less than some 7e-4, divides by at least 1e-6, and lets a sum of 0 elect the positive
sign. The threshold is exact, and elements that share it all stay; mergekit's sort picks among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.dtypes import Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.methods import order_statistics
from holdfast.checkpoints.methods.order_statistics import Found, Search
from holdfast.checkpoints.methods.protocol import Block, MergeMethod, Semantics, computed, pieces
from holdfast.config.declare import Meta

SMALLEST = 1e-6
"""mergekit's least sum of mean squares, and least divisor."""


def spread(deltas: Sequence[np.ndarray]) -> NDArray[np.float32]:
    """The standard deviation of each element over the models, float32. Its order is the variance's, whose squares would
    leave float32's range; exactly 0 where all models agree."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(deltas) == 2:
            apart = deltas[1] - deltas[0]
            apart *= apart.dtype.type(0.5)
            return np.abs(apart, out=apart).astype(np.float32, copy=False)
        # from the first model, so that models that agree lie at exactly 0
        offsets = [np.subtract(delta, deltas[0], dtype=np.float64) for delta in deltas[1:]]
        mean = sum(offsets[1:], start=offsets[0]) / len(deltas)
        squares = np.square(mean)
        for offset in offsets:
            offset -= mean
            squares += np.square(offset, out=offset)
        squares /= len(deltas)
        return np.sqrt(squares, out=squares).astype(np.float32)


def sce_weights(squares: Sequence[float], size: int, *, semantics: str = "original") -> list[float]:
    """Each model's weight.

    Args:
        squares: sums of squares of the selected changes, one a model.
        size: elements of the whole tensor.
        semantics: "original" or "mergekit".
    """
    total = float(sum(squares))
    none = total / max(1, size) < SMALLEST if semantics == "mergekit" else not total > 0
    return [1 / len(squares)] * len(squares) if none else [float(s) / total for s in squares]


def sce(
    base: np.ndarray,
    models: Sequence[np.ndarray],
    least: float,
    weights: Sequence[float],
    *,
    semantics: str = "original",
) -> np.ndarray:
    """Merges arrays with SCE, given threshold and weights.

    Args:
        base: float32 or float64 array.
        models: arrays of the base's shape and dtype.
        least: elements with a smaller `spread` are left out.
        weights: as of `sce_weights`.
        semantics: "original" or "mergekit".

    References: Wan et al., FuseChat: Knowledge Fusion of Chat Models, EMNLP 2025 (arXiv:2408.07990).
    """
    dtype = base.dtype.type
    deltas = [model - base for model in models]
    total = sum(deltas[1:], start=deltas[0])
    up, down = total > 0 if semantics == "original" else total >= 0, total < 0
    if least > 0:
        chosen = spread(deltas) >= np.float32(least)
        up &= chosen
        down &= chosen
    merged, share = np.zeros_like(base), np.zeros_like(base)
    for delta, weight in zip(deltas, weights, strict=True):
        agrees = ((delta > 0) & up) | ((delta < 0) & down)
        delta *= dtype(weight)
        merged += np.multiply(delta, agrees, out=delta)
        share += agrees * dtype(weight)
    if semantics == "mergekit":
        share = np.maximum(share, dtype(SMALLEST))
    return base + np.divide(merged, share, out=merged, where=share > 0)


class _State(NamedTuple):
    least: float
    """Threshold of `spread`; infinite where nothing is selected."""
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sce(MergeMethod):
    """Select, calculate, erase.

    References: Wan et al., FuseChat: Knowledge Fusion of Chat Models.
    """

    name: ClassVar[str] = "sce"
    summary: ClassVar[str] = (
        "keep changes where the models differ most, weigh models by their energy there, elect signs"
    )
    source: ClassVar[str] = "FuseChat (arXiv:2408.07990), its merge SCE"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (2, None)

    density: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of each tensor's elements that is merged: those that vary most between the models."""
    semantics: Semantics = "original"
    """original: weights by energy; mergekit: equal weights where the changes are small."""

    @property
    def scope(self) -> str:
        return "tensor"

    def rounds(self) -> int:
        return 1 if self.density == 1 else 3

    def measure(self, round: int, block: Block, state: _State | Search | Found | None) -> np.ndarray:
        if round < self.rounds() - 1:
            assert not isinstance(state, _State)
            with np.errstate(over="ignore", invalid="ignore"):
                found = [spread([v - values[0] for v in values[1:]]) for _, values in pieces(block)]
            spreads = np.concatenate([np.zeros(0, np.float32), *found])
            whole = block.count == block.size
            return order_statistics.measure_values(spreads[spreads > 0], state, self._ranks, whole=whole)
        least = state.magnitudes[0] if isinstance(state, Found) else [0.0]
        squares = np.zeros(len(block.models) + 1)
        squares[-1] = block.count
        bound = least[0] if least else np.inf
        for _, values in pieces(block):
            with np.errstate(over="ignore", invalid="ignore"):
                deltas = [v - values[0] for v in values[1:]]
                chosen = spread(deltas) >= np.float32(bound) if bound > 0 else None
                for i, delta in enumerate(deltas):
                    wide = (delta if chosen is None else delta * chosen).astype(np.float64)
                    squares[i] += wide @ wide
        return squares

    def settle(self, round: int, total: np.ndarray, state: Search | Found | None) -> _State | Search | Found:
        if round < self.rounds() - 1:
            return order_statistics.settle(total, state, self._ranks)
        magnitudes = state.magnitudes[0] if isinstance(state, Found) else [0.0]
        weights = sce_weights(total[:-1].tolist(), int(total[-1]), semantics=self.semantics)
        return _State(magnitudes[0] if magnitudes else float("inf"), tuple(weights))

    def combine(self, block: Block, state: _State, out: Operand) -> Flags:
        return computed(
            block,
            out,
            lambda _, values: sce(values[0], values[1:], state.least, state.weights, semantics=self.semantics),
        )

    def _ranks(self, model: int, n: int) -> list[int]:
        kept = int(n * self.density)
        return [n - kept] if kept else []
