"""Random numbers by position: value i of a stream depends on the stream's key and on i, on nothing else.

Philox4x32-10 turns the counter i // 4 and a 64-bit key into four 32-bit words, of which word i % 4 is taken. Any
stretch of a stream can be made by itself, so blocks, threads and machines change no bit, and noise that was added can
be subtracted again without having been kept.

Normal numbers are the inverse of the normal distribution function at u = (word + 1/2) / 2^32, by Wichura's rational
approximations, in float64 with +, -, *, / and sqrt only (the logarithm is a series here, not the system's), which IEEE
754 rounds in one way everywhere: NumPy, C and PyTorch on any device give the same bits. |z| stays below 6.4, since u
stays above 2^-33.

Sources: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. Wichura, "Algorithm AS
241: the percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints import native

Array = NDArray[Any]

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10

CENTRE = 0.425
"""The central approximation holds where |u - 1/2| is at most this."""
CENTRE_OFFSET = CENTRE * CENTRE
TAIL_OFFSET = 1.6

CENTRE_NUMERATOR = (
    3.3871328727963666080e0,
    1.3314166789178437745e2,
    1.9715909503065514427e3,
    1.3731693765509461125e4,
    4.5921953931549871457e4,
    6.7265770927008700853e4,
    3.3430575583588128105e4,
    2.5090809287301226727e3,
)
"""AS 241's a0 ... a7: with r = 0.425^2 - (u - 1/2)^2, z = (u - 1/2) * sum a_k r^k / sum b_k r^k."""
CENTRE_DENOMINATOR = (
    1.0,
    4.2313330701600911252e1,
    6.8718700749205790830e2,
    5.3941960214247511077e3,
    2.1213794301586595867e4,
    3.9307895800092710610e4,
    2.8729085735721942674e4,
    5.2264952788528545610e3,
)
"""AS 241's b0 ... b7."""
TAIL_NUMERATOR = (
    1.42343711074968357734e0,
    4.63033784615654529590e0,
    5.76949722146069140550e0,
    3.64784832476320460504e0,
    1.27045825245236838258e0,
    2.41780725177450611770e-1,
    2.27238449892691845833e-2,
    7.74545014278341407640e-4,
)
"""AS 241's c0 ... c7: with r = sqrt(-log(min(u, 1 - u))) - 1.6, |z| = sum c_k r^k / sum d_k r^k. It holds up to r =
3.4; r here stays below 3.19."""
TAIL_DENOMINATOR = (
    1.0,
    2.05319162663775882187e0,
    1.67638483018380384940e0,
    6.89767334985100004550e-1,
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)
"""AS 241's d0 ... d7."""

LN2 = 0.693147180559945309417
SQRT_HALF = 0.707106781186547524401
LOG_SERIES = tuple(2.0 / (2 * k + 1) for k in range(10))
"""log m = f * sum_k (2 / (2 k + 1)) f^(2 k) with f = (m - 1) / (m + 1); ten terms are exact to 2^-53 for m in
[sqrt(1/2), sqrt(2))."""

_BLOCK = 16384


def stream_key(seed: int, *names: str) -> int:
    """The 64-bit key of the stream that belongs to a seed and names, for example a tensor's name and what the numbers
    are for."""
    text = json.dumps([seed, *names], ensure_ascii=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


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
    library = native.load()
    return words_numpy(key, start, n) if library is None else library.words(key, start, np.empty(n, np.uint32))


def uniform(key: int, start: int, n: int) -> Array:
    """`[n]` float64 in (0, 1), multiples of 2^-32 plus 2^-33."""
    library = native.load()
    return uniform_numpy(key, start, n) if library is None else library.uniform(key, start, np.empty(n))


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
    return normal_numpy(key, start, n, out) if library is None else library.normal(key, start, out)


def words_numpy(key: int, start: int, n: int) -> Array:
    """`words` in NumPy."""
    out = np.empty(n, np.uint32)
    for done in range(0, n, _BLOCK):
        out[done : done + _BLOCK] = _words_block(key, start + done, min(_BLOCK, n - done))
    return out


def uniform_numpy(key: int, start: int, n: int) -> Array:
    """`uniform` in NumPy."""
    return (words_numpy(key, start, n) + 0.5) * 2.0**-32


def normal_numpy(key: int, start: int, n: int, out: Array | None = None) -> Array:
    """`normal` in NumPy."""
    out = np.empty(n, np.float32) if out is None else out
    for done in range(0, n, _BLOCK):
        out[done : done + _BLOCK] = inverse_normal(uniform_numpy(key, start + done, min(_BLOCK, n - done)))
    return out


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


def _words_block(key: int, start: int, n: int) -> Array:
    first, last = start // 4, -(-(start + n) // 4)
    index = np.arange(first, last, dtype=np.uint64)
    counters = np.zeros((last - first, 4), np.uint32)
    counters[:, 0], counters[:, 1] = index & np.uint64(0xFFFFFFFF), index >> np.uint64(32)
    return philox(counters, key).reshape(-1)[start - 4 * first :][:n]


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
