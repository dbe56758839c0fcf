"""Greedy replies of a model, in memory or behind a server: what `instructions` and `win_rate`
entries judge.

A batch is kept on disk as soon as it is written, so an interruption costs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ModelError
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.measures import Subject
from holdfast.evaluation.remarks import remarks_on_cut
from holdfast.evaluation.served import ServedModel, in_groups
from holdfast.evaluation.text.perplexity import resolve_window
from holdfast.evaluation.text.thoughts import open_thought, reply_text, without_thought
from holdfast.generation import BROKEN, continued, end_tokens


@dataclass(frozen=True, kw_only=True)
class Replies:
    """What a model said to prompts."""

    texts: list[str]
    """One a prompt, in order."""
    broken: str
    """`Outcome.broken`."""
    notes: list[str]


def reply(on: Subject, encoded: Sequence[Sequence[int]], longest: int, *, chat: bool) -> Replies:
    """Greedy replies without their thoughts; a prompt that leaves no room for one loses its
    beginning.

    Args:
        on: the model.
        encoded: token ids of the prompts, none empty.
        longest: tokens of a reply at most.
        chat: as of `generate`.

    Raises:
        ModelError: the context has no room for so long a reply, or the tokenizer has no end of
            sequence.
    """
    window, _ = resolve_window(on.model)
    if longest >= window:
        raise ModelError(
            f"max_new_tokens: expected fewer than the model's context of {window} tokens, got "
            f"{longest}; the prompt needs room too. Lower it."
        )
    room = window - longest
    texts, broken = generate(
        on, [ids[-room:] for ids in encoded], max_new_tokens=longest, chat=chat
    )
    notes = remarks_on_cut(sum(len(ids) > room for ids in encoded), len(encoded), room)
    if chat and open_thought(on.tokenizer) and (unfinished := texts.count("")):
        notes.append(
            f"{unfinished} of {len(texts)} replies are thoughts without an end: {longest} tokens "
            "were allowed."
        )
    return Replies(texts=texts, broken=BROKEN if broken else "", notes=notes)


def generate(
    on: Subject, encoded: Sequence[Sequence[int]], *, max_new_tokens: int, chat: bool = True
) -> tuple[list[str], bool]:
    """Greedy continuations as text, special tokens and thoughts left out; each ends before the
    model's end of sequence, or after `max_new_tokens`. And whether some of them were chosen by
    logits that are not finite.

    Args:
        on: the model; the batch size is the plan's, and prompts of similar length share a batch.
        encoded: token ids of the prompts, none empty.
        max_new_tokens: tokens at most.
        chat: whether the prompts were written by the chat template, which may open a thought.

    Raises:
        ModelError: the tokenizer has no end of sequence.
        HoldfastError: the accelerator's memory does not suffice.
    """
    if not end_tokens(on.model, on.tokenizer):
        raise ModelError(
            "Expected a tokenizer with an end of sequence (eos_token), where replies end; this "
            "one has none. Set one."
        )

    opened = open_thought(on.tokenizer) if chat else None

    def replies(batch: Sequence[int]) -> list[Any]:
        """Of prompts that share a forward pass; {"broken": text} where it says nothing."""
        prompts = [encoded[i] for i in batch]
        if isinstance(on.model, ServedModel):
            texts = on.model.completions(prompts, [{"max_tokens": max_new_tokens}] * len(prompts))
            return [without_thought(text, opened) for text in texts]
        with evaluation_mode(on.model):
            continuations = continued(
                on.model, on.tokenizer, prompts, max_new_tokens=max_new_tokens
            )
        texts = []
        for continuation in continuations:
            ids = continuation.ids[:-1] if continuation.ended else continuation.ids
            texts.append(reply_text(on.tokenizer, ids, opened))
        if any(continuation.broken for continuation in continuations):
            return [{"broken": text} for text in texts]
        return texts

    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    size = on.model.at_once if isinstance(on.model, ServedModel) else on.plan.batch_size
    batches = list(in_groups(order, size))
    answers = on.partial.resumed(
        "reply", zip(batches, batches, strict=True), replies, total=len(encoded), report=on.report
    )
    return unmark_broken(answers)


def unmark_broken(answers: Sequence[Any]) -> tuple[list[str], bool]:
    """Texts of which some are {"broken": text}, and whether there are such."""
    texts = [answer["broken"] if isinstance(answer, dict) else answer for answer in answers]
    return texts, any(isinstance(answer, dict) for answer in answers)
