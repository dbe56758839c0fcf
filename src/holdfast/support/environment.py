"""Around a run: what it runs on, and how libraries and signals behave meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib.metadata
import logging
import os
import platform
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from holdfast.errors import FolderBusy, HoldfastError, RunFolderError, StorageError
from holdfast.printable import printable
from holdfast.support.leftovers import NewFolder
from holdfast.support.paths import real
from holdfast.support.resources import file_trouble


def quiet_imports() -> None:
    """Leaves out what bitsandbytes logs on import where it has no kernel from the hub for 4-bit
    weights on CPUs with AVX-512 BF16: holdfast never uses it. Its other messages stay."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_needs_a_kernel)


def _needs_a_kernel(record: logging.LogRecord) -> bool:
    return "kernels-community" not in record.getMessage()


TORCH_COMPILER_OFF = "TORCHDYNAMO_DISABLE"
"""torch's own variable: where it is "1", `torch.compile` returns functions as they are."""


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """For a command that computes nothing. PEFT imports bitsandbytes, which compiles functions at
    import; that loads torch's compiler, which takes as long as torch itself. No effect where torch
    is loaded already: such a process may go on to compute."""
    if "torch" in sys.modules or TORCH_COMPILER_OFF in os.environ:
        yield
        return
    os.environ[TORCH_COMPILER_OFF] = "1"
    try:
        yield
    finally:
        os.environ.pop(TORCH_COMPILER_OFF, None)


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Inside, the garbage collector passes over what is there already. After the import of torch
    and its like that is millions of objects, which each large JSON file (a tokenizer's) would have
    it look at again: a third of the time of commands that compute little."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silences the bars of transformers (one a file loaded or written) and warnings about arguments
    deprecated inside the libraries.

    Both come back at the end. Download bars of the hub client stay, and so do warnings about the
    request itself.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    bars, downloads = (
        transformers_logging.is_progress_bar_enabled(),
        not are_progress_bars_disabled(),
    )
    transformers_logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
        if downloads:
            enable_progress_bars()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers' bars, remarks and warnings about a model that is only looked at."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM, by which schedulers stop jobs, ends a run as Ctrl-C does. Training itself handles
    both more gently (`StopOnSignal`)."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def say(console: Any, text: str, **style: Any) -> None:
    """One line as it is: brackets are no markup, a log file's lines are not wrapped, what cannot be
    printed is shown as an escape."""
    console.print(
        printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True, **style
    )


@contextlib.contextmanager
def quiet_datasets(rows: int = 0) -> Iterator[None]:
    """Silences the bars of `datasets`, which show for any work, inside the block, but for many
    rows; not where HF_DATASETS_DISABLE_PROGRESS_BARS has decided about them."""
    from datasets.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from datasets.utils.tqdm import HF_DATASETS_DISABLE_PROGRESS_BARS

    if (
        rows > 20_000
        or are_progress_bars_disabled()
        or HF_DATASETS_DISABLE_PROGRESS_BARS is not None
    ):
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def replaced(holders: Sequence[Any], name: str, value: Any) -> Iterator[None]:
    """Inside, the attribute `name` of all holders is `value`."""
    before = [getattr(holder, name) for holder in holders]
    try:
        for holder in holders:
            setattr(holder, name, value)
        yield
    finally:
        for holder, original in zip(holders, before, strict=True):
            setattr(holder, name, original)


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Inside, the variable has that value, for child processes too."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Hub libraries refuse the network inside: what is local must not depend on it, and asking
    costs seconds without one."""
    import datasets.config
    import huggingface_hub.constants

    holders = [datasets.config, huggingface_hub.constants]
    with environment_variable("HF_HUB_OFFLINE", "1"), replaced(holders, "HF_HUB_OFFLINE", True):
        yield


@contextlib.contextmanager
def forgotten_datasets() -> Iterator[None]:
    """For rows that nobody asks for again: inside, `datasets` gives each result a random
    fingerprint. It would hash the tokenizer for each, which takes seconds where that is large."""
    from datasets import arrow_dataset, fingerprint

    def at_random(*args: Any) -> str:
        return fingerprint.generate_random_fingerprint()

    with replaced([fingerprint, arrow_dataset], "update_fingerprint", at_random):
        yield


@functools.cache
def package_version(name: str) -> str | None:
    """The version of an installed package, None where it is not installed; read once a process,
    since reading takes as long as a step of a small model and records name a dozen packages
    each."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions of everything that can change a figure."""
    installed = {"python": platform.python_version()}
    for name in (
        "holdfast",
        "torch",
        "transformers",
        "trl",
        "peft",
        "accelerate",
        "datasets",
        "lm_eval",
        "tokenizers",
        "safetensors",
        "numpy",
    ):
        if version := package_version(name):
            installed[name] = version
    return installed


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and accelerators, without names of people or machines."""
    import torch

    machine: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": cores(),
    }
    with contextlib.suppress(OSError, ValueError):
        machine["memory_gb"] = round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        )
    machine["threads"] = torch.get_num_threads()
    machine["accelerators"] = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return machine


def cores() -> int:
    """Processor cores that this process may use."""
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    )


def has_fast_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16 itself. Where it does not, products are
    emulated: on a processor with AVX2 alone they took 9 to 80 times as long as in float32
    (docs/log, 2026-11-24)."""
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a torch without oneDNN: nothing is known
        return True


def is_intel() -> bool:
    """Whether this is one of Intel's processors, the only ones on which MKL takes its fast
    paths."""
    return "Intel" in (_of_cpuinfo("vendor_id") or platform.processor())


def _processor() -> str:
    return _of_cpuinfo("model name") or platform.processor() or "unknown"


@functools.cache
def _of_cpuinfo(key: str) -> str:
    """The first processor's entry; empty where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    return ""


def shown_name(name: str) -> str:
    """A hub id as it is; a local path by its last part, so that reports carry no machine's
    paths."""
    return real(name).name if os.path.exists(name) else name


def shown_bytes(count: float) -> str:
    """Bytes as people read them: `1.33 GB`, `100 kB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} TB"


def shown_seconds(seconds: float) -> str:
    """A duration in the unit that suits it: `43 ms`, `0.25 s`, `12.3 s`, `4 min`, `2.5 h`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


EVALUATION_CACHE = "HOLDFAST_EVALUATION_CACHE"
"""Environment variable that tells `holdfast train` of a folder where evaluations are shared between
runs."""

EFFICIENT_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"
"""The variable by which accelerate tells transformers to load a model's weights on one process of
each machine only."""


def loads_on_one_process_only() -> bool:
    """Whether a model loaded now would have its weights on one process of each machine, and empty
    ones on the others (FSDP)."""
    return all(
        os.environ.get(name, "").lower() in ("1", "true", "yes", "on", "y", "t")
        for name in ("ACCELERATE_USE_FSDP", EFFICIENT_LOADING)
    )


@contextlib.contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """One process a folder. The kernel lets go of the lock when the process ends, however it ends.

    Args:
        path: the folder; one whose name begins with a dot is there for the lock alone, and goes
            with it.

    Raises:
        FolderBusy: another process is at work in the folder.
        RunFolderError: the folder cannot be written.
        StorageError: it was deleted or moved meanwhile, or the body failed for what the system says
            of a file.
    """
    with _folder_errors(path):
        while True:
            path.mkdir(parents=True, exist_ok=True)
            try:
                handle = open(path / ".lock", "a+")  # noqa: SIM115
            except FileNotFoundError:  # the process that had it has just removed it
                continue
            busy = not _locked(handle)
            if busy or _is_at(handle, path / ".lock"):
                break
            handle.close()
    with handle:
        if busy:
            raise FolderBusy(
                f"Another holdfast process is using {path}. Wait for it, or choose another "
                "output_dir."
            )
        folder = path.parent if path.name.startswith(".") else path
        try:
            yield
            _check_still_there(handle, path, folder)
        except HoldfastError:
            raise
        except Exception as error:
            _check_still_there(handle, path, folder)
            trouble = file_trouble(error, folder)
            if trouble is None:
                raise
            raise trouble from error
        finally:
            if path.name.startswith("."):
                with contextlib.suppress(OSError):
                    (path / ".lock").unlink()
                    path.rmdir()


def _check_still_there(handle: TextIO, path: Path, folder: Path) -> None:
    if not _is_at(handle, path / ".lock"):
        raise StorageError(
            f"{folder} was deleted or moved while holdfast wrote to it, so it is now incomplete. "
            "Restore it, or start again."
        )


@contextlib.contextmanager
def result_folder(path: Path, *, lock: str = "") -> Iterator[NewFolder]:
    """The folder that a command writes to, locked as by `lock_folder`. Where it is new, a body that
    ends with a `UserError` takes it away again, unless it said `keep`.

    Args:
        path: the folder.
        lock: a folder in it that is locked instead.

    Raises:
        FolderBusy, RunFolderError: see `lock_folder`.
    """
    with _folder_errors(path):
        folder = NewFolder(path)
    with lock_folder(path / lock), folder:
        yield folder


@contextlib.contextmanager
def _folder_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"Could not write in the output folder {path}: {error.strerror}. Choose an output_dir "
            "that can be written."
        ) from error


@contextlib.contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """One process at a time in the body; the others wait. For work that the second finds done.

    Args:
        path: names the lock: a file `<path>.lock` beside it, gone after the body.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = open(f"{path}.lock", "a+")  # noqa: SIM115
        fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_at(handle, Path(f"{path}.lock")):
            break
        handle.close()
    with handle:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.lock")


def _locked(handle: TextIO) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(handle: TextIO, path: Path) -> bool:
    """Whether an open file is the one that has its name now."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
