"""One selection: documents in, a folder of sets, record and data card out.

    documents -> passages -> without equal ones -> perplexities -> the lowest, and a random sample

Passages wait in scratch files beside the output while it runs; memory holds some numbers of each.
Whatever ends it, scores stay in the ledger: the same request reads the corpus again, scores what is
left, and writes the same sets to the byte. What can be refused is refused before the first score: a
corpus smaller than the budget, above all.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.config.declare import part_of, settings_of
from holdfast.config.decode import field_problems
from holdfast.data.outputs import are_whole, own_record, record_path, rows_file
from holdfast.data.prepare import corpus
from holdfast.data.prepare.inputs import Inputs, hashed_inputs
from holdfast.data.prepare.reading import Reading
from holdfast.data.select.card import card
from holdfast.data.select.choosing import candidates, choose_restoring, described, draw_probing
from holdfast.data.select.overlap import Questions
from holdfast.data.select.passages import Passages, cut
from holdfast.data.select.request import LEDGER, PROBING, RESTORING, Choice, CorpusFiles
from holdfast.data.select.scores import Scorer, score_passages
from holdfast.data.sources import total_bytes
from holdfast.errors import ConfigError, DataError, StorageError
from holdfast.records.evaluation import SCHEMA
from holdfast.support.environment import now, versions
from holdfast.support.files import fingerprint, to_jsonable, write_bytes_atomic, write_json
from holdfast.support.leftovers import NewFolder, scratch_folder
from holdfast.support.progress import progress

DUPLICATE = "equal to an earlier passage"
OVERLAPPING = "a passage that overlaps with a question"
_RULES = 1
"""Raised when the same request makes other sets."""
_NAME = "selection"
_AT_ONCE = 1 << 19
"""Characters that are tokenised at once."""


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What there is now."""

    folder: Path
    record: dict[str, Any]
    """As in `selection.json`."""
    done_before: bool
    """Whether the same request had been carried out earlier, and nothing was done."""

    @property
    def restoring(self) -> Path:
        """The passages of lowest perplexity, low to high."""
        return self.folder / RESTORING

    @property
    def probing(self) -> Path | None:
        """The random sample; None where none was asked for."""
        return self.folder / PROBING if self.record["options"]["probing"] else None


def select_from_files(
    files: CorpusFiles, choice: Choice, scorer: Scorer, *, scores: Path | None = None
) -> Selected:
    """Selects passages of a corpus on disk.

    Args:
        files: the corpus, and the folder to write.
        choice: which passages.
        scorer: what ranks them.
        scores: the ledger of scores; None: one in the folder.

    Raises:
        ConfigError: mistakes in the request, all of them.
        DataError: a file that cannot be read, too many malformed records, or a corpus smaller than
            what is asked for.
        RunFolderError: the folder holds another selection.
        NotFinite: the model gives a passage NaN.
        StorageError: the disk is full; nothing is half written, and what was scored is kept.
    """
    problems = files.problems() + choice.problems()
    problems += field_problems(part_of(choice, Choice))
    if problems:
        raise ConfigError(problems)
    corpus_files = files.find_inputs()
    inputs = hashed_inputs(corpus_files)
    output = files.output
    options = {s.name: to_jsonable(getattr(choice, s.name)) for s in settings_of(Choice)}
    options["questions"] = [path.name for path in choice.questions]
    key = fingerprint(
        {
            "options": options,
            "questions": [
                file["sha256"] for file in hashed_inputs(Inputs(files=list(choice.questions)))
            ],
            "scorer": {**scorer.identity, "bos": scorer.bos},
            "rules": _RULES,
            "content": [[file["name"], file["sha256"]] for file in inputs],
        }
    )
    known = _standing(output, choice, key)
    if known is not None:
        return Selected(folder=output, record=known, done_before=True)
    record: dict[str, Any] = {
        "command": "data select",
        "status": "scoring",
        "key": key,
        "model": dict(scorer.identity),
        "inputs": inputs,
        "options": options,
        "created": now(),
        "versions": versions(),
        "schema": SCHEMA,
    }
    questions = Questions(choice.questions, needed=choice.overlap == "drop")
    if choice.questions:
        record["questions"] = {
            "files": options["questions"],
            "count": questions.count,
            "short": questions.short,
        }
    try:
        with (
            NewFolder(output, content=False),
            scratch_folder(output, ".scratch-") as scratch,
            Passages(scratch, seed=choice.seed) as passages,
        ):
            source = Documents(files, corpus_files)
            record["counts"] = {"overlapping": gather(source, choice, scorer, questions, passages)}
            _refuse_nothing(passages, source)
            _choose_and_write(
                passages, source, choice, scorer, output, scores or output / LEDGER, record
            )
    except OSError as error:
        raise StorageError(
            f"Could not write {output} ({error.strerror or error}). Free some space or choose "
            "another folder. Scores so far are kept."
        ) from error
    return Selected(folder=output, record=record, done_before=False)


# ------------------------------------------------------------------------------------------ reading


