"""`holdfast report FOLDER`: a run's figures in the terminal, its `report.html` written anew."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.options import OptionParser, console, nearest
from holdfast.errors import RunFolderError
from holdfast.results import RunFolder

DESCRIPTION = "Prints the summary of a run (finished or not) and writes its report.html again from what the folder holds."
EPILOG = """\
example
  holdfast report runs/Qwen3-0.6B-label_annealing
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast report --help`."""
    parser = OptionParser(prog="holdfast report", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path, help="the output folder of a run, the one with run.json")
    folder = find_run(parser.parse(argv).folder)

    from holdfast.reports.run_report import write_run_report
    from holdfast.reports.terminal import print_run_summary

    write_run_report(folder)  # first: the summary names the page where there is one
    print_run_summary(folder, console())
    return 0


def find_run(path: Path) -> RunFolder:
    """The run in a folder.

    Raises:
        RunFolderError: there is none, with the runs found inside or beside it.
    """
    path = path.expanduser()
    if path.name == "run.json":
        path = path.parent
    folder = RunFolder(path)
    if folder.exists():
        return folder
    if not path.exists():
        beside = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        near = [str(path.parent / n) for n in nearest(path.name, beside)]
        raise RunFolderError(f"no such folder: {path}.{' Did you mean ' + ' or '.join(near) + '?' if near else ''}")
    inside = sorted(str(p.parent) for p in path.glob("*/run.json")) if path.is_dir() else []
    if inside:
        listed = "\n".join(f"  holdfast report {p}" for p in inside[:10])
        raise RunFolderError(f"expected a run in {path}, found {len(inside)} run folders inside it. Choose one:\n{listed}")
    raise RunFolderError(f"expected the output folder of a run in {path}, but it has no run.json.")
