"""`holdfast sweep`: a sweep, its workers, its status, its page."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli import study_commands
from holdfast.cli.console import print_line, stdout_console, write
from holdfast.config.command_line import Command
from holdfast.config.declare import MAX_SEED, Meta
from holdfast.config.help import Section
from holdfast.errors import ConfigError, did_you_mean
from holdfast.printable import lines
from holdfast.support.environment import without_compiler

if TYPE_CHECKING:
    from holdfast.studies.engine.session import Opened

PROG = "holdfast sweep"
SUBJECTS = {
    "worker": "runs trials of a study that another command began, here or on another machine",
    "status": "what is running, what is done, how long it will take; changes nothing",
    "report": "the table again, the page anew, also with another rule of selection",
}
DESCRIPTION = """\
Fine-tunes in many ways, measures what each learnt and what each forgot, draws the frontier between the two, and says
which one to take. Start, direct fine-tuning and label annealing's teacher are computed once and shared.
Interrupted? The same command continues; nothing finished is done again.
"""
STUDY_YAML = """\
study.yaml
  # a training configuration of 'holdfast train', as a file or as keys
  train: run.yaml
  # a list varies, an inner list is a combination of methods
  arms:
    - train: {learning_rate: [5.0e-6, 1.0e-5]}     # no method, at lower rates
    - label_annealing: {weight: {log: [0.1, 10], points: 5}}
    - l2: {coefficient: [0.001, 0.01]}
    - [{replay: {data: old.jsonl}}, {label_annealing: {weight: [0.3, 1]}}]
  vary:
    learning_rate: [1.0e-5, 3.0e-5]    # any key of the training configuration
  # entries of its evaluation section; several: their mean
  objectives: {learn: gsm8k, keep: [mmlu, humaneval]}
  seeds: [0, 1, 2]                     # every trial is repeated
  # or random, tpe, nsga2, these with trials: 30
  search: {sampler: grid}
  select: {rule: knee}                 # or keep_within (points: 1pt), paper
  # whose weights stay on disk: all, frontier, none
  keep_weights: frontier
  output_dir: runs/my-study
"""
EPILOG = f"""\
also
  holdfast sweep worker      {SUBJECTS["worker"]}
  holdfast sweep status      {SUBJECTS["status"]}
  holdfast sweep report      {SUBJECTS["report"]}

examples
  holdfast sweep --config study.yaml
  # the trials, and all mistakes
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
  paper            leave out what does not improve on the start; of the rest, what keeps most
  keep_within      of those that lose at most --points of what is kept, what learns most
  knee             the bend of the frontier

examples
  holdfast sweep report runs/my-study
  holdfast sweep report runs/my-study --rule keep_within --points 1pt
