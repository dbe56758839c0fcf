"""Rows of preference optimisation, in the columns that TRL takes. Pairs of completions for its
`DPOTrainer`:

    {"prompt": "...", "chosen": "...", "rejected": "..."}                       text
    {"prompt": [messages], "chosen": [messages], "rejected": [messages]}        conversations
    {"chosen": [messages], "rejected": [messages]}                              conversations that hold their prompt

Single completions that were judged good (true) or bad (false), for its `KTOTrainer`:

    {"prompt": "...", "completion": "...", "label": true}                       text
    {"prompt": [messages], "completion": [messages], "label": false}            conversations

Every row is looked at before anything is trained: TRL decides by the first one, and fails far
inside tokenisation on a row that does not match.
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
_PAIR = ("prompt", *COMPLETIONS)
_JUDGED = ("prompt", "completion", "label")
_SHOWN = 5


def read_pairs(
    rows: datasets.Dataset, *, files: Sequence[Path] | None = None, not_read: Counts | None = None
) -> datasets.Dataset:
    """The rows with nothing but what `DPOTrainer` reads of them.

    Args:
        rows: with `chosen` and `rejected`, and `prompt` where the completions do not hold it.
        files: the local files that all rows came from, so that messages can name file and line.
        not_read: gets the columns that are not read, with the number of rows that have a value
            there.

    Raises:
        DataError: no rows, no such columns, images, rows that cannot be used (the first five and
            their number), or completions that are the same in every row.
    """
    _refuse_images(rows, "dpo", "pairs")
    check_pairs(rows, files=files)
    return _only_read(rows, _PAIR, not_read)


def read_judged(
    rows: datasets.Dataset, *, files: Sequence[Path] | None = None, not_read: Counts | None = None
) -> datasets.Dataset:
    """The rows with nothing but what `KTOTrainer` reads of them: `prompt`, `completion` and
    `label`. Arguments and errors as of `read_pairs`."""
    _refuse_images(rows, "kto", "judged answers")
    check_judged(rows, files=files)
    return _only_read(rows, _JUDGED, not_read)


def _refuse_images(rows: datasets.Dataset, trainer: str, what: str) -> None:
    if {"images", "image"} & {*rows.column_names}:
        raise DataError(f"trainer: {trainer} expects {what} of text, got rows with images.")


def _only_read(
    rows: datasets.Dataset, parts: Sequence[str], not_read: Counts | None
) -> datasets.Dataset:
    read = [name for name in rows.column_names if name in (*parts, *TEMPLATE_COLUMNS)]
    if not_read is not None:
        not_read.update(
            columns_with_values(rows, [name for name in rows.column_names if name not in read])
        )
    return rows.select_columns(read)


def check_pairs(rows: datasets.Dataset, *, files: Sequence[Path] | None = None) -> None:
    """Looks at every row; arguments as of `read_pairs`.

    Raises:
        DataError: no rows, no columns of pairs, rows that cannot be used (the first five and their
            number), or completions that are the same in every row.
    """
    columns = rows.column_names
    missing = [name for name in COMPLETIONS if name not in columns]
    if missing:
        raise DataError(
            "Preference data: expected pairs in the columns chosen and rejected (and prompt), got "
            f"{', '.join(columns) or 'no columns'}; {' and '.join(missing)} is "
            f"missing.{did_you_mean(missing[0], columns)} For data with one answer per row use "
            "trainer: sft (SFTRetentionTrainer)."
        )
    if not len(rows):
        raise DataError("Preference data: expected at least one pair, got none.")
    _check_each(rows, _PAIR, COMPLETIONS, "pairs", files)
    same = sum(row["chosen"] == row["rejected"] for row in rows.select_columns(list(COMPLETIONS)))
    if same == len(rows):
        raise DataError(
            "Preference data: expected chosen and rejected completions that differ, but each of the "
            f"{same} rows has the same text in both."
        )


def check_judged(rows: datasets.Dataset, *, files: Sequence[Path] | None = None) -> None:
    """Looks at every row; arguments as of `read_pairs`.

    Raises:
        DataError: no rows, no columns of judged answers, or rows that cannot be used (the first
            five and their number).
    """
    columns = rows.column_names
    missing = [name for name in _JUDGED if name not in columns]
    if missing:
        advice = did_you_mean(missing[0], columns)
        if {*COMPLETIONS} <= {*columns}:
            advice = " For pairs of chosen and rejected use trainer: dpo."
        elif missing == ["label"] and not advice:
            advice = " For answers without a label use trainer: sft."
        raise DataError(
            "Judged answers: expected the columns prompt, completion and label (true or false), "
            f"got {', '.join(columns) or 'no columns'}; {' and '.join(missing)} is missing.{advice}"
        )
    if not len(rows):
        raise DataError("Judged answers: expected at least one row, got none.")
    _check_each(rows, _JUDGED, ("completion",), "judged answers", files)


def _check_each(
    rows: datasets.Dataset,
    parts: Sequence[str],
    answers: Sequence[str],
    what: str,
    files: Sequence[Path] | None,
) -> None:
    """Looks at the columns `parts` of every row, those of `answers` among them.

    Raises:
        DataError: rows that cannot be used as `what`.
    """
    bad: list[tuple[int, str]] = []
    count = 0
    present = [name for name in parts if name in rows.column_names]
    for number, row in enumerate(rows.select_columns(present)):
        reason = _reason(row, answers)
        if reason:
            count += 1
            if len(bad) < _SHOWN:
                bad.append((number, reason))
    if bad:
        raise bad_rows(bad, count, len(rows), what, files)


def _reason(row: Row, answers: Sequence[str]) -> str:
    """Why a row cannot be used; empty where it can."""
    kinds = set()
    for name, value in row.items():
        if name == "label":
            if not isinstance(value, bool):
                return f"'label' is not true or false: {value!r}"
        elif not value:
            return f"'{name}' is empty"
        elif isinstance(value, str):
            kinds.add("text")
        elif is_conversation(value):
            kinds.add("messages")
        else:
            return f"'{name}' is neither text nor a list of messages with role and content"
    if len(kinds) > 1:
        return "text and messages are mixed"
    if kinds == {"messages"} and any(row[name][-1]["role"] != "assistant" for name in answers):
        names = " and ".join(f"'{name}'" for name in answers)
        return (
            f"{names} {'have' if len(answers) > 1 else 'has'} to end with a message of the "
            "assistant"
        )
    return ""


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, each with a role and content."""
    return isinstance(value, list) and all(_is_message(message) for message in value)


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and message.get("content") is not None
    )
