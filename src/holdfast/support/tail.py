"""A JSON Lines file that another process is writing, read on from where the last look ended: what a look costs does not
grow with what was read before. Nothing is locked and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.support.files import from_json_text

KEPT = 256
"""Bytes before the place that was read to, which have to be the same at the next look: a file that was written anew in
place is read anew."""


class JsonlTail:
    """The rows of a file so far.

    Args:
        path: the file, there or not.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = []
        """In order. Not to be changed from outside."""
        self.unreadable = 0
        """Whole lines that are no JSON object, which are passed over."""
        self._identity: tuple[int, int] | None = None
        self._end, self._before = 0, b""

    def read(self) -> bool:
        """Takes in the whole lines that came since the last call; a line that is half written waits for its end. A file
        that was replaced, shortened or written anew (a run that is continued) is read from its beginning, and one that
        is gone has no rows.

        Returns:
            Whether `rows` is another than before.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                anew = not self._goes_on(file, found)
                if anew:
                    self._forget()
                self._identity = (found.st_dev, found.st_ino)
                file.seek(self._end)
                content = file.read()
        except (FileNotFoundError, NotADirectoryError):
            anew = self._identity is not None
            self._forget()
            return anew
        whole = content[: content.rfind(b"\n") + 1]
        self._end += len(whole)
        self._before = (self._before + whole)[-KEPT:]
        for line in whole.splitlines():
            if line.strip():
                self._take(line)
        return anew or bool(whole)

    def _goes_on(self, file: Any, found: os.stat_result) -> bool:
        """Whether the file is the one that was read, with more at its end or not."""
        if self._identity is None:
            return True
        if self._identity != (found.st_dev, found.st_ino) or found.st_size < self._end:
            return False
        file.seek(self._end - len(self._before))
        return bool(file.read(len(self._before)) == self._before)

    def _forget(self) -> None:
        self.rows, self.unreadable, self._identity, self._end, self._before = [], 0, None, 0, b""

    def _take(self, line: bytes) -> None:
        try:
            row = from_json_text(line.decode("utf-8"))
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            self.rows.append(row)
        else:
            self.unreadable += 1
