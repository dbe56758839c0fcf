"""Hidden states of documents on disk: written once, checked, read where they lie.

A store is a folder that belongs to one teacher. It holds shards, safetensors files that describe themselves:

    hidden [R, K]   the states of D documents one after the other, R = rows.sum()
    keys [D, 16]    uint8, BLAKE2b-128 of each document's token ids
    rows [D]        int64, tokens of each document
    crc [D]         int64, CRC-32 of each document's states

and in the header the format, the teacher's key, and a digest of keys, rows and crc. There is no index file that could
go stale: the index is made from the shards' own tables when the store is opened. A shard is written aside, synced and
renamed, so it is whole or absent; several processes may add shards at once, and a build that is killed keeps those it
had finished.

Nothing is used that was not checked: header, digest and length when a shard is opened, the CRC of a document's states
by `verify` and again when they are first read. What fails is left out, and `remove_damaged` deletes it so that it is
built again. Files that this module did not name are not touched.

Reads are views of memory-mapped files. Not here: what a document is, whose states they are, and computing them
(`cached_teacher`, `teacher_states`).

Shape suffixes: R rows (tokens) of a shard, D documents of a shard, N tokens of a document, K hidden width.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import StorageError

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
        self.damaged: dict[str, str] = {}
        """Files that are not used although they should be shards, and why; `remove_damaged` deletes them."""
        self.foreign: list[str] = []
        """Files that somebody else put here; never used, never touched."""
        self._shards: dict[str, _Shard] = {}
        self._where: dict[bytes, tuple[_Shard, int]] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"Could not make the folder {self.folder} ({error.strerror or error}). Choose another cache_dir."
            ) from error
        self.scan()

    def __contains__(self, key: bytes) -> bool:
        return key in self._where

    def __len__(self) -> int:
        return len(self._where)

    def scan(self) -> None:
        """Opens shards that have come since the last look and forgets those that have gone; checks headers, tables and
        lengths, not the states."""
        names = sorted(p.name for p in self.folder.glob("*.safetensors") if not p.name.startswith("."))
        self.foreign = [n for n in names if not _OWN_NAME.fullmatch(n)]
        gone = set(self._shards) - set(names)
        for name in gone:
            del self._shards[name]
        self.damaged = {n: why for n, why in self.damaged.items() if n in names}
        for name in names:
            if name in self._shards or name in self.foreign or name in self.damaged:
                continue
            try:
                self._shards[name] = _open_shard(self.folder / name, self.teacher)
            except FileNotFoundError:
                continue
            except _Damaged as error:
                self.damaged[name] = str(error)
        self._index()

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """The documents that are not here, in the order given."""
        return [k for k in keys if k not in self._where]

    def documents_bytes(self, keys: Iterable[bytes]) -> int:
        """Bytes of these documents' states; those that are not here count nothing."""
        found = (self._where[k] for k in keys if k in self._where)
        return sum(shard.rows[i] * shard.hidden.shape[1] * shard.hidden.element_size() for shard, i in found)

    def dtype(self) -> torch.dtype | None:
        """The states' dtype; None for an empty store."""
        return next((s.hidden.dtype for s in self._shards.values()), None)

    def note(self) -> dict[str, str]:
        """What the builder wrote beside the states (`ShardWriter.note`); empty for an empty store."""
        return next((dict(s.note) for s in self._shards.values()), {})

    def verify(self, keys: Sequence[bytes], *, advance: Callable[[float], None] = lambda amount: None) -> None:
        """Compares the states of these documents with their checksums. A shard with a difference is left out from then
        on, as `damaged`.

        Args:
            keys: documents that are here (others are passed over).
            advance: gets the number of bytes read.
        """
        todo = [(shard, i) for shard, i in (self._where[k] for k in keys if k in self._where) if not shard.checked[i]]
        broken: dict[str, int] = {}
        with ThreadPoolExecutor(max_workers=_threads()) as pool:  # the checksum runs outside Python's lock
            for read, bad in pool.map(_verify_some, _portions(todo)):
                for shard in bad:
                    broken[shard.name] = broken.get(shard.name, 0) + 1
                advance(float(read))
        self.leave_out(
            {name: f"the states of {count} document(s) differ from their checksums" for name, count in broken.items()}
        )

    def leave_out(self, damaged: dict[str, str]) -> None:
        """Stops using shards that are damaged (as this or another process found): file name -> why."""
        if not damaged:
            return
        self.damaged.update(damaged)
        for name in damaged:
            self._shards.pop(name, None)
        self._index()

    def read(self, key: bytes) -> Tensor:
        """A document's states `[N, K]`, a view of the file; not to be written to.

        Raises:
            KeyError: not here.
            StorageError: at its first use the states differ from their checksum.
        """
        shard, i = self._where[key]
        if not shard.checked[i]:
            if not shard.is_sound(i):
                raise StorageError(
                    f"The teacher's states in {self.folder / shard.name} are damaged: a document of {shard.rows[i]} "
                    f"tokens differs from its "
                    "checksum. Run again: the shard is found damaged and built anew. If it happens more than once, "
                    "suspect the disk."
                )
            shard.checked[i] = True
        return shard.states(i)

    def remove_damaged(self) -> list[str]:
        """Deletes damaged shards, so that their documents are built again; call it while `building`. Returns their
        names."""
        removed = []
        for name in sorted(self.damaged):
            try:  # another process may have put a sound one in its place meanwhile
                shard = _open_shard(self.folder / name, self.teacher)
                sound = all(shard.is_sound(i) for i in range(len(shard.keys)))
            except FileNotFoundError:
                continue
            except _Damaged:
                sound = False
            if not sound:
                (self.folder / name).unlink(missing_ok=True)
                removed.append(name)
        self.damaged.clear()
        self.scan()
        return removed

    def discard(self, keys: Iterable[bytes]) -> None:
        """Deletes the shards that hold these documents, sound or not, because their states are not the teacher's; call
        it while `building`.

        A process that has them open goes on reading what it has.
        """
        for name in {self._where[k][0].name for k in keys if k in self._where}:
            (self.folder / name).unlink(missing_ok=True)
        self.scan()

    def try_lock(self) -> int | None:
        """Takes the builder's lock and returns its handle for `unlock`; None while another process holds it.

        The lock keeps two runs from computing the same states; nothing is wrong without it, so a file system that has
        no locks gives -1.
        """
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            return -1
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            os.close(handle)
            return -1
        for left in self.folder.glob(".*.tmp"):  # of builds that were killed: nobody else holds the lock
            left.unlink(missing_ok=True)
        return handle

    def unlock(self, handle: int) -> None:
        """Gives the lock back (closing the file does)."""
        if handle >= 0:
            os.close(handle)

    @contextlib.contextmanager
    def building(self, *, waiting: Callable[[], None] = lambda: None, poll: float = 0.5) -> Iterator[None]:
        """Holds the builder's lock. Look again (`scan`) inside: another process may have done the work.

        Args:
            waiting: called once if another process holds the lock.
            poll: seconds between attempts.
        """
        handle = self.try_lock()
        if handle is None:
            waiting()
        while handle is None:
            time.sleep(poll)
            handle = self.try_lock()
        try:
            yield
        finally:
            self.unlock(handle)

    def _index(self) -> None:
        self._where = {key: (shard, i) for shard in reversed(self._shards.values()) for i, key in enumerate(shard.keys)}


