"""What every study has at the command line: `worker`, `status` and `report`, on whichever study it is."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.checkpoints.named import check_on_hub
from holdfast.cli.console import print_json, stdout_console, write
from holdfast.config.command_line import Command, switch_is_on
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake
from holdfast.support.environment import without_compiler

if TYPE_CHECKING:
    from holdfast.studies.engine.session import Opened

WATCH_SECONDS = 3.0
STEPS = ("worker", "status", "report")
Kind = Callable[[], Any]
"""Imports the class of a study; called once the options are known to be sound."""


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Where the state of a study is kept."""

    storage: Annotated[str | None, Meta(metavar="URL")] = None
    """Database of the study: sqlite:///FILE, postgresql://user@host/database ($HOLDFAST_STORAGE)."""
    grace: Annotated[float, Meta(gt=0, finite=False, metavar="SECONDS")] = 60.0
    """Time without a sign of life after which a worker counts as dead."""

    @property
    def address(self) -> str | None:
        """The storage's address from the option, or from the environment."""
        return self.storage or os.environ.get("HOLDFAST_STORAGE")


@dataclass(frozen=True, kw_only=True)
class KindOption:
    """For studies that are not the command's own."""

    kind: Annotated[str | None, Meta(metavar="FILE.py:CLASS")] = None
    """Class of a study of your own."""

    def study_class(self, default: Kind) -> Any:
        """The class that `--kind` names, else the command's."""
        from holdfast.studies.engine.session import kind_named

        return kind_named(self.kind) if self.kind else default()


@dataclass(frozen=True, kw_only=True)
class _StudyName:
    folder: Annotated[Path | None, Meta(positional=True, metavar="FOLDER")] = None
    """The study's folder."""
    study: Annotated[str | None, Meta(metavar="NAME")] = None
    """Name of the study, where only its storage is known."""


@dataclass(frozen=True, kw_only=True)
class ExistingStudy(StorageOptions, _StudyName):
    """`PROG report`, and what every command on an existing study takes."""

    def problems(self) -> list[str]:
        """A study that nothing names."""
        if self.folder is not None or self.address is not None:
            return []
        return [
            "expected the folder of a study, as in 'holdfast sweep status runs/my-study', or --storage and --study."
        ]


@dataclass(frozen=True, kw_only=True)
class _StatusForm(KindOption):
    watch: bool = False
    """Stay, and show it anew every few seconds."""
    json: bool = False
    """Print the record of this moment on standard output, as JSON."""


@dataclass(frozen=True, kw_only=True)
class StatusRequest(_StatusForm, ExistingStudy):
    """`PROG status`."""


