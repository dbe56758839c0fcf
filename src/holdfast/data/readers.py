"""One data file of any supported kind as a stream of Arrow tables, in file order.

| kind | suffixes | a row is |
|---|---|---|
| json | .jsonl .ndjson .json | a line holding one object, or an element of one array of objects |
| csv | .csv .tsv | a record under a header line; every cell is text, nothing is guessed (007 stays 007) |
| parquet | .parquet | a row |
| text | .txt .md | the whole file, or a line, see `Documents` |

All but parquet may be compressed (`.gz`, `.zst`). Other encodings than UTF-8 are refused, a byte
order mark is dropped.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from holdfast.data.json_rows import beginning, holds_array, json_lines, json_tables
from holdfast.errors import DataError, first_line

if TYPE_CHECKING:
    import pyarrow as pa

Documents = Literal["file", "line"]
"""How a text file becomes rows: one document a file, or each line that is not blank."""

KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
SUPPORTED = f"{', '.join(KINDS)} (all but .parquet also with {' or '.join(COMPRESSIONS)})"

_ROWS_PER_TABLE = 10_000


def split_name(name: str) -> tuple[str, str]:
    """A file's name in lower case without the suffix of a compression, and that suffix; empty where
    there is none."""
    lower = name.lower()
    packed = next((suffix for suffix in COMPRESSIONS if lower.endswith(suffix)), "")
    return lower.removesuffix(packed), packed


def kind_of(path: Path) -> str | None:
    """ "json", "csv", "parquet" or "text" by the file's suffixes; None for anything else."""
    bare, packed = split_name(path.name)
    kind = KINDS.get(Path(bare).suffix)
    return None if packed and kind == "parquet" else kind


def file_tables(
    path: Path,
    *,
    documents: Documents = "file",
    advance: Callable[[float], None] = lambda amount: None,
) -> Iterator[pa.Table]:
    """Yields the rows of one file as tables of at most some ten thousand rows or some megabytes.

    Args:
        path: an existing file whose `kind_of` is not None.
        documents: how a text file is cut into rows; ignored for other kinds.
        advance: is called with the number of bytes of the file consumed since the last call.

    Raises:
        DataError: the file is empty, holds no rows, is truncated, malformed or not UTF-8; names the
            file and, where there is one, the line.
    """
    import pyarrow as pa

    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes); expected at least one row.")
    kind = kind_of(path)
    rows = 0
    if kind == "parquet":
        tables = _parquet_tables(path, advance)
    else:
        tables = _stream_tables(path, kind, documents, advance)
    try:
        for table in tables:
            rows += table.num_rows
            yield table
    except (OSError, EOFError, pa.ArrowInvalid) as error:
        # The file opened well, so this is about its content: a truncated or damaged compressed
        # stream, above all.
        packed = path.suffix.lower() in COMPRESSIONS
        hint = (
            "The file is cut short or damaged. Download or compress it again."
            if packed
            else "The file could not be read."
        )
        raise DataError(f"{path}: {hint} ({first_line(error)})") from error
    if rows == 0:
        raise DataError(f"{path} holds no rows.")


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table of `file_tables`, with what is kept as JSON text read."""
    import pyarrow as pa

    rows = table.to_pylist()
    for name in [field.name for field in table.schema if field.type == pa.json_()]:
        for row in rows:
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def row_lines(path: Path) -> list[int] | None:
    """The line number (from 1) of every row of a JSON Lines file; None for other files, whose rows
    have no line of their own."""
    if kind_of(path) != "json":
        return None
    with open_bytes(path, lambda amount: None) as stream:
        return None if holds_array(stream) else [number for number, _ in json_lines(stream)]


# ------------------------------------------------------------------------------------------ streams


class _Counted(io.RawIOBase):
    """Bytes of an Arrow stream, telling how much of the underlying file has been consumed."""

    def __init__(self, stream: Any, raw: Any, advance: Callable[[float], None]) -> None:
        self._stream, self._raw, self._advance = stream, raw, advance
        self._reported = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        position = self._raw.tell()
        self._advance(position - self._reported)
        self._reported = position
        return len(content)


@contextlib.contextmanager
def open_bytes(path: Path, advance: Callable[[float], None]) -> Iterator[io.BufferedReader]:
    """The decompressed bytes. Arrow's own streams are used: they know zstd on every Python and
    notice a cut-off end."""
    import pyarrow as pa

    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(pa.OSFile(str(path)))
        compression = COMPRESSIONS.get(path.suffix.lower())
        stream = (
            stack.enter_context(pa.CompressedInputStream(raw, compression)) if compression else raw
        )
        yield io.BufferedReader(_Counted(stream, raw, advance), buffer_size=1 << 20)


class NotText(ValueError):
    """Bytes that are no UTF-8.

    Args:
        location: file and line.
        byte: the first wrong one.
    """

    def __init__(self, location: str, byte: int) -> None:
        self.location = location
        super().__init__(f"expected UTF-8, got byte 0x{byte:02x}")


def read_text(stream: BinaryIO, path: Path) -> str:
    """All of a stream's text, without a byte order mark.

    Raises:
        NotText: it is no UTF-8.
    """
    content = stream.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise NotText(f"{path}, line {line}", content[error.start]) from None


@contextlib.contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """An open Parquet file; what goes wrong with it in the body is about its content.

    Raises:
        DataError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{path} is not a readable parquet file: cut short, damaged, or another format "
            f"({first_line(error)})."
        ) from error


