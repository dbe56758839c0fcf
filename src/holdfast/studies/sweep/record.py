"""From the storage to plain records: what a page, a terminal and the selection rules read
(`holdfast.records.study`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Metric
from holdfast.records.study import FINISHED, Objective, StudyRecord, TrialRecord, seed_run_from_json
from holdfast.retention.registry import own_titles
from holdfast.studies.engine.space import DIRECT_TITLE
from holdfast.studies.engine.states import FAILED, PRUNED
from holdfast.studies.engine.storage import OVERHEAD, REASON, recorded_address
from holdfast.studies.engine.study import LABEL, RUNS, JobState, StudyState
from holdfast.studies.sweep.settings import VALIDATION
from holdfast.studies.sweep.study import PARAMS, ObjectiveSettings, StudyConfig
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
    comparisons: list[Comparison] = []
    for trial in trials:
        for run in trial.runs:
            comparisons += run.comparisons
    sides = {}
    for side, settings in config.objectives.items():
        sides[side] = objective(side, settings, comparisons)
    learn, keep = sides["learn"], sides["keep"]
    fields = state.record_fields(config.resolved)
    fields["notes"] = list(dict.fromkeys([*config.notes, *fields["notes"]]))
    return StudyRecord(
        **fields,
        seeds=list(config.request.seeds),
        learn=learn,
        keep=keep,
        pairs=list(itertools.product(_singles(learn), _singles(keep))),
        trials=trials,
        selection=config.select,
        validation=sides.get(VALIDATION),
        sampler=config.search.sampler,
        storage=recorded_address(state.storage, config.output_dir),
    )


def objective(side: str, wanted: ObjectiveSettings, comparisons: Iterable[Comparison]) -> Objective:
    """An objective with the metrics that it turned out to mean; before anything was measured
    without unit.

    Args:
        side: "learn", "keep" or "validation".
        wanted: as asked for.
        comparisons: of any finished run.
    """
    known = _by_entry(comparisons)
    entries, units, higher = [], set(), True
    for suite, name, metric in wanted.entries:
        comparison = known.get((suite, name, metric or None))
        if comparison is None:
            entries.append((suite, name, metric or ""))
            continue
        entries.append((suite, name, comparison.metric))
        units.add(comparison.unit)
        higher = comparison.higher_is_better
    unit = units.pop() if len(units) == 1 else "share" if units else ""
    return Objective(
        side=side, entries=entries, label=wanted.label, unit=unit, higher_is_better=higher
    )


def _by_entry(comparisons: Iterable[Comparison]) -> dict[tuple[str, str, str | None], Comparison]:
    """By (suite, name, metric); by None in place of the metric the one that leads."""
    known: dict[tuple[str, str, str | None], Comparison] = {}
    for comparison in comparisons:
        suite, name = comparison.suite, comparison.name
        known[suite, name, comparison.metric] = comparison
        if comparison.primary:
            known[suite, name, None] = comparison
    return known


Measured = Mapping[tuple[str, str], tuple[Mapping[str, Metric], str]]
"""Of every entry, by (suite, name), its metrics and the one that leads."""


def metric_problems(wanted: ObjectiveSettings, side: str, measured: Measured) -> list[str]:
    """What the start's measurements show to be wrong with an objective: a metric that is not there,
    units that have no mean.

    Args:
        wanted: the objective.
        side: "learn", "keep" or "validation".
        measured: of the start.
    """
    problems: list[str] = []
    higher: set[bool] = set()
    units: set[str] = set()
    for suite, name, metric in wanted.entries:
        metrics, _ = measured.get((suite, name), ({}, ""))
        if metric and metric not in metrics:
            problems.append(
                Problem(
                    ("objectives", side),
                    f"{name} has no metric '{metric}'.{did_you_mean(metric, metrics)} It has: "
                    f"{', '.join(metrics)}.",
                )
            )
    for figure in _figures(wanted, measured):
        is_text = figure.unit == "perplexity" or "nats" in figure.unit or "bits" in figure.unit
        units.add(figure.unit if is_text else "shares")
        higher.add(figure.higher_is_better)
    where = Problem(("objectives", side), f"{wanted.label} has")
    if len(higher) > 1:
        problems.append(
            f"{where} metrics that are better when higher and others that are better when lower, "
            "so they cannot be averaged"
        )
    elif len(units) > 1:
        problems.append(
            f"{where} metrics in several units ({', '.join(sorted(units))}), so they cannot be "
            "averaged"
        )
    return problems


def validation_problems(
    wanted: ObjectiveSettings, learn: ObjectiveSettings, measured: Measured
) -> list[str]:
    """Whether the validation is in a unit of what is learnt, once that is known.

    Args:
        wanted: the validation.
        learn: what it chooses for.
        measured: of the start.
    """
    ours = dict.fromkeys(figure.unit for figure in _figures(wanted, measured))
    theirs = dict.fromkeys(figure.unit for figure in _figures(learn, measured))
    if set(ours) <= set(theirs):
        return []
    return [
        Problem(
            ("objectives", "validation"),
            f"{wanted.label} is measured in {', '.join(ours)}, but `learn` ({learn.label}) is "
            f"measured in {', '.join(theirs)}. Expected entries of the same unit.",
        )
    ]


def _figures(wanted: ObjectiveSettings, measured: Measured) -> list[Metric]:
    """The start's figures of an objective, as far as they are there."""
    figures = []
    for suite, name, metric in wanted.entries:
        metrics, primary = measured.get((suite, name), ({}, ""))
        if (metric or primary) in metrics:
            figures.append(metrics[metric or primary])
    return figures


