"""Prompts out of the rows that users have: what comes before an answer, as token ids.

| rows | prompt |
|---|---|
| messages | all up to the last message of the assistant, and the template's beginning of an answer |
| prompt, with or without a completion | the prompt; as messages where it is a list of them |
| text, lines of a text file | the text |
| input_ids with labels | the tokens before the first label |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.config.values import show
from holdfast.data.chat_templates import with_one_bos
from holdfast.data.formats import standardise
from holdfast.data.layouts import COMPLETION_NAMES
from holdfast.data.messages import template_variables
from holdfast.data.pairs import is_conversation
from holdfast.data.sources import data_files, is_path, load_rows
from holdfast.errors import DataError

DEMONSTRATION = "privileged_context"
"""TRL's name of the column with what only a teacher reads: an answer, behind the same prompt."""
BEHIND = "{prompt}\n\n{privileged_context}"
"""How the two stand together, TRL's own."""


def check_prompts(rows: Any) -> None:
    """Looks at every prompt of rows for TRL's GRPOTrainer, whose rewards get the other columns as
    they are.

    Args:
        rows: a `datasets.Dataset`.

    Raises:
        DataError: no rows, no column `prompt`, images, or a prompt that is neither text nor
            messages that end with a question (the first row).
    """
    columns = rows.column_names
    if "prompt" not in columns or {"image", "images"} & set(columns):
        got = ", ".join(columns) or "no columns"
        raise DataError(
            f"trainer: grpo expects prompts of text or messages in the column prompt, got {got}."
        )
    if not len(rows):
        raise DataError("trainer: grpo expects at least one prompt, got no rows.")
    for number, prompt in enumerate(rows["prompt"], 1):
        text = isinstance(prompt, str) and bool(prompt.strip())
        asks = bool(prompt) and is_conversation(prompt) and prompt[-1]["role"] != "assistant"
        if not text and not asks:
            raise DataError(
                "trainer: grpo expects text, or messages that end with a question, in the column "
                f"prompt of every row, got {show(prompt)} in row {number}."
            )


def prompts_by_name(name: str, tokenizer: Any) -> tuple[list[list[int]], int]:
    """Token ids of the prompts in a file, folder or hub data set, in the order of its rows.

    Args:
        name: see `sources.load_rows`; a text file is read line by line.
        tokenizer: of the model, or its processor, whose tokenizer is taken.

    Returns:
        (the prompts, none empty; how many rows hold none).

    Raises:
        DataError: the rows cannot be read, make no known layout, or hold images.
    """
    rows = load_rows(name, documents="line")
    words = getattr(tokenizer, "tokenizer", tokenizer)
    if not prompts_alone(rows.column_names):
        rows, _ = standardise(rows, tokenizer, files=data_files(name) if is_path(name) else None)
    if "images" in rows.column_names:
        raise DataError(
            f"{name}: expected prompts of text, got rows with images. Name a file without them."
        )
    prompts = [encoded_prompt(row, words) for row in rows]
    return list(filter(None, prompts)), prompts.count([])


def encoded_prompt(row: Mapping[str, Any], tokenizer: Any) -> list[int]:
    """Token ids of one row's prompt, in one of the columns that `formats.standardise` gives or as a
    `prompt` alone; empty where there is none."""
    if "input_ids" in row and "messages" not in row:
        return prefix(row["input_ids"], row.get("labels") or ())
    if "text" in row:
        return with_one_bos(list(tokenizer(row["text"])["input_ids"]), tokenizer)
    if "messages" in row:
        return _conversation(before_answer(row["messages"]), tokenizer, row)
    prompt = row["prompt"]
    if isinstance(prompt, list):
        return _conversation(prompt, tokenizer, row)
    if not isinstance(prompt, str) or not prompt.strip():
        return []
    return with_one_bos(list(tokenizer(prompt)["input_ids"]), tokenizer)


def before_answer(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages before the last one of the assistant; all of them where there is none."""
    for number in reversed(range(len(messages))):
        if messages[number]["role"] == "assistant":
            return list(messages[:number])
    return list(messages)


def after_prompt(row: Mapping[str, Any]) -> str:
    """What stands behind the prompt of one row, as text: the last answer of a conversation, a
    completion; "" where nothing does, or where a text is not told apart from its prompt."""
    if "messages" in row:
        behind: Any = row["messages"][len(before_answer(row["messages"])) :][:1]
    else:
        behind = row.get("completion") or ""
    return behind if isinstance(behind, str) else "\n".join(str(turn["content"]) for turn in behind)


def with_demonstration(row: Mapping[str, Any]) -> str | list[Mapping[str, Any]]:
    """The prompt that a teacher reads in a row with `prompt` and `privileged_context`, as TRL
    composes it."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return BEHIND.format(prompt=prompt, privileged_context=row[DEMONSTRATION])
    question = BEHIND.format(prompt=prompt[-1]["content"], privileged_context=row[DEMONSTRATION])
    return [*prompt[:-1], {"role": "user", "content": question}]


def prompts_alone(columns: Sequence[str]) -> bool:
    """Whether rows hold prompts and no answers."""
    return "prompt" in columns and not any(name in columns for name in COMPLETION_NAMES)


def prefix(ids: Sequence[int], labels: Sequence[int]) -> list[int]:
    """The tokens before the first that is trained; none where the first one is, or none at all."""
    first = next((index for index, label in enumerate(labels) if label != -100), 0)
    return list(ids[:first])


def _conversation(turns: list[Any], tokenizer: Any, row: Mapping[str, Any]) -> list[int]:
    if not turns:
        return []
    encoded = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True, **template_variables(row)
    )
    return list(encoded["input_ids"])
