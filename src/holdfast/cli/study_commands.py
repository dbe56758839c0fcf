"""What every study has at the command line: the study out of options and a file, and the steps
`worker`, `status` and `report` on one that was begun."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.checkpoints.named import check_on_hub
from holdfast.cli.console import print_json, stdout_console, write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, Setting
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.support.environment import without_compiler

if TYPE_CHECKING:
    from holdfast.studies.engine.session import Opened

WATCH_SECONDS = 3.0
STEPS = ("worker", "status", "report")


@dataclass(frozen=True, kw_only=True)
class _StorageOption:
    storage: Annotated[str | None, Meta(metavar="URL")] = None
    """Database of the study: sqlite:///FILE, postgresql://user@host/database (default:
    $HOLDFAST_STORAGE)."""

    @property
    def address(self) -> str | None:
        """The storage's address from the option, or from the environment."""
        return self.storage or os.environ.get("HOLDFAST_STORAGE")


@dataclass(frozen=True, kw_only=True)
class _StudyName:
    folder: Annotated[Path | None, Meta(positional=True, metavar="FOLDER")] = None
    """The study's folder."""
    study: Annotated[str | None, Meta(metavar="NAME")] = None
    """Name of the study, if --storage is given in place of FOLDER."""


@dataclass(frozen=True, kw_only=True)
class ExistingStudy(_StorageOption, _StudyName):
    """`PROG report`, and what every command on an existing study takes."""

    def problems(self) -> list[str]:
        """A study that nothing names."""
        if self.folder is not None or self.address is not None:
            return []
        return [
            "expected the folder of a study, as in 'holdfast sweep status runs/my-study', or "
            "--storage and --study."
        ]

    def opened(self) -> contextlib.AbstractContextManager[Opened]:
        """The study that the options name.

        Raises:
            ConfigError, RunFolderError: it is not there.
        """
        from holdfast.studies.engine.session import open_existing

        return open_existing(self.folder, storage=self.storage, name=self.study)

    def adjust(self, opened: Opened) -> None:
        """Changes what `PROG report` shows of a study, where options say so."""


@dataclass(frozen=True, kw_only=True)
class StatusRequest(ExistingStudy):
    """`PROG status`."""

    watch: bool = False
    """Refresh the display every few seconds."""
    json: bool = False
    """Print the current record as JSON on standard output."""


@dataclass(frozen=True, kw_only=True)
class _WorkerPlace:
    study: Annotated[str | None, Meta(metavar="NAME")] = None
    """Name of the study (needed if the storage has several)."""
    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder for this worker's runs (default: the study's folder)."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest(_StorageOption, _WorkerPlace):
    """`PROG worker`."""

    grace: Annotated[float, Meta(gt=0, finite=False, metavar="SECONDS")] = 60.0
    """Seconds without a heartbeat after which a worker counts as dead."""

    def problems(self) -> list[str]:
        """No storage, or a folder that is to hold one and is not there."""
        if self.address is not None:
            return []
        if self.output_dir is None:
            return [
                "--storage is missing: expected the address of the study's database, such as "
                "postgresql://user@host/database."
            ]
        if not self.output_dir.is_dir():
            return [Problem("output_dir", f"no such folder: {self.output_dir}")]
        return []


Steps = tuple[Command[WorkerRequest], Command[StatusRequest], Command[Any]]
"""The commands of `STEPS`."""


def step_commands(
    prog: str, report: type[ExistingStudy] = ExistingStudy, report_epilog: str = ""
) -> Steps:
    """`PROG worker`, `PROG status` and `PROG report`.

    Args:
        prog: such as "holdfast sweep".
        report: the request of `PROG report`, with the study's own options, where it has some.
        report_epilog: its examples.
    """
    worker = Command(
        name=f"{prog} worker",
        request=WorkerRequest,
        description=(
            "Runs jobs of a study until none is left. Start any number of workers, on any machine "
            "that can reach the storage."
        ),
        epilog=f"""\
examples
  {prog} worker --storage postgresql://user@host/database \\
      --study my-study

A worker reads the study's paths of models, data and evaluation files relative to its working directory: start workers
in a copy of the project. Runs are written to --output_dir. Figures go to the storage, so the page of the study needs no
shared disk. With a shared disk, give all workers the same folder. If a worker dies, another worker takes its job. The
job continues from the last checkpoint if the folder is shared, else it starts again.
""",
        yaml=False,
    )
    status = Command(
        name=f"{prog} status",
        request=StatusRequest,
        description="Shows the progress of a study, and changes nothing.",
        usage="FOLDER [options]",
        yaml=False,
    )
    again = Command(
        name=f"{prog} report",
        request=report,
        description="Prints a study's table, and writes its record and page again.",
        epilog=report_epilog,
        usage="FOLDER [options]",
        yaml=False,
    )
    return worker, status, again


