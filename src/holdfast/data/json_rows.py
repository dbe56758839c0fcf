"""JSON Lines and JSON arrays as Arrow tables, read by Python's own parser: every value comes back
as it was written. (The reader of `datasets` turns "007" beside 7 into a number, texts that look
like times into times, and takes a key that stands twice; docs/log, 2026-11-30.)

What is no object a line raises `DataError` with the line. A column whose values have several types
(a number here, a string there), or whose objects Arrow would change (it gives each the keys of
all), is kept as `datasets.Json`. (A whole number beyond 64 bits comes back as its digits, since
`datasets.Json` knows no number for it.)
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TABLE_BYTES = 8 << 20
ROWS_PER_TABLE = 10_000

_LONG = re.compile(r"\d{19}")
"""A whole number that may be beyond 64 bits."""
MAX_COLUMN_DEPTH = 30
"""Arrow files end at 64 levels of types; deeper columns become `datasets.Json` well before."""
_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}


# ------------------------------------------------------------------------------------------ reading


def json_tables(stream: io.BufferedReader, name: str) -> Iterator[pa.Table]:
    """Tables of the rows in file order, from one object a line or from one array of objects.

    Args:
        stream: the (decompressed) bytes, from their beginning.
        name: the file's name for messages.

    Raises:
        DataError: a line or element that is not an object, is malformed, or is not UTF-8; names the
            line.
    """
    if holds_array(stream):
        yield from _array_tables(stream.read(), name)
        return
    rows: list[dict[str, Any]] = []
    size = 0
    for number, line in json_lines(stream):
        rows.append(json_row(line, number, name))
        size += len(line)
        if size > TABLE_BYTES:
            yield rows_table(rows)
            rows, size = [], 0
    if rows:
        yield rows_table(rows)


def holds_array(stream: io.BufferedReader) -> bool:
    """Whether a stream of JSON that was not read from yet begins with an array."""
    return stream.peek(1).removeprefix(BYTE_ORDER_MARK).lstrip()[:1] == b"["


def json_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Every line that is not blank, which is to say every row, with its number from 1."""
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if line.strip():
            yield number, line.rstrip(b"\n")


# ------------------------------------------------------------------------------------------- tables


def rows_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Plain rows as a table; a missing column is null, and a column of several types, or of objects
    that Arrow would change, becomes `datasets.Json`."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            array = pa.array(values)
            if not _storable(array.type) or changes_objects(array):
                array = json_array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            array = json_array(values)
        arrays.append(array)
    return pa.table(arrays, names=list(names))


def json_array(values: Sequence[Any]) -> pa.Array:
    """Values of any JSON type as the array behind a `datasets.Json` column."""
    import pyarrow as pa

    def text(value: Any) -> str:
        written = json.dumps(value, ensure_ascii=False, default=str)
        return (
            json.dumps(_digits(value), ensure_ascii=False, default=str)
            if _LONG.search(written)
            else written
        )

    texts = pa.array([None if v is None else text(v) for v in values], pa.string())
    return pa.ExtensionArray.from_storage(pa.json_(), texts)


def _digits(value: Any) -> Any:
    """Whole numbers beyond 64 bits as their digits."""
    if isinstance(value, dict):
        return {key: _digits(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_digits, value))
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def _storable(kind: pa.DataType, depth: int = 0) -> bool:
    """Whether Arrow files have a place for the type: not for objects without keys, not for very
    deep ones."""
    import pyarrow as pa

    if depth > MAX_COLUMN_DEPTH:
        return False
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_storable(f.type, depth + 1) for f in kind)
    return not pa.types.is_list(kind) or _storable(kind.value_type, depth + 1)


def holds_objects(kind: pa.DataType) -> bool:
    """Whether a type has objects in it, at any depth, that JSON can write."""
    import pyarrow as pa

    return _holds(kind, pa.types.is_struct) and not _holds(kind, pa.types.is_binary)


