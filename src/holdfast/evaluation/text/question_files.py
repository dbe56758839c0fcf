"""Files of questions: their rows, and all that is wrong with them in one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import DataError, did_you_mean


def question_rows(data: str, *, split: str, config: str | None, limit: int | None, needed: Sequence[str]) -> Any:
    """The rows of a file, a folder or a hub data set, with the columns that are needed.

    Raises:
        DataError: columns are missing, or there are no rows.
    """
    from holdfast.data.sources import load_rows

    rows = load_rows(data, split=split, config=config)
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    if not len(rows):
        raise DataError(f"{data} has no rows. Expected one question a row.")
    columns = list(rows.column_names)
    missing = [column for column in needed if column not in columns]
    if missing:
        wanted = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise DataError(
            f"{data} lacks the {wanted} (it has {', '.join(columns)}).{did_you_mean(missing[0], columns)} Rename or "
            f"add what is missing."
        )
    return rows


class RowMistakes:
    """Mistakes by what is expected; each kind is told once, with the number of rows and the first of them.

    Args:
        data: the file, for the message.
    """

    def __init__(self, data: str) -> None:
        self.data = data
        self._found: dict[str, tuple[int, int, str]] = {}

    def add(self, expected: str, *, row: int, got: str) -> None:
        """One row that is not as expected; rows count from 0."""
        count, first, shown = self._found.get(expected, (0, row, got))
        self._found[expected] = (count + 1, first, shown)

    def check(self) -> None:
        """Raises all of them together.

        Raises:
            DataError: there are any.
        """
        if not self._found:
            return
        lines = [
            f"expected {expected}, got {shown} in row {first}" + (f" and {count - 1} more" if count > 1 else "")
            for expected, (count, first, shown) in self._found.items()
        ]
        raise DataError(f"{self.data}: {'; '.join(lines)} (rows count from 0).")


def shown(value: Any) -> str:
    """A value for a message, cut to a line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
