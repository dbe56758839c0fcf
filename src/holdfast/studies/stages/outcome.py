"""What came of a stages study: the figures of every model, what each checkpoint has forgotten of each task, and where
actual forgetting begins. Judged by `holdfast.statistics.stages`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.compare.joint_scores import JointScores
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import CHANCE, Evaluation, EvaluationFolder
from holdfast.records.figure import Figure
from holdfast.records.margins import Margins, parse_margins
from holdfast.records.run import RunFolder
from holdfast.records.stages import (
    BASE,
    CONTROL,
    PROBING,
    RESTORED,
    TUNED,
    Along,
    MeasuredModel,
    StagesRecord,
    StageVerdict,
    TaskAbout,
    Transition,
)
from holdfast.statistics.shares import fieller
from holdfast.statistics.stages import Evidence, forgotten, judge, transition
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.study import COMPLETE, StudyState
from holdfast.studies.stages.plan import GIVEN, MEASURE, STEP, TEXTS, TUNE, StagesConfig
from holdfast.support.files import read_object
from holdfast.support.quantiles import t_quantile

Key = tuple[str, str]
"""(suite, name) of an entry."""


def stages_record(
    state: StudyState, config: StagesConfig, results: Mapping[int, Sequence[Mapping[str, Any]]]
) -> StagesRecord:
    """The study at this moment, without figures and verdicts.

    Args:
        state: its jobs.
        config: what was asked for.
        results: what was made, by the job's number.
    """
    models, notes = [], list(state.attributes.get("notes", []))
    for job in state.latest:
        step, made = config.steps[job.attributes[STEP]], dict(next(iter(results.get(job.number, ())), {}))
        if step.kind in (MEASURE, TEXTS, TUNE):
            if (reason := job.attributes.get(stored.REASON)) is not None:
                notes.append(f"{step.label} failed: {reason}")
            continue
        shared: dict[str, Any] = {"arm": step.arm, "place": step.place, "state": job.state}
        shared["reason"] = job.attributes.get(stored.REASON)
        before, after = (TUNED, RESTORED) if step.arm else (BASE, CONTROL)
        models += [
            MeasuredModel(role=before, **shared),
            MeasuredModel(
                role=after,
                tokens=int(made.get("tokens", 0)),
                seconds=float(made.get("seconds", 0.0)),
                curve=[(float(x), float(y)) for x, y in made.get("curve", [])],
                **shared,
            ),
        ]
    if (texts := _texts(config)) and (unseen := config.not_looked_for):
        notes.append(
            f"Whether the corpus holds questions of {', '.join(unseen)} was not looked at: they are in no file here. "
            "Name files of them under `select: {questions: [...]}`."
        )
    return StagesRecord(
        name=config.name,
        status=state.status,
        created=state.created,
        finished=state.finished,
        config=config.resolved,
        arms=list(config.arms),
        checkpoints={
            arm: [Path(t).name for t in config.asked.tuned] if arm == GIVEN else [f"epoch {k + 1}" for k in range(n)]
            for arm, n in config.arms.items()
        },
        models=models,
        texts=texts,
        notes=notes,
        versions=dict(state.attributes.get("versions", {})),
        hardware=dict(state.attributes.get("hardware", {})),
    )


def _texts(config: StagesConfig) -> dict[str, Any]:
    """What is known of the text that is restored on."""
    file = config.texts[0].parent / "selection.json"
    return read_object(file) if config.asked.corpus and file.is_file() else {}


def with_verdicts(record: StagesRecord, config: StagesConfig) -> StagesRecord:
    """The record with what was measured, and what follows from it.

    Raises:
        DataError: evaluations that cannot be read.
    """
    return _Judging(record, config).record_with_verdicts()


class _Judging:
    """Reads what was measured, compares and judges."""

    def __init__(self, record: StagesRecord, config: StagesConfig) -> None:
        self.record, self.config = record, config
        self.folders: dict[tuple[str, str, int], EvaluationFolder] = {}
        for m in record.models:
            if m.state == COMPLETE:
                name = f"{m.arm}-{m.place}-restored" if m.arm else "base-restored"
                which = "start" if m.role in (BASE, TUNED) else "result"
                self.folders[m.role, m.arm, m.place] = RunFolder(config.run_folder(name)).evaluated(which)
        self.margins = parse_margins(config.asked.margin)
        self.allowed = parse_margins(config.asked.control_tolerance)

    def record_with_verdicts(self) -> StagesRecord:
        record = dataclasses.replace(
            self.record,
            models=[self._measured(m) for m in self.record.models],
            along={arm: points for arm in self.record.arms if (points := self._along(arm))},
        )
        base, control = self.folders.get((BASE, "", 0)), self.folders.get((CONTROL, "", 0))
        if base is None or control is None:
            return record
        tasks = [self._about(base, key) for key in self.config.judged]
        verdicts = self._verdicts(base, control, tasks)
        transitions = [
            found
            for arm in record.arms
            for task in tasks
            if (found := self._transition(base, control, arm, task)) is not None
        ]
        return dataclasses.replace(record, tasks=tasks, verdicts=verdicts, transitions=transitions)

    def _measured(self, model: MeasuredModel) -> MeasuredModel:
        folder = self.folders.get((model.role, model.arm, model.place))
        if folder is None:
            return model
        labels = {BASE: "base", CONTROL: "base, restored"}
        checkpoint = self.record.checkpoints[model.arm][model.place - 1] if model.arm else ""
        return dataclasses.replace(
            model,
            label=labels.get(model.role) or f"{checkpoint}{', restored' if model.role == RESTORED else ''}",
            evaluations=folder.path.relative_to(self.config.output_dir).as_posix(),
            figures={
                f"{e.suite}/{e.name}": {n: Figure(value=m.value, over_samples=m.interval) for n, m in e.metrics.items()}
                for e in folder.all()
            },
        )

    def _along(self, arm: str) -> list[Along]:
        """What was measured on the way of an arm's fine-tuning, as far as it is."""
        run = RunFolder(self.config.run_folder(f"{TUNE}-{arm}"))
        if not self.config.asked.along or not run.exists():
            return []
        points = [Along(step=step, evaluations=folder.all()) for step, folder in run.trajectory()]
        return [point for point in points if point.evaluations]

    def _about(self, base: EvaluationFolder, key: Key) -> TaskAbout:
        one = _found(base, key)
        metric = one.metrics[one.primary]
        return TaskAbout(
            suite=one.suite,
            name=one.name,
            metric=one.primary,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            chance=one.references.get(one.primary, {}).get(CHANCE),
        )

    # -------------------------------------------------------------------------------------------------------- verdicts

    def _verdicts(
        self, base: EvaluationFolder, control: EvaluationFolder, tasks: Sequence[TaskAbout]
    ) -> list[StageVerdict]:
        places = [k for k in self.folders if k[0] == TUNED]
        cost = _compared(base, control, self.margins)
        evidence: list[Evidence] = []
        where: list[tuple[str, int, TaskAbout]] = []
        for _, arm, place in places:
            tuned, restored = self.folders[TUNED, arm, place], self.folders[RESTORED, arm, place]
            fell = _compared(base, tuned, self.margins)
            left, beside = (_compared(b, restored, self.margins) for b in (base, control))
            for task in tasks:
                key = (task.suite, task.name)
                evidence.append(
                    Evidence(
                        tuned=fell[key],
                        restored=left[key],
                        against_control=beside[key],
                        control=cost[key],
                        control_tolerance=self.allowed.of(task.unit, task.metric, cost[key].before, cost[key].before),
                        pattern=left[PROBING, PROBING],
                        pattern_control=beside[PROBING, PROBING],
                        above_chance=_above_chance(base, task),
                    )
                )
                where.append((arm, place, task))
        return [
            StageVerdict(
                arm=arm,
                place=place,
                task=f"{task.suite}/{task.name}",
                verdict=j.verdict,
                reason=j.reason,
                tuned=e.tuned,
                restored=e.restored,
                against_control=e.against_control,
                came_back=self._came_back(base, arm, place, task),
            )
            for e, j, (arm, place, task) in zip(
                evidence, judge(evidence, tolerance=self.config.asked.tolerance), where, strict=True
            )
        ]

    def _came_back(self, base: EvaluationFolder, arm: str, place: int, task: TaskAbout) -> Figure | None:
        """The share of the fall that restoring brought back, with Fieller's interval over questions."""
        folders = (base, self.folders[TUNED, arm, place], self.folders[RESTORED, arm, place])
        scores = _joint(folders, task)
        if scores is None:
            return None
        values, draws, n = scores
        a, b = values[2] - values[1], values[0] - values[1]
        (v_aa, v_ab), (_, v_bb) = np.cov(draws[:, 2] - draws[:, 1], draws[:, 0] - draws[:, 1])
        squared = t_quantile(max(1, n - 1), 0.975) ** 2
        interval = fieller(a, b, v_aa=v_aa * squared, v_ab=v_ab * squared, v_bb=v_bb * squared) if b > 0 else None
        return Figure(value=float(a / b), over_samples=interval) if interval is not None else None

    def _transition(
        self, base: EvaluationFolder, control: EvaluationFolder, arm: str, task: TaskAbout
    ) -> Transition | None:
        """None where a model is missing or not finite, and where the base has nothing to lose."""
        if not _above_chance(base, task):
            return None
        count = len(self.record.checkpoints[arm])
        models = [self.folders.get((role, arm, k + 1)) for role in (TUNED, RESTORED) for k in range(count)]
        if any(folder is None for folder in models):
            return None
        scores = _joint([base, control, *(f for f in models if f is not None)], task)
        if scores is None:
            return None
        values, draws, _ = scores
        margin = self.margins.of(task.unit, task.metric, float(values[0]), float(values[0]))
        found = transition(forgotten(values), forgotten(draws), margin)
        return Transition(
            arm=arm,
            task=f"{task.suite}/{task.name}",
            place=found.place + 1 if found.place < count else None,
            interval=(found.low + 1, found.high + 1 if found.high < count else None),
        )


