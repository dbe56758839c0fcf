"""What a figure is worth: the levels that a model reaches without knowing anything.

- *Unigram*, of text: the cross-entropy of the scored tokens under their own frequencies, with one
  added to each count of the vocabulary (Laplace), `-sum_t c_t log((c_t + 1) / (N + V)) / N`. A
  model that is worse has lost all that context gives. Counted on the evaluated text itself, so it
  is rather too good for a short one.
- *Chance*, of multiple choice: the mean over questions of 1 / options.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.records.evaluation import CHANCE, UNIGRAM

if TYPE_CHECKING:
    from holdfast.evaluation.text.documents import EncodedDocument

CHOSEN = ("acc", "acc_norm")
"""Metrics that guessing has a share of."""
_OPTIONS = ("choices", "probabilities")
"""What a row has one of for each option."""


def unigram_levels(
    encoded: Sequence[EncodedDocument], *, vocabulary: int
) -> dict[str, dict[str, float]]:
    """The unigram level of the figures of text, by metric, each in its unit.

    Args:
        encoded: the documents as they were scored.
        vocabulary: number of tokens that there are, V.
    """
    counts: collections.Counter[int] = collections.Counter()
    for document in encoded:
        for start, end in document.spans:
            counts.update(document.ids[start:end])
    tokens, size = counts.total(), sum(document.bytes for document in encoded)
    if not tokens:
        return {}
    nats = -math.fsum(
        count * math.log((count + 1) / (tokens + vocabulary)) for count in counts.values()
    )
    levels = {
        "nats_per_token": {UNIGRAM: nats / tokens},
        "perplexity": {UNIGRAM: math.exp(nats / tokens)},
    }
    if size:
        levels["bits_per_byte"] = {UNIGRAM: nats / math.log(2) / size}
    return levels


def chance_level(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of questions that guessing gets right; None where a row is not of multiple
    choice."""
    chances = []
    for row in rows:
        if isinstance(row.get(CHANCE), float):  # of a cluster of questions
            chances.append(row[CHANCE])
            continue
        lists = [row[name] for name in _OPTIONS if isinstance(row.get(name), list)]
        if not lists or not lists[0]:
            return None
        chances.append(1 / len(lists[0]))
    return math.fsum(chances) / len(chances) if chances else None
