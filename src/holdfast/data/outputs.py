"""Outputs of `holdfast data`: rows in files that are whole or absent, and beside each the record
that says which request they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.errors import Problem, RunFolderError, did_you_mean
from holdfast.support.files import read_object, whole_file
from holdfast.support.paths import real


def record_path(output: Path) -> Path:
    """Where the record of an output is."""
    return output.with_name(f"{output.name}.json")


def own_record(
    output: Path, files: Sequence[Path], *, command: str, mine: Mapping[str, Any], differs: str
) -> dict[str, Any] | None:
    """The record of an earlier session of the same request; None where there is none.

    Args:
        output: whose record it is.
        files: what only the same request may write again.
        command: which writes such outputs.
        mine: entries of the record by which a request knows its own.
        differs: what is different where the command wrote the files for another request.

    Raises:
        RunFolderError: one of the files is there, and is not this request's.
    """
    path = record_path(output)
    record = read_object(path) if path.is_file() else {}
    by_command = record.get("command") == command
    if by_command and mine.items() <= record.items():
        return dict(record)
    reason = differs if by_command else f"there is no record that 'holdfast {command}' wrote it"
    for file in files:
        if file.exists():
            raise RunFolderError(
                f"{file} already exists, and {reason}. It is not overwritten. Choose another "
                "--output, or move the file away."
            )
    return None


def are_whole(record: Mapping[str, Any], files: Sequence[Path]) -> bool:
    """Whether all files of a finished request are there.

    Args:
        record: with "outputs", as `RowsFile.about` describes them.
        files: of the request.

    Raises:
        RunFolderError: one was changed since.
    """
    sizes = {output["name"]: output["bytes"] for output in record.get("outputs", [])}
    present = [file for file in files if file.exists()]
    for file in present:
        if file.stat().st_size != sizes.get(file.name):
            raise RunFolderError(
                f"{file} was changed after it was prepared. It is not overwritten. Choose another "
                "--output, or move the file away."
            )
    return len(present) == len(files)


class RowsFile:
    """Rows on their way into a file, counted."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._digest = path, file, hashlib.sha256()
        self._rows = self._bytes = 0

    def add(self, line: bytes) -> None:
        """Writes a row, its line break included."""
        self._file.write(line)
        self._digest.update(line)
        self._rows += 1
        self._bytes += len(line)

    @property
    def about(self) -> dict[str, Any]:
        """What a record says of the file."""
        return {
            "name": self._path.name,
            "rows": self._rows,
            "bytes": self._bytes,
            "sha256": self._digest.hexdigest(),
        }


@contextlib.contextmanager
def rows_file(path: Path) -> Iterator[RowsFile]:
    """A file of rows that takes its place when the body ends (`whole_file`).

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    with whole_file(path) as file:
        yield RowsFile(path, file)


def output_problems(name: str, output: Path, inputs: Iterable[Path]) -> list[Problem]:
    """What is wrong with the name of an output, one sentence each."""
    problems = []
    if output.suffix != ".jsonl":
        problems.append(Problem(name, f"expected a file that ends with .jsonl, got {output}"))
    if real(output) in map(real, inputs):
        problems.append(
            Problem(name, f"{output} is an input; inputs are never changed. Choose another name")
        )
    return problems


def what_is_there(path: Path) -> str:
    """What is there in place of a file, with the nearest name of its folder."""
    beside = set(os.listdir(path.parent)) - {path.name} if path.parent.is_dir() else set()
    return f"found {'a folder.' if path.is_dir() else 'nothing.'}{did_you_mean(path.name, beside)}"
