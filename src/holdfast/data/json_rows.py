"""JSON Lines and JSON arrays as Arrow tables: fast where the file is sound, exact about where it is not.

Every chunk of lines goes through pyarrow's parser first (the fast path). What that parser lets through although it
should not, or changes without a word, is caught and sent to the reference reader, which is `json.loads` line by line:

- several objects on a line, or one object over several lines (it accepts both; the row number would no longer be the
  line number)
- invalid UTF-8 (it keeps the bytes; reading the string fails much later)
- strings that look like dates (it makes them timestamps; "2020-01-01" would come back as something else)
- integers beyond 64 bits (it rounds them to floats)
- nulls at the start of a list (pyarrow 26 loses one and shifts the values after it; the list then ends past its values,
  which `validate` sees)
- objects with different keys (it gives each the keys of all, null where it had none), objects within objects (their
  keys would come back in one order for all rows) and whole numbers beside fractions in them (7 would be 7.0): a chat
  template would write them so into the training text

The reference reader raises `DataError` with the line for anything that is not one object a line, and keeps a column
whose values have several types (a number here, a string there) as `datasets.Json`: every value comes back as it was
written, nothing is converted. (A whole number beyond 64 bits comes back as its digits, since `datasets.Json` knows no
number for it.)
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 8 << 20
ROWS_PER_TABLE = 10_000

BRACKETS = 1000
"""A line with more of them than this is looked at for its depth before pyarrow is: its parser crashes the process on
deep nesting."""
MAX_DEPTH = 500
"""Objects and arrays within each other that a row may have at most."""
_LONG = re.compile(r"\d{19}")
"""A whole number that may be beyond 64 bits."""
MAX_COLUMN_DEPTH = 30
"""Arrow files end at 64 levels of types; deeper columns become `datasets.Json` well before."""


# ------------------------------------------------------------------------------------------------------------ reading


def json_tables(stream: BinaryIO, name: str, *, fast: bool = True) -> Iterator[pa.Table]:
    """Tables of the rows in file order, from one object a line or from one array of objects.

    Args:
        stream: the (decompressed) bytes.
        name: the file's name for messages.
        fast: False reads everything with the reference reader (tests compare the two).

    Raises:
        DataError: a line or element that is not an object, is malformed, or is not UTF-8; names the line.
    """
    chunks = _line_chunks(stream)
    for first_line, chunk in chunks:
        if first_line == 1:
            chunk = chunk.removeprefix(BYTE_ORDER_MARK)
            if chunk.lstrip()[:1] == b"[":
                rest = [chunk, *(c for _, c in chunks)]
                yield from _array_tables(b"".join(rest), name)
                return
            _refuse_single_document(chunk, name)
        lines = [(first_line + i, line) for i, line in enumerate(chunk.split(b"\n")) if line.strip()]
        if not lines:
            continue
        table = _fast_table(chunk, [line for _, line in lines]) if fast else None
        yield table if table is not None else rows_table([json_row(line, number, name) for number, line in lines])


def nonblank_lines(stream: BinaryIO) -> Iterator[int]:
    """The line number (from 1) of each non-blank line, which is to say of each row."""
    for first_line, chunk in _line_chunks(stream):
        yield from (first_line + i for i, line in enumerate(chunk.split(b"\n")) if line.strip())


def _line_chunks(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, whole lines), about `CHUNK_BYTES` each; a longer line makes a longer chunk."""
    first_line, waiting, pending = 1, b"", [b""]
    while block := stream.read(CHUNK_BYTES):
        head, newline, tail = block.rpartition(b"\n")
        if not newline:
            pending.append(tail)
            continue
        if waiting:
            yield first_line, waiting
            first_line += waiting.count(b"\n")
        waiting, pending = b"".join([*pending, head, newline]), [tail]
    # A last line without a newline joins the chunk before it: by itself, its few keys would make a schema of their own.
    last = waiting + b"".join(pending)
    if last:
        yield first_line, last


