"""A worker: takes a job, does it, reports it, until none is left. Any number of them, on any number
of machines, share a study.

A job that fails (an error of its settings, a loss that is not finite, no memory) is reported as
failed and the next one is taken; where the first jobs all fail alike, the worker stops instead of
trying the rest. Ctrl-C gives the job back, with what it has on disk.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import FolderBusy, HoldfastError, Interrupted, UserError
from holdfast.printable import lines
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.storage import Lease, Storage
from holdfast.studies.engine.study import CannotJudge, LeaseLost, Study
from holdfast.support.environment import say
from holdfast.support.files import to_jsonable
from holdfast.support.processes import stop_without_parent
from holdfast.support.resources import release_memory

if TYPE_CHECKING:
    import optuna

POLL_SECONDS = 1.0
MOST_DEATHS = 3
"""Workers that may die over one job before it is given up."""
SAME_FAILURES = 3
"""Failures at the beginning of a study that end it."""
T = TypeVar("T")


@dataclass(kw_only=True)
class Task:
    """A job in the hands of a worker, as `Study.make` sees it."""

    lease: Lease
    storage: Storage
    queue: optuna.Study
    console: Any
    several: bool
    """Whether other workers are expected."""
    attributes: dict[str, Any]
    """Of the job: its coordinates, and what was stored since."""
    lost: threading.Event
    seed: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    """What was made, a mapping for each seed that is finished."""
    seconds: float = 0.0
    """Spent in `Study.make`."""

    @property
    def number(self) -> int:
        """Of the job."""
        return self.lease.number

    def check(self) -> None:
        """Call it often where it is cheap, such as after every step.

        Raises:
            LeaseLost: another worker has the job now.
            Interrupted: the command that started this worker is gone.
        """
        stop_without_parent()
        if self.lost.is_set():
            raise LeaseLost(f"job {self.number} was taken over by another worker")

    def set(self, **attributes: Any) -> None:
        """Stores attributes of the job; values become JSON."""
        values = {name: to_jsonable(value) for name, value in attributes.items()}
        self.storage.retry(lambda: self.storage.set(self.lease, values))
        self.attributes.update(values)

    def note(self, text: str) -> None:
        """Adds a note to the study, once."""
        notes = list(self.queue.user_attrs.get("notes", []))
        if text not in notes:
            self.storage.retry(lambda: self.queue.set_user_attr("notes", [*notes, text]))

    def draw(self, search: stored.Searching, suggest: Callable[[optuna.Trial], T]) -> T:
        """Values for what the job leaves open; what was drawn before stays."""
        trial = self.storage.retry(
            lambda: self.storage.trial(
                self.queue, self.lease, search, workers=2 if self.several else 1
            )
        )
        return self.storage.retry(lambda: suggest(trial))

    def others(self) -> list[Mapping[str, Any]]:
        """The attributes of every other job of the study, read now."""
        trials = self.storage.retry(lambda: self.queue.get_trials(deepcopy=False))
        others: list[Mapping[str, Any]] = []
        for trial in trials:
            if trial.number != self.number and stored.SLOT in trial.user_attrs:
                others.append(trial.user_attrs)
        return others


def work(
    storage: Storage,
    queue: optuna.Study,
    study: Study[Any],
    *,
    console: Any,
    several: bool = False,
    after_job: Callable[[], None] | None = None,
) -> int:
    """Does jobs until every one of the study has ended, those of other workers too.

    Args:
        storage: with its leases.
        queue: the study in it.
        study: prepared, see `Study.prepare`.
        console: where progress goes.
        several: whether other workers are expected.
        after_job: called after each.

    Returns:
        How many jobs this worker ended.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the job waits for the next worker.
        HoldfastError: the first jobs all failed alike.
    """
    from optuna.trial import TrialState

    from holdfast.support.dates import dates_of

    owner, done = stored.this_process(), 0
    created = str(storage.retry(lambda: queue.user_attrs).get(stored.CREATED, ""))
    while True:
        stop_without_parent()
        lease = storage.retry(lambda: storage.take(queue, owner))
        if lease is None:
            left = storage.retry(
                lambda: queue.get_trials(
                    deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)
                )
            )
            if not any(stored.SLOT in t.user_attrs for t in left):
                return done
            time.sleep(POLL_SECONDS)
            continue
        with dates_of(created):
            done += _one(storage, queue, study, lease, console=console, several=several)
        if after_job is not None:
            after_job()
        _stop_where_all_fail(storage, queue, study)


def _one(
    storage: Storage,
    queue: optuna.Study,
    study: Study[Any],
    lease: Lease,
    *,
    console: Any,
    several: bool,
) -> int:
    """One job from lease to report; 1 where it ended here."""
    began = time.monotonic()
    name = f"{study.noun.capitalize()} {lease.number}"
    about: dict[str, Any] = {}
    values, pruned, task = None, False, None
    try:
        with storage.heartbeat(lease) as lost:
            attributes = dict(storage.backend.get_trial(lease.trial_id).user_attrs)
            task = Task(
                lease=lease,
                storage=storage,
                queue=queue,
                console=console,
                several=several,
                attributes=attributes,
                lost=lost,
                results=study.results(attributes),
            )
            if lease.after_death:
                _count_death(task)
            values = _make(study, task, name)
            pruned = values is None
    except LeaseLost:
        say(
            console,
            f"{name} was taken over by another worker. This worker continues with the next one.",
        )
        return 0
    except CannotJudge:
        storage.release(lease, waiting=True)
        raise
    except (Interrupted, KeyboardInterrupt):
        with contextlib.suppress(Exception):
            storage.release(lease, waiting=True)
        raise
    except FolderBusy:  # whoever had it before is still at its last step
        storage.retry(lambda: storage.release(lease, waiting=True))
        time.sleep(5 * POLL_SECONDS)
        return 0
    except Exception as error:
        import traceback

        about[stored.REASON] = (f"{error}".strip() or type(error).__name__).split("\n\n")[0][:600]
        about[stored.REFUSED] = isinstance(error, UserError)
        trace = [] if isinstance(error, HoldfastError) else traceback.format_exc().splitlines()
        say(console, lines(f"{name} failed: {error}", *trace, ""))
    free_memory()
    about[stored.OVERHEAD] = round(time.monotonic() - began - (task.seconds if task else 0.0), 4)
    storage.retry(lambda: storage.set(lease, about))
    ended = storage.retry(lambda: storage.finish(queue, lease, values=values, pruned=pruned))
    if ended:
        study.clean(storage.retry(lambda: storage.state(queue)))
    return int(ended)


def _make(study: Study[Any], task: Task, name: str) -> Any:
    """Every seed of a job that is not there yet, then its values."""
    label = study.begin(task)
    task.set(**{stored.WORKER: stored.worker_name(task.lease.owner)})
    say(task.console, f"{name}: {label}{' (taken over)' if task.lease.after_death else ''}")
    done = [result.get("seed", 0) for result in task.results]
    for seed in study.seeds_of(task.attributes):
        if seed in done:
            continue
        task.seed = seed
        task.check()
        began = time.monotonic()
        try:
            result = to_jsonable(study.make(task))
        finally:
            task.seconds += time.monotonic() - began
        task.results.append({**result, "seed": seed})
        task.check()
        task.set(**study.stored(task.results))
        task.results = study.results(task.attributes)
    return study.values(task)


def _count_death(task: Task) -> None:
    """Notes that a worker died over this job.

    Raises:
        HoldfastError: too many did.
    """
    deaths = int(task.attributes.get("deaths", 0)) + 1
    task.set(deaths=deaths)
    if deaths >= MOST_DEATHS:
        raise HoldfastError(
            f"{deaths} workers were killed during this job, for example because memory ran out. "
            "Lower the batch size or the number of workers."
        )


def _stop_where_all_fail(storage: Storage, queue: optuna.Study, study: Study[Any]) -> None:
    from optuna.trial import TrialState

    latest: dict[int, optuna.trial.FrozenTrial] = {}
    for trial in storage.retry(lambda: queue.get_trials(deepcopy=False)):
        if stored.SLOT in trial.user_attrs:
            latest[trial.user_attrs[stored.SLOT]] = trial
    failed = []
    for trial in latest.values():
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or study.results(
            trial.user_attrs
        ):
            return
        if trial.state == TrialState.FAIL:
            failed.append(trial.user_attrs)
    reasons = {attributes.get(stored.REASON) for attributes in failed}
    if len(failed) >= SAME_FAILURES and len(reasons) == 1:
        text = f"The first {len(failed)} {study.noun}s failed for the same reason: {reasons.pop()}"
        raise error_class(failed)(
            text, ("Correct the cause and run the same command to retry them.")
        )


def error_class(failed: Iterable[Mapping[str, Any]]) -> type[HoldfastError]:
    """The error that ends a study whose jobs failed: `UserError` where one was refused, else
    `HoldfastError`.

    Args:
        failed: their attributes.
    """
    return (
        UserError if any(attributes.get(stored.REFUSED) for attributes in failed) else HoldfastError
    )


@functools.cache
def _pass_over_libraries() -> None:
    """Once a process: libraries' own objects stay for good, and looking through them after every
    job takes half a second."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # a library in C++ would print a list of what the collector left


def free_memory() -> None:
    """Gives memory back between two jobs of one process."""
    import sys

    release_memory()
    _pass_over_libraries()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def remove_checkpoints(folder: Path) -> None:
    """Deletes the checkpoints of a run that is over, and what a worker that was stopped meanwhile
    left of them."""
    from holdfast.training.checkpoint_folders import checkpoints_in, clear_leftovers, remove_folder

    for checkpoint in checkpoints_in(folder):
        remove_folder(checkpoint)
    clear_leftovers(folder)


def remove_weights(folder: Path) -> None:
    """Deletes the weights of a model that is over, and nothing else; another worker may do so at
    the same time."""
    for file in folder.glob("*.safetensors"):
        file.unlink(missing_ok=True)
