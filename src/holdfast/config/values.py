"""Values that do not fit their setting: how they are refused, and how a message shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import Problem


class Refused(ValueError):
    """A value does not fit its setting; `problems` says what, with paths below the setting's
    own."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


_YAML_WORDS: tuple[tuple[Any, str], ...] = (
    (type(None), "null"),
    (bool, "true/false"),
    (int, "whole number"),
    (float, "number"),
    (str, "text"),
    (Mapping, "mapping"),
    ((list, tuple), "list"),
)


def show(value: Any) -> str:
    """A value in a message: itself, shortened, and what YAML calls its type."""
    name = type(value).__name__
    for types, word in _YAML_WORDS:
        if isinstance(value, types):
            name = word
            break
    return f"{shorten(value)} ({name})"


def shorten(value: Any) -> str:
    """A value as Python writes it, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
