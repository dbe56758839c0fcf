"""By which columns of rows samples are sorted into groups: subjects, categories, sources.

Readers of questions keep these columns where a document has them; comparisons break an entry down
by them (`compare.breakdown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = {
    "task": "subject",
    "subject": "subject",
    "category": "category",
    "source": "source",
}
"""Columns of rows, and what they are called. "task" is the subtask of a group."""
_LONGEST = 60
"""Characters of a group's name: a longer value is a text."""


def group_columns(document: Any) -> dict[str, str]:
    """What a document says of its group, by column; empty where it says nothing."""
    columns: dict[str, str] = {}
    if not isinstance(document, Mapping):
        return columns
    for name in COLUMNS:
        value = document.get(name)
        if name != "task" and isinstance(value, str) and 0 < len(value) <= _LONGEST:
            columns[name] = value
    return columns