# ---------------------------------------------------------------------------------------------- fast path and reference


def _fast_table(chunk: bytes, lines: Sequence[bytes]) -> pa.Table | None:
    """pyarrow's reading of the chunk, or None where it cannot be trusted to equal the reference reader's."""
    import pyarrow as pa
    import pyarrow.json as pj

    # One object a line, exactly: a line that starts with { and ends with } can only share an object with its neighbour
    # if a comma stood at their border, so these two checks and the row count below leave no other reading.
    for line in lines:
        bare = line.strip()
        if not (bare.startswith(b"{") and bare.endswith(b"}")) or (len(bare) < 16 and not bare[1:-1].strip()):
            return None
        if len(bare) > BRACKETS and bare.count(b"[") + bare.count(b"{") > BRACKETS:
            return None
    options = pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
    try:
        chunk.decode("utf-8")
        table = pj.read_json(io.BytesIO(chunk), read_options=options)
        schema = pa.schema([pa.field(f.name, _times_as_text(f.type)) for f in table.schema])
        if schema != table.schema:
            table = pj.read_json(
                io.BytesIO(chunk), read_options=options, parse_options=pj.ParseOptions(explicit_schema=schema)
            )
        table.validate()
    except (UnicodeDecodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(lines) or table.num_columns == 0:
        return None
    if any(_holds(f.type, pa.types.is_floating) for f in table.schema) and re.search(rb"\d{19}", chunk):
        return None
    if not all(_storable(f.type) for f in table.schema):
        return None
    if any(changes_objects(column.combine_chunks()) for column in table.columns):
        return None
    return table


def rows_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The reference: plain rows as a table; a missing column is null, and a column of several types, or of objects that
    Arrow would change, becomes `datasets.Json`."""
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
        found = json.dumps(value, ensure_ascii=False, default=str)
        return json.dumps(_digits(value), ensure_ascii=False, default=str) if _LONG.search(found) else found

    texts = pa.array([None if v is None else text(v) for v in values], pa.string())
    return pa.ExtensionArray.from_storage(pa.json_(), texts)


def _digits(value: Any) -> Any:
    """Whole numbers beyond 64 bits as their digits."""
    if isinstance(value, dict):
        return {key: _digits(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_digits(one) for one in value]
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def _storable(kind: pa.DataType, depth: int = 0) -> bool:
    """Whether Arrow files have a place for the type: not for objects without keys, not for very deep ones."""
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
    """Whether objects in a column came back with other keys, another order of keys or other numbers than they were
    written with."""
    import pyarrow as pa

    if pa.types.is_list(column.type):
        return changes_objects(column.flatten())
    if not pa.types.is_struct(column.type):
        return False
    values = column.drop_null().flatten()
    if any(value.null_count for value in values):
        return True
    return any(holds_objects(value.type) or _holds(value.type, pa.types.is_floating) for value in values)


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _times_as_text(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    return kind


def _holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    import pyarrow as pa

    if test(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_holds(f.type, test) for f in kind)
    return pa.types.is_list(kind) and _holds(kind.value_type, test)


# ---------------------------------------------------------------------------------------------------------- single rows


def json_row(line: bytes, number: int, name: str) -> dict[str, Any]:
    """One line as a row, or a `DataError` that says what is wrong with it."""
    where = f"{name}, line {number}: "
    expected = f'{where}expected one JSON object, such as {{"text": "..."}}, '
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}expected UTF-8, got byte 0x{line[error.start]:02x} at position {error.start + 1} of the "
            f"line{_utf16(line)}."
        ) from None
    if _depth(text) > MAX_DEPTH:
        raise DataError(f"{where}nested too deeply to be read (more than {MAX_DEPTH} levels): {beginning(text)}.")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except _RepeatedKey as error:
        raise DataError(f"{where}the key '{error}' appears twice in one object. Keep one of them.") from None
    except ValueError as error:
        raise DataError(f"{expected}got {beginning(text)} ({_reason(error)}). Correct or remove the line.") from None
    if not isinstance(value, dict):
        raise DataError(f"{expected}got {_kind(value)}: {beginning(text)}. Correct or remove the line.")
    if not value:
        raise DataError(f"{expected}got an object without any key: {beginning(text)}. Correct or remove the line.")
    if "\\u" in text:
        _refuse_surrogates(value, where)
    return value


def _array_tables(content: bytes, name: str) -> Iterator[pa.Table]:
    """A file that starts with `[`: one array of objects; or JSON Lines whose first line is an array, which is an
    error."""
    try:
        text = content.decode("utf-8")
        if _depth(text) > MAX_DEPTH:
            raise DataError(f"{name}: nested too deeply to be read (more than {MAX_DEPTH} levels).")
        values = json.loads(text, object_pairs_hook=_object)
    except _RepeatedKey as error:
        raise DataError(f"{name}: the key '{error}' appears twice in one object. Keep one of them.") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line}: expected UTF-8, got byte 0x{content[error.start]:02x}.") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # a complete array, then more: one array a line
            json_row(
                content.lstrip().split(b"\n", 1)[0],
                content[: len(content) - len(content.lstrip())].count(b"\n") + 1,
                name,
            )
        lines = text.split("\n")
        got = (
            beginning(lines[error.lineno - 1])
            if error.lineno <= len(lines) and lines[error.lineno - 1].strip()
            else "the end of the file"
        )
        raise DataError(
            f"{name}, line {error.lineno}: expected an array of JSON objects, got {got} ({_reason(error)})."
        ) from None
    for index, value in enumerate(values, 1):
        if not isinstance(value, dict) or not value:
            got = (
                "an object without any key"
                if value == {}
                else f"{_kind(value)}: {beginning(json.dumps(value, ensure_ascii=False))}"
            )
            raise DataError(
                f'{name}, element {index} of the array: expected a JSON object, such as {{"text": "..."}}, got {got}.'
            )
        _refuse_surrogates(value, f"{name}, element {index} of the array: ")
    for start in range(0, len(values), ROWS_PER_TABLE):
        yield rows_table(values[start : start + ROWS_PER_TABLE])


def _refuse_single_document(chunk: bytes, name: str) -> None:
    """A pretty-printed object spread over many lines deserves a better message than "line 1 is malformed"."""
    first = chunk.lstrip().split(b"\n", 1)[0].strip()
    if not first.startswith(b"{") or first.endswith(b"}"):
        return
    try:
        text = chunk.decode("utf-8")
        if _depth(text) > MAX_DEPTH:
            return
        value = json.loads(text)
    except ValueError:
        return
    lists = [key for key, v in value.items() if isinstance(v, list)]
    hint = f" The rows may be the list under '{lists[0]}': save that list by itself." if lists else ""
    keys = ", ".join(f"'{k}'" for k in list(value)[:8])
    raise DataError(
        f"{name}: expected one JSON object a line or an array of objects, got one object over several lines (keys: "
        f"{keys}).{hint}"
    )


def _depth(text: str) -> int:
    """How many arrays and objects are open at once at most; 0 where there are too few brackets to matter. Text in
    quotes does not count."""
    if text.count("[") + text.count("{") <= BRACKETS:
        return 0
    bare = re.sub(r'"(?:[^"\\]|\\.)*"?', "", text)
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", bare))
    return max(itertools.accumulate(steps), default=0)


class _RepeatedKey(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return value


def _refuse_surrogates(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(
            f"{where}the escape {code} is half of a surrogate pair and stands for no character. Write the character "
            f"itself."
        ) from None


def beginning(text: str, length: int = 60) -> str:
    """The first characters of `text`, quoted, for messages."""
    text = text.strip()
    return repr(text if len(text) <= length else text[:length] + "...")


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    return str(error)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    return "a string" if isinstance(value, str) else "an array" if isinstance(value, list) else "an object"


def _utf16(line: bytes) -> str:
    return "; the file looks like UTF-16, save it as UTF-8" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
