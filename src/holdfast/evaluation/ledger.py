"""Rows by key in an append-only JSON Lines file: what costs money or minutes a row is kept the moment it is there.

Every row goes to the file in one write and is flushed, so a killed process leaves whole lines and at most one torn one at the end, which the
next opening cuts off. Of rows with the same key the last one counts: a row is replaced by adding it again. One process at a time: the file is
locked while it is open for writing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import DataError, RunFolderError, StorageError
from holdfast.results import read_jsonl, to_jsonable


class Ledger:
    """An open ledger, to be used in a `with` statement.

    Args:
        path: the file; made, with its folder, where it is not there.
        key: the field that tells rows apart.

    Raises:
        RunFolderError: another process has it open, or the folder cannot be written.
        DataError: the file holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], *, key: str = "key") -> None:
        self.path, self.key = Path(path), key
        self._file: Any = None
        self.rows: dict[str, dict[str, Any]] = {}
        """The rows that count, by key. Not to be changed from outside."""

    def __enter__(self) -> Ledger:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0)
        except OSError as error:
            raise RunFolderError(f"Could not write {self.path}: {error.strerror or error}. Choose an output_dir that can be written.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise RunFolderError(f"Another holdfast process is writing {self.path}. Wait for it, or choose another output_dir.") from None
        try:
            self._cut_torn_line()
            self.rows = read_ledger(self.path, key=self.key)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows, all in one write; they are with the operating system when this returns.

        Raises:
            StorageError: the disk is full; the rows before are intact.
        """
        new = [dict(row) for row in rows]
        lines = [json.dumps(to_jsonable(row), ensure_ascii=False, allow_nan=False) + "\n" for row in new]
        content = "".join(lines).encode("utf-8", "replace")  # a lone surrogate of a reply must not stop the run
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as error:
            raise StorageError(
                f"Could not write {self.path} ({error.strerror or error}). Free some space; the same command continues where it was."
            ) from error
        self.rows.update({str(row[self.key]): row for row in new})

    def _cut_torn_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            self._file.seek(start)
            found = self._file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            self._file.truncate(end)


def read_ledger(path: str | os.PathLike[str], *, key: str = "key") -> dict[str, dict[str, Any]]:
    """The rows of a ledger that count, by key; none where there is no file. A torn last line is left out.

    Raises:
        DataError: a line that is no row of a ledger.
    """
    if not Path(path).is_file():
        return {}
    rows: dict[str, dict[str, Any]] = {}
    for row in read_jsonl(path):
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            raise DataError(
                f"{path}: expected rows with a '{key}', got {str(row)[:80]}. The file is not one of holdfast's; choose another output_dir."
            )
        rows[row[key]] = row
    return rows
