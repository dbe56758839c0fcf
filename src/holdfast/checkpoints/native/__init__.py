"""The kernels in C (`kernels.c`), built at first use and loaded through ctypes;
`holdfast.support.native` builds and keeps the library.

Before anything uses it, a small problem that holds NaN, infinities and subnormal numbers has to
give known bits. Without a compiler, with HOLDFAST_NATIVE=0, or where the check fails, `load()`
gives None and `why_not()` the reason; the callers (`dtypes`, `counter`, `kernels`, which document
every function) then use PyTorch (`kernels_torch`). float64 elements are PyTorch's too, but for
sums.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.support.native import Settings, build, settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast.checkpoints.element_types import Operand

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)

TYPES = {"F32": 0, "BF16": 1, "F16": 2, "F8_E4M3": 3, "F8_E5M2": 4}
"""Types that every function takes."""
_ALL_TYPES = {**TYPES, "F64": 5}
MOST_OPERANDS = 63
"""Operands that one call takes: the bits of its mask."""
_ABSENT = (0, -1)
_SAMPLE = 1061
"""Elements of the problem that a new library is checked with: a block and an odd rest."""
_SAMPLE_DIGEST = "2fa644dae55c9a3f46e5569374804104"


_ARGUMENTS = {"i": ctypes.c_int64, "k": ctypes.c_uint64, "f": ctypes.c_float, "p": ctypes.c_void_p}
_SIGNATURES = {
    "count_nonfinite": "ip",
    "decode": "ipp",
    "encode": "ipp",
    "combine": "iipppp",
    "combine_doubles": "iipppp",
    "ties": "iipppfiipp",
    "delta_histogram": "ippiip",
    "moments": "ipp",
    "uniform": "kkip",
    "normal": "kkip",
    "perturb": "ipkkfpp",
    "stream": "iiipipppppp",
}
"""The functions' arguments: integers, keys of streams, floats, pointers."""
_Flags = ctypes.c_int64 * 2
_Results = ctypes.c_int64 * 5

PIECE = 131_072
"""Elements that `Kernels.stream` has in the cache at a time: of 16 bits still in the second level,
and enough for one call to the system."""


class Place(NamedTuple):
    """Elements in a file, and memory for them on the way."""

    descriptor: int
    position: int
    """Of the first element, in bytes."""
    dtype: str
    """As safetensors calls it."""
    memory: NDArray[Any]
    """uint8."""


class Streamed(NamedTuple):
    """What `Kernels.stream` came across."""

    nonfinite: int
    """Bit mask of the operands that hold NaN or infinities, as of `kernels.combine`."""
    overflow: int
    different: int
    error: int
    """0; an errno; -1 where a file has ended too early. What follows it has not been done."""
    where: int
    """With `error`: which input, or with the number of inputs the output."""
    digests: list[bytes]
    """XXH3-128 of each input and of the output."""


