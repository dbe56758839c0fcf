"""Does training text hold what a model is measured on? A held-out document is said to be held where half of its
13-word windows (Brown et al. 2020, "Language models are few-shot learners", appendix C) or more stand in training
text; one of fewer words, where all its words stand there in a row.

Windows are compared in small letters and without punctuation. Those of the held-out documents are kept and training
text is read once, so memory grows with what is held out alone.

Whether held-out rows *are* training rows is quicker to say (`contents_of`): rows with the same words are the same,
whatever file, layout or column they stand in.
"""

from __future__ import annotations

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
    """The words of a text in small letters; characters of scripts that are written without spaces are words."""
    plain = text.isascii() or not _UNSPACED.search(text)
    return (_WORD if plain else _WORD_OR_SIGN).findall(text.casefold())


def texts_of(row: Any) -> Iterator[str]:
    """All texts of a row, in order."""
    if isinstance(row, str):
        yield row
    elif isinstance(row, Mapping):
        for part in row.values():
            yield from texts_of(part)
    elif isinstance(row, (list, tuple)):
        for part in row:
            yield from texts_of(part)


def content_of(row: Any) -> int:
    """A hash of the words that a row says to a model, in order: the same for text, for prompt and completion and for
    messages that say the same; 0 for a row without a word. For one process alone."""
    words = [word for text in _said(row) for word in text.casefold().split()]
    return hash(" ".join(words)) if words else 0


def _said(row: Any) -> Iterator[str]:
    """The texts of a row that a model reads: of messages what they say."""
    if isinstance(row, Mapping):
        columns = ("content",) if "role" in row else ("text", "prompt", "messages", "chosen", "completion")
        row = [row.get(column) for column in columns]
    if isinstance(row, str):
        yield row
    elif isinstance(row, (list, tuple)):
        for part in row:
            yield from _said(part)


def contents_of(training: Iterable[Mapping[str, Any]]) -> set[int]:
    """`content_of` rows of text, of prompt and completion or of messages, and of their prompts."""
    known = set()
    for row in training:
        messages = row.get("messages")
        known |= {content_of(row), content_of(row.get("prompt")), content_of(messages[:-1] if messages else None)}
    return known - {0}


def held_in(held_out: Sequence[str], training: Iterable[str]) -> list[int]:
    """The places of the documents that training text holds.

    Args:
        held_out: the documents.
        training: texts, each one looked at on its own.
    """
    windows = [_windows(words_of(text)) for text in held_out]
    missing: dict[str, bool] = {window: True for own in windows for window in own}
    # few windows of training text begin and end as one that is looked for: the others need not be put together
    ends: dict[int, set[tuple[str, str]]] = {}
    for words in map(str.split, missing):
        ends.setdefault(len(words), set()).add((words[0], words[-1]))
    for text in training:
        words = words_of(text)
        for length, known in ends.items():
            for start in [at for at, pair in enumerate(zip(words, words[length - 1 :], strict=False)) if pair in known]:
                window = " ".join(words[start : start + length])
                if window in missing:
                    missing[window] = False
    return [place for place, own in enumerate(windows) if own and sum(not missing[w] for w in own) >= SHARE * len(own)]


def _windows(words: Sequence[str]) -> list[str]:
    """Of a shorter document all words together."""
    if not words:
        return []
    return [" ".join(words[start : start + WORDS]) for start in range(max(1, len(words) - WORDS + 1))]
