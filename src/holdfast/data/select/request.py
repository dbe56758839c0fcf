"""Which passages are wanted, and out of which files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from holdfast.config.declare import Meta, Seed
from holdfast.data.outputs import what_is_there
from holdfast.data.prepare.corpus import Column
from holdfast.data.prepare.inputs import Inputs
from holdfast.data.prepare.run import Preparation
from holdfast.data.readers import SUPPORTED, kind_of
from holdfast.errors import Problem

RESTORING, PROBING = "restoring.jsonl", "probing.jsonl"
LEDGER = "scores.ledger.jsonl"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which passages are taken."""

    settings_group: ClassVar[str] = "which passages"

    tokens: Annotated[int, Meta(ge=1)]
    """Maximum number of tokens of the restoring set. This set has the passages of lowest perplexity
    that fit."""
    probing: Annotated[int, Meta(ge=0)] = 10_000
    """Number of passages in the probing set, a random sample of the corpus. With 0 there is no
    probing set."""
    max_length: Annotated[int, Meta(ge=16)] = 512
    """Maximum number of tokens of a passage, with BOS. Longer documents are cut into several."""
    minimum_tokens: Annotated[int, Meta(ge=2)] = 64
    """Minimum number of tokens of a passage. Shorter passages are left out."""
    disjoint: Annotated[Literal["documents", "passages"], Meta(section="contamination")] = (
        "documents"
    )
    """What the restoring set and the probing set must not share. documents: a document with a
    probing passage gives no restoring passages. passages: one document may give different passages
    to both sets."""
    questions: Annotated[
        tuple[Path, ...], Meta(repeatable=True, metavar="FILE", section="contamination")
    ] = ()
    """Files of questions that the corpus should not contain. Passages that share 13 consecutive
    words with a question are counted."""
    overlap: Annotated[Literal["keep", "drop"], Meta(section="contamination")] = "keep"
    """What to do with passages that contain questions."""
    seed: Seed = 0
    """Random seed of the probing sample."""

    def problems(self) -> list[Problem]:
        """One sentence a mistake."""
        problems = []
        if self.minimum_tokens > self.max_length:
            sentence = f"expected at most max_length ({self.max_length}), got {self.minimum_tokens}"
            problems.append(Problem("minimum_tokens", sentence))
        if self.overlap == "drop" and not self.questions:
            sentence = (
                "'drop' leaves out passages that contain a question, and no file of questions "
                "is given. Add --questions"
            )
            problems.append(Problem("overlap", sentence))
        for path in self.questions:
            if not path.is_file():
                problems.append(
                    Problem("questions", f"expected a file at {path}, {what_is_there(path)}")
                )
            elif kind_of(path) is None:
                problems.append(
                    Problem(
                        "questions", f"expected a file of a known kind ({SUPPORTED}), got {path}"
                    )
                )
        return problems


@dataclass(frozen=True, kw_only=True)
class CorpusFiles:
    """Files and folders of a corpus, and where the selection goes."""

    input: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FILE")]
    """Files and folders of the corpus: text, JSON Lines, Parquet, compressed or not."""
    output: Annotated[Path, Meta(metavar="FOLDER")]
    """Output folder of the sets. Sets that were made with other settings are never overwritten."""
    text_column: Column = None
    """Column with the text (the first of text, plaintext, content, body, document)."""
    most_malformed: Annotated[float, Meta(ge=0, le=1, metavar="SHARE")] = 0.5
    """Largest allowed share of malformed records. Malformed records are counted, listed and left
    out."""

    @property
    def reading(self) -> Preparation:
        """The corpus as `holdfast data prepare` would read it."""
        options = {"text_column": self.text_column}
        return Preparation(inputs=self.input, output=self.output / RESTORING, options=options)

    def find_inputs(self) -> Inputs:
        """The files to read; looks into folders anew at every call."""
        return self.reading.find_inputs()

    def problems(self) -> list[Problem]:
        """One sentence a mistake."""
        return self.reading.problems()
