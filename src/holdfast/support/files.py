"""Files as holdfast writes and reads them: atomic writes, JSON with non-finite numbers,
fingerprints of values.

Every write is atomic: a temporary file in the same folder, fsync, rename. A reader therefore sees
the old content or the new, never half, and what a killed process leaves goes with the next write of
the same file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from holdfast.errors import DataError, RunFolderError, StorageError
from holdfast.support.leftovers import temporary_file

T = TypeVar("T")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes its place at `path` when the body ends, on disk by then; where
    the body fails, what was at `path` stays.

    Raises:
        RunFolderError: a folder stands in its place.
        StorageError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path) as file:
            name = file.name
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        if path.is_dir():
            raise RunFolderError(
                f"{path}: expected to write a file, found a folder of that name. Move or rename "
                "the folder."
            ) from error
        raise StorageError(
            f"Could not write {path} ({error.strerror or error}). Free some space or choose "
            "another folder. Nothing was lost."
        ) from error
    finally:
        if name is not None and os.path.exists(name):
            os.unlink(name)


def write_bytes_atomic(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes `content` so that `path` holds either its old content or all of the new.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file at `path` is
            intact.
    """
    with whole_file(path) as file:
        file.write(content)
    return Path(path)


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Writes a dataclass, mapping or list as indented JSON, atomically. NaN and infinities become
    strings that `read_json` gives back."""
    text = json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes_atomic(path, (text + "\n").encode())


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes one JSON object a line, atomically."""
    lines = [json.dumps(to_jsonable(row), ensure_ascii=False, allow_nan=False) for row in rows]
    return write_bytes_atomic(path, "".join(line + "\n" for line in lines).encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads what `write_json` wrote.

    Raises:
        DataError: no such file, one that cannot be read, or not JSON.
    """
    content = _read_bytes(path)
    try:
        return _DECODER.decode(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"Expected JSON in {path}, but it cannot be parsed: {error}. Delete the file and run "
            "the command again."
        ) from error


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """`read_json` of a file that holds an object.

    Raises:
        DataError: see `read_json`; or it holds something else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"Expected a JSON object in {path}, got {_shown(content)}.")
    return content


def read_as(path: str | os.PathLike[str], cls: type[T]) -> T:
    """A dataclass that `write_json` wrote.

    Raises:
        DataError: see `read_json`; or it holds something else.
    """
    content = read_json(path)
    try:
        return record_from(cls, content)
    except DataError as error:
        raise DataError(
            f"Expected a file that holdfast wrote in {path}, but: {error} Delete the file and run "
            "the command again."
        ) from error


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Reads one object a line; a last line cut short by a crash is skipped, any other bad line
    raises `DataError`, as does a file that is not there or cannot be read."""
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\n" in content[error.start :]:
            number = content.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path}, line {number}: expected a JSON object, got bytes that are not UTF-8."
            ) from error
        text = content[: error.start].decode("utf-8")
    yield from _parsed(text.split("\n"), path)


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"Expected a file at {path}, found none.") from None
    except OSError as error:
        raise DataError(
            f"Expected a file at {path}, but it cannot be read: {error.strerror or error}."
        ) from error


def _parsed(lines: Sequence[str], path: str | os.PathLike[str]) -> list[Any]:
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _DECODER.decode(line)
            if not isinstance(row, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            if number == len(
                lines
            ):  # no newline after it: the writer died in the middle of this line
                break
            raise DataError(
                f"{path}, line {number}: expected a JSON object, got {line[:80]!r} ({error})."
            ) from error
        rows.append(row)
    return rows


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_jsonable(value: Any) -> Any:
    """Dataclasses, paths, tuples, sets and numpy-like scalars as plain JSON values; non-finite
    floats as `{"float": "NaN"}`."""
    if value is None or type(value) in (str, int, bool):  # nearly all: asked first
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "to_json"):
            return to_jsonable(value.to_json())
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (dict, Mapping)):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_jsonable(v) for v in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (str, int)):
        return value
    if hasattr(value, "item"):
        return to_jsonable(value.item())
    return str(value)


def _finite_or_not(value: dict[str, Any]) -> Any:
    """`{"float": "NaN"}` and its two kin as the number, any other object as it is. The parser calls
    it for objects alone: nothing is walked twice."""
    if len(value) == 1 and isinstance(name := value.get("float"), str):
        return _NOT_FINITE.get(name, value)
    return value


_DECODER = json.JSONDecoder(object_hook=_finite_or_not)


def from_json(text: str) -> Any:
    """JSON with the numbers that are not finite given back.

    Raises:
        ValueError, RecursionError: it is none.
    """
    return _DECODER.decode(text)


def from_jsonable(value: Any) -> Any:
    """Plain JSON values with the numbers that are not finite given back, for what was stored
    elsewhere than in a file of `write_json`."""
    return from_json(json.dumps(value))


def record_from(cls: type[T], value: Any) -> T:
    """A dataclass out of what `to_jsonable` made of it, every value of the declared type. Keys that
    it does not have (a later version's) are passed over.

    Raises:
        DataError: a key is missing or holds something else.
    """
    record: T = _typed(cls, value, "")
    return record


def _typed(hint: Any, value: Any, place: str) -> Any:
    """A value as the type it was declared with; `place` is where it stands."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _typed(args[0], value, place)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in args:
            return None
        return _typed(next(a for a in args if a is not types.NoneType), value, place)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), value, place)
    if hint in _PLAIN:
        return _plain(hint, value, place)
    if origin in (list, tuple):
        return origin(_items(origin, args, value, place))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _unfit("an object", value, place)
        if args[0] is int:
            value = {_whole_number(k, place): v for k, v in value.items()}
        return {
            k: _typed(args[1], v, f"{place}.{k}" if place else str(k)) for k, v in value.items()
        }
    return value


