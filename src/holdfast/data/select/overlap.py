"""Does a corpus hold the questions that a model will be asked? Passages that share 13 words in a
row with one are said to (Brown et al. 2020, "Language models are few-shot learners", appendix C).

Words are compared in small letters and without punctuation. Of a row of a file of questions every
text counts, and all its texts in a row: a question that is shorter than 13 words is found with its
options behind it, as a page would have it. Rows with fewer words in all cannot be looked for; they
are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.data.overlap import WORDS, texts_of, windows_of
from holdfast.data.prepare.reading import Reading, records
from holdfast.data.readers import file_tables, kind_of, plain_rows
from holdfast.errors import DataError


class Questions:
    """The word 13-grams of files of questions.

    Args:
        files: JSON, JSON Lines, Parquet, CSV, or text with a question a line.
        needed: one of 13 words at least has to be there.

    Raises:
        DataError: a file that cannot be read, malformed records, or no question of 13 words where
            one is needed.
    """

    def __init__(self, files: Sequence[Path], *, needed: bool = False) -> None:
        self.count = 0
        """Questions that are looked for."""
        self.short = 0
        """Questions that are too short for it."""
        self._grams: set[str] = set()
        for file in files:
            for record in _records(file):
                texts = list(texts_of(record))
                grams = set()
                for text in (*texts, "\n".join(texts)):
                    grams |= _grams(text)
                self.count += bool(grams)
                self.short += not grams
                self._grams |= grams
        if needed and not self._grams:
            raise DataError(
                f"Expected questions of at least {WORDS} words in {', '.join(map(str, files))}, "
                f"found none: the {self.short:,} rows there are shorter. Leave out --questions, or "
                "give files with longer rows, such as questions with their context and options."
            )

    def overlap(self, text: str) -> bool:
        """Whether a passage shares 13 words in a row with a question."""
        return bool(self._grams) and not self._grams.isdisjoint(_grams(text))


def _grams(text: str) -> set[str]:
    """Of a text of fewer words none."""
    windows = windows_of(text)
    return set(windows) if windows and windows[0].count(" ") == WORDS - 1 else set()


def _records(file: Path) -> Iterator[Any]:
    if kind_of(file) == "text":
        for table in file_tables(file, documents="line"):
            yield from plain_rows(table)
        return
    reading = Reading(files=[file], options={})
    for _, record in records(file, reading):
        if record is not None:
            yield record
    if reading.malformed:
        raise reading.error(
            f"{reading.malformed} of {reading.records} questions are malformed. The first"
        )
