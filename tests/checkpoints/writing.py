"""Checkpoint writers at work: whole, in part, and killed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np

from checkpoint_folders import Model, stored
from holdfast.checkpoints.dtypes import dtype
from holdfast.checkpoints.provenance import FILE
from holdfast.checkpoints.writer import CheckpointWriter, Slot, shard_names

KEY = "0123456789abcdef" * 4


def shards_of(tensors: Model, count: int = 1) -> list[tuple[str, list[Slot]]]:
    names = list(tensors)
    each = -(-len(names) // count)
    slots = {n: Slot(n, dtype(t.dtype), t.shape, len(t.content)) for n, t in tensors.items()}
    return [
        (file, [slots[n] for n in names[i * each : (i + 1) * each]])
        for i, file in enumerate(shard_names("model", count))
    ]


def pieces(tensors: Model, unit: int = 50) -> list[tuple[str, int, np.ndarray]]:
    found = []
    for name, tensor in tensors.items():
        raw = np.frombuffer(tensor.content, dtype(tensor.dtype).storage)
        found += [(name, start, raw[start : start + unit]) for start in range(0, max(1, len(raw)), unit)]
    return found


def record(folder: Path) -> None:
    (folder / FILE).write_text("{}")


def write(folder: Path, tensors: Model, *, shards: int = 1, shuffle: int | None = None, **settings) -> CheckpointWriter:
    made = CheckpointWriter(folder, shards_of(tensors, shards), **{"key": KEY, "sync": False, **settings})
    work = pieces(tensors)
    if shuffle is not None:
        random.Random(shuffle).shuffle(work)
    for name, start, raw in work:
        if not made.done(name):
            made.write(name, start, raw)
    made.close(record)
    return made


MIXED = {
    "odd": stored(np.arange(3.0), "F8_E4M3"),
    "half": stored(np.arange(5.0), "BF16"),
    "scalar": stored(np.array(7.0), "F32"),
    "flag": stored(np.array([True, False, True]), "BOOL"),
    "empty": stored(np.zeros((2, 0, 3)), "F16"),
    "wide": stored(np.arange(4.0), "F64"),
    "count": stored(np.arange(6), "I64"),
    "grid": stored(np.arange(99.0).reshape(9, 11), "F32"),
}


def begun(folder: Path, tensors: Model, *, shards: int = 3, finish: int = 1, **settings) -> CheckpointWriter:
    """A writer that has written so many shards and one piece more."""
    made = CheckpointWriter(folder, shards_of(tensors, shards), **{"key": KEY, **settings})
    full = {slot.name for _, slots in shards_of(tensors, shards)[:finish] for slot in slots}
    rest = [w for w in pieces(tensors) if w[0] not in full]
    for work in [*[w for w in pieces(tensors) if w[0] in full], rest[0]]:
        made.write(*work)
    return made


def killed(made: CheckpointWriter) -> Path:
    """What a kill leaves: the lock is gone, the files are there."""
    made._syncer.shutdown(wait=True)
    for shard in made._shards:
        if shard.descriptor >= 0:
            os.close(shard.descriptor)
    os.close(made._lock)
    made._lock = -1
    return made.staging