def _items(origin: type, hints: tuple[Any, ...], value: Any, place: str) -> list[Any]:
    """The items of a list, or of a tuple, whose length may be declared."""
    fixed = len(hints) if origin is tuple and Ellipsis not in hints else None
    if not isinstance(value, (list, tuple)) or (fixed is not None and len(value) != fixed):
        raise _unfit(f"a list of {fixed}" if fixed is not None else "a list", value, place)
    items = []
    for index, item in enumerate(value):
        hint = hints[0] if fixed is None else hints[index]
        items.append(_typed(hint, item, f"{place}[{index}]"))
    return items


def _plain(hint: type, value: Any, place: str) -> Any:
    """A number, text, or true or false."""
    kinds, words = _PLAIN[hint]
    if hint is float and isinstance(value, dict):
        value = _finite_or_not(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and hint is not bool):
        raise _unfit(words, value, place)
    if hint is float and isinstance(value, int) and value.bit_length() > 1023:
        raise _unfit(words, value, place)
    return value


_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    str: ((str,), "text"),
    bool: ((bool,), "true or false"),
}


def _record(cls: type, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise _unfit("an object", value, place)
    if hasattr(cls, "fields_from_json"):
        value = cls.fields_from_json(value)
    fields = {}
    hints = _hints(cls)
    for field in dataclasses.fields(cls):
        inside = f"{place}.{field.name}" if place else field.name
        if field.name in value:
            fields[field.name] = _typed(hints[field.name], value[field.name], inside)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DataError(f"expected the key '{inside}', which is missing.")
    return cls(**fields)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """What its fields are declared as; a study's thousand files are a few classes."""
    return typing.get_type_hints(cls, include_extras=True)


def _whole_number(key: Any, place: str) -> int:
    """A key of an object that stands for a number, such as a seed's."""
    try:
        return int(key)
    except (TypeError, ValueError):
        raise _unfit("whole numbers as keys", key, place) from None


def _unfit(expected: str, value: Any, place: str) -> DataError:
    return DataError(
        f"expected {expected}{f' at {place!r}' if place else ''}, got {_shown(value)}."
    )


def _shown(value: Any) -> str:
    text = json.dumps(to_jsonable(value), ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def fingerprint(value: Any, *, length: int = 64, plain: bool = False) -> str:
    """SHA-256 (hex, first `length` characters) of a value's canonical JSON: equal settings, equal
    fingerprint.

    Args:
        value: anything that `to_jsonable` takes.
        length: characters.
        plain: whether it is plain JSON as it is. A vocabulary has a million parts, and walking them
            takes longer than all else.
    """
    jsonable = value if plain else to_jsonable(value)
    text = json.dumps(jsonable, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
