"""Records of published files with their places, one in memory at a time; and the counts of what was left out, and why.

JSON Lines go line by line. A JSON array, the form of MetaMath's file, is decoded element by element as its text comes
in: at no time is more than one element and a piece of text in memory. Parquet comes in batches. The two kinds of record
that make no row are told apart: a *skipped* one is sound, and a rule leaves it out (no answer, a score too low); a
*malformed* one is not what the format says, and is reported with its place.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.data.json_rows import BYTE_ORDER_MARK, beginning, json_row
from holdfast.data.readers import file_tables, holds_array, kind_of, open_bytes
from holdfast.errors import DataError

SHOWN = 10
"""Malformed records that are named."""
HOPELESS = 100
"""So many records at the start of a request, all malformed: it is another format, and reading on finds nothing."""
_TEXT = 1 << 20


class Skipped(Exception):
    """A sound record that a rule leaves out; the text is the reason, the same for all records of its kind."""


class Malformed(Exception):
    """A record that is not what the format says; the text says why."""


@dataclass(frozen=True, kw_only=True)
class PreparedRow:
    """One row."""

    row: dict[str, Any]
    """What is trained on; rows with equal content are duplicates."""
    group: str
    """The question or document that it is about: rows with equal groups are never divided between the two sides of a
    split."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Further columns, such as an id, which training does not read."""
    same: str = ""
    """Rows with equal texts here are duplicates; empty: those with equal content are."""
    day: int = 0
    """When its document appeared, as `date.toordinal()`; 0: not known."""


@dataclass(kw_only=True)
class Reading:
    """One pass over the input files: what a format's reader is given, and what it counts."""

    files: list[Path]
    options: Mapping[str, Any]
    """The format's own options, by name; absent ones were not given."""
    scratch: Path
    """A folder for what does not fit in memory; removed afterwards."""
    advance: Callable[[float], None] = lambda amount: None
    """Called with the bytes of the files that were read."""
    records: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    shortened: Counter[str] = field(default_factory=Counter)
    """What was left out of records that became rows all the same."""
    malformed: int = 0
    places: list[str] = field(default_factory=list)
    """Place and reason of the first malformed records."""
    columns: list[str] = field(default_factory=list)
    """Of the first record, for messages."""
    names: Mapping[Path, str] = field(default_factory=dict)
    """What files that were found in folders are called there."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Files by how they were read, where a format has several ways."""
    malformed_dates: int = 0
    date_places: list[str] = field(default_factory=list)
    """Place and reason of the first malformed dates."""

    def skip(self, reason: str, count: int = 1) -> None:
        """Counts a sound record that a rule leaves out."""
        self.skipped[reason] += count

    def bad(self, place: str, reason: str) -> None:
        """Counts a malformed record, and keeps its place where it is one of the first.

        Raises:
            DataError: all records so far are malformed, and there were many.
        """
        self.malformed += 1
        if len(self.places) < SHOWN:
            self.places.append(f"{place}: {reason}")
        if self.malformed == self.records and self.malformed >= HOPELESS:
            raise self.error(f"The first {HOPELESS} records are all malformed")

    def bad_date(self, place: str, reason: str) -> None:
        """Counts a date that cannot be used, in a record that is sound otherwise."""
        self.malformed_dates += 1
        if len(self.date_places) < SHOWN:
            self.date_places.append(f"{place}: {reason}")

    def error(self, what: str) -> DataError:
        """The error that names the first malformed records."""
        lines = [f"  {place}" for place in self.places]
        more = [f"  and {self.malformed - len(lines)} more"] if self.malformed > len(lines) else []
        return DataError("\n".join([f"{what}:", *lines, *more]))


Records = Iterator[tuple[str, dict[str, Any] | None]]
"""With their places; None for one that was malformed, and is counted."""


def made_of(
    reading: Reading,
    convert: Callable[[Mapping[str, Any]], Iterable[PreparedRow]],
    *,
    read: Callable[[Path, Reading], Records] | None = None,
) -> Iterator[PreparedRow]:
    """Rows of all records of the files, with what cannot be used counted.

    Args:
        reading: the files.
        convert: a record as rows; raises `Skipped` or `Malformed`.
        read: the records of a file; None: those of JSON, JSON Lines, Parquet and CSV.

    Raises:
        DataError: a file that cannot be read at all.
    """
    for file in reading.files:
        for place, record in (read or records)(file, reading):
            if record is None:
                continue
            reading.columns = reading.columns or list(record)
            try:
                yield from convert(record)
            except Skipped as reason:
                reading.skip(str(reason))
            except Malformed as reason:
                reading.bad(place, str(reason))


def text_of(record: Mapping[str, Any], *names: str) -> str:
    """The text under the first of these names that is there, as it is.

    Raises:
        Malformed: none is there, or it is no text.
        Skipped: it is empty.
    """
    name = next((n for n in names if record.get(n) is not None), None)
    if name is None:
        raise Malformed(f"no '{names[0]}' (keys: {', '.join(list(record)[:8]) or 'none'})")
    value = record[name]
    if not isinstance(value, str):
        raise Malformed(f"'{name}' is {type(value).__name__}, expected text")
    if not value.strip():
        raise Skipped(f"an empty '{name}'")
    return value


