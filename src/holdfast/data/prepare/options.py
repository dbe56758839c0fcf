"""Rows of questions with options, which are trained on by their right answer and measured as `choices` or `classes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.data.prepare.reading import Malformed, PreparedRow


def class_number(value: Any, count: int) -> int:
    """A label from 0 to `count` - 1, which CSV has as text.

    Raises:
        Malformed: it is none.
    """
    text = str(value).removesuffix(".0")
    if not text.isdecimal() or int(text) >= count:
        raise Malformed(f"'label' is {value!r}, expected a number from 0 to {count - 1}")
    return int(text)


def options_row(task: str, prompt: str, options: Sequence[str], answer: int, *, group: str) -> PreparedRow:
    """`{"prompt", "completion", "options", "answer", "task"}`.

    Args:
        task: what the row is grouped by when it is measured.
        prompt: without the line that asks for the answer.
        options: as people read them.
        answer: index of the right one.
        group: the text that the question is about.
    """
    # The space before an option belongs to it, so that no token spans the border to what is learnt.
    shown = [f" {option.strip()}" for option in options]
    row = {"completion": shown[answer], "options": shown, "answer": answer, "task": task}
    return PreparedRow(row={"prompt": f"{prompt}\nAnswer:", **row}, group=group)
