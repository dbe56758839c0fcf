"""New text for continual pre-training, from whatever it lies in: folders of text, JSON Lines, Parquet, Common Crawl's
WET files, fundus's articles.

| kind | files | a document is | its date |
|---|---|---|---|
| text | .txt .md | a file | none: when a file was changed says nothing about its text |
| rows | .jsonl .ndjson .json .parquet | a record | that of the date column |
| wet | .wet, as in .warc.wet.gz | a page | WARC-Date: when the page was fetched, not when it was written |
| fundus | .json | an article | publishing_date |

Which it is follows from the ending, and for .json from the content: `fundus` (Dallabetta et al. 2024, "Fundus: A
simple-to-use news scraper") writes an object of arrays, a publisher's articles under its name. A record may also be one
of its articles: `body` with a `summary` and `sections` of `headline` and `paragraphs` becomes text, paragraph by
paragraph.

Rows are `{"text", "title", "date", "source"}`: text with outer white space removed, the day as 2024-01-15, and the
address, the publisher or the file. Every kind gives the same columns; what is not known is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.data.layouts import TEXT_NAMES
from holdfast.data.prepare import dates
from holdfast.data.prepare.reading import Malformed, PreparedRow, Reading, Skipped, keyed_records, records
from holdfast.data.prepare.wet import wet_records
from holdfast.data.readers import NotText, open_bytes, parquet_file, read_text, split_name
from holdfast.errors import DataError, did_you_mean

ENDINGS: dict[str, tuple[str, ...]] = {
    "text": (".txt", ".md"),
    "rows": (".jsonl", ".ndjson", ".json", ".parquet"),
    "wet": (".wet",),
    "fundus": (".json",),
}

TEXTS = ("text", "plaintext", *(name for name in TEXT_NAMES if name != "text"))
"""Columns that may hold the text, the first that is there; `plaintext` is fundus's."""
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

USUAL_SIMILARITY = 0.8
LEAST_SIMILARITY = 0.5
"""Below this nearly all pairs of documents would have to be compared."""


def read_column(value: Any) -> str:
    """The name of a column.

    Raises:
        ValueError: something else.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


Column = Annotated[str | None, Meta(parse=read_column, metavar="NAME", expected="the name of a column")]


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """Options of the format."""

    settings_group: ClassVar[str] = "corpus"

    after: Annotated[Any, Meta(metavar="DATE")] = None
    """Only documents of this day or later, as 2023-12-01."""
    before: Annotated[Any, Meta(metavar="DATE")] = None
    """Only documents before this day, which is not in the range itself."""
    undated: Literal["auto", "keep", "drop"] | None = None
    """Documents without a usable date (auto: dropped where --after or --before is given)."""
    minimum_characters: Annotated[int | None, Meta(ge=0)] = None
    """Shorter texts are left out (0: empty ones only)."""
    near_duplicates: Annotated[
        float | None,
        Meta(
            ge=LEAST_SIMILARITY,
            le=1,
            metavar="SHARE",
            expected=f"a similarity from {LEAST_SIMILARITY:g} to 1 ({USUAL_SIMILARITY:g} is usual)",
        ),
    ] = None
    """Similarity, such as 0.8, from which documents are one; the first published stays (off). In Python true is 0.8."""
    titles: bool = False
    """Put the title in front of the text."""
    kind: Literal["auto", "text", "rows", "wet", "fundus"] | None = None
    """What the files are (auto: by ending and content)."""
    text_column: Column = None
    """Where the text is (the first of text, plaintext, content, body, document)."""
    date_column: Column = None
    """Where the date is (the first of date, publishing_date, published, ...)."""


NOTHING = "an empty text"
NO_DATE = "without a date"
_PEEK = 1 << 16
_KEYED = re.compile(r'\{\s*(?:\}\s*$|"(?:[^"\\]|\\.)*"\s*:\s*\[\s*[\{\]])')


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"text"}`, with `title`, `date` and `source`. Options: see `problems`."""
    settings = _Settings(reading.options)
    for file in reading.files:
        kind, name = _kind(file, settings.kind), reading.names.get(file, file.name)
        reading.kinds[kind] += 1
        for place, record in _records(file, kind, reading, settings):
            if record is None:
                continue
            reading.columns = reading.columns or list(record)
            try:
                yield _document(place, record, name, reading, settings)
            except Skipped as reason:
                reading.skip(str(reason))
            except Malformed as reason:
                reading.bad(place, str(reason))


