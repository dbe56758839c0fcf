"""What every study has at the command line: `worker`, `status` and `report`, on whichever study it is."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import OptionParser, console
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.studies.engine.session import Opened

WATCH_SECONDS = 3.0
Kind = Callable[[], Any]
"""Imports the class of a study; called once the options are known to be sound."""


def worker(prog: str, kind: Kind, argv: list[str]) -> int:
    """`PROG worker`: joins a study until no job is left.

    Args:
        prog: such as "holdfast sweep".
        kind: the study's class, where `--kind` names no other.
        argv: the words after it.
    """
    parser = OptionParser(
        prog=f"{prog} worker",
        description="Does jobs of a study until none is left. Start as many as you like, on as many machines as reach the storage.",
        epilog=f"""\
examples
  {prog} worker --storage postgresql://user@host/database --study my-study

Model, data and evaluation files are looked for where the study names them, from this working directory: start workers in a copy of the project.
Runs are written to --output_dir; figures go to the storage, so the page of the study needs no shared disk. With a shared disk, name the same folder.
A worker that dies loses nothing: another one continues its job, from its last checkpoint where the folder is shared, else from the beginning.
""",
    )
    parser.add_argument("--study", metavar="NAME", help="of the study (needed where the storage holds several)")
    parser.add_argument(
        "--output_dir",
        type=Path,
        metavar="FOLDER",
        help="where this worker writes its runs (the study's own, seen from here)",
    )
    add_kind(parser)
    add_storage(parser)
    options = parser.parse(argv)
    url = storage_of(options)
    if url is None and options.output_dir is None:
        raise ConfigError(
            "--storage is missing: expected the address of the study's database, such as postgresql://user@host/database."
        )
    if options.output_dir is not None and url is None and not options.output_dir.is_dir():
        raise ConfigError(f"--output_dir: no such folder: {options.output_dir}")

    from holdfast.studies.engine.session import run_worker

    run_worker(
        kind_of(options, kind),
        storage=url,
        name=options.study,
        output_dir=options.output_dir,
        grace=options.grace,
        console=console(),
    )
    return 0


def status(prog: str, kind: Kind, argv: list[str]) -> int:
    """`PROG status`: how far a study is; changes nothing."""
    parser = OptionParser(prog=f"{prog} status", description="What a study is doing. Reads only.", epilog="")
    add_study(parser)
    parser.add_argument("--watch", action="store_true", help="stays, and shows it anew every few seconds")
    parser.add_argument("--json", action="store_true", help="the record of this moment on standard output, as JSON")
    add_kind(parser)
    options = parser.parse(argv)
    with opened(options, kind_of(options, kind)) as found:
        target = console()
        if options.json:
            import json

            from holdfast.support.files import to_jsonable

            print(json.dumps(to_jsonable(found.record()), indent=2))
        elif options.watch and target.is_terminal:
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


def report_parser(prog: str, epilog: str, add: Callable[[OptionParser], None] | None = None) -> OptionParser:
    """The options of `PROG report`.

    Args:
        prog: such as "holdfast sweep".
        epilog: examples.
        add: adds the study's own options.
    """
    parser = OptionParser(
        prog=f"{prog} report", description="Prints a study's table and writes its record and page anew.", epilog=epilog
    )
    add_study(parser)
    if add is not None:
        add(parser)
    return parser


def report(found: Opened, show: Callable[[Any, Path, Any], None]) -> None:
    """`PROG report`: writes record and page anew, and prints them with `show(record, folder, console)`."""
    from holdfast.studies.engine.session import finish

    show(finish(found), Path(found.study.settings.output_dir), console())


def add_storage(parser: OptionParser) -> None:
    """`--storage` and `--grace`."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="database of the study: sqlite:///FILE, postgresql://user@host/database ($HOLDFAST_STORAGE)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="without a sign of life, until a worker counts as dead (60)",
    )


def add_study(parser: OptionParser) -> None:
    """How an existing study is named."""
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="the study's folder")
    parser.add_argument("--study", metavar="NAME", help="of the study, where only its storage is known")
    add_storage(parser)


def add_kind(parser: OptionParser) -> None:
    """`--kind`, for studies that are not the command's own."""
    parser.add_argument("--kind", metavar="FILE.py:CLASS", help="of a study of your own: its class")


def kind_of(options: argparse.Namespace, kind: Kind) -> Any:
    """The class that `--kind` names, else the command's."""
    from holdfast.studies.engine.session import kind_named

    return kind_named(options.kind) if options.kind else kind()


def storage_of(options: argparse.Namespace) -> str | None:
    """The storage's address from the option, or from the environment."""
    return options.storage or os.environ.get("HOLDFAST_STORAGE")


@contextlib.contextmanager
def opened(options: argparse.Namespace, kind: Any) -> Iterator[Opened]:
    """The study that `add_study`'s options name.

    Raises:
        ConfigError: they name none, or it is not there.
    """
    from holdfast.studies.engine.session import open_existing

    if options.folder is None and storage_of(options) is None:
        raise ConfigError(
            "expected the folder of a study, as in 'holdfast sweep status runs/my-study', or --storage and --study."
        )
    with open_existing(kind, options.folder, storage=options.storage, name=options.study) as found:
        yield found


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value
