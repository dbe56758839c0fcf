"""What came of a sequence study: of every arm the scores of all tasks at the end, how much better
they are than sequential fine-tuning's, the matrix of tasks and stages with its measures, and the
distance to the model before.

Figures are means over the seeds; intervals cover seeds and evaluated samples
(`holdfast.statistics.gains`). Arms are held against sequential fine-tuning as pairs, seed by seed
and sample by sample.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.compare.continual import stage_matrix
from holdfast.evaluation.compare.contributions import independent, sample_correlation
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.records.comparison import Comparison, StageMatrix
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.figure import Figure
from holdfast.records.run import RunFolder
from holdfast.records.sequence import (
    MULTITASK,
    SEQUENTIAL,
    SINGLE,
    ArmResult,
    SequenceModel,
    SequenceRecord,
    TaskScore,
)
from holdfast.records.study import SampleCorrelation
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import StudyState
from holdfast.studies.sequence.plan import MODEL, SEED, ArmTrajectory, SequenceConfig

CANNOT_BE_SCORED = "cannot be scored: a value is not finite, or was not compared with the base."


def sequence_record(
    state: StudyState, config: SequenceConfig, results: Mapping[int, Sequence[Mapping[str, Any]]]
) -> SequenceRecord:
    """The study at this moment, without figures of its arms.

    Args:
        state: its jobs.
        config: what was asked for.
        results: what was made, by the job's number.
    """
    models = []
    for job in state.latest:
        model = config.models[job.attributes[MODEL]]
        result = next(iter(results.get(job.number, ())), {})
        curves = {}
        for task, curve in result.get("curves", {}).items():
            curves[task] = [(float(share), float(loss)) for share, loss in curve]
        models.append(
            SequenceModel(
                name=model.name,
                label=model.label,
                seed=int(job.attributes[SEED]),
                trained=list(model.trained),
                start=model.start,
                folder=result.get("folder", ""),
                evaluations=result.get("evaluations", ""),
                state=job.state,
                reason=job.attributes.get(stored.REASON),
                tokens=int(result.get("tokens", 0)),
                seconds=float(result.get("seconds", 0.0)),
                distance=result.get("distance"),
                curves=curves,
            )
        )
    return SequenceRecord(
        **state.record_fields(config.resolved),
        tasks={},
        orders=[list(order) for order in config.request.orders],
        seeds=list(config.request.seeds),
        models=models,
        arms=[_arm(chain) for chain in config.chains],
    )


def _arm(chain: ArmTrajectory) -> ArmResult:
    arm = chain.arm
    return ArmResult(
        arm=arm.label,
        kind=arm.kind,
        strength=arm.strength,
        order=list(chain.order),
        retention=arm.retention,
        merge=arm.merge,
        left_out=list(arm.left_out),
        old_data=arm.old_data,
        models=list(chain.models),
    )


def add_figures(record: SequenceRecord, config: SequenceConfig) -> SequenceRecord:
    """The record with every arm's figures, of the seeds whose models are all there.

    Raises:
        DataError: evaluations that cannot be read.
    """
    figures = _Figures(record, config)
    if figures.base is None:
        return record
    arms = [figures.arm(arm) for arm in record.arms]
    correlations = figures.correlations(arms)
    notes = list(dict.fromkeys([*record.notes, *figures.notes]))
    return dataclasses.replace(
        record,
        correlations=correlations,
        tasks=figures.tasks,
        entries=figures.entries,
        keep=figures.keep,
        arms=arms,
        notes=notes,
    )


def _scored_model(arm: ArmResult, score: TaskScore) -> str:
    """The model whose score is the arm's: its last one; of a single task that task's own."""
    if arm.kind == SINGLE and score.suite in arm.order:
        return arm.models[arm.order.index(score.suite)]
    return arm.models[-1]


FAR = 1000.0
"""Times the distance of sequential fine-tuning, beyond which an arm has diverged."""


class _Figures:
    """Computes arms from what was measured; two models are compared once, on everything."""

    def __init__(self, record: SequenceRecord, config: SequenceConfig) -> None:
        self.record, self.config = record, config
        self.folders: dict[tuple[str, int], EvaluationFolder] = {}
        self.distances: dict[tuple[str, int], float | None] = {}
        for model in record.models:
            if model.state == COMPLETE:
                self.folders[model.name, model.seed] = EvaluationFolder(
                    config.output_dir / model.evaluations
                )
                self.distances[model.name, model.seed] = model.distance
        self.base = self._measured_base()
        self.notes: list[str] = []
        self.tasks = self._scores_of_base(config.leading)
        self.entries = self._scores_of_base(config.others)
        self.keep = self._scores_of_base(config.kept)
        self._comparisons: dict[tuple[Path, Path], list[Comparison]] = {}
        self._matrices: dict[tuple[str, ...], dict[int, StageMatrix]] = {}

    def _measured_base(self) -> EvaluationFolder | None:
        """What was measured of the base: every model that was trained from it was held against
        it."""
        for name, seed in self.folders:
            model = self.config.models[name]
            if not model.merge and not model.start:
                return RunFolder(self.config.folder(name, seed)).evaluated("start")
        return None

    def _scores_of_base(self, entries: Mapping[str, tuple[str, str]]) -> dict[str, TaskScore]:
        scores: dict[str, TaskScore] = {}
        if self.base is None:
            return scores
        for key, (suite, name) in entries.items():
            evaluation = self.base.find(suite, name)
            if evaluation is None:
                raise DataError(f"{suite}/{name} was not measured on the base")
            metric = evaluation.leading
            scores[key] = TaskScore(
                suite=suite,
                name=name,
                metric=evaluation.primary,
                unit=metric.unit,
                higher_is_better=metric.higher_is_better,
                before=metric.value,
            )
        return scores

    # ----------------------------------------------------------------------------------------- arms

    def arm(self, arm: ArmResult) -> ArmResult:
        """One arm with what is known of it."""
        seeds = self._whole_seeds(arm.models)
        if not seeds:
            return arm
        sequential = next(
            a for a in self.record.arms if a.order == arm.order and a.kind == SEQUENTIAL
        )
        shared = [seed for seed in seeds if (sequential.models[-1], seed) in self.folders]
        scores: dict[str, Figure] = {}
        against: dict[str, Figure] = {}
        for task, score in {**self.tasks, **self.entries}.items():
            model = _scored_model(arm, score)
            figure = self._score(model, seeds, score)
            if figure is None:
                self.notes.append(f"{arm.arm}: {task} {CANNOT_BE_SCORED}")
            else:
                scores[task] = figure
            if sequential is not arm and shared:
                gain = self._gain(sequential.models[-1], model, shared, score)
                if gain is not None:
                    against[task] = gain.figure
        keep: dict[str, list[Figure | None]] = {}
        for key, score in self.keep.items():
            keep[key] = [self._score(model, seeds, score) for model in arm.models]
            if None in keep[key]:
                self.notes.append(f"{arm.arm}: {key} {CANNOT_BE_SCORED}")
        distance, reference = self._distance(arm, seeds), self._distance(sequential, shared)
        if (
            distance is not None
            and reference is not None
            and distance.value > FAR * reference.value
        ):
            self.notes.append(
                f"{arm.arm} diverged: its weights moved {distance.value:.3g}, those of sequential "
                f"fine-tuning {reference.value:.3g}. Its scores do not represent the method. Use a "
                "lower learning rate or coefficient."
            )
        arm = dataclasses.replace(arm, scores=scores, against=against, distance=distance, keep=keep)
        if arm.kind in (SINGLE, MULTITASK) or len(arm.models) != len(arm.order):
            return arm
        return self._with_matrix(arm, sequential)

    def correlations(self, arms: Sequence[ArmResult]) -> list[SampleCorrelation]:
        """How far two arms gain over the base on the same samples, by entry of the tasks; arms that
        cannot be paired are counted in a note."""
        assert self.base is not None
        known = []
        for key, score in {**self.tasks, **self.entries}.items():
            entry = (score.suite, score.name, score.metric)
            changes = {}
            for number, arm in enumerate(arms):
                if key in arm.scores:
                    model = _scored_model(arm, score)
                    seeds = arm.scores[key].by_seed
                    changes[number] = [(self.base, self.folders[model, seed]) for seed in seeds]
            correlation, left_out = sample_correlation(entry, changes)
            if correlation is not None:
                known.append(correlation)
            if left_out:
                self.notes.append(independent(entry, left_out, len(changes), "arms"))
        return known

    def _whole_seeds(self, models: Sequence[str]) -> list[int]:
        """The seeds whose models are all there."""
        seeds = []
        for seed in self.record.seeds:
            if all((name, seed) in self.folders for name in models):
                seeds.append(seed)
        return seeds

    def _score(self, model: str, seeds: Sequence[int], score: TaskScore) -> Figure | None:
        """What a model scores: the base's score, which counts as known, and what was gained over
        it."""
        gain = self._gain("", model, seeds, score)
        if gain is None:
            return None
        sign = 1.0 if score.higher_is_better else -1.0
        by_seed = {}
        for seed, value in gain.by_seed.items():
            by_seed[seed] = score.before + sign * value
        return Figure(value=gain.after, by_seed=by_seed, samples_half=gain.samples_half)

    def _gain(self, before: str, after: str, seeds: Sequence[int], score: TaskScore) -> Gain | None:
        """What a model scores better than another, "" the base, over seeds and samples."""
        comparisons = {seed: self._compared(before, after, seed) for seed in seeds}
        return gain_over_seeds(comparisons, [(score.suite, score.name, score.metric)])

    def _compared(self, before: str, after: str, seed: int) -> list[Comparison]:
        first, second = (
            self.folders[before, seed] if before else self.base,
            self.folders[after, seed],
        )
        assert first is not None
        pair = (first.path, second.path)
        if pair not in self._comparisons:
            self._comparisons[pair], _ = compare_folders(first, second, metrics="all")
        return self._comparisons[pair]

    def _distance(self, arm: ArmResult, seeds: Sequence[int]) -> Figure | None:
        if arm.kind == SINGLE:
            return None
        distances: dict[int, float] = {}
        for seed in seeds:
            distance = self.distances.get((arm.models[-1], seed))
            if distance is not None and math.isfinite(distance):
                distances[seed] = distance
        return Figure.over_seeds(distances) if distances else None

    # ------------------------------------------------------------------------------------- matrices

    def _with_matrix(self, arm: ArmResult, sequential: ArmResult) -> ArmResult:
        matrices, sequential_matrices = self._matrix(arm), self._matrix(sequential)
        if not matrices:
            return arm
        measures: dict[str, Figure] = {}
        against: dict[str, Figure] = {}
        for name in next(iter(matrices.values())).measures:
            by_seed, difference, halves = dict[int, float](), dict[int, float](), list[float]()
            for seed, matrix in matrices.items():
                measure = matrix.measures[name]
                by_seed[seed] = measure.value
                low, high = measure.interval or (0.0, 0.0)
                halves.append((high - low) / 2)
                if seed in sequential_matrices:
                    difference[seed] = (
                        measure.value - sequential_matrices[seed].measures[name].value
                    )
            measures[name] = Figure.over_seeds(by_seed, statistics.fmean(halves))
            if sequential.arm != arm.arm and difference:
                against[name] = Figure.over_seeds(difference)
        mean = np.mean([matrix.scores for matrix in matrices.values()], axis=0)
        return dataclasses.replace(
            arm, matrix=mean.tolist(), measures=measures, measures_against=against
        )

    def _matrix(self, arm: ArmResult) -> dict[int, StageMatrix]:
        """By seed; empty where the tasks' figures have no mean."""
        key = tuple(arm.models)
        if key in self._matrices:
            return self._matrices[key]
        assert self.base is not None
        scores = [self.tasks[task] for task in arm.order]
        tasks = [(score.suite, score.name) for score in scores]
        matrices: dict[int, StageMatrix] = {}
        try:
            for seed in self._whole_seeds(arm.models):
                folders = [self.base, *(self.folders[name, seed] for name in arm.models)]
                matrices[seed] = stage_matrix(folders, tasks, ["base", *arm.order])
        except ConfigError as error:
            self.notes.append(f"No matrix of tasks and stages for {', '.join(arm.order)}: {error}")
            matrices = {}
        self._matrices[key] = matrices
        return matrices
