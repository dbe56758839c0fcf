"""`holdfast watch FOLDER`: a run or a study while it runs, as a page that follows it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import print_line, stdout_console
from holdfast.cli.study_commands import KindOption
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import RunFolderError
from holdfast.records.run import RunFolder
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from holdfast.reports.live import Look

DESCRIPTION = """\
Serves a page that follows a run or a study: curves, time left, the forecast, what was measured so far; of a study the
jobs by state, what each worker does, the frontier or table so far. It reads what is on disk and changes nothing; a run
that has ended and is continued goes on on the page. Ctrl-C ends it; the run does not notice.
"""
EPILOG = """\
examples
  holdfast watch runs/Qwen3-0.6B-label_annealing
  holdfast watch runs/my-study
  holdfast watch runs/next --wait                     # begun before the run is
  ssh -L 8642:127.0.0.1:8642 machine                  # the page of another machine, at http://127.0.0.1:8642/

'holdfast report FOLDER' writes a page that stays; 'holdfast sweep status FOLDER --watch' follows a study in the
terminal.
"""
STORES = ("study.db", ".quickstart.db")
"""Files of a study's folder that its jobs are kept in."""


@dataclass(frozen=True, kw_only=True)
class _Storage:
    storage: Annotated[str | None, Meta(metavar="URL")] = None
    """Database of a study that is not in its folder ($HOLDFAST_STORAGE)."""
    study: Annotated[str | None, Meta(metavar="NAME")] = None
    """Name of the study, where the storage holds several."""


@dataclass(frozen=True, kw_only=True)
class WatchRequest(_Storage, KindOption):
    """`holdfast watch`."""

    folder: Annotated[Path, Meta(positional=True, metavar="FOLDER")]
    """The output folder of 'holdfast train', or of a study: 'sweep', 'sequence', 'diagnose', 'overtraining', 'ladder
    train', 'residual study'."""
    port: Annotated[int | None, Meta(ge=0, le=65535)] = None
    """Of the server; 0: any that is free (8642 or the next free one, where left out)."""
    host: str = "127.0.0.1"
    """Where the server listens; 0.0.0.0: to the whole network, without a password."""
    wait: bool = False
    """Begin although the folder is not there yet."""


COMMAND = Command(
    name="holdfast watch",
    request=WatchRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="FOLDER [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast watch --help`."""
    request = COMMAND.read(argv)
    folder = expanded(request.folder)
    folder = folder.parent if folder.name in ("run.json", "study.json") and folder.is_file() else folder
    watched = Watched(request, folder)
    if not request.wait:
        watched.check()

    from holdfast.reports.live import LivePage
    from holdfast.reports.live_run import opening_page
    from holdfast.reports.live_server import serving

    live = LivePage(watched, waiting=opening_page(folder))
    console = stdout_console()
    with serving(live, host=request.host, port=request.port) as server:
        print_line(console, f"Watching {folder} at {server.url}  (Ctrl-C ends)")
        if not server.local_only:
            print_line(console, "Note: everybody who reaches this address can read the page; there is no password.")
        sys.stdout.flush()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            if console.is_terminal:
                print()  # behind the ^C
    return 0


class Watched:
    """What is in a folder, once something is.

    Args:
        request: the options.
        folder: there or not, a run's or a study's.
    """

    def __init__(self, request: WatchRequest, folder: Path) -> None:
        self.request, self.folder = request, folder
        self._take: Callable[[], Look] | None = None

    def __call__(self) -> Look:
        """How it is now.

        Raises:
            HoldfastError: it cannot be read at the moment.
        """
        from holdfast.reports.live import Look
        from holdfast.reports.live_run import waiting_page

        if self._take is None:
            self._take = self._found()
        return self._take() if self._take is not None else Look(page=waiting_page(self.folder, "run or study"))

    def check(self) -> None:
        """Looks once.

        Raises:
            RunFolderError: no such folder, or there is something else in it.
            DataError: the run's record cannot be read.
        """
        folder = self.folder
        if not folder.is_dir():
            raise RunFolderError(
                f"no such folder: {folder}.{nearest_sibling(folder, accept=Path.is_dir)} For a run that has not begun: "
                f"--wait."
            )
        if self._found() is None and any(not p.name.startswith(".") for p in folder.iterdir()):
            raise RunFolderError(f"expected a run or a study in {folder}, but it is neither.{_inside(folder)}")
        if RunFolder(folder).exists():
            RunFolder(folder).read()

    def _found(self) -> Callable[[], Look] | None:
        """What looks at it; None as long as there is nothing to look at."""
        from holdfast.cli.report import STUDIES

        request, folder = self.request, self.folder
        store = next((name for name in STORES if (folder / name).is_file()), None)
        study = store is not None or any((folder / name).is_file() for name in STUDIES)
        if study or request.storage is not None:
            from holdfast.studies.engine.live import WatchedStudy

            kind: Any = request.study_class(lambda: None)
            storage = request.storage or (f"sqlite:///{folder}/{store}" if store == STORES[1] else None)
            return WatchedStudy(folder, kind=kind, storage=storage, name=request.study)
        if not RunFolder(folder).exists():
            return None
        from holdfast.reports.live_run import WatchedRun

        return WatchedRun(RunFolder(folder))


def _inside(folder: Path) -> str:
    """The runs and studies in a folder, as commands; else what its files are for."""
    found = sorted({p.parent for name in ("run.json", *STORES) for p in folder.glob(f"*/{name}")})
    if found:
        listed = "\n".join(f"  holdfast watch {p}" for p in found[:10])
        return f" Inside it {'is one' if len(found) == 1 else f'are {len(found)}'}:\n{listed}"
    if any((folder / name).is_file() for name in ("evaluate.json", "probe.json", "update.json")):
        return f" 'holdfast report {folder}' shows what it holds."
    return " Give the output folder of 'holdfast train' or of a study such as 'holdfast sweep'."
