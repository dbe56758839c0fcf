"""Questions with their answers from a Stack Exchange data dump, `Posts.xml`: the accepted answer, else the one with the
best score.

Questions and answers stand anywhere in a file of gigabytes, so the two are joined on disk. The file is read once, a
megabyte at a time; the posts that may be used go to a temporary SQLite database beside the output, their HTML
compressed; the join then runs in the order of the questions. Memory does not grow with the dump.

The XML is read by expat. A document type, and with it every entity, is refused: a dump has none, and entities are how
XML files attack their readers. A row that is no well-formed XML (some old dumps have forbidden characters) is reported
with its line, and reading goes on at the next one.

A dump as it is published, `*.7z`, needs the package py7zr, and space for the unpacked file. Content of Stack Exchange
is under CC BY-SA, which asks for a link: `site` puts one into every row.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar
from xml.parsers import expat

from holdfast.config.declare import Meta
from holdfast.data.prepare.html_text import markdown
from holdfast.data.prepare.reading import PreparedRow, Reading, undamaged
from holdfast.data.readers import open_bytes
from holdfast.errors import DataError
from holdfast.support.progress import progress

QUESTION, ANSWER = "1", "2"
NO_ANSWER = "a question without an answer (of that score)"
_CHUNK = 1 << 20
_BATCH = 5000
_TABLES = """
CREATE TABLE question (id INTEGER PRIMARY KEY, accepted INTEGER, title TEXT, body BLOB);
CREATE TABLE answer (id INTEGER PRIMARY KEY, parent INTEGER, score INTEGER, body BLOB);
"""
_PAIRS = """
SELECT id, title, body, IFNULL(
    (SELECT x.body FROM answer x WHERE x.id = q.accepted AND x.parent = q.id),
    (SELECT x.body FROM answer x WHERE x.parent = q.id ORDER BY x.score DESC, x.id LIMIT 1))
FROM question q ORDER BY id
"""


@dataclass(frozen=True, kw_only=True)
class StackExchangeOptions:
    """Options of the format."""

    settings_group: ClassVar[str] = "stackexchange"

    min_score: float | None = None
    """Least score of a question, and of an answer."""
    tags: Annotated[tuple[str, ...] | None, Meta(repeatable=True, metavar="TAG")] = None
    """Only questions with one of these."""
    site: Annotated[str | None, Meta(metavar="HOST")] = None
    """Host such as math.stackexchange.com: puts a link to the question into each row, as CC BY-SA asks."""


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"question", "answer"}` in Markdown, with `id`, and `url` where the option `site` is given. Options:
    `min_score`, `tags`, `site`."""
    site = reading.options.get("site")
    for number, file in enumerate(reading.files):
        database = reading.scratch / f"posts-{number}.sqlite"
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.executescript(
                "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;" + _TABLES
            )
            questions = _store(file, connection, reading)
            connection.execute("CREATE INDEX of_question ON answer (parent, score)")
            with progress("Pairing questions and answers", total=questions) as advance:
                for key, title, body, answer in connection.execute(_PAIRS):
                    advance(1)
                    if answer is None:
                        reading.skip(NO_ANSWER)
                        continue
                    asked, answered = _text(body), _text(answer)
                    question = f"{title.strip()}\n\n{asked}".strip()
                    if not asked or not answered:
                        reading.skip("an empty question or answer")
                        continue
                    notes = {"id": str(key)} | ({"url": f"https://{site}/q/{key}"} if site else {})
                    yield PreparedRow(row={"question": question, "answer": answered}, group=question, notes=notes)
        database.unlink()


def _text(body: bytes) -> str:
    return markdown(zlib.decompress(body).decode())


def _store(file: Path, connection: sqlite3.Connection, reading: Reading) -> int:
    """Puts the posts that may be used into the database; returns the number of questions."""
    least, wanted = reading.options.get("min_score"), {tag.lower() for tag in reading.options.get("tags") or ()}
    questions: list[tuple[Any, ...]] = []
    answers: list[tuple[Any, ...]] = []
    kept = 0

    def flush() -> None:
        connection.executemany("INSERT OR REPLACE INTO question VALUES (?, ?, ?, ?)", questions)
        connection.executemany("INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?)", answers)
        questions.clear()
        answers.clear()

    for line, post in _rows(file, reading):
        try:
            kind, key, score, body = (
                post["PostTypeId"],
                int(post["Id"]),
                int(post.get("Score") or 0),
                post.get("Body", ""),
            )
            parent = int(post["ParentId"]) if kind == ANSWER else None
            accepted = int(post["AcceptedAnswerId"]) if post.get("AcceptedAnswerId") else None
        except KeyError as error:
            reading.bad(f"{file}, line {line}", f"no {error} (attributes: {', '.join(list(post)[:8]) or 'none'})")
            continue
        except ValueError as error:
            reading.bad(f"{file}, line {line}", str(error))
            continue
        if kind not in (QUESTION, ANSWER):
            reading.skip("a post that is no question and no answer")
        elif least is not None and score < least:
            reading.skip(f"{'a question' if kind == QUESTION else 'an answer'} with a score below {least:g}")
        elif (
            kind == QUESTION
            and wanted
            and not wanted & {tag.lower() for tag in re.findall(r"[^<>|]+", post.get("Tags", ""))}
        ):
            reading.skip("a question without the tags asked for")
        else:
            packed = zlib.compress(body.encode("utf-8", "replace"), 1)
            if kind == QUESTION:
                kept += 1
                questions.append((key, accepted, post.get("Title", ""), packed))
            else:
                answers.append((key, parent, score, packed))
        if len(questions) + len(answers) >= _BATCH:
            flush()
    flush()
    return kept


