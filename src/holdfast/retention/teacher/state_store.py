"""Hidden states of documents on disk: written once, checked, read where they lie.

A store is a folder that belongs to one teacher. It holds shards, safetensors files that describe themselves:

    hidden [R, K]   the states of D documents one after the other, R = rows.sum()
    keys [D, 16]    uint8, BLAKE2b-128 of each document's token ids
    rows [D]        int64, tokens of each document
    crc [D]         int64, CRC-32 of each document's states

and in the header the format, the teacher's key, and a digest of keys, rows and crc. There is no index file that could
go stale: the index is made from the shards' own tables when the store is opened. A shard is whole or absent; several
processes may add shards at once, and a build that is killed keeps those it had finished.

Header, digest and length are checked when a shard is opened, its states by `damaged`. What fails is deleted by whoever
uses the store and built again. Files that this module did not name are not touched.

Reads are views of memory-mapped files. Not here: what a document is, whose states they are, and computing them
(`cached_teacher`, `teacher_states`).

Shape suffixes: R rows (tokens) of a shard, D documents of a shard, N tokens of a document, K hidden width.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import StorageError
from holdfast.support.files import whole_file
from holdfast.support.leftovers import remove_unless_held

FORMAT = "holdfast.states/1"
"""Changes when a reader of today could not read the file; shards of another format are not used."""
KEY_BYTES = 16
SHARD_BYTES = 256 * 2**20
"""States of a shard, bytes: few enough to lose little when a build is killed, enough that a large cache is hundreds of
files, not millions."""
SHARD_SECONDS = 300.0
"""A slow build writes what it has after this time, however little."""

_OWN_NAME = re.compile(r"[0-9a-f]{16}\.safetensors")


class StateStore:
    """The documents' states of one teacher.

    Args:
        folder: made when it does not exist.
        teacher: the teacher's key; shards of any other are not used.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], *, teacher: str) -> None:
        self.folder = Path(folder)
        self.teacher = teacher
        self.unreadable: dict[str, str] = {}
        """Files that are not used although they should be shards, and why."""
        self.foreign: list[str] = []
        """Files that somebody else put here; never used, never touched."""
        self._shards: dict[str, _Shard] = {}
        self._documents: dict[bytes, tuple[_Shard, Tensor]] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"Could not make the folder {self.folder} ({error.strerror or error}). Choose another cache_dir."
            ) from error
        self.scan()

    def __contains__(self, key: bytes) -> bool:
        return key in self._documents

    def __len__(self) -> int:
        return len(self._documents)

    def scan(self) -> None:
        """Opens shards that have come since the last look and forgets those that have gone; checks headers, tables and
        lengths, not the states."""
        shards: dict[str, _Shard] = {}
        self.unreadable, self.foreign = {}, []
        for path in sorted(self.folder.glob("[!.]*.safetensors")):
            if not _OWN_NAME.fullmatch(path.name):
                self.foreign.append(path.name)
                continue
            try:
                shards[path.name] = self._shards.get(path.name) or _open_shard(path, self.teacher)
            except FileNotFoundError:
                continue
            except _Damaged as error:
                self.unreadable[path.name] = str(error)
        self._shards = shards
        self._documents = {}
        for shard in shards.values():
            for key, states_NK in zip(shard.keys, shard.hidden_RK.split(shard.rows), strict=True):
                self._documents.setdefault(key, (shard, states_NK))

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """The documents that are not here, in the order given."""
        return [k for k in keys if k not in self._documents]

    def documents_bytes(self, keys: Iterable[bytes]) -> int:
        """Bytes of these documents' states, which are here."""
        return sum(self._documents[key][1].nbytes for key in keys)

    def dtype(self) -> torch.dtype | None:
        """The states' dtype; None for an empty store."""
        return next((s.hidden_RK.dtype for s in self._shards.values()), None)

    def forward(self) -> str | None:
        """dtype of the teacher's forward, as the builder noted it; None for an empty store."""
        return next((s.forward for s in self._shards.values()), None)

    def read(self, key: bytes) -> Tensor:
        """A document's states `[N, K]`, a view of the file; not to be written to.

        Raises:
            KeyError: not here.
        """
        return self._documents[key][1]

    def shards_of(self, keys: Iterable[bytes]) -> list[str]:
        """Names of the shards that hold any of these documents, sorted."""
        return sorted({self._documents[key][0].name for key in keys if key in self._documents})

    def shard_bytes(self, names: Iterable[str]) -> int:
        """Bytes of the states in these shards."""
        return sum(self._shards[name].hidden_RK.nbytes for name in names)

    def damaged(self, names: Sequence[str], *, advance: Callable[[float], None] = lambda amount: None) -> list[str]:
        """Names of those of these shards whose states differ from their checksums.

        Args:
            names: of shards, as `shards_of` gives them.
            advance: gets the number of bytes read.
        """
        shards = [self._shards[name] for name in names]
        damaged = []
        with ThreadPoolExecutor(max_workers=8) as pool:  # the checksum runs outside Python's lock
            for shard, sound in zip(shards, pool.map(_is_sound, shards), strict=True):
                advance(float(shard.hidden_RK.nbytes))
                if not sound:
                    damaged.append(shard.name)
        return damaged

    def remove(self, name: str) -> None:
        """Deletes a shard. A process that has it open goes on reading what it has."""
        (self.folder / name).unlink(missing_ok=True)

    def try_lock(self) -> int | None:
        """Takes the builder's lock and returns its handle for `unlock`; None while another process holds it.

        The lock keeps two runs from computing the same states; nothing is wrong without it, so a file system that has
        no locks gives one to everybody.
        """
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            return handle
        for left in self.folder.glob(".*.tmp"):  # of builds that were killed
            remove_unless_held(left)
        return handle

    def unlock(self, handle: int) -> None:
        """Gives the lock back (closing the handle does)."""
        os.close(handle)


