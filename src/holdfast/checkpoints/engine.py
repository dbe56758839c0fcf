"""The engine: takes tensors apart into blocks, has several threads work on them, and sums what they
measure in a fixed order.

A block is `UNIT` elements of one tensor, read from every source at the same place. Threads are
enough, because everything heavy (positional reads and writes, the kernels, hashing) runs outside
Python's lock. Memory is a few blocks a thread, whatever the model's size.

Sums are formed in the order in which blocks are handed out, which depends on nothing but the
tensors, so results are the same bits with any number of threads. At most four output files are in
work at a time: enough for threads not to wait for each other's writes to one file, and few enough
for shards to be finished one after the other, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from holdfast.checkpoints.dtypes import decode
from holdfast.checkpoints.element_types import DType, Operand
from holdfast.checkpoints.memory import keep_blocks, pages
from holdfast.checkpoints.provenance import UNIT, Digests
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.sources import Entry, Source, stretches
from holdfast.errors import ModelError
from holdfast.support.environment import cores

OPEN_FILES = 4
"""Output files in work at a time."""
AHEAD = 2
"""Results of later blocks that may wait for an earlier one, for each thread."""


@dataclass(frozen=True)
class Job:
    """One tensor of the output, or one to be looked at."""

    name: str
    dtype: DType
    """Of the output."""
    shape: tuple[int, ...]
    size: int
    file: str
    """Of the output; jobs of one file are worked on together."""
    has: tuple[bool, ...]
    """Which sources have it."""
    action: str = "combine"
    """"combine"; "copy" from source `origin`; "same": copy from there, and every source must hold
    the same; "mean": combine those that have it, without a base."""
    origin: int = 0

    def owners(self, models: Sequence[int]) -> tuple[int, ...]:
        """Which of these sources have it, as positions among them."""
        return tuple(position for position, source in enumerate(models) if self.has[source])


def job_of(entry: Entry, sources: int = 1) -> Job:
    """A stored tensor as one to be looked at, in the order of its file; every source has it."""
    return Job(entry.name, entry.dtype, entry.shape, entry.size, entry.file.name, (True,) * sources)


class Scratch:
    """One thread's memory: a buffer for each source, one for the output, all reused from block to
    block."""

    def __init__(self, sources: int) -> None:
        self.buffers = [pages(UNIT * 8) for _ in range(sources)]
        self.output = pages(UNIT * 8)

    def out(self, dtype: DType, count: int) -> Operand:
        """Memory for `count` elements of the output."""
        return Operand(self.output[: count * dtype.itemsize].view(dtype.storage), dtype)


class Reader:
    """Reads blocks from several sources, hashing stored ones on the way where asked to."""

    def __init__(
        self, sources: Sequence[Source], digests: Sequence[Digests | None] | None = None
    ) -> None:
        self.sources = sources
        self.digests = digests or [None] * len(sources)

    def read(self, index: int, name: str, start: int, stop: int, scratch: Scratch) -> Operand:
        """Elements [start, stop) of one tensor of source `index`, in that source's buffer."""
        source, digests = self.sources[index], self.digests[index]
        operand = source.read(name, start, stop, scratch.buffers[index])
        if digests is not None and isinstance(source, CheckpointReader):
            digests.add(name, start, operand.raw)
        return operand


def workers_here() -> int:
    """Threads that this process may use, at most 16."""
    return min(cores(), 16)


def map_blocks(
    jobs: Sequence[Job],
    function: Callable[[Job, int, int, Scratch], Any],
    *,
    sources: int,
    workers: int | None = None,
    reduce: Callable[[Job, Any], None] | None = None,
    advance: Callable[[float], None] | None = None,
) -> None:
    """Calls `function(job, start, stop, scratch)` for every block of every job, from several
    threads.

    Args:
        jobs: tensors; an empty one is one empty block.
        function: does the work. The first exception stops all threads and is raised here.
        sources: buffers that each thread needs.
        workers: threads, at least 1; None: all cores.
        reduce: gets each result that is not None, in the order of blocks, from one thread at a
            time.
        advance: gets the output bytes done so far, block by block.
    """
    keep_blocks()
    count = max(1, workers or workers_here())
    queue = _BlockQueue(jobs, count, reduce, advance)

    def work() -> None:
        try:
            scratch = Scratch(sources)
            while (block := queue.next()) is not None:
                number, (job, start, stop) = block
                result = function(job, start, stop, scratch)
                queue.finish(number, job, result, (stop - start) * job.dtype.itemsize)
        except BaseException as error:
            queue.stop(error)

    threads = [
        threading.Thread(target=work, name=f"checkpoints-{i}", daemon=True) for i in range(count)
    ]
    with _one_blas_thread():
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            # Ctrl-C arrives here: the threads end with the blocks they are at; a second one does
            # not leave them behind
            with contextlib.suppress(KeyboardInterrupt):
                queue.stop()
            for thread in threads:
                while thread.is_alive():
                    with contextlib.suppress(KeyboardInterrupt):
                        thread.join()
            raise
    if queue.failures:
        raise queue.failures[0]


