"""The classification data of Overtrained Language Models as questions with options.

| task | files, as published | classes |
|---|---|---|
| subj | `quote.tok.gt9.5000`, `plot.tok.gt9.5000` (Pang and Lee 2004) | objective, subjective |
| mr | `rt-polarity.pos`, `rt-polarity.neg` (Pang and Lee 2005) | negative, positive |
| cr | annotated reviews, `size[+2]##it is small .` (Hu and Liu 2004) | negative, positive |
| trec | `train_5500.label`, `LOC:city What is ... ?` (Li and Roth 2002); or `text`, `coarse_label` | 6 kinds |
| boolq | `question`, `passage`, `answer` true or false, or `label` (Clark et al. 2019) | No, Yes |
| rte | `premise`, `hypothesis`, `label`, or GLUE's `sentence1`, `sentence2` | True, False |
| siqa | `context`, `question`, `answerA` to `answerC`, `label` 1 to 3 (Sap et al. 2019) | each question's own |
| tweets | `text`, `label` 0 to 2 (TweetEval's sentiment), with `--task tweets` | negative, neutral, positive |

Text files are known by their names, also within .zip archives; other records by their columns. A text and a label alone
fit several of them, so `task` has to say which. A sentence of a review
has the sign of its opinions' sum; titles, sentences without an opinion and those whose opinions cancel are left out.

Rows have `prompt` and `completion` to train on, `options` and `answer` for the `choices` entry, and `task`. The paper's
in-domain measure is the `classes` entry on the same rows. It does not print its prompts: these are ours.
"""

from __future__ import annotations

import functools
import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from holdfast.data.prepare.options import class_number, options_row
from holdfast.data.prepare.reading import (
    Malformed,
    PreparedRow,
    Reading,
    Records,
    Skipped,
    made_of,
    records,
    text_of,
    undamaged,
)
from holdfast.data.readers import open_bytes, split_name
from holdfast.errors import DataError

TEXT_FILES = (".zip", ".pos", ".neg", ".label", ".5000", ".txt")
"""Endings of what is no table."""
MOST_BYTES = 256 << 20
"""Of text in an archive: the real ones have a few megabytes."""
SUBJ, MR, CR, TREC = "subj", "mr", "cr", "trec"
BOOLQ, RTE, SIQA, TWEETS = "boolq", "rte", "siqa", "tweets"
_SENTIMENT = ("negative", "positive")
_KINDS = {
    "ABBR": "an abbreviation",
    "ENTY": "a thing",
    "DESC": "a description",
    "HUM": "a person",
    "LOC": "a place",
    "NUM": "a number",
}
"""TREC's coarse classes in the order of their numbers."""
CLASSES: dict[str, tuple[str, ...]] = {
    SUBJ: ("objective", "subjective"),
    MR: _SENTIMENT,
    CR: _SENTIMENT,
    TREC: tuple(_KINDS.values()),
    BOOLQ: ("No", "Yes"),
    RTE: ("True", "False"),
    TWEETS: ("negative", "neutral", "positive"),
}
_ASKED = {
    SUBJ: "{text}\n\nIs this sentence objective or subjective?",
    MR: "{text}\n\nIs this review negative or positive?",
    CR: "{text}\n\nIs this review negative or positive?",
    TREC: "{text}\n\nWhat does this question ask for?",
    BOOLQ: "{text}\n\nQuestion: {question}?",
    RTE: "{text}\n\nQuestion: {question} True or False?",
    SIQA: "{text}\n\n{question}",
    TWEETS: "{text}\n\nIs this tweet negative, neutral or positive?",
}
_OPINION = re.compile(r"\[([+-]\d?)\]")
_REVIEWED = re.compile(r"^[^#]*##", re.MULTILINE)
_ASKING = re.compile(r"^([A-Z]+):\w+ ")


