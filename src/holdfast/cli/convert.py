"""`holdfast convert`: another tool's training file as one of `holdfast train`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from holdfast.runs.foreign.translation import Draft

DESCRIPTION = """\
Writes a training file of axolotl or LLaMA-Factory, or an older one of trl sft, as one for 'holdfast train', with what
has no counterpart, what comes out differently, and what is still missing before it runs here. Nothing is loaded or
downloaded; the file itself stays as it is.
"""
EPILOG = """\
examples
  holdfast convert axolotl.yml                                   # prints the file
  holdfast convert axolotl.yml --output run.yaml
  holdfast convert llama3_lora_sft.yaml --dataset_info data/dataset_info.json --output run.yaml
  holdfast train --config run.yaml --dry_run

what is taken over
  Supervised fine-tuning on text: full, LoRA, 4 and 8 bits, packing, schedules, precision, data sets with their
  layouts, held-out shares, trackers. Where the other tool has another default, it is written out. Preference tuning,
  rewards, images and GPTQ are refused with the reason.
  Files of mergekit need no conversion: 'holdfast merge --config' takes them.
"""


@dataclass(frozen=True, kw_only=True)
class ConvertRequest:
    """`holdfast convert`."""

    file: Annotated[Path, Meta(positional=True, metavar="FILE")]
    """The file to convert."""
    tool: Literal["axolotl", "llama_factory", "trl"] | None = None
    """Whose it is; default: its keys tell."""
    dataset_info: Annotated[Path | None, Meta(metavar="FILE")] = None
    """LLaMA-Factory's dataset_info.json; default: in its dataset_dir."""
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
    title, draft = converted(request)
    left = remaining(draft.settings)
    text = as_yaml(title, request.file, draft, left)
    if request.output is None:
        sys.stdout.write(text)
        return 0
    write_bytes_atomic(request.output, text.encode())
    told = [f"Wrote {request.output}, a file of {title} for 'holdfast train'."]
    for heading, sentences in _told(draft, left):
        told += ["", heading, *(f"  {sentence}" for sentence in sentences)]
    sys.stdout.write("\n".join(told) + "\n")
    return 0


def converted(request: ConvertRequest) -> tuple[str, Draft]:
    """The name of the tool, and its file for `holdfast train`.

    Raises:
        ConfigError: the file cannot be read, is none of these tools', or asks for what holdfast does not do.
    """
    from holdfast.config.yaml_file import read_yaml
    from holdfast.runs.foreign.llama_factory import INFO
    from holdfast.runs.foreign.tools import TOOLS, is_merge, tool_of
    from holdfast.runs.foreign.translation import Draft, translate
    from holdfast.runs.foreign.trl import modern
    from holdfast.runs.settings import OWN, known_settings

    file = read_yaml(request.file, option="FILE", needs="a model and data")
    file.check()
    if is_merge(file.values):
        raise ConfigError(f"{request.file} is a merge request: 'holdfast merge --config {request.file}' takes it.")
    found = tool_of(file.values)
    name = request.tool or (found[0] if found else "trl")
    if request.dataset_info is not None:
        if name != "llama_factory":
            raise ConfigError(f"--dataset_info: belongs to a file of LLaMA-Factory, and {request.file} is none.")
        file.values[INFO] = str(request.dataset_info)
    if name != "trl":
        try:
            return TOOLS[name].title, translate(TOOLS[name], file.values, known_settings())
        except ConfigError as error:
            raise ConfigError(error.problems, source=str(request.file)) from error
    now, notes = modern(file)
    now.check()
    known = {*known_settings(), *OWN}
    strange = [key for key in now.values if key.replace("-", "_") not in known]
    draft = Draft(values=dict(file.values), notes=notes)
    for key in strange:
        draft.leave_out(key, f"Neither trl sft nor holdfast has such a key.{did_you_mean(key, known)}")
    draft.settings = {key: value for key, value in now.values.items() if key not in strange}
    return "trl", draft


def remaining(settings: dict[str, Any]) -> list[str]:
    """What keeps a run from starting here."""
    from holdfast.config.decode import Given
    from holdfast.runs.config import checked

    try:
        checked(Given(values=dict(settings)))
    except ConfigError as error:
        return error.problems
    return []


def _told(draft: Draft, left: list[str]) -> list[tuple[str, list[str]]]:
    parts = (
        ("Without counterpart, left out:", draft.left_out),
        ("To know:", draft.notes),
        ("Before it runs here:", left),
    )
    return [(heading, sentences) for heading, sentences in parts if sentences]


def as_yaml(title: str, source: Path, draft: Draft, left: list[str]) -> str:
    """The file, with what is to be told in front.

    Args:
        title: the tool's name.
        source: the file that it was.
        draft: what came of it.
        left: see `remaining`.
    """
    import textwrap

    import yaml

    lines = [f"# {source.name}, a file of {title}, for 'holdfast train'."]
    for heading, sentences in _told(draft, left):
        lines += ["#", f"# {heading}"]
        for sentence in sentences:
            flat = " ".join(sentence.split())
            lines += textwrap.wrap(flat, 110, initial_indent="#   ", subsequent_indent="#     ")
    body = yaml.safe_dump(draft.settings, sort_keys=False, allow_unicode=True, width=110)
    advice = (
        "# What keeps the old skills, and what is measured before and after ('holdfast train --help'):\n"
        "# retention: [{label_annealing: {weight: 1.0}}]\n"
        "# evaluation: {source: [prose.jsonl, hellaswag], target: [held_out.jsonl]}\n"
    )
    return "\n".join(lines) + "\n\n" + body + "\n" + advice
