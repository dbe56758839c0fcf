"""Where a study's trials are kept, and how workers share them: an Optuna storage (SQLite by
default, PostgreSQL for several machines) and leases.

Trials are put into the queue when the study begins, so their number is exact and a grid is not
drawn twice. A worker that takes one holds its *lease*, a row of the table `holdfast_leases` in the
same database:

    trial_id   owner (host, process)   attempt   beat

Taking is one conditional update, "set me as owner where owner, attempt and beat still are what I
saw", so of several workers one succeeds, on any database. While it works, a worker raises `beat`
every few seconds. A lease whose beat stands still for `grace` seconds, by the watcher's own clock
(no clocks of different machines are compared), or whose process is seen to be gone, is taken over
in the same way: the trial keeps its number and what was drawn for it, its run folder continues from
its last checkpoint, and whoever lost the lease learns it at the next heartbeat and cannot report a
result any more. So a trial is neither lost nor finished twice.

Optuna is imported inside functions, and in this module only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from holdfast.errors import (
    ConfigError,
    DataError,
    FolderBusy,
    RunFolderError,
    StorageError,
    did_you_mean,
)
from holdfast.printable import lines
from holdfast.studies.engine.states import COMPLETE, FAILED, PRUNED, RUNNING, WAITING
from holdfast.studies.engine.study import Job, JobState, Settings, StudyState
from holdfast.support.environment import lock_folder
from holdfast.support.files import to_jsonable

if TYPE_CHECKING:
    import optuna

HEARTBEAT_SECONDS = 5.0
GRACE_SECONDS = 60.0
CONFIG, VERSION, CREATED, KIND = "holdfast", "holdfast_version", "created", "kind"
"""Attributes of a study: its settings as resolved, who wrote them and when, and its class
(`session.kind_name`)."""
SLOT, REASON, WORKER, OVERHEAD, AFTER = "slot", "reason", "worker", "overhead", "after"
"""Attributes of a trial that the engine writes. They are plain JSON, so that a dashboard shows
them. `AFTER` is `Job.after`."""
REFUSED = "refused"
"""Attribute of a trial that failed: whether the request has to change before it can end well."""
T = TypeVar("T")
_NO_DRIVER = {
    "psycopg": "holdfast[postgres]",
    "psycopg2": "holdfast[postgres]",
    "MySQLdb": "mysqlclient",
    "pymysql": "pymysql",
}


def redacted_url(url: str) -> str:
    """A storage's address without user, password and options."""
    parts = urlsplit(url)
    if not parts.netloc:
        return url.partition("?")[0]
    return f"{parts.scheme.partition('+')[0]}://{parts.netloc.rpartition('@')[2]}{parts.path}"


_FILE = "sqlite:///"


def file_of(url: str) -> Path | None:
    """The file of a storage; None where it is no file but a server, or in memory."""
    name = url.partition("?")[0].removeprefix(_FILE)
    return Path(name) if url.startswith(_FILE) and name and not name.startswith(":") else None


def recorded_address(url: str, folder: Path) -> str:
    """A storage's address as the record in a study's folder keeps it: without password, and of a
    file the path from that folder, so that it stays true wherever a command is started and whereto
    the folder is moved.

    Args:
        url: as this process reaches it.
        folder: the study's.
    """
    file = file_of(url)
    if file is None or (file.is_absolute() and not file.is_relative_to(folder.absolute())):
        return redacted_url(url)
    return f"{_FILE}{os.path.relpath(file.absolute(), folder.absolute())}"


def reached_address(address: str, folder: Path) -> str:
    """The inverse of `recorded_address`; records of earlier versions have the path from where the
    study was started."""
    file = file_of(address)
    if file is None or file.is_absolute():
        return address
    paths = [folder / file, file, folder / file.name]
    return f"{_FILE}{next(filter(Path.is_file, paths), paths[0])}"


@dataclass(frozen=True)
class Lease:
    """A trial that this worker has."""

    trial_id: int
    number: int
    slot: int
    owner: str
    attempt: int
    """1 for the first worker that had it."""
    after_death: bool = False
    """Whether the worker that had it before did not give it back."""


@dataclass(frozen=True)
class _LeaseSnapshot:
    owner: str | None
    attempt: int
    beat: int


class Searching(Protocol):
    """A study that draws what it tries."""

    @property
    def search(self) -> Any:
        """`sampler`, `trials`, `seed`."""


