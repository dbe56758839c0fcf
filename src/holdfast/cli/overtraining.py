"""`holdfast overtraining`: what a modification costs checkpoints of rising pre-training budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.papers.overtraining.settings import OvertrainingSettings

DESCRIPTION = """\
Takes the checkpoints of a ladder (one model at rising pre-training budgets) and modifies each alike: noise, few bits
and pruning without training, and fine-tuning on your tasks over learning rates, batch sizes, schedules, LoRA and
retention methods. It shows what each modification costs at each budget, where longer pre-training turns from help to
harm (the inflection point), the learning rate that validation data chooses at each budget, and whether retention moves
any of it. Checkpoints of a task with images get a vision tower first (align). In-domain and generalist figures are
paired with the checkpoint's own; intervals cover seeds and samples. Interrupted? The same command continues. Several
machines: one --storage and a shared folder, 'holdfast overtraining worker' on the others.
"""
EPILOG = """\
overtraining.yaml
  ladder: runs/ladder/15M.yaml               # as 'holdfast ladder train' writes it, or a list of models with tokens
  probe: {noise: [0.01, 0.03], quantize: [int4]}
  tasks:
    sentiment:
      train: {dataset_name: mr-train.jsonl}
      validation: [{choices: mr-valid.jsonl}]          # chooses the learning rate of each budget
      test: [{choices: mr-test.jsonl}]                 # is reported
  generalist: [{perplexity: web.jsonl}, {task: arc_easy, num_fewshot: 5}]
  train: {per_device_train_batch_size: 64}             # keys of 'holdfast train'; 4 epochs, early stopping
  vary:
    learning_rate: {log: [1.0e-5, 1.0e-3], points: 7}
    retention: [direct, {label_annealing: {weight: 1}}, sfa, [{train: {use_peft: true}}, {label: LoRA}]]
  seeds: [0, 1, 2]

examples
  holdfast overtraining --config overtraining.yaml --dry_run       # the jobs, and all mistakes at once
  holdfast overtraining --config configs/overtraining/tiny.yaml    # offline, minutes; needs configs/ladder/tiny.yaml
  holdfast overtraining status runs/overtraining --watch
  holdfast overtraining report runs/overtraining                   # table and page once more
"""


@dataclass(frozen=True, kw_only=True)
class OvertrainingRequest(OvertrainingSettings):
    """`holdfast overtraining`."""

    dry_run: Annotated[bool, Meta(yaml=False)] = False
    """Checks the request and lists the jobs."""


COMMAND = Command(
    name="holdfast overtraining",
    request=OvertrainingRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--config overtraining.yaml [options] | worker | status FOLDER | report FOLDER",
)
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    config="holdfast.papers.overtraining.plan:overtraining_config",
    execute="holdfast.papers.overtraining.study:run_overtraining",
    show="holdfast.papers.overtraining.page:print_overtraining",
    kind="holdfast.papers.overtraining.study:OvertrainingStudy",
    file_needed=True,
)
WORKER, STATUS, REPORT = STUDY.steps
run = STUDY.run
