"""Rows by key in an append-only JSON Lines file: what costs money or minutes a row is kept the
moment it is there.

Every row goes to the file in one write and is flushed, so a killed process leaves whole lines and
at most one torn one at the end, which the next opening cuts off. Of rows with the same key the last
one counts: a row is replaced by adding it again. One process at a time: the file is locked while it
is open for writing.

What is in a row may be large (an article a row makes gigabytes of them): `keep` says what of each
row stays in memory, the file is then read line by line, and `stream_ledger` reads it again where
whole rows are wanted.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.errors import DataError, FolderBusy, RunFolderError, StorageError
from holdfast.support.files import from_json, to_jsonable
from holdfast.support.leftovers import NewFolder

Row = dict[str, Any]


class Ledger:
    """An open ledger, to be used in a `with` statement.

    Args:
        path: the file; made, with its folder, where it is not there.
        key: the field that tells rows apart.
        keep: what stays in memory of a row; sees every row of the file once, in order, those that
            were replaced too, and then every one added. None: all of it.

    Raises:
        FolderBusy: another process has it open.
        RunFolderError: the folder cannot be written.
        DataError: the file holds something else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str = "key",
        keep: Callable[[Row], Row] | None = None,
    ) -> None:
        self.path, self.key, self.keep = Path(path), key, keep
        self._file: Any = None
        self.rows: dict[str, Row] = {}
        """The rows that count, by key. Not to be changed from outside."""

    def __enter__(self) -> Ledger:
        try:
            self._made = NewFolder(self.path.parent, content=False)
            self._new = not self.path.exists()
            self._file = open(self.path, "a+b", buffering=0)
        except OSError as error:
            raise RunFolderError(
                f"Could not write {self.path}: {error.strerror or error}. Choose an output_dir "
                "that can be written."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise FolderBusy(
                f"Another holdfast process is writing {self.path}. Wait for it, or choose another "
                "output_dir."
            ) from None
        try:
            self._cut_torn_line()
            self.rows = read_ledger(self.path, key=self.key, keep=self.keep)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._new and kind is not None and self._file.seek(0, os.SEEK_END) == 0:
            self.path.unlink(missing_ok=True)
        self._file.close()
        self._made.__exit__(kind, error, trace)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows, all in one write; they are with the operating system when this returns.

        Raises:
            StorageError: the disk is full; the rows before are intact.
        """
        new = [dict(row) for row in rows]
        lines = [
            json.dumps(to_jsonable(row), ensure_ascii=False, allow_nan=False) + "\n" for row in new
        ]
        # a lone surrogate of a reply must not stop the run
        content = "".join(lines).encode("utf-8", "replace")
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as error:
            raise StorageError(
                f"Could not write {self.path} ({error.strerror or error}). Free some space and "
                "run the same command to continue."
            ) from error
        self.rows.update(
            {str(row[self.key]): self.keep(row) if self.keep is not None else row for row in new}
        )

    def _cut_torn_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            self._file.seek(start)
            line_end = self._file.read(end - start).rfind(b"\n")
            if line_end >= 0:
                end = start + line_end + 1
                break
            end = start
        if end < size:
            self._file.truncate(end)


def read_ledger(
    path: str | os.PathLike[str], *, key: str = "key", keep: Callable[[Row], Row] | None = None
) -> dict[str, Row]:
    """The rows of a ledger that count, by key; none where there is no file. A torn last line is
    left out.

    Args:
        path: the file.
        key: the field that tells rows apart.
        keep: as of `Ledger`.

    Raises:
        DataError: a line that is no row of a ledger.
    """
    return {row[key]: row if keep is None else keep(row) for row in stream_ledger(path, key=key)}


def stream_ledger(path: str | os.PathLike[str], *, key: str = "key") -> Iterator[Row]:
    """Every row of a ledger in the order of writing, replaced ones too, one in memory at a time;
    none where there is no file.

    Raises:
        DataError: a line that is no row of a ledger.
    """
    if not Path(path).is_file():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = from_json(line.decode())
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the writer died in the middle of this line
                    return
                raise DataError(
                    f"{path}, line {number}: expected a JSON object, got "
                    f"{line[:80].decode(errors='replace')!r} ({error})."
                ) from error
            _check(row, path, key)
            yield row


def _check(row: Any, path: str | os.PathLike[str], key: str) -> None:
    if not isinstance(row, dict) or not isinstance(row.get(key), str):
        raise DataError(
            f"{path}: expected rows with a '{key}', got {str(row)[:80]}. holdfast did not write "
            "this file. Choose another output_dir."
        )
