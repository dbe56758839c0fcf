"""Exact order statistics of |delta| over a stream, without sorting: two histograms of the magnitude's bits.

Non-negative float32 numbers are ordered as their bits are ordered as integers. Counting the upper 16 of the 31 bits
finds the bin of the r-th smallest magnitude; counting the lower 15 bits inside that bin finds the number itself. Counts
of blocks add up, so a tensor, or a whole model, is searched in two passes whatever its size. float64 differences are
rounded to float32 first.

A tensor that is a single block is searched by partition in the first pass, which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from holdfast.checkpoints.kernels import delta_histogram
from holdfast.checkpoints.memory import zeros
from holdfast.checkpoints.methods.protocol import Block, pieces

UPPER = 1 << 16
LOWER = 1 << 15

Ranks = Callable[[int, int], Sequence[int]]
"""Gives, for a model (from 0) and its n magnitudes, the ranks wanted, from 0 (the smallest)."""


class Search(NamedTuple):
    """Where the wanted ranks lie after the first pass; one list a model, one entry a rank."""

    prefixes: list[list[int]]
    """The upper 16 bits of the wanted magnitudes."""
    ranks: list[list[int]]
    """Rank inside the bin, from 0."""


class Found(NamedTuple):
    """The magnitudes at the wanted ranks."""

    magnitudes: list[list[float]]
    """float32 values, one list a model, one entry a rank; empty where a model lacks the tensor or no rank was
    wanted."""


def measure(block: Block, state: Search | Found | None, ranks: Ranks, *, by_tensor: bool) -> np.ndarray:
    """One block's part in the search.

    Args:
        block: with a base. Models that lack the tensor count nothing.
        state: None in the first pass, then what `settle` gave.
        ranks: of the magnitudes of one model.
        by_tensor: each tensor is searched by itself, not the model as a whole.

    Returns:
        int64 `[models, 1, 65536]` counts in the first pass, `[models, ranks, 32768]` in the second. For a tensor that
        is one block float64 `[models, ranks]`, the magnitudes themselves (-1 where there is none), then nothing.
    """
    if isinstance(state, Found):
        return np.zeros(0)
    if state is None and by_tensor and block.count == block.size:
        return _selected(block, ranks)
    assert block.base is not None
    wanted = 1 if state is None else max(len(p) for p in state.prefixes)
    counts = zeros((len(block.models), wanted, UPPER if state is None else LOWER), np.int64)
    for i, model in enumerate(block.models):
        if not block.has_own(i):
            continue
        if state is None:
            delta_histogram(block.base, model, counts[i, 0], level=0, prefix=0)
            continue
        for row, prefix in enumerate(state.prefixes[i]):
            delta_histogram(block.base, model, counts[i, row], level=1, prefix=prefix)
    return counts


def settle(total: np.ndarray, state: Search | Found | None, ranks: Ranks) -> Search | Found:
    """What follows from the sum of `measure` over the blocks: the bins after the first pass, the magnitudes after the
    second."""
    if isinstance(state, Found):
        return state
    if state is None and total.dtype == np.float64:
        return Found([[float(x) for x in row if not x < 0] for row in total])
    if state is not None:
        return Found([_magnitudes(*model) for model in zip(total, state.prefixes, state.ranks, strict=True)])
    search = Search([], [])
    for model, counts_B in enumerate(total[:, 0]):
        below_B = np.cumsum(counts_B)
        wanted = ranks(model, int(below_B[-1]))
        prefixes = [_bin_of(below_B, rank) for rank in wanted]
        search.prefixes.append(prefixes)
        search.ranks.append(
            [rank - (int(below_B[p - 1]) if p else 0) for rank, p in zip(wanted, prefixes, strict=True)]
        )
    return search


def _magnitudes(counts: np.ndarray, prefixes: Sequence[int], ranks: Sequence[int]) -> list[float]:
    bits = [
        prefix << 15 | _bin_of(np.cumsum(row), rank) for row, prefix, rank in zip(counts, prefixes, ranks, strict=False)
    ]
    return [float(x) for x in np.array(bits, dtype=np.uint32).view(np.float32)]


def _bin_of(below_B: np.ndarray, rank: int) -> int:
    return int(np.searchsorted(below_B, rank, side="right"))


def _selected(block: Block, ranks: Ranks) -> np.ndarray:
    wanted = [list(ranks(i, block.size)) for i in range(len(block.models))]
    magnitude = np.empty((len(block.models), block.size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for piece, values in pieces(block):
            for i in range(len(block.models)):
                magnitude[i, piece] = np.abs(values[1 + i] - values[0])
    found = np.full((len(block.models), max(map(len, wanted))), -1.0)
    for i, row in enumerate(magnitude):
        if wanted[i] and block.has_own(i):
            row.partition(wanted[i])
            found[i, : len(wanted[i])] = row[wanted[i]]
    return found
