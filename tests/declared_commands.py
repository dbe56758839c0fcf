"""Every command of the command line that is declared, by its words."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import holdfast.cli
from holdfast.cli import merge
from holdfast.config.command_line import Command


def declared_commands() -> dict[str, Command[Any]]:
    """`{"holdfast data prepare": ...}`."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(holdfast.cli.__path__, "holdfast.cli.")]
    found = [c for module in modules for c in vars(module).values() if isinstance(c, Command)]
    return {command.name: command for command in [*found, merge.command()]}


def command_of(words: list[str]) -> tuple[Command[Any], list[str]]:
    """The command that words begin with, and the rest of them."""
    known = declared_commands()
    longest = max((n for n in (1, 2, 3) if " ".join(words[:n]) in known), default=0)
    assert longest, f"no declared command for {' '.join(words)!r}"
    return known[" ".join(words[:longest])], words[longest:]
