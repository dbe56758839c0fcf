"""What a study is to the engine: settings, jobs, what is made of each, an outcome, claims and a
page.

The engine (`session`, `worker`, `storage`) does the rest: it queues the jobs, shares them among
workers on one machine or many, repeats each over the study's seeds, keeps what was made, continues
after interruptions, shows what is going on and writes record and page. A study of one's own is a
subclass of `Study`; see `tests/studies/test_toy_study` for a whole one.

A job is one entry of the queue (a trial of the storage). Its coordinates are its own attributes
and, repeated by the engine, the seed: `make` is called once for each seed, and what it returned is
stored before the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from holdfast.errors import ConfigError, Interrupted, RunFolderError
from holdfast.studies.engine.states import COMPLETE, PRUNED, RUNNING, WAITING
from holdfast.support.environment import say
from holdfast.support.files import from_jsonable

if TYPE_CHECKING:
    from holdfast.studies.engine.worker import Task

RUNS = "runs"
"""Attribute of a job: what was made so far, a mapping for each seed."""
LABEL = "label"
"""Attribute of a job: what it is called in front of people."""
PAGE = "report.html"


class LeaseLost(Interrupted):
    """Another worker has taken the job over."""


class CannotJudge(ConfigError):
    """What is wrong concerns every job of the study, so the study stops instead of failing one
    after the other."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One entry of the queue, before anybody works on it."""

    attributes: dict[str, Any] = field(default_factory=dict)
    """Its coordinates, as plain JSON."""
    after: tuple[int, ...] = ()
    """Places in the plan of the jobs that have to end before it begins, complete or not: `make`
    looks for what it needs of them, and says which failed."""

    @property
    def coordinates(self) -> dict[str, Any]:
        """What it is known by: its attributes but for what people call it."""
        return {k: v for k, v in self.attributes.items() if k != LABEL}


