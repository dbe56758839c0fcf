"""Several processes that measure one model together: each holds all of it, batches are dealt out,
results gathered.

Batches follow from the requests alone (`Partial.resumed`), and every one of them is computed by one
process as it would be by a single one: figures are the same to the last digit, given as many
threads a process. The main process reads and writes folders, asks judges and runs programs
(`broadcast`); the others compute their share.

Results travel over gloo, whatever the models compute on, so that a process waits for another
without holding its device.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.errors import ConfigError, HoldfastError, UserError, first_line
from holdfast.support.processes import PARENT_VARIABLE

T = TypeVar("T")

LONGEST = datetime.timedelta(days=30)
"""That a process waits for another: a judge may take hours. One that has died is noticed at
once."""
_STORE = "HOLDFAST_STORE"
"""Environment variable of a process that `launch` started: where the main process waits."""


class ProcessGroup:
    """Those that work on one evaluation, seen by one of them; this class is a process that works
    alone."""

    rank = 0
    """Which of them this one is; 0 is the main process."""
    world_size = 1
    """How many they are."""

    @property
    def is_main(self) -> bool:
        """Whether this one reads, writes and speaks for all."""
        return self.rank == 0

    def all_gather(self, make: Callable[[], T]) -> list[T]:
        """What `make` gives in every process, by rank, in every process.

        Raises:
            what `make` raised in one of them: in that one itself, in the others as an error of the
            same kind where it is the request's, else as HoldfastError.
        """
        return [make()]

    def broadcast(self, make: Callable[[], T]) -> T:
        """What `make` gives in the main process, in every process. It is called there alone.

        Raises:
            as `all_gather`.
        """
        return make()


SINGLE = ProcessGroup()


class DistributedGroup(ProcessGroup):
    """Processes that communicate over `torch.distributed`.

    Args:
        group: of all of them, whose backend takes objects (gloo); None: the default one.
    """

    def __init__(self, group: Any = None) -> None:
        import torch.distributed

        self.group = group
        self.rank = torch.distributed.get_rank(group)
        self.world_size = torch.distributed.get_world_size(group)

    def all_gather(self, make: Callable[[], T]) -> list[T]:
        error, sent = _tried(make)
        received: list[Any] = [None] * self.world_size
        self._exchange("all_gather_object", received, sent, group=self.group)
        _check(error, received)
        return [value for value, _ in received]

    def broadcast(self, make: Callable[[], T]) -> T:
        error, sent = _tried(make) if self.is_main else (None, None)
        received: list[Any] = [sent]
        self._exchange("broadcast_object_list", received, src=0, group=self.group)
        _check(error, received)
        return received[0][0]  # type: ignore[no-any-return]

    def _exchange(self, how: str, *arguments: Any, **named: Any) -> None:
        import torch.distributed

        try:
            getattr(torch.distributed, how)(*arguments, **named)
        except RuntimeError as error:  # a connection that has ended, or a time that is over
            raise LostProcess(
                f"One of the {self.world_size} evaluation processes has died or cannot be reached. "
                "Finished batches are kept. Run the same command to continue. "
                f"({first_line(error)[:200]})"
            ) from error


class LostProcess(HoldfastError):
    """Another process of the group died."""


def _tried(
    make: Callable[[], T],
) -> tuple[Exception | None, tuple[T | None, tuple[type, str] | None]]:
    """(an exception, what travels: the value, and the exception's class and text)."""
    try:
        return None, (make(), None)
    except Exception as error:
        kind: type[Exception] = type(error) if isinstance(error, UserError) else HoldfastError
        text = (
            str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        )
        return error, (None, (kind, text))


def _check(
    error: Exception | None, received: Sequence[tuple[Any, tuple[type, str] | None]]
) -> None:
    if error is not None:
        raise error
    for _, failure in received:
        if failure is not None:
            kind, text = failure
            raise kind(text)


# ------------------------------------------------------------------------------------------- launch


def join_launched() -> ProcessGroup:
    """Those that a launcher (torchrun, accelerate, `launch`) made this process one of; `SINGLE`
    without one. The first call connects.

    Raises:
        HoldfastError: they cannot be reached.
    """
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return SINGLE
    try:
        if not dist.is_initialized():
            store, ranks = None, {}
            if (address := os.environ.get(_STORE)) is not None:
                host, _, port = address.rpartition(":")
                store = dist.TCPStore(host, int(port), is_master=False)
                ranks = {
                    "rank": int(os.environ["RANK"]),
                    "world_size": int(os.environ["WORLD_SIZE"]),
                }
            dist.init_process_group("gloo", store=store, timeout=LONGEST, **ranks)
        return DistributedGroup(dist.new_group(backend="gloo", timeout=LONGEST))
    except (RuntimeError, ValueError, KeyError) as error:
        raise HoldfastError(
            f"This process is one of {os.environ['WORLD_SIZE']} processes, but cannot reach the "
            f"other processes: {error}"
        ) from error


def check_count(count: int, device: str | None) -> None:
    """Whether so many processes can work on this machine.

    Raises:
        ConfigError: there are not as many accelerators, or one is named for all.
    """
    import torch

    if count < 2 or device == "cpu":
        return
    if device is not None and ":" in device:
        raise ConfigError(
            "num_processes: several processes use one device each, but device names a single one "
            f"({device}). Leave one of the two out."
        )
    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else count
    if count > devices:
        raise ConfigError(
            f"num_processes: expected at most {devices}, one per accelerator, got {count}. With "
            "device: cpu there may be more processes."
        )


def device_of_process(device: str | None) -> str | None:
    """The device of this one of several processes: the accelerator of its number on its machine."""
    import torch

    if device is not None or not torch.accelerator.is_available():
        return device
    accelerator = torch.accelerator.current_accelerator()
    return f"{accelerator}:{os.environ.get('LOCAL_RANK', '0')}" if accelerator is not None else None


@contextlib.contextmanager
def launch(count: int) -> Iterator[ProcessGroup]:
    """Several processes, of which this one is the main process; it waits for the others at the end.

    Args:
        count: of processes, at least 2; the others run `evaluation.worker`.

    Raises:
        LostProcess: one of them ended with an error; its last lines are in the message.
    """
    import torch
    import torch.distributed as dist

    all_threads = torch.get_num_threads()
    threads = max(1, all_threads // count)
    torch.set_num_threads(threads)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": str(threads),
        _STORE: f"127.0.0.1:{store.port}",
    }
    # a worker whose main process was killed ends with its batch
    shared[PARENT_VARIABLE] = str(os.getpid())
    with contextlib.ExitStack() as stack:
        logs, others = [], []
        for rank in range(1, count):
            log = stack.enter_context(tempfile.TemporaryFile())
            environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "holdfast.evaluation.worker"]
            others.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )
            logs.append(log)
        stack.callback(_end, others)
        try:
            dist.init_process_group("gloo", store=store, rank=0, world_size=count, timeout=LONGEST)
            yield DistributedGroup(dist.new_group(backend="gloo", timeout=LONGEST))
        except LostProcess as error:
            raise LostProcess(str(error), *_last_lines(others, logs)) from error
        finally:
            torch.set_num_threads(all_threads)
            dist.destroy_process_group()


def _end(processes: Sequence[subprocess.Popen[bytes]], *, seconds: float = 60.0) -> None:
    """Waits for processes to end; those that do not, or are not needed any more, are terminated,
    then killed."""
    failed = sys.exc_info()[0] is not None
    until = time.monotonic() + (0 if failed else seconds)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _last_lines(processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Any]) -> list[str]:
    """What the processes that ended with an error wrote at their end."""
    time.sleep(0.5)  # a process that has closed its connection is about to end
    last = []
    for rank, (process, log) in enumerate(zip(processes, logs, strict=True), 1):
        if process.poll():
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").splitlines()[-8:]
            last += [f"  process {rank}: {line}" for line in lines]
    return last
