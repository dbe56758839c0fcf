"""Element types of stored tensors: names, sizes and bit patterns, without any conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class DType:
    """One element type."""

    name: str
    """As safetensors writes it: "F32", "BF16", "F8_E4M3", "I64" ..."""
    storage: np.dtype[Any]
    """NumPy's type of the raw elements, little-endian; bfloat16 lies in uint16, 8-bit floats in
    uint8."""
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
    table = {}
    for name, (storage, exponent, mantissa) in floats.items():
        table[name] = DType(name, np.dtype(storage), "float", exponent, mantissa)
    for sign in "IU":
        for size in (8, 4, 2, 1):
            name = f"{sign}{8 * size}"
            table[name] = DType(name, np.dtype(f"<{sign.lower()}{size}"), "integer")
    return table | {"BOOL": DType("BOOL", np.dtype("?"), "boolean")}


DTYPES: dict[str, DType] = _table()
"""Every known type by its safetensors name."""
