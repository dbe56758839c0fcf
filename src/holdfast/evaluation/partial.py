"""What a long measurement has found so far: one file of JSON lines, so that an interrupted one goes on where it was.

The file belongs to one evaluation key (model, data, settings, versions), under which the order of requests is always the same; entries are
therefore known by their place. A line is written whole and flushed; one that was cut short by a crash is dropped. The file is removed when the
evaluation has been written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import StorageError
from holdfast.results import read_jsonl, to_jsonable


class Partial:
    """Values by name, kept on disk as they come.

    Args:
        path: of the file; None keeps nothing.
        seconds: at least so long between two writes; what came since is lost with a crash, not with `flush`.
    """

    def __init__(self, path: Path | None, *, seconds: float = 2.0) -> None:
        self.path = path
        self.seconds = seconds
        self._waiting: dict[str, Any] = {}
        self._written = time.monotonic()
        self.found: dict[str, Any] = {}
        """What an earlier process left."""
        if path is not None and path.is_file():
            for line in read_jsonl(path):
                self.found.update(line)
            # the next line must not be glued to one that was cut short
            if not path.read_bytes().endswith(b"\n"):
                path.write_bytes(b"".join(line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]))

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

    def flush(self) -> None:
        """Writes what is waiting."""
        if self.path is None or not self._waiting:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(to_jsonable(self._waiting), ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise StorageError(f"Could not write {self.path} ({error.strerror or error}). Free some space; the same command continues.") from error
        self._waiting = {}
        self._written = time.monotonic()

    def remove(self) -> None:
        """Deletes the file: the evaluation is whole."""
        self._waiting = {}
        if self.path is not None:
            self.path.unlink(missing_ok=True)
