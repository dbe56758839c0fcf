"""`holdfast residual study`: budgets, siblings, derived models and scales of the instruction residual, made and
measured once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.papers.residual.settings import StudySettings

DESCRIPTION = """\
Makes every model of a grid once and measures all alike: base and instruct models as they are and continued on budgets
of new text, base + residual at each, residuals on sibling versions and on derived models, scales of the residual. The
page has the tables of the paper in its layout beside its figures, scores against new tokens, and whether residuals
carry over. Interrupted? The same command continues. Several machines: one --storage and a shared folder, 'holdfast
residual study worker' on the others.
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
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    config="holdfast.papers.residual.plan:study_config",
    execute="holdfast.papers.residual.study:run_residual_study",
    show="holdfast.papers.residual.page:print_study",
    kind="holdfast.papers.residual.study:ResidualStudy",
    file_needed=True,
)
