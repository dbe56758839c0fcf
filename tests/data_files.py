"""Files of rows in the working directory, and requests to prepare them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.data.prepare.registry import FORMATS
from holdfast.data.prepare.run import Preparation, prepare


def text(name: str, content: str | bytes) -> Path:
    """A file of any content, with its folders."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(name: str, rows: Iterable[Any]) -> Path:
    """A file of one JSON value a line."""
    return text(name, "".join(json.dumps(row) + "\n" for row in rows))


def rows_of(path: str | Path = "train.jsonl") -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in Path(path).read_text().split("\n") if line]


def preparation(format: str, /, *inputs: str | Path, output: str | Path = "train.jsonl", **options: Any) -> Preparation:
    """A request; options are the format's own or common ones, by name."""
    own = {name: options.pop(name) for name in list(options) if name in FORMATS[format].options}
    paths = tuple(Path(i) for i in inputs)
    return Preparation(format=format, inputs=paths, output=Path(output), options=own, **options)


def prepared(format: str, /, *inputs: str | Path, **options: Any) -> dict[str, Any]:
    """Carries out such a request; its record."""
    return prepare(preparation(format, *inputs, **options)).record


def warc(kind: str, content: str | bytes, *, length: int | str | None = None, **fields: str) -> bytes:
    """A WARC record; a `length` other than the content's is a broken one."""
    body = content if isinstance(content, bytes) else content.encode()
    named = {
        "WARC-Type": kind,
        **{f"WARC-{name.replace('_', '-')}": value for name, value in fields.items()},
        "Content-Type": "text/plain",
    }
    if length != "absent":
        named["Content-Length"] = str(len(body) if length is None else length)
    return (
        b"WARC/1.0\r\n"
        + "".join(f"{name}: {value}\r\n" for name, value in named.items()).encode()
        + b"\r\n"
        + body
        + b"\r\n\r\n"
    )


INFO = warc("warcinfo", "Software-Info: made by a test")
"""The first record of a WET file."""
