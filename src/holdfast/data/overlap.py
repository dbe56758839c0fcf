"""Does training text hold what a model is measured on? A held-out document is said to be held where
half of its 13-word windows (Brown et al. 2020, "Language models are few-shot learners", appendix C)
or more stand in training text; one of fewer words, where all its words stand there in a row.

Windows are compared in small letters and without punctuation. Those of the held-out documents are
kept and training text is read once, so memory grows with what is held out alone.

Whether held-out rows *are* training rows is quicker to say (`contents_of`): rows with the same
words are the same, whatever file, layout or column they stand in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

WORDS = 13
SHARE = 0.5
"""Of a document's windows."""

_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_WORD = re.compile(r"\w+")
_WORD_OR_SIGN = re.compile(rf"{_UNSPACED.pattern}|\w+")


def words_of(text: str) -> list[str]:
    """The words of a text in small letters; characters of scripts that are written without spaces
    are words."""
    plain = text.isascii() or not _UNSPACED.search(text)
    return (_WORD if plain else _WORD_OR_SIGN).findall(text.casefold())


def windows_of(text: str) -> list[str]:
    """All stretches of `WORDS` words; of a shorter text all words together, of one without words
    none."""
    words = words_of(text)
    if not words:
        return []
    return [
        " ".join(words[start : start + WORDS]) for start in range(max(1, len(words) - WORDS + 1))
    ]


def texts_of(row: Any) -> Iterator[str]:
    """All texts of a row, in order."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, Mapping):
        yield from texts_of(list(row.values()))
    elif isinstance(row, (list, tuple)):
        for item in row:
            yield from texts_of(item)


def content_of(row: Any) -> int:
    """A hash of the words that a row says to a model, in order: the same for text, for prompt and
    completion and for messages that say the same; 0 for a row without a word. For one process
    alone."""
    words = " ".join(_texts_read(row)).casefold().split()
    return hash(" ".join(words)) if words else 0


def _texts_read(row: Any) -> Iterator[str]:
    """The texts of a row that a model reads: of messages what they say."""
    if isinstance(row, Mapping):
        columns = (
            ("content",)
            if "role" in row
            else ("text", "prompt", "messages", "chosen", "completion")
        )
        row = list(map(row.get, columns))
    if isinstance(row, str):
        yield row
    elif isinstance(row, (list, tuple)):
        for item in row:
            yield from _texts_read(item)


def contents_of(training: Iterable[Mapping[str, Any]]) -> set[int]:
    """`content_of` rows of text, of prompt and completion or of messages, and of their prompts."""
    contents: set[int] = set()
    for row in training:
        turns = row.get("messages") or []
        contents.update(map(content_of, (row, row.get("prompt"), turns[:-1])))
    return contents - {0}


def held_in(held_out: Sequence[str], training: Iterable[str]) -> list[int]:
    """The indices of the documents that training text holds.

    Args:
        held_out: the documents.
        training: texts, each one looked at on its own.
    """
    by_document = list(map(windows_of, held_out))
    held_out_windows = set(itertools.chain.from_iterable(by_document))
    # few windows of training text begin and end as one that is looked for: the others need not be
    # put together
    ends: dict[int, set[tuple[str, str]]] = {}
    for words in map(str.split, held_out_windows):
        ends.setdefault(len(words), set()).add((words[0], words[-1]))
    trained_windows = set()
    for text in training:
        words = words_of(text)
        for length, pairs in ends.items():
            for start, pair in enumerate(zip(words, words[length - 1 :], strict=False)):
                if pair in pairs:
                    trained_windows.add(" ".join(words[start : start + length]))
        trained_windows &= held_out_windows
    indices = []
    for index, windows in enumerate(by_document):
        if windows and sum(map(trained_windows.__contains__, windows)) >= SHARE * len(windows):
            indices.append(index)
    return indices
