"""Whose file a YAML is."""

from __future__ import annotations

from holdfast.config.decode import Given, plain_key
from holdfast.errors import ConfigError
from holdfast.runs.foreign.axolotl import AXOLOTL
from holdfast.runs.foreign.llama_factory import LLAMA_FACTORY, LLAMA_FACTORY_V1

TOOLS = (AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1)


def marks_of(file: Given) -> dict[str, list[str]]:
    """By the title of the tool the keys that tell a file as one of its; empty for one of `trl sft`.

    Raises:
        ConfigError: it is a merge request of mergekit's.
    """
    keys = [plain_key(key) for key in file.values]
    marks = {tool.title: [key for key in keys if key in tool.marks.split()] for tool in TOOLS}
    title = max(marks, key=lambda title: len(marks[title]))
    if len(marks[title]) >= 3:
        return {title: marks[title]}
    if {"merge_method", "slices", "modules"} & set(keys):  # axolotl has a merge_method, too
        raise ConfigError(f"{file.file} is a merge request: 'holdfast merge --config {file.file}' takes it.")
    return {}


def refuse_foreign(file: Given) -> None:
    """Refuses the file of another tool.

    Raises:
        ConfigError: whose it is, and how to convert it.
    """
    for title, marks in marks_of(file).items():
        raise ConfigError(
            f"{file.file} was written for {title} ({', '.join(marks[:4])}, ...). 'holdfast convert {file.file} "
            f"--output run.yaml' writes the same for holdfast, or names what has no counterpart."
        )
