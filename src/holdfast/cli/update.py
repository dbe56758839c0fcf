"""`holdfast update`: keep an instruct model current: continue its base on new text, add the instruction residual,
measure, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.console import stdout_console, write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, Setting
from holdfast.config.decode import Given
from holdfast.config.help import Section
from holdfast.studies.update.settings import UpdateSettings

if TYPE_CHECKING:
    from holdfast.studies.update.plan import UpdateConfig

DESCRIPTION = """\
Keeps an instruct model current without instruction data. To train it on new text ruins how it follows instructions; so
its BASE is trained on the new text, and what instruction tuning had changed is added back:

  new instruct model = (base + new text) + scale * (instruct - base)

Documents are packed whole into windows, none sees another one; a part is held out and measured. Base, instruct and
result are measured alike and held against each other. Interrupted? The same command continues; nothing finished is done
again.
"""
UPDATE = """\
update.yaml (every key is an option too)
  base: meta-llama/Meta-Llama-3-8B
  instruct: meta-llama/Meta-Llama-3-8B-Instruct
  corpus: [news/, more.jsonl.gz]        # text, JSONL, Parquet; folders too
  after: 2023-12-01                     # only what is new
  tokens: 100M                          # of it; left out: all
  # keys of 'holdfast train' for the continued base
  train:
    learning_rate: 1.0e-5
    use_peft: true                      # LoRA in place of full fine-tuning
    retention: [{label_annealing: {weight: 0.3}}]
  evaluation: {suites: [instruction_residual]}
  # also continue the instruct model itself, to see what that would have cost
  continued_instruct: true
  # and bring it back by on-policy distillation, as the residual's rival
  restore: {prompts: prompts.jsonl}
  # try several; 1 is kept unless another is better with its whole interval
  scales: [0.5, 0.75, 1, 1.25]
  output_dir: runs/update
"""
OUTPUT = """\
output
  FOLDER/models/<result>/    the updated model: safetensors, the instruct model's tokenizer and chat template
  FOLDER/report.html         what was gained, what was kept, how it was made
  FOLDER/update.json         the same for programs
"""
EPILOG = """\
examples
  # checks models, corpus, tasks
  holdfast update --base BASE --instruct INSTRUCT --corpus news/ --dry_run
  holdfast update --base BASE --instruct INSTRUCT --corpus news/ \\
      --after 2024-01-01 --tokens 100M \\
      --train learning_rate=1e-5 use_peft=true \\
      --evaluation instruction_residual
  holdfast update --config update.yaml
"""


DRY_RUN = Setting(
    name="dry_run",
    types=(bool,),
    default=False,
    help="Checks models, corpus files and tasks, and prints what would be done.",
    meta=Meta(yaml=False),
)
COMMAND = Command(
    name="holdfast update",
    request=UpdateSettings,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="output", summary="the files that are written", text=OUTPUT),
        Section(name="yaml", summary="update.yaml, by an example", text=UPDATE),
    ),
    usage="--base MODEL --instruct MODEL --corpus PATH... [options]",
    more=(DRY_RUN,),
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast update --help`."""
    request = COMMAND.given(argv)
    dry_run = COMMAND.take_switch(request, "dry_run")
    config = read_config(request)
    if dry_run:
        from holdfast.studies.update.plan_text import plan_text

        write(*plan_text(config))
        return 0
    from holdfast.reports.update_report import print_update
    from holdfast.studies.update.study import update

    console = stdout_console()
    print_update(update(config, console=console), config.output_dir, console)
    return 0


def read_config(given: Given) -> UpdateConfig:
    """The configuration of a request.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.studies.update.plan import update_config

    words = given.values.get("train")
    if "train" in given.from_line and words:
        merged: dict[str, Any] = {}
        for word in words:
            if isinstance(word, dict):
                merged |= word
        given.values["train"] = merged if all(isinstance(word, dict) for word in words) else words[0]
    if "evaluation" in given.from_line:
        given.values["evaluation"] = {"suites": given.values["evaluation"]}
    return update_config(given)


def report(folder: Path) -> None:
    """Writes the page of an update's folder and prints its figures; of a study of the residual, which has a record of
    the same name, too."""
    from holdfast.records.residual import read_update
    from holdfast.reports.update_report import print_update, write_update_report

    record = read_update(folder)
    if record.kind == "study":
        from holdfast.cli import study

        study.run(["report", str(folder)])
    else:
        write_update_report(folder, record)
        print_update(record, folder, stdout_console())
