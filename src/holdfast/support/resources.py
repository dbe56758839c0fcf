"""What a machine can run out of, in whatever form a library reports it. No torch."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import HoldfastError, RunFolderError, StorageError

# safetensors gives the system's words; torch.save says that its writer failed, or that its file's
# length came out wrong
_DISK = re.compile(
    r"No space left|Disk quota exceeded|PytorchStreamWriter failed writing|inline_container\.cc.* unexpected pos"
)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""The system's number of an error in the words of libraries written in Rust."""
_FAILED = (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV)
_UNUSABLE = {
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EACCES: "Change its permissions, or choose another place.",
    errno.EPERM: "Change its permissions, or choose another place.",
    errno.EROFS: "Choose a folder that can be written.",
    errno.ENOTDIR: "A folder of this path is a file.",
    errno.EISDIR: "Give a file in this folder.",
    errno.ELOOP: "The path contains a symbolic link to itself.",
}
"""What is wrong with a path that the system refuses, whoever asked it; by the system's number."""
_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
    r"|can't start new thread|could not create a (primitive|memory)"
)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error means that there was no room to write. Libraries wrap the system's error, so
    causes and texts are looked at too."""
    return _any(
        error, lambda e: _system(e, errno.ENOSPC, errno.EDQUOT) or _DISK.search(str(e)) is not None
    )


def file_trouble(error: BaseException, folder: Path | None = None) -> HoldfastError | None:
    """What the system says of a file or a folder, as an error of ours with its name: no room, a
    limit, no permission, deleted meanwhile. None where it is something else.

    Args:
        error: as a library raised it, maybe with the system's words in its text alone.
        folder: what is written to, for errors that name no file.
    """
    number, name = None, None
    for cause in chain(error):
        match = _OS_ERROR.search(str(cause))
        if isinstance(cause, OSError) and cause.errno is not None:
            number, name = cause.errno, cause.filename
            break
        if match is not None:
            number = int(match[1])
            break
    path = os.fsdecode(name) if name is not None else str(folder or "")
    if len(path) > 200:
        path = f"{path[:100]}...{path[-60:]}"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    no_room = is_disk_full(error)
    if number == errno.EFBIG or (no_room and number is None and limit != resource.RLIM_INFINITY):
        where = f"{path}: a" if path else "A"
        allowed = (
            "the file system's limit"
            if limit == resource.RLIM_INFINITY
            else f"the limit of ulimit -f ({limit:,} bytes)"
        )
        return StorageError(
            f"{where} file would exceed {allowed}. Raise the limit and run the same command to "
            "continue."
        )
    if no_room:
        where = f"No space left on the disk of {path}." if path else "The disk is full."
        return StorageError(f"{where} Free some space and run the same command to continue.")
    if not path or number is None:
        return None
    words = os.strerror(number)
    if number == errno.ENOENT:
        return StorageError(
            f"{path}: no longer exists. It was deleted or moved during the run. Restore it, or "
            "start again."
        )
    if number in _UNUSABLE:
        return RunFolderError(f"{path}: cannot be used ({words}). {_UNUSABLE[number]}")
    return StorageError(f"{path}: the disk failed ({words}).") if number in _FAILED else None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that memory ran out, the machine's or an accelerator's."""

    def is_one(e: BaseException) -> bool:
        # torch's, which is not loaded here
        kind = isinstance(e, MemoryError) or type(e).__name__ == "OutOfMemoryError"
        return (
            kind
            or _system(e, errno.ENOMEM)
            or (isinstance(e, RuntimeError) and _MEMORY.search(str(e)) is not None)
        )

    return _any(error, is_one)


def release_memory() -> None:
    """Collects what is garbage, and gives free pages back to the system: glibc keeps those between
    blocks that are in use, so that a process that loads one model after another grows by
    gigabytes."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int | None:
    """Bytes of memory that a program may take without swapping: what the system has free, or what
    is left of the control group's limit where that is less (containers). None where the system does
    not say."""
    try:
        import psutil
    except ImportError:
        return None
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (group / f"memory.{name}").read_text().strip() for name in ("max", "current")
        )
        cached = re.search(
            r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE
        )
        left = int(limit) - int(used) + (int(cached[1]) if cached else 0)
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return max(0, min(free, left))


def _system(error: BaseException, *numbers: int) -> bool:
    return isinstance(error, OSError) and error.errno in numbers


def _any(error: BaseException | None, test: Callable[[BaseException], bool]) -> bool:
    return any(map(test, chain(error)))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came of, the latest first."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
