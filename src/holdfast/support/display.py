"""How results of Python calls read in a console and in a notebook: like the terminal, not like their fields.

What is said of each is declared above, where pages are made (`holdfast.reports.displays`), and put in here by whoever
imports the public names; without it, and of what nothing is said, the fields are shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from typing import Any, Protocol


class Display(Protocol):
    """What shows a value."""

    def text(self, value: Any) -> str:
        """In lines."""

    def html(self, value: Any) -> str:
        """For a notebook."""


_by = ""


def show_by(place: str) -> None:
    """Has values shown by a `Display` from now on.

    Args:
        place: `module:class` of it, imported once something is looked at.
    """
    global _by
    _by = place


def _display() -> Display:
    module, _, name = _by.partition(":")
    found: Display = getattr(importlib.import_module(module), name)()
    return found


class Displayed:
    """A value that reads like the terminal. Dataclasses take it with `repr=False`."""

    def __repr__(self) -> str:
        if _by:
            with contextlib.suppress(Exception):  # a value can always be looked at, and be it half made
                return _display().text(self)
        return fields_text(self)

    def _repr_html_(self) -> str | None:
        if _by:
            with contextlib.suppress(Exception):
                return _display().html(self)
        return None


def fields_text(value: Any) -> str:
    """`Name(field=value, ...)`."""
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else list(vars(value))
    told = ", ".join(f"{name}={getattr(value, name, None)!r}" for name in names if not name.startswith("_"))
    return f"{type(value).__name__}({told})"
