"""New text for continual pre-training: the documents of text files, JSON Lines, JSON arrays and
Parquet.

| kind | files | a document is | its date |
|---|---|---|---|
| text | .txt .md | a file | none: when a file was changed says nothing about its text |
| rows | .jsonl .ndjson .json .parquet | a record | that of the date column |

Rows are `{"text", "title", "date", "source"}`: text with outer white space removed, the day as
2024-01-15, and the address, the publisher or the file. Every kind gives the same columns; what is
not known is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.data import unread
from holdfast.data.layouts import TEXT_NAMES
from holdfast.data.prepare import dates
from holdfast.data.prepare.reading import Malformed, Reading, Records, Skipped, records
from holdfast.data.readers import NotText, open_bytes, parquet_file, read_text, split_name
from holdfast.errors import DataError, did_you_mean

ENDINGS: dict[str, tuple[str, ...]] = {
    "text": (".txt", ".md"),
    "rows": (".jsonl", ".ndjson", ".json", ".parquet"),
}

ALL_ENDINGS = (*ENDINGS["text"], *ENDINGS["rows"])

TEXTS = ("text", "plaintext", *(name for name in TEXT_NAMES if name != "text"))
"""Columns that may hold the text, the first that is there."""
DATES = (
    "date",
    "publishing_date",
    "published",
    "published_at",
    "publish_date",
    "publication_date",
    "date_published",
    "pub_date",
    "created",
    "timestamp",
)
TITLES = ("title", "headline")
SOURCES = ("url", "link", "uri", "source", "publisher", "path")


def read_column(value: Any) -> str:
    """The name of a column.

    Raises:
        ValueError: something else.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


Column = Annotated[
    str | None,
    Meta(parse=read_column, metavar="NAME", expected="the name of a column", section="documents"),
]


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Which documents of a corpus are read, and where their text and date are."""

    settings_group: ClassVar[str] = "corpus"

    after: Annotated[Any, Meta(metavar="DATE")] = None
    """Only documents of this day or later, such as 2023-12-01."""
    before: Annotated[Any, Meta(metavar="DATE")] = None
    """Only documents before this day (exclusive)."""
    undated: Annotated[Literal["auto", "keep", "drop"] | None, Meta(section="documents")] = None
    """Keep or drop documents without a usable date (auto: drop them if --after or --before is
    given)."""
    minimum_characters: Annotated[int | None, Meta(ge=0, section="documents")] = None
    """Minimum length of a text in characters (0: only empty texts are left out)."""
    titles: Annotated[bool, Meta(section="documents")] = False
    """Put the title in front of the text."""
    text_column: Column = None
    """Column with the text (the first of text, plaintext, content, body, document)."""
    date_column: Column = None
    """Column with the date (the first of date, publishing_date, published, ...)."""


NOTHING = "an empty text"
NO_DATE = "without a date"


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a corpus."""

    text: str
    title: str | None
    day: date | None
    """When it appeared; None: not known."""
    source: str
    """An address, a publisher or a file."""

    @property
    def row(self) -> dict[str, Any]:
        """The row that is written."""
        day = self.day.isoformat() if self.day is not None else None
        return {"text": self.text, "title": self.title, "date": day, "source": self.source}


def read(reading: Reading) -> Iterator[Document]:
    """The documents of all files that the options leave in."""
    settings = _Settings(reading.options)
    for file in reading.files:
        kind = _kind(file.name)
        name = reading.names.get(file, file.name)
        reading.kinds[kind] += 1
        for location, record in _records(file, kind, reading, settings):
            if record is None:
                continue
            try:
                yield _document(location, record, name, reading, settings)
            except Skipped as reason:
                reading.skipped[str(reason)] += 1
            except Malformed as reason:
                reading.bad(location, str(reason))


def accepts(name: str) -> bool:
    """Whether a file of that name is read."""
    bare, compression = split_name(name)
    if compression and bare.endswith(".parquet"):
        return False
    return bare.endswith(ALL_ENDINGS)


# -------------------------------------------------------------------------------- what a file holds


