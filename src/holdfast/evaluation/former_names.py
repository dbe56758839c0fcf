"""Names that suites and kinds of entries had before: files with them are read as they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.evaluation.kinds import KINDS

SUITES = {"source": "keep", "target": "learn"}
_KINDS = {kind.former: name for name, kind in KINDS.items() if kind.former}


def current_section(section: Mapping[Any, Any]) -> dict[str, Any]:
    """An `evaluation:` section, or a suite's file, with today's names; a list that has them already stays."""
    current: dict[str, Any] = {}
    for key, value in section.items():
        name = SUITES.get(str(key), str(key))
        entries = [_current_entry(entry) for entry in value] if isinstance(value, list) else value
        current[name if name not in section else str(key)] = entries
    averages = current.get("averages")
    if isinstance(averages, Mapping):
        current["averages"] = {title: _current_members(members) for title, members in averages.items()}
    return current


def _current_entry(entry: Any) -> Any:
    if not isinstance(entry, Mapping) or any(key in KINDS for key in entry):
        return entry
    return {_KINDS.get(key, key): value for key, value in entry.items()}


def _current_members(members: Any) -> Any:
    if not isinstance(members, list):
        return members
    return [_current_path(member) if isinstance(member, str) else member for member in members]


def _current_path(member: str) -> str:
    suite, slash, rest = member.partition("/")
    return f"{SUITES.get(suite, suite)}{slash}{rest}" if slash else member
