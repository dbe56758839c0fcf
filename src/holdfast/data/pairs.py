"""Pairs of completions for preference optimisation, in the columns that TRL's `DPOTrainer` takes.

    {"prompt": "...", "chosen": "...", "rejected": "..."}                       text
    {"prompt": [messages], "chosen": [messages], "rejected": [messages]}        conversations
    {"chosen": [messages], "rejected": [messages]}                              conversations that hold their prompt

Every row is looked at before anything is trained: TRL decides by the first one, and fails far inside tokenisation on a
row that does not match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.formats import bad_rows
from holdfast.data.messages import TEMPLATE_COLUMNS, Row
from holdfast.data.unread import Counts, columns_with_values
from holdfast.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import datasets

COMPLETIONS = ("chosen", "rejected")
_PARTS = ("prompt", *COMPLETIONS)
_READ = (*_PARTS, *TEMPLATE_COLUMNS)
_SHOWN = 5


def read_pairs(
    rows: datasets.Dataset, *, files: Sequence[Path] | None = None, not_read: Counts | None = None
) -> datasets.Dataset:
    """The rows with nothing but what `DPOTrainer` reads of them.

    Args:
        rows: with `chosen` and `rejected`, and `prompt` where the completions do not hold it.
        files: the local files that all rows came from, so that messages can name file and line.
        not_read: gets the columns that are not read, with the number of rows that have a value there.

    Raises:
        DataError: no rows, no such columns, images, rows that cannot be used (the first five and their number), or
            completions that are the same in every row.
    """
    columns = rows.column_names
    if "images" in columns or "image" in columns:
        raise DataError("trainer: dpo expects pairs of text, got rows with images.")
    check_pairs(rows, files=files)
    if not_read is not None:
        not_read.update(columns_with_values(rows, [name for name in columns if name not in _READ]))
    return rows.select_columns([name for name in columns if name in _READ])


def check_pairs(rows: datasets.Dataset, *, files: Sequence[Path] | None = None) -> None:
    """Looks at every row; arguments as of `read_pairs`.

    Raises:
        DataError: no rows, no columns of pairs, rows that cannot be used (the first five and their number), or
            completions that are the same in every row.
    """
    columns = rows.column_names
    missing = [name for name in COMPLETIONS if name not in columns]
    if missing:
        raise DataError(
            f"Preference data: expected pairs in the columns chosen and rejected (and prompt), got "
            f"{', '.join(columns) or 'no columns'}; {' and '.join(missing)} is missing."
            f"{did_you_mean(missing[0], columns)} Data with one answer a row is for trainer: sft (SFTRetentionTrainer)."
        )
    if not len(rows):
        raise DataError("Preference data: expected at least one pair, got none.")
    bad: list[tuple[int, str]] = []
    count = same = 0
    for number, row in enumerate(rows.select_columns([name for name in _PARTS if name in columns])):
        reason = _reason(row)
        if reason:
            count += 1
            if len(bad) < _SHOWN:
                bad.append((number, reason))
        same += row["chosen"] == row["rejected"]
    if bad:
        raise bad_rows(bad, count, len(rows), "pairs", files)
    if same == len(rows):
        raise DataError(
            f"Preference data: expected completions of which one is preferred, but chosen and rejected are the same in "
            f"all {same} rows."
        )


def _reason(row: Row) -> str:
    """Why a row is no pair; empty where it is one."""
    kinds = set()
    for name in _PARTS:
        if name not in row:
            continue
        value = row[name]
        if not value:
            return f"'{name}' is empty"
        if isinstance(value, str):
            kinds.add("text")
        elif is_conversation(value):
            kinds.add("messages")
        else:
            return f"'{name}' is neither text nor a list of messages with role and content"
    if len(kinds) > 1:
        return "text and messages stand side by side"
    if kinds == {"messages"} and any(row[name][-1]["role"] != "assistant" for name in COMPLETIONS):
        return "'chosen' and 'rejected' have to end with a message of the assistant"
    return ""


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, each with a role and content."""
    return isinstance(value, list) and all(_is_message(message) for message in value)


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str) and message.get("content") is not None
