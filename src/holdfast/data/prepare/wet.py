"""WET files, the plain text of Common Crawl's pages: WARC records (ISO 28500) of the type `conversion`.

    WARC/1.0                                       a version line
    WARC-Type: conversion                          named fields, until a blank line
    WARC-Target-URI: https://example.com/
    WARC-Date: 2024-02-21T07:35:11Z                when the page was fetched, not when it was written
    Content-Length: 1234                           so many bytes of text follow, then two blank lines

That is all there is to the form, so it is read here: records come as a stream from files that are compressed record by
record (as Common Crawl's are), as a whole, by zstd, or not at all, and a record without a usable length is named with
its number and left behind at the next version line. FastWARC and warcio were measured against it (LOG, 2026-11-24):
after a malformed record they lose or swallow the rest of the file, and give what is cut short as if it were whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.data.json_rows import beginning
from holdfast.data.prepare.reading import Reading
from holdfast.data.readers import open_bytes
from holdfast.errors import DataError

_VERSION = b"WARC/"
_LINE = 1 << 16
_FIELDS = 1000
_BLOCK = 1 << 20


def wet_records(file: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, `{"text", "date", "url"}`) of every page of a WET file; other records and malformed ones are counted.

    Raises:
        DataError: the file is no WARC file, is cut short, or holds no page's text.
    """
    pages = number = 0
    with open_bytes(file, reading.advance) as stream:
        try:
            line = _next_line(stream)
            while line:
                number += 1
                place = f"{file}, record {number}"
                if not line.startswith(_VERSION):
                    if number == 1:
                        raise DataError(
                            f"{file}: expected a WET file, whose records begin with 'WARC/1.0', got {_shown(line)}."
                        )
                    reading.records += 1
                    reading.bad(place, f"expected a record that begins with 'WARC/1.0', got {_shown(line)}")
                    line = _resume(stream)
                    continue
                fields, broken = _fields(stream, place)
                length = fields.get("content-length", "")
                if not broken and not (length.isascii() and length.isdigit() and len(length) < 16):
                    broken = f"expected a Content-Length in bytes, got {length!r}" if length else "no Content-Length"
                if broken:
                    reading.records += 1
                    reading.bad(place, f"{broken}; the text goes on to the next record")
                    line = _resume(stream)
                    continue
                kind = fields.get("warc-type", "none").lower()
                content = _content(stream, int(length), place, kept=kind == "conversion")
                if kind == "conversion":
                    pages += 1
                    reading.records += 1
                    try:
                        text = content.decode("utf-8")
                    except UnicodeDecodeError as error:
                        reading.bad(
                            place,
                            f"expected UTF-8, got byte 0x{content[error.start]:02x} at byte {error.start + 1} of the "
                            f"text",
                        )
                    else:
                        yield (
                            place,
                            {
                                "text": text,
                                "date": fields.get("warc-date"),
                                "url": fields.get("warc-target-uri", "").strip("<>"),
                            },
                        )
                elif kind != "warcinfo":
                    reading.records += 1
                    reading.skip(f"a WARC record of another type ({kind})")
                line = _next_line(stream)
        except (OSError, EOFError) as error:
            raise DataError(
                f"{file}: the file is cut short or damaged after record {number}; fetch it again ({error})."
            ) from error
    if not number:
        raise DataError(f"{file} is empty; expected a WET file with at least one record.")
    if not pages and not reading.malformed:
        raise DataError(
            f"{file}: none of its {number} records is text (WARC-Type: conversion). Expected a WET file "
            f"(.warc.wet.gz), which Common Crawl "
            "publishes beside each WARC file."
        )


def _next_line(stream: BinaryIO) -> bytes:
    """The next line that is not blank; empty at the end."""
    while (line := stream.readline(_LINE)) and not line.strip():
        pass
    return line


def _resume(stream: BinaryIO) -> bytes:
    """The next version line after a blank line; empty at the end."""
    blank = False
    while line := stream.readline(_LINE):
        if blank and line.startswith(_VERSION + b"1."):
            return line
        blank = not line.strip()
    return b""


def _fields(stream: BinaryIO, place: str) -> tuple[dict[str, str], str]:
    """The named fields of a record by name in small letters, and what is wrong with them; empty where nothing is."""
    found: dict[str, str] = {}
    last = ""
    for _ in range(_FIELDS):
        line = stream.readline(_LINE)
        if not line:
            raise DataError(f"{place}: the file ends in the middle of the record; it is cut short. Fetch it again.")
        if not line.strip():
            return found, ""
        if line[:1] in b" \t" and last:  # a field may go on in the next line
            found[last] = f"{found[last]} {line.decode('utf-8', 'replace').strip()}".strip()
            continue
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon:
            return found, f"expected fields as 'Name: value', got {_shown(line)}"
        last = name.strip().lower()
        found[last] = value.strip()
    return found, f"expected at most {_FIELDS} fields, got more"


def _content(stream: BinaryIO, length: int, place: str, *, kept: bool) -> bytes:
    """The bytes of a record, block by block, since a wrong length may be anything; nothing where they are not kept."""
    blocks, left = [], length
    while left:
        block = stream.read(min(left, _BLOCK))
        if not block:
            raise DataError(
                f"{place}: the file ends {left:,} bytes before its Content-Length of {length:,}; it is cut short. "
                f"Fetch it again."
            )
        left -= len(block)
        if kept:
            blocks.append(block)
    return b"".join(blocks)


def _shown(line: bytes) -> str:
    return beginning(line.decode("utf-8", "replace"))
