"""Stored elements to numbers and back by PyTorch, for float64 and where there is no C: the same bits as in C. `dtypes`
documents what each function does.

PyTorch rounds to the nearest, ties to even. A float64 is rounded to float32 "to odd" before it is rounded to a smaller
type: the last bit says whether anything was lost, so that the second rounding is right (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.checkpoints.dtypes import DType

Array = NDArray[Any]

_LARGEST_E4M3 = 464.0
"""What still rounds to 448; PyTorch gives 448 for everything beyond, where NaN is due."""


def decode(raw: Array, dtype: DType, out: Array) -> Array:
    """See `dtypes.decode`."""
    _tensor(out).copy_(_stored(raw, dtype))
    return out


def encode(values: Array, dtype: DType, out: Array) -> int:
    """See `dtypes.encode`."""
    finite = np.isfinite(values)
    nan = np.isnan(values)
    narrow = dtype.itemsize < 4 and values.dtype == np.float64
    _stored(out, dtype).copy_(_tensor(_rounded_to_odd(values) if narrow else values))
    bits = out.view(dtype.bits)
    if dtype.name == "F8_E4M3":
        bits[values > _LARGEST_E4M3] = 0x7F
        bits[values < -_LARGEST_E4M3] = 0xFF
    bits[nan] = dtype.nan
    return int(np.count_nonzero(finite & _unusual(bits, dtype)))


def count_nonfinite(raw: Array, dtype: DType) -> int:
    """See `dtypes.count_nonfinite`; float types only."""
    return int(np.count_nonzero(_unusual(raw.view(dtype.bits), dtype)))


def _unusual(bits: Array, dtype: DType) -> Array:
    """`[N]` booleans: which patterns are infinite or NaN."""
    magnitude = bits & dtype.bits.type((1 << (8 * dtype.itemsize - 1)) - 1)
    return magnitude >= dtype.bits.type(dtype.first_nonfinite)


def _tensor(array: Array) -> Tensor:
    """A tensor in the memory of an array."""
    import torch

    writable = array if array.flags.writeable else array.copy()
    return torch.from_numpy(writable)


def _stored(raw: Array, dtype: DType) -> Tensor:
    """A tensor of the type's own kind in the memory of its stored elements."""
    import torch

    kind = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}.get(dtype.name)
    if kind is None:
        return _tensor(raw)
    return _tensor(raw.view(f"i{dtype.itemsize}")).view(kind)


def _rounded_to_odd(values: Array) -> Array:
    """float64 as float32, inexact results with the last bit set: a later rounding to at most 22 bits is then as if it
    were the only one."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        bits = near.view(np.uint32)
        even = (near != values) & (bits & np.uint32(1) == 0) & (values == values)
        bits[even] += np.where(np.abs(near[even]) > np.abs(values[even]), np.uint32(0xFFFFFFFF), np.uint32(1))
    return near
