"""The elementwise passes in NumPy, for float64 and where there is no C: what `kernels` documents, in the plainest form
that is still fast.

They define the results; the C forms reproduce their bits. Work goes in blocks whose temporaries stay in the
second-level cache. Flags are `(nonfinite, overflow)` as in `kernels.Flags`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from holdfast.checkpoints import counter
from holdfast.checkpoints.conversions import count_nonfinite, decode, encode
from holdfast.checkpoints.dtypes import compute_dtype
from holdfast.checkpoints.element_types import DTYPES, Array, Operand

_BLOCK = 16384


def combine(operands: Sequence[Operand | None], weights: Sequence[float], out: Operand) -> tuple[int, int]:
    """See `kernels.combine`; operands are the anchor, plus_0, minus_0, plus_1 ..."""
    anchor = operands[0]
    compute = compute_dtype(*(o.dtype for o in (*operands, out) if o is not None))
    terms = zip(map(compute.type, weights), operands[1::2], operands[2::2], strict=True)
    used = [(weight, plus, minus) for weight, plus, minus in terms if weight != 0 and plus is not None]

    def pieces() -> Iterator[Array]:
        for piece in _slices(out):
            total = None if anchor is None else _decoded(anchor, piece, compute)
            for weight, plus, minus in used:
                value = _decoded(plus, piece, compute)
                if minus is not None:
                    value -= _decoded(minus, piece, compute)
                if weight != 1:
                    value *= weight
                total = value if total is None else np.add(total, value, out=total)
            yield np.zeros(len(out.raw[piece]), compute) if total is None else total

    return _stored(pieces(), operands, out)


def delta_histogram(base: Operand, model: Operand, counts: Array, level: int, prefix: int) -> tuple[int, int]:
    """See `kernels.delta_histogram`."""
    compute = compute_dtype(base.dtype, model.dtype)
    unusual = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in _slices(base):
            delta = _decoded(model, piece, compute)
            delta -= _decoded(base, piece, compute)
            bits = delta.astype(np.float32, copy=False).view(np.uint32) & np.uint32(0x7FFFFFFF)
            unusual += int(np.count_nonzero(bits >= np.uint32(0x7F800000)))
            bits[bits > np.uint32(0x7F800000)] = 0x7FC00000
            if level == 0:
                counts += np.bincount(bits >> np.uint32(15), minlength=65536)
            else:
                counts += np.bincount(bits[bits >> np.uint32(15) == prefix] & np.uint32(0x7FFF), minlength=32768)
    nonfinite = _nonfinite([base, model]) if unusual else 0
    return nonfinite, 0 if nonfinite else unusual


def ties(
    operands: Sequence[Operand],
    thresholds: Sequence[float],
    weights: Sequence[float] | None,
    scale: float,
    by_count: bool,
    normalize: bool,
    out: Operand,
) -> tuple[int, int]:
    """See `kernels.ties`; operands are the base and the models, `by_count` is its `original`."""
    base, *models = operands
    compute = compute_dtype(*(o.dtype for o in (*operands, out)))
    factors = None if weights is None else [compute.type(w) for w in weights]
    factor, least = compute.type(scale), [np.float32(t) for t in thresholds]

    def pieces() -> Iterator[Array]:
        for piece in _slices(out):
            start = _decoded(base, piece, compute)
            total, merged, share = (np.zeros_like(start) for _ in range(3))
            deltas = []
            for i, model in enumerate(models):
                delta = _decoded(model, piece, compute)
                delta -= start
                delta[np.abs(delta).astype(np.float32, copy=False) < least[i]] = 0
                if factors is not None:
                    delta *= factors[i]
                total += delta
                deltas.append(delta)
            positive = total > 0 if by_count else total >= 0
            for i, delta in enumerate(deltas):
                agrees = np.where(positive, delta, -delta) > 0
                np.add(merged, delta, out=merged, where=agrees)
                np.add(share, compute.type(1) if by_count or factors is None else factors[i], out=share, where=agrees)
            if normalize:
                share[share == 0] = 1
                merged /= share
            merged *= factor
            stays = merged == 0
            if by_count:
                stays |= total == 0
            yield np.where(stays, start, start + merged)

    return _stored(pieces(), operands, out)


def moments(a: Operand, b: Operand) -> Array:
    """See `kernels.moments`."""
    double = np.dtype(np.float64)
    sums = np.zeros(5)
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in _slices(a):
            x, y = _decoded(a, piece, double), _decoded(b, piece, double)
            d = y - x
            sums += [
                *((p * q).sum() for p, q in ((d, d), (x, x), (y, y), (x, y))),
                np.count_nonzero(np.sign(x) == np.sign(y)),
            ]
    return np.array([len(a.raw), *sums, count_nonfinite(*a), count_nonfinite(*b)])


def perturb(x: Operand, noise_key: int, start: int, sigma: float, out: Operand) -> tuple[int, int]:
    """See `kernels.perturb`."""
    compute = compute_dtype(x.dtype, out.dtype)
    factor = compute.type(sigma)

    def pieces() -> Iterator[Array]:
        for piece in _slices(out):
            noise = counter.normal(noise_key, start + piece.start, len(out.raw[piece])).astype(compute, copy=False)
            noise *= factor
            yield _decoded(x, piece, compute) + noise

    return _stored(pieces(), [x], out)


def _slices(operand: Operand) -> Iterator[slice]:
    for start in range(0, len(operand.raw), _BLOCK):
        yield slice(start, start + _BLOCK)


def _decoded(operand: Operand, piece: slice, compute: np.dtype[Any]) -> Array:
    raw = operand.raw[piece]
    return decode(raw, operand.dtype, np.empty(len(raw), compute))


def _nonfinite(operands: Sequence[Operand | None]) -> int:
    return sum(1 << i for i, o in enumerate(operands) if o is not None and count_nonfinite(*o))


def _stored(pieces: Iterator[Array], operands: Sequence[Operand | None], out: Operand) -> tuple[int, int]:
    """Writes computed pieces to `out`; the operands are looked at before, as `out` may be one of them."""
    nonfinite = _nonfinite(operands)
    start = lost = unusual = 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for values in pieces:
            target = out.raw[start : start + len(values)]
            unusual += count_nonfinite(values, DTYPES["F64" if values.dtype == np.float64 else "F32"])
            lost += encode(values, out.dtype, target)
            start += len(values)
    return nonfinite, lost + (0 if nonfinite else unusual)
