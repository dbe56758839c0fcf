"""Hidden states of documents on disk: written once, checked, read where they lie.

A store is a folder that belongs to one teacher. It holds shards, safetensors files that describe
themselves:

    hidden [R, K]   the states of D documents one after the other, R = rows.sum()
    keys [D, 16]    uint8, BLAKE2b-128 of each document's token ids
    rows [D]        int64, tokens of each document
    forward [0]     has the dtype of the teacher's forward and nothing in it

The header holds the format and the teacher's key. A file's name is the checksum of its content (the
first half of its XXH3-128), so any damage shows. There is no index file that could go stale: the
index is made from the shards' own tables when the store is opened. A shard is whole or absent;
several processes may add shards at once, and a build that is killed keeps those it had finished.

Header and length are checked when a shard is opened, its content by `is_sound`. What fails is
deleted by whoever uses the store and built again. Files that this module did not name are not
touched.

Reads are views of memory-mapped files. Not here: what a document is, whose states they are, and
computing them (`cached_teacher`, `teacher_states`).

Shape suffixes: R rows (tokens) of a shard, D documents of a shard, N tokens of a document, K hidden
width.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from holdfast.errors import StorageError
from holdfast.support.files import write_bytes_atomic
from holdfast.support.leftovers import NewFolder, remove_unless_held

FORMAT = "holdfast.states/2"
"""Changes when a reader of today could not read the file; shards of another format are not used."""
KEY_BYTES = 16


class StateStore:
    """The documents' states of one teacher.

    Args:
        folder: made when it does not exist.
        teacher: the teacher's key; shards of any other are not used.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: Path, *, teacher: str) -> None:
        self.folder, self.teacher = folder, teacher
        try:
            self.new_folder = NewFolder(self.folder, content=False)
        except OSError as error:
            raise StorageError(
                f"Could not make the folder {self.folder} ({error.strerror or error}). Choose "
                "another cache_dir."
            ) from error
        self.scan()

    def scan(self) -> None:
        """Opens the shards that are there now; checks headers and lengths, not the states."""
        from safetensors import SafetensorError

        self.shards: dict[str, dict[bytes, Tensor]] = {}
        """By a shard's name each document's `[N, K]` by its key: views of the file, not to be
        written to."""
        self.states: dict[bytes, Tensor] = {}
        """Those of all shards."""
        self.forward = torch.float32
        """dtype that the teacher's forward yielded."""
        self.unreadable: list[str] = []
        """Files that are not used although they should be shards."""
        for path in sorted(self.folder.glob("[0-9a-f]" * 16 + ".safetensors")):
            try:
                self.shards[path.name], self.forward = _open_shard(path, self.teacher)
            except FileNotFoundError:  # another process has just removed it
                continue
            except (SafetensorError, OSError, RuntimeError, ValueError):
                self.unreadable.append(path.name)
        for states in self.shards.values():
            self.states.update(states)

    def shards_of(self, keys: Collection[bytes]) -> list[str]:
        """Names of the shards that hold any of these documents, sorted."""
        return [name for name, states in self.shards.items() if not states.keys().isdisjoint(keys)]

    def is_sound(self, name: str) -> bool:
        """Whether a shard's content has its checksum. Reading and the checksum run outside Python's
        lock."""
        try:
            with open(self.folder / name, "rb") as file:
                digest = hashlib.file_digest(file, xxhash.xxh3_128)
        except OSError:
            return False
        return name == _shard_name(digest.hexdigest())

    def write(self, states: Mapping[bytes, Tensor], forward: torch.dtype) -> None:
        """Adds a shard; the store sees it after its next `scan`.

        Args:
            states: `[N, K]` of each document, on the CPU, in the dtype it is to be stored in.
            forward: dtype that the teacher's forward yields.

        Raises:
            StorageError: the disk is full or the folder cannot be written. What was written before
                is whole.
        """
        from safetensors.torch import save

        for leftover in self.folder.glob(".*.tmp"):  # of builds that were killed
            remove_unless_held(leftover)
        tensors = {
            "hidden": torch.cat(list(states.values())),
            "keys": torch.frombuffer(bytearray(b"".join(states)), dtype=torch.uint8).view(
                -1, KEY_BYTES
            ),
            "rows": torch.tensor([len(states_NK) for states_NK in states.values()]),
            "forward": torch.empty(0, dtype=forward),
        }
        # One entry of the header only: safetensors writes several in any order.
        content = save(tensors, metadata={FORMAT: self.teacher})
        write_bytes_atomic(self.folder / _shard_name(xxhash.xxh3_128_hexdigest(content)), content)

    def try_lock(self) -> int | None:
        """Takes the builder's lock and returns its handle (closing it gives the lock back); None
        while another process holds it.

        The lock keeps two runs from computing the same states; nothing is wrong without it, so a
        file system that has no locks gives one to everybody.
        """
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            pass
        return handle


def _shard_name(digest: str) -> str:
    return f"{digest[:16]}.safetensors"


def _open_shard(path: Path, teacher: str) -> tuple[dict[bytes, Tensor], torch.dtype]:
    """Maps a shard: its documents' states, and the dtype of the teacher's forward.

    Raises:
        FileNotFoundError: it has gone.
        SafetensorError, OSError, RuntimeError, ValueError: it cannot be read, or is of another
            format or teacher.
    """
    from safetensors import safe_open

    with safe_open(
        str(path), "pt"
    ) as file:  # refuses a file that is shorter or longer than its header says
        if file.metadata() != {FORMAT: teacher}:
            raise ValueError(
                f"expected a shard in the format {FORMAT} with states of the teacher {teacher}, got "
                f"{file.metadata()}"
            )
        hidden_RK, keys, rows, forward = map(file.get_tensor, ("hidden", "keys", "rows", "forward"))
    states = dict(zip(map(bytes, keys.numpy()), hidden_RK.split(rows.tolist()), strict=True))
    return states, forward.dtype
