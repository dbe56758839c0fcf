"""What came of a sequence study: of every arm the scores of all tasks at the end, how much better they are than
sequential fine-tuning's, the matrix of tasks and stages with its measures, and the distance to the model before.

Figures are means over the seeds; intervals cover seeds and evaluated samples (`holdfast.statistics.gains`). Arms are
held against sequential fine-tuning as pairs, seed by seed and sample by sample.
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
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.records.comparison import StageMatrix
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
from holdfast.statistics.gains import Gain, gain_over_seeds
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.study import StudyState
from holdfast.studies.sequence.plan import MODEL, SEED, Chain, SequenceConfig


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
        model, made = config.models[job.attributes[MODEL]], dict(next(iter(results.get(job.number, ())), {}))
        models.append(
            SequenceModel(
                name=model.name,
                label=model.label,
                seed=int(job.attributes[SEED]),
                trained=list(model.trained),
                start=model.start,
                folder=made.get("folder", ""),
                evaluations=made.get("evaluations", ""),
                state=job.state,
                reason=job.attributes.get(stored.REASON),
                tokens=int(made.get("tokens", 0)),
                seconds=float(made.get("seconds", 0.0)),
                distance=made.get("distance"),
                curves={t: [(float(x), float(y)) for x, y in c] for t, c in made.get("curves", {}).items()},
            )
        )
    return SequenceRecord(
        name=config.name,
        status=state.status,
        created=state.created,
        finished=state.finished,
        config=config.resolved,
        tasks={},
        orders=[list(o) for o in config.asked.orders],
        seeds=list(config.asked.seeds),
        models=models,
        arms=[_arm(chain) for chain in config.chains],
        notes=list(state.attributes.get("notes", [])),
        versions=dict(state.attributes.get("versions", {})),
        hardware=dict(state.attributes.get("hardware", {})),
    )


def _arm(chain: Chain) -> ArmResult:
    return ArmResult(
        arm=chain.arm.label,
        kind=chain.arm.kind,
        strength=chain.arm.strength,
        order=list(chain.order),
        retention=chain.arm.retention,
        merge=chain.arm.merge,
        old_data=chain.arm.old_data,
        models=list(chain.models),
    )


def with_figures(record: SequenceRecord, config: SequenceConfig) -> SequenceRecord:
    """The record with every arm's figures, of the seeds whose models are all there.

    Raises:
        DataError: evaluations that cannot be read.
    """
    figures = _Figures(record, config)
    if figures.base is None:
        return record
    arms = [figures.arm(arm) for arm in record.arms]
    notes = [*record.notes, *(n for n in figures.notes if n not in record.notes)]
    return dataclasses.replace(record, tasks=figures.tasks, source=figures.source, arms=arms, notes=notes)


FAR = 1000.0
"""Times the distance of sequential fine-tuning, beyond which an arm has diverged."""


class _Figures:
    """Computes arms from what was measured."""

    def __init__(self, record: SequenceRecord, config: SequenceConfig) -> None:
        self.record, self.config, self.out = record, config, Path(config.output_dir)
        whole = [m for m in record.models if m.state == "complete"]
        self.folders = {(m.name, m.seed): EvaluationFolder(self.out / m.evaluations) for m in whole}
        self.distances = {(m.name, m.seed): m.distance for m in record.models if m.state == "complete"}
        self.base = next(self._starts(), None)
        self.notes: list[str] = []
        self.tasks, self.source = self._scored(config.leading), self._scored(config.kept)
        self._matrices: dict[tuple[str, ...], dict[int, StageMatrix]] = {}

    def _starts(self) -> Any:
        """What was measured of the base: every model that was trained from it was held against it."""
        for name, seed in self.folders:
            model = self.config.models[name]
            if not model.merge and not model.start and not model.origin:
                yield RunFolder(self.config.folder(name, seed)).evaluated("start")

    def _scored(self, entries: Mapping[str, tuple[str, str]]) -> dict[str, TaskScore]:
        found = {}
        for key, (suite, name) in entries.items() if self.base is not None else ():
            one = self.base.find(suite, name) if self.base is not None else None
            if one is None:
                raise DataError(f"{suite}/{name} was not measured of the base")
            metric = one.metrics[one.primary]
            about = {"unit": metric.unit, "higher_is_better": metric.higher_is_better, "before": metric.value}
            found[key] = TaskScore(suite=suite, name=name, metric=one.primary, **about)
        return found

    def _kept(self, arm: ArmResult, seeds: Sequence[int]) -> dict[str, list[Figure | None]]:
        """What should be kept, of each of an arm's models."""
        assert self.base is not None
        before, found = dict.fromkeys(seeds, self.base), {}
        for key, about in self.source.items():
            gains = [self._gain(before, {s: self.folders[m, s] for s in seeds}, about) for m in arm.models]
            if None in gains:
                self.notes.append(f"{arm.arm}: {key} cannot be scored; a figure is not finite, or was not compared.")
            found[key] = [None if g is None else _score(g, about) for g in gains]
        return found

    def arm(self, arm: ArmResult) -> ArmResult:
        """One arm with what is known of it."""
        seeds = [s for s in self.record.seeds if all((n, s) in self.folders for n in arm.models)]
        if not seeds or self.base is None:
            return arm
        last, sequential = arm.models[-1], self._sequential(arm)
        scores: dict[str, Figure] = {}
        against: dict[str, Figure] = {}
        for task, about in self.tasks.items():
            # a single task's model is that task's own
            model = arm.models[arm.order.index(task)] if arm.kind == SINGLE and task in arm.order else last
            before = dict.fromkeys(seeds, self.base)
            gained = self._gain(before, {s: self.folders[model, s] for s in seeds}, about)
            if gained is not None:
                scores[task] = _score(gained, about)
            else:
                self.notes.append(f"{arm.arm}: {task} cannot be scored; a figure is not finite, or was not compared.")
            shared = [s for s in seeds if (sequential.models[-1], s) in self.folders]
            if sequential is not arm and shared:
                there = {s: self.folders[sequential.models[-1], s] for s in shared}
                better = self._gain(there, {s: self.folders[model, s] for s in shared}, about)
                if better is not None:
                    against[task] = better
        distance, kept = self._distance(arm, seeds), self._kept(arm, seeds)
        reference = self._distance(sequential, [s for s in seeds if (sequential.models[-1], s) in self.folders])
        if distance is not None and reference is not None and distance.value > FAR * reference.value:
            self.notes.append(
                f"{arm.arm} diverged: its weights moved {distance.value:.3g}, sequential fine-tuning's "
                f"{reference.value:.3g}. Its scores say nothing of the method; use a lower rate or coefficient."
            )
        found = dataclasses.replace(arm, scores=scores, against=against, distance=distance, source=kept)
        if arm.kind in (SINGLE, MULTITASK) or len(arm.models) != len(arm.order):
            return found
        return self._with_matrix(found, seeds, sequential)

    def _sequential(self, arm: ArmResult) -> ArmResult:
        return next(a for a in self.record.arms if a.order == arm.order and a.kind == SEQUENTIAL)

    def _gain(
        self, before: Mapping[int, EvaluationFolder], after: Mapping[int, EvaluationFolder], about: TaskScore
    ) -> Gain | None:
        compared = {s: compare_folders(before[s], after[s], metrics="all")[0] for s in after}
        return gain_over_seeds(compared, [(about.suite, about.name, about.metric)])

    def _distance(self, arm: ArmResult, seeds: Sequence[int]) -> Figure | None:
        if arm.kind == SINGLE:
            return None
        found = {s: self.distances.get((arm.models[-1], s)) for s in seeds}
        known = {s: d for s, d in found.items() if d is not None and math.isfinite(d)}
        return Figure.over_seeds(known) if known else None

    def _with_matrix(self, arm: ArmResult, seeds: Sequence[int], sequential: ArmResult) -> ArmResult:
        mine, theirs = self._matrix(arm, seeds), self._matrix(sequential, seeds)
        if not mine:
            return arm
        measures, against = {}, {}
        for name in next(iter(mine.values())).measures:
            by_seed = {s: m.measures[name].value for s, m in mine.items()}
            halves = [_half(m.measures[name].interval) for m in mine.values()]
            measures[name] = Figure.over_seeds(by_seed, statistics.fmean(halves))
            shared = {s: v - theirs[s].measures[name].value for s, v in by_seed.items() if s in theirs}
            if sequential.arm != arm.arm and shared:
                against[name] = Figure.over_seeds(shared)
        matrix = np.mean([m.scores for m in mine.values()], axis=0).tolist()
        return dataclasses.replace(arm, matrix=matrix, measures=measures, measures_against=against)

    def _matrix(self, arm: ArmResult, seeds: Sequence[int]) -> dict[int, StageMatrix]:
        key = tuple(arm.models)
        if key not in self._matrices:
            assert self.base is not None
            tasks = [(self.tasks[t].suite, self.tasks[t].name) for t in arm.order]
            stages = ["base", *arm.order]
            found = {}
            try:
                for s in (s for s in seeds if all((n, s) in self.folders for n in arm.models)):
                    folders = [self.base, *(self.folders[n, s] for n in arm.models)]
                    found[s] = stage_matrix(folders, tasks, stages)
            except ConfigError as error:
                self.notes.append(f"No matrix of tasks and stages for {', '.join(arm.order)}: {error}")
                found = {}
            self._matrices[key] = found
        return self._matrices[key]


def _score(gain: Gain, about: TaskScore) -> Figure:
    """What a model scores: the base's score, which counts as known, and what was gained over it."""
    sign = 1.0 if about.higher_is_better else -1.0
    by_seed = {seed: about.before + sign * value for seed, value in gain.by_seed.items()}
    return Figure(value=gain.after, by_seed=by_seed, samples_half=gain.samples_half)


def _half(interval: tuple[float, float] | None) -> float:
    return 0.0 if interval is None else (interval[1] - interval[0]) / 2
