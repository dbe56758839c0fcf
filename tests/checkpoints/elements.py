"""Stored elements for the tests of the engine's arithmetic: any bits, plausible weights, and what sits at the
borders of a type."""

from __future__ import annotations

import shutil

import kernel_reference
import numpy as np
import pytest

from holdfast.checkpoints.dtypes import decode
from holdfast.checkpoints.element_types import DTYPES, Operand

FLOATS = ("F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2")
SIZES = (0, 1, 2, 3, 7, 511, 513, 1023, 1024, 1025, 2048, 2603)
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.2e-38,
        6e-8,
        5.9e-8,
        448.0,
        464.0,
        465.0,
        57344.0,
        61440.0,
        65504.0,
        65520.0,
        3.38e38,
        3.4e38,
        -3.4e38,
        2.0**-9,
        2.0**-10,
        2.0**-16,
        2.0**-17,
        1.00390625,
        1.01171875,
    ],
    np.float32,
)

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler on this machine"
)


def numbers(seed: int, n: int, kind: str) -> np.ndarray:
    """`[n]` float32. Kinds: "weights", "tiny" (subnormal in the small types), "bits" (any pattern), "special",
    "mixed"."""
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal(n) * 0.02).astype(np.float32)
    bits = rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
    special = rng.choice(SPECIAL, n)
    if kind == "mixed":
        return np.choose(rng.integers(0, 8, n), [bits, special, *[weights] * 6])
    return {"weights": weights, "tiny": weights * np.float32(1e-6), "bits": bits, "special": special}[kind]


def stored(values: np.ndarray, name: str) -> Operand:
    """The values rounded to a type."""
    return Operand(kernel_reference.encode(np.ravel(values), DTYPES[name]), DTYPES[name])


def empty(name: str, n: int) -> Operand:
    return Operand(np.full(n, 77, DTYPES[name].storage), DTYPES[name])


def wide(operand: Operand) -> np.ndarray:
    """The numbers of an operand, float64."""
    return kernel_reference.decode(*operand)


def whole(source, name: str) -> np.ndarray:
    """A tensor of a source, in its shape."""
    entry = source.entries[name]
    return decode(*source.read(name, 0, entry.size, np.empty(entry.nbytes, np.uint8))).reshape(entry.shape)


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()
