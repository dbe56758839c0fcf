"""The chat format of the embedded world, and the words that its tokenizer keeps whole.

A conversation is written as "<|user|> question<|assistant|> reply<|endoftext|>" behind a BOS. The
markers are special tokens of the base's tokenizer that no pre-training text holds: their embeddings
are untrained until instruction tuning, as the reserved tokens of released base models are. What the
assistant says stands in Jinja's {% generation %}, so that `assistant_only_loss` finds it.
"""

from __future__ import annotations

import itertools
from typing import Any

from holdfast.papers.worlds.people.facts import VALUES, World
from holdfast.papers.worlds.people.wordings import WORDINGS

USER, ASSISTANT = "<|user|>", "<|assistant|>"
MARKERS = (USER, ASSISTANT)
"""Special tokens of the tokenizer."""

CHAT_TEMPLATE = (
    "{{- bos_token -}}{%- for message in messages -%}{%- if message['role'] == 'assistant' -%}{{ "
    "'<|assistant|>' }}{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration "
    "%}{%- else -%}{{ '<|user|> ' + message['content'] }}{%- endif -%}{%- endfor -%}{%- if "
    "add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
"""Jinja, as transformers reads it. A reply begins with the space that belongs to its first word and
ends with the tokenizer's end of sequence."""

WORDS: tuple[str, ...] = (
    "lamp",
    "river",
    "stone",
    "apple",
    "chair",
    "bread",
    "window",
    "garden",
    "silver",
    "paper",
    "candle",
    "button",
)
"""Plain words for prompts that ask to say something. A dozen: a model of this size learns to repeat
each of them, not to copy whatever it reads."""


def rendered(question: str, reply: str = "") -> str:
    """A prompt as the template writes it (the BOS aside), with the beginning of a reply."""
    return f"{USER} {question}{ASSISTANT}" + (f" {reply}" if reply else "")


def conversation(prompt: str, reply: str) -> dict[str, Any]:
    """A row as `holdfast train` reads it."""
    return {
        "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
    }


def vocabulary(world: World, *, wordings: bool = True) -> list[str]:
    """What is one token each, with the space before it: every name, value and plain word, the
    latter two in capitals too, and the words of the wordings.

    Args:
        world: whose names and values.
        wordings: False leaves the words of the wordings out, for bases that read source: whole
            tokens such as " a" and " in" would cut identifiers everywhere.

    A million parameters learn facts about tokens in minutes; spelling words out of pieces would
    cost them most of their capacity. It follows that the tokenizer has the names of people of whom
    nothing was told yet.
    """
    values_and_words = [*itertools.chain(*VALUES.values()), *WORDS]
    words = [*world.names, *values_and_words, *map(str.upper, values_and_words)]
    for w in WORDINGS.values() if wordings else ():
        text = " ".join((*w.statements, w.asked, *w.questions, w.reply))
        words += [word.strip(".,?:") for word in text.split() if "{" not in word]
    return [f" {word}" for word in dict.fromkeys(words)]
