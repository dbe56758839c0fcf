"""Exact order statistics of |delta| over a stream, without sorting: two histograms of the
magnitude's bits.

Non-negative float32 numbers are ordered as their bits are ordered as integers. Counting the upper
16 of the 31 bits finds the bin of the r-th smallest magnitude; counting the lower 15 bits inside
that bin finds the number itself. Counts of blocks add up, so a tensor, or a whole model, is
searched in two passes whatever its size. float64 differences are rounded to float32 first.

A tensor that is a single block is searched by partition in the first pass, which gives the same
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.checkpoints.element_types import Array
from holdfast.checkpoints.kernels import delta_histogram
from holdfast.checkpoints.memory import zeros
from holdfast.checkpoints.methods.protocol import Block, Statistics, pieces

UPPER = 1 << 16
LOWER = 1 << 15

Ranks = Callable[[int, int], int | None]
"""Gives, for a model (from 0) and its n magnitudes, the rank wanted, from 0 (the smallest); None:
none."""


def search(ranks: Ranks, *, by_tensor: bool) -> Statistics:
    """The magnitudes at the wanted ranks: a list with a float32 value a model, None where a model
    lacks the tensor or no rank is wanted. To be used by a method's `statistics`.

    Args:
        ranks: of the magnitudes of one model.
        by_tensor: each tensor is searched by itself, not the model as a whole.
    """

    def first(block: Block) -> Array:
        if by_tensor and block.count == block.size:
            return _selected(block, ranks)
        return _histograms(block, [0] * len(block.models), level=0)

    counts = yield first
    if counts.dtype == np.float64:  # the tensor was a single block
        return [None if magnitude < 0 else float(magnitude) for magnitude in counts]
    bins: list[int | None] = []
    within: list[int] = []
    for model, counts_B in enumerate(counts):
        below_B = np.cumsum(counts_B)
        rank = ranks(model, int(below_B[-1]))
        upper = None if rank is None else _bin_of(below_B, rank)
        bins.append(upper)
        within.append((rank or 0) - (int(below_B[upper - 1]) if upper else 0))
    counts = yield lambda block: _histograms(block, bins, level=1)
    magnitudes = []
    for counts_B, upper, rank in zip(counts, bins, within, strict=True):
        bits = 0 if upper is None else upper << 15 | _bin_of(np.cumsum(counts_B), rank)
        magnitudes.append(None if upper is None else float(np.uint32(bits).view(np.float32)))
    return magnitudes


def _histograms(block: Block, bins: Sequence[int | None], *, level: int) -> Array:
    """int64 `[models, 65536]` counts of the upper bits (level 0), or `[models, 32768]` of the lower
    bits of what lies in each model's bin (level 1; None: no bin, nothing is counted)."""
    assert block.base is not None
    counts = zeros((len(block.models), LOWER if level else UPPER), np.int64)
    for number, (model, upper) in enumerate(zip(block.models, bins, strict=True)):
        if block.has_own(number) and upper is not None:
            delta_histogram(block.base, model, counts[number], level=level, prefix=upper)
    return counts


def _bin_of(below_B: Array, rank: int) -> int:
    return int(np.searchsorted(below_B, rank, side="right"))


def _selected(block: Block, ranks: Ranks) -> Array:
    """float64 `[models]`: the magnitudes themselves, of a tensor that is one block; -1 where there
    is none."""
    magnitudes = np.empty((len(block.models), block.size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for values in pieces(block):
            piece = slice(values.start, values.start + len(values.base))
            for number, model in enumerate(values.models):
                magnitudes[number, piece] = np.abs(model - values.base)
    selected = np.full(len(block.models), -1.0)
    for number, row in enumerate(magnitudes):
        rank = ranks(number, block.size)
        if rank is not None and block.has_own(number):
            row.partition(rank)
            selected[number] = row[rank]
    return selected