# ----------------------------------------------------------------------------------------------------------------- XML


def _rows(file: Path, reading: Reading) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(line, attributes) of every row of a dump."""
    if file.suffix.lower() == ".7z":
        file = _unpacked(file, reading.scratch)
    found: list[tuple[int, dict[str, str]]] = []
    first_line, rows = 1, 0
    parser = _parser(file, found, first_line)
    with open_bytes(file, reading.advance) as stream, undamaged(file):
        try:
            while chunk := stream.read(_CHUNK):
                while chunk:
                    try:
                        parser.Parse(chunk, False)
                        chunk = b""
                    except expat.ExpatError as error:
                        line, reason = first_line + error.lineno - 1, expat.ErrorString(error.code)
                        reading.records += 1
                        reading.bad(f"{file}, line {line}", f"no well-formed XML ({reason})")
                        rest, skipped = _next_row(parser, chunk, stream)
                        if not rest:
                            raise DataError(
                                f"{file}, line {line}: no well-formed XML ({reason}), and no row after it."
                            ) from None
                        first_line = line + skipped
                        parser = _parser(file, found, first_line)
                        parser.Parse(b"<posts>", False)
                        chunk = rest
                for line, post in found:
                    rows += 1
                    reading.records += 1
                    reading.columns = reading.columns or list(post)
                    yield line, post
                found.clear()
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise DataError(
                f"{file}: the XML ends before it is whole ({expat.ErrorString(error.code)}); fetch or unpack the file "
                f"again."
            ) from None
    if not rows and not reading.malformed:
        raise DataError(f"{file}: expected <row .../> elements of a Stack Exchange dump's Posts.xml, found none.")


def _next_row(parser: Any, chunk: bytes, stream: Any) -> tuple[bytes, int]:
    """(what is left from the next row on, line breaks between the error and there), reading on where it must; empty
    where there is no more."""
    # the index counts from the parser's own beginning; within this chunk it is what is left after all that was parsed
    # before
    before = parser.fed - len(chunk)
    start = max(0, parser.ErrorByteIndex - before + 1)  # behind the '<' of the broken row, should that be where it is
    lines = 0
    while True:
        at = chunk.find(b"<row", start)
        if at >= 0:
            return chunk[at:], lines + chunk.count(b"\n", start, at)
        lines += chunk.count(b"\n", start)
        tail = chunk[-3:]  # the border may lie in the middle of the word
        chunk, start = stream.read(_CHUNK), 0
        if not chunk:
            return b"", lines
        chunk = tail + chunk
        lines -= tail.count(b"\n")


class _Parser:
    """expat with a count of what it was fed."""

    def __init__(self) -> None:
        self.expat = expat.ParserCreate()
        self.fed = 0

    def Parse(self, data: bytes, final: bool) -> None:
        self.fed += len(data)
        self.expat.Parse(data, final)

    @property
    def ErrorByteIndex(self) -> int:
        return self.expat.ErrorByteIndex


def _parser(file: Path, found: list[tuple[int, dict[str, str]]], first_line: int) -> _Parser:
    made = _Parser()

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "row":
            found.append((first_line + made.expat.CurrentLineNumber - 1, attributes))

    def refuse(*_: Any) -> int:
        raise DataError(
            f"{file}: the XML has a document type or entities, which no Stack Exchange dump has. It is not read, for "
            f"safety."
        )

    made.expat.StartElementHandler = start
    made.expat.StartDoctypeDeclHandler = refuse
    made.expat.EntityDeclHandler = refuse
    made.expat.ExternalEntityRefHandler = refuse
    made.expat.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    return made


def _unpacked(file: Path, scratch: Path) -> Path:
    """Posts.xml out of a .7z archive, in the scratch folder.

    Raises:
        DataError: py7zr is not installed, or there is no Posts.xml in the archive.
    """
    try:
        import py7zr
    except ImportError:
        raise DataError(
            f"{file}: reading .7z needs the package py7zr, which is not installed. Install it with: pip install "
            f"py7zr, or unpack the file first "
            "(7z x ARCHIVE Posts.xml) and give Posts.xml."
        ) from None
    try:
        with py7zr.SevenZipFile(file) as archive:
            name = next((n for n in archive.getnames() if n == "Posts.xml" or n.endswith("/Posts.xml")), None)
            if name is None:
                raise DataError(f"{file}: expected Posts.xml in the archive, got {', '.join(archive.getnames()[:8])}.")
            archive.extract(path=scratch, targets=[name])
    except (OSError, EOFError, py7zr.exceptions.ArchiveError) as error:
        raise DataError(f"{file}: the archive cannot be read ({error}). Fetch it again.") from error
    return scratch / name
