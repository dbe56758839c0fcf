"""One request of `holdfast data prepare`: from the files of a corpus to `train.jsonl`, whole or
absent, with a record of how it came about.

**Duplicates.** Documents of equal text (16-byte hashes in memory, 100 MB for a million) are written
once. Those that are only nearly the same stay in: MinHash of a library such as datatrove takes them
out beforehand.

**The held-out side.** A document is held out when the hash of its text, in small letters and
without extra white space, falls below the share. So it is on one side only, in whatever order or
file it comes, and in every preparation alike: `heldout` of one corpus holds nothing that `train` of
another has.

**Order.** That of the files; with `seed` that of a hash of (seed, content), which is a shuffle that
does not depend on the input's order. The rows are set down in a scratch file and copied in their
order: memory holds two numbers a row. `limit` takes the first rows of that order, so that with a
seed it is a random sample, drawn from all.

**Doing it again.** `<output>.json` says what was asked (a key over the inputs' hashes and the
options), what came of it, and every count. The same request finds its output and does nothing;
another request does not overwrite it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar

from holdfast.config.declare import Meta, part_of, settings_of
from holdfast.config.decode import coerce_all, field_problems
from holdfast.data.outputs import (
    are_whole,
    output_problems,
    own_record,
    record_path,
    rows_file,
    what_is_there,
)
from holdfast.data.prepare import corpus, dates
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.prepare.inputs import Inputs, counts_in_words, find_inputs, hashed_inputs
from holdfast.data.prepare.reading import Reading
from holdfast.data.sources import total_bytes
from holdfast.errors import ConfigError, DataError, Problem, StorageError
from holdfast.records.evaluation import SCHEMA
from holdfast.support.environment import now, versions
from holdfast.support.files import fingerprint, to_jsonable, write_json
from holdfast.support.leftovers import NewFolder, scratch_folder
from holdfast.support.paths import real
from holdfast.support.progress import progress

DUPLICATE = "a duplicate of an earlier row"
BEYOND = "beyond the limit"
_RULES = 1
"""Raised when the same request makes other rows, so that older outputs are not taken for them."""


class NothingHeldOut(DataError):
    """The share that was to be held out is less than a row.

    Args:
        share: that was asked for.
        rows: that there are.
    """

    def __init__(self, share: float, rows: int) -> None:
        self.rows = rows
        super().__init__(
            f"No row is held out: {share:g} of {rows} rows is less than one row. Raise --heldout, "
            "or leave it out and split the file yourself."
        )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Which rows a preparation writes."""

    settings_group: ClassVar[str] = "which rows"

    limit: Annotated[int | None, Meta(ge=1)] = None
    """Maximum number of rows in both output files together. Without --seed the first rows are used,
    with --seed a random sample."""
    seed: int | None = None
    """Seed of the shuffle. With a seed, the order of the input files does not matter (default: rows
    stay in the order of the files)."""
    heldout: Annotated[float, Meta(ge=0, lt=1, metavar="SHARE")] = 0.0
    """Share of the documents to hold out, such as 0.01. If OUTPUT is name.jsonl, they are written to
    name.heldout.jsonl."""
    most_malformed: Annotated[float, Meta(ge=0, le=1, metavar="SHARE")] = 0.0
    """Largest allowed share of malformed records. Malformed records are left out. With 0, any
    malformed record is an error."""


@dataclass(frozen=True, kw_only=True)
class Preparation(Rows):
    """What is to be prepared."""

    inputs: tuple[Path, ...]
    """Files and folders."""
    output: Path
    """Output file, which ends with .jsonl."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values of `CorpusOptions` by name; None means not given."""

    @property
    def heldout_path(self) -> Path | None:
        """Where held-out rows go; None where nothing is held out."""
        if not self.heldout:
            return None
        return self.output.with_name(f"{self.output.stem}.heldout.jsonl")

    @property
    def outputs(self) -> list[Path]:
        """The output, and the held-out one where there is one."""
        return [self.output] if self.heldout_path is None else [self.output, self.heldout_path]

    @property
    def given(self) -> dict[str, Any]:
        """The options of the corpus that were given."""
        return {name: value for name, value in self.options.items() if value is not None}

    def find_inputs(self) -> Inputs:
        """The files to read; looks into folders anew at every call."""
        return find_inputs(self.inputs, corpus.accepts)

    def problems(self) -> list[Problem]:
        """One sentence a mistake; empty when all is well."""
        declared = {setting.name: setting for setting in settings_of(CorpusOptions)}
        problems = list(coerce_all(declared, self.given)[1])
        problems += dates.range_problems(self.given.get("after"), self.given.get("before"))
        for path in self.inputs:
            problems += _input_problems(path)
        if not self.inputs:
            problems.append(Problem("input", "expected at least one file, got none"))
        problems += output_problems("output", self.output, self.inputs)
        parents = real(self.output).parents
        for path in self.inputs:
            if path.is_dir() and real(path) in parents:
                sentence = (
                    f"{self.output} is inside the input {path}, so it would be read as input "
                    "next time."
                )
                problems.append(Problem("output", f"{sentence} Choose another folder"))
                break
        return problems + field_problems(part_of(self, Rows))