@dataclass(frozen=True, kw_only=True)
class _WorkerPlace:
    study: Annotated[str | None, Meta(metavar="NAME")] = None
    """Name of the study (needed where the storage holds several)."""
    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Where this worker writes its runs (the study's own folder, seen from here)."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest(StorageOptions, KindOption, _WorkerPlace):
    """`PROG worker`."""

    def problems(self) -> list[Mistake | str]:
        """No storage, or a folder that is to hold one and is not there."""
        if self.address is not None:
            return []
        if self.output_dir is None:
            return [
                "--storage is missing: expected the address of the study's database, such as "
                "postgresql://user@host/database."
            ]
        if not self.output_dir.is_dir():
            return [Mistake(path=("output_dir",), text=f"no such folder: {self.output_dir}")]
        return []


def worker_command(prog: str) -> Command[WorkerRequest]:
    """`PROG worker`, of a prog such as "holdfast sweep"."""
    return Command(
        name=f"{prog} worker",
        request=WorkerRequest,
        description="Does jobs of a study until none is left. Start as many as you like, on as many machines as reach "
        "the storage.",
        epilog=f"""\
examples
  {prog} worker --storage postgresql://user@host/database \\
      --study my-study

Model, data and evaluation files are looked for where the study names them, from this working directory: start workers
in a copy of the project. Runs are written to --output_dir; figures go to the storage, so the page of the study needs no
shared disk. With a shared disk, name the same folder. A worker that dies loses nothing: another one continues its job,
from its last checkpoint where the folder is shared, else from the beginning.
""",
        yaml=False,
    )


def worker(request: WorkerRequest, kind: Kind) -> int:
    """`PROG worker`: joins a study until no job is left.

    Args:
        request: the options.
        kind: the study's class, where `--kind` names no other.
    """
    from holdfast.studies.engine.session import run_worker

    run_worker(
        request.study_class(kind),
        storage=request.address,
        name=request.study,
        output_dir=request.output_dir,
        grace=request.grace,
        console=stdout_console(),
    )
    return 0


def status_command(prog: str) -> Command[StatusRequest]:
    """`PROG status`, of a prog such as "holdfast sweep"."""
    return Command(
        name=f"{prog} status",
        request=StatusRequest,
        description="What a study is doing. Reads only.",
        usage="FOLDER [options]",
        yaml=False,
    )


def status(request: StatusRequest, kind: Kind) -> int:
    """`PROG status`: how far a study is; changes nothing."""
    with opened(request, request.study_class(kind)) as found:
        target = stdout_console()
        if request.json:
            print_json(found.record())
        elif request.watch and target.is_terminal:
            watch(found, target)
        else:
            found.study.print_status(found.state(), target)
    return 0


def watch(found: Opened, target: Any) -> None:
    """Shows a study until it has ended."""
    from rich.live import Live

    with Live(console=target, refresh_per_second=1, screen=False) as live:
        while True:
            state = found.state()
            live.update(found.study.status(state))
            if state.status in ("finished", "failed"):
                return
            time.sleep(WATCH_SECONDS)


def report_command(prog: str, request: type[ExistingStudy] = ExistingStudy, epilog: str = "") -> Command[Any]:
    """`PROG report`.

    Args:
        prog: such as "holdfast sweep".
        request: with the study's own options, where it has some.
        epilog: examples.
    """
    return Command(
        name=f"{prog} report",
        request=request,
        description="Prints a study's table and writes its record and page anew.",
        epilog=epilog,
        usage="FOLDER [options]",
        yaml=False,
    )


def report(found: Opened, show: Callable[[Any, Path, Any], None]) -> None:
    """`PROG report`: writes record and page anew, and prints them with `show(record, folder, console)`."""
    from holdfast.studies.engine.session import finish

    show(finish(found), Path(found.study.settings.output_dir), stdout_console())


def on_study(
    commands: tuple[Command[Any], Command[Any], Command[Any]],
    step: str,
    argv: list[str],
    kind: Kind,
    show: Callable[[], Callable[..., None]],
) -> int:
    """`PROG worker`, `PROG status` and `PROG report` of a study without options of its own.

    Args:
        commands: these three.
        step: one of `STEPS`.
        argv: what follows it.
        kind: imports the study's class.
        show: imports what prints a record, `print(record, folder, console)`.
    """
    command = commands[STEPS.index(step)]
    if step == "worker":
        return worker(command.read(argv), kind)
    if step == "status":
        return status(command.read(argv), kind)
    with opened(command.read(argv), kind()) as found:
        report(found, show())
    return 0


@dataclass(frozen=True, kw_only=True)
class StudyCommand:
    """A study at the command line: from options and a file, or an existing one. What it needs is named as
    `module:name` and imported once it is used."""

    command: Command[Any]
    """With a switch `dry_run`."""
    config: str
    """`config(given)`: the study's settings."""
    execute: str
    """`execute(config, console=..., workers=...)`: its record."""
    show: str
    """`show(record, folder, console)`."""
    kind: str
    """Class of the study."""
    file_needed: bool = False
    """Whether options alone cannot say what is asked."""
    only_queues: bool = False
    """Whether all jobs run in worker processes, so that this one computes nothing."""
    prog: str = ""
    """What `STEPS` follow, where that is not the command itself."""

    @property
    def steps(self) -> tuple[Command[Any], Command[Any], Command[Any]]:
        """The commands of `STEPS`."""
        prog = self.prog or self.command.name
        return worker_command(prog), status_command(prog), report_command(prog)

    def run(self, argv: list[str]) -> int:
        """Runs the command, or one of `STEPS`."""
        if argv[:1] and argv[0] in STEPS:
            return on_study(self.steps, argv[0], argv[1:], lambda: _named(self.kind), lambda: _named(self.show))
        given = self.command.given(argv)
        if given.file is None and self.file_needed:
            text = f"--config is missing: expected a study, as in '{self.command.name} --config study.yaml'."
            given.check([Mistake(path=(), text=text)])
        dry_run = switch_is_on(given, next(s for s in self.command.settings if s.name == "dry_run"))
        given.take("dry_run")
        if given.file is not None:
            given.values = {"name": Path(str(given.file)).stem, **given.values}
        with without_compiler() if dry_run or self.only_queues else contextlib.nullcontext():
            config = _named(self.config)(given)
        if dry_run:
            base = getattr(config, "base", None)
            if base is not None and not config.resolved.get("small"):
                check_on_hub(base)
            for number, job in enumerate(config.jobs(), 1):
                write(f"{number:>3}. {job.attributes['label']}")
            write(f"Folder: {config.output_dir}")
            return 0
        shown = stdout_console()
        record = _named(self.execute)(config, console=shown, workers=config.workers)
        _named(self.show)(record, config.output_dir, shown)
        return 0


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@contextlib.contextmanager
def opened(request: ExistingStudy, kind: Any) -> Iterator[Opened]:
    """The study that a request names.

    Raises:
        ConfigError, RunFolderError: it is not there.
    """
    from holdfast.studies.engine.session import open_existing

    with open_existing(kind, request.folder, storage=request.storage, name=request.study) as found:
        yield found
