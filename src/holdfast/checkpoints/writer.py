"""Writing a checkpoint folder: headers first, then every tensor's bytes at their place, from
several threads, in any order.

The folder is complete or absent. Files grow in a hidden folder beside the destination; each shard
gets its name when its last byte is on the disk; at the end the hidden folder is renamed to the
destination, which an earlier folder of that name leaves in the same moment. A run that was killed
leaves the hidden folder; the same request goes on with the shards that were finished (its `key`,
kept in `.lock`, says that it is the same). Only one process writes to a destination at a time, and
only what this engine wrote is ever replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.checkpoints.provenance import FILE
from holdfast.errors import RunFolderError, StorageError
from holdfast.support.files import write_json
from holdfast.support.leftovers import NewFolder

if TYPE_CHECKING:
    import numpy as np

    from holdfast.checkpoints.element_types import DType


WRITE_OUT = 33_554_432
"""Bytes of a file after which the system is asked to begin putting them on the disk, so that little
is left to wait for at the end."""


class Slot(NamedTuple):
    """A tensor as it will be stored."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int


@dataclass
class Shard:
    """One file while it is written."""

    file: str
    header: bytes
    size: int
    offsets: dict[str, int]
    left: int
    """Bytes of tensors that have not been written yet."""
    descriptor: int = -1
    lock: threading.Lock = field(default_factory=threading.Lock)