def _slots(planned: Sequence[Job], begun: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """The slot of every job of a plan: of the stored jobs the first with its coordinates, for a
    plan may have got more in any place; of what is left the one in its place, for coordinates may
    have got more, too; else one that is free.

    Args:
        planned: the jobs.
        begun: attributes of what is stored, by slot.
    """
    left = dict(sorted(begun.items()))
    slots: dict[int, int] = {}
    for index, job in enumerate(planned):
        coordinates = to_jsonable(job.coordinates)
        for slot, attributes in left.items():
            if {key: attributes.get(key) for key in coordinates} == coordinates:
                slots[index] = slot
                del left[slot]
                break
    free = itertools.filterfalse(begun.__contains__, itertools.count())
    for index in range(len(planned)):
        if index not in slots:
            slots[index] = next(free) if left.pop(index, None) is None else index
    return [slots[index] for index in range(len(planned))]


class Storage:
    """An open storage with its leases.

    Args:
        url: as Optuna and SQLAlchemy have it; `postgresql://` uses the driver psycopg.
        grace: seconds without a heartbeat after which a trial may be taken over.
        interval: seconds between two heartbeats.
        clock: seconds of this process.

    Raises:
        ConfigError: no such kind of database, or its driver is not installed.
        StorageError: the database does not answer.
        DataError: it is damaged, or another Optuna's.
    """

    def __init__(
        self,
        url: str,
        *,
        grace: float = GRACE_SECONDS,
        interval: float = HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self.grace, self.interval, self.clock = url, grace, interval, clock
        self.backend = _open(url)
        self.leases = _table()
        self._watched: dict[int, tuple[_LeaseSnapshot, float]] = {}
        """What was seen of other workers' leases, and since when it has not changed."""
        with _read_errors(url):
            self.leases.metadata.create_all(self.backend.engine, checkfirst=True)

    def close(self) -> None:
        """Closes the connections."""
        self.backend.remove_session()
        self.backend.engine.dispose()

    def names(self) -> list[str]:
        """Names of the studies in the storage.

        Raises:
            DataError: it is damaged.
        """
        import optuna

        with _read_errors(self.url):
            return optuna.get_all_study_names(self.backend)

    def find(self, name: str) -> optuna.Study | None:
        """A study by name, None where there is none.

        Raises:
            DataError: it is damaged.
        """
        import optuna

        with _read_errors(self.url):
            try:
                return optuna.load_study(study_name=name, storage=self.backend)
            except KeyError:
                return None

    def load(self, name: str) -> optuna.Study:
        """A study by name.

        Raises:
            ConfigError: no such study, with the nearest name.
        """
        study = self.find(name)
        if study is None:
            known = self.names()
            raise ConfigError(
                f"no study '{name}' in {redacted_url(self.url)}.{did_you_mean(name, known)} "
                f"{'It holds: ' + ', '.join(known) + '.' if known else 'It holds none.'}"
            )
        return study

    # ------------------------------------------------------------------------------- making a study

    def open_study(self, config: Settings) -> optuna.Study:
        """The study of a configuration: made with all its trials waiting, or continued: with more
        trials where more are asked for, and those that failed waiting once more.

        Raises:
            ConfigError: the storage holds a study of this name with another configuration (what
                differs).
        """
        import optuna

        from holdfast import __version__
        from holdfast.support.environment import now

        with self._exclusive(config):
            study = self.find(config.name)
            if study is None:
                with optuna_is_quiet():
                    study = optuna.create_study(
                        storage=self.backend,
                        study_name=config.name,
                        directions=["maximize"] * len(config.measures),
                    )
                    study.set_metric_names(list(config.measures))
                study.set_user_attr(CREATED, now())
                study.set_user_attr(VERSION, __version__)
            else:
                old = study.user_attrs.get(CONFIG)
                differences = config.differences(old) if old is not None else []
                if differences:
                    text = lines(
                        f"The study '{config.name}' in {redacted_url(self.url)} was begun with "
                        "another configuration:",
                        *(f"  - {d}" for d in differences),
                        "To continue the study, restore the old values. For a new one, give "
                        "another name and output_dir.",
                    )
                    raise ConfigError(text)
            study.set_user_attr(CONFIG, config.resolved)
            self._enqueue(study, config)
        return study

    def _enqueue(self, study: optuna.Study, config: Settings) -> None:
        from optuna.trial import TrialState, create_trial

        by_slot: dict[int, Any] = {}
        for trial in study.get_trials(deepcopy=False):
            if SLOT in trial.user_attrs:
                by_slot[trial.user_attrs[SLOT]] = trial
        planned = config.jobs()
        slots = _slots(planned, {slot: trial.user_attrs for slot, trial in by_slot.items()})
        for slot, job in zip(slots, planned, strict=True):
            stored = by_slot.get(slot)
            if stored is not None and stored.state != TrialState.FAIL:
                continue
            attributes = {SLOT: slot, **job.attributes}
            if job.after:
                attributes[AFTER] = [slots[index] for index in job.after]
            fixed: dict[str, Any] = {}
            if stored is not None:  # failed: the same combination once more
                fixed = stored.system_attrs.get("fixed_params") or stored.params
            study.add_trial(
                create_trial(
                    state=TrialState.WAITING,
                    system_attrs={"fixed_params": fixed} if fixed else {},
                    user_attrs=attributes,
                )
            )

    @contextlib.contextmanager
    def _exclusive(self, config: Settings) -> Iterator[None]:
        """One process at a time makes a study."""
        from sqlalchemy import text

        if self.backend.engine.dialect.name == "postgresql":
            key = int.from_bytes(config.name.encode()[:7].ljust(7, b"\0"), "big")
            with self.backend.engine.connect() as connection:
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
                try:
                    yield
                finally:
                    connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": key})
            return
        deadline = time.monotonic() + 30
        while True:
            lock = contextlib.ExitStack()
            try:
                lock.enter_context(lock_folder(config.output_dir / ".making"))
                break
            except FolderBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        with lock:
            yield

    # --------------------------------------------------------------------------------------- leases

    def take(self, study: optuna.Study, owner: str) -> Lease | None:
        """A trial to work on: one whose worker is gone, else one that waits for no other
        (`Job.after`). None where there is neither (now)."""
        from optuna.trial import TrialState

        leases = self.held(study)
        states = (TrialState.WAITING, TrialState.RUNNING)
        trials = [
            t for t in study.get_trials(deepcopy=False, states=states) if SLOT in t.user_attrs
        ]
        left = {t.user_attrs[SLOT] for t in trials}
        for trial in sorted(trials, key=lambda t: (t.state != TrialState.RUNNING, t.number)):
            snapshot = leases.get(trial._trial_id)
            # also where its state still is WAITING: whoever has just taken it sets RUNNING a moment
            # later
            if not self._gone(trial._trial_id, snapshot) or left.intersection(
                trial.user_attrs.get(AFTER, ())
            ):
                continue
            lease = self._claim(study, trial, snapshot, owner)
            if lease is not None:
                return lease
        return None

    def held(self, study: optuna.Study) -> dict[int, _LeaseSnapshot]:
        """Leases by trial id."""
        from sqlalchemy import select

        table = self.leases
        query = select(table.c.trial_id, table.c.owner, table.c.attempt, table.c.beat).where(
            table.c.study_id == study._study_id
        )
        leases = {}
        with self.backend.engine.connect() as connection:
            for row in connection.execute(query):
                leases[row.trial_id] = _LeaseSnapshot(row.owner, row.attempt, row.beat)
        return leases

    def _gone(self, trial_id: int, seen: _LeaseSnapshot | None) -> bool:
        """Whether nobody has a trial, or nobody who still is at work."""
        if seen is None or seen.owner is None:
            return True
        if process_is_gone(seen.owner):
            return True
        before = self._watched.get(trial_id)
        now = self.clock()
        if before is None or before[0] != seen:
            self._watched[trial_id] = (seen, now)
            return False
        return now - before[1] > self.grace

    def _claim(
        self, study: optuna.Study, trial: Any, seen: _LeaseSnapshot | None, owner: str
    ) -> Lease | None:
        """The lease of a trial that is as it was seen, None where another worker was faster."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState
        from sqlalchemy import insert, update
        from sqlalchemy.exc import IntegrityError

        table, attempt = self.leases, (seen.attempt if seen else 0) + 1
        with self.backend.engine.begin() as connection:
            if seen is None:
                try:
                    row = {
                        "trial_id": trial._trial_id,
                        "study_id": study._study_id,
                        "owner": owner,
                        "attempt": 1,
                        "beat": 0,
                    }
                    connection.execute(insert(table).values(**row))
                except IntegrityError:
                    return None
            else:
                same = (
                    (table.c.trial_id == trial._trial_id)
                    & (table.c.attempt == seen.attempt)
                    & (table.c.beat == seen.beat)
                    & (
                        table.c.owner.is_(None)
                        if seen.owner is None
                        else table.c.owner == seen.owner
                    )
                )
                change = (
                    update(table)
                    .where(same)
                    .values(owner=owner, attempt=attempt, beat=seen.beat + 1)
                )
                if connection.execute(change).rowcount != 1:
                    return None
        self._watched.pop(trial._trial_id, None)
        died = seen is not None and seen.owner is not None
        lease = Lease(
            trial._trial_id, trial.number, int(trial.user_attrs[SLOT]), owner, attempt, died
        )
        try:
            # already so where it is taken over
            self.backend.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        except UpdateFinishedTrialError:
            self.release(lease)
            return None
        return lease

    def renew(self, lease: Lease) -> bool:
        """One heartbeat; whether the lease is still held."""
        with self.backend.engine.begin() as connection:
            return (
                connection.execute(self._update(lease).values(beat=self.leases.c.beat + 1)).rowcount
                == 1
            )

    def _update(self, lease: Lease) -> Any:
        """An update of a lease that changes nothing where another worker has it."""
        from sqlalchemy import update

        columns = self.leases.c
        same = (columns.trial_id == lease.trial_id) & (columns.attempt == lease.attempt)
        return update(self.leases).where(same & (columns.owner == lease.owner))

    def release(self, lease: Lease, *, waiting: bool = False) -> None:
        """Gives a trial back.

        Args:
            lease: of the trial.
            waiting: it was not finished, and waits for the next worker.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        if waiting:
            with contextlib.suppress(UpdateFinishedTrialError):
                self.backend.set_trial_state_values(lease.trial_id, TrialState.WAITING)
        with self.backend.engine.begin() as connection:
            connection.execute(self._update(lease).values(owner=None))

    @contextlib.contextmanager
    def heartbeat(self, lease: Lease) -> Iterator[threading.Event]:
        """Renews a lease while the body runs. The event is set when the lease was lost.

        A database that does not answer for a while is no reason to stop: the next heartbeat shows
        whether another worker took over meanwhile.
        """
        lost, stop = threading.Event(), threading.Event()

        def beat() -> None:
            while not stop.wait(self.interval):
                with contextlib.suppress(Exception):
                    if not self.renew(lease):
                        lost.set()
                        return

        thread = threading.Thread(target=beat, name="holdfast-lease", daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            stop.set()
            thread.join(timeout=10)

    # --------------------------------------------------------------------------------------- trials

    def state(self, study: optuna.Study) -> StudyState:
        """A study and all its jobs as they are now.

        Raises:
            DataError: the storage is damaged.
        """
        with _read_errors(self.url):
            return self._state(study)

    def _state(self, study: optuna.Study) -> StudyState:
        frozen = [t for t in study.get_trials(deepcopy=False) if SLOT in t.user_attrs]
        last = {t.user_attrs[SLOT]: t.number for t in frozen}
        leases = self.held(study)
        jobs, ended, failed, at_work = list[JobState](), 0, 0, False
        for trial in frozen:
            lease = leases.get(trial._trial_id)
            job = _job(trial, last[trial.user_attrs[SLOT]], lease)
            jobs.append(job)
            ended += job.state in (COMPLETE, PRUNED)
            failed += job.state == FAILED and job.continued_by is None
            if (
                job.state == RUNNING
                and lease is not None
                and lease.owner
                and not process_is_gone(lease.owner)
            ):
                at_work = True
        left = len(last) - ended
        status = "running" if at_work else "interrupted"
        if not left:
            status = "finished"
        elif left == failed:
            status = "failed"
        return StudyState(
            name=study.study_name,
            status=status,
            created=study.user_attrs.get(CREATED, ""),
            jobs=jobs,
            storage=redacted_url(self.url),
            attributes=study.user_attrs,
        )

    def trial(
        self, study: optuna.Study, lease: Lease, config: Searching, *, workers: int = 1
    ) -> optuna.Trial:
        """The trial of a lease, to ask for values: what was drawn before stays.

        Draws depend on the study's seed and the trial's number, so a random search is the same
        whoever runs it.
        """
        import optuna

        study.sampler = sampler(config, lease.number, several=workers > 1)
        return optuna.Trial(study, lease.trial_id)

    def finish(
        self,
        study: optuna.Study,
        lease: Lease,
        *,
        values: Sequence[float] | None = None,
        pruned: bool = False,
    ) -> bool:
        """Ends a trial: complete with values, pruned, or failed. False where the lease was lost,
        and nothing is changed."""
        from optuna.trial import TrialState

        if not self.renew(lease):
            return False
        state = (
            TrialState.COMPLETE
            if values is not None
            else TrialState.PRUNED
            if pruned
            else TrialState.FAIL
        )
        if self.backend.get_trial(lease.trial_id).state.is_finished():
            return False
        study.tell(lease.number, values=values, state=state)
        self.release(lease)
        return True

    def set(self, lease: Lease, attributes: Mapping[str, Any]) -> None:
        """Writes attributes of a trial."""
        for name, value in attributes.items():
            self.backend.set_trial_user_attr(lease.trial_id, name, value)

    def retry(self, work: Callable[[], T], *, seconds: float = 600.0) -> T:
        """Calls `work`, again and again while the database does not answer: a result of hours is
        not given up over a restart of the server.

        Raises:
            StorageError: it did not answer for so long, or its file is gone.
            DataError: it is damaged.
        """
        deadline, wait = time.monotonic() + seconds, 1.0
        while True:
            try:
                with database_errors(self.url):
                    return work()
            except StorageError:
                file = file_of(self.url)
                if file is not None and not file.is_file():
                    raise StorageError(
                        f"{file} no longer exists: the study's folder was deleted or moved during "
                        "the study. Restore it, and run the same command to continue."
                    ) from None
                if time.monotonic() > deadline:
                    raise
                time.sleep(wait)
                wait = min(2 * wait, 30.0)


def _job(trial: Any, newest: int, seen: _LeaseSnapshot | None) -> JobState:
    from optuna.trial import TrialState

    states = {
        TrialState.WAITING: WAITING,
        TrialState.RUNNING: RUNNING,
        TrialState.COMPLETE: COMPLETE,
        TrialState.PRUNED: PRUNED,
    }
    worker = trial.user_attrs.get(WORKER, "")
    if seen is not None and seen.owner:
        worker = worker_name(seen.owner)
    return JobState(
        number=trial.number,
        slot=trial.user_attrs[SLOT],
        state=states.get(trial.state, FAILED),
        attributes=trial.user_attrs,
        params={**trial.system_attrs.get("fixed_params", {}), **trial.params},
        values=tuple(trial.values) if trial.values is not None else None,
        worker=worker,
        started=_iso(trial.datetime_start),
        finished=_iso(trial.datetime_complete),
        continued_by=newest if newest != trial.number else None,
    )


def _iso(moment: datetime | None) -> str | None:
    return moment.astimezone().isoformat(timespec="seconds") if moment is not None else None


def sampler(
    config: Searching, number: int, *, several: bool = False
) -> optuna.samplers.BaseSampler:
    """The sampler of one trial.

    Args:
        config: names it.
        number: of the trial.
        several: whether others run at the same time; TPE then keeps away from what they try.
    """
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

    seed = (config.search.seed * 1_000_003 + number * 7919) % 2**32
    with optuna_is_quiet():
        if config.search.sampler == "tpe":
            return TPESampler(
                seed=seed,
                n_startup_trials=min(10, max(4, (config.search.trials or 0) // 4)),
                constant_liar=several,
            )
        if config.search.sampler == "nsga2":
            return NSGAIISampler(
                seed=seed, population_size=max(4, min(50, (config.search.trials or 0) // 4))
            )
        return RandomSampler(seed=seed)


@contextlib.contextmanager
def optuna_is_quiet() -> Iterator[None]:
    """No lines of a library's log between those of the study, and no warnings that options are
    experimental."""
    import warnings

    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


# ------------------------------------------------------------------------------------------- owners


def this_process() -> str:
    """Who this worker is: host, process namespace, process and when it started, so that another
    process of the same number is not taken for it."""
    return f"{_place()}:{os.getpid()}:{_started(os.getpid())}"


def worker_name(owner: str) -> str:
    """host:process, for people."""
    host, _, rest = owner.partition("|")
    return f"{host}:{rest.split(':')[1]}" if ":" in rest else owner


def process_is_gone(owner: str) -> bool:
    """Whether an owner was a process of this machine that has ended. Nothing is known of other
    machines: False."""
    host, _, started = owner.rpartition(":")
    host, _, process = host.rpartition(":")
    if host != _place() or not process.isdigit():
        return False
    return _started(int(process)) != started


def _place() -> str:
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    return f"{socket.gethostname()}|{namespace}"


def _started(process: int) -> str:
    """When a process started, in the kernel's clock ticks; empty for none, and for one that has
    ended and is not buried yet."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
        return "" if Path("/proc/self/stat").exists() else "alive"
    return "" if fields[0] in "ZX" else fields[19]


# ------------------------------------------------------------------------------------------ opening


def _open(url: str) -> Any:
    from optuna.storages import RDBStorage
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(
            "storage: expected an address such as sqlite:///study.db or "
            f"postgresql://user@host/database, got '{redacted_url(url)}'"
        ) from None
    options: dict[str, Any] = {}
    if parsed.drivername == "postgresql" or parsed.drivername == "postgres":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername.startswith("postgresql"):
        options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
    elif parsed.drivername.startswith("sqlite"):
        options = {"connect_args": {"timeout": 60}}
        if parsed.database:
            try:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunFolderError(
                    f"Could not write {parsed.database}: {error.strerror}. Choose an output_dir "
                    "that can be written."
                ) from None
    try:
        with optuna_is_quiet(), _read_errors(url):
            storage = RDBStorage(
                parsed.render_as_string(hide_password=False), engine_kwargs=options
            )
            if parsed.drivername.startswith("sqlite"):
                _check_sqlite(storage.engine, url)
            return storage
    except (ImportError, ModuleNotFoundError) as error:
        driver = parsed.drivername.partition("+")[2] or parsed.drivername
        package = _NO_DRIVER.get(driver, _NO_DRIVER.get(getattr(error, "name", "") or "", driver))
        raise ConfigError(
            f"storage: {parsed.drivername} needs a driver that is not installed. pip install "
            f"'{package}'"
        ) from None
    except NoSuchModuleError:
        raise ConfigError(
            f"storage: no such kind of database: '{parsed.drivername}'. Use sqlite:///FILE or "
            f"postgresql://user@host/database."
        ) from None


@contextlib.contextmanager
def database_errors(url: str) -> Iterator[None]:
    """What the libraries raise of a database that is away, damaged or somebody else's becomes an
    error with its address.

    Raises:
        StorageError: it does not answer, or cannot be written.
        DataError: it is damaged, or holds what no study of this Optuna does.
    """
    import sqlite3

    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DatabaseError
    from sqlalchemy.exc import DataError as Unfit

    try:
        yield
    except (DatabaseError, StorageInternalError) as error:
        cause = (
            error.__cause__
            if error.__cause__ is not None
            else getattr(error, "orig", None) or error
        )
        orig = getattr(cause, "orig", None) or cause
        if isinstance(orig, sqlite3.Error):
            away = getattr(orig, "sqlite_errorcode", 0) & 0xFF in _AWAY
        else:
            away = not isinstance(error, Unfit)
        text = " ".join(str(orig).split()).replace(url, redacted_url(url))
        password = urlsplit(url).password
        if password:
            text = text.replace(password, "...")
        if away:
            raise StorageError(
                f"The storage {redacted_url(url)} does not answer: {text[:300]}. Start it or "
                "correct the address. Nothing was lost."
            ) from error
        raise _damaged(url, text) from error


_AWAY = {3, 5, 6, 8, 9, 10, 13, 14, 23}
"""SQLite's result codes of a file that is there and cannot be had now: permissions, locks, a disk
that fails or is full or read-only."""


def _check_sqlite(engine: Any, url: str) -> None:
    """Looks at the whole file, which is small, where otherwise a worker would meet the damage hours
    later."""
    from sqlalchemy import text

    with engine.connect() as connection:
        answer = connection.execute(text("PRAGMA quick_check(1)")).scalar()
    if answer != "ok":
        raise _damaged(url, str(answer))


def _damaged(url: str, reason: str) -> DataError:
    return DataError(
        f"The storage {redacted_url(url)} is damaged, or is not a study of holdfast: "
        f"{reason[:300]}. Restore a backup, or move the file away."
    )


@contextlib.contextmanager
def _read_errors(url: str) -> Iterator[None]:
    """As `database_errors` for reading: values that no row of a sound database holds count as
    damage, too."""
    with database_errors(url):
        try:
            yield
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            AssertionError,
            RuntimeError,
        ) as error:
            raise _damaged(url, f"{type(error).__name__}: {error}") from error


def _table() -> Any:
    from sqlalchemy import Column, Integer, MetaData, String, Table

    return Table(
        "holdfast_leases",
        MetaData(),
        Column("trial_id", Integer, primary_key=True, autoincrement=False),
        Column("study_id", Integer, nullable=False, index=True),
        Column("owner", String(255), nullable=True),
        Column("attempt", Integer, nullable=False),
        Column("beat", Integer, nullable=False),
    )
