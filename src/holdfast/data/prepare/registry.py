"""The formats of published data by name: what reads each, which options it has, and by which columns its records are
known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config.declare import settings_of
from holdfast.data.prepare import (
    alpaca,
    classification,
    corpus,
    hh,
    law,
    metamath,
    quality,
    stackexchange,
    starcoder_instructions,
    ultrachat,
)
from holdfast.data.prepare.reading import PreparedRow, Reading
from holdfast.data.readers import split_name

JSON_FILES = (".json", ".jsonl", ".ndjson", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Format:
    """One published format."""

    about: str
    """For people: the data set and the files it comes in."""
    rows: str
    """The columns of the rows that are made."""
    read: Callable[[Reading], Iterator[PreparedRow]]
    own: type | None = None
    """Settings that this format has beside the common ones; None: no others."""
    files: tuple[str, ...] = JSON_FILES
    """Endings of its files; all but .parquet and .7z may also be compressed."""
    anything: bool = False
    """Whether files of any other name are read too: some releases' have no ending that says what is in them."""
    known_by: tuple[frozenset[str], ...] = ()
    """Sets of columns, any of which says that a record is of this format."""
    folders: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    """Endings of the files that are read, in folders too, under these options; None: no folders are."""
    problems: Callable[[Mapping[str, Any]], list[str]] = lambda options: []
    """Mistakes in several of the format's own options together, one sentence each."""
    dated: bool = False
    """Whether its rows are documents that may have a date, so that characters, dates and months are counted."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the format's own settings."""
        return tuple(s.name for s in settings_of(self.own)) if self.own is not None else ()


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
        own=stackexchange.StackExchangeOptions,
        files=(".xml", ".7z"),
        known_by=_columns("Id PostTypeId"),
    ),
    "starcoder_instructions": Format(
        about="self-oss-instruct data of BigCode, .jsonl or .parquet",
        rows="prompt, completion",
        read=starcoder_instructions.read,
        known_by=_columns("instruction response", "prompt response"),
    ),
    "magicoder": Format(
        about="Magicoder-Evol-Instruct-110K, data-evol_instruct-decontaminated.jsonl",
        rows="prompt, completion",
        read=starcoder_instructions.read,
    ),
    "law": Format(
        about="CaseHOLD, unfair terms of service (LexGLUE), Overruling (LegalBench); .parquet, .jsonl, .csv; mixed",
        rows="prompt, completion, options, answer, task",
        read=law.read,
        files=(*JSON_FILES, ".csv", ".tsv"),
        known_by=_columns("context endings", "citing_prompt holding_0", "text labels"),
    ),
    "classification": Format(
        about="SUBJ, MR, CR, TREC (text files or their .zip), BoolQ, RTE, SIQA, TweetEval (tables); mixed",
        rows="prompt, completion, options, answer, task",
        read=classification.read,
        own=classification.ClassificationOptions,
        files=(*JSON_FILES, ".csv", ".tsv", *classification.TEXT_FILES),
        known_by=_columns(
            "question passage",
            "premise hypothesis label",
            "sentence1 sentence2 label",
            "answerA answerB",
            "coarse_label",
        ),
    ),
    "ultrachat": Format(
        about="UltraChat (id, data) or UltraChat 200k (prompt, messages), .jsonl or .parquet",
        rows="messages",
        read=ultrachat.read,
        known_by=_columns("messages", "id data"),
    ),
    "alpaca": Format(
        about="alpaca_data.json (instruction, input, output), also as .jsonl or .parquet",
        rows="messages",
        read=alpaca.read,
        known_by=_columns("instruction input output"),
    ),
    "hh": Format(
        about="Anthropic's hh-rlhf (chosen, rejected), train.jsonl.gz; the chosen conversations",
        rows="messages",
        read=hh.read,
        known_by=_columns("chosen rejected"),
    ),
    "tulu": Format(
        about="TULU's SFT mixtures (dataset, id, messages), .jsonl or .parquet",
        rows="messages",
        read=ultrachat.read,
    ),
    "quality": Format(
        about="QuALITY.v1.0.1.htmlstripped.train and .dev (JSON Lines)",
        rows="text; with --questions: question, options, answer, article, hard",
        read=quality.read,
        own=quality.QualityOptions,
        anything=True,
        known_by=_columns("article questions"),
    ),
    "corpus": Format(
        about="new text: folders, .txt, .md, .jsonl, .json, .parquet, .warc.wet, articles of fundus; mixed",
        rows="text, title, date, source",
        read=corpus.read,
        own=corpus.CorpusOptions,
        files=corpus.endings({}),
        folders=corpus.endings,
        problems=corpus.problems,
        dated=True,
    ),
}


def format_of(columns: Sequence[str], *, besides: str) -> str | None:
    """The other format whose records have such columns, None where there is none; for messages."""
    return next(
        (
            name
            for name, one in FORMATS.items()
            if name != besides and any(known <= set(columns) for known in one.known_by)
        ),
        None,
    )


def accepts(one: Format, name: str, options: Mapping[str, Any]) -> bool:
    """Whether a file's name fits the format under its options."""
    bare, packed = split_name(name)
    endings = one.folders(options) if one.folders is not None else one.files
    return one.anything or (bare.endswith(endings) and not (packed and bare.endswith((".parquet", ".7z"))))
