"""From a document to token ids and the positions that are scored.

A document is one of
- a string: all of it is scored;
- a pair (prompt, completion), both strings or both lists of chat messages: the completion is scored
  given the prompt;
- a list of chat messages: what the assistant says is scored, each turn given all before it;
- either of the latter two as a `ChatDocument`, with what the chat template reads beside the
  messages (tools).

Conventions, the same for every model:
- Strings start with the tokenizer's BOS token where it has one, added exactly once whether or not
  the tokenizer adds it itself. Chat text is taken as the chat template renders it, which writes its
  own BOS. The first token of a text is scored only if a BOS stands before it: without one there is
  no distribution to score it by, and its bytes do not count either.
- The border between given and scored text is the longest common prefix of the token ids of the
  given text and of the
  whole: a token that straddles the border is scored. (Tokenising both sides separately would score
      a text that the
  tokenizer never produces.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.layouts import TEMPLATE_COLUMNS, Row
from holdfast.errors import DataError, ModelError
from holdfast.support.files import fingerprint

Messages = Sequence[Mapping[str, Any]]
Conversation = tuple[Messages, Messages] | Messages


@dataclass(frozen=True, kw_only=True)
class ChatDocument:
    """Chat messages of a row that has more for the chat template."""

    messages: Conversation
    """All of them, or prompt and completion."""
    tools: Any = None
    """The functions that the assistant may call, a list or JSON text of one."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The template's variables."""

    @property
    def variables(self) -> dict[str, Any]:
        """What `apply_chat_template` is given, as TRL gives it when it trains.

        Raises:
            DataError: tools that are no JSON.
        """
        try:
            tools = json.loads(self.tools) if isinstance(self.tools, str) else self.tools
        except ValueError as error:
            raise DataError(
                f"tools: expected a list of functions, or JSON text of such a list: {error}."
            ) from error
        return {"tools": tools, **self.chat_template_kwargs}


Document = str | tuple[str, str] | Conversation | ChatDocument


@dataclass(frozen=True, kw_only=True)
class EncodedDocument:
    """Token ids of one document and what of it is scored."""

    doc: str
    """Hash of the document's content, the key that comparisons join on."""
    ids: list[int]
    """Length L, BOS included."""
    spans: list[tuple[int, int]]
    """Scored target positions as half-open ranges, ascending, within [1, L)."""
    bytes: int
    """UTF-8 bytes of the scored text."""
    rewritten: int = 0
    """Assistant turns that the chat template writes differently once more turns follow (reasoning
    taken out); scored up to the difference."""

    @property
    def tokens(self) -> int:
        """Scored tokens."""
        return sum(end - start for start, end in self.spans)


def documents_from(dataset: Iterable[Row]) -> list[Document]:
    """Documents of a data set in one of the layouts of `holdfast.data.formats.standardise`: text,
    messages, or prompt and completion.

    Args:
        dataset: rows with the columns {"text"}, {"messages"} or {"prompt", "completion"}; beside
            messages, tools and chat_template_kwargs.

    Raises:
        DataError: other columns, or no rows.
    """
    documents: list[Document] = []
    for row in dataset:
        if "prompt" in row and "completion" in row:
            documents.append(_with_variables((row["prompt"], row["completion"]), row))
        elif "messages" in row:
            documents.append(_with_variables(list(row["messages"]), row))
        elif "text" in row:
            documents.append(row["text"])
        else:
            raise DataError(
                "Expected the columns text, messages, or prompt and completion, got "
                f"{', '.join(row)}. If columns have other names, write a template that uses them."
            )
    if not documents:
        raise DataError(
            "Expected at least one document to score, got none. Check the data file and its split."
        )
    return documents


def _with_variables(document: Any, row: Row) -> Document:
    columns = {name: row[name] for name in TEMPLATE_COLUMNS if row.get(name)}
    if not columns or _is_text(document):
        return document
    return ChatDocument(messages=document, **columns)


def encode_document(document: Document, tokenizer: Any) -> EncodedDocument:
    """Token ids and scored positions of one document (module docstring).

    Raises:
        DataError: not a document.
        ModelError: chat messages and a tokenizer without a chat template.
    """
    ids, stretches = (
        _of_text(document, tokenizer) if _is_text(document) else _of_chat(document, tokenizer)
    )
    spans: list[tuple[int, int]] = []
    scored_bytes = 0
    for stretch in stretches:
        start, size = stretch.start, stretch.bytes
        if start == 0 and stretch.end > 0:  # nothing stands before the first token
            start, size = 1, size - _first_token_bytes(ids, stretch.text, tokenizer)
        if start < stretch.end:
            spans.append((start, stretch.end))
            scored_bytes += max(0, size)
    return EncodedDocument(
        doc=fingerprint(document, length=32),
        ids=ids,
        spans=spans,
        bytes=scored_bytes,
        rewritten=sum(stretch.rewritten for stretch in stretches),
    )


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """One scored stretch: token positions `[start, end)`, the whole text up to its end, and its own
    UTF-8 bytes."""

    start: int
    end: int
    text: str
    bytes: int
    rewritten: bool = False


