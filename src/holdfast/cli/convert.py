"""`holdfast convert`: another tool's training file as one of `holdfast train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.console import write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import ConfigError
from holdfast.printable import Lines

DESCRIPTION = """\
Converts a training file of axolotl or LLaMA-Factory into one for 'holdfast train'. The comment at the top of the new
file lists all differences. If the old file has keys without a counterpart, the error names all of them, and nothing
is written. The old file does not change, and nothing is loaded or downloaded.
"""
EPILOG = """\
examples
  # prints the file
  holdfast convert axolotl.yml
  holdfast convert axolotl.yml --output run.yaml
  holdfast convert llama3_lora_sft.yaml --dataset_info data/dataset_info.json \\
      --output run.yaml
  holdfast train --config run.yaml --dry_run

It converts supervised fine-tuning on text: full, LoRA, 4 and 8 bits, packing, schedules, precision, DFT, EAFT and
ASFT, data sets with their layouts, held-out shares, trackers. If the other tool has a different default, the new file
states it. Files of trl sft need no conversion: 'holdfast train --config' reads them, older ones too. 'holdfast merge
--config' reads files of mergekit.
"""


@dataclass(frozen=True, kw_only=True)
class ConvertRequest:
    """`holdfast convert`."""

    file: Annotated[Path, Meta(positional=True, metavar="FILE")]
    """The file to convert."""
    dataset_info: Annotated[Path | None, Meta(metavar="FILE")] = None
    """LLaMA-Factory's list of data sets. Default: the list that the converted file names
    (train_dataset, or dataset_info.json in its dataset_dir)."""
    output: Annotated[Path | None, Meta(metavar="FILE")] = None
    """File to write. Default: print the result."""
    overwrite: bool = False
    """Replace an existing file."""


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
    request = COMMAND.read(argv)

    from holdfast.runs.foreign.conversion import as_yaml, read_foreign
    from holdfast.support.files import write_bytes_atomic

    if request.output is not None and request.output.exists() and not request.overwrite:
        raise ConfigError(
            f"--output {request.output}: the file exists already. Add --overwrite, or choose "
            "another name."
        )
    text = as_yaml(request.file, *read_foreign(request.file, request.dataset_info))
    if request.output is None:
        write(Lines(text.removesuffix("\n")))
        return 0
    write_bytes_atomic(request.output, text.encode())
    write(
        f"Wrote {request.output}. The comment at its top lists the differences. To check the file: "
        f"'holdfast train --config {request.output} --dry_run'."
    )
    return 0
