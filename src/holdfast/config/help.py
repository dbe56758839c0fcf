"""What people read about settings: the text of `--help` and the tables of keys in the documentation."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from holdfast.config.declare import Setting, bounds_in_words

_COLUMN = 26
"""Where the explanations begin."""


def render_help(
    usage: str, settings: Sequence[Setting], *, description: str = "", epilog: str = "", width: int | None = None
) -> str:
    """The text of `--help`: usage, description, the settings by group, epilog; ends with a newline.

    Args:
        usage: the first line without "usage: ".
        settings: in the order shown; hidden ones are left out.
        description: paragraphs, kept as they are.
        epilog: the same, at the end.
        width: columns; None: the terminal's, at most 120.
    """
    width = width or max(60, min(120, shutil.get_terminal_size((100, 24)).columns))
    shown = [s for s in settings if not s.meta.hidden]
    parts = [f"usage: {usage}", description.strip("\n")]
    for group in dict.fromkeys(s.meta.group for s in shown):
        rows = [row for s in shown if s.meta.group == group for row in _rows(s, width)]
        parts.append("\n".join([group or "options", *rows]))
    parts.append("\n".join(_row("--help", "This text.", width)))
    parts.append(epilog.strip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(setting: Setting, width: int) -> list[str]:
    value = metavar(setting)
    if setting.meta.positional:
        left = value
    elif setting.types == (bool,):
        left = f"--{setting.name}" if not setting.default else f"--no_{setting.name}"
    else:
        left = f"--{setting.name} {value}"
    return _row(left, explained(setting), width)


def _row(left: str, text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, width - _COLUMN) or [""]
    if len(left) + 4 > _COLUMN:
        return [f"  {left}", *(" " * _COLUMN + line for line in lines)]
    return [f"  {left:<{_COLUMN - 2}}{lines[0]}".rstrip(), *(" " * _COLUMN + line for line in lines[1:])]


def explained(setting: Setting) -> str:
    """The help with default and bounds behind it in brackets."""
    facts = [default_text(setting.default)] if shows_default(setting) else ["required"] if setting.required else []
    facts += [bounds] if (bounds := bounds_in_words(setting.meta).strip().removeprefix("of ")) else []
    return f"{setting.help.rstrip('.')} ({'; '.join(facts)})" if facts else setting.help


def shows_default(setting: Setting) -> bool:
    """Whether the default says something: not for what has none, for switches, or for what is empty."""
    return not setting.required and setting.types != (bool,) and setting.default not in (None, "", (), [], {})


def default_text(default: Any) -> str:
    """A default as a person would type it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, (list, tuple)):
        return " ".join(default_text(item) for item in default)
    if isinstance(default, (str, int, PurePath)):
        return str(default)
    return repr(default) if not dataclasses.is_dataclass(default) else type(default).__name__


def metavar(setting: Setting) -> str:
    """What stands for the value in `--help`: "N", "FOLDER", "a|b"."""
    if setting.meta.metavar:
        word = setting.meta.metavar
    elif setting.choices and len("|".join(map(str, setting.choices))) <= 40:
        word = "|".join(str(c) for c in setting.choices if c is not None)
    elif setting.is_mapping:
        word = "'{...}'"
    else:
        first = str(setting.types[0]) if setting.types else ""
        number = "N" if "int" in first else "X" if "float" in first else ""
        word = number or ("PATH" if "Path" in first else setting.name.upper())
    return f"{word} ..." if setting.takes_many and not word.endswith("...") else word