class Kernels:
    """The loaded library. Its methods check nothing: arrays are contiguous, of one length and of
    the right dtypes."""

    def __init__(self, library: ctypes.CDLL, compiler: str) -> None:
        self.compiler = compiler
        """The compiler's first line about itself."""
        self._library: Any = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"holdfast_{name}")
            function.restype = ctypes.c_int64
            function.argtypes = [_ARGUMENTS[letter] for letter in arguments]

    def count_nonfinite(self, raw: NDArray[Any], dtype: str) -> int:
        """As `dtypes.count_nonfinite`; the type by its safetensors name."""
        return self._library.holdfast_count_nonfinite(len(raw), _one(raw, dtype))

    def decode(self, raw: NDArray[Any], dtype: str, out: NDArray[Any]) -> None:
        """As `dtypes.decode`, into float32."""
        self._library.holdfast_decode(len(raw), _one(raw, dtype), _at(out))

    def encode(self, values: NDArray[Any], dtype: str, out: NDArray[Any]) -> int:
        """As `dtypes.encode`, from float32."""
        return self._library.holdfast_encode(len(values), _at(values), _one(out, dtype))

    def combine(
        self, operands: Sequence[Operand | None], weights: Sequence[float], out: Operand
    ) -> tuple[int, int]:
        """As `kernels.combine`; operands are the anchor, plus_0, minus_0, plus_1 ... F64 is among
        the types."""
        flags = _Flags()
        double = any(
            operand is not None and operand.dtype.name == "F64" for operand in (*operands, out)
        )
        combine = (
            self._library.holdfast_combine_doubles if double else self._library.holdfast_combine
        )
        numbers = struct.pack(f"{len(weights)}d", *weights) if double else _floats(weights)
        combine(len(out.raw), len(weights), _operands(*operands), numbers, _operands(out), flags)
        return flags[0], flags[1]

    def ties(
        self,
        operands: Sequence[Operand],
        thresholds: Sequence[float],
        weights: Sequence[float] | None,
        scale: float,
        by_count: bool,
        normalize: bool,
        out: Operand,
    ) -> tuple[int, int]:
        """As `kernels.ties`; operands are the base and the models."""
        flags = _Flags()
        self._library.holdfast_ties(
            len(out.raw),
            len(thresholds),
            _operands(*operands),
            _floats(thresholds),
            None if weights is None else _floats(weights),
            scale,
            by_count,
            normalize,
            _operands(out),
            flags,
        )
        return flags[0], flags[1]

    def delta_histogram(
        self, base: Operand, model: Operand, counts: NDArray[Any], level: int, prefix: int
    ) -> tuple[int, int]:
        """As `kernels.delta_histogram`."""
        flags = _Flags()
        self._library.holdfast_delta_histogram(
            len(base.raw), _operands(base, model), _at(counts), level, prefix, flags
        )
        return flags[0], flags[1]

    def moments(self, a: Operand, b: Operand) -> NDArray[Any]:
        """As `kernels.moments`."""
        out = np.empty(8)
        out[0] = len(a.raw)
        self._library.holdfast_moments(len(a.raw), _operands(a, b), _at(out[1:]))
        return out

    def uniform(self, key: int, start: int, out: NDArray[Any]) -> NDArray[Any]:
        """As `counter.uniform`, into float64."""
        self._library.holdfast_uniform(key, start, len(out), _at(out))
        return out

    def normal(self, key: int, start: int, out: NDArray[Any]) -> NDArray[Any]:
        """As `counter.normal`, into float32."""
        self._library.holdfast_normal(key, start, len(out), _at(out))
        return out

    def perturb(
        self, x: Operand, key: int, start: int, sigma: float, out: Operand
    ) -> tuple[int, int]:
        """As `kernels.perturb`."""
        flags = _Flags()
        self._library.holdfast_perturb(
            len(x.raw), _operands(x), key, start, sigma, _operands(out), flags
        )
        return flags[0], flags[1]

    def stream(
        self,
        count: int,
        inputs: Sequence[Place],
        indices: Sequence[int],
        weights: Sequence[float],
        out: Place,
        *,
        piece: int = PIECE,
        check: tuple[int, int, bool] | None = None,
    ) -> Streamed:
        """`out = anchor + sum_i weight_i * (plus_i - minus_i)` from files into a file, with the
        digest of all that passes.

        Elements are read, combined, hashed and written in pieces that stay in the second-level
        cache meanwhile, in one call outside Python's lock.

        Args:
            count: elements; the least of them take more than 240 bytes.
            inputs: where to read.
            indices: anchor, plus_0, minus_0, plus_1 ... as indices into `inputs`; -1 for none.
            weights: one a term.
            out: where to write.
            piece: elements, a multiple of 1024. The memories of `inputs` and `out` have room for
                twice as many.
            check: a base, a wanted input, and whether `out` is the residual between the two (else
                it is `wanted - base`, rounded to float32): counts the elements of which
                `base + residual`, in float32, has not the wanted bits.
        """
        results, digests = _Results(), ctypes.create_string_buffer(16 * (len(inputs) + 1))
        self._library.holdfast_stream(
            count,
            piece,
            len(inputs),
            _places(*inputs),
            len(weights),
            struct.pack(f"{len(indices)}q", *indices),
            _floats(weights),
            _places(out),
            struct.pack("3q", *(check or (-1, -1, 0))),
            digests,
            results,
        )
        mask, overflow, different, error, where = results
        hashed = digests.raw
        return Streamed(
            mask,
            overflow,
            different,
            error,
            where,
            [hashed[16 * i : 16 * i + 16] for i in range(len(inputs) + 1)],
        )


def load() -> Kernels | None:
    """The library, built if need be; None where it cannot be had (see `why_not`)."""
    return _load(settings())[0]


def why_not() -> str | None:
    """Why `load()` gives None, as half a sentence; None when it does not."""
    return _load(settings())[1]


@functools.lru_cache(maxsize=4)
def _load(wanted: Settings) -> tuple[Kernels | None, str | None]:
    built = build(SOURCE, flags=FLAGS, wanted=wanted)
    if isinstance(built, str):
        return None, built
    kernels = Kernels(*built)
    if _sample_digest(kernels) != _SAMPLE_DIGEST:
        return None, f"the library built by {built.compiler} does not give bit-exact results"
    return kernels, None


def _sample_digest(kernels: Kernels) -> str:
    """What a small problem gives, in every type: a compiler that fuses, reorders or rounds
    otherwise shows in it. The tests compare every entry point."""
    values = kernels.normal(1, 0, np.empty(_SAMPLE, np.float32))
    digest = hashlib.blake2b(values.tobytes(), digest_size=16)
    values[1::7] *= np.float32(1e-6)
    unusual = values[::-1].copy()
    unusual[::7], unusual[3::7] = np.nan, np.inf
    for name in TYPES:
        base, model, out = (
            Operand(np.empty(_SAMPLE, DTYPES[name].storage), DTYPES[name]) for _ in range(3)
        )
        kernels.encode(values, name, base.raw)
        kernels.encode(unusual, name, model.raw)
        kernels.combine([base, model, base], [0.3], out)
        digest.update(out.raw.tobytes())
        kernels.perturb(base, 1, 0, 0.1, out)
        digest.update(out.raw.tobytes())
    return digest.hexdigest()


def _at(array: Any) -> int:
    try:
        # a third of the time of the way below
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, or empty
        return array.__array_interface__["data"][0]


def _operands(*operands: Operand | None) -> bytes:
    """The C structs: packed bytes cost a fifth of ctypes structures, and a block is computed in as
    little as 50 microseconds."""
    flat: list[int] = []
    for operand in operands:
        flat += _ABSENT if operand is None else (_at(operand[0]), _ALL_TYPES[operand[1].name])
    return struct.pack(f"{len(flat)}q", *flat)


def _places(*places: Place) -> bytes:
    flat: list[int] = []
    for location in places:
        flat += (
            location.descriptor,
            location.position,
            TYPES[location.dtype],
            _at(location.memory),
        )
    return struct.pack(f"{len(flat)}q", *flat)


def _one(raw: NDArray[Any], dtype: str) -> bytes:
    return struct.pack("2q", _at(raw), TYPES[dtype])


def _floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}f", *values)
