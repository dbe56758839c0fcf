"""What a long measurement has found so far, so that an interrupted one goes on where it was: a
`Ledger` written every few seconds.

The file belongs to one evaluation key (model, data, settings, versions), under which the order of
requests is always the same; entries are therefore known by their place. It is removed when the
evaluation has been written. Of several processes each has a file of its own, and reads all of them:
what was begun by two goes on in one.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.evaluation.processes import SINGLE, ProcessGroup
from holdfast.support.ledger import Ledger, read_ledger
from holdfast.support.processes import stop_without_parent

T = TypeVar("T")


class Partial:
    """Values by name, kept on disk as they come.

    Args:
        path: of the file; None keeps nothing.
        seconds: at least so long between two writes; what came since is lost with a crash, not with
            `flush`.
        processes: those that share the measurement.

    Raises:
        DataError: the file holds something else.
    """

    def __init__(
        self, path: Path | None, *, seconds: float = 2.0, processes: ProcessGroup = SINGLE
    ) -> None:
        self.all = path
        self.path = (
            path
            if path is None or processes.is_main
            else path.with_name(f"{path.stem}-{processes.rank}.jsonl")
        )
        self.seconds = seconds
        self.processes = processes
        self._waiting: dict[str, Any] = {}
        self._written = time.monotonic()
        self.found: dict[str, Any] = processes.broadcast(self._left)
        """What earlier processes left."""

    def _files(self) -> list[Path]:
        """Of all processes."""
        return (
            []
            if self.all is None
            else sorted(self.all.parent.glob(f"{glob.escape(self.all.stem)}*.jsonl"))
        )

    def _left(self) -> dict[str, Any]:
        values = {}
        for file in self._files():
            for name, row in read_ledger(file).items():
                values[name] = row["value"]
        return values

    def add(self, values: Mapping[str, Any]) -> None:
        """Keeps `values`, which `found` will give back to the next process.

        Raises:
            StorageError: the disk is full.
        """
        if self.path is None:
            return
        self._waiting.update(values)
        if time.monotonic() - self._written >= self.seconds:
            self.flush()

    def resumed(
        self,
        name: str,
        batches: Iterable[tuple[Sequence[int], T]],
        compute: Callable[[T], Iterable[Any]],
        *,
        total: int,
        report: Callable[[int, int], None],
    ) -> list[Any]:
        """Values by number, computed batch by batch; a batch that an earlier process finished is
        not computed again. Several processes deal the batches out, and all have all values when
        this returns.

        Args:
            name: what a value is called in the file.
            batches: (numbers of its values, the batch), each number in one of them.
            compute: the values of a batch, in the order of its numbers.
            total: values in all.
            report: called with (values done, values in all) after each batch.

        Raises:
            StorageError: the disk is full.
        """
        results = [self.found.get(f"{name} {number}") for number in range(total)]

        def share() -> dict[int, Any]:
            """The values of every count-th of the batches that are missing."""
            values: dict[int, Any] = {}
            done = turn = 0
            for numbers, batch in batches:
                if any(results[number] is None for number in numbers):
                    if self.processes.world_size > 1:
                        stop_without_parent()
                    if turn % self.processes.world_size == self.processes.rank:
                        computed = dict(zip(numbers, compute(batch), strict=True))
                        self.add({f"{name} {number}": value for number, value in computed.items()})
                        values |= computed
                    turn += 1
                done += len(numbers)
                report(done, total)
            self.flush()  # here, since the main process removes the files of all
            return values

        for values in self.processes.all_gather(share):
            for number, value in values.items():
                results[number] = value
        return results

    def flush(self) -> None:
        """Writes what is waiting.

        Raises:
            StorageError: the disk is full.
        """
        if self.path is None or not self._waiting:
            return
        with Ledger(self.path) as ledger:
            ledger.add({"key": name, "value": value} for name, value in self._waiting.items())
        self._waiting = {}
        self._written = time.monotonic()

    def remove(self) -> None:
        """Deletes the files of all processes: the evaluation is whole."""
        self._waiting = {}
        for file in self._files() if self.processes.is_main else ():
            file.unlink(missing_ok=True)
