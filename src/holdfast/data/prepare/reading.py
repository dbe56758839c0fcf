"""Records of data files with their places; and the counts of what was left out, and why.

JSON Lines go line by line, Parquet and CSV in batches; a JSON array is decoded as a whole. The two
kinds of record that make no row are told apart: a *skipped* one is sound, and a rule leaves it out
(no text, a date out of range); a *malformed* one holds no document, and is reported with its place.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.data.json_rows import holds_array, json_lines, json_row
from holdfast.data.readers import file_tables, kind_of, open_bytes, plain_rows
from holdfast.errors import DataError

SHOWN = 10
"""Malformed records that are named."""
HOPELESS = 100
"""So many records at the start of a request, all malformed: the files hold something else, and
reading on finds nothing."""


class Skipped(Exception):
    """A sound record that a rule leaves out; the text is the reason, the same for all records of
    its kind."""


class Malformed(Exception):
    """A record that holds no document; the text says why."""


@dataclass(kw_only=True)
class Reading:
    """One pass over the input files: what a reader is given, and what it counts."""

    files: list[Path]
    options: Mapping[str, Any]
    """Options of the corpus, by name; absent ones were not given."""
    advance: Callable[[float], None] = lambda amount: None
    """Called with the bytes of the files that were read."""
    records: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    malformed: int = 0
    places: list[str] = field(default_factory=list)
    """Place and reason of the first malformed records."""
    names: Mapping[Path, str] = field(default_factory=dict)
    """What files that were found in folders are called there."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Files by how they were read: as text, or as rows."""
    not_read: Counter[str] = field(default_factory=Counter)
    """Columns and keys of messages that a layout leaves unread, and in how many records they have a
    value."""
    malformed_dates: int = 0
    date_places: list[str] = field(default_factory=list)
    """Place and reason of the first malformed dates."""

    def bad(self, location: str, reason: str) -> None:
        """Counts a malformed record, and keeps its place where it is one of the first.

        Raises:
            DataError: all records so far are malformed, and there were many.
        """
        self.malformed += 1
        if len(self.places) < SHOWN:
            self.places.append(f"{location}: {reason}")
        if self.malformed == self.records and self.malformed >= HOPELESS:
            raise self.error(f"The first {HOPELESS} records are all malformed")

    def bad_date(self, location: str, reason: str) -> None:
        """Counts a date that cannot be used, in a record that is sound otherwise."""
        self.malformed_dates += 1
        if len(self.date_places) < SHOWN:
            self.date_places.append(f"{location}: {reason}")

    def error(self, what: str) -> DataError:
        """The error that names the first malformed records."""
        lines = [f"  {record}" for record in self.places]
        more = [f"  and {self.malformed - len(lines)} more"] if self.malformed > len(lines) else []
        return DataError(f"{what}:", *lines, *more)


Records = Iterator[tuple[str, dict[str, Any] | None]]
"""With their places; None for one that was malformed, and is counted."""


def records(file: Path, reading: Reading) -> Records:
    """Records of one JSON, JSON Lines, Parquet or CSV file with their places; None for one that was
    malformed already as JSON, and is counted.

    Args:
        file: with the ending of its kind; another ending is read as JSON.
        reading: whose counts it adds to.

    Raises:
        DataError: the file cannot be read on, or not at all.
    """
    if kind_of(file) in ("parquet", "csv"):
        yield from _table_rows(file, "row", reading)
        return
    with open_bytes(file, reading.advance) as stream, undamaged(file):
        if not holds_array(stream):
            yield from _lines(stream, file, reading)
            return
    yield from _table_rows(file, "element", reading)


@contextlib.contextmanager
def undamaged(file: Path) -> Iterator[None]:
    """What cannot be read on in the body is damaged.

    Raises:
        DataError: the file is cut short or damaged.
    """
    try:
        yield
    except (OSError, EOFError) as error:
        raise DataError(
            f"{file}: the file is cut short or damaged ({error}). Download or copy it again."
        ) from error


def _table_rows(file: Path, unit: str, reading: Reading) -> Records:
    number = 0
    for table in file_tables(file, advance=reading.advance):
        for record in plain_rows(table):
            number += 1
            reading.records += 1
            yield f"{file}, {unit} {number}", record


def _lines(stream: BinaryIO, file: Path, reading: Reading) -> Records:
    for number, line in json_lines(stream):
        reading.records += 1
        location = f"{file}, line {number}"
        try:
            record = json_row(line, number, str(file))
        except DataError as error:
            reason = (
                str(error)
                .removeprefix(f"{location}: ")
                .removesuffix(" Correct or remove the line.")
            )
            reading.bad(location, reason)
            yield location, None
        else:
            yield location, record
