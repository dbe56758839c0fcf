"""The formats of published data by name: what reads each, which options it has, and by which columns its records are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.data.prepare import metamath, quality, stackexchange, starcoder_instructions, ultrachat
from holdfast.data.prepare.reading import Made, Reading
from holdfast.data.readers import COMPRESSIONS

JSON_FILES = (".json", ".jsonl", ".ndjson", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Format:
    """One published format."""

    about: str
    """For people: the data set and the files it comes in."""
    rows: str
    """The columns of the rows that are made."""
    read: Callable[[Reading], Iterator[Made]]
    options: tuple[str, ...] = ()
    """Options that this format has beside the common ones."""
    files: tuple[str, ...] = JSON_FILES
    """Endings of its files; all but .parquet and .7z may also be compressed."""
    anything: bool = False
    """Whether files of any other name are read too: some releases' have no ending that says what is in them."""
    known_by: tuple[frozenset[str], ...] = ()
    """Sets of columns, any of which says that a record is of this format."""


def _columns(*sets: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(names.split()) for names in sets)


FORMATS: dict[str, Format] = {
    "metamath": Format(
        about="MetaMathQA-395K.json, also as .jsonl or .parquet",
        rows="question, answer",
        read=metamath.read,
        known_by=_columns("query response"),
    ),
    "stackexchange": Format(
        about="Posts.xml of a Stack Exchange dump, also .gz, .zst, or the dump's .7z",
        rows="question, answer",
        read=stackexchange.read,
        options=("min_score", "tags", "site"),
        files=(".xml", ".7z"),
        known_by=_columns("Id PostTypeId"),
    ),
    "starcoder_instructions": Format(
        about="self-oss-instruct data of BigCode, .jsonl or .parquet",
        rows="prompt, completion",
        read=starcoder_instructions.read,
        known_by=_columns("instruction response", "prompt response"),
    ),
    "ultrachat": Format(
        about="UltraChat (id, data) or UltraChat 200k (prompt, messages), .jsonl or .parquet",
        rows="messages",
        read=ultrachat.read,
        known_by=_columns("messages", "id data"),
    ),
    "quality": Format(
        about="QuALITY.v1.0.1.htmlstripped.train and .dev (JSON Lines)",
        rows="text; with --questions: question, options, answer, article, hard",
        read=quality.read,
        options=("questions",),
        anything=True,
        known_by=_columns("article questions"),
    ),
}


def format_of(columns: Sequence[str], *, besides: str) -> str | None:
    """The other format whose records have such columns, None where there is none; for messages."""
    return next((name for name, one in FORMATS.items() if name != besides and any(known <= set(columns) for known in one.known_by)), None)


def accepts(one: Format, name: str) -> bool:
    """Whether a file's name fits the format."""
    lower = name.lower()
    packed = next((suffix for suffix in COMPRESSIONS if lower.endswith(suffix)), "")
    bare = lower.removesuffix(packed)
    return one.anything or (bare.endswith(one.files) and not (packed and bare.endswith((".parquet", ".7z"))))
