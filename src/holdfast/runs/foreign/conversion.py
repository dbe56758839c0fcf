"""A training file of another tool as one of `holdfast train`: its settings, and the YAML with
notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError
from holdfast.printable import lines, printable
from holdfast.runs.foreign.tools import tool_of
from holdfast.runs.foreign.translation import Tool, translate
from holdfast.runs.settings import known_settings

ADVICE = """\
# What keeps the old skills, and what is measured before and after ('holdfast train --help'):
# retention: [{label_annealing: {weight: 1.0}}]
# evaluation: {keep: [prose.jsonl, hellaswag], learn: [held_out.jsonl]}
"""


def read_foreign(path: Path, dataset_info: Path | None = None) -> tuple[Tool, dict[str, Any], str]:
    """The tool that a file belongs to, its settings as `holdfast train` has them, and the name of
    its chat template ("" without one).

    Args:
        path: the file.
        dataset_info: LLaMA-Factory's list of data sets, in place of the one that the file names.

    Raises:
        ConfigError: the file cannot be read, is none of these tools', or asks for what holdfast
            does not do.
    """
    file = read_yaml(path, option="FILE", needs="a model and data")
    file.check()
    tool = tool_of(file)
    if tool is None:
        raise ConfigError(
            f"{path} has neither the keys of axolotl nor those of LLaMA-Factory. A configuration "
            f"of 'trl sft' needs no conversion: 'holdfast train --config {path}'."
        )
    if dataset_info is not None:
        file.values["dataset_info"] = str(dataset_info)
    template_name = str(file.values.get(tool.table["template"]) or "")
    return tool, translate(tool, file.values, known_settings(), str(path)), template_name


def as_yaml(source: Path, tool: Tool, settings: dict[str, Any], template_name: str) -> str:
    """The file, with what there is to know in front.

    Args:
        source: the file that it was.
        tool: whose it was.
        settings: of `holdfast train`.
        template_name: of the chat template that the file asks for; "" without one.
    """
    import yaml

    notes = [note for setting, note in tool.table["notes"].items() if setting in settings]
    if "chat_template" not in settings and "chat_template_path" not in settings:
        not_read = (
            f"{tool.table['template']}: {printable(template_name)} is ignored. "
            if template_name
            else ""
        )
        notes.append(
            f"{not_read}The model's own chat template is used; chat_template_path names another."
        )
    title = f"# {source.name}, a file of {tool.table['title']}, for 'holdfast train'."
    head = lines(title, *(f"# {note}" for note in notes))
    return f"{head}\n\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=110)}\n{ADVICE}"