"""


@dataclass(frozen=True, kw_only=True)
class _Study:
    config: Annotated[Path, Meta(metavar="study.yaml")]
    """The study, a YAML file such as the one below."""
    output_dir: Annotated[str | None, Meta(metavar="FOLDER")] = None
    """Folder of the study (runs/NAME)."""
    name: str | None = None
    """Name of the study in its storage (the file's name)."""


@dataclass(frozen=True, kw_only=True)
class _Trials:
    workers: Annotated[int | None, Meta(ge=0)] = None
    """Trials at a time here (one a GPU; two on two cores; 0: only workers elsewhere)."""
    seeds: Annotated[tuple[int, ...] | None, Meta(ge=0, le=MAX_SEED, least=1)] = None
    """Repetitions of every trial."""
    dry_run: bool = False
    """Check the request and list the trials."""


@dataclass(frozen=True, kw_only=True)
class SweepRequest(_Trials, study_commands.StorageOptions, _Study):
    """`holdfast sweep`."""


@dataclass(frozen=True, kw_only=True)
class _Selection:
    rule: str | None = None
    """Which trial to take: paper, keep_within or knee (the study's)."""
    points: Annotated[str | None, Meta(metavar="LOSS")] = None
    """With keep_within: the loss of what is kept that is allowed, in the metric's unit or as 1pt."""
    strict: bool = False
    """Whole intervals have to be on the right side, not only the figures."""

    def selection(self) -> dict[str, Any] | None:
        """A study's `select:` section in place of its own; None: its own stays."""
        if not (self.rule or self.points or self.strict):
            return None
        from holdfast.statistics.rules import DEFAULT_RULE

        rule = {"rule": self.rule or ("keep_within" if self.points else "paper" if self.strict else DEFAULT_RULE)}
        return rule | {k: v for k, v in (("points", self.points), ("strict", self.strict)) if v}


@dataclass(frozen=True, kw_only=True)
class ReportRequest(_Selection, study_commands.ExistingStudy):
    """`holdfast sweep report`."""

    def adjust(self, opened: Opened) -> None:
        """Selects by the rule of the options."""
        from holdfast.statistics.rules import rule_from_config

        if (rule := self.selection()) is not None:
            rule_from_config(rule)
            settings = dataclasses.replace(opened.study.settings, select=rule)
            opened.study = type(opened.study)(settings)


COMMAND = Command(
    name=PROG,
    request=SweepRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(Section(name="yaml", summary="study.yaml: its keys, by an example", text=STUDY_YAML),),
    usage="--config study.yaml [options]",
    yaml=False,
)
WORKER, STATUS, REPORT = study_commands.step_commands(PROG, ReportRequest, RULES)
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    steps=(WORKER, STATUS, REPORT),
    config="holdfast.studies.sweep.study:load_study",
    execute="holdfast.studies.sweep.session:run_study",
    show="holdfast.cli.sweep:print_outcome",
    kind="holdfast.studies.sweep.session:SweepStudy",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast sweep --help`."""
    if argv and not argv[0].startswith("-"):
        step, *rest = argv
        if step in SUBJECTS:
            return STUDY.run_step(step, rest)
        if step.endswith((".yaml", ".yml")):
            advice = f" For a study file write '--config {step}'."
        else:
            advice = did_you_mean(step, SUBJECTS) or f" Known: {', '.join(SUBJECTS)}."
        raise ConfigError(f"unknown 'holdfast sweep {step}'.{advice}")
    request = COMMAND.read(argv)

    from holdfast.checkpoints.named import check_on_hub
    from holdfast.studies.sweep.study import load_study

    overrides = {name: getattr(request, name) for name in ("output_dir", "name", "workers", "seeds")}
    with without_compiler():  # trials run in worker processes
        config = load_study(request.config, {**overrides, "storage": request.address})
    from holdfast.studies.engine.models import check_local_model
    from holdfast.studies.sweep.session import run_study

    if request.dry_run:
        check_local_model(config.train.get("model_name_or_path"), config.train)
        if config.request.toy is None:
            check_on_hub(str(config.train["model_name_or_path"]))
        from holdfast.studies.sweep.plan_text import plan_text

        write(plan_text(config))
        return 0
    console = stdout_console()
    record = run_study(config, console=console, workers=request.workers, grace=request.grace)
    print_outcome(record, config.output_dir, console, all_rules=False)
    return 0


def print_outcome(record: Any, out: Path, console: Any, *, all_rules: bool = True) -> None:
    """What came of a study, the command that trains the chosen trial, and where the page is.

    Args:
        record: of the study.
        out: its folder.
        console: what is written to.
        all_rules: what every rule would choose; False: what the study's own rule chooses.
    """
    from holdfast.reports.sweep_text import print_sweep
    from holdfast.statistics.selection import select_all
    from holdfast.studies.engine.study import PAGE
    from holdfast.studies.sweep.session import CHOSEN

    selections = select_all(record)
    print_sweep(record, selections if all_rules else selections[:1], console)
    if selections[0].chosen is not None:
        again = f"Train it again, or on more data:  holdfast train --config {out / CHOSEN}"
        print_line(console, lines("", again))
    if not all_rules:
        print_line(console, f"What other rules choose:  holdfast sweep report {out}")
    print_line(console, f"Report    {out / PAGE}")
