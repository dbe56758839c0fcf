"""How a model replies, whatever it says: the things that break unnoticed when a model is
fine-tuned, and that users notice first.

Rows have `prompt` (or `messages`), and may say what is asked for: `tools`, `json_keys`, `language`,
`harmful`, and a `category`. `behaviour: shipped` asks 200 prompts that come with holdfast
(`text.behaviour_prompts`). The model replies greedily; rules decide (`text.reply_form`,
`text.languages`, `text.tool_calls`). Each figure is a mean over the replies that it applies to,
which a column with "#" behind the figure's name counts:

    turn_ended        an end token came before `max_new_tokens`
    thoughts_closed   no thought was left open; a reply without one leaves none open
    json_valid, tool_call_valid, language_kept, harmful_refused, harmless_answered
                      where JSON, a tool, a language was asked for, or a row says `harmful`

The others describe, and have no better direction: length, and the shares of replies with a thought,
a list, a heading, a refusal. Since a figure has to have one, lower is called better there: "lost"
then says that there is more of it than before. Whether what a reply says is right is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.config.declare import Meta
from holdfast.data.layouts import Row
from holdfast.errors import ModelError
from holdfast.evaluation.entries import DataEntry, Word
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.behaviour_prompts import COLUMNS, shipped_prompts
from holdfast.evaluation.text.documents import chat_prompt, prompt_ids
from holdfast.evaluation.text.languages import LANGUAGES, language_of
from holdfast.evaluation.text.question_files import (
    RowMistakes,
    prompt_rows,
    row_messages,
    shown,
)
from holdfast.evaluation.text.reply_form import (
    RULES,
    has_heading,
    has_list,
    is_json,
    is_refusal,
    read_json,
)
from holdfast.evaluation.text.tool_calls import Functions, functions_of, is_call
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from holdfast.evaluation.text.replies import Reply
    from holdfast.statistics.estimates import Ratio

ON_SOME = (
    "json_valid",
    "tool_call_valid",
    "language_kept",
    "harmful_refused",
    "harmless_answered",
)
"""Figures over the replies that they apply to; of the others, all."""
DESCRIBING = {
    "has_thought": "share",
    "has_list": "share",
    "has_heading": "share",
    "refusal": "share",
    "reply_characters": "characters",
    "reply_tokens": "tokens",
}
"""Figures without a better direction, with their units."""


@dataclass(frozen=True, kw_only=True)
class BehaviourEntry(DataEntry):
    """Form of a model's replies to prompts: ends of turns, thoughts, JSON, tool calls, language,
    refusals, lists and length. Rows have prompt (or messages) and the expected form."""

    kind = "behaviour"
    batched = True
    shipped = "shipped"

    data: Word
    """A data file, a folder or a hub id. "shipped": 200 prompts that come with holdfast."""
    max_new_tokens: Annotated[int, Meta(ge=1)] = 256
    """Maximum number of tokens of a reply (greedy decoding)."""
    apply_chat_template: bool = True
    """Put prompts in the tokenizer's chat template. Messages always use it."""

    def versions(self) -> dict[str, str]:
        """Our rules, and the prompts that come with holdfast."""
        versions = {"behaviour": str(RULES)}
        if self.data == self.shipped:
            versions["behaviour_prompts"] = fingerprint(shipped_prompts())
        return versions

    def requests(self, tokenizer: Any, processor: Any = None) -> list[Prompt]:
        """See `Entry.requests`."""
        return read_prompts(self, tokenizer)

    def scores(self, requests: list[Prompt], on: Subject) -> Outcome:
        """Generates and looks at the replies, see `Entry.scores`.

        Raises:
            ModelError: the context has no room for a reply of `max_new_tokens` tokens, the
                tokenizer has no end of sequence, or a server does not say why replies end.
        """
        from holdfast.evaluation.text.replies import reply

        encoded = [prompt_ids(prompt.prompt, on.tokenizer, chat=prompt.chat) for prompt in requests]
        chat = any(prompt.chat for prompt in requests)
        replies = reply(on, encoded, self.max_new_tokens, chat=chat)
        rows = []
        for prompt, answer in zip(requests, replies.replies, strict=True):
            rows.append(_row(prompt, answer))
        settings = {
            "longest": self.max_new_tokens,
            "notes": [*replies.notes, *_remarks(self, requests)],
        }
        return Outcome(rows=rows, figures=_figures(rows), settings=settings, broken=replies.broken)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt with what is asked for."""

    messages: list[dict[str, Any]]
    prompt: str
    """What the model goes on with."""
    chat: bool
    """Whether `prompt` was written by a chat template."""
    functions: Functions | None = None
    """What the reply may call; None: nothing, or the chat template does not write tools."""
    unwritten_tools: bool = False
    """Whether there are tools that the chat template does not write."""
    json_keys: list[str] | None = None
    """Keys of the JSON that is asked for; None: no JSON is."""
    language: str | None = None
    harmful: bool | None = None
    """Whether a refusal is asked for; None: nothing is said."""
    category: str = ""


def _row(prompt: Prompt, reply: Reply) -> dict[str, Any]:
    """What a reply is like, a column a figure."""
    if reply.ended is None:
        raise ModelError(
            "behaviour: expected a server that reports why a reply ended (`finish_reason`), got "
            "none. Use a server that reports it, or load the model from its weights."
        )
    text = reply.text
    refusal = is_refusal(text)
    decided = {
        "json_valid": None if prompt.json_keys is None else is_json(text, prompt.json_keys),
        "tool_call_valid": None if prompt.functions is None else is_call(text, prompt.functions),
        "language_kept": None if prompt.language is None else language_of(text) == prompt.language,
        "harmful_refused": refusal if prompt.harmful is True else None,
        "harmless_answered": text != "" and not refusal if prompt.harmful is False else None,
    }
    doc = [prompt.messages, prompt.functions, prompt.json_keys, prompt.language, prompt.harmful]
    row: dict[str, Any] = {
        "doc": fingerprint(doc, length=32),
        "prompt": fingerprint(prompt.prompt, length=32),
        "question": str(prompt.messages[-1]["content"]),
        "category": prompt.category,
        "output": text,
        "turn_ended": float(reply.ended),
        "thoughts_closed": float(reply.thought != "open"),
    }
    for name in ON_SOME:
        row[name] = float(decided[name] is True)
        row[f"{name}#"] = int(decided[name] is not None)
    return {
        **row,
        "has_thought": float(reply.thought != ""),
        "has_list": float(has_list(text)),
        "has_heading": float(has_heading(text)),
        "refusal": float(refusal),
        "reply_characters": len(text),
        "reply_tokens": reply.tokens,
    }


def _figures(rows: Sequence[Row]) -> dict[str, Ratio]:
    """Those that apply to at least one reply."""
    from holdfast.statistics.estimates import Ratio

    figures = {}
    for name in ("turn_ended", "thoughts_closed"):
        figures[name] = Ratio(numerator=name, unit="share", higher_is_better=True)
    for name in ON_SOME:
        if any(row[f"{name}#"] for row in rows):
            figures[name] = Ratio(
                numerator=name, denominator=f"{name}#", unit="share", higher_is_better=True
            )
    for name, unit in DESCRIBING.items():
        figures[name] = Ratio(numerator=name, unit=unit, higher_is_better=False)
    return figures


def _remarks(entry: BehaviourEntry, prompts: Sequence[Prompt]) -> list[str]:
    """What a reader should know of the prompts."""
    unread = sorted(set(prompt_rows(entry).column_names) - {"prompt", "messages", *COLUMNS})
    remarks = [f"columns that are not read: {', '.join(unread)}."] if unread else []
    unwritten = sum(prompt.unwritten_tools for prompt in prompts)
    if unwritten:
        remarks.append(
            f"{unwritten} prompts have tools, but the chat template leaves the tools out. The "
            "model does not see them, so its tool calls are not judged."
        )
    return remarks


# -------------------------------------------------------------------------------------- the prompts


def _are_keys(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(key, str) for key in value)


_FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "json_keys": (_are_keys, "a list of texts in json_keys (empty: any object or list)"),
    "language": (LANGUAGES.__contains__, f"a language out of {', '.join(LANGUAGES)}"),
    "harmful": (lambda value: isinstance(value, bool), "true or false in the column harmful"),
    "category": (lambda value: isinstance(value, str), "a text in the column category"),
}


def read_prompts(entry: BehaviourEntry, tokenizer: Any) -> list[Prompt]:
    """The prompts of an entry.

    Raises:
        DataError: no rows, no column with prompts, or values that do not fit; all mistakes of the
            file in one message, each kind with the first row that has it.
        ModelError: the chat template is asked for, and the tokenizer has none.
    """
    if entry.apply_chat_template and not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"'{entry.name}' needs a chat template, but the tokenizer has none. Use the tokenizer "
            "of an instruction-tuned model, or set `apply_chat_template: false` to use the "
            "prompts as they are."
        )
    mistakes = RowMistakes(entry.data)
    prompts = []
    for number, row in enumerate(prompt_rows(entry)):
        messages = row_messages(row, number, mistakes)
        values = _values(row, number, mistakes)
        tools = _tools(row, number, mistakes)
        if messages is None:
            continue
        chat = entry.apply_chat_template or not isinstance(row.get("prompt"), str)
        bare = chat_prompt(messages, tokenizer) if chat else str(row["prompt"])
        text = chat_prompt(messages, tokenizer, tools=tools) if chat and tools else bare
        is_written = text != bare
        prompts.append(
            Prompt(
                messages=messages,
                prompt=text,
                chat=chat,
                functions=functions_of(tools) if is_written else None,
                unwritten_tools=bool(tools) and not is_written,
                **values,
            )
        )
    mistakes.check()
    return prompts


def _values(row: Row, number: int, mistakes: RowMistakes) -> dict[str, Any]:
    """What a row asks for, tools aside."""
    values = {}
    for column, (fits, expected) in _FITS.items():
        value = row.get(column)
        if value is None:
            continue
        if not fits(value):
            mistakes.add(expected, row=number, got=shown(value))
        values[column] = value
    return values


def _tools(row: Row, number: int, mistakes: RowMistakes) -> list[Any] | None:
    """The tools of a row; None where there are none."""
    tools = row.get("tools")
    if isinstance(tools, str):
        tools = read_json(tools or "[]")
    if tools == [] or row.get("tools") is None:
        return None
    if functions_of(tools) is None:
        expected = "tools that are a list of named functions, or JSON text of such a list"
        mistakes.add(expected, row=number, got=shown(row["tools"]))
        return None
    return tools
