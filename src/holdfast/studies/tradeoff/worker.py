"""A worker: takes a trial, runs it, reports it, until none is left. Any number of them, on any number of machines,
share a study.

A trial that fails (an error of its settings, a loss that is not finite, no memory) is reported as failed and the next
one is taken; where the first trials all fail alike, the worker stops instead of trying the rest. Ctrl-C gives the trial
back, with its checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Interrupted, RunFolderError
from holdfast.records.study import Rung, SeedRun, seed_run_from_json
from holdfast.statistics.pareto import pareto
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.storage import Lease, Storage
from holdfast.studies.tradeoff.record import gain
from holdfast.studies.tradeoff.study import StudyConfig, check_trials, fill
from holdfast.support.environment import say
from holdfast.support.files import from_jsonable, to_jsonable
from holdfast.support.processes import stop_without_parent

if TYPE_CHECKING:
    import optuna

POLL_SECONDS = 1.0
MOST_DEATHS = 3
"""Workers that may die over one trial before it is given up."""
SAME_FAILURES = 3
"""Failures at the beginning of a study that end it."""


def prepared(config: StudyConfig, out: Path, *, console: Any = None) -> StudyConfig:
    """The study with its training configuration complete: what `small:` makes is there, and every trial is checked.

    Args:
        config: the study.
        out: its folder on this machine.
        console: for the progress of what is made.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.errors import ConfigError

    if config.small is None:
        return config
    from holdfast.worlds.small_settings import make_setting

    names = make_setting(config.small, out / "data", seed=0, console=console)
    filled = dataclasses.replace(
        config,
        train=fill(config.train, names),
        space=dataclasses.replace(
            config.space,
            alternatives=[
                dataclasses.replace(a, retention=fill(a.retention, names)) for a in config.space.alternatives
            ],
        ),
    )
    problems = check_trials(filled, filled.train)
    if problems:
        raise ConfigError(problems, source=config.name)
    return filled


def work(
    storage: Storage,
    study: optuna.Study,
    config: StudyConfig,
    *,
    out: Path,
    console: Any,
    several: bool = False,
) -> int:
    """Runs trials until every trial of the study has ended, those of other workers too.

    Args:
        storage: with its leases.
        study: in it.
        config: complete, see `prepared`.
        out: the study's folder on this machine.
        console: where runs report to.
        several: whether other workers are expected.

    Returns:
        How many trials this worker ended.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the trial waits for the next worker.
        HoldfastError: the first trials all failed alike.
    """
    from optuna.trial import TrialState

    owner = stored.this_process()
    done = 0
    while True:
        stop_without_parent()
        lease = storage.patient(lambda: storage.take(study, owner))
        if lease is None:
            left = storage.patient(
                lambda: study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING))
            )
            if not any(stored.SLOT in t.user_attrs for t in left):
                return done
            time.sleep(POLL_SECONDS)
            continue
        done += _one(storage, study, config, lease, out=out, console=console, several=several)
        _stop_where_all_fail(storage, study)


def _one(
    storage: Storage, study: optuna.Study, config: StudyConfig, lease: Lease, *, out: Path, console: Any, several: bool
) -> int:
    """One trial from lease to report; 1 where it ended here."""
    from holdfast.studies.tradeoff.trial import LeaseLost, Pruned, WrongObjective, forget

    began = time.monotonic()
    running = [0.0]
    about: dict[str, Any] = {}
    values, pruned = None, False
    try:
        with storage.keeping(lease) as lost:
            if lease.after_death:
                _count_death(storage, lease)
            values = _values(
                storage, study, config, lease, lost=lost, out=out, console=console, several=several, running=running
            )
    except LeaseLost:
        say(console, f"Trial {lease.number} was taken over by another worker; this one goes on with the next.")
        return 0
    except WrongObjective:
        storage.release(lease, waiting=True)
        raise
    except Pruned as reason:
        pruned, about[stored.REASON] = True, str(reason)
        say(console, f"Trial {lease.number} stopped: {reason}")
    except (Interrupted, KeyboardInterrupt):
        with contextlib.suppress(Exception):
            storage.release(lease, waiting=True)
        raise
    except RunFolderError as error:
        if "Another holdfast process" in str(error):  # whoever had it before is still at its last step
            storage.patient(lambda: storage.release(lease, waiting=True))
            time.sleep(5 * POLL_SECONDS)
            return 0
        about[stored.REASON] = _first(error)
    except Exception as error:
        import traceback

        about[stored.REASON] = _first(error)
        say(
            console,
            f"Trial {lease.number} failed: "
            f"{error}\n{'' if isinstance(error, HoldfastError) else traceback.format_exc()}",
        )
    forget()
    about[stored.OVERHEAD] = round(time.monotonic() - began - running[0], 4)
    if lease.slot == 0 and config.search.sampler == "nsga2" and values is not None:
        values, pruned = None, True  # the reference has no parameters, and must not be crossed with those that have
    storage.patient(lambda: storage.set(lease, about))
    ended = storage.patient(lambda: storage.finish(study, lease, values=values, pruned=pruned))
    if ended:
        _drop_weights(study, config, out)
    return int(ended)


