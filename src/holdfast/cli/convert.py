"""`holdfast convert`: another tool's training file as one of `holdfast train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import ConfigError
from holdfast.printable import Lines, lines, printable

if TYPE_CHECKING:
    from holdfast.runs.foreign.translation import Tool

DESCRIPTION = """\
Writes a training file of axolotl or LLaMA-Factory as one for 'holdfast train', with what comes out differently.
Keys without a counterpart are named all at once, and nothing is written. Nothing is loaded or downloaded; the file
itself stays as it is.
"""
EPILOG = """\
examples
  # prints the file
  holdfast convert axolotl.yml
  holdfast convert axolotl.yml --output run.yaml
  holdfast convert llama3_lora_sft.yaml --dataset_info data/dataset_info.json \\
      --output run.yaml
  holdfast train --config run.yaml --dry_run

It takes over supervised fine-tuning on text: full, LoRA, 4 and 8 bits, packing, schedules, precision, DFT, EAFT and
ASFT, data sets with their layouts, held-out shares, trackers. Where the other tool has another default, it is written
out. Files of trl sft, older ones too, need no conversion: 'holdfast train --config' takes them. Those of mergekit:
'holdfast merge --config'.
"""
ADVICE = """\
# What keeps the old skills, and what is measured before and after ('holdfast train --help'):
# retention: [{label_annealing: {weight: 1.0}}]
# evaluation: {source: [prose.jsonl, hellaswag], target: [held_out.jsonl]}
"""


@dataclass(frozen=True, kw_only=True)
class ConvertRequest:
    """`holdfast convert`."""

    file: Annotated[Path, Meta(positional=True, metavar="FILE")]
    """The file to convert."""
    dataset_info: Annotated[Path | None, Meta(metavar="FILE")] = None
    """LLaMA-Factory's file of data sets; default: dataset_info.json in its dataset_dir, or what train_dataset names."""
    output: Annotated[Path | None, Meta(metavar="FILE")] = None
    """Where the result is written; default: it is printed."""
    overwrite: bool = False
    """Replaces a file that is there."""


COMMAND = Command(
    name="holdfast convert",
    request=ConvertRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="FILE [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast convert --help`."""
    from holdfast.support.files import write_bytes_atomic

    request = COMMAND.read(argv)
    if request.output is not None and request.output.exists() and not request.overwrite:
        raise ConfigError(f"--output {request.output}: is there already. Add --overwrite, or choose another name.")
    tool, settings, template_name = converted(request)
    text = as_yaml(request.file, tool, settings, template_name)
    if request.output is None:
        write(Lines(text.removesuffix("\n")))
        return 0
    write_bytes_atomic(request.output, text.encode())
    write(
        f"Wrote {request.output}. Its head says what comes out differently; 'holdfast train --config "
        f"{request.output} --dry_run' checks it."
    )
    return 0


def converted(request: ConvertRequest) -> tuple[Tool, dict[str, Any], str]:
    """The tool that the file belongs to, its settings as `holdfast train` has them, and the name of its chat template
    ("" without one).

    Raises:
        ConfigError: the file cannot be read, is none of these tools', or asks for what holdfast does not do.
    """
    from holdfast.config.yaml_file import read_yaml
    from holdfast.runs.foreign.tools import tool_of
    from holdfast.runs.foreign.translation import translate
    from holdfast.runs.settings import known_settings

    file = read_yaml(request.file, option="FILE", needs="a model and data")
    file.check()
    tool = tool_of(file)
    if tool is None:
        raise ConfigError(
            f"{request.file}: its keys are neither axolotl's nor LLaMA-Factory's. One of trl sft needs no conversion: "
            f"'holdfast train --config {request.file}'."
        )
    if request.dataset_info is not None:
        file.values["dataset_info"] = str(request.dataset_info)
    template_name = str(file.values.get(tool.table["template"]) or "")
    return tool, translate(tool, file.values, known_settings(), str(request.file)), template_name


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
        not_read = f"{tool.table['template']}: {printable(template_name)} is not read. " if template_name else ""
        notes.append(f"{not_read}The model's own chat template is used; chat_template_path names another.")
    head = lines(f"# {source.name}, a file of {tool.table['title']}, for 'holdfast train'.", *(f"# {n}" for n in notes))
    return f"{head}\n\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=110)}\n{ADVICE}"