def _stream_tables(
    path: Path, kind: str | None, documents: Documents, advance: Callable[[float], None]
) -> Iterator[pa.Table]:
    with open_bytes(path, advance) as stream:
        if kind == "json":
            yield from json_tables(stream, str(path))
        elif kind == "csv":
            yield from _csv_tables(stream, path)
        else:
            yield from _text_tables(stream, path, documents)


# -------------------------------------------------------------------------------------------- kinds


def _parquet_tables(path: Path, advance: Callable[[float], None]) -> Iterator[pa.Table]:
    import pyarrow as pa

    with parquet_file(path) as file:
        size, total = path.stat().st_size, max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=_ROWS_PER_TABLE):
            advance(size * batch.num_rows / total)
            yield pa.Table.from_batches([batch])


def _text_tables(stream: BinaryIO, path: Path, documents: Documents) -> Iterator[pa.Table]:
    import pyarrow as pa

    try:
        text = read_text(stream, path).replace("\r\n", "\n")
    except NotText as error:
        raise DataError(f"{error.location}: {error}. Save the file as UTF-8.") from None
    rows = [text] if documents == "file" else text.split("\n")
    texts = [row for row in rows if row.strip()]
    for start in range(0, len(texts), _ROWS_PER_TABLE):
        yield pa.table({"text": pa.array(texts[start : start + _ROWS_PER_TABLE], pa.string())})


def _csv_tables(stream: BinaryIO, path: Path) -> Iterator[pa.Table]:
    delimiter = "\t" if ".tsv" in (s.lower() for s in path.suffixes) else ","
    csv.field_size_limit(sys.maxsize)  # a cell may be a book
    reader = csv.reader(_text_lines(stream, path), delimiter=delimiter, strict=True)
    start = 1
    try:
        names = _check_header(next(reader, []), path, delimiter)
        records: list[list[str]] = []
        start = reader.line_num + 1
        for record in reader:
            if record and len(record) != len(names):
                raise DataError(
                    f"{path}, line {start}: expected {len(names)} cells ({', '.join(names)}), got "
                    f"{len(record)}: {beginning(delimiter.join(record))}. Quote cells that hold a "
                    f"'{delimiter}' or a line break."
                )
            if record:
                records.append(record)
            if len(records) == _ROWS_PER_TABLE:
                yield _text_table(names, records)
                records = []
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, record starting at line {start}: {error}. Check its quotes."
        ) from None
    if records:
        yield _text_table(names, records)


def _text_table(names: list[str], records: list[list[str]]) -> pa.Table:
    import pyarrow as pa

    columns = zip(*records, strict=True)
    return pa.table([pa.array(column, pa.string()) for column in columns], names=names)


def _check_header(names: list[str], path: Path, delimiter: str) -> list[str]:
    if not any(name.strip() for name in names):
        raise DataError(
            f"{path}, line 1: expected a header line with the column names, got a blank line."
        )
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise DataError(
            f"{path}, line 1: the column '{repeated[0]}' appears twice in the header. Give each "
            "column its own name."
        )
    if len(names) == 1 and set(names[0]) & set(";\t,") - {delimiter}:
        raise DataError(
            f"{path}, line 1: expected columns separated by {delimiter!r}, got one column named "
            f"{names[0]!r}. Save a .csv with commas and a .tsv with tabs."
        )
    return names


def _text_lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}: expected UTF-8, got byte 0x{line[error.start]:02x} at "
                f"position {error.start + 1} of the line."
            ) from None