class _BlockQueue:
    """Hands blocks out to threads, and takes their results in the order of the blocks."""

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: int,
        reduce: Callable[[Job, Any], None] | None,
        advance: Callable[[float], None] | None,
    ) -> None:
        self.failures: list[BaseException] = []
        self._blocks = enumerate(_in_order(jobs))
        self._workers, self._reduce, self._advance = workers, reduce, advance
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[Job, Any]] = {}
        """Results of blocks that come after one which is not finished, by number."""
        self._expected = 0
        self._stopped = False

    def next(self) -> tuple[int, tuple[Job, int, int]] | None:
        """The next block and its number; None: there is nothing left to do.

        Results wait for those before them: a thread that the system leaves aside must not let the
        others' pile up.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._waiting) < AHEAD * self._workers or self._stopped
            )
            return None if self._stopped else next(self._blocks, None)

    def finish(self, number: int, job: Job, result: Any, nbytes: int) -> None:
        """Takes a block's result."""
        with self._changed:
            self._waiting[number] = (job, result)
            while self._expected in self._waiting:
                finished, value = self._waiting.pop(self._expected)
                if self._reduce is not None and value is not None:
                    self._reduce(finished, value)
                self._expected += 1
            self._changed.notify_all()
            if self._advance is not None:
                self._advance(nbytes)

    def stop(self, error: BaseException | None = None) -> None:
        """No further blocks are handed out."""
        if error is not None:
            self.failures.append(error)
        self._stopped = True
        with self._changed:
            self._changed.notify_all()


def batches(jobs: Sequence[Job], *, limit: int) -> Iterator[list[Job]]:
    """Jobs in groups of at most `limit` elements (or one job), each drawn from several files."""
    batch: list[Job] = []
    count = 0
    for job in _round_robin(_by_file(jobs)):
        if batch and count + job.size > limit:
            yield batch
            batch, count = [], 0
        batch.append(job)
        count += job.size
    if batch:
        yield batch


def _in_order(jobs: Sequence[Job]) -> Iterator[tuple[Job, int, int]]:
    def blocks(group: Sequence[Job]) -> Iterator[tuple[Job, int, int]]:
        for job in group:
            for start, stop in stretches(job.size, UNIT):
                yield job, start, stop

    return _round_robin(blocks(group) for group in _by_file(jobs))


def _by_file(jobs: Sequence[Job]) -> list[list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.file, []).append(job)
    return list(groups.values())


def _round_robin(groups: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """One element of each of `OPEN_FILES` groups in turn; a group that ends makes room for the
    next."""
    waiting = iter(groups)
    active: deque[Iterator[Any]] = deque(iter(group) for group in islice(waiting, OPEN_FILES))
    while active:
        group = active.popleft()
        try:
            value = next(group)
        except StopIteration:
            following = next(waiting, None)
            if following is not None:
                active.append(iter(following))
            continue
        active.append(group)
        yield value


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Products inside a block (adapters) run on the thread that needs them: two pools on the same
    cores slow each other down."""
    with threadpool_limits(1, user_api="blas"):
        yield


def nonfinite_error(source: Source, name: str, role: str = "") -> ModelError:
    """Says where NaN or infinities are in a tensor: how many, and the first.

    Args:
        source: where the tensor was read from.
        name: the tensor.
        role: what the source is here ("model 2").
    """
    entry = source.entries[name]
    buffer = np.empty(UNIT * 8, np.uint8)
    nans = infinities = 0
    first = -1
    for start, stop in stretches(entry.size, UNIT):
        operand = source.read(name, start, stop, buffer)
        values = decode(operand.raw, operand.dtype)
        bad = ~np.isfinite(values)
        if bad.any():
            first = start + int(bad.argmax()) if first < 0 else first
            nans += int(np.isnan(values).sum())
            infinities += int(np.isinf(values).sum())
    index = (
        [int(i) for i in np.unravel_index(first, entry.shape)] if entry.shape and first >= 0 else []
    )
    counts = []
    if nans:
        counts.append(f"{nans:,} NaN")
    if infinities:
        counts.append(f"{infinities:,} infinite")
    where = f"{name} in {entry.file}{f' ({role})' if role else ''}"
    return ModelError(
        f"{where} holds {' and '.join(counts)} of {entry.size:,} values, the first at {index}. The "
        "merged tensor would be NaN or infinite. Check how the checkpoint was made, or use an "
        "earlier one."
    )


def overflow_error(name: str, dtype: DType, count: int) -> ModelError:
    """Says that results were too large for the output's dtype."""
    return ModelError(
        f"{name}: {count:,} results are too large for {dtype.name}. Write another dtype (--dtype "
        "bfloat16 or float32), or lower the scale or the weights."
    )