def _values(
    storage: Storage,
    study: optuna.Study,
    config: StudyConfig,
    lease: Lease,
    *,
    lost: Any,
    out: Path,
    console: Any,
    several: bool,
    running: list[float],
) -> list[float]:
    """Runs all seeds of a trial that are not there yet; its mean gains on target and source.

    Raises:
        HoldfastError: from a run, or an objective that was not measured.
    """
    from holdfast.studies.tradeoff.trial import LeaseLost, Pruned, pruned_after_seed, run_seed, with_shared_teacher

    frozen = storage.backend.get_trial(lease.trial_id)
    direct = bool(frozen.user_attrs.get(stored.DIRECT))
    params: dict[str, Any] = {}
    if not direct:
        trial = storage.patient(lambda: storage.trial(study, lease, config, workers=2 if several else 1))
        params = storage.patient(lambda: config.space.suggest(trial, everything=config.search.sampler == "nsga2"))
    settings = config.reference() if direct else config.settings(params)
    settings, note = with_shared_teacher(settings, config.teacher)
    kind = "direct" if direct else config.space.alternative(params).name.partition(" #")[0]
    label = "direct fine-tuning" if direct else config.space.label(params)
    if note:
        _add_note(storage, study, note)
    head = {
        stored.SETTINGS: to_jsonable(settings),
        stored.LABEL: label,
        stored.KIND: kind,
        "params": to_jsonable(params),
    }
    storage.patient(lambda: storage.set(lease, {**head, stored.WORKER: stored.worker_name(lease.owner)}))
    say(console, f"Trial {lease.number}: {label}{' (taken over)' if lease.after_death else ''}")

    def check() -> None:
        stop_without_parent()
        if lost.is_set():
            raise LeaseLost(f"trial {lease.number} is another worker's now")

    def others(seed: int, share: float) -> Any:
        return storage.patient(lambda: standing(study, config, lease.number, seed, share))

    runs: list[SeedRun] = [seed_run_from_json(from_jsonable(r)) for r in frozen.user_attrs.get(stored.RUNS, [])]
    rungs = [Rung(**r) for r in frozen.user_attrs.get(stored.RUNGS, [])]

    def passed(rung: Rung) -> None:
        rungs.append(rung)
        storage.patient(lambda: storage.set(lease, {stored.RUNGS: to_jsonable(rungs)}))

    in_processes = bool(settings.get("num_processes") or settings.get("accelerate_config"))
    watched = others if config.pruning is not None and not direct and not in_processes else None
    for seed in config.seeds:
        if any(r.seed == seed for r in runs):
            continue
        check()
        began = time.monotonic()
        try:
            run = run_seed(
                config,
                settings,
                seed,
                kind=kind,
                out=out,
                console=console,
                check=check,
                rungs=rungs,
                others=watched,
                passed=passed,
            )
        finally:
            running[0] += time.monotonic() - began
        runs.append(run)
        storage.patient(lambda: storage.set(lease, {stored.RUNS: to_jsonable(runs)}))
        reason = None if direct else pruned_after_seed(config, runs, others)
        if reason is not None:
            raise Pruned(reason)
    gains = [[gain(r.comparisons, w) for r in runs] for w in (config.target, config.source)]
    if any(g is None for side in gains for g in side):
        raise HoldfastError("an objective was not compared with the start: see comparisons.json of the run")
    return [sum(g for g in side if g is not None) / len(side) for side in gains]


