"""Random numbers by position: value i of a stream depends on the stream's key and on i, on nothing
else.

Philox4x32-10 turns the counter i // 4 and a 64-bit key into four 32-bit words, of which word i % 4
is taken. Any stretch of a stream can be made by itself, so blocks, threads and machines change no
bit, and noise that was added can be subtracted again without having been kept.

Normal numbers are the inverse of the normal distribution function at u = (word + 1/2) / 2^32, by
Wichura's rational approximations, in float64 with +, -, *, / and sqrt only (the logarithm is a
series here, not the system's), which IEEE 754 rounds in one way everywhere: C and PyTorch on any
device give the same bits. |z| stays below 6.4, since u stays above 2^-33.

The numbers are made in C where a compiler was found (`native`), and by PyTorch where not
(`counter_torch`, which has the constants).

Sources: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37
(1988), PPND16.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints import native

Array = NDArray[Any]


def stream_key(seed: int, *names: str) -> int:
    """The 64-bit key of the stream that belongs to a seed and names, for example a tensor's name
    and what the numbers are for."""
    text = json.dumps([seed, *names], ensure_ascii=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniform(key: int, start: int, n: int) -> Array:
    """`[n]` float64 in (0, 1), multiples of 2^-32 plus 2^-33."""
    library = native.load()
    if library is not None:
        return library.uniform(key, start, np.empty(n))
    from holdfast.checkpoints import counter_torch

    return counter_torch.uniform(key, start, n, "cpu").numpy()


def normal(key: int, start: int, n: int, out: Array | None = None) -> Array:
    """`[n]` float32: standard normal numbers start ... start + n - 1 of a stream.

    Args:
        key: from `stream_key`.
        start: position of the first, at least 0.
        n: how many.
        out: `[n]` float32, contiguous, to write into; None: fresh.
    """
    library = native.load()
    out = np.empty(n, np.float32) if out is None else out
    if library is not None:
        return library.normal(key, start, out)
    from holdfast.checkpoints import counter_torch

    out[:] = counter_torch.normal(key, start, n, "cpu").numpy()
    return out
