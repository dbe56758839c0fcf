"""`holdfast sequence`: tasks trained one after another in many ways, and what each way keeps of the
earlier ones."""

from __future__ import annotations

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.help import Section
from holdfast.studies.sequence.settings import SequenceSettings

PROG = "holdfast sequence"

DESCRIPTION = """\
Fine-tunes a model on tasks one after another, and measures all tasks after each one. Compares the arms that you list:
plain sequential fine-tuning, single tasks, multitask training, replay, retention methods at several strengths, and
merges of the single-task models. Stages that arms share are trained once. The page plots earlier tasks against the last
task, the distance of the weights, and forgetting curves. Its tables have the tasks by stage and measures of forgetting.
Interrupted? Run the same command to continue. Several machines: use one --storage and a shared folder, and start
'holdfast sequence worker' on the others.
"""
TASKS = """\
tasks.yaml
  train:                                  # common to all tasks
    model_name_or_path: MODEL
    learning_rate: 1.0e-5
    num_train_epochs: 1
  tasks:
    math:
      train: {dataset_name: math.jsonl}
      learn: [{task: gsm8k}, {perplexity: math_heldout.jsonl}]
    law:
      train: {dataset_name: law.jsonl}
      learn: [{multiple_choice: casehold.jsonl, name: casehold}]
  orders: [[math, law], [law, math]]      # default: as listed
  arms:
    - sequential
    - single                              # each task from the base
    - multitask                           # all data at once: the upper bound
    - replay: {fraction: 0.1}             # old data, of all earlier tasks
    - sfa: {p: [1, 0.75, 0.5, 0.25]}      # any method; each value of a list is tried
    - label_annealing: {weight: [0.3, 1]}
    - ewc: {coefficient: [100, 1000]}     # Fisher information of earlier data
    - merge: {method: task_arithmetic, weights: [[0.25, 0.75], [0.5, 0.5]]}
  seeds: [0, 1, 2]
  output_dir: runs/math-law
"""
EPILOG = """\
examples
  # the models that would be made
  holdfast sequence --config tasks.yaml --dry_run
  holdfast sequence --config tasks.yaml --workers 2
  holdfast sequence status runs/math-law --watch
  # write record and page again
  holdfast sequence report runs/math-law
"""


COMMAND = Command(
    name=PROG,
    request=SequenceSettings,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(Section(name="yaml", summary="an example of tasks.yaml with its keys", text=TASKS),),
    usage="--config tasks.yaml [options] | worker | status FOLDER | report FOLDER",
    more=(study_commands.dry_run("models"),),
)
WORKER, STATUS, REPORT = study_commands.step_commands(PROG)
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    steps=(WORKER, STATUS, REPORT),
    kind="holdfast.studies.sequence.study:SequenceStudy",
    file_needed=True,
    only_queues=True,
)
run = STUDY.run
