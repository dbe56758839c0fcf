"""What can be asked for: public names with their parameters, commands with their options, and what requests are
answered with."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import commandline
import request_cases
from holdfast.config.decode import expected
from holdfast.config.help import default_text


def names() -> dict[str, Any]:
    """Every public name: its kind, parameters with defaults, and what a class offers."""
    import holdfast

    return {name: _described(getattr(holdfast, name)) for name in sorted(holdfast.__all__)}


def _described(value: Any) -> Any:
    if not inspect.isclass(value):
        return _parameters(value) if callable(value) else repr(value)
    found: dict[str, Any] = {
        "bases": [base.__name__ for base in value.__mro__ if base.__module__.startswith("holdfast")][1:]
    }
    if dataclasses.is_dataclass(value):
        found["fields"] = {
            f.name: _default(f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
            for f in dataclasses.fields(value)
        }
    else:
        found["parameters"] = _parameters(value.__init__)
    own = {
        name
        for base in value.__mro__
        if base.__module__.startswith("holdfast")
        for name in vars(base)
        if not name.startswith("_")
    }
    members = {name: inspect.getattr_static(value, name, None) for name in sorted(own)}

    def plain(member: Any) -> Any:
        return getattr(member, "__func__", member)

    found["members"] = {
        name: _parameters(plain(member))
        if inspect.isfunction(plain(member))
        else "property"
        if isinstance(member, property)
        else _default(member)
        for name, member in members.items()
        if name not in found.get("fields", {})
    }
    return found


def _parameters(function: Any) -> dict[str, str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: f"{p.kind.description}, {_default(p.default)}" for p in parameters}


def _default(value: Any) -> str:
    missing = value is dataclasses.MISSING or value is inspect.Parameter.empty
    return "required" if missing else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


# ------------------------------------------------------------------------------------------------------------- commands


def commands() -> dict[str, dict[str, str]]:
    """Every declared command with its settings: what a value is, and the default."""
    from declared_commands import declared_commands
    from holdfast.runs.settings import OWN, known_settings

    settings = {name: command.settings for name, command in declared_commands().items()}
    settings["holdfast train"] = (*OWN.values(), *known_settings().values())
    return {name: {setting.name: _value(setting) for setting in declared} for name, declared in settings.items()}


def _value(setting: Any) -> str:
    if setting.required:
        return f"{expected(setting)}, required"
    if setting.default is None or setting.source == "launch":
        return expected(setting)
    return f"{expected(setting)}, default {default_text(setting.default)}"


# ------------------------------------------------------------------------------------------------------------- requests


def requests(folder: Path) -> dict[str, Any]:
    """Every request of `request_cases`: its exit code, and which of the words that it should name its message has."""
    found = {}
    for name, words, text, wanted in request_cases.cases():
        if text is not None:
            (folder / "asked.yaml").write_text(text)
        outcome = commandline.holdfast(words, folder)
        printed = outcome.out + outcome.err
        found[name] = {
            "code": outcome.code,
            "names": {word: word in printed for word in wanted},
            "traceback": "Traceback" in printed,
        }
    return found
