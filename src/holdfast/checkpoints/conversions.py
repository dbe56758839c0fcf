"""Stored elements to numbers and back in NumPy: the definition that the C forms reproduce bit for bit. `dtypes`
documents what each function does.

A float64 is rounded to float32 "to odd" before it is rounded to a smaller type: the last bit says whether anything was
lost, so that the second rounding is right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE
Trans. Computers 57, 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from holdfast.checkpoints.dtypes import DType

Array = NDArray[Any]

_BLOCK = 32768
"""Elements that one pass handles: its temporaries stay in the second-level cache."""


def decode(raw: Array, dtype: DType, out: Array) -> Array:
    """See `dtypes.decode`."""
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN that was never computed with
        if dtype.itemsize == 1:
            out[:] = _widened_bytes(dtype)[raw]
        elif dtype.name == "BF16":
            for start in range(0, len(raw), _BLOCK):
                out[start : start + _BLOCK] = (raw[start : start + _BLOCK].astype(np.uint32) << np.uint32(16)).view(
                    np.float32
                )
        else:
            out[:] = raw
    return out


def encode(values: Array, dtype: DType, out: Array) -> int:
    """See `dtypes.encode`."""
    pieces = (slice(start, start + _BLOCK) for start in range(0, len(values), _BLOCK))
    return sum(_encode_block(values[piece], dtype, out[piece]) for piece in pieces)


def count_nonfinite(raw: Array, dtype: DType) -> int:
    """See `dtypes.count_nonfinite`; float types only."""
    if dtype.storage.kind == "f" and dtype.itemsize >= 4:
        return len(raw) - int(np.count_nonzero(np.isfinite(raw)))
    mask, first = dtype.bits.type((1 << (8 * dtype.itemsize - 1)) - 1), dtype.bits.type(dtype.first_nonfinite)
    pieces = (raw[start : start + _BLOCK].view(dtype.bits) & mask for start in range(0, len(raw), _BLOCK))
    return sum(int(np.count_nonzero(bits >= first)) for bits in pieces)


def _encode_block(values: Array, dtype: DType, out: Array) -> int:
    before = len(values) - int(np.count_nonzero(np.isfinite(values)))
    wanted = out.view(dtype.bits)
    nan = np.isnan(values) if before else None
    if dtype.itemsize >= 4:
        with np.errstate(over="ignore", invalid="ignore"):
            out[:] = values
    else:
        single = values if values.dtype == np.float32 else _rounded_to_odd(values)
        bits = single.view(np.uint32)
        if dtype.name == "BF16":
            wanted[:] = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
        else:
            wanted[:] = _narrow(bits, dtype)
    if nan is not None:
        wanted[nan] = dtype.nan
    return count_nonfinite(out, dtype) - before


def _narrow(bits: Array, dtype: DType) -> Array:
    """Bits of float32 numbers as bits of a type with a smaller exponent, in uint32; NaN is left to the caller."""
    m, bias = dtype.mantissa, (1 << (dtype.exponent - 1)) - 1
    magnitude = bits & np.uint32(0x7FFFFFFF)
    shift = np.uint32(23 - m)
    smallest_normal = np.uint32((127 - bias + 1) << 23)
    beyond = np.uint32((127 + (1 << dtype.exponent) - bias) << 23)  # what no exponent of the type reaches
    np.minimum(magnitude, beyond, out=magnitude)
    rounded = magnitude + (np.uint32((1 << (22 - m)) - 1) + (magnitude >> shift & np.uint32(1))) >> shift
    # Below, the unit in the last place no longer shrinks: adding a number with that very unit rounds there.
    unit = np.float32(2.0 ** (23 + 1 - bias - m))
    subnormal = (magnitude.view(np.float32) + unit).view(np.uint32) - unit.view(np.uint32)
    result = np.where(magnitude < smallest_normal, subnormal, rounded - np.uint32((127 - bias) << m))
    np.minimum(result, np.uint32(dtype.first_nonfinite), out=result)
    return result | (bits >> np.uint32(31)) << np.uint32(8 * dtype.itemsize - 1)


def _rounded_to_odd(values: Array) -> Array:
    """float64 as float32, inexact results with the last bit set: a later rounding to at most 22 bits is then as if it
    were the only one."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        bits = near.view(np.uint32)
        even = (near != values) & (bits & np.uint32(1) == 0) & (values == values)
        bits[even] += np.where(np.abs(near[even]) > np.abs(values[even]), np.uint32(0xFFFFFFFF), np.uint32(1))
    return near


_BYTES: dict[str, Array] = {}


def _widened_bytes(dtype: DType) -> Array:
    """`[256]` float32: the numbers of an 8-bit type."""
    if dtype.name not in _BYTES:
        code = np.arange(256)
        m, bias = dtype.mantissa, (1 << (dtype.exponent - 1)) - 1
        exponent, fraction = code >> m & (1 << dtype.exponent) - 1, code & (1 << m) - 1
        value = np.where(
            exponent > 0, np.ldexp(1.0 + fraction / (1 << m), exponent - bias), np.ldexp(fraction / (1 << m), 1 - bias)
        )
        magnitude = code & 0x7F
        value[magnitude >= dtype.first_nonfinite] = np.nan
        if dtype.name == "F8_E5M2":
            value[magnitude == dtype.first_nonfinite] = np.inf
        _BYTES[dtype.name] = np.copysign(value, np.where(code >> 7, -1.0, 1.0)).astype(np.float32)
    return _BYTES[dtype.name]
