"""Greedy replies of a model, in memory or behind a server: what `instructions`, `behaviour` and
`win_rate` entries judge.

A batch is kept on disk as soon as it is written, so an interruption costs one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ModelError
from holdfast.evaluation.eval_mode import evaluation_mode
from holdfast.evaluation.measures import Subject
from holdfast.evaluation.remarks import remarks_on_cut
from holdfast.evaluation.served import ServedModel, in_groups
from holdfast.evaluation.text.perplexity import resolve_window
from holdfast.evaluation.text.thoughts import (
    Marks,
    open_thought,
    reply_text,
    state_of_thought,
    without_thought,
)
from holdfast.generation import BROKEN, continued, end_tokens
from holdfast.support.completions import finished


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a model said to one prompt."""

    text: str
    """Without special tokens and without its thought; empty where that has no end."""
    tokens: int
    """All that were written, those of the thought too; the end token is none. Of a server: those of
    the text that it gave."""
    ended: bool | None
    """Whether an end token came before the tokens ran out; None where a server does not say."""
    thought: str
    """"closed" or "open" where it begins with a thought, else empty."""
    broken: bool = False
    """Whether it was chosen by logits that are not finite."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """What a model said to prompts."""

    replies: list[Reply]
    """One a prompt, in order."""
    broken: str
    """`Outcome.broken`."""
    notes: list[str]

    @property
    def texts(self) -> list[str]:
        """Of the replies."""
        return [reply.text for reply in self.replies]


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
            f"{longest}. The prompt needs room, too. Lower max_new_tokens."
        )
    room = window - longest
    replies = generate(on, [ids[-room:] for ids in encoded], max_new_tokens=longest, chat=chat)
    notes = remarks_on_cut(sum(len(ids) > room for ids in encoded), len(encoded), room)
    unfinished = sum(reply.thought == "open" for reply in replies)
    if unfinished:
        notes.append(
            f"{unfinished} of {len(replies)} replies consist of a thought that did not end within "
            f"{longest} tokens."
        )
    broken = any(reply.broken for reply in replies)
    return Replies(replies=replies, broken=BROKEN if broken else "", notes=notes)


def generate(
    on: Subject, encoded: Sequence[Sequence[int]], *, max_new_tokens: int, chat: bool = True
) -> list[Reply]:
    """Greedy continuations; each ends before the model's end of sequence, or after
    `max_new_tokens`.

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
            "The tokenizer has no end-of-sequence token (eos_token). Models end their replies with "
            "this token. Set eos_token."
        )

    opened = open_thought(on.tokenizer) if chat else None

    def replies(batch: Sequence[int]) -> list[dict[str, Any]]:
        """Of prompts that share a forward pass."""
        prompts = [encoded[i] for i in batch]
        if isinstance(on.model, ServedModel):
            return _served_replies(on, prompts, max_new_tokens, opened)
        with evaluation_mode(on.model):
            continuations = continued(
                on.model, on.tokenizer, prompts, max_new_tokens=max_new_tokens
            )
        written = []
        for continuation in continuations:
            ids = continuation.ids[:-1] if continuation.ended else continuation.ids
            reply = Reply(
                text=reply_text(on.tokenizer, ids, opened),
                tokens=len(ids),
                ended=continuation.ended,
                thought=state_of_thought(on.tokenizer.decode(ids), opened),
                broken=continuation.broken,
            )
            written.append(dataclasses.asdict(reply))
        return written

    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    size = on.model.at_once if isinstance(on.model, ServedModel) else on.plan.batch_size
    batches = list(in_groups(order, size))
    answers = on.partial.resumed(
        "written", zip(batches, batches, strict=True), replies, total=len(encoded), report=on.report
    )
    return [Reply(**answer) for answer in answers]


def _served_replies(
    on: Subject, prompts: Sequence[Sequence[int]], max_new_tokens: int, opened: Marks | None
) -> list[dict[str, Any]]:
    written = []
    how = [{"max_tokens": max_new_tokens}] * len(prompts)
    for text, ended in on.model.completions(prompts, how, finished):
        reply = Reply(
            text=without_thought(text, opened),
            tokens=len(on.tokenizer(text, add_special_tokens=False)["input_ids"]),
            ended=ended,
            thought=state_of_thought(text, opened),
        )
        written.append(dataclasses.asdict(reply))
    return written


def unmark_broken(answers: Sequence[Any]) -> tuple[list[str], bool]:
    """Texts of which some are {"broken": text}, and whether there are such."""
    texts = [answer["broken"] if isinstance(answer, dict) else answer for answer in answers]
    return texts, any(isinstance(answer, dict) for answer in answers)
