"""`holdfast leaderboard`: many ways of fine-tuning on several tracks, each at its own best settings, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import print_json, print_line, stdout_console
from holdfast.cli.study_commands import StorageOptions
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, RunFolderError, did_you_mean
from holdfast.records.leaderboard import ASKED_FILE

if TYPE_CHECKING:
    from holdfast.studies.leaderboard.settings import LeaderboardConfig

PROG = "holdfast leaderboard"
STEPS = {
    "run": "runs every method on every track, or what is left of it",
    "add": "puts a row beside the others: a method of your own, or one of holdfast's",
    "status": "how far each track is, and how long it will take; changes nothing",
    "show": "record, page and tables once more, from what is there",
}
HELP = f"""\
usage: {PROG} run|add|status|show [options]

{chr(10).join(f"  {name:<9} {text}" for name, text in STEPS.items())}

examples
  {PROG} run --config configs/leaderboard/tiny.yaml --dry_run     # runs and time, and all mistakes at once
  {PROG} run --config configs/leaderboard/tiny.yaml
  {PROG} status runs/leaderboard/tiny
  {PROG} add my_method.py:Dropback --output_dir runs/leaderboard/tiny     # computes what is missing
  {PROG} show runs/leaderboard/tiny

'{PROG} run --help' explains the file.
"""
DESCRIPTION = """\
Fine-tunes in many ways on several tracks, every way with its own grid of strengths and its own learning rates, and
holds them against direct fine-tuning and each other at equal target: what of direct's loss each avoids where it has
learnt 50, 80 and 95 % of direct's gain, hypervolume, time, whether old data is needed; ranks, and pairs with one chance
of a false difference for all of them. A track is a study of 'holdfast sweep': several workers, and interrupted it
continues.
"""
EPILOG = f"""\
board.yaml
  tracks:                                # studies of 'holdfast sweep' without vary: keys, or a file with them
    code:
      small: code                        # or train: with a model and data of your own
      train: {{model_name_or_path: "${{base}}", dataset_name: "${{train}}", evaluation: ...}}
      objectives: {{target: functions, source: [prose, facts]}}
      rates: [1.0e-4, 2.0e-4, 4.0e-4]    # in place of the ones below
    gsm8k: {{file: gsm8k.yaml, names: {{replay: old.jsonl}}}}
    before: {{record: runs/my-study}}      # a finished study: read, not run
  methods:                               # as under vary.retention of a sweep, each with values of its strength
    - label_annealing: {{weight: [0.1, 1, 10]}}
    - replay: {{data: "${{replay}}", fraction: [0.05, 0.1, 0.3]}}
    - [{{l2: {{coefficient: [0.01, 0.1]}}}}, {{train: {{learning_rate: [1.0e-4]}}}}]      # rates of its own
    - [{{train: {{use_peft: true, learning_rate: [3.0e-4, 1.0e-3]}}}}, {{label: LoRA}}]
  rates: [1.0e-5, 3.0e-5]                # of direct fine-tuning and of every method
  seeds: [0, 1, 2]                       # at least three
  extend: 2                              # by how many values a grid may grow at each end until it reaches far enough

examples
  {PROG} run --config board.yaml --dry_run
  {PROG} run --config board.yaml --workers 2
"""


@dataclass(frozen=True, kw_only=True)
class RunRequest(StorageOptions):
    """`holdfast leaderboard run`."""

    config: Annotated[Path, Meta(metavar="board.yaml")]
    """The leaderboard, a YAML file such as the one below."""
    output_dir: Annotated[str | None, Meta(metavar="FOLDER")] = None
    """Folder of the leaderboard (runs/NAME)."""
    workers: Annotated[int | None, Meta(ge=0)] = None
    """Runs at a time here (one a GPU; two on two cores; 0: only workers elsewhere)."""
    dry_run: bool = False
    """Check the request, and say how many runs there are and how long they take."""


@dataclass(frozen=True, kw_only=True)
class _Board(StorageOptions):
    folder: Annotated[Path, Meta(positional=True, metavar="FOLDER")]
    """The leaderboard's folder."""


@dataclass(frozen=True, kw_only=True)
class _Form:
    json: bool = False
    """Print the record on standard output, as JSON."""


@dataclass(frozen=True, kw_only=True)
class StatusRequest(_Board):
    """`holdfast leaderboard status`."""


@dataclass(frozen=True, kw_only=True)
class ShowRequest(_Form, _Board):
    """`holdfast leaderboard show`."""


@dataclass(frozen=True, kw_only=True)
class AddRequest(StorageOptions):
    """`holdfast leaderboard add`."""

    output_dir: Annotated[Path, Meta(metavar="FOLDER")]
    """The leaderboard's folder."""
    method: Annotated[str, Meta(positional=True, metavar="METHOD[:KEY=VALUE,...]")]
    """A method by name, FILE.py:CLASS or MODULE:CLASS, with parameters; [0.1,1,10] tries values."""
    label: Annotated[str, Meta(metavar="TEXT")] = ""
    """What the row is called (the method's title)."""
    learning_rate: Annotated[tuple[float, ...], Meta(gt=0, repeatable=True, metavar="RATE")] = ()
    """Rates of its own (the leaderboard's)."""
    workers: Annotated[int | None, Meta(ge=0)] = None
    """Runs at a time here."""
    dry_run: bool = False
    """Check the request, and say how many runs there are."""


