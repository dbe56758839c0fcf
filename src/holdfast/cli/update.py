"""`holdfast update`: keep an instruct model current: continue its base on new text, add the
instruction residual, measure, report."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli import study_commands
from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command
from holdfast.config.help import Section
from holdfast.studies.update.settings import UpdateSettings

DESCRIPTION = """\
Updates an instruct model on new text without instruction data. Training the instruct model itself on new text damages
instruction following. So its BASE is trained on the new text, and what instruction tuning had changed is added back:

  new instruct model = (base + new text) + scale * (instruct - base)

Documents are packed whole into windows, and no document attends to another. A part of the documents is held out and
measured. Base, instruct and result are measured in the same way and compared. Interrupted? Run the same command to
continue.
"""
UPDATE = """\
update.yaml (every key is an option too)
  base: meta-llama/Meta-Llama-3-8B
  instruct: meta-llama/Meta-Llama-3-8B-Instruct
  corpus: [news/, more.jsonl.gz]        # text, JSONL, Parquet; folders too
  after: 2023-12-01                     # only newer documents
  tokens: 100M                          # of the corpus; default: all
  # keys of 'holdfast train' for the continued base
  train:
    learning_rate: 1.0e-5
    use_peft: true                      # LoRA in place of full fine-tuning
    retention: [{label_annealing: {weight: 0.3}}]
  evaluation: {suites: [instruction_residual]}
  # also train the instruct model itself on the text, to see what that costs
  continued_instruct: true
  # and repair that model by on-policy distillation, for comparison
  restore: {prompts: prompts.jsonl}
  scale: 1                              # of the residual
  output_dir: runs/update
"""
OUTPUT = """\
output
  FOLDER/models/<result>/    the updated model: safetensors, the instruct model's tokenizer and chat template
  FOLDER/report.html         what was gained and kept, and how the model was made
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


COMMAND = Command(
    name="holdfast update",
    request=UpdateSettings,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="output", summary="the files that are written", text=OUTPUT),
        Section(name="yaml", summary="an example of update.yaml", text=UPDATE),
    ),
    usage="--base MODEL --instruct MODEL --corpus PATH... [options]",
    more=(study_commands.dry_run("models"),),
)
WORKER, STATUS, REPORT = study_commands.step_commands("holdfast update")
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    steps=(WORKER, STATUS, REPORT),
    kind="holdfast.studies.update.study:UpdateStudy",
)
run = STUDY.run


def report(folder: Path) -> None:
    """Writes the page of an update's folder and prints its figures; of a study of the residual,
    which has a record of the same name, too."""
    from holdfast.records.residual import read_update
    from holdfast.reports.update_report import print_update, write_update_report

    record = read_update(folder)
    if record.kind == "study":
        study_commands.report(study_commands.ExistingStudy(folder=folder))
    else:
        write_update_report(folder, record)
        print_update(record, folder, stdout_console())
