"""Element types of safetensors files: what raw elements mean, how they widen, how computed values
round back.

Arithmetic is done in float32, in float64 as soon as an operand or the result is float64. Widening
is exact. Narrowing is one rounding to the nearest, ties to even, whatever lies between (float64 to
bfloat16 does not pass through a rounded float32). Values beyond the largest number become infinite,
or NaN in F8_E4M3, which has no infinity (PyTorch clamps to 448 there); every NaN is written as the
one quiet NaN of its type.

Conversions run in C (`native`), or in PyTorch (`kernels_torch`) where there is no C, with the same
bits; `kernels` has the passes that compute in between. Types of less than a byte and complex
numbers are not known here.

Source: OCP 8-bit Floating Point Specification 1.0 for the two F8 types (E4M3 is what PyTorch calls
float8_e4m3fn).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.checkpoints import native
from holdfast.checkpoints.element_types import DTYPES, Array, DType
from holdfast.errors import ConfigError, Problem, ShapeError, did_you_mean

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
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
}


def dtype(name: str) -> DType:
    """The type of a name: safetensors' ("BF16"), PyTorch's and config.json's ("bfloat16",
    "torch.float16", "half") or a short form ("fp32").

    Raises:
        ConfigError: no such type; with the nearest known name.
    """
    plain = name.removeprefix("torch.").lower()
    known = {**{n.lower(): n for n in DTYPES}, **_ALIASES}
    if plain not in known:
        raise ConfigError(
            Problem(
                "dtype",
                f"expected one of {', '.join(DTYPES)} or a PyTorch name, got "
                f"{name!r}.{did_you_mean(plain, known)}",
            )
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
        out: `[N]` float32 or float64 to write into (float64 where `dtype` is F64); None: fresh
            float32, float64 for F64. It shares no memory with `raw`.

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
        from holdfast.checkpoints import kernels_torch

        kernels_torch.decode(raw, dtype, out)
    return out


def encode(values: Array, dtype: DType, out: Array) -> int:
    """Numbers as stored elements: one rounding to the nearest, ties to even. Gives how many FINITE
    values became infinite or NaN.

    Args:
        values: `[N]` float32 or float64, contiguous.
        dtype: a float type.
        out: `[N]` of `dtype.storage`, contiguous; it may be `values` itself where the types agree.

    Raises:
        ShapeError: `dtype` is no float type.
    """
    _need_float(dtype)
    library = native.load()
    if (
        library is not None
        and values.dtype == np.float32
        and dtype.name != "F64"
        and _plain(values, out)
    ):
        return library.encode(values, dtype.name, out)
    from holdfast.checkpoints import kernels_torch

    return kernels_torch.encode(values, dtype, out)


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
    from holdfast.checkpoints import kernels_torch

    return kernels_torch.count_nonfinite(raw, dtype)


def _plain(*arrays: Array) -> bool:
    """Whether C can walk through them."""
    return all(array.flags.c_contiguous and array.flags.aligned for array in arrays)


def _need_float(dtype: DType) -> None:
    if dtype.kind != "float":
        raise ShapeError(
            f"Expected elements of a float type, got {dtype.name}. Integers and booleans can only "
            "be copied."
        )
