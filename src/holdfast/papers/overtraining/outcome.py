"""What came of an overtraining study: what every fine-tuned model scores, and what fine-tuning cost
it.

A fine-tuned model is held against its own checkpoint, sample by sample (`evaluation.compare`);
figures are means over the seeds, and intervals cover seeds and samples. A model of which one seed
diverged is as bad as can be: it is not left out of a mean. What the figures say is in `verdicts`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.compare.contributions import Measured, independent, sample_correlation
from holdfast.evaluation.probe.outcome import (
    Columns,
    columns_of,
    comparable_over_rungs,
    inflections,
    sample_correlations,
    sensitivities,
    trends,
)
from holdfast.papers.overtraining.plan import (
    CHECKPOINT,
    KIND,
    LEARN,
    MODEL,
    TUNE,
    OvertrainingConfig,
    Tuning,
)
from holdfast.papers.overtraining.record import (
    Arm,
    Checkpoint,
    LeftOut,
    OvertrainingRecord,
    Scored,
    TunedModel,
    alike,
)
from holdfast.papers.overtraining.verdicts import LEAST_BUDGETS, add_verdicts
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.figure import CONFIDENCE, Figure, rescaled
from holdfast.records.probe import ProbedModel, Sensitivity, Sharpness
from holdfast.records.run import RunFolder
from holdfast.records.study import SampleCorrelation
from holdfast.statistics.gains import gain_over_seeds
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import JobState, StudyState
from holdfast.support.environment import shown_name
from holdfast.support.files import record_from


def overtraining_record(
    state: StudyState,
    config: OvertrainingConfig,
    results: Mapping[int, Sequence[Mapping[str, Any]]],
) -> OvertrainingRecord:
    """The study at this moment, without figures.

    Args:
        state: its jobs.
        config: what was asked for.
        results: what was made, by the job's number.
    """
    notes: list[str] = []
    probed: dict[str, ProbedModel] = {}
    sharpness: dict[str, Sharpness] = {}
    sizes: dict[str, int] = {}
    models = []
    for job in state.latest:
        seeds = results.get(job.number, ())
        for result in seeds:
            notes += result.get("notes", ())
            if result.get("parameters"):
                sizes[job.attributes[CHECKPOINT]] = int(result["parameters"])
        reason = job.attributes.get(stored.REASON)
        if job.attributes[KIND] == TUNE:
            models.append(_tuned_model(job, config.tunings[job.attributes[MODEL]], reason, seeds))
            continue
        if reason is not None:
            notes.append(f"{job.label} failed: {reason}")
        if seeds and seeds[0].get("model"):
            model = record_from(ProbedModel, seeds[0]["model"])
            probed[job.attributes[CHECKPOINT]] = model
            sizes[job.attributes[CHECKPOINT]] = model.parameters
        if seeds and seeds[0].get("sharpness"):
            curvature = record_from(Sharpness, seeds[0]["sharpness"])
            # a line along a fine-tuning is followed after its probe
            before = sharpness.get(curvature.model)
            lines = curvature.lines if before is None else [*before.lines, *curvature.lines]
            sharpness[curvature.model] = dataclasses.replace(before or curvature, lines=lines)
    tunings = list(config.tunings.values())
    to_the_end = (
        dict.fromkeys(t.arm for t in tunings if t.to_the_end)
        if config.request.early_stopping
        else {}
    )
    if to_the_end:
        notes.append(
            f"{', '.join(to_the_end)}: trained for all epochs, without early stopping, because "
            "the method changes the weights after the last step."
        )
    return OvertrainingRecord(
        **state.record_fields(config.resolved, notes),
        checkpoints=_checkpoints(config, probed, sizes),
        tasks=list(config.request.tasks),
        arms=_arms(tunings),
        direct=config.direct,
        models=models,
        sharpness=list(sharpness.values()),
    )


def _tuned_model(
    job: JobState, tuning: Tuning, reason: str | None, results: Sequence[Mapping[str, Any]]
) -> TunedModel:
    """A fine-tuning with what each of its seeds left."""
    distances: dict[str, float] = {}
    diverged: dict[str, str] = {}
    epochs: dict[str, float] = {}
    seeds: list[int] = []
    tokens, seconds = 0, 0.0
    for result in results:
        seed = str(result["seed"])
        if result.get("distance") is not None:
            distances[seed] = result["distance"]
        if result.get("diverged"):
            diverged[seed] = result["diverged"]
        if result.get("epochs"):
            epochs[seed] = float(result["epochs"])
        seeds.append(int(seed))
        tokens = max(tokens, int(result.get("tokens", 0)))
        seconds += float(result.get("seconds", 0.0))
    return TunedModel(
        task=tuning.task,
        arm=tuning.arm,
        rate=tuning.rate,
        checkpoint=job.attributes[CHECKPOINT],
        state=job.state,
        reason=reason,
        seeds=seeds,
        diverged=diverged,
        distance=statistics.fmean(distances.values()) if distances else None,
        distance_by_seed=distances,
        stopped=epochs,
        tokens=tokens,
        seconds=seconds,
    )


def _checkpoints(
    config: OvertrainingConfig, probed: Mapping[str, ProbedModel], sizes: Mapping[str, int]
) -> list[Checkpoint]:
    checkpoints = []
    for label, rung in config.rungs.items():
        name, tokens = shown_name(config.model(label)), rung.budget or 0.0
        checkpoint = Checkpoint(
            label=label,
            name=name,
            tokens=tokens,
            parameters=sizes.get(label, 0),
            probed=probed.get(label),
        )
        checkpoints.append(checkpoint)
    return checkpoints


def _arms(tunings: Sequence[Tuning]) -> list[Arm]:
    """The ways to fine-tune, each with the rates of all tasks."""
    kinds: dict[str, str] = {}
    rates: dict[str, set[float]] = {}
    for tuning in tunings:
        kinds.setdefault(tuning.arm, tuning.kind)
        rates.setdefault(tuning.arm, set()).add(tuning.rate)
    arms = []
    for label, kind in kinds.items():
        arms.append(Arm(label=label, kind=kind, rates=sorted(rates[label])))
    return arms


def add_figures(record: OvertrainingRecord, config: OvertrainingConfig) -> OvertrainingRecord:
    """The record with figures and verdicts, as far as models are there.

    Raises:
        DataError: evaluations that cannot be read.
    """
    record = _with_probed(record, config)
    evaluations = TunedEvaluations(record, config)
    costs, scores = evaluations.correlations()
    record = dataclasses.replace(
        record, scored=evaluations.scored, notes=[*record.notes, *evaluations.notes]
    )
    if not evaluations.scored:
        return record
    models = [evaluations.with_scores(model) for model in record.models]
    record = dataclasses.replace(
        record, models=models, correlations=costs, score_correlations=scores
    )
    if config.request.max_perplexity is not None:
        record = _without_high_rates(record, config.request.max_perplexity)
    return add_verdicts(record, config, evaluations.columns)


def _with_probed(record: OvertrainingRecord, config: OvertrainingConfig) -> OvertrainingRecord:
    """What changes without training cost the checkpoints that were probed."""
    plan, out, changes = config.plan(None), config.probed, config.changes
    budgets, models = {}, []
    for checkpoint in record.checkpoints:
        if checkpoint.probed is not None:
            budgets[checkpoint.label] = checkpoint.tokens
            models.append(checkpoint.probed)
    order = [f"{entry.suite}/{entry.name}" for entry in plan.entries]  # the first one leads
    costs: list[Sensitivity] = []
    for label in budgets:
        of_checkpoint = sensitivities(
            out, label, changes, confidence=plan.confidence, seed=plan.seed
        )
        costs += sorted(
            of_checkpoint, key=lambda s: order.index(s.entry) if s.entry in order else len(order)
        )
    record = dataclasses.replace(record, sensitivities=costs)
    if len(budgets) > 1:
        labels = list(budgets)
        correlations = sample_correlations(out, costs, changes)
        moved = trends(
            costs, labels[0], labels[-1], confidence=plan.confidence, correlations=correlations
        )
        moved, notes = comparable_over_rungs(moved, models)
        notes = [*record.notes, *notes]
        record = dataclasses.replace(
            record, probed_correlations=correlations, trends=moved, notes=notes
        )
    if len(budgets) >= LEAST_BUDGETS:
        turns = inflections(out, budgets, changes, confidence=plan.confidence)
        record = dataclasses.replace(record, inflections=comparable_over_rungs(turns, models)[0])
    return record


class TunedEvaluations:
    """Reads what was measured of the fine-tuned models; every file once."""

    def __init__(self, record: OvertrainingRecord, config: OvertrainingConfig) -> None:
        self.config = config
        self.models = record.models
        self.scored: dict[str, list[Scored]] = {}
        """By task, the entries that models are measured on."""
        self.notes: list[str] = []
        self._names = {}
        for name, tuning in config.tunings.items():
            self._names[tuning.task, tuning.arm, tuning.rate] = name
        self._entries: dict[tuple[str, str], Evaluation] = {}
        """By task and "suite/name", as it was measured of one model."""
        self._columns: dict[tuple[Path, str, str], Columns | None] = {}
        for model in record.models:
            finite = [seed for seed in model.seeds if str(seed) not in model.diverged]
            if model.state == COMPLETE and finite and model.task not in self.scored:
                self.scored[model.task] = self._entries_of(model.task, self._run(model, finite[0]))

    def _entries_of(self, task: str, run: RunFolder) -> list[Scored]:
        """The entries of a task that can be held against the checkpoint, in the order of the
        plan."""
        compared = {(c.suite, c.name) for c in run.comparisons()}
        result = run.evaluated("result")
        entries = []
        for entry in self.config.plan(task).entries:
            evaluation = result.find(entry.suite, entry.name)
            key = f"{entry.suite}/{entry.name}"
            if (entry.suite, entry.name) not in compared:
                self.notes.append(f"{task}: {key} has no scores to compare with the checkpoint.")
            elif evaluation is not None:
                self._entries[task, key] = evaluation
                metric = evaluation.metrics[evaluation.primary]
                entries.append(
                    Scored(
                        suite=entry.suite,
                        name=entry.name,
                        metric=evaluation.primary,
                        unit=metric.unit,
                        higher_is_better=metric.higher_is_better,
                        chance=evaluation.references.get(evaluation.primary, {}).get("chance"),
                    )
                )
        return entries

    def _run(self, model: TunedModel, seed: int) -> RunFolder:
        name = self._names[model.task, model.arm, model.rate]
        return RunFolder(self.config.run_folder(model.checkpoint, name, seed))

    def folder(self, model: TunedModel, seed: int) -> EvaluationFolder:
        """What was measured of a fine-tuned model."""
        return self._run(model, seed).evaluated("result")

    def with_scores(self, model: TunedModel) -> TunedModel:
        """A model with its scores and costs, where all seeds are there.

        Raises:
            DataError: an entry was not compared with the checkpoint.
        """
        if model.state != COMPLETE:
            return model
        compared = {}
        for seed in [] if model.diverged else model.seeds:
            compared[seed] = self._run(model, seed).comparisons()
        scores: dict[str, Figure] = {}
        alone: dict[str, Figure] = {}
        costs: dict[str, Figure] = {}
        for scored in self.scored.get(model.task, ()):
            metric = (scored.suite, scored.name, scored.metric)
            after: dict[int, float] = {}
            for seed, comparisons in compared.items():
                comparisons = alike(
                    comparisons, suite=scored.suite, name=scored.name, metric=scored.metric
                )
                if not comparisons:
                    raise DataError(
                        f"{scored.key} of {model.checkpoint}, {model.arm}, learning rate "
                        f"{model.rate:g} was not compared with the unmodified checkpoint."
                    )
                after[seed] = comparisons[0].after
            gain = gain_over_seeds(compared, [metric])
            if gain is None:  # diverged, or one of them is not finite
                scores[scored.key] = Figure(
                    value=-math.inf if scored.higher_is_better else math.inf
                )
                costs[scored.key] = Figure(value=math.inf)
            else:
                scores[scored.key] = Figure(value=gain.after, over_samples=gain.interval_after)
                alone[scored.key] = Figure.over_seeds(after, self._half_over_samples(model, scored))
                costs[scored.key] = gain * -1.0
        return dataclasses.replace(model, scores=scores, scores_alone=alone, costs=costs)

    def _half_over_samples(self, model: TunedModel, scored: Scored) -> float:
        """Half-width at 95 % of the samples' interval of a score, mean over the seeds; 0 where
        there is none."""
        halves = []
        for seed in model.seeds:
            evaluation = self.folder(model, seed).find(scored.suite, scored.name)
            metric = None if evaluation is None else evaluation.metrics.get(scored.metric)
            if (
                metric is not None
                and metric.interval is not None
                and all(map(math.isfinite, metric.interval))
            ):
                low, high = metric.interval
                halves.append(rescaled(CONFIDENCE, known=metric.confidence) * (high - low) / 2)
        return statistics.fmean(halves) if halves else 0.0

    def columns(self, model: TunedModel, key: str) -> list[Columns | None]:
        """One entry ("suite/name") of a model, seed by seed; None of a seed whose figures are not
        finite."""
        columns: list[Columns | None] = []
        for seed in self.config.request.seeds:
            if str(seed) in model.diverged:
                columns.append(None)
                continue
            folder = self.folder(model, seed)
            file = (folder.path, model.task, key)
            if file not in self._columns:
                self._columns[file] = columns_of(folder, self._entries[model.task, key])
            columns.append(self._columns[file])
        return columns

    def correlations(self) -> tuple[list[SampleCorrelation], list[SampleCorrelation]]:
        """How far models go together over the samples of each entry of their task, in what
        fine-tuning costs them, and, of what those that see are tested on, in the score itself.
        Trials are places in the record."""
        costs: list[SampleCorrelation] = []
        scores: list[SampleCorrelation] = []
        for task, entries in self.scored.items():
            changes: dict[int, list[Measured]] = {}
            results: dict[int, list[Measured]] = {}
            for number, model in enumerate(self.models):
                if (model.task, model.state) == (task, COMPLETE) and not model.diverged:
                    changes[number], results[number] = [], []
                    for seed in model.seeds:
                        run = self._run(model, seed)
                        changes[number].append((run.evaluated("start"), run.evaluated("result")))
                        results[number].append((run.evaluated("result"),))
            for scored in entries:
                costs += self._correlation(task, scored, changes)
            if self.config.way_to_see(task):
                for scored in alike(entries, suite=LEARN)[:1]:
                    scores += self._correlation(task, scored, results)
        return costs, scores

    def _correlation(
        self, task: str, scored: Scored, measured: Mapping[int, Sequence[Measured]]
    ) -> list[SampleCorrelation]:
        """The correlation over the samples of one entry; none where its figure is no ratio of
        sums."""
        entry = (scored.suite, scored.name, scored.metric)
        correlation, left_out = sample_correlation(entry, measured)
        if left_out:
            note = f"{task}: {independent(entry, left_out, len(measured), 'models')}"
            self.notes += [note] if note not in self.notes else []
        return [] if correlation is None else [correlation]


def _without_high_rates(record: OvertrainingRecord, most: float) -> OvertrainingRecord:
    """Leaves out of each way to fine-tune the rates at which the first text gets beyond a
    perplexity at any budget; notes where that cannot be told."""
    lost: dict[tuple[str, str, float], None] = {}
    notes = list(record.notes)
    for task in record.scored:
        lead = record.leading(task, "keep")
        unit = lead.unit if lead is not None else "nothing"
        if lead is None or unit not in ("nats/token", "perplexity"):
            notes.append(
                f"{task}: max_perplexity has no effect, because the first entry of keep is "
                f"measured in {unit}."
            )
            continue
        bound = math.log(most) if unit == "nats/token" else most
        for model in record.models:
            score = model.scores.get(lead.key) if model.task == task else None
            if score is not None and score.value > bound:
                lost[model.task, model.arm, model.rate] = None
    left_out = [LeftOut(task=task, arm=arm, rate=rate) for task, arm, rate in lost]
    return dataclasses.replace(record, left_out=left_out, notes=notes)