class Documents:
    """Documents of files, and what was counted of them."""

    def __init__(self, files: CorpusFiles, inputs: Inputs) -> None:
        self._most = files.most_malformed
        self._reading = Reading(files=inputs.files, options=files.reading.given, names=inputs.names)
        self.skipped = self._reading.skipped
        self.places = self._reading.places

    @property
    def counts(self) -> dict[str, Any]:
        """Records that were read, malformed ones, and files by kind."""
        reading = self._reading
        return {
            "records": reading.records,
            "not_read": dict(reading.not_read),
            "malformed": reading.malformed,
            "kinds": dict(sorted(reading.kinds.items())),
        }

    def documents(self) -> Iterator[corpus.Document]:
        """All of them, in order.

        Raises:
            DataError: a file that cannot be read, or too many malformed records.
        """
        reading = self._reading
        with (
            progress("Reading", total=total_bytes(reading.files), unit="bytes") as reading.advance,
            contextlib.closing(corpus.read(reading)) as documents,  # type: ignore[type-var]
        ):
            yield from documents
        if reading.malformed > self._most * max(1, reading.records):
            raise reading.error(
                f"{reading.malformed} of {reading.records} records are malformed, more than "
                f"--most_malformed {self._most:g}. The first"
            )


def gather(
    source: Documents, choice: Choice, scorer: Scorer, questions: Questions, passages: Passages
) -> int:
    """Cuts all documents into passages and sets them down, equal ones once.

    Returns:
        Passages that share words with a question, dropped ones too.

    Raises:
        DataError: a file that cannot be read, or too many malformed records.
    """
    limit = choice.max_length - scorer.bos
    number = overlapping = 0
    for batch in _batches(source.documents()):
        cuts = cut([document.text for document in batch], scorer.tokenizer, limit)
        for document, pieces in zip(batch, cuts, strict=True):
            for passage in pieces:
                if len(passage.ids) < choice.minimum_tokens:
                    source.skipped[f"a passage of fewer than {choice.minimum_tokens} tokens"] += 1
                    continue
                overlaps = questions.overlap(passage.text)
                overlapping += overlaps
                if overlaps and choice.overlap == "drop":
                    source.skipped[OVERLAPPING] += 1
                elif not passages.add(
                    passage, source=document.source, document=number, overlapping=overlaps
                ):
                    source.skipped[DUPLICATE] += 1
            number += 1
    passages.forget_texts()
    return overlapping


def _batches(documents: Iterable[corpus.Document]) -> Iterator[list[corpus.Document]]:
    batch: list[corpus.Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---------------------------------------------------------------------------------------- selecting


def _choose_and_write(
    passages: Passages,
    source: Documents,
    choice: Choice,
    scorer: Scorer,
    output: Path,
    ledger: Path,
    record: dict[str, Any],
) -> None:
    """Scores what was gathered, writes the folder, and completes the record."""
    probing = draw_probing(passages, choice.probing)
    left = candidates(passages, probing, budget=choice.tokens, disjoint=choice.disjoint)
    write_json(record_path(output / _NAME), record)
    nats = score_passages(passages, scorer, ledger)
    restoring = choose_restoring(passages, left, nats, budget=choice.tokens)
    outputs = [write_rows(output / RESTORING, restoring, passages, nats)]
    if choice.probing:
        outputs.append(write_rows(output / PROBING, probing, passages, nats))
    counts = record["counts"] | source.counts
    sets = {"all": np.arange(len(passages)), "restoring": restoring, "probing": probing}
    for name, indices in sets.items():
        counts[name] = described(passages, indices, nats, bos=scorer.bos)
    counts["skipped"] = dict(source.skipped.most_common())
    record |= {"outputs": outputs, "counts": counts, "malformed_places": source.places}
    write_bytes_atomic(output / "README.md", card(record).encode())
    record |= {"status": "complete", "finished": now()}
    write_json(record_path(output / _NAME), record)


def _standing(output: Path, choice: Choice, key: str) -> dict[str, Any] | None:
    """The record of the same request, where its sets are whole; None where there is something to
    do.

    Raises:
        RunFolderError: the folder holds another selection.
    """
    differs = "selection.json in the same folder records different input, options or model"
    files = [output / RESTORING, output / PROBING]
    record = own_record(
        output / _NAME, files, command="data select", mine={"key": key}, differs=differs
    )
    if record is None or record.get("status") != "complete":
        return None
    return record if are_whole(record, files if choice.probing else files[:1]) else None


def _refuse_nothing(passages: Passages, source: Documents) -> None:
    """Refuses a corpus without a passage.

    Raises:
        DataError: with what was left out, and why.
    """
    if len(passages):
        return
    counts = source.counts
    reasons = [f"{count:,} {reason}" for reason, count in source.skipped.items()]
    if counts["malformed"]:
        reasons.append(f"{counts['malformed']:,} malformed ({'; '.join(source.places[:3])})")
    raise DataError(
        f"Expected at least one passage, got none of {counts['records']:,} documents "
        f"({'; '.join(reasons) or 'nothing was read'}). Lower minimum_tokens, or check the input."
    )


def write_rows(
    path: Path, indices: np.ndarray, passages: Passages, nats: np.ndarray
) -> dict[str, Any]:
    """Writes a set, whole or absent; returns what it is."""
    with rows_file(path) as file:
        for index in indices:
            row = passages.row(index)
            columns = {
                "text": row["text"],
                "nats_per_token": float(nats[index]),
                "tokens": passages.tokens[index],
                "source": row["source"],
            }
            file.add(json.dumps(columns, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        return file.about
