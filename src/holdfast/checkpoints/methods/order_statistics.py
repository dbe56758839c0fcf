"""Exact order statistics of |delta| over a stream, without sorting: two histograms of the magnitude's bits.

Non-negative float32 numbers are ordered as their bits are ordered as integers. Counting the upper 16 of the 31 bits
finds the bin of the r-th smallest magnitude; counting the lower 15 bits inside that bin finds the number itself. Counts
of blocks add up, so a tensor, or a whole model, is searched in two passes whatever its size. float64 differences are
rounded to float32 first.

A tensor that is a single block is searched by partition in the first pass, which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from holdfast.checkpoints.kernels import delta_histogram
from holdfast.checkpoints.memory import zeros
from holdfast.checkpoints.methods.protocol import Block, pieces

UPPER = 1 << 16
LOWER = 1 << 15

Ranks = Callable[[int, int], int | None]
"""Gives, for a model (from 0) and its n magnitudes, the rank wanted, from 0 (the smallest); None: none."""


class Search(NamedTuple):
    """Where the wanted rank of each model lies after the first pass; None where none was wanted."""

    prefixes: list[int | None]
    """The upper 16 bits of the wanted magnitude."""
    ranks: list[int]
    """Rank inside the bin, from 0."""


class Found(NamedTuple):
    """The magnitudes at the wanted ranks."""

    magnitudes: list[float | None]
    """A float32 value a model; None where a model lacks the tensor or no rank was wanted."""


def measure(block: Block, state: Search | Found | None, ranks: Ranks, *, by_tensor: bool) -> np.ndarray:
    """One block's part in the search.

    Args:
        block: with a base. Models that lack the tensor count nothing.
        state: None in the first pass, then what `settle` gave.
        ranks: of the magnitudes of one model.
        by_tensor: each tensor is searched by itself, not the model as a whole.

    Returns:
        int64 `[models, 65536]` counts in the first pass, `[models, 32768]` in the second. For a tensor that is one
        block float64 `[models]`, the magnitudes themselves (-1 where there is none), then nothing.
    """
    if isinstance(state, Found):
        return np.zeros(0)
    if state is None and by_tensor and block.count == block.size:
        return _selected(block, ranks)
    assert block.base is not None
    counts = zeros((len(block.models), UPPER if state is None else LOWER), np.int64)
    for i, model in enumerate(block.models):
        prefix = 0 if state is None else state.prefixes[i]
        if block.has_own(i) and prefix is not None:
            delta_histogram(block.base, model, counts[i], level=0 if state is None else 1, prefix=prefix)
    return counts


def settle(total: np.ndarray, state: Search | Found | None, ranks: Ranks) -> Search | Found:
    """What follows from the sum of `measure` over the blocks: the bins after the first pass, the magnitudes after the
    second."""
    if isinstance(state, Found):
        return state
    if state is None and total.dtype == np.float64:
        return Found([None if value < 0 else float(value) for value in total])
    if state is not None:
        return Found([_magnitude(*model) for model in zip(total, state.prefixes, state.ranks, strict=True)])
    search = Search([], [])
    for model, counts_B in enumerate(total):
        below_B = np.cumsum(counts_B)
        rank = ranks(model, int(below_B[-1]))
        prefix = None if rank is None else _bin_of(below_B, rank)
        search.prefixes.append(prefix)
        search.ranks.append((rank or 0) - (int(below_B[prefix - 1]) if prefix else 0))
    return search


def _magnitude(counts: np.ndarray, prefix: int | None, rank: int) -> float | None:
    if prefix is None:
        return None
    bits = prefix << 15 | _bin_of(np.cumsum(counts), rank)
    return float(np.uint32(bits).view(np.float32))


def _bin_of(below_B: np.ndarray, rank: int) -> int:
    return int(np.searchsorted(below_B, rank, side="right"))


def _selected(block: Block, ranks: Ranks) -> np.ndarray:
    magnitude = np.empty((len(block.models), block.size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for piece, values in pieces(block):
            for i in range(len(block.models)):
                magnitude[i, piece] = np.abs(values[1 + i] - values[0])
    found = np.full(len(block.models), -1.0)
    for i, row in enumerate(magnitude):
        rank = ranks(i, block.size)
        if rank is not None and block.has_own(i):
            row.partition(rank)
            found[i] = row[rank]
    return found