def dry_run(jobs: str) -> Setting:
    """The switch `--dry_run` of a study whose jobs are called so."""
    text = f"Checks the request and lists the {jobs}."
    return Setting(name="dry_run", types=(bool,), default=False, help=text, meta=Meta(yaml=False))


@dataclass(frozen=True, kw_only=True)
class StudyCommand:
    """A study at the command line: from options and a file, or an existing one."""

    command: Command[Any]
    """With a switch `dry_run`."""
    steps: Steps
    kind: str
    """Class of the study, as `module:name`; it is imported when it is first used."""
    file_needed: bool = False
    """Whether the command needs a file, because options alone cannot describe the study."""
    only_queues: bool = False
    """Whether all jobs run in worker processes, so that the command itself computes nothing."""

    def run(self, argv: list[str]) -> int:
        """Runs the command, or one of `STEPS`."""
        name = self.command.name
        if argv and not argv[0].startswith("-"):
            if argv[0] in STEPS:
                return run_step(self.steps, argv[0], argv[1:])
            hint = (
                did_you_mean(argv[0], STEPS) or f" For a study's file write '--config {argv[0]}'."
            )
            raise ConfigError(f"unknown '{name} {argv[0]}'.{hint}")
        request = self.command.given(argv)
        if request.file is None and self.file_needed:
            text = f"--config is missing: expected a study, as in '{name} --config study.yaml'."
            request.check([Problem((), text)])
        dry = self.command.take_switch(request, "dry_run")
        implied = {
            "name": Path(request.file or "").stem,
            "storage": os.environ.get("HOLDFAST_STORAGE"),
        }
        for setting in self.command.settings:
            if implied.get(setting.name):
                request.values.setdefault(setting.name, implied[setting.name])
        study_class = pkgutil.resolve_name(self.kind)
        with without_compiler() if dry or self.only_queues else contextlib.nullcontext():
            study = study_class(study_class.config_class.read(request))
        if dry:
            print_plan(study)
            return 0
        from holdfast.studies.engine.session import execute_study

        console = stdout_console()
        study.show(execute_study(study, console=console), console)
        return 0


def print_plan(study: Any) -> None:
    """What `--dry_run` prints of a study whose settings are sound."""
    config = study.settings
    base = getattr(config, "base", None)
    if base is not None and not config.resolved.get("toy"):
        check_on_hub(base)
    write(*study.dry_run(), f"Folder: {config.output_dir}")


def run_step(steps: Steps, step: str, argv: list[str]) -> int:
    """Runs one of `STEPS` on an existing study, whose class its storage names, with the words that
    follow it."""
    worker, status, again = steps
    if step == "worker":
        work(worker.read(argv))
    elif step == "status":
        print_status(status.read(argv))
    else:
        report(again.read(argv))
    return 0


def work(request: WorkerRequest) -> None:
    """Joins a study until no job is left."""
    from holdfast.studies.engine.session import run_worker

    run_worker(
        storage=request.address,
        name=request.study,
        output_dir=request.output_dir,
        grace=request.grace,
        console=stdout_console(),
    )


def report(request: ExistingStudy) -> None:
    """Writes record and page of a study anew, and prints them."""
    from holdfast.studies.engine.session import finish

    with request.opened() as opened:
        request.adjust(opened)
        record = finish(opened)
        opened.study.show(record, stdout_console())


def print_status(request: StatusRequest) -> None:
    """Prints how far a study is; with `--watch`, until it has ended."""
    from holdfast.studies.engine.progress import status_table

    with request.opened() as opened:
        console = stdout_console()
        if request.json:
            print_json(opened.record())
        elif request.watch and console.is_terminal:
            watch(opened, console)
        else:
            console.print(status_table(opened.study, opened.state()))


def watch(opened: Opened, console: Any) -> None:
    """Shows a study until it has ended."""
    from rich.live import Live

    from holdfast.studies.engine.progress import status_table

    with Live(console=console, refresh_per_second=1, screen=False) as live:
        while True:
            state = opened.state()
            live.update(status_table(opened.study, state))
            if state.status in ("finished", "failed"):
                return
            time.sleep(WATCH_SECONDS)
