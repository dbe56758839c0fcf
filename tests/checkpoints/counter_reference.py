"""The numbers of `counter` in NumPy: what the tests compare C and PyTorch with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.counter_torch import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

Array = NDArray[Any]


def philox(counters: Array, key: int) -> Array:
    """Philox4x32-10.

    Args:
        counters: `[N, 4]` uint32.
        key: 64 bits; the lower half is the first key word.

    Returns:
        `[N, 4]` uint32.
    """
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = c0 * np.uint64(PHILOX_MULTIPLIERS[0]), c2 * np.uint64(PHILOX_MULTIPLIERS[1])
        c0, c1, c2, c3 = p1 >> shift ^ c1 ^ np.uint64(k0), p1 & low, p0 >> shift ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + PHILOX_WEYL[0]) & 0xFFFFFFFF, (k1 + PHILOX_WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def words(key: int, start: int, n: int) -> Array:
    """`[n]` uint32: the words start ... start + n - 1 of a stream."""
    first, last = start // 4, -(-(start + n) // 4)
    index = np.arange(first, last, dtype=np.uint64)
    counters = np.zeros((last - first, 4), np.uint32)
    counters[:, 0], counters[:, 1] = index & np.uint64(0xFFFFFFFF), index >> np.uint64(32)
    return philox(counters, key).reshape(-1)[start - 4 * first :][:n]
