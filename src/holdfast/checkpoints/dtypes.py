"""Element types of safetensors files: what raw elements mean, how they widen, how computed values round back.

Arithmetic is done in float32, in float64 as soon as an operand or the result is float64. Widening is exact. Narrowing
is one rounding to the nearest, ties to even, whatever lies between (float64 to bfloat16 does not pass through a rounded
float32). Values beyond the largest number become infinite, or NaN in F8_E4M3, which has no infinity (PyTorch clamps to
448 there); every NaN is written as the one quiet NaN of its type.

Conversions run in C (`native`) or without (`conversions`), with the same bits; `kernels` has the passes that compute in
between. Types of less than a byte and complex numbers are not known here.

Source: OCP 8-bit Floating Point Specification 1.0 for the two F8 types (E4M3 is what PyTorch calls float8_e4m3fn).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints import conversions, native
from holdfast.errors import ConfigError, ShapeError, did_you_mean

Array = NDArray[Any]


@dataclass(frozen=True)
class DType:
    """One element type."""

    name: str
    """As safetensors writes it: "F32", "BF16", "F8_E4M3", "I64" ..."""
    storage: np.dtype[Any]
    """NumPy's type of the raw elements, little-endian; bfloat16 lies in uint16, 8-bit floats in uint8."""
    kind: str
    """"float", "integer" or "boolean"."""
    exponent: int = 0
    """Bits of the exponent of a float."""
    mantissa: int = 0
    """Bits of the fraction of a float."""

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.storage.itemsize

    @property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integer type of the same size."""
        return np.dtype(f"<u{self.itemsize}")

    @property
    def first_nonfinite(self) -> int:
        """The smallest bit pattern (sign aside) that is infinite or NaN."""
        return 0x7F if self.name == "F8_E4M3" else ((1 << self.exponent) - 1) << self.mantissa

    @property
    def nan(self) -> int:
        """The bit pattern of NaN."""
        return 0x7F if self.itemsize == 1 else self.first_nonfinite | 1 << (self.mantissa - 1)

    def holds(self, other: DType) -> bool:
        """Whether every number of another float type is one of this type, too."""
        return self.exponent >= other.exponent and self.mantissa >= other.mantissa


class Operand(NamedTuple):
    """Elements as they are stored, and what they mean."""

    raw: Array
    """`[N]`, contiguous, of `dtype.storage`."""
    dtype: DType


def _table() -> dict[str, DType]:
    floats = {
        "F64": ("<f8", 11, 52),
        "F32": ("<f4", 8, 23),
        "F16": ("<f2", 5, 10),
        "BF16": ("<u2", 8, 7),
        "F8_E4M3": ("u1", 4, 3),
        "F8_E5M2": ("u1", 5, 2),
    }
    table = {name: DType(name, np.dtype(storage), "float", e, m) for name, (storage, e, m) in floats.items()}
    table |= {
        f"{sign}{8 * size}": DType(f"{sign}{8 * size}", np.dtype(f"<{sign.lower()}{size}"), "integer")
        for sign in "IU"
        for size in (8, 4, 2, 1)
    }
    return table | {"BOOL": DType("BOOL", np.dtype("?"), "boolean")}


DTYPES: dict[str, DType] = _table()
"""Every known type by its safetensors name."""

_ALIASES = {
    "bf16": "BF16",
    "bfloat16": "BF16",
    "half": "F16",
    "fp16": "F16",
    "float16": "F16",
    "float": "F32",
    "fp32": "F32",
    "float32": "F32",
    "double": "F64",
    "fp64": "F64",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3": "F8_E4M3",
    "fp8": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "long": "I64",
    "int": "I32",
    "short": "I16",
    **{f"int{8 * size}": f"I{8 * size}" for size in (8, 4, 2, 1)},
    **{f"uint{8 * size}": f"U{8 * size}" for size in (8, 4, 2, 1)},
}


def dtype(name: str) -> DType:
    """The type of a name: safetensors' ("BF16"), PyTorch's and config.json's ("bfloat16", "torch.float16", "half") or a
    short form ("fp32").

    Raises:
        ConfigError: no such type; with the nearest known name.
    """
    plain = name.removeprefix("torch.").lower()
    known = {**{n.lower(): n for n in DTYPES}, **_ALIASES}
    if plain not in known:
        raise ConfigError(
            f"dtype: expected one of {', '.join(DTYPES)} or a PyTorch name, got {name!r}.{did_you_mean(plain, known)}"
        )
    return DTYPES[known[plain]]


def compute_dtype(*dtypes: DType) -> np.dtype[Any]:
    """float64 where one of the types is F64, else float32."""
    return np.dtype(np.float64 if any(d.name == "F64" for d in dtypes) else np.float32)


def decode(raw: Array, dtype: DType, out: Array | None = None) -> Array:
    """Stored elements as numbers, exactly.

    Args:
        raw: `[N]` of `dtype.storage`, contiguous.
        dtype: a float type.
        out: `[N]` float32 or float64 to write into (float64 where `dtype` is F64); None: fresh float32, float64 for
            F64. It shares no memory with `raw`.

    Raises:
        ShapeError: `dtype` is no float type.
    """
    _need_float(dtype)
    if out is None:
        out = np.empty(len(raw), compute_dtype(dtype))
    library = native.load()
    if library is not None and out.dtype == np.float32 and _plain(raw, out):
        library.decode(raw, dtype.name, out)
    else:
        conversions.decode(raw, dtype, out)
    return out


def encode(values: Array, dtype: DType, out: Array) -> int:
    """Numbers as stored elements: one rounding to the nearest, ties to even. Gives how many FINITE values became
    infinite or NaN.

    Args:
        values: `[N]` float32 or float64, contiguous.
        dtype: a float type.
        out: `[N]` of `dtype.storage`, contiguous; it may be `values` itself where the types agree.

    Raises:
        ShapeError: `dtype` is no float type.
    """
    _need_float(dtype)
    library = native.load()
    if library is not None and values.dtype == np.float32 and dtype.name != "F64" and _plain(values, out):
        return library.encode(values, dtype.name, out)
    return conversions.encode(values, dtype, out)


def count_nonfinite(raw: Array, dtype: DType) -> int:
    """How many of the stored elements are infinite or NaN; 0 for integers.

    Args:
        raw: `[N]` of `dtype.storage`, contiguous.
    """
    if dtype.kind != "float":
        return 0
    library = native.load()
    if library is not None and dtype.name != "F64" and _plain(raw):
        return library.count_nonfinite(raw, dtype.name)
    return conversions.count_nonfinite(raw, dtype)


def _plain(*arrays: Array) -> bool:
    """Whether C can walk through them."""
    return all(array.flags.c_contiguous and array.flags.aligned for array in arrays)


def _need_float(dtype: DType) -> None:
    if dtype.kind != "float":
        raise ShapeError(
            f"Expected elements of a float type, got {dtype.name}. Integers and booleans can be copied, not computed "
            f"with."
        )
