"""Large arrays straight from the system.

An allocator keeps what was freed in the heap of the thread that had it and hands out other memory
to the next threads, so that a long job's resident size creeps up with the number of blocks. Mapped
pages go back when the array does, and pages that were never touched never were there.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

_LARGEST_BLOCK = 16 << 20
"""Bytes; a block of a merge has some megabytes."""


def pages(size: int) -> np.ndarray:
    """`[size]` uint8, all 0."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)[:size]


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As `numpy.zeros`."""
    return pages(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def keep_blocks() -> None:
    """Has the C library keep blocks of some megabytes for the next one, rather than give them back
    to the system and fault every page in again: glibc does so from the size of the largest block on
    that was freed (`mallopt(3)`, M_MMAP_THRESHOLD). DARE, which takes a few megabytes a block, took
    1.4 times as long without."""
    np.empty(_LARGEST_BLOCK, np.uint8)
