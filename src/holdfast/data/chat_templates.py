"""What a chat template and a tokenizer make of rows, where it is not what the rows say.

Templates differ in the form of a tool's arguments that they take. They leave out thoughts of
earlier turns, tools, calls and whole roles that they do not know, and end a turn with a token that
need not be one of those that end a reply. None of this is an error to them. So rows are rendered
and looked at: `remarks` says what is not in the text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from holdfast.data.messages import BadRow, conversation_of, template_variables
from holdfast.printable import printable

_KEY, _VALUE = "holdfast_key", "holdfast_value"
_AS_JSON = re.compile(f'"{_KEY}"\\s*:\\s*"{_VALUE}"')
_REPLY = "holdfast reply"
_NO_WORDS = re.compile(r"\\.|[\W_]+")
"""What does not count when a text is looked for: escapes, white space, punctuation."""


def argument_form(tokenizer: Any) -> Literal["object", "text"] | None:
    """The form in which a chat template writes the arguments of a tool's call as JSON, where it
    takes one only; None where it takes both, or writes no JSON."""
    arguments = {_KEY: _VALUE}
    of_object, of_text = (
        _written_call(tokenizer, arguments),
        _written_call(tokenizer, json.dumps(arguments)),
    )
    takes_object = _KEY in of_object and f"'{_KEY}'" not in of_object
    takes_text = _AS_JSON.search(of_text) is not None
    if takes_object == takes_text:
        return None
    return "object" if takes_object else "text"


def _written_call(tokenizer: Any, arguments: Any) -> str:
    """A conversation with a tool's call as the template writes it; "" where it cannot."""
    call = {
        "id": "a1b2c3d4e",
        "type": "function",
        "function": {"name": "holdfast", "arguments": arguments},
    }
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    return _rendered(tokenizer, turns)


def _rendered(tokenizer: Any, messages: Any, **variables: Any) -> str:
    if not hasattr(tokenizer, "apply_chat_template"):
        return ""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **variables))
    except (
        Exception
    ) as error:  # what templates raise has no common base; whoever prepares the rows says it
        if isinstance(error.__cause__, (TimeoutError, MemoryError)):
            raise
        return ""


def added_bos(tokenizer: Any) -> str | None:
    """The text of the BOS token that a tokenizer itself puts before every text; None where it puts
    none."""
    words = getattr(tokenizer, "tokenizer", tokenizer)
    bos = getattr(words, "bos_token_id", None)
    if bos is None or list(words("a")["input_ids"])[:1] != [bos]:
        return None
    return str(words.bos_token)