def records(file: Path, reading: Reading) -> Records:
    """Records of one JSON, JSON Lines, Parquet or CSV file with their places; None for one that was malformed already
    as JSON, and is counted.

    Args:
        file: with the ending of its kind; another ending is read as JSON.
        reading: whose counts it adds to.

    Raises:
        DataError: the file cannot be read on, or not at all.
    """
    kind = kind_of(file)
    if kind in ("parquet", "csv"):
        number = 0
        for table in file_tables(file, advance=reading.advance):
            for record in table.to_pylist():
                number += 1
                reading.records += 1
                yield f"{file}, row {number}", record
        return
    with open_bytes(file, reading.advance) as stream, undamaged(file):
        yield from (_array if holds_array(stream) else _lines)(stream, file, reading)


@contextlib.contextmanager
def undamaged(file: Path) -> Iterator[None]:
    """What cannot be read on in the body is damaged.

    Raises:
        DataError: the file is cut short or damaged.
    """
    try:
        yield
    except (OSError, EOFError) as error:
        raise DataError(f"{file}: the file is cut short or damaged; fetch it again ({error}).") from error


def keyed_records(file: Path, reading: Reading) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """(place, key, record) of a JSON object of arrays, `{"key": [record, ...], ...}`, element by element; None for a
    malformed one, which is counted.

    Raises:
        DataError: the file cannot be read on, or not at all.
    """
    with open_bytes(file, reading.advance) as stream, undamaged(file):
        yield from _keyed(stream, file, reading)


def _lines(stream: BinaryIO, file: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for number, line in enumerate(stream, 1):
        line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if not line.strip():
            continue
        reading.records += 1
        place = f"{file}, line {number}"
        try:
            record = json_row(line, number, str(file))
        except DataError as error:
            reading.bad(place, str(error).removeprefix(f"{place}: ").removesuffix(" Correct or remove the line."))
            yield place, None
        else:
            yield place, record


_GAP = re.compile(r"\s*")
_NEAR = 16
"""A decoding error so close to the end of the text at hand may be gone with more text."""


class _ArrayText:
    """The text of a JSON array as it comes in, with a place in it and that place's line."""

    def __init__(self, stream: BinaryIO, file: Path) -> None:
        self.file = file
        self.source = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        self.text, self.at, self.line, self.ended = "", 0, 1, False

    def more(self) -> None:
        """Reads on: at least as much again as is waiting, so that a long element is not decoded from its beginning too
        often."""
        try:
            new = self.source.read(max(_TEXT, len(self.text) - self.at))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.file}: expected UTF-8, got byte 0x{error.object[error.start]:02x} after line {self.line}."
            ) from None
        self.ended = not new
        self.text, self.at = self.text[self.at :] + new, 0

    def move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def next_sign(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            match = _GAP.match(self.text, self.at)
            self.move(match.end() if match else self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.more()

    def value(self, decoder: json.JSONDecoder) -> Any:
        """The JSON value here, and goes behind it.

        Raises:
            DataError: there is none; what follows cannot be told apart any more.
        """
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.at)
            except (json.JSONDecodeError, RecursionError) as error:
                position = getattr(error, "pos", 0)
                unfinished = position >= len(self.text) - _NEAR or str(error).startswith("Unterminated")
                if not self.ended and unfinished:
                    self.more()
                    continue
                self.move(max(position, self.at))
                reason = getattr(error, "msg", "nested too deeply")
                got = (
                    beginning(self.text[self.at : self.at + 80]) if self.at < len(self.text) else "the end of the file"
                )
                raise DataError(
                    f"{self.file}, line {self.line}: expected an array of JSON objects, got {got} ({reason}). What "
                    f"follows cannot be read; "
                    "is the file whole?"
                ) from None
            self.move(end)
            return value


def _array(stream: BinaryIO, file: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any] | None]]:
    text = _ArrayText(stream, file)
    text.next_sign()
    yield from _elements(text, reading)


def _elements(text: _ArrayText, reading: Reading, *, key: str = "") -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The objects of the array that begins here; goes to its closing bracket."""
    file, decoder, number = text.file, json.JSONDecoder(), 0
    text.move(text.at + 1)
    while (sign := text.next_sign()) != "]":
        if number:
            if sign != ",":
                got = beginning(text.text[text.at : text.at + 80]) if sign else "the end of the file"
                raise DataError(
                    f"{file}, line {text.line}: expected ',' or ']' after element {number} of the array, got {got}. "
                    f"Is the file whole?"
                )
            text.move(text.at + 1)
            text.next_sign()
        number += 1
        reading.records += 1
        place = f"{file}, {key + ', ' if key else ''}element {number} (line {text.line})"
        value = text.value(decoder)
        if isinstance(value, dict):
            yield place, value
        else:
            reading.bad(place, f"expected a JSON object, got {beginning(json.dumps(value, ensure_ascii=False))}")
            yield place, None


def _keyed(stream: BinaryIO, file: Path, reading: Reading) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    text, decoder, first = _ArrayText(stream, file), json.JSONDecoder(), True

    def expect(sign: str, what: str) -> None:
        if text.next_sign() != sign:
            got = beginning(text.text[text.at : text.at + 80]) if text.at < len(text.text) else "the end of the file"
            raise DataError(f"{file}, line {text.line}: expected {what}, got {got}. Is the file whole?")

    expect("{", "an object of arrays, such as fundus writes")
    text.move(text.at + 1)
    while text.next_sign() != "}":
        if not first:
            expect(",", "',' or '}' after an array")
            text.move(text.at + 1)
        first = False
        expect('"', "a name in quotes")
        key = str(text.value(decoder))
        expect(":", f"':' after '{key}'")
        text.move(text.at + 1)
        expect("[", f"an array under '{key}'")
        for place, record in _elements(text, reading, key=key):
            yield place, key, record
        text.move(text.at + 1)
