"""A study from its settings to its page: inputs, queue, workers, progress, record.

Everything that a later command needs is in the storage and in the study's folder, so a session can
be interrupted at any moment. Workers are processes of their own, so that one that runs out of
memory takes its job with it and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, HoldfastError, Interrupted, RunFolderError, UserError
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.progress import Bar
from holdfast.studies.engine.states import COMPLETE, FAILED, PRUNED
from holdfast.studies.engine.storage import Storage
from holdfast.studies.engine.study import PAGE, Study, StudyState, refuse_foreign, write_page
from holdfast.studies.engine.worker import error_class, work
from holdfast.support.environment import (
    hardware,
    package_version,
    quiet_libraries,
    result_folder,
    say,
    terminated_is_interrupted,
    versions,
)
from holdfast.support.inputs import hold_to, inputs_of
from holdfast.support.own_code import load_class
from holdfast.support.processes import Workers, good_workers, python_module

if TYPE_CHECKING:
    import optuna

STORAGE_VARIABLE = "HOLDFAST_STORAGE"
"""Environment variable with a storage's address: unlike an option it does not show in the list of
processes."""
WATCH_SECONDS = 1.0
REPORT_SECONDS = 20.0


def execute_study(
    study: Study[Any],
    *,
    console: Any = None,
    workers: int | None = None,
    grace: float = stored.GRACE_SECONDS,
) -> Any:
    """Runs a study to its end, or continues it.

    Args:
        study: not prepared yet.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: jobs at a time on this machine; None: as the settings say, else one a GPU, or two
            on two and more cores. 0 starts none and waits for those started elsewhere.
        grace: seconds without a sign of life after which another machine's job is taken over.

    Returns:
        The record of the study as it ended.

    Raises:
        ConfigError: the settings, or the storage holds another study of this name (what differs).
        StorageError: the storage does not answer.
        RunFolderError: the folder is another's.
        Interrupted: Ctrl-C; the same command continues.
        UserError: jobs failed because of what was asked (which), after the others ended and the
            page was written.
        HoldfastError: they failed for another reason.
    """
    from rich.console import Console

    console = console or Console()
    settings = study.settings
    out = Path(settings.output_dir)
    refuse_foreign(out, study.markers)
    _refuse_new_storage(settings.storage, out)
    count = next(n for n in (workers, settings.workers, good_workers()) if n is not None)
    opened: Opened | None = None
    try:
        with (
            terminated_is_interrupted(),
            quiet_libraries(),
            result_folder(out, lock=".watching") as result_dir,
        ):
            study.open_folder(console)
            storage = Storage(settings.storage, grace=grace)
            opened = Opened(storage=storage, queue=None, study=study)
            _hold_to_inputs(opened, out, console)
            opened.study = study.prepare(console)
            opened.queue = storage.open_study(settings)
            opened.queue.set_user_attr(stored.KIND, kind_name(type(study)))
            opened.queue.set_user_attr("hardware", hardware())
            opened.queue.set_user_attr(
                "versions", {**versions(), "optuna": package_version("optuna")}
            )
            result_dir.keep()
            try:
                _run_jobs(opened, count, console)
            finally:
                # a worker may have been stopped in the middle of it
                opened.study.clean(opened.state())
                record = finish(opened)
            state = opened.state()
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted; finished work is kept in {out}. Run the same command to continue."
        ) from None
    finally:
        if opened is not None:
            opened.storage.close()
    failed = [job for job in state.latest if job.state == FAILED]
    if not failed:
        return record
    kind = error_class(job.attributes for job in failed)
    lines = [
        f"{len(failed)} of {_count(len(state.latest), study.noun)} failed; the page is "
        f"{out / PAGE}."
    ]
    for job in failed:
        lines.append(
            f"  {study.noun} {job.number} ({job.label}): {job.attributes.get(stored.REASON)}"
        )
    condition = " after you change the request" if kind is UserError else ""
    raise kind(*lines, f"Run the same command to retry them{condition}.")


def _hold_to_inputs(opened: Opened, out: Path, console: Any) -> None:
    """Holds a study of which a job has ended well to what its settings name; see `inputs.hold_to`.

    Raises:
        RunFolderError: inputs are others than those that it began with.
    """
    settings, storage = opened.study.settings, opened.storage
    ended: list[str] = []
    if (queue := storage.find(settings.name)) is not None:
        ended = [job.state for job in storage.retry(lambda: storage.state(queue)).latest]
    begun = COMPLETE in ended or PRUNED in ended
    inputs = inputs_of(settings.resolved, within=out)
    for text in hold_to(out, inputs, begun=begun, what=f"the study in {out}"):
        say(console, f"Note: {text}")


def _refuse_new_storage(url: str, folder: Path) -> None:
    """A new database in the folder of a study that is in another one would have every job done
    again."""
    _, address = known_study(folder)
    file = stored.file_of(url)
    is_new = file is not None and not file.exists()
    if not is_new or address is None:
        return
    if stored.recorded_address(address, folder) != stored.recorded_address(url, folder):
        raise ConfigError(
            f"--storage is missing: the study in {folder} uses {address}. Give its address, or set "
            f"{STORAGE_VARIABLE}."
        )


@dataclass(kw_only=True)
class Opened:
    """A study in its storage."""

    storage: Storage
    queue: optuna.Study | Any
    study: Study[Any]

    def state(self) -> StudyState:
        """As it is now."""
        return self.storage.retry(lambda: self.storage.state(self.queue))

    def record(self) -> Any:
        """Its record at this moment."""
        return self.study.outcome(self.state())


def finish(opened: Opened) -> Any:
    """Writes record and page of what there is; returns the record."""
    study = opened.study
    record = study.complete(opened.record())
    study.write(record)
    try:
        write_page(study, record)
    except (HoldfastError, OSError):
        if (
            opened.state().status == "finished"
        ):  # of an unfinished study a page that cannot be drawn spoils nothing
            raise
    return record


def _run_jobs(opened: Opened, workers: int, console: Any) -> None:
    """Has done what is left, if anything is."""
    study, state = opened.study, opened.state()
    study.write(study.outcome(state))
    latest = state.latest
    left = [j for j in latest if j.open]
    if not left:
        return
    before = f", {len(latest) - len(left)} ended before" if len(latest) > len(left) else ""
    repeated = max(len(study.seeds_of(j.attributes)) for j in left)
    size = f"{_count(len(left), study.noun)}{f' x {repeated} repetitions' if repeated > 1 else ''}{before}"
    out = study.settings.output_dir
    say(console, f"{study.settings.name}: {size}, {_count(workers, 'worker')}. Folder: {out}")
    if workers == 1 and study.one_in_process:
        work(
            opened.storage,
            opened.queue,
            study,
            console=console,
            after_job=lambda: study.write(opened.record()),
        )
        return
    with _processes(opened, workers) as processes, Bar(study, console) as bar:
        written = 0.0
        while True:
            state = opened.state()
            bar.show(state)
            if time.monotonic() - written > REPORT_SECONDS:
                study.write(study.outcome(state))
                written = time.monotonic()
            if not any(j.open for j in state.jobs):
                return
            processes.restart_killed(lambda text: say(console, text))
            if workers and processes.ended:
                if any(j.open for j in opened.state().jobs):
                    raise HoldfastError(
                        f"All workers ended, but {study.noun}s are left.",
                        *processes.last_words(),
                    )
                return
            time.sleep(WATCH_SECONDS)


# ------------------------------------------------------------------------------------------ workers


def _processes(opened: Opened, workers: int) -> Workers:
    settings = opened.study.settings
    out = Path(settings.output_dir)
    environment = {STORAGE_VARIABLE: settings.storage}
    if settings.resolved.get("toy"):
        environment["HF_HUB_OFFLINE"] = os.environ.get("HF_HUB_OFFLINE", "1")
    options = {
        "--study": settings.name,
        "--output_dir": str(out),
        "--grace": f"{opened.storage.grace:g}",
    }
    command = python_module("sweep", "worker", *itertools.chain(*options.items()))
    return Workers(command, count=workers, logs=out / "logs", environment=environment)


def run_worker(
    *,
    storage: str | None,
    name: str | None,
    output_dir: Path | None,
    grace: float = stored.GRACE_SECONDS,
    console: Any,
) -> int:
    """Joins a study that another command began, here or on another machine, until no job is left.

    Args:
        storage: its address; None: the file in `output_dir`, or the one that the environment names.
        name: of the study; None: the folder's, or the only one of the storage.
        output_dir: where this worker writes; None: the study's own folder, as it stands in the
            storage.
        grace: see `execute_study`.
        console: where progress goes.

    Returns:
        How many jobs ended here.

    Raises:
        Interrupted: Ctrl-C, or the command that started it is gone; the job waits for the next
            worker.
    """
    with open_existing(output_dir, storage=storage, name=name) as opened:
        opened.storage.grace = grace
        noun = opened.study.noun
        try:
            with terminated_is_interrupted(), quiet_libraries():
                opened.study = opened.study.prepare(console)
                ended = work(
                    opened.storage, opened.queue, opened.study, console=console, several=True
                )
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted. The next worker will continue the {noun}.") from None
    say(
        console,
        f"No {noun} of '{opened.study.settings.name}' is left. This worker ran {ended} of them.",
    )
    return ended


@contextlib.contextmanager
def open_existing(
    out: Path | None, *, storage: str | None = None, name: str | None = None
) -> Iterator[Opened]:
    """The study of a folder, or of a storage by its name, without running anything. The storage
    says of which class it is.

    Args:
        out: the study's folder as this machine sees it; None: the one that stands in the storage.
        storage: its address; None: the file in the folder, or the one that the environment names.
        name: of the study; None: the folder's, or the only one of the storage.

    Raises:
        ConfigError: no such study.
        StorageError: the storage does not answer.
        RunFolderError: no study in the folder.
    """
    folder = out or Path(".")
    known, address = known_study(folder)
    local = address if address is not None and address.startswith("sqlite") else None
    url = storage or local or os.environ.get(STORAGE_VARIABLE) or f"sqlite:///{folder}/study.db"
    file = stored.file_of(url)
    if file is not None and not file.is_file():
        if address is not None and local is None:
            raise ConfigError(
                f"--storage is missing: the study in {folder} uses {address}. Give its address, or "
                f"set {STORAGE_VARIABLE}."
            )
        raise RunFolderError(f"expected a study in {folder}, found no {file.name}.")
    opened = Storage(url)
    try:
        names = opened.names()
        name = name or known or (names[0] if len(names) == 1 else None)
        if name is None:
            raise ConfigError(
                f"--study is missing: {stored.redacted_url(url)} holds "
                f"{', '.join(names) or 'no study'}."
            )
        queue = opened.load(name)
        with stored.database_errors(url):
            resolved = queue.user_attrs.get(stored.CONFIG)
        if not isinstance(resolved, dict):
            raise ConfigError(
                f"'{name}' in {stored.redacted_url(url)} is a study of Optuna, not of holdfast."
            )
        kind = kind_named(str(queue.user_attrs.get(stored.KIND, "")))
        values = {"name": name, **{k: v for k, v in resolved.items() if v is not None}}
        study_folder = (
            out if out is not None else Path(str(values.get("output_dir") or f"runs/{name}"))
        )
        if (
            out is None
            and file is not None
            and file.name == "study.db"
            and file.parent.name == study_folder.name
        ):
            study_folder = file.parent  # the folder as it is seen from here
        yield Opened(
            storage=opened,
            queue=queue,
            study=kind.load(values, storage=url, output_dir=study_folder),
        )
    finally:
        opened.close()


def known_study(folder: Path) -> tuple[str | None, str | None]:
    """Name and storage that stand in a folder's record, None where they do not."""
    from holdfast.records.study import STUDY_FILE
    from holdfast.support.files import read_object

    if not (folder / STUDY_FILE).is_file():
        return None, None
    record = read_object(folder / STUDY_FILE)
    name, storage = record.get("name"), record.get("storage")
    address = (
        stored.reached_address(storage, folder) if isinstance(storage, str) and storage else None
    )
    return name if isinstance(name, str) else None, address


def kind_name(kind: type[Study[Any]]) -> str:
    """A study's class in a way that another process finds it: `module:Class`, or
    `file.py:Class`."""
    module = sys.modules[kind.__module__]
    if kind.__module__.partition(".")[0] == "holdfast":
        return f"{kind.__module__}:{kind.__qualname__}"
    return f"{Path(str(module.__file__)).resolve()}:{kind.__qualname__}"


def kind_named(text: str) -> type[Study[Any]]:
    """The inverse of `kind_name`.

    Raises:
        ConfigError: no such module, file or class, or none recorded.
    """
    if not text:
        raise ConfigError(
            "An earlier version of holdfast started this study and did not record its kind in the "
            "storage. "
            "First run the study's own command again, for example 'holdfast sweep --config "
            "study.yaml'. Then 'worker' and 'status' work."
        )
    cls = load_class(text, base=Study, group="holdfast.studies")  # type: ignore[type-abstract]
    if cls is None:
        raise ConfigError(
            "The storage must name the study's class as FILE.py:CLASS or MODULE:CLASS. It has "
            f"'{text}'."
        )
    return cls


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
