"""Documents cut into passages: stretches of one document of at most so many tokens, never of two.

A document that is too long is cut at the last line break in the second half of what fits, else at
the last space there, else between two tokens. Every passage is tokenised by itself, since it will
be trained on and scored by itself.

Passages wait in two scratch files, one of texts and one of token ids. Memory holds 41 bytes a
passage, and a hash of 16 bytes (in a set: about 100) of its text without white space and capitals,
by which equal passages are known.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from holdfast.errors import ModelError


class Passage(NamedTuple):
    """A passage."""

    text: str
    ids: Sequence[int]
    """Token ids of the text alone."""


def cut(texts: Sequence[str], tokenizer: Any, limit: int) -> list[list[Passage]]:
    """The passages of each text.

    Args:
        texts: documents.
        tokenizer: of transformers, a fast one: where tokens begin in the text has to be known.
        limit: tokens of a passage at most, special ones aside.

    Raises:
        ModelError: a slow tokenizer.
    """
    if not texts:
        return []
    encodings = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    ).encodings
    if encodings is None:
        raise ModelError(
            "Expected a fast tokenizer, which gives the position of each token in the text, got "
            f"{type(tokenizer).__name__}. Save a tokenizer.json beside the model."
        )
    pieces: dict[int, list[str]] = {}
    for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        if len(encoding.ids) > limit:
            pieces[number] = _pieces(text, np.array(encoding.offsets)[:, 0], limit)
    smaller = iter(cut(list(itertools.chain.from_iterable(pieces.values())), tokenizer, limit))
    passages: list[list[Passage]] = []
    for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        if number in pieces:
            passages.append(
                list(itertools.chain.from_iterable(itertools.islice(smaller, len(pieces[number]))))
            )
        else:
            passages.append([Passage(text, encoding.ids)])
    return passages


def _pieces(text: str, begins: np.ndarray, limit: int) -> list[str]:
    """A text in pieces of about `limit` tokens, each shorter than the text; tokens begin at
    characters `begins`."""
    if len(text) < 2:
        return []
    pieces: list[str] = []
    start = 0
    while start < len(text):
        last = int(np.searchsorted(begins, start)) + limit
        end = int(begins[last]) if last < len(begins) else len(text)
        end = max(end, start + 1)
        if end < len(text) or not pieces:
            half, end = (start + end) // 2, min(end, len(text) - 1)
            border = text.rfind("\n", half, end)
            if border < 0:
                border = text.rfind(" ", half, end)
            end = border + 1 if border >= 0 else end
        piece = text[start:end].strip()
        if piece:
            pieces.append(piece)
        start = end
    return pieces


class Passages:
    """Passages on disk, to be used in a `with` statement: added one by one, then read in any order.

    Args:
        folder: for the scratch files.
        seed: of the random order.
    """

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.folder = folder
        self._seed = seed.to_bytes(8)
        self._texts = open(folder / "passages.jsonl", "w+b")  # noqa: SIM115
        self._ids = open(folder / "passages.ids", "w+b")  # noqa: SIM115
        self._starts, self._id_starts = array("Q"), array("Q")
        self._seen: set[bytes] = set()
        self.tokens = array("I")
        """Of each passage."""
        self.documents = array("I")
        """The number of the document that each passage is of."""
        self.content = array("Q")
        """A hash of each passage: an order that does not depend on that of the files."""
        self.draw = array("Q")
        """A random number of each passage, by the seed."""
        self.overlapping = bytearray()
        """1: it shares words with a question."""

    def __enter__(self) -> Passages:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._texts.close()
        self._ids.close()

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self, passage: Passage, *, source: str, document: int, overlapping: bool = False
    ) -> bool:
        """Takes in a passage; False where an equal one is there already."""
        digest = hashlib.blake2b(
            _encoded(" ".join(passage.text.casefold().split())), digest_size=16
        ).digest()
        if digest in self._seen:
            return False
        self._seen.add(digest)
        self._starts.append(self._texts.tell())
        self._id_starts.append(self._ids.tell())
        line = (
            _encoded(json.dumps({"text": passage.text, "source": source}, ensure_ascii=False))
            + b"\n"
        )
        self._texts.write(line)
        self._ids.write(np.array(passage.ids, dtype="<u4").tobytes())
        self.tokens.append(len(passage.ids))
        self.documents.append(document)
        self.content.append(int.from_bytes(digest[:8]))
        self.draw.append(
            int.from_bytes(hashlib.blake2b(self._seed + digest, digest_size=8).digest())
        )
        self.overlapping.append(overlapping)
        return True

    def forget_texts(self) -> None:
        """Frees what tells equal passages apart: all are in."""
        self._seen.clear()

    def row(self, index: int) -> dict[str, str]:
        """`{"text", "source"}` of a passage."""
        self._texts.seek(self._starts[index])
        row: dict[str, str] = json.loads(self._texts.readline())
        return row

    def ids(self, index: int) -> list[int]:
        """Token ids of a passage."""
        self._ids.seek(self._id_starts[index])
        content = self._ids.read(4 * self.tokens[index])
        ids: list[int] = np.frombuffer(content, dtype="<u4").tolist()
        return ids


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a lone surrogate stands for no character
