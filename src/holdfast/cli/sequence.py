"""`holdfast sequence`: tasks trained one after another in many ways, and what each way keeps of the earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli import study_commands
from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command, switch_is_on
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake
from holdfast.studies.sequence.settings import SequenceSettings

PROG = "holdfast sequence"

DESCRIPTION = """\
Fine-tunes a model on tasks one after another, in every way that is asked for, and measures all tasks after each: plain
sequential fine-tuning, single tasks, multitask training, rehearsal, any retention method with its strengths, merges of
the single-task models. What arms have in common is trained once. The page has the plane of the tasks, distances,
forgetting curves and the matrix of tasks by stage with its measures.
Interrupted? The same command continues. Several machines: one --storage and a shared folder, 'holdfast sequence worker'
on the others.
"""
EPILOG = """\
tasks.yaml
  train: {model_name_or_path: MODEL, learning_rate: 1.0e-5, num_train_epochs: 1}   # common to all tasks
  tasks:
    math: {train: {dataset_name: math.jsonl}, evaluation: [{task: gsm8k}, {perplexity: math_heldout.jsonl}]}
    law:  {train: {dataset_name: law.jsonl}, evaluation: [{choices: casehold.jsonl, name: casehold}]}
  orders: [[math, law], [law, math]]      # as listed, where this is left out
  arms:
    - sequential
    - single                              # each task from the base
    - multitask                           # all data at once: the upper line
    - replay: {fraction: 0.1}             # rehearsal: of all earlier tasks' data
    - sfa: {p: [1, 0.75, 0.5, 0.25]}      # any retention method; a list is tried value by value
    - label_annealing: {weight: [0.3, 1]}
    - ewc: {coefficient: [100, 1000]}     # Fisher information of the earlier tasks' data
    - merge: {method: task_arithmetic, weights: [[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]]}
  seeds: [0, 1, 2]
  output_dir: runs/math-law

examples
  holdfast sequence --config tasks.yaml --dry_run            # the models that would be made
  holdfast sequence --config tasks.yaml --workers 2
  holdfast sequence status runs/math-law --watch
  holdfast sequence report runs/math-law                     # record and page once more
"""


@dataclass(frozen=True, kw_only=True)
class SequenceRequest(SequenceSettings):
    """`holdfast sequence`."""

    dry_run: Annotated[bool, Meta(yaml=False)] = False
    """Checks the request and lists the models."""


COMMAND = Command(
    name=PROG,
    request=SequenceRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--config tasks.yaml [options] | worker | status FOLDER | report FOLDER",
)
WORKER = study_commands.worker_command(PROG)
STATUS = study_commands.status_command(PROG)
REPORT = study_commands.report_command(PROG)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast sequence --help`."""
    if argv[:1] and argv[0] in study_commands.STEPS:
        return study_commands.on_study((WORKER, STATUS, REPORT), argv[0], argv[1:], _kind, _show)
    given = COMMAND.given(argv)
    if given.file is None:
        text = f"is missing: expected a study, as in '{PROG} --config tasks.yaml'."
        given.check([Mistake(path=(), text=f"--config {text}")])
    dry_run = switch_is_on(given, next(s for s in COMMAND.settings if s.name == "dry_run"))
    given.take("dry_run")

    from holdfast.studies.sequence.plan import sequence_config

    given.values = {"name": Path(str(given.file)).stem, **given.values}
    config = sequence_config(given)
    if dry_run:
        for number, job in enumerate(config.jobs(), 1):
            print(f"{number:>3}. {job.attributes['label']}")
        print(f"Folder: {config.output_dir}")
        return 0
    from holdfast.reports.sequence_report import print_sequence
    from holdfast.studies.sequence.study import run_sequence

    shown = stdout_console()
    record = run_sequence(config, console=shown, workers=config.workers)
    print_sequence(record, config.output_dir, shown)
    return 0


def _show() -> Any:
    from holdfast.reports.sequence_report import print_sequence

    return print_sequence


def _kind() -> Any:
    from holdfast.studies.sequence.study import SequenceStudy

    return SequenceStudy