def _of_text(document: Any, tokenizer: Any) -> tuple[list[int], list[_Stretch]]:
    prompt, completion = ("", document) if isinstance(document, str) else document
    ids = _string_ids(prompt + completion, tokenizer)
    start = _common_prefix(_string_ids(prompt, tokenizer), ids)
    return ids, [
        _Stretch(
            start=start, end=len(ids), text=prompt + completion, bytes=len(completion.encode())
        )
    ]


def _of_chat(document: Any, tokenizer: Any) -> tuple[list[int], list[_Stretch]]:
    variables: dict[str, Any] = {}
    if isinstance(document, ChatDocument):
        document, variables = document.messages, document.variables
    messages, turns = _turns(document)
    conversation = _render(messages, tokenizer, **variables)
    ids = _tokens(conversation, tokenizer)
    stretches = []
    for first, end_turn in turns:
        before = _render(messages[:first], tokenizer, reply=True, **variables) if first else ""
        text = _render(messages[:end_turn], tokenizer, **variables)
        start = _common_prefix(_tokens(before, tokenizer), ids)
        end = (
            len(ids) if end_turn == len(messages) else _common_prefix(_tokens(text, tokenizer), ids)
        )
        rewritten = not conversation.startswith(text)
        if rewritten:
            size = len(tokenizer.decode(ids[start:end]).encode())
        elif text.startswith(before):
            size = len(text.encode()) - len(before.encode())
        else:
            size = sum(map(_content_bytes, messages[first:end_turn]))
        stretches.append(_Stretch(start=start, end=end, text=text, bytes=size, rewritten=rewritten))
    return ids, stretches


def _turns(document: Any) -> tuple[list[Any], list[tuple[int, int]]]:
    """All messages of a document, and which of them are scored, as half-open ranges."""
    if isinstance(document, tuple) and len(document) == 2 and all(map(_are_messages, document)):
        prompt, completion = document
        messages = [*prompt, *completion]
        return messages, [(len(prompt), len(messages))]
    if _are_messages(document) and document:
        turns = []
        for number, message in enumerate(document):
            if message["role"] == "assistant":
                turns.append((number, number + 1))
        return list(document), turns
    raise DataError(
        "Expected a document to be a text, a (prompt, completion) pair or a list of chat messages "
        f"with role and content, got {str(document)[:80]!r}."
    )


def _is_text(document: Any) -> bool:
    if isinstance(document, tuple):
        return len(document) == 2 and isinstance(document[0], str) and isinstance(document[1], str)
    return isinstance(document, str)


def _content_bytes(message: Mapping[str, Any]) -> int:
    content = message.get("content") or ""
    return len(str(content).encode())


def border_ids(
    prompt: str, completion: str, tokenizer: Any, *, chat: bool = False
) -> tuple[list[int], list[int]]:
    """(given, scored) token ids of a text in two parts, by the conventions above. A text without
    BOS gives its first token away; `chat`: the prompt was written by a chat template, BOS and
    all."""
    encode = _tokens if chat else _string_ids
    ids = encode(prompt + completion, tokenizer)
    start = max(1, _common_prefix(encode(prompt, tokenizer), ids))
    return ids[:start], ids[start:]


def chat_prompt(messages: Messages, tokenizer: Any, **variables: Any) -> str:
    """Messages as the chat template writes them, up to where the reply begins.

    Args:
        messages: of a conversation.
        tokenizer: with its template.
        variables: further ones of the template, such as tools.

    Raises:
        ModelError: the tokenizer has no chat template.
    """
    return _render(messages, tokenizer, reply=True, **variables)


def prompt_ids(prompt: str, tokenizer: Any, *, chat: bool = False) -> list[int]:
    """Token ids of a text to be gone on with, by the conventions above; `chat` as in
    `border_ids`."""
    return _tokens(prompt, tokenizer) if chat else _string_ids(prompt, tokenizer)


def starts_with_bos(tokenizer: Any) -> bool:
    """True where strings are scored from their first token on, after a BOS."""
    return getattr(tokenizer, "bos_token_id", None) is not None


def _string_ids(text: str, tokenizer: Any) -> list[int]:
    ids = _tokens(text, tokenizer)
    bos = getattr(tokenizer, "bos_token_id", None)
    return ids if bos is None or (ids and ids[0] == bos) else [bos, *ids]


def _tokens(text: str, tokenizer: Any) -> list[int]:
    return (
        list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []
    )


def _render(messages: Any, tokenizer: Any, *, reply: bool = False, **variables: Any) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "The data has chat messages, but the tokenizer has no chat template. Use the "
            "tokenizer of an instruction-tuned model, or make plain text with `prompt` and "
            "`completion` templates."
        )
    return tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=reply, **variables
    )


def _are_messages(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, (str, tuple)):
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in value)


def _common_prefix(a: list[int], b: list[int]) -> int:
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def _first_token_bytes(ids: list[int], text: str, tokenizer: Any) -> int:
    piece = tokenizer.decode(ids[:1])
    return len(piece.encode()) if piece and text.startswith(piece) else 0
