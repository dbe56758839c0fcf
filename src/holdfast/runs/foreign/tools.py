"""Whose file a YAML is."""

from __future__ import annotations

from holdfast.config.raw_request import RawRequest, plain_key
from holdfast.errors import ConfigError
from holdfast.runs.foreign.axolotl import AXOLOTL
from holdfast.runs.foreign.llama_factory import LLAMA_FACTORY, LLAMA_FACTORY_V1
from holdfast.runs.foreign.translation import Tool

TOOLS = (AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1)


def tool_of(file: RawRequest) -> Tool | None:
    """Whose file it is: at least three of its keys are the tool's marks. None for one of `trl sft`.

    Raises:
        ConfigError: it is a merge request of mergekit's.
    """
    tool = max(TOOLS, key=lambda tool: len(marks_in(file, tool)))
    if len(marks_in(file, tool)) >= 3:
        return tool
    if {"merge_method", "slices", "modules"} & set(file.values):  # axolotl has a merge_method, too
        raise ConfigError(
            f"{file.file} is a merge request. Use it with 'holdfast merge --config {file.file}'."
        )
    return None


def marks_in(file: RawRequest, tool: Tool) -> list[str]:
    """The keys of a file that are a tool's marks."""
    marks = tool.table["marks"].split()
    return [key for key in map(plain_key, file.values) if key in marks]