def standing(study: optuna.Study, config: StudyConfig, number: int, seed: int, share: float) -> Any:
    """What all trials but one were at a point: after a share of the steps of a seed, or after the seed (share 1)."""
    from holdfast.studies.tradeoff.trial import Standing

    gains = []
    for trial in study.get_trials(deepcopy=False):
        if trial.number == number or stored.SLOT not in trial.user_attrs:
            continue
        if share < 1:
            found = [
                (r["target"], r["source"])
                for r in trial.user_attrs.get(stored.RUNGS, [])
                if r["seed"] == seed and r["share"] == share
            ]
        else:
            runs = [
                seed_run_from_json(from_jsonable(r)) for r in trial.user_attrs.get(stored.RUNS, []) if r["seed"] == seed
            ]
            pairs = [tuple(gain(r.comparisons, w) for w in (config.target, config.source)) for r in runs]
            found = [(t, s) for t, s in pairs if t is not None and s is not None]
        gains += found
    return Standing(seed=seed, share=share, gains=gains)


def _count_death(storage: Storage, lease: Lease) -> None:
    """Notes that a worker died over this trial.

    Raises:
        HoldfastError: too many did.
    """
    deaths = int(storage.backend.get_trial(lease.trial_id).user_attrs.get("deaths", 0)) + 1
    storage.patient(lambda: storage.set(lease, {"deaths": deaths}))
    if deaths >= MOST_DEATHS:
        raise HoldfastError(
            f"{deaths} workers ended in the middle of this trial without a word, as when memory runs out. Lower the "
            f"batch size or the workers."
        )


def _stop_where_all_fail(storage: Storage, study: optuna.Study) -> None:
    from optuna.trial import TrialState

    trials = storage.patient(lambda: study.get_trials(deepcopy=False))
    latest = {t.user_attrs[stored.SLOT]: t for t in trials if stored.SLOT in t.user_attrs}.values()
    reasons = [t.user_attrs.get(stored.REASON) for t in latest if t.state == TrialState.FAIL]
    ended = any(t.state in (TrialState.COMPLETE, TrialState.PRUNED) or t.user_attrs.get(stored.RUNS) for t in latest)
    if not ended and len(reasons) >= SAME_FAILURES and len(set(reasons)) == 1:
        raise HoldfastError(
            f"The first {len(reasons)} trials failed alike: {reasons[0]}\nThe same command tries them again once that "
            f"is mended."
        )


def _add_note(storage: Storage, study: optuna.Study, note: str) -> None:
    notes = list(study.user_attrs.get("notes", []))
    if note not in notes:
        storage.patient(lambda: study.set_user_attr("notes", [*notes, note]))


def _drop_weights(study: optuna.Study, config: StudyConfig, out: Path) -> None:
    """Deletes the weights that the study was not asked to keep; everything else of a run stays."""
    from optuna.trial import TrialState

    ended = [
        t
        for t in study.get_trials(deepcopy=False)
        if t.state in (TrialState.COMPLETE, TrialState.PRUNED) and stored.SLOT in t.user_attrs
    ]
    for trial in ended:
        for run in trial.user_attrs.get(stored.RUNS, []):
            for checkpoint in (out / run["folder"]).glob("checkpoint-*"):
                _remove(checkpoint)
    if config.keep == "all":
        return
    complete = [t for t in ended if t.state == TrialState.COMPLETE]
    best = (
        {complete[i].number for i in pareto([(t.values[0], t.values[1]) for t in complete])}
        if config.keep == "frontier"
        else set()
    )
    for trial in ended:
        if trial.number not in best:
            for run in trial.user_attrs.get(stored.RUNS, []):
                for file in (out / run["folder"]).glob("*.safetensors"):
                    file.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    from holdfast.training.checkpoint_folders import remove_folder

    remove_folder(folder)


def _first(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n\n")[0][:600]
