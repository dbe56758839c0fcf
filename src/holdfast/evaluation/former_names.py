"""Names that suites and kinds of entries had before: files with them are read as they were
written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.evaluation.kinds import KINDS

SUITES = {"source": "keep", "target": "learn"}
_KINDS = {kind.former: name for name, kind in KINDS.items() if kind.former}


def current_section(section: Mapping[Any, Any]) -> dict[str, Any]:
    """An `evaluation:` section, or a suite's file, with today's names. A suite that is there under
    both names stays two, and what names the former one means the former one."""
    suites = {
        former: name
        for former, name in SUITES.items()
        if former not in section or name not in section
    }
    current: dict[str, Any] = {}
    for key, value in section.items():
        entries = [_current_entry(entry) for entry in value] if isinstance(value, list) else value
        current[suites.get(key, str(key))] = entries
    averages = current.get("averages")
    along = current.get("along")
    if isinstance(averages, Mapping):
        current["averages"] = {
            title: _current_paths(members, suites) for title, members in averages.items()
        }
    if isinstance(along, Mapping) and "entries" in along:
        current["along"] = {**along, "entries": _current_paths(along["entries"], suites)}
    return current


def current_path(path: str, suites: Mapping[str, str] = SUITES) -> str:
    """`suite`, `suite/entry` or `suite/entry/metric` with today's name of the suite."""
    suite, slash, rest = path.partition("/")
    return f"{suites.get(suite, suite)}{slash}{rest}"


def _current_entry(entry: Any) -> Any:
    if not isinstance(entry, Mapping) or any(key in KINDS for key in entry):
        return entry
    return {_KINDS.get(key, key): value for key, value in entry.items()}


def _current_paths(paths: Any, suites: Mapping[str, str]) -> Any:
    if not isinstance(paths, list):
        return paths
    return [current_path(path, suites) if isinstance(path, str) else path for path in paths]
