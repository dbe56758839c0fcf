"""`holdfast report FOLDER`: the figures of a run, an evaluation or a study in the terminal, its `report.html` written
anew."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import RunFolderError
from holdfast.records.run import RunFolder
from holdfast.support.paths import expanded

DESCRIPTION = (
    "Prints the summary of a run, an evaluation, a probe, an update or a study (finished or not) and writes its "
    "report.html again from what the folder holds."
)
EPILOG = """\
examples
  holdfast report runs/Qwen3-0.6B-label_annealing
  # the output folder of 'holdfast evaluate'
  holdfast report measured
  holdfast report probed                              # of 'holdfast probe'
  # of 'holdfast sweep'; 'holdfast sweep report' has more options
  holdfast report runs/my-study
"""


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """`holdfast report`."""

    folder: Annotated[Path, Meta(positional=True, metavar="FOLDER")]
    """The output folder of 'holdfast train', 'evaluate', 'probe', 'sweep', 'sequence', 'diagnose', 'update' or
    'study'."""


COMMAND = Command(
    name="holdfast report",
    request=ReportRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="FOLDER",
    yaml=False,
)


STUDIES = {
    "study.json": "sweep",
    "sequence.json": "sequence",
    "stages.json": "diagnose",
    "ladder.json": "study",
    "overtraining.json": "study",
}
"""The record in a study's folder, and the command whose `report` shows it."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast report --help`."""
    given = COMMAND.read(argv).folder
    if (given / "evaluate.json").is_file():
        from holdfast.cli.evaluate import show_output
        from holdfast.evaluation.output import Output

        found = Output(given)
        show_output(found, found.labels, None, stdout_console())
        return 0
    if (given / "probe.json").is_file():
        from holdfast.cli.probe import show_probe

        show_probe(given, stdout_console())
        return 0
    for record, command in STUDIES.items():
        if (given / record).is_file():
            found_command = importlib.import_module(f"holdfast.cli.{command}")
            return int(found_command.run(["report", str(given)]))
    if (given / "update.json").is_file():
        return _study_or_update(given)
    folder = find_run(given)

    from holdfast.reports.run_report import print_run_summary, write_run_report

    write_run_report(folder)  # first: the summary names the page where there is one
    print_run_summary(folder, stdout_console())
    return 0


def _study_or_update(folder: Path) -> int:
    """The record of both is update.json; only an update is of one base and one instruct model."""
    from holdfast.records.residual import read_update

    record = read_update(folder)
    if "instruct" not in record.config:
        from holdfast.cli import study

        return study.run(["report", str(folder)])
    from holdfast.reports.update_report import print_update, write_update_report

    write_update_report(folder, record)
    print_update(record, folder, stdout_console())
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
    inside = sorted(str(p.parent) for p in path.glob("*/run.json")) if path.is_dir() else []
    if inside:
        raise RunFolderError(
            f"expected a run in {path}, found {len(inside)} run folders inside it. Choose one:",
            *(f"  holdfast report {p}" for p in inside[:10]),
        )
    raise RunFolderError(f"expected the output folder of a run in {path}, but it has no run.json.")