class CheckpointWriter:
    """Writes one checkpoint folder.

    Args:
        folder: the destination.
        shards: file name and tensors of each file; a tensor is in one of them.
        key: fingerprint (hex) of everything that decides the bytes; a killed run with the same key
            is continued.
        metadata: free text for the headers.
        overwrite: replace a folder that this engine wrote. Without it an existing folder that is
            not empty is refused.
        sync: put the content on the disk before it gets its name (fsync). Without it a power cut
            may lose what was reported as written, and a killed run begins anew.
        beside: name of a second file that belongs to each file and is written by the caller; a file
            without it does not count as finished.

    Raises:
        RunFolderError: the destination exists, cannot be written, or is being written by another
            process.
        StorageError: the disk has no room for it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        shards: Sequence[tuple[str, Sequence[Slot]]],
        *,
        key: str,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
        sync: bool = True,
        beside: Callable[[str], str] | None = None,
    ) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.sync, self._key, self._overwrite, self._beside = sync, key, overwrite, beside
        self.placed = False
        """Whether the folder has its name."""
        self._shards = [
            lay_out(file, slots, metadata or {"format": "pt"}) for file, slots in shards
        ]
        self._of = {name: shard for shard in self._shards for name in shard.offsets}
        self.finished: set[str] = set()
        """Files that an earlier, killed run of the same request had finished."""
        self.staging = self.folder.parent / f".{self.folder.name}.{key[:16]}.partial"
        self._syncer = ThreadPoolExecutor(max_workers=1)
        self._synced: list[Future[None]] = []
        self._lock = -1
        check_destination(self.folder, overwrite=overwrite)
        with disk_errors(self.folder):
            self._made = NewFolder(self.folder.parent, content=False)
            self.staging.mkdir(exist_ok=True)
            # first the own lock, then a look at others': of two that begin together at least one
            # sees the other
            self._lock = _locked(self.staging, self.folder)
            try:
                _remove_stale(self.folder, keep=self.staging)
                restore_replaced(self.folder)
                check_destination(self.folder, overwrite=overwrite)
                self._open()
            except BaseException:
                self.abandon(keep_finished=True)
                raise

    def done(self, name: str) -> bool:
        """Whether the tensor lies in a file that an earlier run had finished."""
        return self._of[name].file in self.finished

    def write(self, name: str, element: int, raw: np.ndarray) -> None:
        """Stores `raw` (1-D, the tensor's storage dtype) from element `element` of the flattened
        tensor on. Safe to call from several threads.

        Raises:
            StorageError: the disk is full or failed.
        """
        if not raw.size:
            return
        descriptor, position = self.place(name, element * raw.itemsize)
        with disk_errors(self.folder):
            _put(descriptor, raw.data.cast("B"), position)
        self.wrote(name, raw.nbytes)

    def place(self, name: str, byte: int) -> tuple[int, int]:
        """Where a byte of a tensor belongs that is not written yet: an open descriptor, and the
        byte of its file. To be followed by `wrote`."""
        shard = self._of[name]
        return shard.descriptor, shard.offsets[name] + byte

    def wrote(self, name: str, nbytes: int, *, error: int = 0) -> None:
        """Counts what was stored at a `place`. Safe to call from several threads.

        Raises:
            StorageError: `error` (an errno) is not 0.
        """
        shard = self._of[name]
        if error:
            with disk_errors(self.folder):
                raise OSError(error, os.strerror(error))
        with shard.lock:
            before = shard.left // WRITE_OUT
            shard.left -= nbytes
            complete, due = shard.left == 0, shard.left // WRITE_OUT != before
        if due and self.sync:
            _begin_write_out(shard.descriptor)
        if complete:
            self._synced.append(self._syncer.submit(self._complete, shard))

    def close(self, add: Callable[[Path], None]) -> None:
        """Ends the folder: `add(path)` puts the other files into it, then it gets its name.

        Raises:
            StorageError: the disk is full or failed; the destination is as it was.
        """
        with disk_errors(self.folder):
            for waiting in self._synced:
                waiting.result()
            short = [
                shard.file
                for shard in self._shards
                if shard.left and shard.file not in self.finished
            ]
            assert not short, f"not all tensors were written: {short}"
            self._write_index()
            add(self.staging)
            if self.sync:
                for path in self.staging.rglob("*"):
                    if path.is_dir() or path.suffix != ".safetensors":
                        fsync_path(path)
                fsync_path(self.staging)
            _put_in_place(self.staging, self.folder, overwrite=self._overwrite)
            self.placed = True
            # not earlier: without it another process would take the folder for one that was left
            # behind
            (self.folder / ".lock").unlink()
            shutil.rmtree(self.staging, ignore_errors=True)  # what was replaced
            if self.sync:
                fsync_path(self.folder.parent)
        self._release()

    def abandon(self, *, keep_finished: bool) -> bool:
        """Gives up: removes what was written, or with `keep_finished` all but the finished shards.
        True when some were kept."""
        self._syncer.shutdown(wait=True, cancel_futures=True)
        keeps = (
            keep_finished
            and self.sync
            and not self.placed
            and any((self.staging / shard.file).is_file() for shard in self._shards)
        )
        for shard in self._shards:
            if shard.descriptor >= 0:
                os.close(shard.descriptor)
                shard.descriptor = -1
            with contextlib.suppress(OSError):
                (self.staging / f"{shard.file}.part").unlink()
        if not keeps:
            shutil.rmtree(self.staging, ignore_errors=True)
            self._made.remove()
        self._release()
        return keeps

    def _open(self) -> None:
        names, needed = {".lock"}, 0
        # another key: nothing to go on with, for example an earlier output that was exchanged and
        # not yet removed
        same = os.pread(self._lock, 1024, 0) == self._key.encode()
        for shard in self._shards:
            path, beside = (
                self.staging / shard.file,
                [self._beside(shard.file)] if self._beside is not None else [],
            )
            if (
                same
                and path.is_file()
                and path.stat().st_size == shard.size
                and all((self.staging / name).is_file() for name in beside)
            ):
                self.finished.add(shard.file)
                names |= {shard.file, *beside}
            else:
                needed += shard.size
        for path in self.staging.iterdir():
            if path.name not in names:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        os.ftruncate(self._lock, 0)
        if self.sync:  # else a power cut could leave files of the right size without their content
            _put(self._lock, memoryview(self._key.encode()), 0)
        free = shutil.disk_usage(self.staging).free
        if free < needed:
            raise StorageError(
                f"{self.folder} needs {needed:,} bytes and the disk has {free:,} left. Free some "
                "space or choose another folder. Nothing was lost."
            )
        for shard in self._shards:
            if shard.file in self.finished:
                continue
            shard.descriptor = os.open(
                self.staging / f"{shard.file}.part", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644
            )
            os.ftruncate(shard.descriptor, shard.size)
            _put(shard.descriptor, memoryview(shard.header), 0)
            if shard.left == 0:
                self._complete(shard)

    def _complete(self, shard: Shard) -> None:
        if self.sync:
            os.fsync(shard.descriptor)
        os.close(shard.descriptor)
        shard.descriptor = -1
        os.rename(self.staging / f"{shard.file}.part", self.staging / shard.file)

    def _write_index(self) -> None:
        if len(self._shards) == 1:
            return
        stem = self._shards[0].file.rsplit("-", 3)[0]
        total = sum(shard.size - len(shard.header) for shard in self._shards)
        weight_map = {name: shard.file for shard in self._shards for name in shard.offsets}
        write_json(
            self.staging / f"{stem}.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
        )

    def _release(self) -> None:
        self._syncer.shutdown(wait=False)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def check_destination(folder: Path, *, overwrite: bool) -> None:
    """Refuses a destination that holds something already.

    Raises:
        RunFolderError: it is a file, a folder that is not empty and `overwrite` was not asked for,
            or with `overwrite` one that this engine did not write.
    """
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
        if names and not overwrite:
            raise RunFolderError(
                f"{folder} exists and is not empty. Choose another folder, or add --overwrite to "
                "replace it."
            )
        if names and FILE not in names:
            raise RunFolderError(
                f"{folder} has no {FILE}, so holdfast did not write it and does not replace it. It "
                f"contains {', '.join(names[:4])}{(' ...' if len(names) > 4 else '')}. Remove it "
                "yourself, or choose another folder."
            )
    elif folder.exists():
        raise RunFolderError(f"Expected a folder to write at {folder}, found a file.")


def shard_names(stem: str, count: int) -> list[str]:
    """File names of `count` shards, as transformers writes them."""
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


def lay_out(file: str, slots: Sequence[Slot], metadata: Mapping[str, str]) -> Shard:
    """Header and places of a file's tensors, wide elements first."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    position, offsets = 0, {}
    # wide elements first, so that every tensor begins at a multiple of its element size
    for slot in sorted(slots, key=lambda s: -s.dtype.itemsize):
        header[slot.name] = {
            "dtype": slot.dtype.name,
            "shape": list(slot.shape),
            "data_offsets": [position, position + slot.nbytes],
        }
        offsets[slot.name] = position
        position += slot.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text
    return Shard(
        file,
        content,
        len(content) + position,
        {name: len(content) + begin for name, begin in offsets.items()},
        position,
    )


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns what the system says while `folder` is written into what the user can do about it.

    Raises:
        RunFolderError: no permission.
        StorageError: the disk is full or failed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise RunFolderError(
                f"{folder} cannot be written ({error.strerror}). Choose a folder that you may "
                "write to. Nothing was changed."
            ) from error
        raise StorageError(
            f"Could not write {folder} ({error.strerror or error}). Free some space or choose "
            "another folder. Inputs and earlier output are intact."
        ) from error


def _put(descriptor: int, view: memoryview, position: int) -> None:
    while view:
        put = os.pwrite(descriptor, view, position)
        view, position = view[put:], position + put


def _locked(staging: Path, folder: Path) -> int:
    """The lock of a hidden folder, held by the descriptor.

    Raises:
        RunFolderError: another process holds it.
    """
    descriptor = os.open(staging / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunFolderError(
            f"Another process is writing {folder} at this moment. Wait for it, or choose another "
            "folder."
        ) from None
    except OSError:  # a file system without locks
        pass
    return descriptor


def _remove_stale(folder: Path, *, keep: Path) -> None:
    """Removes what killed runs with other requests left beside the destination.

    Raises:
        RunFolderError: one of them is still at work.
    """
    ours = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{1,16}}\.partial")
    for path in [p for p in folder.parent.iterdir() if ours.fullmatch(p.name) and p != keep]:
        try:
            descriptor = _locked(path, folder)
        except OSError:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _replaced(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.replaced"


def restore_replaced(folder: Path) -> None:
    """Undoes a replacement that was cut short between its two renames."""
    if _replaced(folder).is_dir():
        if folder.exists():
            shutil.rmtree(_replaced(folder), ignore_errors=True)
        else:
            os.rename(_replaced(folder), folder)


def _put_in_place(staging: Path, folder: Path, *, overwrite: bool) -> None:
    check_destination(folder, overwrite=overwrite)
    if not overwrite:
        try:
            os.rename(staging, folder)  # onto nothing or an empty folder, else it fails
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise RunFolderError(
                f"{folder} was created in the meantime and is not replaced. Choose another folder."
            ) from None
    else:
        replace_folder(staging, folder)


def replace_folder(staging: Path, folder: Path) -> None:
    """Gives `staging` the name `folder`; what had it is in `staging` afterwards, or removed where
    the system cannot swap two names in one step."""
    if not folder.exists():
        os.rename(staging, folder)
    elif not _exchange(staging, folder):
        os.rename(folder, _replaced(folder))
        os.rename(staging, folder)
        shutil.rmtree(_replaced(folder), ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two folders' names in one step (Linux); False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2
    return (
        rename is not None
        and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
    )


def fsync_path(path: Path) -> None:
    """Waits until a file, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begin_write_out(descriptor: int) -> None:
    """Starts, without waiting, what fsync will have to see finished (Linux; elsewhere nothing
    happens)."""
    begin = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if begin is not None and descriptor >= 0:
        whole_file, start_writing = ctypes.c_int64(0), 2
        begin(descriptor, whole_file, whole_file, start_writing)
