"""`holdfast residual study`: budgets, siblings, derived models and scales of the instruction residual, made and
measured once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.cli import study_commands
from holdfast.cli.options import console
from holdfast.cli.request import Request, RequestParser, read_yaml

PROG = "holdfast residual"

DESCRIPTION = """\
Makes every model of a grid once and measures all alike: base and instruct models as they are and continued on budgets of
new text, base + residual at each, residuals on sibling versions and on derived models, scales of the residual. The page
has the tables of the paper in its layout beside its figures, and scores against tokens, compute and scale.
Interrupted? The same command continues. Several machines: one --storage and a shared folder, 'holdfast residual worker' on the others.
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


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast residual study --help`."""
    request = Request(build_parser(), argv)
    path = request.text("study", None)
    if path is None:
        request.problems.append(
            "--config is missing: expected a study, as in 'holdfast residual study --config study.yaml'"
        )
    workers = request.whole("workers", None, least=0)
    changed = {name: request.text(name, None) for name in ("output_dir", "storage", "name") if request.has(name)}
    dry_run = request.on("dry_run")
    request.check()

    from holdfast.studies.residual.plan import study_config

    given = read_yaml(Path(str(path)))
    config = study_config(
        {"name": Path(str(path)).stem, **given, **changed}, source=str(path), base_dir=Path(str(path)).parent
    )
    if dry_run:
        for number, model in enumerate(config.models(), 1):
            print(f"{number:>3}. {model.label}")
        print(f"Folder: {config.output_dir}")
        return 0
    from holdfast.reports.residual_text import print_update
    from holdfast.studies.residual.grid import run_study

    shown = console()
    record = run_study(config, console=shown, workers=workers)
    print_update(record, config.output_dir, shown)
    return 0


def run_on_study(step: str, argv: list[str]) -> int:
    """`holdfast residual worker`, `status` and `report`."""
    if step != "report":
        return (study_commands.worker if step == "worker" else study_commands.status)(PROG, _kind, argv)
    from holdfast.reports.residual_text import print_update

    options = study_commands.report_parser(PROG, "").parse(argv)
    with study_commands.opened(options, _kind()) as found:
        study_commands.report(found, print_update)
    return 0


def _kind() -> Any:
    from holdfast.studies.residual.grid import ResidualStudy

    return ResidualStudy


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(
        prog="holdfast residual study",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="--config study.yaml [options]",
        yaml=False,
    )
    parser.values["study"] = "one"
    parser.add_argument("--config", dest="study", metavar="study.yaml", default=_suppressed(), help="the study")
    parser.one("workers", "N", "models at a time here (one a GPU; two on two cores; 0: only workers elsewhere)")
    parser.one("output_dir", "FOLDER", "folder of the study (runs/NAME)")
    parser.one("name", "NAME", "of the study in its storage (the file's name)")
    parser.one("storage", "URL", "a database that several machines share, such as postgresql://user@host/database")
    parser.switch("dry_run", "checks the request and lists the models")
    return parser


def _suppressed() -> str:
    import argparse

    return argparse.SUPPRESS
