"""Whose file a YAML is, and what it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.decode import Given, plain_key
from holdfast.errors import ConfigError
from holdfast.runs.foreign.axolotl import AXOLOTL
from holdfast.runs.foreign.llama_factory import LLAMA_FACTORY
from holdfast.runs.foreign.translation import Tool

TOOLS: dict[str, Tool] = {"axolotl": AXOLOTL, "llama_factory": LLAMA_FACTORY}
"""By the name that `holdfast convert --tool` takes."""
_MERGES = ("merge_method", "slices", "modules")


def tool_of(values: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The name of the tool that a file was written for, and the keys that say so; None for one of `trl sft`.

    Args:
        values: the file's keys.
    """
    if is_merge(values):
        return None
    found = {name: marks for name, tool in TOOLS.items() if (marks := tool.recognised(values))}
    return max(found.items(), key=lambda one: len(one[1]), default=None)


def is_merge(values: Mapping[str, Any]) -> bool:
    """Whether a file is a merge request of mergekit's; axolotl has a `merge_method` too."""
    return any(plain_key(key) in _MERGES for key in values) and not AXOLOTL.recognised(values)


def refuse_foreign(file: Given) -> None:
    """Refuses the file of another tool.

    Raises:
        ConfigError: whose it is, and how to convert it.
    """
    if is_merge(file.values):
        raise ConfigError(f"{file.file} is a merge request: 'holdfast merge --config {file.file}' takes it.")
    if (found := tool_of(file.values)) is not None:
        name, marks = found
        raise ConfigError(
            f"{file.file} was written for {TOOLS[name].title} ({', '.join(marks[:4])}, ...). 'holdfast convert "
            f"{file.file} --output run.yaml' writes the same for holdfast and lists what has no counterpart."
        )
