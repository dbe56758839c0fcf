"""Anthropic's helpful and harmless conversations (Bai et al. 2022, arXiv:2204.05862): the replies that people
preferred, for supervised fine-tuning as the overtraining study does it (Overtrained Language Models, section 3.2).

A record has `chosen` and `rejected`, each a whole conversation as text with "\\n\\nHuman: " and "\\n\\nAssistant: "
before the turns; the chosen one is taken. Conversations that begin with the same turn stay on one side of a split: a
first turn comes with many continuations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.prepare.reading import Malformed, PreparedRow, Reading, Skipped, made_of, text_of

_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):(?: |$)", re.MULTILINE)
_ROLES = {"Human": "user", "Assistant": "assistant"}


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"messages"}`."""
    return made_of(reading, _made)


def _made(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
    parts = _TURN.split(text_of(record, "chosen"))
    if len(parts) < 3 or parts[0].strip():
        raise Malformed(f"expected a conversation that begins with 'Human: ', got {str(record['chosen'])[:60]!r}")
    messages = [
        {"role": _ROLES[speaker], "content": said.strip()}
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]
    if any(not message["content"] for message in messages):
        raise Skipped("an empty turn")
    if [m["role"] for m in messages] != [("user", "assistant")[place % 2] for place in range(len(messages))]:
        raise Skipped("turns that do not alternate")
    if messages[-1]["role"] == "user":
        raise Skipped("a conversation without an answer")
    yield PreparedRow(row={"messages": messages}, group=messages[0]["content"])
