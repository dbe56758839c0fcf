"""`holdfast report FOLDER`: the figures of a run, an evaluation or a study in the terminal, its
`report.html` written anew."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli import study_commands
from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import RunFolderError
from holdfast.records.run import RunFolder
from holdfast.support.paths import expanded

DESCRIPTION = (
    "Prints the summary of a run, an evaluation, a probe, an update or a study (finished or not), "
    "and writes its report.html again from the files in its folder."
)
EPILOG = """\
examples
  # the output folder of 'holdfast train'
  holdfast report runs/Qwen3-0.6B-label_annealing
  # the output folder of 'holdfast evaluate'
  holdfast report measured
  # the output folder of 'holdfast probe'
  holdfast report probed
  # the output folder of 'holdfast sweep'; see also 'holdfast sweep report'
  holdfast report runs/my-study
"""


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """`holdfast report`."""

    folder: Annotated[Path, Meta(positional=True, metavar="FOLDER")]
    """The output folder of 'holdfast train', 'evaluate', 'probe', 'sweep', 'sequence', 'diagnose',
    'update' or 'study'."""


COMMAND = Command(
    name="holdfast report",
    request=ReportRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="FOLDER",
    yaml=False,
)


STUDY_RECORDS = ("study.json", "sequence.json", "stages.json", "ladder.json", "overtraining.json")
"""The record in a study's folder."""
RECORDS = {"evaluate.json": "evaluate", "probe.json": "probe", "update.json": "update"}
"""The record in another folder, and the command whose `report` shows it."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast report --help`."""
    path = COMMAND.read(argv).folder
    if any((path / record).is_file() for record in STUDY_RECORDS):
        study_commands.report(study_commands.ExistingStudy(folder=path))
        return 0
    for record, name in RECORDS.items():
        if (path / record).is_file():
            importlib.import_module(f"holdfast.cli.{name}").report(path)
            return 0
    folder = find_run(path)

    from holdfast.reports.run_report import print_run_summary, write_run_report

    write_run_report(folder)  # first: the summary names the page where there is one
    print_run_summary(folder, stdout_console())
    return 0


def find_run(path: Path) -> RunFolder:
    """The run in a folder.

    Raises:
        RunFolderError: there is none, with the runs found inside or beside it.
    """
    path = expanded(path)
    if path.name == "run.json":
        path = path.parent
    folder = RunFolder(path)
    if folder.exists():
        return folder
    if not path.exists():
        raise RunFolderError(f"no such folder: {path}.{nearest_sibling(path, accept=Path.is_dir)}")
    runs = sorted(str(file.parent) for file in path.glob("*/run.json"))
    if runs:
        commands = [f"  holdfast report {run}" for run in runs[:10]]
        raise RunFolderError(
            f"expected a run in {path}, found {len(runs)} run folders inside it. Choose one:",
            *commands,
        )
    raise RunFolderError(f"expected the output folder of a run in {path}, but it has no run.json.")