RUN = Command(
    name=f"{PROG} run",
    request=RunRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--config board.yaml [options]",
    yaml=False,
)
STATUS = Command(
    name=f"{PROG} status",
    request=StatusRequest,
    description="How far each track of a leaderboard is, and how long the rest takes. Reads only. A track's folder is "
    "one of 'holdfast sweep': 'holdfast sweep status' says more of it.",
    usage="FOLDER [options]",
    yaml=False,
)
SHOW = Command(
    name=f"{PROG} show",
    request=ShowRequest,
    description="Prints a leaderboard's tables, and writes record, page and Markdown anew from what its tracks hold.",
    usage="FOLDER [options]",
    yaml=False,
)
ADD = Command(
    name=f"{PROG} add",
    request=AddRequest,
    description="Puts a method beside those of a leaderboard, on every track, and computes what is missing: nothing "
    "that is there is run again. Without values of its strength: its default, and a tenth and ten times as much of it.",
    epilog=f"""\
examples
  {PROG} add my_method.py:Dropback:rate=[0.01,0.1,1] --output_dir runs/board
  {PROG} add label_annealing:weight=[0.3,1,3],temperature=2 --label warm --output_dir runs/board
""",
    usage="METHOD[:KEY=VALUE,...] --output_dir FOLDER [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast leaderboard --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    step, *rest = argv
    if step not in STEPS:
        raise ConfigError(f"expected '{PROG}' with one of {', '.join(STEPS)}, got '{step}'.{did_you_mean(step, STEPS)}")
    if step == "run":
        return _run(RUN.read(rest))
    if step == "add":
        return _add(ADD.read(rest))
    return _status(STATUS.read(rest)) if step == "status" else _show(SHOW.read(rest))


def _run(request: RunRequest) -> int:
    from holdfast.studies.leaderboard.settings import load_leaderboard

    overrides = {"output_dir": request.output_dir, "workers": request.workers, "storage": request.address}
    return _execute(load_leaderboard(request.config, overrides), request)


def _add(request: AddRequest) -> int:
    from holdfast.runs.settings import parse_compact_method
    from holdfast.studies.leaderboard.settings import with_default_grid

    try:
        row = parse_compact_method(request.method)
    except ValueError as error:
        raise ConfigError(f"METHOD: {error}") from None
    row = [with_default_grid(one) for one in row] if len(row) == 1 else row
    row += [{"train": {"learning_rate": list(request.learning_rate)}}] if request.learning_rate else []
    row += [{"label": request.label}] if request.label else []
    return _execute(_existing(request, add=[row if len(row) > 1 else row[0]]), request)


def _execute(config: LeaderboardConfig, request: RunRequest | AddRequest) -> int:
    from holdfast.reports.leaderboard_report import print_leaderboard
    from holdfast.studies.leaderboard.board import run_leaderboard

    console = stdout_console()
    for line in plan(config, request.workers):
        print_line(console, line)
    if request.dry_run:
        print_line(console, "Dry run: the request is sound; nothing was trained.")
        return 0
    record = run_leaderboard(config, console=console, workers=request.workers, grace=request.grace)
    print_leaderboard(record, config.output_dir, console)
    return 0


def _status(request: StatusRequest) -> int:
    config = _existing(request)
    for line in plan(config, None):
        print_line(stdout_console(), line)
    return 0


def _show(request: ShowRequest) -> int:
    from holdfast.reports.leaderboard_report import print_leaderboard
    from holdfast.studies.leaderboard.board import finish

    record = finish(_existing(request))
    if request.json:
        print_json(record)
    else:
        print_leaderboard(record, request.folder, stdout_console())
    return 0


def plan(config: LeaderboardConfig, workers: int | None) -> list[str]:
    """What is there and what is left, track by track, with the time it takes as far as that is known."""
    from holdfast.reports.format import duration, plural
    from holdfast.studies.leaderboard.board import ahead, time_left
    from holdfast.support.processes import good_workers

    tracks = ahead(config)
    at_once = next(n for n in (workers, config.workers, good_workers()) if n is not None)
    width = max(len(t.track) for t in tracks)
    lines = [f"{config.name}: {plural(len(tracks), 'track')}. Folder: {config.output_dir}"]
    for t in tracks:
        failed = f", {plural(t.failed, 'trial')} failed" if t.failed else ""
        each = "" if t.seconds is None else f", {duration(t.seconds)} each"
        more = f" (up to {t.most} as grids grow)" if t.most > t.runs else ""
        size = f"{plural(t.ways, 'way')}, {plural(t.trials, 'trial')}, {t.done} of {plural(t.runs, 'run')} done{more}"
        lines.append(f"  {t.track:<{width}}  {t.status}: {size}{each}{failed}")
    left, seconds = sum(t.left for t in tracks), time_left(tracks, at_once)
    if left:
        words = "unknown until every track has finished a run" if seconds is None else f"about {duration(seconds)}"
        lines.append(f"Left: {plural(left, 'run')}, {words}, with {plural(max(1, at_once), 'worker')}.")
    return lines


def _existing(request: _Board | AddRequest, *, add: list[Any] | None = None) -> LeaderboardConfig:
    """The leaderboard of a folder, with rows more.

    Raises:
        RunFolderError: there is none.
    """
    from holdfast.studies.leaderboard.settings import load_leaderboard

    folder = request.output_dir if isinstance(request, AddRequest) else request.folder
    file = folder / ASKED_FILE
    if not file.is_file():
        raise RunFolderError(
            f"expected a leaderboard in {folder}, found no {ASKED_FILE}. '{PROG} run --config board.yaml' begins one."
        )
    overrides: dict[str, Any] = {"output_dir": str(folder), "storage": request.address}
    if isinstance(request, AddRequest):
        overrides["workers"] = request.workers
    return load_leaderboard(file, overrides, add=add or [])
