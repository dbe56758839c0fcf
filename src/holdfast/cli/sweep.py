"""`holdfast sweep`: a sweep, its workers, its status, its page."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.help import Section
from holdfast.errors import ConfigError
from holdfast.studies.sweep.settings import SweepSettings

if TYPE_CHECKING:
    from holdfast.studies.engine.session import Opened

PROG = "holdfast sweep"
DESCRIPTION = """\
Fine-tunes a model in many ways, and measures what each trial learnt and forgot. Draws the frontier between learning
and forgetting, and says which trial to take. Three things are computed once, for all trials: the initial model's
figures, direct fine-tuning, and the teacher of label annealing. Interrupted? Run the same command to continue;
finished work is not repeated.
"""
STUDY_YAML = """\
study.yaml
  # a training configuration of 'holdfast train', as a file or as keys
  train: run.yaml
  # each value of a list is tried; an inner list combines methods
  arms:
    - train: {learning_rate: [5.0e-6, 1.0e-5]}     # no method, lower learning rates
    - label_annealing: {weight: {log: [0.1, 10], points: 5}}
    - l2: {coefficient: [0.001, 0.01]}
    - [{replay: {data: old.jsonl}}, {label_annealing: {weight: [0.3, 1]}}]
  vary:
    learning_rate: [1.0e-5, 3.0e-5]    # any key of the training configuration
  # entries of the evaluation section; several entries are averaged
  objectives: {learn: gsm8k, keep: [mmlu, humaneval]}
  seeds: [0, 1, 2]                     # every trial is repeated
  # or random, tpe, nsga2, each with trials: 30
  search: {sampler: grid}
  select: {rule: knee}                 # or keep_within (points: 1pt), paper
  # trials whose weights stay on disk: all, frontier, none
  keep_weights: frontier
  output_dir: runs/my-study
"""
EPILOG = """\
examples
  holdfast sweep --config study.yaml
  # list the trials, and all errors
  holdfast sweep --config study.yaml --dry_run
  holdfast sweep status runs/my-study --watch
  holdfast sweep report runs/my-study --rule knee

  # several machines, one database (pip install 'holdfast[postgres]';
  # $HOLDFAST_STORAGE hides a password)
  holdfast sweep --config study.yaml --storage postgresql://user@host/database
  # on each other machine
  holdfast sweep worker --storage postgresql://user@host/database \\
      --study my-study

  # pip install optuna-dashboard
  optuna-dashboard sqlite:///runs/my-study/study.db
"""


RULES = """\
rules
  paper            of the trials that learn anything, the one with the highest keep gain
  keep_within      of the trials that lose at most --points on keep, the one with the highest learn gain
  knee             the trial at the bend of the frontier

examples
  holdfast sweep report runs/my-study
  holdfast sweep report runs/my-study --rule keep_within --points 1pt
"""


@dataclass(frozen=True, kw_only=True)
class ReportRequest(study_commands.ExistingStudy):
    """`holdfast sweep report`."""

    rule: str | None = None
    """Rule that chooses the trial: paper, keep_within or knee (default: the study's rule)."""
    points: Annotated[str | None, Meta(metavar="LOSS")] = None
    """With keep_within: how far the keep score may fall, in the metric's unit or in points, such
    as 1pt."""
    strict: bool = False
    """Require whole intervals, not only point estimates, to satisfy the rule."""

    def adjust(self, opened: Opened) -> None:
        """Selects by the rule of the options."""
        from holdfast.statistics.rules import rule_from_config
        from holdfast.studies.sweep.session import SweepStudy

        options = {"rule": self.rule, "points": self.points, "strict": self.strict}
        rule = {key: value for key, value in options.items() if value}
        if not rule:
            return
        rule_from_config(rule)
        if not isinstance(opened.study, SweepStudy):
            raise ConfigError(
                f"--rule: applies to sweeps, and '{opened.study.settings.name}' is not a sweep. "
                "Leave --rule out."
            )
        config = opened.study.settings
        settings = dataclasses.replace(
            config, request=dataclasses.replace(config.request, select=rule)
        )
        opened.study = SweepStudy(settings)


COMMAND = Command(
    name=PROG,
    request=SweepSettings,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="yaml", summary="an example of study.yaml with its keys", text=STUDY_YAML),
    ),
    usage="--config study.yaml [options] | worker | status FOLDER | report FOLDER",
    more=(study_commands.dry_run("trials"),),
)
WORKER, STATUS, REPORT = study_commands.step_commands(PROG, ReportRequest, RULES)
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    steps=(WORKER, STATUS, REPORT),
    kind="holdfast.studies.sweep.session:SweepStudy",
    file_needed=True,
    only_queues=True,
)
run = STUDY.run
