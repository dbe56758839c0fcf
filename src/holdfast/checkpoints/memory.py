"""Large arrays straight from the system.

An allocator keeps what was freed in the heap of the thread that had it and hands out other memory to the next threads,
so that a long job's resident size creeps up with the number of blocks. Mapped pages go back when the array does, and
pages that were never touched never were there.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np


def pages(size: int) -> np.ndarray:
    """`[size]` uint8, all 0."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)[:size]


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As `numpy.zeros`."""
    return pages(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
