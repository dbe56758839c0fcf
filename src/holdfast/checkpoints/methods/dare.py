"""DARE: drop most of each model's changes at random and rescale the rest.

Each element of delta_i = theta_i - theta_0 is dropped with probability p, independently, and what
stays is multiplied by r:

    dare        theta_0 + scale * sum_i w_i r_i m_i delta_i,   m_i ~ Bernoulli(1 - p)      [Yu et al. 2023, Section 3.2]
    dare_ties   theta_0 + scale * elect(r_i m_i delta_i)       (`ties.elect`)

r = 1 / (1 - p) keeps the expected value (semantics "original"); mergekit 0.1.5 takes r_i =
|delta_i|_1 / |m_i delta_i|_1, tensor by tensor. dare_ties does not trim by magnitude as well, which
is mergekit's reading; the authors let TIES trim what DARE left.

The mask of element j of a tensor is a function of nothing but (seed, tensor, model, j), and the L1
norms are exact sums of float32 magnitudes, so block sizes, threads and the order of tensors change
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np

from holdfast.checkpoints.counter import stream_key, uniform
from holdfast.checkpoints.element_types import Array
from holdfast.checkpoints.methods.parameters import (
    Each,
    Semantics,
    WeightedMethod,
    each_problems,
    of_each,
)
from holdfast.checkpoints.methods.protocol import Block, Statistics, Values, pieces
from holdfast.checkpoints.methods.ties import elect
from holdfast.config.declare import Meta
from holdfast.errors import Problem

SMALLEST_NORM = Fraction(1, 10**7)
"""mergekit leaves deltas with a smaller L1 norm as they are."""


def keep_mask(seed: int, tensor: str, model: int, start: int, count: int, p: float) -> Array:
    """Which elements [start, start + count) of a tensor's changes stay: bool `[count]`, each True
    with probability 1 - p.

    Args:
        seed: of the merge.
        tensor: its name.
        model: index of the model, from 0.
        start, count: elements of the flattened (row-major) tensor.
        p: share that is dropped, in [0, 1).
    """
    return uniform(stream_key(seed, tensor, "dare", str(model)), start, count) >= p


def magnitude_sums(values: Array, mask: Array) -> Array:
    """Sums of |values| where the mask is False and where it is True, in an exact form that adds up
    over blocks.

    Args:
        values: float32; float64 is rounded to it.
        mask: bool, of their shape.

    Returns:
        int64 `[2, 256]`: sums of significands by exponent.
    """
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    exponents = bits >> np.uint32(23) & np.uint32(0xFF)
    significands = (bits & np.uint32(0x7FFFFF)) + (exponents > 0) * np.uint32(1 << 23)
    return (
        np.bincount(exponents + mask * np.uint32(256), weights=significands, minlength=512)
        .astype(np.int64)
        .reshape(2, 256)
    )


def total_magnitude(sums: Array) -> Fraction:
    """The number that a row of `magnitude_sums`, summed over blocks, stands for. Infinities and NaN
    are left out."""
    total = 0
    for exponent, significands in enumerate(sums[:255]):
        total += int(significands) << max(exponent - 1, 0)
    return Fraction(total, 1 << 149)


def l1_factor(before: Fraction, after: Fraction) -> float:
    """What restores the L1 norm after a mask, as mergekit does it: before / after, and 1 where
    either is below 1e-7."""
    return 1.0 if before < SMALLEST_NORM or after < SMALLEST_NORM else float(before / after)


@dataclass(frozen=True, kw_only=True)
class Dare(WeightedMethod):
    """Task arithmetic on changes that were dropped at random and rescaled.

    References: Yu et al., Language Models are Super Mario: Absorbing Abilities from Homologous
    Models as a Free Lunch, Section 3.2.
    """

    name: ClassVar[str] = "dare"
    summary: ClassVar[str] = "drop a random share p of the changes, rescale the rest, add up"
    source: ClassVar[str] = "Language Models are Super Mario (arXiv:2311.03099), Section 3.2"
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[int, int | None]] = (1, None)

    p: Annotated[float | None, Meta(ge=0, lt=1)] = None
    """Share of each model's changes to drop. Default: 0.9 if density is not given."""
    density: Annotated[Each | None, Meta(gt=0, le=1, one_word=True)] = None
    """Share to keep (1 - p), instead of p. One number, or one per model."""
    rescale: bool = True
    """Multiply the kept changes so that their expected size stays the same."""
    scale: float = 1.0
    """Factor on the merged change (lambda)."""
    semantics: Semantics = "original"
    """original: rescale by 1 / (1 - p); mergekit: rescale to the L1 norm of each tensor's
    change."""
    seed: int = 0
    """Seed of the masks. With the same seed, tensors of the same name get the same mask."""

    def dropped(self, models: int) -> tuple[float, ...]:
        """The share that is dropped of each model's changes: p, or 1 - density."""
        if self.density is not None:
            return tuple(1.0 - density for density in of_each(self.density, models))
        return (0.9 if self.p is None else self.p,) * models

    def problems(self, models: int | None = None) -> list[Problem]:
        problems = super().problems(models)
        if self.p is not None and self.density is not None:
            density = ", ".join(f"{share:g}" for share in of_each(self.density, 1))
            text = (
                f"{self.name}: expected one of p and density, got p={self.p:g} and "
                f"density={density}"
            )
            problems.append(Problem((), text))
        return [*problems, *each_problems("density", self.density, models)]

    def passes(self) -> int:
        return 1 if self.rescale and self.semantics == "mergekit" and any(self.dropped(1)) else 0

    def statistics(self) -> Statistics:
        """What each model's kept changes are multiplied by, from the exact L1 norms of what is
        dropped and kept."""
        sums = yield self._magnitude_sums
        factors = []
        for dropped, remaining in sums:
            factors.append(
                l1_factor(total_magnitude(dropped + remaining), total_magnitude(remaining))
            )
        return factors

    def _magnitude_sums(self, block: Block) -> Array:
        """int64 `[models, 2, 256]`, see `magnitude_sums`."""
        sums = np.zeros((len(block.models), 2, 256), dtype=np.int64)
        with np.errstate(over="ignore", invalid="ignore"):
            for values in pieces(block):
                for number, mask in enumerate(self._masks(values)):
                    sums[number] += magnitude_sums(values.models[number] - values.base, mask)
        return sums

    def merge(self, values: Values, statistics: list[float] | None) -> Array:
        models = len(values.models)
        factors, weights = self._factors(models, statistics), self.weights_of(models)
        total = values.base
        for model, mask, factor, weight in zip(
            values.models, self._masks(values), factors, weights, strict=True
        ):
            delta = model - values.base
            delta *= self.scale * weight * factor
            delta *= mask
            total = total + delta
        return total

    def _masks(self, values: Values) -> list[Array]:
        tensor, start, count = values.block.name, values.start, len(values.base)
        shares = self.dropped(len(values.models))
        return [
            keep_mask(self.seed, tensor, model, start, count, p) for model, p in enumerate(shares)
        ]

    def _factors(self, models: int, statistics: list[float] | None) -> list[float]:
        if statistics is not None:
            return statistics
        return [1.0 / (1.0 - p) if self.rescale else 1.0 for p in self.dropped(models)]