class _Settings:
    """The options, ready for use."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.text_column: str | None = options.get("text_column")
        self.date_column: str | None = options.get("date_column")
        self.after = dates.cut_off(options["after"]) if options.get("after") is not None else None
        self.before = (
            dates.cut_off(options["before"]) if options.get("before") is not None else None
        )
        undated = options.get("undated") or "auto"
        self.keep_undated = undated == "keep" or (
            undated == "auto" and self.after is None and self.before is None
        )
        self.least: int = options.get("minimum_characters") or 0
        self.titles = bool(options.get("titles"))
        self.today = dates.today()

    def read_of(self, record: Mapping[str, Any]) -> set[str]:
        """The columns of a record that are read, or would be if others were not there."""
        texts = TEXTS if self.text_column is None else (self.text_column,)
        text = _first_name(record, texts) or "text"
        return {
            text,
            *(DATES if self.date_column is None else (self.date_column,)),
            *TITLES,
            *SOURCES,
        }


def _kind(name: str) -> str:
    bare, _ = split_name(name)
    return "text" if bare.endswith(ENDINGS["text"]) else "rows"


def _records(file: Path, kind: str, reading: Reading, settings: _Settings) -> Records:
    """All of a file's documents with their places; None for one that was malformed already, and is
    counted."""
    if kind == "text":
        yield from _text_file(file, reading)
        return
    _check_columns(file, settings)
    yield from records(file, reading)


def _text_file(file: Path, reading: Reading) -> Records:
    reading.records += 1
    try:
        with open_bytes(file, reading.advance) as stream:
            text = read_text(stream, file)
    except NotText as error:
        reading.bad(error.location, f"{error}; save the file as UTF-8")
    except (OSError, EOFError) as error:
        reading.bad(str(file), f"the file is cut short or damaged ({error})")
    else:
        yield str(file), {"text": text}


def _check_columns(file: Path, settings: _Settings) -> None:
    """Refuses a Parquet file at once that has no column for the text, or not the one named for the
    date.

    Raises:
        DataError: it lists the columns that there are.
    """
    if file.suffix.lower() != ".parquet":
        return
    with parquet_file(file) as opened:
        columns = opened.schema_arrow.names
    listed = ", ".join(columns) or "none"
    for name, option in (
        (settings.text_column, "--text_column"),
        (settings.date_column, "--date_column"),
    ):
        if name is not None and name not in columns:
            raise DataError(
                f"{file}: expected the column '{name}' ({option}), the file has "
                f"{listed}.{did_you_mean(name, columns)}"
            )
    if settings.text_column is None and not set(TEXTS) & set(columns):
        raise DataError(
            f"{file}: expected a column with the text ({', '.join(TEXTS)}), the file has {listed}. "
            "Name it with --text_column."
        )


# ------------------------------------------------------------------------------- what a record says


def _document(
    location: str, record: Mapping[str, Any], name: str, reading: Reading, settings: _Settings
) -> Document:
    """The document of a record in the file of that name.

    Raises:
        Skipped: a rule leaves it out.
        Malformed: it has no text.
    """
    text, title = _text(record, settings.text_column), _first(record, TITLES)
    if settings.titles and title and not text.startswith(title):
        text = f"{title}\n\n{text}"
    if len(text) < settings.least:
        raise Skipped(f"a text of fewer than {settings.least:,} characters")
    day = _day(location, record, reading, settings)
    if day is None and not settings.keep_undated:
        raise Skipped(NO_DATE)
    if day is not None and settings.after is not None and day < settings.after:
        raise Skipped(f"dated before {settings.after}")
    if day is not None and settings.before is not None and day >= settings.before:
        raise Skipped(f"dated {settings.before} or later")
    reading.not_read.update(unread.of_row(record, settings.read_of(record)))
    return Document(text=text, title=title, day=day, source=_first(record, SOURCES) or name)


def _text(record: Mapping[str, Any], column: str | None) -> str:
    """The text of a record.

    Raises:
        Malformed: there is none, or it is no text.
        Skipped: it is empty.
    """
    names = TEXTS if column is None else (column,)
    name = _first_name(record, names)
    if name is None:
        if set(names) & set(record):
            raise Skipped(NOTHING)
        expected = f"no '{column}'" if column is not None else f"no text ({', '.join(TEXTS)})"
        raise Malformed(f"{expected}; the record has {', '.join(list(record)[:8]) or 'nothing'}")
    value = record[name]
    if not isinstance(value, str):
        raise Malformed(f"'{name}' is {type(value).__name__}, expected text")
    text = value.replace("\r\n", "\n").strip()
    if not text:
        raise Skipped(NOTHING)
    return text


def _day(
    location: str, record: Mapping[str, Any], reading: Reading, settings: _Settings
) -> date | None:
    names = DATES if settings.date_column is None else (settings.date_column,)
    name = _first_name(record, names)
    try:
        return dates.day_of(record[name], now=settings.today) if name is not None else None
    except ValueError as error:
        reading.bad_date(location, f"'{name}': {error}")
        return None


def _first_name(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these names under which something is."""
    return next((name for name in names if record.get(name) is not None), None)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """What is under the first of these names that holds text or a number, in one line."""
    for value in map(record.get, names):
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).split():
            return " ".join(str(value).split())
    return None