_LINE = "\0line of a text file"
"""Key of what the file's name says of it; no table has such a column."""


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions:
    """Options of the format."""

    settings_group: ClassVar[str] = "classification"

    task: Literal["subj", "mr", "cr", "tweets"] | None = None
    """What tables with a text and a label alone are; labels count the classes in the order of the documentation."""


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"prompt", "completion", "options", "answer", "task"}`."""
    return made_of(reading, functools.partial(_made, task=reading.options.get("task")), read=_records)


# --------------------------------------------------------------------------------------------------------- text files


def _records(file: Path, reading: Reading) -> Records:
    """Of a text file or an archive `{_LINE: (task, class), "text"}` a line; of other files their records."""
    if not split_name(file.name)[0].endswith(TEXT_FILES):
        yield from records(file, reading)
        return
    with open_bytes(file, reading.advance) as stream, undamaged(file):
        if file.suffix != ".zip":
            yield from _lines(split_name(file.name)[0], str(file), stream.read(), reading)
            return
        try:  # it may be damaged, packed in a way of its own, or encrypted
            archive = zipfile.ZipFile(io.BytesIO(stream.read()))
            members = [m for m in archive.infolist() if not m.is_dir() and not _aside(m.filename)]
            if sum(m.file_size for m in members) > MOST_BYTES:
                raise DataError(f"{file}: expected at most {MOST_BYTES >> 20} MiB of text in an archive, it says more.")
            for member in members:
                name = PurePosixPath(member.filename).name
                yield from _lines(name, f"{file}, {name}", archive.read(member), reading)
        except (
            zipfile.BadZipFile,
            zlib.error,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise DataError(f"{file}: expected a .zip archive that can be read; fetch it again ({error}).") from error


def _aside(name: str) -> bool:
    return "readme" in name.lower() or PurePosixPath(name).name.startswith(".") or "__MACOSX" in name


def _lines(name: str, place: str, content: bytes, reading: Reading) -> Records:
    """A line of a text file of these data sets, whose name or form says which."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:  # as the authors' own archives have them
        text = content.decode("latin-1")
    kind = _kind(name, text)
    if kind is None:
        raise DataError(
            f"{place}: expected quote.*, plot.*, *.pos, *.neg, *.label, or reviews with '##' before each sentence. Are "
            f"these the files of SUBJ, MR, CR or TREC?"
        )
    # not splitlines: some sentences hold characters that it takes for line ends
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or (kind == (CR, None) and "##" not in line):
            continue
        reading.records += 1
        yield f"{place}, line {number}", {_LINE: kind, "text": line}


def _kind(name: str, text: str) -> tuple[str, str | None] | None:
    """The task that a file belongs to and, where all of it has one, the class."""
    known = {"quote.": (SUBJ, "subjective"), "plot.": (SUBJ, "objective")}
    ends = {".pos": (MR, "positive"), ".neg": (MR, "negative"), ".label": (TREC, None)}
    found: list[tuple[str, str | None]] = [kind for start, kind in known.items() if name.startswith(start)]
    found += [kind for end, kind in ends.items() if name.endswith(end)]
    if not found and _REVIEWED.search(text):
        found.append((CR, None))
    if not found and _ASKING.match(text):
        found.append((TREC, None))
    return found[0] if found else None


# ------------------------------------------------------------------------------------------------------------- records


def _made(record: Mapping[str, Any], task: str | None) -> Iterator[PreparedRow]:
    """Rows of a record; `task`: of tables that have a text and a label alone."""
    if _LINE in record:
        (line_of, name), text = record[_LINE], record["text"].strip()
        if line_of == CR:
            yield _row(CR, *_reviewed(text))
        elif line_of == TREC:
            kind, _, question = text.partition(" ")
            yield _row(TREC, question.strip(), _coarse(kind.partition(":")[0]))
        else:
            yield _row(line_of, text, CLASSES[line_of].index(name))
    elif "passage" in record:
        answer = _truth(record.get("answer", record.get("label")))
        question = text_of(record, "question").strip().rstrip("?")
        yield _row(BOOLQ, text_of(record, "passage").strip(), answer, question=question[:1].upper() + question[1:])
    elif "hypothesis" in record or "sentence2" in record:
        label = {"entailment": 0, "not_entailment": 1}.get(str(record.get("label")), record.get("label"))
        text, hypothesis = text_of(record, "premise", "sentence1"), text_of(record, "hypothesis", "sentence2")
        yield _row(RTE, text.strip(), class_number(label, 2), question=hypothesis.strip())
    elif "answerA" in record:
        options = [text_of(record, f"answer{letter}").strip() for letter in "ABC"]
        answer, question = class_number(record.get("label"), 4) - 1, text_of(record, "question").strip()
        if answer < 0:
            raise Malformed(f"'label' is {record.get('label')!r}, expected 1, 2 or 3")
        yield _row(SIQA, text_of(record, "context").strip(), answer, question=question, options=options)
    elif "coarse_label" in record:
        label = record["coarse_label"]
        yield _row(TREC, text_of(record, "text").strip(), _coarse(label) if label in _KINDS else class_number(label, 6))
    elif "label" in record:
        if task is None:
            raise Malformed("a text and a label do not say which data set it is; add --task subj, mr, cr or tweets")
        yield _row(task, text_of(record, "text").strip(), class_number(record["label"], len(CLASSES[task])))
    else:
        raise Malformed(f"none of the known forms (keys: {', '.join(list(record)[:8]) or 'none'})")


def _reviewed(line: str) -> tuple[str, int]:
    """The sentence of an annotated review, and whether its opinions are positive."""
    opinions, _, sentence = line.partition("##")
    found = [int(f"{sign}1" if len(sign) == 1 else sign) for sign in _OPINION.findall(opinions)]
    if not found:
        raise Skipped("a sentence without an opinion")
    if sum(found) == 0:
        raise Skipped("a sentence whose opinions cancel")
    if not sentence.strip():
        raise Skipped("an empty sentence")
    return sentence.strip(), int(sum(found) > 0)


def _coarse(name: str) -> int:
    if name not in _KINDS:
        raise Malformed(f"the class is {name!r}, expected one of {', '.join(_KINDS)}")
    return list(_KINDS).index(name)


def _truth(value: Any) -> int:
    """1 of what is true, which CSV has as text."""
    found = {"true": 1, "1": 1, "false": 0, "0": 0}.get(str(value).lower())
    if found is None:
        raise Malformed(f"'answer' is {value!r}, expected true or false")
    return found


def _row(task: str, text: str, answer: int, *, question: str = "", options: Sequence[str] = ()) -> PreparedRow:
    prompt = _ASKED[task].replace("{question}", question).replace("{text}", text)
    return options_row(task, prompt, options or CLASSES[task], answer, group=text)
