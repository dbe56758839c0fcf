"""What a machine can run out of, in whatever form a library reports it. No torch."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# safetensors gives the system's words; torch.save says that its writer failed, or that its file's length came out wrong
_DISK = re.compile(
    r"No space left|Disk quota exceeded|PytorchStreamWriter failed writing|inline_container\.cc.* unexpected pos"
)
_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
    r"|can't start new thread|could not create a (primitive|memory)"
)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error means that there was no room to write. Libraries wrap the system's error, so causes and texts
    are looked at too."""
    return _any(error, lambda e: _system(e, errno.ENOSPC, errno.EDQUOT) or _DISK.search(str(e)) is not None)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that memory ran out, the machine's or an accelerator's."""

    def is_one(e: BaseException) -> bool:
        kind = isinstance(e, MemoryError) or type(e).__name__ == "OutOfMemoryError"  # torch's, which is not loaded here
        return kind or _system(e, errno.ENOMEM) or (isinstance(e, RuntimeError) and _MEMORY.search(str(e)) is not None)

    return _any(error, is_one)


def release_memory() -> None:
    """Collects what is garbage, and gives free pages back to the system: glibc keeps those between blocks that are in
    use, so that a process that loads one model after another grows by gigabytes."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int | None:
    """Bytes of memory that a program may take without swapping: what the system has free, or what is left of the
    control group's limit where that is less (containers). None where the system does not say."""
    try:
        import psutil
    except ImportError:
        return None
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
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
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
