"""What a residual loses when it is rounded for storage, kept where it matters, so that residual +
base gives the instruct model back bit for bit.

    residual = hi + lo,   hi = the stored value (float32),   lo = (instruct - base) - hi

The error of a float32 subtraction is itself a float32 number (Dekker 1971; Knuth, TAOCP 2, 4.2.2),
so the two together are exact. lo is needed only where base + hi, in float32, is not the instruct
model's weight. That is where a weight became so much smaller than the base's that no float32 number
near their difference leads back to it: by a factor of two for a float32 base, of 2^16 where both
models are bfloat16. In a fine-tune these are few. They lie, sparse, beside each file of the
residual: `residual.remainder.safetensors` holds for tensor T the element numbers `T.index` (int64,
ascending) and the values `T.value` (float32).

What is right in float32 is right in every narrower dtype that holds the instruct model's numbers,
whatever the base's dtype is; tensors of float64 are compared in float64. What this cannot restore
is the sign of a zero, and what a residual of 16 bits rounds away: remainders are kept for float32
and wider only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from holdfast.checkpoints.dtypes import decode, encode
from holdfast.checkpoints.element_types import DTYPES, DType, Operand
from holdfast.checkpoints.engine import Job
from holdfast.checkpoints.kernels import Term, combine
from holdfast.checkpoints.methods.protocol import Block
from holdfast.checkpoints.reader import CheckpointReader, read_header
from holdfast.checkpoints.sources import Entry
from holdfast.checkpoints.writer import Slot, disk_errors, fsync_path, lay_out

SUFFIX = ".remainder.safetensors"


def compared_in(base: DType, instruct: DType, residual: DType) -> DType:
    """The dtype in which `base + residual` is compared with the instruct model.

    For a residual of 32 bits or more it is float32 (float64 where a model is), for one of 16 bits,
    which is not exact anyway, the narrowest that holds the numbers of both models.
    """
    if "F64" in (base.name, instruct.name):
        return DTYPES["F64"]
    if residual.itemsize >= 4:
        return DTYPES["F32"]
    return base if base.holds(instruct) else instruct if instruct.holds(base) else DTYPES["F32"]


def remainder(block: Block, hi: Operand) -> tuple[np.ndarray, np.ndarray, int]:
    """Where base + hi is not the instruct model's weight, and what is missing there.

    Args:
        block: the base and, as its first model, the instruct model.
        hi: `[count]`, the residual as it is stored.

    Returns:
        `[K]` int64 positions within the block, `[K]` float32 values, and how many elements will not
        come back bit for bit even so; all of them in the dtype of `compared_in`.
    """
    tuned, base = block.models[0], block.base
    assert base is not None
    dtype = compared_in(base.dtype, tuned.dtype, hi.dtype)
    places = _different(base, hi, _stored_as(tuned, dtype))
    if not len(places) or hi.dtype.itemsize < 4:
        return places[:0], np.empty(0, np.float32), len(places)
    i, b, h = _values(tuned, places), _values(base, places), _values(hi, places)
    # (i - b) - h in an order that loses nothing: of i and b one is near h, or h is their exact
    # difference
    base_is_smaller = np.abs(i) >= np.abs(b)
    low = np.where(base_is_smaller, (i - h) - b, i - (b + h)).astype(np.float32)
    is_mended = low != 0
    places, low, h = places[is_mended], low[is_mended], h[is_mended]
    both = Operand(h + low.astype(np.float64), DTYPES["F64"])
    left = _different(_taken(base, places), both, _stored_as(_taken(tuned, places), dtype))
    return places.astype(np.int64), low, len(left) + int((~is_mended).sum())


def _different(base: Operand, residual: Operand, wanted: Operand) -> np.ndarray:
    """`[K]` places where `base + residual`, rounded to the wanted operand's dtype, has other
    bits."""
    back = Operand(np.empty_like(wanted.raw), wanted.dtype)
    combine(base, [Term(1.0, residual)], back)
    return np.flatnonzero(back.raw.view(wanted.dtype.bits) != wanted.raw.view(wanted.dtype.bits))


def _values(operand: Operand, places: np.ndarray) -> np.ndarray:
    """In float64."""
    return decode(operand.raw[places], operand.dtype).astype(np.float64)


def _taken(operand: Operand, places: np.ndarray) -> Operand:
    return Operand(operand.raw[places], operand.dtype)


def _stored_as(operand: Operand, dtype: DType) -> Operand:
    """An operand in a dtype that holds its numbers."""
    if operand.dtype == dtype:
        return operand
    raw = np.empty(len(operand.raw), dtype.storage)
    encode(decode(operand.raw, operand.dtype), dtype, raw)
    return Operand(raw, dtype)


class RemainderFiles:
    """Collects remainders while a residual is written: one file beside each of its files, written
    with its last block. Until then they are in memory, 12 bytes each.

    Args:
        folder: where the residual is being written.
        left: file: how many blocks of it are still to come.
    """

    def __init__(self, folder: Path, left: Mapping[str, int]) -> None:
        self.folder = folder
        self._left = dict(left)
        self._parts: dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]] = {
            file: {} for file in left
        }
        for file, blocks in self._left.items():
            if not blocks:
                self._finish(file)

    def add(self, job: Job, start: int, places: np.ndarray, values: np.ndarray) -> None:
        """One block's remainders; blocks of a file come tensor after tensor, each from its start to
        its end."""
        if len(places):
            self._parts[job.file].setdefault(job.name, []).append((places + start, values))
        self._left[job.file] -= 1
        if not self._left[job.file]:
            self._finish(job.file)

    def close(self) -> int:
        """Removes the files in which there is nothing; gives the number of elements that the others
        hold."""
        total = 0
        for path in self.folder.glob(f"*{SUFFIX}"):
            _, entries = read_header(path)
            count = sum(entry.size for entry in entries if entry.name.endswith(".index"))
            total += count
            if not count:
                path.unlink()
        return total

    def _finish(self, file: str) -> None:
        tensors: dict[str, np.ndarray] = {}
        for name, parts in self._parts.pop(file).items():
            indices, values = zip(*parts, strict=True)
            tensors[f"{name}.index"] = np.concatenate(indices).astype(np.int64)
            tensors[f"{name}.value"] = np.concatenate(values).astype(np.float32)
        slots = []
        for name, array in tensors.items():
            dtype = DTYPES["I64" if array.dtype == np.int64 else "F32"]
            slots.append(Slot(name, dtype, array.shape, array.nbytes))
        target = self.folder / remainder_name(file)
        partial = target.with_name(target.name + ".part")
        shard = lay_out(target.name, slots, {"format": "holdfast remainders"})
        with disk_errors(self.folder):
            partial.write_bytes(
                shard.header + b"".join(tensors[name].tobytes() for name in shard.offsets)
            )
            fsync_path(partial)
            os.rename(partial, target)


def remainder_name(file: str) -> str:
    """The name of the file with the remainders of one file of a residual."""
    return file.removesuffix(".safetensors") + SUFFIX


class Remaindered:
    """A residual with its remainders: where a block has some, its values are float64, `hi + lo`.

    Args:
        source: the residual's folder, open.

    Raises:
        ModelError: a file of remainders is damaged.
    """

    def __init__(self, source: CheckpointReader) -> None:
        self.source, self.label, self.folder = source, source.label, source.folder
        self.entries: Mapping[str, Entry] = source.entries
        self._held: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for file in source.files:
            path = self.folder / remainder_name(file.name)
            if path.is_file():
                self._held |= _mapped(path)

    @property
    def elements(self) -> int:
        """How many remainders there are."""
        return sum(len(index) for index, _ in self._held.values())

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """See `Source.read`."""
        operand = self.source.read(name, start, stop, buffer)
        index, value = self._held.get(name, (None, None))
        if index is None or value is None:
            return operand
        first, last = np.searchsorted(index, (start, stop))
        if first == last:
            return operand
        wide = decode(operand.raw, operand.dtype).astype(np.float64)
        wide[np.asarray(index[first:last]) - start] += value[first:last]
        return Operand(wide, DTYPES["F64"])


def _mapped(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of each tensor that has remainders: element numbers and values."""
    _, entries = read_header(path)
    arrays = {}
    for entry in entries:
        if entry.size:
            dtype, shape = entry.dtype.storage, (entry.size,)
            arrays[entry.name] = np.memmap(path, dtype, mode="r", offset=entry.offset, shape=shape)
    names = [name.removesuffix(".index") for name in arrays if name.endswith(".index")]
    return {name: (arrays[f"{name}.index"], arrays[f"{name}.value"]) for name in names}
