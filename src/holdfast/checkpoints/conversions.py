"""Stored elements to numbers and back without C: the definition that the C forms reproduce bit for bit. `dtypes`
documents what each function does.

Everything rounds to the nearest, ties to even; 8-bit floats are PyTorch's. A float64 is rounded to float32 "to odd"
before it is rounded to a smaller type: the last bit says whether anything was lost, so that the second rounding is
right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.checkpoints.element_types import DType

Array = NDArray[Any]

_LARGEST_E4M3 = 464.0
"""What still rounds to 448; PyTorch gives 448 for everything beyond, where NaN is due."""


def decode(raw: Array, dtype: DType, out: Array) -> Array:
    """See `dtypes.decode`."""
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN that was never computed with
        if dtype.name == "BF16":
            out[:] = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif dtype.itemsize == 1:
            out[:] = _bytes(raw, dtype).float().numpy()
        else:
            out[:] = raw
    return out


def encode(values: Array, dtype: DType, out: Array) -> int:
    """See `dtypes.encode`."""
    finite, nan = np.isfinite(values), np.isnan(values)
    bits = out.view(dtype.bits)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.name == "BF16":
            wide = _single(values).view(np.uint32)
            bits[:] = (wide + (np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
        elif dtype.itemsize == 1:
            _encode_bytes(_single(values), dtype, out)
        else:
            out[:] = values
    bits[nan] = dtype.nan
    return int(np.count_nonzero(finite & _unusual(bits, dtype)))


def count_nonfinite(raw: Array, dtype: DType) -> int:
    """See `dtypes.count_nonfinite`; float types only."""
    return int(np.count_nonzero(_unusual(raw.view(dtype.bits), dtype)))


def _unusual(bits: Array, dtype: DType) -> Array:
    """`[N]` booleans: which patterns are infinite or NaN."""
    magnitude = bits & dtype.bits.type((1 << (8 * dtype.itemsize - 1)) - 1)
    return magnitude >= dtype.bits.type(dtype.first_nonfinite)


def _bytes(raw: Array, dtype: DType) -> Tensor:
    """8-bit floats as PyTorch has them."""
    import torch

    return torch.from_numpy(raw.copy()).view(torch.float8_e4m3fn if dtype.name == "F8_E4M3" else torch.float8_e5m2)


def _encode_bytes(values: Array, dtype: DType, out: Array) -> None:
    import torch

    out[:] = torch.from_numpy(values).to(_bytes(out, dtype).dtype).view(torch.uint8).numpy()
    if dtype.name == "F8_E4M3":
        out[values > _LARGEST_E4M3] = 0x7F
        out[values < -_LARGEST_E4M3] = 0xFF


def _single(values: Array) -> Array:
    return values if values.dtype == np.float32 else _rounded_to_odd(values)


def _rounded_to_odd(values: Array) -> Array:
    """float64 as float32, inexact results with the last bit set: a later rounding to at most 22 bits is then as if it
    were the only one."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        bits = near.view(np.uint32)
        even = (near != values) & (bits & np.uint32(1) == 0) & (values == values)
        bits[even] += np.where(np.abs(near[even]) > np.abs(values[even]), np.uint32(0xFFFFFFFF), np.uint32(1))
    return near
