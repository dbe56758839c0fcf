"""The elementwise passes by their definitions, in NumPy: what C and PyTorch are compared with, bit for bit.

Small floats are decoded from sign, exponent and fraction, and rounded by looking for the nearest in the list of all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from holdfast.checkpoints import counter
from holdfast.checkpoints.element_types import Array, DType, Operand

Flags = tuple[int, int]


def decode(raw: Array, dtype: DType) -> Array:
    """The numbers, float64."""
    if dtype.name in ("F32", "F64"):
        return raw.astype(np.float64)
    bits = raw.view(dtype.bits).astype(np.int64)
    fraction = bits & ((1 << dtype.mantissa) - 1)
    exponent = bits >> dtype.mantissa & ((1 << dtype.exponent) - 1)
    bias = (1 << (dtype.exponent - 1)) - 1
    significand = fraction + (exponent > 0) * (1 << dtype.mantissa)
    values = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - dtype.mantissa)
    magnitude = bits & ((1 << (8 * dtype.itemsize - 1)) - 1)
    values[magnitude >= dtype.first_nonfinite] = np.nan
    if dtype.name != "F8_E4M3":  # which has no infinity
        values[magnitude == dtype.first_nonfinite] = np.inf
    return np.where(bits == magnitude, values, -values)


@functools.cache
def middles(dtype: DType) -> Array:
    """Between each number of 0 or more and the next, the first beyond the largest among them."""
    patterns = np.arange(dtype.first_nonfinite).astype(dtype.bits).view(dtype.storage)
    grid = decode(patterns, dtype)
    grid = np.append(grid, 2 * grid[-1] - grid[-2])
    return (grid[1:] + grid[:-1]) / 2


@np.errstate(all="ignore")
def encode(values: Array, dtype: DType) -> Array:
    """The elements nearest to numbers (float32 or float64), of two equally near ones the even one; one NaN."""
    if dtype.name in ("F32", "F64"):
        patterns = values.astype(dtype.storage).view(dtype.bits)
    else:
        magnitude = np.abs(values.astype(np.float64))
        below = np.searchsorted(middles(dtype), magnitude, side="left")
        is_middle = np.searchsorted(middles(dtype), magnitude, side="right") > below
        nearest = below + (is_middle & (below % 2 == 1))
        sign = np.signbit(values).astype(np.int64) << (8 * dtype.itemsize - 1)
        patterns = (nearest | sign).astype(dtype.bits)
    patterns[np.isnan(values)] = dtype.nan
    return patterns.view(dtype.storage)


def compute_type(*operands: Operand | None) -> type:
    is_double = any(operand is not None and operand.dtype.name == "F64" for operand in operands)
    return np.float64 if is_double else np.float32


def numbers(operand: Operand, compute: type) -> Array:
    return decode(*operand).astype(compute)


def nonfinite(operands: Sequence[Operand | None]) -> int:
    mask = 0
    for bit, operand in enumerate(operands):
        if operand is not None and not np.isfinite(decode(*operand)).all():
            mask |= 1 << bit
    return mask


def store(values: Array, operands: Sequence[Operand | None], out: Operand) -> Flags:
    mask = nonfinite(operands)
    out.raw[:] = encode(values, out.dtype)
    is_finite = np.isfinite(values)
    lost = np.count_nonzero(is_finite & ~np.isfinite(decode(*out)))
    return mask, lost + (0 if mask else np.count_nonzero(~is_finite))


@np.errstate(all="ignore")
def combine(operands: Sequence[Operand | None], weights: Sequence[float], out: Operand) -> Flags:
    compute = compute_type(*operands, out)
    total = None if operands[0] is None else numbers(operands[0], compute)
    for weight, plus, minus in zip(weights, operands[1::2], operands[2::2], strict=True):
        if compute(weight) != 0 and plus is not None:
            value = numbers(plus, compute)
            if minus is not None:
                value = value - numbers(minus, compute)
            value = value * compute(weight)
            total = value if total is None else total + value
    return store(np.zeros(len(out.raw), compute) if total is None else total, operands, out)


@np.errstate(all="ignore")
def ties(
    operands: Sequence[Operand],
    thresholds: Sequence[float],
    weights: Sequence[float] | None,
    scale: float,
    by_count: bool,
    normalize: bool,
    out: Operand,
) -> Flags:
    compute = compute_type(*operands, out)
    base = numbers(operands[0], compute)
    factors = [compute(1 if weights is None else weight) for weight in weights or thresholds]
    deltas = []
    for model, threshold, factor in zip(operands[1:], thresholds, factors, strict=True):
        delta = numbers(model, compute) - base
        delta[np.abs(delta).astype(np.float32) < np.float32(threshold)] = 0
        deltas.append(delta * factor)
    total, merged, share = (np.zeros_like(base) for _ in range(3))
    for delta in deltas:
        total += delta
    rises = total > 0 if by_count else total >= 0
    for delta, factor in zip(deltas, factors, strict=True):
        agrees = np.where(rises, delta, -delta) > 0
        merged[agrees] += delta[agrees]
        share[agrees] += 1 if by_count else factor
    if normalize:
        merged /= np.where(share == 0, compute(1), share)
    merged *= compute(scale)
    stays = (merged == 0) | ((total == 0) & by_count)
    return store(np.where(stays, base, base + merged), operands, out)


@np.errstate(all="ignore")
def perturb(x: Operand, noise_key: int, start: int, sigma: float, out: Operand) -> Flags:
    compute = compute_type(x, out)
    noise = counter.normal(noise_key, start, len(x.raw)).astype(compute)
    return store(numbers(x, compute) + noise * compute(sigma), [x], out)


@np.errstate(all="ignore")
def delta_histogram(base: Operand, model: Operand, counts: Array, level: int, prefix: int) -> Flags:
    compute = compute_type(base, model)
    delta = (numbers(model, compute) - numbers(base, compute)).astype(np.float32)
    bits = np.where(np.isnan(delta), np.uint32(0x7FC00000), np.abs(delta).view(np.uint32))
    chosen = bits >> 15 if level == 0 else bits[bits >> 15 == prefix] & 0x7FFF
    counts += np.bincount(chosen, minlength=len(counts))
    mask = nonfinite([base, model])
    return mask, 0 if mask else np.count_nonzero(~np.isfinite(delta))


@np.errstate(all="ignore")
def moments(a: Operand, b: Operand) -> Array:
    x, y = decode(*a), decode(*b)
    sums = [((y - x) ** 2).sum(), (x**2).sum(), (y**2).sum(), (x * y).sum()]
    counts = [np.count_nonzero(~np.isfinite(values)) for values in (x, y)]
    return np.array([len(x), *sums, np.count_nonzero(np.sign(x) == np.sign(y)), *counts])
