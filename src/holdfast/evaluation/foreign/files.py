"""JSON as other tools write it: NaN and infinities as bare words, rows as lines or as one array."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from holdfast.errors import DataError, first_line


def read_log_json(path: Path) -> Any:
    """A file of JSON.

    Raises:
        DataError: it cannot be read, or is none.
    """
    return _parsed(read_log_text(path), str(path))


def read_log_rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a file: one a line, or one array of them.

    Raises:
        DataError: it cannot be read, holds none, or holds something else; names the line.
    """
    text = read_log_text(path)
    rows: list[Any] = []
    if text.lstrip().startswith("["):
        rows = _parsed(text, str(path))
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                rows.append(_parsed(line, f"{path}, line {number}"))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, sample {number}: expected a JSON object, got {row!r:.60}. Log it again."
            )
    if not rows:
        raise DataError(f"{path}: expected one JSON object per sample, got an empty file.")
    return rows


def hash_of(text: str) -> str:
    """SHA-256 of a text (hex)."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_log_text(path: Path) -> str:
    """A file's text, without a byte order mark.

    Raises:
        DataError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8 ({first_line(error)}). Save it as UTF-8."
        ) from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: expected JSON, but it cannot be parsed: {first_line(error)}. The log is cut "
            "short or damaged. Copy it or create it again."
        ) from error
