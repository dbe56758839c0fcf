"""The numbers of `counter` in NumPy: what the tests compare C and PyTorch with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.counter_torch import (
    CENTRE,
    CENTRE_DENOMINATOR,
    CENTRE_NUMERATOR,
    CENTRE_OFFSET,
    LN2,
    LOG_SERIES,
    PHILOX_MULTIPLIERS,
    PHILOX_ROUNDS,
    PHILOX_WEYL,
    SQRT_HALF,
    TAIL_DENOMINATOR,
    TAIL_NUMERATOR,
    TAIL_OFFSET,
)

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


def uniform(key: int, start: int, n: int) -> Array:
    """See `counter.uniform`."""
    return (words(key, start, n) + 0.5) * 2.0**-32


def normal(key: int, start: int, n: int) -> Array:
    """See `counter.normal`."""
    return inverse_normal(uniform(key, start, n)).astype(np.float32)


def inverse_normal(u: Array) -> Array:
    """`[N]` float64: the number below which a standard normal falls with probability u, for u in [2^-33, 1 - 2^-33]
    (`[N]` float64)."""
    q = u - 0.5
    r = CENTRE_OFFSET - q * q
    z = q * _polynomial(CENTRE_NUMERATOR, r) / _polynomial(CENTRE_DENOMINATOR, r)
    tail = np.abs(q) > CENTRE
    q = q[tail]
    r = np.sqrt(-_log(np.where(q < 0, u[tail], 1.0 - u[tail]))) - TAIL_OFFSET
    z[tail] = np.copysign(_polynomial(TAIL_NUMERATOR, r) / _polynomial(TAIL_DENOMINATOR, r), q)
    return z


def _polynomial(coefficients: tuple[float, ...], r: Array) -> Array:
    """Horner's scheme, coefficient 0 last."""
    value = np.full_like(r, coefficients[-1])
    for c in coefficients[-2::-1]:
        value *= r
        value += c
    return value


def _log(x: Array) -> Array:
    """The natural logarithm of normal numbers, `[N]` float64."""
    bits = x.view(np.int64)
    exponent = (bits >> 52) - 1022
    m = (bits & 0x000FFFFFFFFFFFFF | 0x3FE0000000000000).view(np.float64)  # in [1/2, 1)
    low = m < SQRT_HALF
    m, power = np.where(low, m + m, m), (exponent - low).astype(np.float64)
    f = (m - 1.0) / (m + 1.0)
    return power * LN2 + f * _polynomial(LOG_SERIES, f * f)
