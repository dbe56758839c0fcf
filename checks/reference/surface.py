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

SUBCOMMANDS = {
    "residual": ["extract", "apply"],
    "study": ["worker", "status", "report"],
    "sweep": ["worker", "status", "report"],
    "data": ["prepare", "select"],
}


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

_OPTION = re.compile(r"^ {2,4}(?:-\w, )?(--[A-Za-z]\w*)(?: (\S.*?))?(?:  +(\S.*))?$")
_POSITIONAL = re.compile(r"^  ([A-Z][A-Z|]*(?: [A-Z]+)*(?: \.\.\.)?)(?:  +(\S.*))?$")
_PARAMETER = re.compile(r"^ {6}(?:--)?(\w+)(?: \((.*?)\))?: (.*)$")
_OF_METHOD = re.compile(r"^  (\w+): ")
_SETTING = re.compile(r"^  --(\w+)  \[(.*)\]$")


def commands(folder: Path) -> dict[str, Any]:
    """Every command and subcommand: its options with placeholder and default, as `--help` has them; train's further
    keys."""
    top = commandline.holdfast(["--help"], folder).out
    listed = re.findall(r"^  (\w+) +\S", top.partition("commands\n")[2].partition("\n\n")[0], re.MULTILINE)
    found: dict[str, Any] = {"": listed}
    for name in listed:
        for words in ([name], *([name, sub] for sub in SUBCOMMANDS.get(name, ()))):
            outcome = commandline.holdfast([*words, "--help"], folder)
            found[" ".join(words)] = {
                "code": outcome.code,
                "options": _options(outcome.out),
                "methods": _methods(outcome.out),
            }
    settings = commandline.holdfast(["train", "--help_all"], folder).out.splitlines()
    found["train --help_all"] = dict(m.groups() for line in settings if (m := _SETTING.match(line)))
    return found


def _options(text: str) -> dict[str, Any]:
    """`{option: [placeholder, default]}` of a help text; the default is what stands first in the last brackets, before
    bounds."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if match := _OPTION.match(line):
            name, placeholder, help_text = match.groups()
            found[name] = [placeholder or "", help_text or ""]
        elif match := _POSITIONAL.match(line):
            name = match[1]
            found[name] = ["positional", match[2] or ""]
        elif name and line.startswith(" " * 12):
            found[name][1] += f" {line.strip()}"
        else:
            name = ""
    return {
        option: [placeholder, "" if re.match(r"at |above |below |required", default) else default]
        for option, (placeholder, help_text) in found.items()
        for default in [(re.findall(r"\(([^()]*)\)", help_text) or [""])[-1].partition(";")[0]]
    }


def _methods(text: str) -> dict[str, dict[str, str]]:
    """`{method: {parameter: default}}` of the lists of methods in `train --help` and `merge --help`."""
    found: dict[str, dict[str, str]] = {}
    method = ""
    for line in text.splitlines():
        if match := _OF_METHOD.match(line):
            method = match[1]
        elif (match := _PARAMETER.match(line)) and method and match[1] != "from":
            found.setdefault(method, {})[match[1]] = match[2] or "".join(re.findall(r"; default:? (.*)$", match[3]))
    return found


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
