"""`holdfast residual study`: budgets, siblings, derived models and scales of the instruction residual, made and
measured once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli import study_commands
from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command, switch_is_on
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake
from holdfast.studies.residual.settings import StudySettings

PROG = "holdfast residual"

DESCRIPTION = """\
Makes every model of a grid once and measures all alike: base and instruct models as they are and continued on budgets
of new text, base + residual at each, residuals on sibling versions and on derived models, scales of the residual. The
page has the tables of the paper in its layout beside its figures, and scores against tokens, compute and scale.
Interrupted? The same command continues. Several machines: one --storage and a shared folder, 'holdfast residual worker'
on the others.
"""
EPILOG = """\
study.yaml
  families:                             # pairs of base and instruct
    llama-3:   {base: meta-llama/Meta-Llama-3-8B, instruct: meta-llama/Meta-Llama-3-8B-Instruct}
    llama-3.1: {base: meta-llama/Llama-3.1-8B, instruct: meta-llama/Llama-3.1-8B-Instruct}
  continued: [llama-3]                  # which are continued on the new text (the first)
  starts: [base, instruct]              # and what of them
  corpus: [news/]
  after: 2023-12-01
  budgets: [100M, 500M, 1B]             # a column each
  derived: {docchat: cerebras/Llama3-DocChat-1.0-8B}
  scales: [1]                           # of the residual
  seeds: [0]
  train: {learning_rate: 1.0e-5, bf16: true}
  evaluation: {suites: [instruction_residual]}
  output_dir: runs/residual

examples
  holdfast residual study --config study.yaml --dry_run
  holdfast residual study --config study.yaml --workers 1
  holdfast residual study --config configs/residual/tiny.yaml       # minutes on two cores, offline
"""


@dataclass(frozen=True, kw_only=True)
class StudyRequest(StudySettings):
    """`holdfast residual study`."""

    dry_run: Annotated[bool, Meta(yaml=False)] = False
    """Checks the request and lists the models."""


COMMAND = Command(
    name="holdfast residual study",
    request=StudyRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--config study.yaml [options]",
)
WORKER = study_commands.worker_command(PROG)
STATUS = study_commands.status_command(PROG)
REPORT = study_commands.report_command(PROG)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast residual study --help`."""
    given = COMMAND.given(argv)
    if given.file is None:
        text = "is missing: expected a study, as in 'holdfast residual study --config study.yaml'."
        given.check([Mistake(path=(), text=f"--config {text}")])
    dry_run = switch_is_on(given, next(s for s in COMMAND.settings if s.name == "dry_run"))
    given.take("dry_run")

    from holdfast.studies.residual.plan import study_config

    path = Path(str(given.file))
    given.values = {"name": path.stem, **given.values}
    config = study_config(given, base_dir=path.parent)
    if dry_run:
        for number, model in enumerate(config.models(), 1):
            print(f"{number:>3}. {model.label}")
        print(f"Folder: {config.output_dir}")
        return 0
    from holdfast.reports.residual_report import print_update
    from holdfast.studies.residual.grid import run_residual_study

    shown = stdout_console()
    record = run_residual_study(config, console=shown, workers=config.workers)
    print_update(record, config.output_dir, shown)
    return 0


def run_on_study(step: str, argv: list[str]) -> int:
    """`holdfast residual worker`, `status` and `report`."""
    return study_commands.on_study((WORKER, STATUS, REPORT), step, argv, _kind, _show)


def _show() -> Any:
    from holdfast.reports.residual_report import print_update

    return print_update


def _kind() -> Any:
    from holdfast.studies.residual.grid import ResidualStudy

    return ResidualStudy
