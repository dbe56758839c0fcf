"""What the benchmarks say of the machine they ran on, and how they measure its memory.

Peak extra memory is what one call needs beyond what was there before it. On CUDA the allocator knows. On a CPU nobody
counts, so the operating system does: Linux keeps the largest resident size a process has had (`VmHWM`), and writing 5
to `/proc/self/clear_refs` sets it back to the present size. Where that file cannot be written a thread reads the
resident size every half millisecond, which may miss a short peak. Elsewhere the figure is None.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MB = 1e6
"""Bytes in the megabyte of all figures."""


def device_name() -> str:
    """The device that PyTorch computes on: "cuda" or "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def hardware(device: str) -> str:
    """The processor's name, with the threads it is used with on a CPU."""
    return torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {torch.get_num_threads()} thread(s)"


def synchronize(device: str) -> None:
    """Waits until the device has done all it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def free_memory(device: str) -> int | None:
    """Bytes that can still be had on the device; None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return _kilobytes("/proc/meminfo", "MemAvailable")


def extra_memory(call: Callable[[], Any], device: str) -> tuple[int | None, str]:
    """Bytes that `call` needs at its peak beyond what the process holds when it begins, and how that was found."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated()) - before, "largest allocation"
    _give_back_freed_memory()
    before_rss = _kilobytes("/proc/self/status", "VmRSS")
    if before_rss is None:
        call()
        return None, "not measured: the system has no /proc"
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _sampled(call, before_rss), "resident size, sampled"
    call()
    peak = _kilobytes("/proc/self/status", "VmHWM")
    assert peak is not None
    return peak - before_rss, "resident size, largest"


def live_tensor_bytes() -> int:
    """Bytes of all tensors that Python code holds, each storage once."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        # type() and not isinstance: lazy module proxies answer the latter by importing what they stand for.
        if issubclass(type(thing), torch.Tensor):
            with contextlib.suppress(Exception):  # fake and functional tensors have no storage
                storage = thing.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _sampled(call: Callable[[], Any], before: int) -> int:
    highest, stop = before, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.is_set():
            highest = max(highest, _kilobytes("/proc/self/status", "VmRSS") or 0)
            time.sleep(0.0005)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        call()
    finally:
        stop.set()
        thread.join()
    return highest - before


def _give_back_freed_memory() -> None:
    """glibc keeps freed blocks for later; a call that takes them from there would seem to need nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _kilobytes(file: str, key: str) -> int | None:
    """The entry `key: 123 kB` of a /proc file, in bytes."""
    try:
        for line in Path(file).read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
