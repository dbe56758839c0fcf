"""Files as holdfast writes and reads them: atomic writes, JSON with non-finite numbers, fingerprints of values.

Every write is atomic: a temporary file in the same folder, fsync, rename. A reader therefore sees the old content or
the new, never half, and what a killed process leaves goes with the next write of the same file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.errors import DataError, StorageError
from holdfast.support.leftovers import temporary_file


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes its place at `path` when the body ends, on disk by then; where the body fails, what
    was at `path` stays.

    Raises:
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
        raise StorageError(
            f"Could not write {path} ({error.strerror or error}). Free some space or choose another folder; nothing "
            f"was lost."
        ) from error
    finally:
        if name is not None and os.path.exists(name):
            os.unlink(name)


def write_bytes_atomic(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes `content` so that `path` holds either its old content or all of the new.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file at `path` is intact.
    """
    with whole_file(path) as file:
        file.write(content)
    return Path(path)


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Writes a dataclass, mapping or list as indented JSON, atomically. NaN and infinities become strings that
    `read_json` gives back."""
    text = json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes_atomic(path, (text + "\n").encode())


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Writes one JSON object a line, atomically."""
    lines = [json.dumps(to_jsonable(row), ensure_ascii=False, allow_nan=False) for row in rows]
    return write_bytes_atomic(path, "".join(line + "\n" for line in lines).encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads what `write_json` wrote.

    Raises:
        DataError: no such file, or not JSON.
    """
    try:
        return _DECODER.decode(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"Expected a file at {path}, found none.") from None
    except ValueError as error:
        raise DataError(
            f"Expected JSON in {path}, but it cannot be parsed: {error}. Delete the file to have it made again."
        ) from error


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Reads one object a line; a last line cut short by a crash is skipped, any other bad line raises `DataError`."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    with _collector_paused():
        rows = _parsed(lines, path)
    yield from rows


def _parsed(lines: Sequence[str], path: str | os.PathLike[str]) -> list[Any]:
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_DECODER.decode(line))
        except ValueError as error:
            if number == len(lines):  # no newline after it: the writer died in the middle of this line
                break
            raise DataError(f"{path}, line {number}: expected a JSON object, got {line[:80]!r} ({error}).") from error
    return rows


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """No search for cycles meanwhile: JSON has none, and looking for them in a million new rows takes a fifth of the
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_jsonable(value: Any) -> Any:
    """Dataclasses, paths, tuples, sets and numpy-like scalars as plain JSON values; non-finite floats as `{"float":
    "NaN"}`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_jsonable(v) for v in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "item"):
        return to_jsonable(value.item())
    return str(value)


def _finite_or_not(value: dict[str, Any]) -> Any:
    """`{"float": "NaN"}` and its two kin as the number, any other object as it is. The parser calls it for objects
    alone: nothing is walked twice."""
    if len(value) == 1 and isinstance(name := value.get("float"), str):
        return _NOT_FINITE.get(name, value)
    return value


_DECODER = json.JSONDecoder(object_hook=_finite_or_not)


def from_jsonable(value: Any) -> Any:
    """Plain JSON values with the numbers that are not finite given back, for what was stored elsewhere than in a file
    of `write_json`."""
    return _DECODER.decode(json.dumps(value))


def fingerprint(value: Any, *, length: int = 64) -> str:
    """SHA-256 (hex, first `length` characters) of a value's canonical JSON: equal settings, equal fingerprint."""
    text = json.dumps(to_jsonable(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