def _found(folder: EvaluationFolder, key: Key) -> Evaluation:
    one = folder.find(*key)
    if one is None:
        raise DataError(f"{'/'.join(key)} was not measured in {folder.path}.")
    return one


def _compared(before: EvaluationFolder, after: EvaluationFolder, margins: Margins) -> dict[Key, Comparison]:
    """The metric that leads each entry."""
    found, left_out = compare_folders(before, after, margins=margins)
    if left_out:
        raise DataError(f"{after.path} cannot be compared with {before.path}: {' '.join(left_out)}")
    return {(c.suite, c.name): c for c in found}


def _joint(folders: Sequence[EvaluationFolder], task: TaskAbout) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Scores `[K]`, joint bootstrap draws `[B, K]` and samples of a task, signed so that more is better; None where one
    is not finite."""
    key = (task.suite, task.name)
    joint = JointScores(folders, {key: [_found(folder, key) for folder in folders]})
    if joint.failed(key) is not None:
        return None
    scores, sign = joint.scores(key, task.metric), 1.0 if task.higher_is_better else -1.0
    return sign * scores.values, sign * scores.draws, scores.n


def _above_chance(base: EvaluationFolder, task: TaskAbout) -> bool:
    return is_above_chance(_found(base, (task.suite, task.name)))


def is_above_chance(found: Evaluation) -> bool:
    """Whether the interval of the metric that leads lies above chance; where no chance is known, it is taken to."""
    chance, interval = found.references.get(found.primary, {}).get(CHANCE), found.metrics[found.primary].interval
    return chance is None or (interval is not None and interval[0] > chance)