def _input_problems(path: Path) -> list[Problem]:
    """Mistakes in a file or folder that is to be read."""
    endings = f"(endings {', '.join(corpus.ALL_ENDINGS)})"
    if path.is_dir():
        inside = find_inputs([path], corpus.accepts)
        if inside.unreadable:
            return [
                Problem("input", f"cannot read the folder {reason}") for reason in inside.unreadable
            ]
        if inside.files:
            return []
        others = (
            f"found only {counts_in_words(inside.others)}"
            if inside.others
            else "found nothing in it"
        )
        return [
            Problem("input", f"expected files of a corpus in the folder {path} {endings}, {others}")
        ]
    if not path.is_file():
        return [Problem("input", f"expected a file or folder at {path}, {what_is_there(path)}")]
    if not corpus.accepts(path.name):
        return [Problem("input", f"expected a file of a corpus {endings}, got {path}")]
    return []


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What there is now."""

    record: dict[str, Any]
    """As in `<output>.json`."""
    done_before: bool
    """Whether the same request had been carried out earlier, and nothing was done."""


def prepare(request: Preparation) -> Prepared:
    """Carries out a request.

    Raises:
        ConfigError: mistakes in the request, all of them.
        DataError: a file that cannot be read, more malformed records than allowed, or no row left;
            says what was found.
        RunFolderError: the output is there already and came from another request.
        StorageError: the disk is full; nothing is half written.
    """
    if problems := request.problems():
        raise ConfigError(problems)
    files = request.find_inputs()
    inputs = hashed_inputs(files)
    key = _key(request, inputs)
    known = _standing(request, key)
    if known is not None:
        return Prepared(record=known, done_before=True)
    record: dict[str, Any] = {
        "command": "data prepare",
        "status": "writing",
        "key": key,
        "format": "corpus",
        "inputs": inputs,
        "options": _options(request),
        "created": now(),
        "versions": versions(),
        "schema": SCHEMA,
    }
    try:
        folder = request.output.parent
        with (
            NewFolder(folder, content=False),
            scratch_folder(folder, f".{request.output.name}.scratch-") as scratch,
        ):
            rows, reading = _read(request, files, scratch)
            counts = _counts(reading, rows)
            counts["other_files"] = dict(sorted(files.others.items()))
            _check(request, reading, counts)
            # from here on the outputs are this request's, should it be stopped between them
            write_json(record_path(request.output), record)
            outputs = _write(request, rows)
    except OSError as error:
        raise StorageError(
            f"Could not write {request.output} ({error.strerror or error}). Free some space or "
            "choose another folder; nothing was lost."
        ) from error
    record |= {
        "status": "complete",
        "outputs": outputs,
        "counts": counts,
        "malformed_places": reading.places,
        "finished": now(),
    }
    if reading.date_places:
        record["malformed_date_places"] = reading.date_places
    write_json(record_path(request.output), record)
    return Prepared(record=record, done_before=False)


# --------------------------------------------------------------------- what was asked, and is there


def _options(request: Preparation) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in request.given.items():
        options[name] = value.isoformat() if isinstance(value, date) else to_jsonable(value)
    for name in ("limit", "seed", "heldout", "most_malformed"):
        options[name] = getattr(request, name)
    return options


def _key(request: Preparation, inputs: Sequence[Mapping[str, Any]]) -> str:
    decides = {name: value for name, value in _options(request).items() if name != "most_malformed"}
    content = {
        "format": "corpus",
        "inputs": [file["sha256"] for file in inputs],
        "options": decides,
        "rules": _RULES,
        # rows say which file they came from, and the ending decides how a file is read
        "names": [file["name"] for file in inputs],
    }
    return fingerprint({**content, "outputs": len(request.outputs)})


def _standing(request: Preparation, key: str) -> dict[str, Any] | None:
    """The record of the same request, where its outputs are whole; None where there is something to
    do.

    Raises:
        RunFolderError: an output is there that is not this request's.
    """
    differs = (
        f"{record_path(request.output).name} in the same folder records different input or options"
    )
    record = own_record(
        request.output, request.outputs, command="data prepare", mine={"key": key}, differs=differs
    )
    if record is None or record.get("status") != "complete":
        return None
    return record if are_whole(record, request.outputs) else None


# ------------------------------------------------------------------------------------------ reading


@dataclass(kw_only=True)
class _Rows:
    """The rows in the scratch file: where each begins, to which side it goes, and its place in the
    order."""

    file: Path
    starts: array[int] = field(default_factory=lambda: array("Q"))
    order: array[int] = field(default_factory=lambda: array("Q"))
    sides: bytearray = field(default_factory=bytearray)
    """1: held out."""
    days: array[int] = field(default_factory=lambda: array("l"))
    """When each document appeared, as `date.toordinal()`; 0: not known."""
    characters: array[int] = field(default_factory=lambda: array("Q"))
    """Of each text."""
    chosen: Sequence[int] = ()
    """Indices of the rows that are written, in their order."""
    beyond: int = 0
    """How many rows the limit leaves out."""


def _read(request: Preparation, files: Inputs, scratch: Path) -> tuple[_Rows, Reading]:
    """Sets all rows down in the scratch folder. Returns them, and what was counted."""
    reading = Reading(files=files.files, options=request.given, names=files.names)
    rows = _Rows(file=scratch / "rows.jsonl")
    known: set[bytes] = set()
    stop = request.limit if request.seed is None else None
    with (
        progress(
            "Reading the corpus", total=total_bytes(files.files), unit="bytes"
        ) as reading.advance,
        open(rows.file, "wb") as file,
        contextlib.closing(corpus.read(reading)) as documents,  # type: ignore[type-var]
    ):
        for document in documents:
            # a lone surrogate can come out of an escape; it stands for no character, and no reader
            # would take it
            content = " ".join(document.text.casefold().split()).encode("utf-8", "replace")
            digest = hashlib.sha256(content).digest()[:16]
            if digest in known:
                reading.skipped[DUPLICATE] += 1
                continue
            known.add(digest)
            rows.starts.append(file.tell())
            rows.sides.append(_held_out(content, request.heldout))
            if request.seed is not None:
                rows.order.append(_number(f"{request.seed}\0".encode() + digest))
            rows.days.append(document.day.toordinal() if document.day is not None else 0)
            rows.characters.append(len(document.text))
            line = json.dumps(document.row, ensure_ascii=False, allow_nan=False) + "\n"
            file.write(line.encode("utf-8", "replace"))
            if stop is not None and len(rows.starts) >= stop:
                break
    rows.chosen = range(len(rows.starts))
    if request.seed is not None:
        rows.chosen = sorted(rows.chosen, key=rows.order.__getitem__)
    rows.chosen = rows.chosen[: request.limit]
    rows.beyond = len(rows.starts) - len(rows.chosen)
    return rows, reading


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8])


def _held_out(content: bytes, share: float) -> bool:
    return share > 0 and _number(b"heldout\0" + content) < share * 2**64


def _counts(reading: Reading, rows: _Rows) -> dict[str, Any]:
    """What was read and left out, and what is counted of the documents that are written."""
    skipped = dict(reading.skipped.most_common())
    if rows.beyond:
        skipped[BEYOND] = rows.beyond
    held_out = sum(rows.sides[index] for index in rows.chosen)
    days = Counter(rows.days[index] for index in rows.chosen)
    undated = days.pop(0, 0)
    ordered = [date.fromordinal(day).isoformat() for day in sorted(days)]
    months: Counter[str] = Counter()
    for day, documents in sorted(days.items()):
        months[date.fromordinal(day).isoformat()[:7]] += documents
    return {
        "records": reading.records,
        "rows": len(rows.chosen),
        "train": len(rows.chosen) - held_out,
        "heldout": held_out,
        "skipped": skipped,
        "not_read": dict(reading.not_read),
        "malformed": reading.malformed,
        "documents": len(rows.chosen),
        "characters": sum(rows.characters[index] for index in rows.chosen),
        "undated": undated,
        "first_date": ordered[0] if ordered else None,
        "last_date": ordered[-1] if ordered else None,
        "months": dict(months),
        "malformed_dates": reading.malformed_dates,
        "kinds": dict(sorted(reading.kinds.items())),
    }


def _check(request: Preparation, reading: Reading, counts: Mapping[str, Any]) -> None:
    """Refuses what would be worth nothing.

    Raises:
        DataError: too many malformed records; no rows on a side.
    """
    if reading.malformed > request.most_malformed * max(1, reading.records):
        raise reading.error(
            f"{reading.malformed} of {reading.records} records are malformed; nothing was written. "
            "Use --most_malformed SHARE to leave out up to that share of the records. The first"
        )
    if not counts["train"]:
        skipped = [f"{count} {reason}" for reason, count in counts["skipped"].items()]
        names = list(map(str, reading.files[:3]))
        if len(reading.files) > len(names):
            names.append("...")
        raise DataError(
            f"Expected at least one row to train on, got none of {reading.records} records "
            f"({'; '.join(skipped) or 'nothing was skipped'}) in {', '.join(names)}. Check the "
            "input and its filters."
        )
    if request.heldout and not counts["heldout"]:
        raise NothingHeldOut(request.heldout, counts["rows"])


# ------------------------------------------------------------------------------------------ writing


def _write(request: Preparation, rows: _Rows) -> list[dict[str, Any]]:
    """Writes the rows of both sides, each into a file that is whole or absent; returns what they
    are."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(rows_file(path)) for path in request.outputs]
        source = stack.enter_context(open(rows.file, "rb"))
        advance = stack.enter_context(progress("Writing", total=len(rows.chosen)))
        for index in rows.chosen:
            source.seek(rows.starts[index])
            sides[rows.sides[index]].add(source.readline())
            advance(1)
    return [side.about for side in sides]
