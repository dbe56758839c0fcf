"""The numbers of `counter` in PyTorch, on a CPU or an accelerator: the same bits as in C, from
operations on int64 and float64.

Products of 32-bit words are taken modulo 2^64 in int64, whose bits are those of the unsigned
product. Every float64 operation is a kernel of its own, so nothing fuses a multiplication with an
addition and each result is rounded as IEEE 754 says.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
"""AS 241's c0 ... c7: with r = sqrt(-log(min(u, 1 - u))) - 1.6, |z| = sum c_k r^k / sum d_k r^k. It
holds up to r = 3.4; r here stays below 3.19."""
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
"""log m = f * sum_k (2 / (2 k + 1)) f^(2 k) with f = (m - 1) / (m + 1); ten terms are exact to
2^-53 for m in [sqrt(1/2), sqrt(2))."""
_LOW = 0xFFFFFFFF


def uniform(key: int, start: int, n: int, device: torch.device | str) -> Tensor:
    """`[n]` float64 on `device`: what `counter.uniform` gives."""
    first, last = start // 4, -(-(start + n) // 4)
    words = torch.stack(_philox(torch.arange(first, last, device=device), key), dim=1).flatten()
    return _uniform(words[start - 4 * first :][:n])


def normal(key: int, start: int, n: int, device: torch.device | str) -> Tensor:
    """`[n]` float32 on `device`: standard normal numbers start ... start + n - 1 of a stream, as
    `counter.normal` gives them.

    Args:
        key: from `counter.stream_key`.
        start: position of the first, at least 0.
        n: how many.
        device: where to; it has to have float64.
    """
    return inverse_normal(uniform(key, start, n, device)).float()


def normal_at(key: int, positions: Tensor) -> Tensor:
    """`[n]` float32: the numbers at given positions of a stream, for parts of a tensor that do not
    lie side by side. Four times the work of `normal`.

    Args:
        key: from `counter.stream_key`.
        positions: `[n]` int64, at least 0; the result is on their device.
    """
    words = (
        torch.stack(_philox(positions >> 2, key), dim=1)
        .gather(1, (positions & 3)[:, None])
        .squeeze(1)
    )
    return inverse_normal(_uniform(words)).float()


def _uniform(words: Tensor) -> Tensor:
    return (words.double() + 0.5) * 2.0**-32


def _philox(index: Tensor, key: int) -> list[Tensor]:
    """Philox4x32-10 of the counters (index, 0): four words, int64 in [0, 2^32)."""
    c0, c1 = index & _LOW, index >> 32
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = key & _LOW, key >> 32
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = c0 * PHILOX_MULTIPLIERS[0], c2 * PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> 32) & _LOW ^ c1 ^ k0,
            p1 & _LOW,
            (p0 >> 32) & _LOW ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _LOW, (k1 + PHILOX_WEYL[1]) & _LOW
    return [c0, c1, c2, c3]


def inverse_normal(u: Tensor) -> Tensor:
    """`[N]` float64: the number below which a standard normal falls with probability u, for u in
    [2^-33, 1 - 2^-33] (`[N]` float64). Both approximations are computed for every element, so that
    a device need not wait for a count."""
    q = u - 0.5
    r = CENTRE_OFFSET - q * q
    centre = q * _polynomial(CENTRE_NUMERATOR, r) / _polynomial(CENTRE_DENOMINATOR, r)
    r = torch.sqrt(-_log(torch.where(q < 0, u, 1.0 - u))) - TAIL_OFFSET
    tail = torch.copysign(_polynomial(TAIL_NUMERATOR, r) / _polynomial(TAIL_DENOMINATOR, r), q)
    return torch.where(q.abs() > CENTRE, tail, centre)


def _polynomial(coefficients: tuple[float, ...], r: Tensor) -> Tensor:
    value = torch.full_like(r, coefficients[-1])
    for c in coefficients[-2::-1]:
        value.mul_(r).add_(c)
    return value


def _log(x: Tensor) -> Tensor:
    bits = x.view(torch.int64)
    exponent = (bits >> 52) - 1022
    m = (bits & 0x000FFFFFFFFFFFFF | 0x3FE0000000000000).view(torch.float64)
    low = m < SQRT_HALF
    m, power = torch.where(low, m + m, m), (exponent - low.long()).double()
    f = (m - 1.0) / (m + 1.0)
    return power * LN2 + f * _polynomial(LOG_SERIES, f * f)
