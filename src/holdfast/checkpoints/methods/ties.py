"""TIES: trim each model's changes to the largest, elect a sign for each parameter, average those
that agree.

With delta_i = theta_i - theta_0, and trim_i the share `density` of delta_i that is largest in
magnitude (all else 0):

    gamma = sign(sum_i trim_i),   A = {i : sign(trim_i) = gamma},   theta = theta_0 + scale * mean over A of trim_i

[Yadav et al. 2023, Algorithm 1 and Section 3]

| | original | mergekit (0.1.5) |
|---|---|---|
| trims over | all parameters of a model together | each tensor by itself |
| election | unweighted, unless weights are given | weighted |
| election that cancels exactly | no change (sign 0 agrees with nobody) | positive |
| divides by | the number that agree | the sum of the weights that agree, 1 where that is 0 |
| `normalize: false` | sum instead of mean (the authors' "dis-sum") | no division |

The threshold is the exact k-th largest magnitude, k = max(1, floor(density * n)), and everything at
or above it stays. So more than k stay where magnitudes are equal, as they often are in bfloat16;
mergekit's sort picks k among equals in no stated order. Two departures from the authors' code: its
`kthvalue` keeps one element more, and where an election cancels it takes the sign that most
parameters of the model have. Both follow the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from holdfast.checkpoints.element_types import Array, Operand
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.kernels import ties as ties_kernel
from holdfast.checkpoints.methods import order_statistics
from holdfast.checkpoints.methods.parameters import (
    Each,
    Semantics,
    WeightedMethod,
    each_problems,
    of_each,
)
from holdfast.checkpoints.methods.protocol import Block, Statistics
from holdfast.config.declare import Meta
from holdfast.errors import Problem


def kept(density: float, n: int) -> int:
    """k: how many of n magnitudes a trim keeps, at least 1 where there is any."""
    return min(n, max(1, int(density * n)))


def elect(
    deltas: Sequence[Array],
    weights: Sequence[float] | None = None,
    *,
    semantics: str = "original",
    normalize: bool = True,
) -> Array:
    """Elects a sign for each parameter and averages the changes that agree with it.

    Args:
        deltas: float32 or float64 arrays of one shape and dtype, one a model, trimmed: 0 where a
            model does not vote.
        weights: one a model; None: 1 each.
        semantics: "original" divides by the number that agree, "mergekit" by the sum of their
            weights and lets a cancelled election be positive.
        normalize: divide at all.

    Returns:
        The change of the base, in the dtype of the deltas.
    """
    dtype = deltas[0].dtype.type
    weights = [1.0] * len(deltas) if weights is None else weights
    balance, up, down, shares_up, shares_down = (np.zeros_like(deltas[0]) for _ in range(5))
    for delta, weight in zip(deltas, weights, strict=True):
        weighted = delta * dtype(weight)
        balance += weighted
        up += np.maximum(weighted, 0)
        down += np.minimum(weighted, 0)
        share = dtype(1 if semantics == "original" else weight)
        shares_up += (weighted > 0) * share
        shares_down += (weighted < 0) * share
    rises, falls = balance > 0 if semantics == "original" else balance >= 0, balance < 0
    merged = up * rises + down * falls
    if normalize:
        divisor = shares_up * rises + shares_down * falls
        divisor += divisor == 0
        merged /= divisor
    return merged


@dataclass(frozen=True, kw_only=True)
class Ties(WeightedMethod):
    """Trim, elect a sign, average what agrees.

    References: Yadav et al., TIES-Merging: Resolving Interference When Merging Models, Algorithm 1.
    """

    name: ClassVar[str] = "ties"
    summary: ClassVar[str] = "keep the largest changes, elect signs, average changes that agree"
    source: ClassVar[str] = "TIES-Merging (arXiv:2306.01708), Algorithm 1"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (1, None)

    density: Annotated[Each, Meta(gt=0, le=1, one_word=True)] = 0.2
    """Share of each model's changes to keep, largest first. One number, or one per model."""
    scale: float = 1.0
    """Factor on the merged change (lambda)."""
    semantics: Semantics = "original"
    """original: trim over the whole model, divide by the count; mergekit: trim per tensor, divide
    by the weights."""
    normalize: bool = True
    """Average the changes that agree in sign; false sums them."""

    @property
    def per_tensor(self) -> bool:  # type: ignore[override]
        return self.semantics == "mergekit"

    def passes(self) -> int:
        return 0 if set(of_each(self.density, 1)) == {1} else 2

    def problems(self, models: int | None = None) -> list[Problem]:
        return [*super().problems(models), *each_problems("density", self.density, models)]

    def statistics(self) -> Statistics:
        """The smallest change of each model that is kept."""
        magnitudes = yield from order_statistics.search(self._rank, by_tensor=self.per_tensor)
        return [magnitude or 0.0 for magnitude in magnitudes]

    def combine(self, block: Block, statistics: list[float] | None, out: Operand) -> Flags:
        assert block.base is not None
        return ties_kernel(
            block.base,
            block.models,
            statistics or [0.0] * len(block.models),
            self.weights,
            self.scale,
            original=self.semantics == "original",
            normalize=self.normalize,
            out=out,
        )

    def _rank(self, model: int, n: int) -> int | None:
        density = self.density[model] if isinstance(self.density, tuple) else self.density
        return n - kept(density, n) if n else None
