"""The normal numbers of `counter` on an accelerator: the same bits, from PyTorch's operations on int64 and float64.

Products of 32-bit words are taken modulo 2^64 in int64, whose bits are those of the unsigned product. Every float64
operation is a kernel of its own, so nothing fuses a multiplication with an addition and each result is rounded as IEEE
754 says.

On CPUs `counter.normal` is several times faster. Where a device has no float64, the numbers are made on the CPU and
copied.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.checkpoints import counter

_LOW = 0xFFFFFFFF
_WITH_FLOAT64 = ("cpu", "cuda", "xpu")


def normal(key: int, start: int, n: int, device: torch.device) -> Tensor:
    """`[n]` float32 on `device`: standard normal numbers start ... start + n - 1 of a stream, as `counter.normal` gives
    them.

    Args:
        key: from `counter.stream_key`.
        start: position of the first, at least 0.
        n: how many.
        device: where to.
    """
    if device.type not in _WITH_FLOAT64:
        return torch.from_numpy(counter.normal(key, start, n)).to(device)
    first, last = start // 4, -(-(start + n) // 4)
    words = torch.stack(_philox(torch.arange(first, last, device=device), key), dim=1).flatten()[start - 4 * first :][
        :n
    ]
    return _inverse_normal((words.double() + 0.5) * 2.0**-32).float()


def normal_at(key: int, positions: Tensor) -> Tensor:
    """`[n]` float32: the numbers at given positions of a stream, for parts of a tensor that do not lie side by side.
    Four times the work of `normal`.

    Args:
        key: from `counter.stream_key`.
        positions: `[n]` int64, at least 0; the result is on their device.
    """
    if positions.device.type not in _WITH_FLOAT64:
        return normal_at(key, positions.cpu()).to(positions.device)
    words = torch.stack(_philox(positions >> 2, key), dim=1).gather(1, (positions & 3)[:, None]).squeeze(1)
    return _inverse_normal((words.double() + 0.5) * 2.0**-32).float()


def _philox(index: Tensor, key: int) -> list[Tensor]:
    """Philox4x32-10 of the counters (index, 0): four words, int64 in [0, 2^32)."""
    c0, c1 = index & _LOW, index >> 32
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = key & _LOW, key >> 32
    for _ in range(counter.PHILOX_ROUNDS):
        p0, p1 = c0 * counter.PHILOX_MULTIPLIERS[0], c2 * counter.PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) & _LOW ^ c1 ^ k0, p1 & _LOW, (p0 >> 32) & _LOW ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + counter.PHILOX_WEYL[0]) & _LOW, (k1 + counter.PHILOX_WEYL[1]) & _LOW
    return [c0, c1, c2, c3]


def _inverse_normal(u: Tensor) -> Tensor:
    """See `counter.inverse_normal`; both approximations for every element, so that a device need not wait for a
    count."""
    q = u - 0.5
    r = counter.CENTRE_OFFSET - q * q
    centre = q * _polynomial(counter.CENTRE_NUMERATOR, r) / _polynomial(counter.CENTRE_DENOMINATOR, r)
    r = torch.sqrt(-_log(torch.where(q < 0, u, 1.0 - u))) - counter.TAIL_OFFSET
    tail = torch.copysign(_polynomial(counter.TAIL_NUMERATOR, r) / _polynomial(counter.TAIL_DENOMINATOR, r), q)
    return torch.where(q.abs() > counter.CENTRE, tail, centre)


def _polynomial(coefficients: tuple[float, ...], r: Tensor) -> Tensor:
    value = torch.full_like(r, coefficients[-1])
    for c in coefficients[-2::-1]:
        value.mul_(r).add_(c)
    return value


def _log(x: Tensor) -> Tensor:
    bits = x.view(torch.int64)
    exponent = (bits >> 52) - 1022
    m = (bits & 0x000FFFFFFFFFFFFF | 0x3FE0000000000000).view(torch.float64)
    low = m < counter.SQRT_HALF
    m, power = torch.where(low, m + m, m), (exponent - low.long()).double()
    f = (m - 1.0) / (m + 1.0)
    return power * counter.LN2 + f * _polynomial(counter.LOG_SERIES, f * f)
