"""From the storage to plain records: what a page, a terminal and the selection rules read
(`holdfast.records.study`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Metric
from holdfast.records.study import FINISHED, Objective, StudyRecord, TrialRecord, seed_run_from_json
from holdfast.retention.registry import own_titles
from holdfast.studies.engine.space import DIRECT_TITLE
from holdfast.studies.engine.storage import OVERHEAD, REASON, recorded_address
from holdfast.studies.engine.study import FAILED, LABEL, PRUNED, RUNS, JobState, StudyState
from holdfast.studies.tradeoff.study import PARAMS, VALIDATION, StudyConfig, Wanted
from holdfast.support.files import from_jsonable

DIRECT, SETTINGS, KIND = "direct", "settings", "kind"
"""Attributes of a trial that this study writes beside the engine's."""


def study_record(state: StudyState, config: StudyConfig) -> StudyRecord:
    """The study as it is now.

    Args:
        state: as the storage has it.
        config: its configuration.
    """
    trials = [_trial(job, config) for job in state.jobs]
    comparisons = [c for t in trials for r in t.runs for c in r.comparisons]
    target, source = (
        objective(side, wanted, comparisons) for side, wanted in (("target", config.target), ("source", config.source))
    )
    notes = [*config.notes, *state.attributes.get("notes", [])]
    return StudyRecord(
        name=config.name,
        status=state.status,
        created=state.created,
        finished=state.finished,
        config=config.resolved,
        seeds=list(config.seeds),
        target=target,
        source=source,
        pairs=[(t, s) for t in _singles(target) for s in _singles(source)],
        trials=trials,
        selection=config.select,
        validation=None if config.validation is None else objective(VALIDATION, config.validation, comparisons),
        sampler=config.search.sampler,
        storage=recorded_address(state.storage, config.output_dir),
        versions=state.attributes.get("versions", {}),
        hardware=state.attributes.get("hardware", {}),
        notes=list(dict.fromkeys(notes)),
    )


def objective(side: str, wanted: Wanted, comparisons: Iterable[Comparison]) -> Objective:
    """An objective with the metrics that it turned out to mean; before anything was measured without unit.

    Args:
        side: "target", "source" or "validation".
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
        side: "target", "source" or "validation".
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
            of_text = one.unit if one.unit == "perplexity" or "nats" in one.unit or "bits" in one.unit else ""
            kinds.add((one.higher_is_better, of_text))
    if len({higher for higher, _ in kinds}) > 1:
        problems.append(
            f"objectives.{side}: {wanted.label} has figures of which some are better when higher and some when lower; "
            f"they have no mean"
        )
    elif len(kinds) > 1:
        named = ", ".join(sorted(unit or "shares" for _, unit in kinds))
        problems.append(f"objectives.{side}: {wanted.label} has figures of several units ({named}); they have no mean")
    return problems


def validation_problems(
    wanted: Wanted, target: Wanted, measured: Sequence[tuple[str, str, dict[str, Metric], str]]
) -> list[str]:
    """Whether the validation is in a unit of the target, once that is known.

    Args:
        wanted: the validation.
        target: what it chooses for.
        measured: see `metric_problems`.
    """
    ours, theirs = (list(dict.fromkeys(m.unit for m in _figures(w, measured))) for w in (wanted, target))
    if set(ours) <= set(theirs):
        return []
    return [
        f"objectives.validation: {wanted.label} is in {', '.join(ours)}, the target {target.label} in "
        f"{', '.join(theirs)}. Expected entries of the target's unit."
    ]


def _figures(wanted: Wanted, measured: Sequence[tuple[str, str, dict[str, Metric], str]]) -> list[Metric]:
    """The start's figures of an objective, as far as they are there."""
    return [
        m[metric or p]
        for s, n, metric in wanted.entries
        for s2, n2, m, p in measured
        if (s, n) == (s2, n2) and (metric or p) in m
    ]


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
    found = _figures(wanted, measured)
    units = {m.unit for m in found}
    unit = units.pop() if len(units) == 1 else "share"
    try:
        allowance(
            select["points"],
            Objective(side="source", entries=[], label=wanted.label, unit=unit, higher_is_better=True),
            [m.value for m in found],
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


def _trial(job: JobState, config: StudyConfig) -> TrialRecord:
    about, state = job.attributes, job.state
    params = about.get(PARAMS, job.params)
    runs = [seed_run_from_json(from_jsonable(r)) for r in about.get(RUNS, [])]
    direct = bool(about.get(DIRECT))
    if direct:
        params = {}
        if state == PRUNED and len(runs) == len(config.seeds):
            state = FINISHED  # reported as pruned to a sampler that would have crossed it with the others
    kind = config.space.kind(params) if params else ""
    kind = "direct" if direct else about.get(KIND, kind)
    return TrialRecord(
        number=job.number,
        state=state,
        kind=kind,
        titles=own_titles(kind.split("+")),
        way=DIRECT_TITLE if direct else config.space.way(params) if params or PARAMS in about else "",
        label=DIRECT_TITLE if direct else about.get(LABEL, f"trial {job.number}"),
        params=params,
        settings=about.get(SETTINGS, {}),
        runs=sorted(runs, key=lambda r: r.seed),
        reason=about.get(REASON) if state in (PRUNED, FAILED) else None,
        continued_by=job.continued_by,
        worker=job.worker,
        started=job.started,
        finished=job.finished,
        overhead=float(about.get(OVERHEAD, 0.0)),
    )
