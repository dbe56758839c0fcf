"""The residual study: every model of a grid (budgets, residuals, siblings, derived models, scales, seeds), made and
measured once, by any number of workers that share a storage (`studies.storage`).

A trial is one model. Two that need the same continued model wait for each other at its folder; who comes second finds
it there. A worker that dies loses nothing: another one takes its model over, and the run goes on from its last
checkpoint. Source: paper 004, tables 2 to 4, figure 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Interrupted, RunFolderError
from holdfast.records.residual import ResidualRecord, StudiedModel, read_update, write_update
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.storage import Lease, Storage
from holdfast.studies.residual.making import Workshop, drop_weights
from holdfast.studies.residual.outcome import pairs_of
from holdfast.studies.residual.plan import MODEL, NEW_TEXT, ResidualConfig, is_continued, study_config
from holdfast.studies.residual.session import end, finished, open_record, open_workshop
from holdfast.support.environment import lock_folder, now, quiet_libraries, say, terminated_is_interrupted
from holdfast.support.files import from_jsonable, to_jsonable
from holdfast.support.processes import Workers, good_workers, python_module, stop_without_parent

if TYPE_CHECKING:
    import optuna

STORAGE_VARIABLE = "HOLDFAST_STORAGE"
MADE = "made"
"""Attribute of a trial: the `StudiedModel` that came of it."""
POLL_SECONDS = 1.0


def run_study(config: ResidualConfig, *, console: Any = None, workers: int | None = None) -> ResidualRecord:
    """Runs a study to its end, or continues it.

    Args:
        config: see `plan.study_config`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: models at a time on this machine; None: as the study says, else one a GPU, or two on two and more
            cores.

    Returns:
        The record as in update.json.

    Raises:
        ConfigError, ModelError, ShapeError, DataError: what has to change, before anything is trained.
        RunFolderError: the folder is another's, or the study was begun with another configuration.
        StorageError: the storage does not answer.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: models failed (which), after the others were made and the page was written.
    """
    from rich.console import Console

    console = console or Console()
    out = config.output_dir
    with terminated_is_interrupted(), quiet_libraries(), lock_folder(out / ".watching"):
        record = open_record(config, out)
        write_update(out, record)
        ready = prepared(config, out, console=console)
        record.families = [f.name for f in ready.families]
        storage = Storage(config.storage)
        study = None
        try:
            workshop = open_workshop(ready, record, out, console)
            study = storage.open_study(ready)
            count = workers if workers is not None else config.workers if config.workers is not None else good_workers()
            _make_all(storage, study, workshop, record, count, console)
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted; what is done stays in {out}. The same command continues.") from None
        finally:
            if study is not None:
                _finish(storage, study, ready, record, out)
            storage.close()
    failed = [m for m in record.models if m.state == "failed"]
    if failed:
        listed = "\n".join(f"  {m.label}: {m.reason}" for m in failed[:10])
        raise HoldfastError(
            f"{len(failed)} of {len(record.models)} models failed:\n{listed}\nThe same command tries them again."
        )
    return record


def prepared(config: ResidualConfig, out: Path, *, console: Any = None) -> ResidualConfig:
    """The study with its small world in the place of its name: models, new text and what is measured.

    Args:
        config: the study.
        out: its folder; gets `data/`.
        console: for the progress of what is made.

    Raises:
        ConfigError: settings of the world, or names in the evaluation, that there are not.
    """
    if config.small is None:
        return config
    from holdfast.studies.residual.small_world import fill_in

    return fill_in(config, out / "data", console=console)


def _make_all(
    storage: Storage, study: optuna.Study, workshop: Workshop, record: ResidualRecord, workers: int, console: Any
) -> None:
    config, out = workshop.config, workshop.out
    record.models = models_of(storage, study, config)
    write_update(out, record)
    left = [m for m in record.models if m.state in ("waiting", "running")]
    if not left:
        return
    say(
        console,
        f"{config.name}: {len(left)} of {len(record.models)} models to make, {workers} "
        f"worker{'s' if workers != 1 else ''}. Folder: {out}",
    )
    if workers == 1:
        work(storage, study, workshop, console)
        return
    command = python_module("residual", "worker", "--output_dir", str(out))
    shown: set[str] = set()
    environment = {STORAGE_VARIABLE: config.storage, **({"HF_HUB_OFFLINE": "1"} if config.small else {})}
    with Workers(command, count=workers, logs=out / "logs", environment=environment) as processes:
        while True:
            record.models = storage.patient(lambda: models_of(storage, study, config))
            for model in record.models:
                if model.state in ("complete", "failed") and model.name not in shown:
                    shown.add(model.name)
                    write_update(out, record)
                    words = "failed" if model.state == "failed" else "done"
                    say(console, f"  {len(shown)} of {len(record.models)}: {model.label} {words}")
            left = [m for m in record.models if m.state in ("waiting", "running")]
            if not left:
                return
            processes.restart_killed(lambda text: say(console, text))
            if workers and processes.ended:
                raise HoldfastError(f"Every worker ended although models are left. {processes.last_words()}")
            time.sleep(POLL_SECONDS)


def run_worker(out: Path, *, console: Any = None) -> int:
    """A worker of the study in a folder: makes models until none is left; how many it made.

    Raises:
        RunFolderError: no study there.
        Interrupted: Ctrl-C, or the command that started it is gone.
    """
    from rich.console import Console

    console = console or Console()
    record = read_update(out)
    if record.kind != "study":
        raise RunFolderError(f"Expected a study in {out}, found an update.")
    config = study_config(record.config, source=str(out))
    config = dataclasses.replace(
        config, output_dir=out, storage=os.environ.get(STORAGE_VARIABLE) or config.storage, name=record.name
    )
    with terminated_is_interrupted(), quiet_libraries():
        ready = prepared(config, out, console=console)
        workshop = open_workshop(ready, record, out, console)
        storage = Storage(config.storage)
        try:
            return work(storage, storage.load(config.name), workshop, console)
        except KeyboardInterrupt:
            raise Interrupted("Interrupted; the model waits for the next worker.") from None
        finally:
            storage.close()


def work(storage: Storage, study: optuna.Study, workshop: Workshop, console: Any) -> int:
    """Makes models until every one has ended, those of other workers too; how many ended here."""
    from optuna.trial import TrialState

    owner, done = stored.this_process(), 0
    while True:
        stop_without_parent()
        lease = storage.patient(lambda: storage.take(study, owner))
        if lease is None:
            left = storage.patient(
                lambda: study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING))
            )
            if not left:
                return done
            time.sleep(POLL_SECONDS)
            continue
        done += _one(storage, study, workshop, lease, console)


def _one(storage: Storage, study: optuna.Study, workshop: Workshop, lease: Lease, console: Any) -> int:
    attributes = storage.backend.get_trial(lease.trial_id).user_attrs
    model = next(m for m in workshop.config.models() if m.name == attributes[MODEL])
    say(console, f"{model.label}{' (taken over)' if lease.after_death else ''}")
    about: dict[str, Any] = {stored.WORKER: stored.worker_name(lease.owner)}
    values = None
    try:
        with storage.keeping(lease) as lost:
            made = finished(workshop, model)
            if lost.is_set():
                return 0
        about[MADE] = to_jsonable(made)
        values = [_score(made, workshop)]
    except (Interrupted, KeyboardInterrupt):
        with contextlib.suppress(Exception):
            storage.release(lease, waiting=True)
        raise
    except RunFolderError as error:
        if "Another holdfast process" in str(error):
            storage.patient(lambda: storage.release(lease, waiting=True))
            time.sleep(5 * POLL_SECONDS)
            return 0
        about[stored.REASON] = str(error)[:600]
    except Exception as error:
        import traceback

        about[stored.REASON] = (str(error).strip() or type(error).__name__)[:600]
        say(
            console,
            f"{model.label} failed: {error}\n{'' if isinstance(error, HoldfastError) else traceback.format_exc()}",
        )
    storage.patient(lambda: storage.set(lease, about))
    return int(storage.patient(lambda: storage.finish(study, lease, values=values)))


def _score(model: StudiedModel, workshop: Workshop) -> float:
    """One number for a dashboard: the mean of what leads every entry but the new text, signed so that more is
    better."""
    found = []
    for evaluation in workshop.measured(model).all():
        metric = evaluation.metrics[evaluation.primary]
        if evaluation.suite != NEW_TEXT and evaluation.kind != "average":
            found.append(metric.value if metric.higher_is_better else -metric.value)
    return sum(found) / len(found) if found else 0.0


def models_of(storage: Storage, study: optuna.Study, config: ResidualConfig) -> list[StudiedModel]:
    """Every model of a study as the storage knows it."""
    from optuna.trial import TrialState

    by_name: dict[str, Any] = {}
    for one in study.get_trials(deepcopy=False):
        if MODEL in one.user_attrs:
            by_name[one.user_attrs[MODEL]] = one  # the latest: a failed one is tried again as another trial
    found = []
    for model in config.models():
        trial: Any = by_name.get(model.name)
        made = trial.user_attrs.get(MADE) if trial is not None else None
        if made is not None:
            found.append(StudiedModel(**from_jsonable(made)))
            continue
        states = {TrialState.RUNNING: "running", TrialState.FAIL: "failed"}
        state = states.get(trial.state, "waiting") if trial is not None else "waiting"
        found.append(
            dataclasses.replace(
                model, state=state, reason=trial.user_attrs.get(stored.REASON) if state == "failed" and trial else None
            )
        )
    return found


def _finish(storage: Storage, study: optuna.Study, config: ResidualConfig, record: ResidualRecord, out: Path) -> None:
    """Writes record and page of what there is."""
    record.models = models_of(storage, study, config)
    whole = [m for m in record.models if m.state == "complete"]
    record.pairs = pairs_of(whole, out, confidence=0.95)
    over = all(m.state in ("complete", "failed") for m in record.models)
    if over and config.keep == "none":
        for model in whole:
            if is_continued(model) or model.residual is not None:
                drop_weights(out, model)
    failed = any(m.state == "failed" for m in record.models)
    record.finished = now() if over else None
    end(record, out, "failed" if failed and over else "finished" if over else "interrupted")
