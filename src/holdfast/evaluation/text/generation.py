"""Greedy generation in batches: what a model says after prompts, whatever its checkpoint says about sampling.

Prompts of similar length go together, the longest first, so that what does not fit into memory shows at once and the
remaining time is never too low.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.generation import continued


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What a model wrote after one prompt."""

    index: int
    """Of the prompt."""
    ids: list[int]
    """Tokens up to the end token, without it."""
    cut: bool
    """Whether there was no end token within the tokens that it was given."""
    broken: bool = False
    """Whether logits that it, or another of its batch, was chosen by were NaN or plus infinity."""


BROKEN = "the logits that replies were chosen by are NaN or infinite."
"""What an entry with such replies has failed by."""


def greedy(
    model: Any,
    tokenizer: Any,
    encoded: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    window: int | None = None,
) -> Iterator[list[Continuation]]:
    """Greedy continuations, batch by batch.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        encoded: token ids of the prompts, none empty.
        max_new_tokens: tokens of a continuation at most.
        batch_size: prompts a forward pass; continuations depend on it in the last digits, hence in rare words.
        window: the model's context in tokens, which prompt and continuation share; None: there is room.

    Raises:
        HoldfastError: the accelerator's memory does not suffice.
    """
    from holdfast.evaluation.modes import evaluation_mode

    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    with evaluation_mode(model):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            room = max_new_tokens if window is None else min(max_new_tokens, window - len(encoded[batch[0]]))
            found = continued(model, tokenizer, [encoded[i] for i in batch], max_new_tokens=room)
            yield [
                Continuation(index=i, ids=one.ids[:-1] if one.ended else one.ids, cut=not one.ended, broken=one.broken)
                for i, one in zip(batch, found, strict=True)
            ]
