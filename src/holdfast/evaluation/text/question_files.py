"""Files of questions: their rows, and all that is wrong with them in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast.data.layouts import Row
from holdfast.errors import DataError, did_you_mean
from holdfast.evaluation.entries import DataEntry
from holdfast.evaluation.text.behaviour_prompts import shipped_prompts


def all_rows(entry: DataEntry) -> Any:
    """The rows of an entry's data, a file's or those that come with holdfast."""
    from holdfast.data.sources import load_rows

    if entry.shipped and entry.data == entry.shipped:
        import datasets

        return datasets.Dataset.from_list(shipped_prompts())
    return load_rows(entry.data, split=entry.split, config=entry.config)


def first_rows(entry: DataEntry) -> Any:
    """The rows of an entry's data, at most `max_documents` of them."""
    rows = all_rows(entry)
    return (
        rows
        if entry.max_documents is None
        else rows.select(range(min(entry.max_documents, len(rows))))
    )


def question_rows(entry: DataEntry, needed: Sequence[str] = ()) -> Any:
    """The rows of a file, a folder or a hub data set, with the columns that are needed.

    Raises:
        DataError: columns are missing, or there are no rows.
    """
    rows = first_rows(entry)
    if not len(rows):
        raise DataError(f"{entry.data} has no rows. Expected one question per row.")
    columns = list(rows.column_names)
    missing = [column for column in needed if column not in columns]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise DataError(
            f"{entry.data} lacks the column{plural} {', '.join(missing)} (it has "
            f"{', '.join(columns)}).{did_you_mean(missing[0], columns)} Rename or add columns."
        )
    return rows


def prompt_rows(entry: DataEntry, needed: Sequence[str] = ()) -> Any:
    """As `question_rows`, of prompts or messages.

    Raises:
        DataError: columns are missing, or there are no rows.
    """
    rows = question_rows(entry, needed)
    columns = list(rows.column_names)
    if "prompt" not in columns and "messages" not in columns:
        raise DataError(
            f"{entry.data} lacks the column prompt (or messages) with the questions. It has "
            f"{', '.join(columns)}."
        )
    return rows


def refuse_images(entry: DataEntry, rows: Any, prompts: Sequence[str] | None = None) -> None:
    """Stops where rows hold images and an entry asks by text alone, so that it would be asked
    blind.

    Args:
        entry: of the rows.
        rows: its data.
        prompts: what is asked; a column of images that none of them has a place for may stand
            beside. None: rows are read as training data is, images and all.

    Raises:
        DataError: a row holds one.
    """
    from holdfast.data import vision

    columns = [*vision.image_columns(rows.column_names), *vision.unread_images(rows, ())]
    if not columns:
        return
    if prompts is not None and not any(vision.MARKER in prompt for prompt in prompts):
        return
    looked_at = vision.undecoded(rows.select_columns(list(dict.fromkeys(columns))))
    for number, row in enumerate(looked_at):
        if vision.holds_images(row, columns):
            raise DataError(
                f"{entry.data}, row {number} holds an image (column '{columns[0]}'), but "
                f"'{entry.name}' uses text only. Ask about images with `multiple_choice`, or "
                "remove rows with images."
            )


def fill_template(entry: DataEntry, template: str, row: Row, number: int) -> str:
    """The prompt of a row by a `str.format` template.

    Raises:
        DataError: the row lacks a column that the template names, or its value does not fit there.
    """
    try:
        return template.format(**row)
    except (KeyError, IndexError) as error:
        raise DataError(
            f"The prompt of '{entry.name}' names the column {error}, but {entry.data} has "
            f"{', '.join(row)}."
        ) from None
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"The prompt of '{entry.name}' cannot be filled from row {number} of {entry.data}: "
            f"{error}."
        ) from None


class RowMistakes:
    """Mistakes by what is expected; each kind is named once, with the number of rows and the first
    of them.

    Args:
        data: the file, for the message.
    """

    def __init__(self, data: str) -> None:
        self.data = data
        self._mistakes: dict[str, tuple[int, int, str]] = {}
        """Rows, the first of them and what it holds, by what is expected."""

    def add(self, expected: str, *, row: int, got: str) -> Literal[False]:
        """One row that is not as expected; rows count from 0. False: the row is not sound."""
        count, first, example = self._mistakes.get(expected, (0, row, got))
        self._mistakes[expected] = (count + 1, first, example)
        return False

    def check(self) -> None:
        """Raises all of them together.

        Raises:
            DataError: there are any.
        """
        lines = []
        for expected, (count, first, example) in self._mistakes.items():
            others = f" and {count - 1} more" if count > 1 else ""
            lines.append(f"expected {expected}, got {example} in row {first}{others}")
        if lines:
            raise DataError(f"{self.data}: {'; '.join(lines)} (rows count from 0).")


def shown(value: Any) -> str:
    """A value for a message, cut to a line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def row_messages(row: Row, number: int, mistakes: RowMistakes) -> list[dict[str, Any]] | None:
    """What a row with `prompt` or `messages` asks, as messages; None where it is neither, which
    `mistakes` then has."""
    prompt, messages = row.get("prompt"), row.get("messages")
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        expected = "a prompt that is a non-empty text, or messages with role and content"
        mistakes.add(expected, row=number, got=shown(prompt if messages is None else messages))
        return None
    if messages[-1]["role"] == "assistant":
        expected = "messages that end with a user's message"
        mistakes.add(expected, row=number, got="an assistant's message at the end")
        return None
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value.get("role")) and bool(value.get("content"))