def with_one_bos(ids: list[int], tokenizer: Any) -> list[int]:
    """Token ids of a text that the tokenizer began with BOS, without the one that the text itself
    begins with."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def tokens_of_messages(
    messages: Sequence[Mapping[str, Any]], trained: Sequence[bool], tokenizer: Any, **variables: Any
) -> dict[str, list[int]]:
    """A conversation as `input_ids` and `labels`, where only some of its messages are trained:
    their content, and the special token behind it.

    A message is found in the text by writing the conversation once more with another content in its
    place: what stands before and behind that is not the message's.

    Args:
        messages: of one row.
        trained: whether each of them is.
        tokenizer: a fast one, with a chat template.
        variables: what the template reads beside messages.

    Raises:
        BadRow: the template writes the rest of the conversation otherwise with another content in a
            message's place.
    """
    text = str(tokenizer.apply_chat_template(list(messages), tokenize=False, **variables))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, special = (
        list(encoded["input_ids"]),
        set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder),
    )
    labels = [-100] * len(ids)
    for number, flag in enumerate(trained):
        if not flag:
            continue
        begin, end = _stretch(messages, number, text, tokenizer, **variables)
        behind = None
        for index, (first, last) in enumerate(encoded["offset_mapping"]):
            if begin < last and first < end:
                labels[index] = ids[index]
                behind = index + 1
        if behind is not None and behind < len(ids) and ids[behind] in special:
            labels[behind] = ids[behind]
    return {"input_ids": ids, "labels": labels}


def _stretch(
    messages: Sequence[Mapping[str, Any]], number: int, text: str, tokenizer: Any, **variables: Any
) -> tuple[int, int]:
    """Where the content of a message, by its number from 0, begins and ends in the text of a
    conversation."""
    other = list(messages)
    other[number] = {"role": messages[number]["role"], "content": _REPLY}
    before, reply, behind = _rendered(tokenizer, other, **variables).partition(_REPLY)
    # a template may begin an empty thought where there is none
    begin = common_prefix(before, text)
    end = len(text) - len(behind)
    earlier = _words(str(messages[number - 1]["content"])) if number else ""
    if not reply or not text.endswith(behind) or begin > end or earlier not in _words(text[:begin]):
        raise BadRow(
            f"if message {number + 1} changes, the chat template also changes other messages. So "
            "the tokens of this message cannot be told from those of the others (keys weight and "
            "train, rewritten_turns). Give rows of prompt and completion instead"
        )
    return begin, end


def end_of_turn(tokenizer: Any) -> int | None:
    """The token with which the chat template ends a turn of the assistant: the first special or
    added one behind its words; None where there is none."""
    words = getattr(tokenizer, "tokenizer", tokenizer)
    for token in _behind_a_reply(tokenizer) or ():
        if token in words.all_special_ids or token in words.added_tokens_decoder:
            return token
    return None


def reply_header(tokenizer: Any) -> str:
    """What a chat template writes before the assistant's words, where it takes no notice of
    `add_generation_prompt`; "" where a prompt ends with it."""
    ask, reply = {"role": "user", "content": "x"}, {"role": "assistant", "content": _REPLY}
    prompt = _rendered(tokenizer, [ask])
    header, words, _ = _rendered(tokenizer, [ask, reply]).removeprefix(prompt).partition(_REPLY)
    asks = prompt != _rendered(tokenizer, [ask], add_generation_prompt=True)
    return header if words and header.strip() and not asks else ""


def _behind_a_reply(tokenizer: Any) -> list[int] | None:
    """Tokens that the chat template writes behind the assistant's words at the end of a
    conversation; None where it does not write them."""
    text = _rendered(
        tokenizer, [{"role": "user", "content": "x"}, {"role": "assistant", "content": _REPLY}]
    )
    if _REPLY not in text:
        return None
    words = getattr(tokenizer, "tokenizer", tokenizer)
    return list(words(text.rpartition(_REPLY)[2], add_special_tokens=False)["input_ids"])


def remark_on_end(tokenizer: Any, ends: Collection[int]) -> str | None:
    """A sentence where the token with which the chat template ends a turn of the assistant ends no
    reply.

    Args:
        tokenizer: with a chat template, or a processor with one.
        ends: token ids that end a reply when the model writes.
    """
    ids = _behind_a_reply(tokenizer)
    if ids is None or any(token in ends for token in ids):
        return None
    words, token = getattr(tokenizer, "tokenizer", tokenizer), end_of_turn(tokenizer)
    known = " or ".join(printable(words.decode([end])) for end in sorted(ends))
    if token is None:
        return (
            f"The chat template writes no end-of-turn token ({known}) after the assistant's "
            "turns, so the model is not trained to end its replies. Use a template that writes "
            "one (chat_template_path)."
        )
    end = printable(words.decode([token]))
    return (
        f"The chat template ends the assistant's turns with {end}, but generation stops at "
        f"{known}: the model learns to write {end}, and generation does not stop there. Set "
        f"eos_token: {end}."
    )


def remarks(rows: Iterable[Mapping[str, Any]], tokenizer: Any) -> list[str]:
    """Sentences on what the chat template leaves out of conversations; none for rows of text.

    Args:
        rows: in the columns that `formats.standardise` gives; all of them are rendered.
        tokenizer: with a chat template.
    """
    looked, lost, affected, unlike = 0, Counter[str](), Counter[str](), list[str]()
    for row in rows:
        messages = conversation_of(row)
        if not messages:
            continue
        variables = template_variables(row)
        text = _rendered(tokenizer, messages, **variables)
        if not text:
            continue
        looked += 1
        of_row = _left_out(messages, variables["tools"], _words(text))
        lost += of_row
        affected.update(of_row.keys())
        if row.get("prompt"):
            prompt = _rendered(tokenizer, row["prompt"], add_generation_prompt=True, **variables)
            if not text.startswith(prompt):
                unlike.append(prompt[common_prefix(prompt, text) :])
    of = f"of {looked:,} rows that were checked" if looked != 1 else "of the row that was checked"
    sentences = []
    if lost:
        counts = []
        for what, count in lost.items():
            rows_affected = f"{affected[what]:,} row{'s' * (affected[what] != 1)}"
            counts.append(f"{what} ({count:,} in {rows_affected})")
        sentences.append(f"The chat template leaves out {of}: {', '.join(counts)}.")
    if unlike:
        sentences.append(
            f"In {len(unlike):,} {of}, the chat template ends the prompt with "
            f"'{printable(unlike[0][:80])}' when the model generates, but not in training, where an "
            "answer follows."
        )
    return sentences


def common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many characters or tokens two sequences begin with alike."""
    for number, pair in enumerate(zip(one, other, strict=False)):
        if pair[0] != pair[1]:
            return number
    return min(len(one), len(other))


def _left_out(messages: list[Mapping[str, Any]], tools: Any, text: str) -> Counter[str]:
    """What of a conversation is not in its text.

    Args:
        messages: of one row.
        tools: beside them.
        text: as `_words` gives it.
    """
    lost = Counter[str]()
    for message in messages:
        role, content = message["role"], message["content"]
        if isinstance(content, str) and not _is_in(content, text):
            _, closed, answer = content.rpartition("</think>")
            thought = role == "assistant" and closed and _is_in(answer, text)
            lost["thoughts of the assistant" if thought else f"contents of role {role}"] += 1
        for key in ("reasoning_content", "thinking"):
            if not _is_in(str(message.get(key) or ""), text):
                lost["thoughts of the assistant"] += 1
        for call in message.get("tool_calls") or ():
            lost["tool calls"] += _words(_function_name(call)) not in text
    for tool in tools if isinstance(tools, list) else ():
        lost["tools"] += _words(_function_name(tool)) not in text
    return +lost


def _is_in(content: str, text: str) -> bool:
    """Whether a content is in a text of `_words`, as it is or as JSON."""
    forms = (content, json.dumps(content, ensure_ascii=False)[1:-1], json.dumps(content)[1:-1])
    return any(_words(form) in text for form in forms)


def _words(text: str) -> str:
    """Letters and digits alone."""
    return _NO_WORDS.sub("", text)


def _function_name(value: Any) -> str:
    """Of a tool, or of a call of one."""
    function = value.get("function", value) if isinstance(value, Mapping) else None
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""