def select_problems(
    select: Mapping[str, Any], wanted: ObjectiveSettings, measured: Measured
) -> list[Problem]:
    """Whether the loss that a rule allows fits the keep side's metric, once that is known.

    Args:
        select: the study's section.
        wanted: what is kept.
        measured: of the start.
    """
    from holdfast.statistics.percentage_points import allowance

    if select.get("points") is None:
        return []
    figures = _figures(wanted, measured)
    units = {figure.unit for figure in figures}
    unit = units.pop() if len(units) == 1 else "share"
    keep = Objective(side="keep", entries=[], label=wanted.label, unit=unit, higher_is_better=True)
    try:
        allowance(select["points"], keep, [figure.value for figure in figures])
    except ConfigError as error:
        return error.problems
    return []


def gain(comparisons: Sequence[Comparison], wanted: ObjectiveSettings) -> float | None:
    """The mean gain over the start on an objective, more is better; None where an entry is
    missing."""
    known, gains = _by_entry(comparisons), []
    for entry in wanted.entries:
        if entry not in known:
            return None
        gains.append(known[entry].gain)
    return sum(gains) / len(gains)


def _singles(mean: Objective) -> Iterator[Objective]:
    """The entries of an objective, each as one of its own."""
    for entry in mean.entries:
        yield dataclasses.replace(mean, entries=[entry], label=entry[1])


def _trial(job: JobState, config: StudyConfig) -> TrialRecord:
    attributes, state = job.attributes, job.state
    params = attributes.get(PARAMS, job.params)
    runs = [seed_run_from_json(from_jsonable(run)) for run in attributes.get(RUNS, [])]
    kind, arm, label = "direct", DIRECT_TITLE, DIRECT_TITLE
    if attributes.get(DIRECT):
        params = {}
        if state == PRUNED and len(runs) == len(config.request.seeds):
            state = FINISHED  # reported as pruned to a sampler that would have crossed it with the others
    else:
        kind = attributes.get(KIND, config.space.kind(params) if params else "")
        arm = config.space.arm_label(params) if params or PARAMS in attributes else ""
        label = attributes.get(LABEL, f"trial {job.number}")
    return TrialRecord(
        number=job.number,
        state=state,
        kind=kind,
        titles=own_titles(kind.split("+")),
        arm=arm,
        label=label,
        params=params,
        settings=attributes.get(SETTINGS, {}),
        runs=sorted(runs, key=lambda run: run.seed),
        reason=attributes.get(REASON) if state in (PRUNED, FAILED) else None,
        continued_by=job.continued_by,
        worker=job.worker,
        started=job.started,
        finished=job.finished,
        overhead=float(attributes.get(OVERHEAD, 0.0)),
    )
