"""Where a checkpoint comes from: parents with fingerprints of their content, what was done, and
with which versions.

The fingerprint of a tensor is XXH3-128 over the XXH3-128 digests of its blocks of `UNIT` elements;
a checkpoint's is XXH3-128 over its tensors' names, dtypes, shapes and fingerprints in order of
names. So it says what the tensors hold, however they are sharded, and it comes out of the pass that
reads or writes them. It tells checkpoints apart; it is no protection against someone who wants two
to look alike.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.sources import stretches
from holdfast.support.environment import package_version

if TYPE_CHECKING:
    import numpy as np

    from holdfast.checkpoints.element_types import DType
    from holdfast.checkpoints.sources import Source

UNIT = 1_048_576
"""Elements in a block: what one thread works on at a time, and what is hashed together."""
FILE = "provenance.json"


class Digests:
    """Digests of blocks, collected from several threads in any order."""

    def __init__(self) -> None:
        self._blocks: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, start: int, raw: np.ndarray) -> None:
        """One block: elements from `start` (a multiple of `UNIT`) on, as stored."""
        import xxhash

        self.put(name, start, xxhash.xxh3_128_digest(raw.data if raw.size else b""))

    def put(self, name: str, start: int, digest: bytes) -> None:
        """One block whose XXH3-128 is known already."""
        with self._lock:
            self._blocks.setdefault(name, {})[start] = digest

    def tensor(self, name: str, size: int) -> str | None:
        """The fingerprint (hex) of a tensor of `size` elements; None where blocks are missing."""
        import xxhash

        blocks = self._blocks.get(name, {})
        if any(start not in blocks for start, _ in stretches(size, UNIT)):
            return None
        return xxhash.xxh3_128_hexdigest(
            b"".join(blocks[start] for start, _ in stretches(size, UNIT))
        )


def fingerprint_of(tensors: Mapping[str, tuple[DType, tuple[int, ...], str]]) -> str:
    """The fingerprint (hex) of a checkpoint from
    `{name: (dtype, shape, fingerprint of the tensor)}`."""
    import xxhash

    rows = []
    for name, (dtype, shape, digest) in sorted(tensors.items()):
        rows.append([name, dtype.name, list(shape), digest])
    return xxhash.xxh3_128_hexdigest(json.dumps(rows, separators=(",", ":")).encode())


def content_fingerprint(source: Source, *, known: Digests | None = None, workers: int = 2) -> str:
    """The fingerprint of what a source holds; reads what `known` does not have yet.

    Args:
        source: stored tensors (a `CheckpointReader`).
        known: digests from an earlier pass.
        workers: threads.
    """
    import numpy as np

    digests = known or Digests()
    local = threading.local()
    blocks = []
    for entry in source.entries.values():
        if digests.tensor(entry.name, entry.size) is None:
            blocks += [(entry.name, start, stop) for start, stop in stretches(entry.size, UNIT)]

    def hash_block(block: tuple[str, int, int]) -> None:
        if not hasattr(local, "buffer"):
            local.buffer = np.empty(UNIT * 8, np.uint8)
        name, start, _ = block
        digests.add(name, start, source.read(*block, local.buffer).raw)

    with ThreadPoolExecutor(max_workers=workers) as pool:
        for _ in pool.map(hash_block, blocks, chunksize=16):
            pass
    tensors = {}
    for name, entry in source.entries.items():
        tensors[name] = (entry.dtype, entry.shape, digests.tensor(name, entry.size) or "")
    return fingerprint_of(tensors)


def parent_record(role: str, source: Source, fingerprint: str | None) -> dict[str, Any]:
    """What the record says of one parent: its role, name, and fingerprint; SHA-256 of files that
    come from a hub cache, which is their name there."""
    record: dict[str, Any] = {"role": role, "name": source.label, "fingerprint": fingerprint}
    digests = {}
    for file in sorted({e.file for e in source.entries.values()}):
        target = Path(os.path.realpath(file))
        if target.parent.name == "blobs" and len(target.name) == 64:
            digests[file.name] = target.name
    return record | ({"sha256": digests} if digests else {})


def versions() -> dict[str, str]:
    """Versions of what had a part in the numbers."""
    known = {"python": platform.python_version()}
    for name in ("holdfast", "numpy", "safetensors", "xxhash"):
        version = package_version(name)
        if version:
            known[name] = version
    return known
