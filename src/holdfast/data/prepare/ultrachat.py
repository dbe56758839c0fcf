"""UltraChat (Ding et al. 2023): conversations between two models, one of them in the user's place.

Two forms: the release's `{"id", "data": [user, assistant, user, ...]}`, and UltraChat 200k's (HuggingFaceH4)
`{"prompt", "messages"}`, where a message has a role and a content. A last turn of the user that nobody answers is left
out of its conversation, and counted. Conversations that begin with the same turn stay on one side of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.prepare.reading import Malformed, PreparedRow, Reading, Skipped, made_of

UNANSWERED = "a last turn of the user without an answer"


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"messages"}`, with `id` where there is one."""

    def convert(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
        messages = _messages(record)
        if any(not message["content"].strip() for message in messages):
            raise Skipped("an empty turn")
        if messages[-1]["role"] == "user":
            messages.pop()
            if not any(message["role"] == "assistant" for message in messages):
                raise Skipped("a conversation without an answer")
            reading.shortened[UNANSWERED] += 1
        name = record.get("id", record.get("prompt_id"))
        first = next(message["content"] for message in messages if message["role"] == "user")
        yield PreparedRow(row={"messages": messages}, group=first, notes={"id": str(name)} if name is not None else {})

    return made_of(reading, convert)


def _messages(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """The turns as messages that alternate between user and assistant, after at most one message of the system.

    Raises:
        Malformed: they are not of that kind.
    """
    turns = record.get("messages")
    if turns is None:
        data = record.get("data")
        if not isinstance(data, list) or not all(isinstance(turn, str) for turn in data):
            raise Malformed(
                f"no 'messages' and no 'data' with a list of texts (keys: {', '.join(list(record)[:8]) or 'none'})"
            )
        turns = [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(data)]
    if not isinstance(turns, list) or not turns:
        raise Malformed("the conversation holds no turns")
    messages = []
    for number, turn in enumerate(turns, 1):
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, Mapping) else (None, None)
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            raise Malformed(
                f"turn {number}: expected a role (system, user or assistant) and a content that is text, got "
                f"{str(turn)[:60]!r}"
            )
        messages.append({"role": str(role), "content": content})
    spoken = messages[1:] if messages[0]["role"] == "system" else messages
    wanted = [("user", "assistant")[place % 2] for place in range(len(spoken))]
    roles = [message["role"] for message in spoken]
    if not spoken or roles != wanted:
        raise Malformed(f"expected user and assistant in turn, got {', '.join(roles[:6]) or 'no turn of theirs'}")
    return messages