class ShardWriter:
    """Collects documents' states and writes them as shards. Use as a context manager; leaving it writes what is left.

    Args:
        store: where to; it sees the new shards after its next `scan`.
        note: what every shard says of itself beside what the format asks, for example the dtype of the teacher's
            forward.
        shard_bytes: states of a shard.
        seconds: a shard is written after this time at the latest.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        note: dict[str, str] | None = None,
        shard_bytes: int = SHARD_BYTES,
        seconds: float = SHARD_SECONDS,
    ) -> None:
        self.store, self.note, self.shard_bytes, self.seconds = store, dict(note or {}), shard_bytes, seconds
        self.documents = 0
        """Documents written to disk so far."""
        self._pending: list[tuple[bytes, Tensor]] = []
        self._bytes = 0
        self._began = time.monotonic()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):  # Ctrl-C keeps what has been computed
            self.flush()

    def add(self, key: bytes, states_NK: Tensor) -> None:
        """Takes one document.

        Args:
            key: 16 bytes.
            states_NK: `[N, K]`, on the CPU, the dtype it is to be stored in; held until it is written.

        Raises:
            StorageError: a shard is full and cannot be written.
        """
        self._pending.append((key, states_NK))
        self._bytes += states_NK.numel() * states_NK.element_size()
        if self._bytes >= self.shard_bytes or time.monotonic() - self._began > self.seconds:
            self.flush()

    def flush(self) -> None:
        """Writes a shard of what is held.

        Raises:
            StorageError: the disk is full or the folder cannot be written. What was written before is whole.
        """
        if not self._pending:
            return
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        states = [s.contiguous() for _, s in self._pending]
        tables = {
            "keys": torch.frombuffer(bytearray(b"".join(k for k, _ in self._pending)), dtype=torch.uint8).view(
                -1, KEY_BYTES
            ),
            "rows": torch.tensor([len(s) for s in states], dtype=torch.int64),
            "crc": torch.tensor([_crc(s) for s in states], dtype=torch.int64),
        }
        hidden_RK = torch.cat(states)
        header = {"format": FORMAT, "teacher": self.store.teacher, **{f"note.{k}": v for k, v in self.note.items()}}
        digest = _digest(header, tables, hidden_RK)
        final = self.store.folder / f"{digest[:16]}.safetensors"
        aside = self.store.folder / f".{final.stem}.{os.getpid()}.tmp"
        try:
            save_file({"hidden": hidden_RK, **tables}, str(aside), metadata={**header, "digest": digest})
            _sync(aside)
            os.replace(aside, final)
            _sync(self.store.folder)
        except (OSError, SafetensorError) as error:
            aside.unlink(missing_ok=True)
            size = hidden_RK.numel() * hidden_RK.element_size()
            raise StorageError(
                f"Could not write {size / 1e6:.0f} MB of the teacher's states to {self.store.folder} "
                f"({getattr(error, 'strerror', None) or error}). "
                "What was written before is whole. Free some space or choose another cache_dir, then run again: it "
                "goes on from there."
            ) from error
        self.documents += len(self._pending)
        self._pending, self._bytes, self._began = [], 0, time.monotonic()


class _Damaged(Exception):
    """A file that is not the shard it should be; says why."""


class _Shard:
    """One open file: the mapped states and its tables."""

    def __init__(
        self, name: str, hidden: Tensor, keys: list[bytes], rows: list[int], crc: list[int], note: dict[str, str]
    ) -> None:
        self.name, self.hidden, self.keys, self.rows, self.crc, self.note = name, hidden, keys, rows, crc, note
        self.checked = [False] * len(keys)
        ends = torch.tensor(rows).cumsum(0).tolist()
        self.starts = [end - count for end, count in zip(ends, rows, strict=True)]

    def states(self, i: int) -> Tensor:
        return self.hidden[self.starts[i] : self.starts[i] + self.rows[i]]

    def is_sound(self, i: int) -> bool:
        return _crc(self.states(i)) == self.crc[i]


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
            if header.get("format") != FORMAT:
                raise _Damaged(f"its format is {header.get('format')!r}, expected {FORMAT!r}")
            if header.get("teacher") != teacher:
                raise _Damaged(f"it belongs to the teacher {header.get('teacher')!r}, expected {teacher!r}")
            hidden, tables = file.get_tensor("hidden"), {n: file.get_tensor(n).clone() for n in ("keys", "rows", "crc")}
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _Damaged(f"it cannot be read: {error}") from error
    if header.pop("digest", None) != _digest(header, tables, hidden):
        raise _Damaged("its header or its tables differ from their digest")
    rows = tables["rows"].tolist()
    if tables["keys"].shape != (len(rows), KEY_BYTES) or sum(rows) != hidden.shape[0] or min(rows, default=0) < 0:
        raise _Damaged("its tables do not fit its states")
    raw = bytes(tables["keys"].numpy())
    keys = [raw[i : i + KEY_BYTES] for i in range(0, len(raw), KEY_BYTES)]
    note = {k.removeprefix("note."): v for k, v in header.items() if k.startswith("note.")}
    return _Shard(path.name, hidden, keys, rows, tables["crc"].tolist(), note)


def _digest(header: dict[str, str], tables: dict[str, Tensor], hidden_RK: Tensor) -> str:
    """Of the header, the tables' bytes and what the states' bytes mean; hex."""
    digest = hashlib.blake2b(
        f"{sorted(header.items())} {hidden_RK.dtype} {tuple(hidden_RK.shape)}".encode(), digest_size=16
    )
    for name in ("keys", "rows", "crc"):
        digest.update(bytes(tables[name].contiguous().numpy()))
    return digest.hexdigest()


def _crc(states_NK: Tensor) -> int:
    """CRC-32 of the bytes of a contiguous tensor."""
    return zlib.crc32(states_NK.view(torch.uint8).numpy()) if states_NK.numel() else 0


def _portions(
    documents: list[tuple[_Shard, int]], *, rows: int = 4096, most: int = 256
) -> Iterator[list[tuple[_Shard, int]]]:
    """Neighbouring documents, enough of them together that handing them to a thread costs nothing."""
    portion: list[tuple[_Shard, int]] = []
    count = 0
    for shard, i in documents:
        portion.append((shard, i))
        count += shard.rows[i]
        if count >= rows or len(portion) >= most:
            yield portion
            portion, count = [], 0
    if portion:
        yield portion


def _verify_some(portion: list[tuple[_Shard, int]]) -> tuple[int, list[_Shard]]:
    """Bytes read, and the shard of each document that is not sound."""
    read, bad = 0, []
    for shard, i in portion:
        shard.checked[i] = shard.is_sound(i)
        if not shard.checked[i]:
            bad.append(shard)
        read += shard.rows[i] * shard.hidden.shape[1] * shard.hidden.element_size()
    return read, bad


def _threads() -> int:
    return max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def _sync(path: Path) -> None:
    """Flushes a file or a folder's entries to the disk, where the system can."""
    handle: Any = None
    try:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
    except OSError:
        if path.is_file():
            raise
    finally:
        if handle is not None:
            os.close(handle)