class ShardWriter:
    """Collects documents' states and writes them as shards. Use as a context manager; leaving it writes what is left,
    unless an error other than Ctrl-C ends it.

    Args:
        store: where to; it sees the new shards after its next `scan`.
        shard_bytes: states of a shard.
    """

    def __init__(self, store: StateStore, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.store, self.shard_bytes = store, shard_bytes
        self._pending: dict[bytes, Tensor] = {}
        self._forward = ""
        self._bytes = 0
        self._began = time.monotonic()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.flush()

    def add(self, key: bytes, states_NK: Tensor, forward: torch.dtype) -> None:
        """Takes one document.

        Args:
            key: 16 bytes.
            states_NK: `[N, K]`, on the CPU, the dtype it is to be stored in; kept in memory until it is written.
            forward: dtype that the teacher's forward yields.

        Raises:
            StorageError: a shard is full and cannot be written.
        """
        self._pending[key] = states_NK.contiguous()
        self._forward = str(forward).removeprefix("torch.")
        self._bytes += states_NK.nbytes
        if self._bytes >= self.shard_bytes or time.monotonic() - self._began > SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes a shard of what was collected.

        Raises:
            StorageError: the disk is full or the folder cannot be written. What was written before is whole.
        """
        if not self._pending:
            return
        from safetensors.torch import save

        states = list(self._pending.values())
        keys = bytearray(b"".join(self._pending))
        tables = {
            "keys": torch.frombuffer(keys, dtype=torch.uint8).view(-1, KEY_BYTES),
            "rows": torch.tensor([len(s) for s in states], dtype=torch.int64),
            "crc": torch.tensor([_crc(s) for s in states], dtype=torch.int64),
        }
        hidden_RK = torch.cat(states)
        header = {"format": FORMAT, "teacher": self.store.teacher, "note.forward": self._forward}
        digest = _digest(header, tables, hidden_RK)
        with whole_file(self.store.folder / f"{digest[:16]}.safetensors") as file:
            file.write(save({"hidden": hidden_RK, **tables}, metadata={**header, "digest": digest}))
        self._pending, self._bytes, self._began = {}, 0, time.monotonic()


class _Damaged(Exception):
    """A file that is not the shard it should be; says why."""


@dataclass(frozen=True)
class _Shard:
    """One open file: the mapped states and its tables."""

    name: str
    hidden_RK: Tensor
    keys: list[bytes]
    rows: list[int]
    crc: list[int]
    forward: str


def _open_shard(path: Path, teacher: str) -> _Shard:
    """Maps a shard and checks everything but the states.

    Raises:
        FileNotFoundError: it has gone.
        _Damaged: with the reason.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:  # refuses a file that is shorter or longer than its header says
            header = file.metadata() or {}
            if (header.get("format"), header.get("teacher")) != (FORMAT, teacher):
                raise _Damaged(f"it is {header.get('format')} of the teacher {header.get('teacher')}")
            hidden_RK = file.get_tensor("hidden")
            tables = {name: file.get_tensor(name).clone() for name in ("keys", "rows", "crc")}
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _Damaged(f"it cannot be read: {error}") from error
    if header.pop("digest", None) != _digest(header, tables, hidden_RK):
        raise _Damaged("its header or its tables differ from their digest")
    keys = [bytes(key) for key in tables["keys"].numpy()]
    return _Shard(
        path.name, hidden_RK, keys, tables["rows"].tolist(), tables["crc"].tolist(), header.get("note.forward", "")
    )


def _digest(header: dict[str, str], tables: dict[str, Tensor], hidden_RK: Tensor) -> str:
    """Of the header, the tables' bytes and what the states' bytes mean; hex."""
    digest = hashlib.blake2b(
        f"{sorted(header.items())} {hidden_RK.dtype} {tuple(hidden_RK.shape)}".encode(), digest_size=16
    )
    for name in ("keys", "rows", "crc"):
        digest.update(tables[name].numpy())
    return digest.hexdigest()


def _is_sound(shard: _Shard) -> bool:
    return [_crc(states_NK) for states_NK in shard.hidden_RK.split(shard.rows)] == shard.crc


def _crc(states_NK: Tensor) -> int:
    """CRC-32 of the bytes of a contiguous tensor."""
    return zlib.crc32(states_NK.view(torch.uint8).numpy())
