"""Does a reply call one of the functions that it was given?

Calls are read in the forms that chat templates ask for: JSON in `<tool_call>` tags (Hermes, Qwen),
`<function=name>` with `<parameter=name>` (Qwen3-Coder), and replies that consist of JSON (Llama 3)
or of a name with JSON behind it (Mistral, whose marks are special tokens and no text). Arguments
stand under `arguments` or `parameters`, as an object or as its JSON text. All calls of a reply have
to be sound. Types of arguments are not checked, and further arguments are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.evaluation.text.reply_form import read_json, unfenced

_BEGIN, _END = "<tool_call>", "</tool_call>"
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_XML = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)
_NAMED = re.compile(r"([\w.-]+)\s*(\{.*\})", re.DOTALL)

Functions = Mapping[str, Sequence[str]]
"""Required arguments by the name of a function."""


def functions_of(tools: Any) -> Functions | None:
    """The functions of a list of tools; None where it is no such list.

    Args:
        tools: as chat templates take them, `{"type": "function", "function": {...}}`, or the inner
            mappings alone.
    """
    functions: dict[str, Sequence[str]] = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return None
        parameters = function.get("parameters") or {}
        functions[function["name"]] = tuple(parameters.get("required") or ())
    return functions or None


def is_call(reply: str, functions: Functions) -> bool:
    """Whether a reply calls functions that exist, each with its required arguments."""
    calls = []
    begun = reply.count(_BEGIN)
    bodies = _TAGGED.findall(reply) if begun == reply.count(_END) else []
    if len(bodies) != begun:  # one without an end
        return False
    for body in bodies or [unfenced(reply)]:
        calls += _calls_in(body.strip())
    return bool(calls) and all(_fits(call, functions) for call in calls)


def _calls_in(text: str) -> list[Any]:
    """The calls that a text consists of; other values where it consists of none."""
    if text.endswith("</function>"):
        functions = _XML.findall(text)
        return [{"name": name, "arguments": dict(_PARAMETER.findall(b))} for name, b in functions]
    call = _NAMED.fullmatch(text)
    if call:
        return [{"name": call[1], "arguments": read_json(call[2])}]
    value = read_json(text)
    return value if isinstance(value, list) else [value]


def _fits(call: Any, functions: Functions) -> bool:
    if not isinstance(call, Mapping):
        return False
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(name, str) or name not in functions or not isinstance(arguments, Mapping):
        return False
    return all(argument in arguments for argument in functions[name])