class Settings(Protocol):
    """What the engine reads of a study's settings."""

    @property
    def name(self) -> str:
        """Unique in the storage."""

    @property
    def output_dir(self) -> Path:
        """The study's folder."""

    @property
    def storage(self) -> str:
        """Address of the storage."""

    @property
    def workers(self) -> int | None:
        """Jobs at a time on this machine; None: as many as the machine is good for."""

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings as plain JSON, without secrets: what other workers read."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished job reports to the storage; all are better higher."""

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a sentence each."""

    def jobs(self) -> Sequence[Job]:
        """What is put in the queue, in order."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """A job as the storage knows it at one moment."""

    number: int
    slot: int
    """Its place in the plan; a failed job is tried again under another number in the same slot."""
    state: str
    """"waiting", "running", "complete", "pruned" or "failed"."""
    attributes: Mapping[str, Any]
    params: dict[str, Any]
    """What was fixed or drawn."""
    values: tuple[float, ...] | None
    """What it reported, of a complete one."""
    worker: str
    """host:process that has or had it."""
    started: str | None
    finished: str | None
    continued_by: int | None
    """The number under which it was tried again."""

    @property
    def open(self) -> bool:
        """Whether it still has to end."""
        return self.state in (WAITING, RUNNING)

    @property
    def label(self) -> str:
        """For people."""
        return str(self.attributes.get(LABEL) or f"job {self.number}")


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """A study as the storage knows it at one moment."""

    name: str
    status: str
    """"running", "interrupted", "failed" (nothing is left but jobs that failed) or "finished" (no
    job is left)."""
    created: str
    jobs: list[JobState]
    """By number, those that were tried again among them."""
    storage: str
    """Its address without user and password."""
    attributes: Mapping[str, Any]
    """Of the study: versions, hardware, notes."""

    @property
    def ended(self) -> bool:
        """Whether every job is complete or was pruned."""
        return all(j.state in (COMPLETE, PRUNED) for j in self.latest)

    @property
    def latest(self) -> list[JobState]:
        """One for each slot."""
        return [j for j in self.jobs if j.continued_by is None]

    @property
    def finished(self) -> str | None:
        """When the last job ended, of a finished study."""
        if self.status != "finished":
            return None
        return max((job.finished for job in self.jobs if job.finished), default=None)

    def record_fields(
        self, resolved: Mapping[str, Any], notes: Sequence[str] = ()
    ) -> dict[str, Any]:
        """What the record of every study says of it (`records.base.BaseRecord`).

        Args:
            resolved: its settings, as `Settings.resolved`.
            notes: behind those that its jobs made.
        """
        return {
            "name": self.name,
            "status": self.status,
            "created": self.created,
            "finished": self.finished,
            "config": dict(resolved),
            "notes": list(dict.fromkeys([*self.attributes.get("notes", []), *notes])),
            "versions": dict(self.attributes.get("versions", {})),
            "hardware": dict(self.attributes.get("hardware", {})),
        }


S = TypeVar("S", bound=Settings)
Writer = Callable[[Path], Any]
"""Writes a page to a path."""


class Study(ABC, Generic[S]):
    """A study: subclass it, and `session.execute_study` does the rest.

    Args:
        settings: what was asked for, checked.
    """

    noun: ClassVar[str] = "job"
    """What a job is called in front of people."""
    markers: ClassVar[tuple[str, ...]] = ("study.json", "study.db", "data", "logs")
    """Files by which a folder is known to be a study's."""
    one_in_process: ClassVar[bool] = False
    """Whether a single worker works in the process that runs the study, instead of one of its
    own."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    # ----------------------------------------------------------------------------------- dimensions

    @property
    def seeds(self) -> tuple[int, ...]:
        """Every job is repeated with each."""
        return (0,)

    def seeds_of(self, attributes: Mapping[str, Any]) -> Sequence[int]:
        """The seeds that a job with these attributes is repeated with."""
        return self.seeds

    # ----------------------------------------------------------------------------------------- jobs

    @classmethod
    @abstractmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> Study[S]:
        """The study of a storage: the inverse of `settings.resolved`.

        Args:
            resolved: as the storage keeps it.
            storage: address by which this machine reaches the storage.
            output_dir: the study's folder as this machine sees it.
        """

    def open_folder(self, console: Any) -> None:
        """Called first, once this session has the folder's lock.

        Raises:
            RunFolderError: the folder holds another study.
        """

    def prepare(self, console: Any) -> Study[S]:
        """The study with all inputs that its jobs share; what is there is not made again. Every
        worker calls it.

        Raises:
            HoldfastError: inputs cannot be made, or settings do not fit them.
        """
        return self

    def begin(self, task: Task) -> str:
        """Called when a job begins or continues: draws what is left open; returns the job's
        label."""
        return str(task.attributes.get(LABEL) or f"{self.noun} {task.number}")

    @abstractmethod
    def make(self, task: Task) -> Any:
        """Does one seed of a job, or what is left of it.

        What is slow is kept in the folder under a name that what decides it gives (a fingerprint),
        so that a second call finds it. Call `task.check()` from time to time.

        Returns:
            A dataclass or mapping that becomes JSON.

        Raises:
            HoldfastError: the job fails with this message; the others go on.
            CannotJudge: the whole study ends.
        """

    @abstractmethod
    def values(self, task: Task) -> Sequence[float] | None:
        """What a complete job reports to the storage, one for each of `settings.measures`; None: it
        is complete, and is hidden from the sampler."""

    def stored(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The attributes that keep what was made."""
        return {RUNS: list(results)}

    def results(self, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What was made, of a job's attributes: the inverse of `stored`."""
        return [from_jsonable(result) for result in attributes.get(RUNS, [])]

    def results_by_job(self, state: StudyState) -> dict[int, list[dict[str, Any]]]:
        """What was made, by the number of each job that is not tried again."""
        return {job.number: self.results(job.attributes) for job in state.latest}

    def share(self, job: JobState) -> float:
        """How much of a running job is done, 0 to 1."""
        return len(self.results(job.attributes)) / max(1, len(self.seeds_of(job.attributes)))

    def clean(self, state: StudyState) -> None:
        """Called when a job ended: deletes what is not kept."""

    # -------------------------------------------------------------------------------------- outcome

    @abstractmethod
    def outcome(self, state: StudyState) -> Any:
        """The record of the study at this moment; quick, for it is also asked for while jobs
        run."""

    def complete(self, record: Any) -> Any:
        """The record with what is only worth computing when a session ends."""
        return record

    def write(self, record: Any) -> None:
        """Writes the record into the study's folder, atomically."""
        record.write(self.settings.output_dir)

    @abstractmethod
    def page(self, record: Any) -> Writer:
        """The page on a record, finished or not: what writes it to a path."""

    def show(self, record: Any, console: Any) -> None:
        """Prints what came of it, and where the page is."""
        say(console, f"Report    {Path(self.settings.output_dir) / PAGE}")


def write_page(study: Study[Any], record: Any) -> Path:
    """Writes the page of a study into its folder: the one place where studies meet the layer of
    reports."""
    path = Path(study.settings.output_dir) / PAGE
    study.page(record)(path)
    return path


def refuse_foreign(folder: Path, markers: Sequence[str], what: str = "study") -> None:
    """A folder with files that are no study's (or whatever `what` is) is not touched.

    Raises:
        RunFolderError: it is one.
    """
    if not folder.is_dir() or any((folder / name).exists() for name in markers):
        return
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise RunFolderError(
            "Expected a new or empty output_dir, so that none of your files is overwritten; "
            f"{folder} contains files that do not belong to a {what}. Choose another output_dir."
        )
