"""What a long measurement has found so far, so that an interrupted one goes on where it was: a `Ledger` written every
few seconds.

The file belongs to one evaluation key (model, data, settings, versions), under which the order of requests is always
the same; entries are therefore known by their place. It is removed when the evaluation has been written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.support.ledger import Ledger, read_ledger

T = TypeVar("T")


class Partial:
    """Values by name, kept on disk as they come.

    Args:
        path: of the file; None keeps nothing.
        seconds: at least so long between two writes; what came since is lost with a crash, not with `flush`.

    Raises:
        DataError: the file holds something else.
    """

    def __init__(self, path: Path | None, *, seconds: float = 2.0) -> None:
        self.path = path
        self.seconds = seconds
        self._waiting: dict[str, Any] = {}
        self._written = time.monotonic()
        self.found: dict[str, Any] = (
            {} if path is None else {name: row["value"] for name, row in read_ledger(path).items()}
        )
        """What an earlier process left."""

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
        """Values by number, computed batch by batch; a batch that an earlier process finished is not computed again.

        Args:
            name: what a value is called in the file.
            batches: (numbers of its values, the batch), each number in one of them.
            compute: the values of a batch, in the order of its numbers.
            total: values in all.
            report: called with (values done, values in all) after each batch.

        Raises:
            StorageError: the disk is full.
        """
        found = [self.found.get(f"{name} {number}") for number in range(total)]
        done = 0
        for numbers, batch in batches:
            if any(found[number] is None for number in numbers):
                for number, value in zip(numbers, compute(batch), strict=True):
                    found[number] = value
                self.add({f"{name} {number}": found[number] for number in numbers})
            done += len(numbers)
            report(done, total)
        return found

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
        """Deletes the file: the evaluation is whole."""
        self._waiting = {}
        if self.path is not None:
            self.path.unlink(missing_ok=True)
