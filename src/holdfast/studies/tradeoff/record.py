"""From the storage to plain records: what a page, a terminal and the selection rules read
(`holdfast.records.study`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Metric
from holdfast.records.study import FINISHED, Objective, Rung, StudyRecord, TrialRecord, seed_run_from_json
from holdfast.studies.engine import storage as stored
from holdfast.studies.tradeoff.study import StudyConfig, Wanted
from holdfast.support.files import from_jsonable

if TYPE_CHECKING:
    import optuna


def study_record(storage: stored.Storage, study: optuna.Study, config: StudyConfig) -> StudyRecord:
    """The study as it is now.

    Args:
        storage: holds the leases, which say whether anybody is at work.
        study: in it.
        config: its configuration.
    """
    from optuna.trial import TrialState

    frozen = [t for t in study.get_trials(deepcopy=False) if stored.SLOT in t.user_attrs]
    last = {t.user_attrs[stored.SLOT]: t.number for t in frozen}
    held = storage.held(study)
    trials = [_trial(t, last, held.get(t._trial_id), config) for t in frozen]
    comparisons = [c for t in trials for r in t.runs for c in r.comparisons]
    target, source = (
        objective(side, wanted, comparisons) for side, wanted in (("target", config.target), ("source", config.source))
    )
    at_work = any(
        t.state == TrialState.RUNNING
        and (seen := held.get(t._trial_id)) is not None
        and seen.owner
        and not stored.process_is_gone(seen.owner)
        for t in frozen
    )
    ended = [t for t in trials if t.state in (FINISHED, "pruned")]
    failed = [t for t in trials if t.state == "failed" and t.continued_by is None]
    status = (
        "finished"
        if len(ended) == len(last)
        else "failed"
        if len(ended) + len(failed) == len(last)
        else "running"
        if at_work
        else "interrupted"
    )
    notes = [*config.notes, *study.user_attrs.get("notes", [])]
    return StudyRecord(
        name=config.name,
        status=status,
        created=study.user_attrs.get(stored.CREATED, ""),
        finished=max((t.finished for t in trials if t.finished), default=None) if status == "finished" else None,
        config=config.resolved,
        seeds=list(config.seeds),
        target=target,
        source=source,
        pairs=[(t, s) for t in _singles(target) for s in _singles(source)],
        trials=trials,
        selection=config.select,
        sampler=config.search.sampler,
        storage=stored.shown(storage.url),
        versions=study.user_attrs.get("versions", {}),
        hardware=study.user_attrs.get("hardware", {}),
        notes=list(dict.fromkeys(notes)),
    )


def objective(side: str, wanted: Wanted, comparisons: Iterable[Comparison]) -> Objective:
    """An objective with the metrics that it turned out to mean; before anything was measured without unit.

    Args:
        side: "target" or "source".
        wanted: as asked for.
        comparisons: of any finished run.
    """
    found = {(c.suite, c.name, c.metric): c for c in comparisons}
    leading = {(c.suite, c.name): c for c in found.values() if c.primary}
    entries, units, higher = [], set(), True
    for suite, name, metric in wanted.entries:
        one = found.get((suite, name, metric)) if metric else leading.get((suite, name))
        entries.append((suite, name, one.metric if one else metric or ""))
        if one is not None:
            units.add(one.unit)
            higher = one.higher_is_better
    unit = units.pop() if len(units) == 1 else "share" if units else ""
    return Objective(side=side, entries=entries, label=wanted.label, unit=unit, higher_is_better=higher)


def metric_problems(
    wanted: Wanted, side: str, measured: Sequence[tuple[str, str, dict[str, Metric], str]]
) -> list[str]:
    """What the start's measurements show to be wrong with an objective: a metric that is not there, units that have no
    mean.

    Args:
        wanted: the objective.
        side: "target" or "source".
        measured: (suite, name, metrics, the one that leads) of every entry.
    """
    problems = []
    kinds = set()
    for suite, name, metric in wanted.entries:
        metrics, primary = next(((m, p) for s, n, m, p in measured if (s, n) == (suite, name)), ({}, ""))
        if metric and metric not in metrics:
            problems.append(
                f"objectives.{side}: {name} has no metric '{metric}'.{did_you_mean(metric, metrics)} It has: "
                f"{', '.join(metrics)}."
            )
        elif (metric or primary) in metrics:
            one = metrics[metric or primary]
            kinds.add((one.higher_is_better, "nats" in one.unit or "bits" in one.unit))
    if len(kinds) > 1:
        problems.append(
            f"objectives.{side}: {wanted.label} has figures of which some are better when higher and some when lower; "
            f"they have no mean"
        )
    return problems


def select_problems(
    select: Mapping[str, Any], wanted: Wanted, measured: Sequence[tuple[str, str, dict[str, Metric], str]]
) -> list[str]:
    """Whether the loss that a rule allows fits the source's metric, once that is known.

    Args:
        select: the study's section.
        wanted: the source.
        measured: see `metric_problems`.
    """
    from holdfast.statistics.points import allowance

    if select.get("points") is None:
        return []
    found = {
        (s, n): m[metric or p]
        for s, n, metric in wanted.entries
        for s2, n2, m, p in measured
        if (s, n) == (s2, n2) and (metric or p) in m
    }
    units = {m.unit for m in found.values()}
    unit = units.pop() if len(units) == 1 else "share"
    try:
        allowance(
            select["points"],
            Objective(side="source", entries=[], label=wanted.label, unit=unit, higher_is_better=True),
            [m.value for m in found.values()],
        )
    except ConfigError as error:
        return error.problems
    return []


def gain(comparisons: Sequence[Comparison], wanted: Wanted) -> float | None:
    """The mean gain over the start on an objective, more is better; None where an entry is missing."""
    found = []
    for suite, name, metric in wanted.entries:
        one = next(
            (
                c
                for c in comparisons
                if (c.suite, c.name) == (suite, name) and (c.metric == metric if metric else c.primary)
            ),
            None,
        )
        if one is None:
            return None
        found.append(one.gain)
    return sum(found) / len(found)


def _singles(whole: Objective) -> list[Objective]:
    return [
        Objective(side=whole.side, entries=[e], label=e[1], unit=whole.unit, higher_is_better=whole.higher_is_better)
        for e in whole.entries
    ]


def _trial(trial: Any, last: dict[int, int], seen: Any, config: StudyConfig) -> TrialRecord:
    from optuna.trial import TrialState

    about = trial.user_attrs
    runs = [seed_run_from_json(from_jsonable(r)) for r in about.get(stored.RUNS, [])]
    newest = last[about[stored.SLOT]]
    states = {
        TrialState.WAITING: "waiting",
        TrialState.RUNNING: "running",
        TrialState.COMPLETE: FINISHED,
        TrialState.PRUNED: "pruned",
    }
    state = states.get(trial.state, "failed")
    if about.get(stored.DIRECT) and state == "pruned" and len(runs) == len(config.seeds):
        state = FINISHED  # told as pruned to a sampler that would have crossed it with the others
    params = {} if about.get(stored.DIRECT) else {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    return TrialRecord(
        number=trial.number,
        state=state,
        kind="direct"
        if about.get(stored.DIRECT)
        else about.get(stored.KIND, config.space.alternative(params).name.partition(" #")[0] if params else ""),
        label="direct fine-tuning" if about.get(stored.DIRECT) else about.get(stored.LABEL, f"trial {trial.number}"),
        params=about.get("params", params),
        settings=about.get(stored.SETTINGS, {}),
        runs=sorted(runs, key=lambda r: r.seed),
        rungs=[Rung(**r) for r in about.get(stored.RUNGS, [])],
        reason=about.get(stored.REASON) if state in ("pruned", "failed") else None,
        continued_by=newest if newest != trial.number else None,
        worker=stored.worker_name(seen.owner) if seen is not None and seen.owner else about.get(stored.WORKER, ""),
        started=_iso(trial.datetime_start),
        finished=_iso(trial.datetime_complete),
        overhead=float(about.get(stored.OVERHEAD, 0.0)),
    )


def _iso(moment: datetime | None) -> str | None:
    return moment.astimezone().isoformat(timespec="seconds") if moment is not None else None
