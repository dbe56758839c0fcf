"""Perplexities of passages, batch by batch, kept in a ledger the moment they are there.

    nats_per_token = - (1 / T) sum_t log p(x_t | BOS, x_<t)             perplexity = exp(nats_per_token)

over the T tokens of a passage; without a BOS the first token has nothing to be predicted from, and
T is one less.

Passages of like length make a batch, the longest first: hardly anything is padded, and memory is
short at once or never. Batches depend on the passages and on nothing else, so that a killed ranking
goes on with the batches that are left and comes to the same numbers to the last bit, on the same
machine. Scores are kept under a hash of what scored and of the token ids: a later request with
another budget finds them all, one with other files those of its own passages.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.select.passages import Passages
from holdfast.errors import DataError, NotFinite
from holdfast.support.files import fingerprint
from holdfast.support.ledger import Ledger, Row
from holdfast.support.progress import progress

Score = Callable[[Sequence[Sequence[int]]], Sequence[float]]
"""Token ids of passages, without BOS, to nats a token of each."""
_DIGITS = 6
"""Of a score: as many as float32 is good for."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """What ranks passages."""

    tokenizer: Any
    """A fast one, of transformers."""
    score: Score
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What the scores depend on: a model's hash, a dtype. Scores of another identity are not taken
    for these."""
    bos: bool = False
    """Whether a BOS stands before every passage, so that all its tokens are predicted."""
    batch_tokens: int = 2048
    """Tokens scored at once, at least a passage."""


def score_passages(passages: Passages, scorer: Scorer, ledger: Path) -> np.ndarray:
    """Nats a token of the passages, [len(passages)] float64.

    Args:
        passages: on disk.
        scorer: what scores.
        ledger: scores of earlier sessions, and of this one.

    Raises:
        NotFinite: the model gives a passage NaN or infinity; names the passage.
        FolderBusy: another process writes the ledger.
        DataError: the ledger is none.
    """
    scores = np.full(len(passages), np.nan)
    identity = fingerprint(scorer.identity).encode()
    known: dict[bytes, float] = {}

    def remember(row: Row) -> Row:
        try:
            known.update(zip(map(bytes.fromhex, row["passages"]), row["nats"], strict=True))
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{ledger}: expected scores of passages, got a row with {', '.join(row)}. Move "
                "or delete the file."
            ) from None
        return {}

    with (
        Ledger(ledger, keep=remember) as book,
        progress("Scoring passages", total=sum(passages.tokens)) as advance,
    ):
        book.keep = lambda row: {}
        for batch in batches(passages, scorer.batch_tokens - scorer.bos):
            ids = list(map(passages.ids, batch))
            keys = [_key(identity, passage) for passage in ids]
            left = [number for number, key in enumerate(keys) if key not in known]
            scored = _scored(scorer, passages, [batch[number] for number in left])
            if left:
                names = [keys[number].hex() for number in left]
                key = hashlib.blake2b("".join(names).encode(), digest_size=16).hexdigest()
                book.add([{"key": key, "passages": names, "nats": scored}])
            of_batch = np.array([known.get(key, np.nan) for key in keys])
            of_batch[left] = scored
            scores[batch] = of_batch
            advance(sum(map(len, ids)))
    return scores


def _scored(scorer: Scorer, passages: Passages, indices: Sequence[int]) -> list[float]:
    """What the model gives passages, rounded.

    Raises:
        NotFinite: NaN or infinity; names the passage.
    """
    if not indices:
        return []
    scores = [
        round(float(score), _DIGITS) for score in scorer.score(list(map(passages.ids, indices)))
    ]
    for index, score in zip(indices, scores, strict=True):
        if not math.isfinite(score):
            raise _not_finite(score, index, passages)
    return scores


def batches(passages: Passages, tokens: int) -> Iterator[list[int]]:
    """Indices batch by batch, the longest passages first: as many as fit into `tokens`, each
    counted as long as the longest of them."""
    order = np.lexsort((np.array(passages.content), -np.array(passages.tokens, dtype=np.int64)))
    start = 0
    while start < len(order):
        size = max(1, tokens // passages.tokens[order[start]])
        yield order[start : start + size].tolist()
        start += size


def _key(identity: bytes, ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("Q", ids).tobytes(), key=identity, digest_size=16).digest()


def _not_finite(value: float, index: int, passages: Passages) -> NotFinite:
    row = passages.row(index)
    return NotFinite(
        f"The model gives a passage of {row['source']} ({passages.tokens[index]} tokens, "
        f"beginning with {row['text'][:60]!r}) a log-likelihood of {value}, which cannot be "
        "ranked. Check the model's weights, or use --dtype float32."
    )
