"""Which passages are taken: those of lowest perplexity up to a budget, to restore a model's text
pattern without teaching it anything new; and a random sample that shares nothing with them, to see
whether the pattern is back (Pattern Shifting or Knowledge Losing, section 3).

The probing sample is drawn first, from all passages: it stands for the corpus, not for what is left
of it.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from holdfast.data.select.passages import Passages
from holdfast.errors import DataError

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def draw_probing(passages: Passages, count: int) -> np.ndarray:
    """Indices of a random sample of the passages, in random order, [count] int64.

    Raises:
        DataError: there are fewer.
    """
    if len(passages) < count:
        raise DataError(
            f"Expected {count:,} probing passages, but the corpus has only {len(passages):,}: "
            f"{count - len(passages):,} are missing. Lower --probing, or give more text."
        )
    order = np.lexsort((np.array(passages.content), np.array(passages.draw)))
    return order[:count]


def candidates(
    passages: Passages,
    probing: np.ndarray,
    *,
    budget: int,
    disjoint: Literal["documents", "passages"],
) -> np.ndarray:
    """Indices of the passages that may restore, [n] int64.

    Raises:
        DataError: they have fewer tokens than the budget, or each has more; says how many are
            missing.
    """
    tokens, documents = np.array(passages.tokens, dtype=np.int64), np.array(passages.documents)
    left = np.setdiff1d(np.arange(len(passages)), probing)
    probed = int(tokens[probing].sum())
    beside = 0
    if disjoint == "documents":
        shared = np.isin(documents[left], documents[probing])
        beside = int(tokens[left[shared]].sum())
        left = left[~shared]
    available = int(tokens[left].sum())
    if available < budget:
        otherwise = (
            "let the sets share documents (disjoint: passages)"
            if beside
            else "lower minimum_tokens"
        )
        elsewhere = f"{probed:,} are in the probing set, {beside:,} are from the same documents"
        raise DataError(
            f"Expected {budget:,} tokens of text for the restoring set, but the corpus has only "
            f"{available:,} in {len(left):,} passages: {budget - available:,} are missing "
            f"({elsewhere}). Lower --tokens or --probing, give more text, or {otherwise}."
        )
    shortest = int(tokens[left].min())
    if budget < shortest:
        raise DataError(
            f"No passage fits into {budget:,} tokens: the shortest has {shortest:,}. Raise the "
            "budget, or lower minimum_tokens."
        )
    return left


def choose_restoring(
    passages: Passages, left: np.ndarray, nats: np.ndarray, *, budget: int
) -> np.ndarray:
    """Indices of the passages of lowest perplexity out of `left`, low to high, as long as the next
    one fits into the budget.

    Raises:
        DataError: the first one is larger than the budget.
    """
    order = left[np.lexsort((np.array(passages.content)[left], nats[left]))]
    total = np.cumsum(np.array(passages.tokens, dtype=np.int64)[order])
    count = int(np.searchsorted(total, budget, side="right"))
    if not count:
        raise DataError(
            f"No passage is selected: the passage of lowest perplexity has {total[0]:,} tokens, "
            f"more than the budget of {budget:,}. Raise the budget."
        )
    return order[:count]


def described(
    passages: Passages, indices: np.ndarray, nats: np.ndarray, *, bos: bool
) -> dict[str, Any]:
    """`{"passages", "tokens", "documents", "nats_per_token", "quantiles", "overlapping"}` of some
    passages; the mean is over all predicted tokens."""
    tokens = np.array(passages.tokens, dtype=np.int64)[indices]
    overlapping = np.frombuffer(passages.overlapping, dtype=np.uint8)[indices]
    mean, quantiles = None, {}
    if len(indices):
        predicted = tokens - (not bos)
        mean = round(float((nats[indices] * predicted).sum() / predicted.sum()), 6)
        for share in QUANTILES:
            quantiles[f"{share:g}"] = float(
                np.quantile(nats[indices], share, method="inverted_cdf")
            )
    return {
        "passages": len(indices),
        "tokens": int(tokens.sum()),
        "documents": len(np.unique(np.array(passages.documents)[indices])),
        "overlapping": int(overlapping.sum()),
        "nats_per_token": mean,
        "quantiles": quantiles,
    }