def changes_objects(column: pa.Array) -> bool:
    """Whether objects in a column came back with other keys, another order of keys or other numbers
    than they were written with."""
    import pyarrow as pa

    if pa.types.is_list(column.type):
        return changes_objects(column.flatten())
    if not pa.types.is_struct(column.type):
        return False
    values = column.drop_null().flatten()
    if any(value.null_count for value in values):
        return True
    return any(
        holds_objects(value.type) or _holds(value.type, pa.types.is_floating) for value in values
    )


def _holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    import pyarrow as pa

    if test(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_holds(f.type, test) for f in kind)
    return pa.types.is_list(kind) and _holds(kind.value_type, test)


# -------------------------------------------------------------------------------------- single rows


def json_row(line: bytes, number: int, name: str) -> dict[str, Any]:
    """One line as a row, or a `DataError` that says what is wrong with it."""
    expected = (
        'one JSON object per line, such as {"text": "..."}, or one array of objects for the '
        "whole file"
    )
    value = _read_json(line, number, name, expected)
    _check_row(
        value, f"{name}, line {number}: ", " Correct or remove the line.", escapes=b"\\u" in line
    )
    return dict(value)


def _array_tables(content: bytes, name: str) -> Iterator[pa.Table]:
    """A file that is one array of objects."""
    content = content.removeprefix(BYTE_ORDER_MARK)
    values, escapes = _read_json(content, 1, name, "an array of JSON objects"), b"\\u" in content
    for index, value in enumerate(values, 1):
        _check_row(value, f"{name}, element {index} of the array: ", "", escapes=escapes)
    for start in range(0, len(values), ROWS_PER_TABLE):
        yield rows_table(values[start : start + ROWS_PER_TABLE])


def _read_json(content: bytes, number: int, name: str, expected: str) -> Any:
    """What JSON says.

    Args:
        content: a line, or the whole of an array.
        number: of its first line.
        name: the file's.
        expected: what should be there, for messages.

    Raises:
        DataError: it is not UTF-8, or malformed; names the line.
    """
    text = ""
    where = f"{name}, line {number}" if b"\n" not in content else name
    try:
        text = content.decode("utf-8")
        return json.loads(text, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        line, column = _position(content, error.start)
        utf16 = (
            "; the file looks like UTF-16, save it as UTF-8"
            if content[:2] in (b"\xff\xfe", b"\xfe\xff")
            else ""
        )
        raise DataError(
            f"{name}, line {number + line}: expected UTF-8, got byte 0x{content[error.start]:02x} "
            f"at position {column + 1} of the line{utf16}."
        ) from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to be read: {beginning(text)}.") from None
    except json.JSONDecodeError as error:
        line, rest = error.lineno - 1, text.split("\n")[error.lineno - 1]
        raise DataError(
            f"{name}, line {number + line}: expected {expected}, got {beginning(rest)} "
            f"({error.msg}, column {error.colno}). Correct or remove the line."
        ) from None
    except ValueError as error:
        raise DataError(f"{where}: {error}. Correct or remove the line.") from None


def _position(content: bytes, index: int) -> tuple[int, int]:
    """Of a byte, its line and its place in it, both from 0."""
    before = content[:index]
    return before.count(b"\n"), index - before.rfind(b"\n") - 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key '{repeated}' appears twice in one object")
    return value


def _check_row(value: Any, where: str, advice: str, *, escapes: bool) -> None:
    """
    Args:
        value: what JSON said.
        where: stands before a message.
        advice: stands behind it.
        escapes: whether characters are written by their numbers.

    Raises:
        DataError: the value makes no row.
    """
    if not isinstance(value, dict) or not value:
        kind = "an object without any key" if value == {} else _KINDS[type(value)]
        text = beginning(json.dumps(value, ensure_ascii=False))
        raise DataError(
            f'{where}expected one JSON object, such as {{"text": "..."}}, got {kind}: '
            f"{text}.{advice}"
        )
    if escapes:
        _refuse_surrogates(value, where)


def _refuse_surrogates(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(
            f"{where}the escape {code} is half of a surrogate pair and is not a character. Write "
            "the character itself."
        ) from None


def beginning(text: str, length: int = 60) -> str:
    """The first characters of `text`, quoted, for messages."""
    text = text.strip()
    return repr(text if len(text) <= length else text[:length] + "...")