@dataclass(frozen=True, kw_only=True)
class DareTies(Dare):
    """TIES elections over changes that were dropped at random and rescaled.

    References: Yu et al., Language Models are Super Mario, Section 3.3; Yadav et al., TIES-Merging,
    Algorithm 1.
    """

    name: ClassVar[str] = "dare_ties"
    summary: ClassVar[str] = "drop a random share p, rescale, elect signs, average"
    source: ClassVar[str] = (
        "Language Models are Super Mario (arXiv:2311.03099), Section 3.3; TIES-Merging "
        "(arXiv:2306.01708), Algorithm 1"
    )

    semantics: Semantics = "original"
    """original: rescale by 1 / (1 - p), elect signs as in TIES; mergekit: rescale to the
    L1 norm, elect signs by weight."""
    normalize: bool | None = None
    """Average the changes that agree in sign; false sums them. Default: true for original, false
    for mergekit."""

    def merge(self, values: Values, statistics: list[float] | None) -> Array:
        factors = self._factors(len(values.models), statistics)
        normalize = self.semantics == "original" if self.normalize is None else self.normalize
        deltas = []
        for model, mask, factor in zip(values.models, self._masks(values), factors, strict=True):
            deltas.append((model - values.base) * factor * mask)
        change = elect(deltas, self.weights, semantics=self.semantics, normalize=normalize)
        return values.base + change * self.scale