def problems(options: Mapping[str, Any]) -> list[str]:
    """Mistakes in the range of dates, one sentence each."""
    return dates.range_problems(options.get("after"), options.get("before"))


def endings(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Endings of the files that are read, in folders too."""
    kind = options.get("kind") or "auto"
    return ENDINGS.get(kind) or tuple(dict.fromkeys(ending for own in ENDINGS.values() for ending in own))


# ---------------------------------------------------------------------------------------------------- what a file holds


class _Settings:
    """The options, ready for use."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.kind: str = options.get("kind") or "auto"
        self.text_column: str | None = options.get("text_column")
        self.date_column: str | None = options.get("date_column")
        self.after, self.before = (
            dates.cut_off(options[n]) if options.get(n) is not None else None for n in ("after", "before")
        )
        undated = options.get("undated") or "auto"
        self.keep_undated = undated == "keep" or (undated == "auto" and self.after is None and self.before is None)
        self.least: int = options.get("minimum_characters") or 0
        self.titles = bool(options.get("titles"))
        self.today = dates.today()


def _kind(file: Path, asked: str) -> str:
    if asked != "auto":
        return asked
    bare, _ = split_name(file.name)
    if bare.endswith(".json"):
        return "fundus" if _holds_publishers(file) else "rows"
    return next(kind for kind, own in ENDINGS.items() if bare.endswith(own))


def _holds_publishers(file: Path) -> bool:
    """Whether a JSON file is an object of arrays of articles, rather than an array or an object a line."""
    try:
        with open_bytes(file, lambda amount: None) as stream:
            start = stream.read(_PEEK).decode("utf-8", "ignore").removeprefix("\ufeff").lstrip()
    except (OSError, EOFError):
        return False  # reading it says what is wrong
    first, _, rest = start.partition("\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return bool(_KEYED.match(start))
    if value == {}:
        return not rest.strip()
    return isinstance(value, dict) and all(
        isinstance(v, list) and all(_like_an_article(item) for item in v) for v in value.values()
    )


def _like_an_article(item: Any) -> bool:
    return isinstance(item, dict) and ("body" in item or "plaintext" in item)


def _records(
    file: Path, kind: str, reading: Reading, settings: _Settings
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """(place, record) of all of a file's documents; None for one that was malformed already, and is counted."""
    if kind == "text":
        yield from _text_file(file, reading)
    elif kind == "wet":
        yield from wet_records(file, reading)
    elif kind == "fundus" and _holds_publishers(file):
        for place, publisher, record in keyed_records(file, reading):
            yield place, {"publisher": publisher, **record} if record is not None else None
    else:
        _check_columns(file, settings)
        yield from records(file, reading)


def _text_file(file: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any] | None]]:
    reading.records += 1
    try:
        with open_bytes(file, reading.advance) as stream:
            text = read_text(stream, file)
    except NotText as error:
        reading.bad(error.place, f"{error}; save the file as UTF-8")
    except (OSError, EOFError) as error:
        reading.bad(str(file), f"the file cannot be read to its end, it is cut short or damaged ({error})")
    else:
        yield str(file), {"text": text}


def _check_columns(file: Path, settings: _Settings) -> None:
    """Refuses a Parquet file at once that has no column for the text, or not the one named for the date.

    Raises:
        DataError: it lists the columns that there are.
    """
    if file.suffix.lower() != ".parquet":
        return
    with parquet_file(file) as opened:
        columns = opened.schema_arrow.names
    there = ", ".join(columns) or "none"
    for wanted, option in ((settings.text_column, "--text_column"), (settings.date_column, "--date_column")):
        if wanted is not None and wanted not in columns:
            raise DataError(
                f"{file}: expected the column '{wanted}' ({option}), the file has "
                f"{there}.{did_you_mean(wanted, columns)}"
            )
    if settings.text_column is None and not any(name in columns for name in TEXTS):
        raise DataError(
            f"{file}: expected a column with the text ({', '.join(TEXTS)}), the file has {there}. Name it with "
            f"--text_column."
        )


# --------------------------------------------------------------------------------------------------- what a record says


def _document(place: str, record: Mapping[str, Any], name: str, reading: Reading, settings: _Settings) -> PreparedRow:
    """The row of a record in the file of that name.

    Raises:
        Skipped: a rule leaves it out.
        Malformed: it has no text.
    """
    text, title = _text(record, settings.text_column), _first(record, TITLES)
    if settings.titles and title and not text.startswith(title):
        text = f"{title}\n\n{text}"
    if len(text) < settings.least:
        raise Skipped(f"a text of fewer than {settings.least:,} characters")
    day = _day(place, record, reading, settings)
    if day is None and not settings.keep_undated:
        raise Skipped(NO_DATE)
    if day is not None and settings.after is not None and day < settings.after:
        raise Skipped(f"dated before {settings.after}")
    if day is not None and settings.before is not None and day >= settings.before:
        raise Skipped(f"dated {settings.before} or later")
    notes = {
        "title": title,
        "date": day.isoformat() if day is not None else None,
        "source": _first(record, SOURCES) or name,
    }
    return PreparedRow(
        row={"text": text},
        group=text,
        notes=notes,
        same=" ".join(text.casefold().split()),
        day=day.toordinal() if day is not None else 0,
    )


def _text(record: Mapping[str, Any], column: str | None) -> str:
    """The text of a record, of several paragraphs where it is an article's body.

    Raises:
        Malformed: there is none, or it is no text.
        Skipped: it is empty.
    """
    names = TEXTS if column is None else (column,)
    name = next((n for n in names if record.get(n) is not None), None)
    if name is None:
        if any(n in record for n in names):
            raise Skipped(NOTHING)
        expected = f"no '{column}'" if column is not None else f"no text ({', '.join(TEXTS)})"
        raise Malformed(f"{expected}; the record has {', '.join(list(record)[:8]) or 'nothing'}")
    value = record[name]
    if isinstance(value, Mapping) and isinstance(value.get("sections"), list):
        value = _body(name, value)
    if not isinstance(value, str):
        raise Malformed(f"'{name}' is {type(value).__name__}, expected text")
    text = value.replace("\r\n", "\n").strip()
    if not text:
        raise Skipped(NOTHING)
    return text


def _body(name: str, body: Mapping[str, Any]) -> str:
    """A body of fundus: the summary, then headline and paragraphs of every section, as its own `plaintext` has them."""
    parts = list(body.get("summary") or [])
    for section in body["sections"]:
        if not isinstance(section, Mapping):
            raise Malformed(
                f"'{name}' has a section that is {type(section).__name__}, expected headline and paragraphs"
            )
        parts += [*(section.get("headline") or []), *(section.get("paragraphs") or [])]
    if not all(isinstance(part, str) for part in parts):
        raise Malformed(f"'{name}' has a paragraph that is no text")
    return "\n\n".join(parts)


def _day(place: str, record: Mapping[str, Any], reading: Reading, settings: _Settings) -> date | None:
    names = DATES if settings.date_column is None else (settings.date_column,)
    name = next((n for n in names if record.get(n) is not None), None)
    try:
        return dates.day_of(record[name], now=settings.today) if name is not None else None
    except ValueError as error:
        reading.bad_date(place, f"'{name}': {error}")
        return None


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """What is under the first of these names that holds text or a number, in one line."""
    values = (record.get(name) for name in names)
    found = (
        " ".join(str(value).split())
        for value in values
        if isinstance(value, (str, int)) and not isinstance(value, bool)
    )
    return next((text for text in found if text), None)
