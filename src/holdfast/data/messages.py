"""What is known of one message of a conversation, whatever its keys are called: which of its values
chat templates read, whether it is to be trained, what its content says, and in which form it calls
tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Row = Mapping[str, Any]
Convert = Callable[[Row], dict[str, Any]]

TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")
"""Columns beside messages that a chat template reads."""
MESSAGE_EXTRAS = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")
"""Further keys of a message that chat templates read; kept where they are not null. Anything else
in a message is dropped, and counted by `unread`."""
TRAINED_KEYS = ("train", "weight", "loss")
"""Keys of a message that say whether it is to be trained: false and 0 where it is not. A `loss`
that is a number is a figure, and says nothing."""
CALL_ROLE = "function_call"
"""LLaMA-Factory's role of a message whose content is a call of a tool, or a list of them."""
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are text."""

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (float, "a fraction"),
    (int, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "an object"),
)


class BadRow(Exception):
    """A row cannot be used; the text says why, in a few words."""


def describe(value: Any) -> str:
    """What kind of value something is, for messages: "null", "a list", ..."""
    if value is None:
        return "null"
    for kind, description in _KINDS:
        if isinstance(value, kind):
            return description
    return f"a {type(value).__name__}"


def conversation_of(row: Row) -> list[Any]:
    """All messages of a row in the columns of TRL: `messages`, or those of prompt and completion;
    empty for text."""
    if row.get("messages"):
        return list(row["messages"])
    prompt, completion = row.get("prompt") or [], row.get("completion") or []
    if isinstance(prompt, str) or isinstance(completion, str):
        return []
    return [*prompt, *completion]


# -------------------------------------------------------------------------------- which are trained


def says_what_is_trained(messages: Any) -> bool:
    """Whether a message says of itself that it is not to be trained, or in part."""
    for message in messages or ():
        if isinstance(message, Mapping) and any(
            flag is not True and flag != 1 for flag in _trained_flags(message)
        ):
            return True
    return False


def says_trained(key: str, value: Any) -> bool:
    """Whether a key of a message, with its value, says whether the message is to be trained."""
    return key in TRAINED_KEYS and value is not None and (key != "loss" or isinstance(value, bool))


def trained_messages(messages: Sequence[Row], converted: Sequence[Row]) -> list[bool]:
    """Of the messages that a converter made of a row's, which are to be trained: those that say so,
    and those of the assistant that say nothing.

    Args:
        messages: as the row has them.
        converted: the same, perhaps behind a system prompt.

    Raises:
        BadRow: a weight between 0 and 1, or nothing to train.
    """
    added = len(converted) - len(messages)
    trained = [False] * added
    for number, (message, turn) in enumerate(zip(messages, converted[added:], strict=True), 1):
        flags = _trained_flags(message)
        for flag in flags:
            if flag not in (0, 1):
                raise BadRow(f"message {number} has the weight {flag!r}, expected 0 or 1")
        trained.append(all(flags) if flags else turn["role"] == "assistant")
    if not any(trained):
        raise BadRow("all of its messages are excluded from training by their keys weight or train")
    return trained


def _trained_flags(message: Row) -> list[Any]:
    return [value for key, value in message.items() if says_trained(key, value)]


# ------------------------------------------------------------------------------------------ content


def text_of_part(part: Any, where: str) -> str:
    """The text of one part of a message's content.

    Raises:
        BadRow: it is no text.
    """
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    description = describe(part) if kind is None else f"a part of type {kind!r}"
    raise BadRow(
        f"{where}: expected parts of type text, got {description}; images are for vision-language "
        "models"
    )


def without_nulls(value: Any) -> Any:
    """A value whose objects have lost the keys that are null. Arrow gives each object of a column
    the keys of all of them, so where it stored the rows, a null is a key that the row did not
    have."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


# -------------------------------------------------------------------------------------------- tools


def read_json(value: Any, where: str) -> Any:
    """A value, or what the JSON text of it says.

    Raises:
        BadRow: text that is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise BadRow(f"{where}: expected JSON, got {value[:40]!r} ({error})") from None


def tool_calls_of(message: Row, role: Any, content: Any, where: str) -> Any:
    """The calls of tools that a message makes in the form of chat templates; None where it makes
    none.

    Args:
        message: of a row.
        role: who speaks, as the message has it.
        content: what is said.
        where: the message, for errors.

    Raises:
        BadRow: text that is no JSON.
    """
    if str(role).lower() == CALL_ROLE:
        calls = read_json(content, where)
        return [_call_of(call) for call in (calls if isinstance(calls, list) else [calls])]
    if message.get("tool_calls") is not None:
        return (
            read_json(message["tool_calls"], where)
            if message["tool_calls"]
            else message["tool_calls"]
        )
    if message.get("function_call") is not None:  # OpenAI's older form
        return [_call_of(read_json(message["function_call"], where))]
    return None


def _call_of(function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


def with_arguments(
    messages: Sequence[Row], form: Literal["object", "text"]
) -> list[dict[str, Any]]:
    """Messages whose calls of tools have their arguments in one form: objects, or JSON text of
    them.

    Raises:
        BadRow: text that is no JSON.
    """
    converted = []
    for message in messages:
        calls = message.get("tool_calls")
        in_form = {"tool_calls": [_with_arguments(call, form) for call in calls]} if calls else {}
        converted.append({**message, **in_form})
    return converted


def _with_arguments(call: Any, form: Literal["object", "text"]) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _with_arguments(call["function"], form)}
    arguments = call.get("arguments")
    if form == "object" and isinstance(arguments, str):
        return {
            **call,
            "arguments": read_json(arguments.strip() or "{}", f"the call of {call.get('name')}"),
        }
    if form == "text" and isinstance(arguments, Mapping):
        return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return call


def template_value(row: Row, column: str) -> Any:
    """What a chat template is given of one of `TEMPLATE_COLUMNS`; tools as JSON text stay text.

    Raises:
        BadRow: tools that are no JSON, or variables that are no object.
    """
    value = row[column]
    if column == "tools":
        if isinstance(value, str):
            read_json(value.strip() or "[]", "'tools'")
        return value or None
    if value is not None and not isinstance(value, Mapping):
        raise BadRow(f"'{column}' holds {describe(value)}, expected an object")
    return value or {}


def template_variables(row: Row) -> dict[str, Any]:
    """What `apply_chat_template` is given beside a row's messages, as TRL gives it when it
    trains."""
    tools = row.get("tools")
    return {
        "tools": json.loads(tools) if isinstance(tools, str) else tools,
        **(row.get("chat_template_kwargs") or {}),
    }
