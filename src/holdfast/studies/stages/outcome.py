"""What came of a stages study: the figures of every model, what each checkpoint has forgotten of
each task, and where actual forgetting begins. Judged by `holdfast.statistics.stages`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.compare.joint_scores import JointScores
from holdfast.evaluation.compare.samples import ComparisonOptions
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
from holdfast.studies.engine.states import COMPLETE
from holdfast.studies.engine.study import StudyState
from holdfast.studies.stages.plan import (
    BASE_RESTORED,
    GIVEN,
    MEASURE,
    STEP,
    TEXTS,
    TUNE,
    StagesConfig,
)
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
    models: list[MeasuredModel] = []
    notes: list[str] = []
    for job in state.latest:
        step = config.steps[job.attributes[STEP]]
        reason = job.attributes.get(stored.REASON)
        if step.kind in (MEASURE, TEXTS, TUNE):
            if reason is not None:
                notes.append(f"{step.label} failed: {reason}")
            continue
        result = next(iter(results.get(job.number, ())), {})
        before, after = (TUNED, RESTORED) if step.arm else (BASE, CONTROL)
        model = MeasuredModel(
            role=before, arm=step.arm, place=step.place, state=job.state, reason=reason
        )
        curve = [(float(share), float(loss)) for share, loss in result.get("curve", [])]
        tokens, seconds = int(result.get("tokens", 0)), float(result.get("seconds", 0.0))
        models += [
            model,
            dataclasses.replace(model, role=after, curve=curve, tokens=tokens, seconds=seconds),
        ]
    texts = _texts(config)
    if texts and config.not_looked_for:
        notes.append(
            f"Whether the corpus holds questions of {', '.join(config.not_looked_for)} was not "
            "looked at: they are in no file here. Name files of them under `select: {questions: "
            "[...]}`."
        )
    checkpoints: dict[str, list[str]] = {}
    for arm, count in config.arms.items():
        checkpoints[arm] = [f"epoch {number}" for number in range(1, count + 1)]
    if GIVEN in checkpoints:
        checkpoints[GIVEN] = [Path(name).name for name in config.request.tuned]
    return StagesRecord(
        **state.record_fields(config.resolved, notes),
        arms=list(config.arms),
        checkpoints=checkpoints,
        models=models,
        texts=texts,
    )


def _texts(config: StagesConfig) -> dict[str, Any]:
    """What is known of the text that is restored on."""
    file = config.texts[0].parent / "selection.json"
    return read_object(file) if file.is_file() else {}


def add_verdicts(record: StagesRecord, config: StagesConfig) -> StagesRecord:
    """The record with what was measured, and what follows from it.

    Raises:
        DataError: evaluations that cannot be read.
    """
    return _VerdictBuilder(record, config).record_with_verdicts()


class _VerdictBuilder:
    """Reads what was measured, compares and judges."""

    def __init__(self, record: StagesRecord, config: StagesConfig) -> None:
        self.record, self.config = record, config
        self.folders: dict[tuple[str, str, int], EvaluationFolder] = {}
        for model in record.models:
            if model.state == COMPLETE:
                name = f"{model.arm}-{model.place}-restored" if model.arm else BASE_RESTORED
                which = "start" if model.role in (BASE, TUNED) else "result"
                measured = RunFolder(config.run_folder(name)).evaluated(which)
                self.folders[model.role, model.arm, model.place] = measured
        self.margins = parse_margins(config.request.margin)
        self.allowed = parse_margins(config.request.control_tolerance)

    def record_with_verdicts(self) -> StagesRecord:
        along = {arm: self._along(arm) for arm in self.record.arms}
        record = dataclasses.replace(
            self.record,
            models=[self._measured(model) for model in self.record.models],
            along={arm: points for arm, points in along.items() if points},
        )
        base, control = self.folders.get((BASE, "", 0)), self.folders.get((CONTROL, "", 0))
        if base is None or control is None:
            return record
        tasks = [self._about(base, key) for key in self.config.judged]
        transitions = []
        for arm in record.arms:
            for task in tasks:
                transition = self._transition(base, control, arm, task)
                if transition is not None:
                    transitions.append(transition)
        verdicts = self._verdicts(base, control, tasks)
        return dataclasses.replace(record, tasks=tasks, verdicts=verdicts, transitions=transitions)

    def _measured(self, model: MeasuredModel) -> MeasuredModel:
        folder = self.folders.get((model.role, model.arm, model.place))
        if folder is None:
            return model
        label = "base"
        if model.arm:
            label = self.record.checkpoints[model.arm][model.place - 1]
        if model.role in (CONTROL, RESTORED):
            label += ", restored"
        figures: dict[str, dict[str, Figure]] = {}
        for evaluation in folder.all():
            name = f"{evaluation.suite}/{evaluation.name}"
            figures[name] = {}
            for key, metric in evaluation.metrics.items():
                figures[name][key] = Figure(value=metric.value, over_samples=metric.interval)
        path = folder.path.relative_to(self.config.output_dir).as_posix()
        return dataclasses.replace(model, label=label, evaluations=path, figures=figures)

    def _along(self, arm: str) -> list[Along]:
        """What was measured on the way of an arm's fine-tuning, as far as it is."""
        run = RunFolder(self.config.run_folder(f"{TUNE}-{arm}"))
        if not self.config.request.along or not run.exists():
            return []
        points = []
        for step, folder in run.trajectory():
            evaluations = folder.all()
            if evaluations:
                points.append(Along(step=step, evaluations=evaluations))
        return points

    def _about(self, base: EvaluationFolder, key: Key) -> TaskAbout:
        evaluation = _measured_entry(base, key)
        metric = evaluation.leading
        return TaskAbout(
            suite=evaluation.suite,
            name=evaluation.name,
            metric=evaluation.primary,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            chance=evaluation.references.get(evaluation.primary, {}).get(CHANCE),
        )

    # ------------------------------------------------------------------------------------- verdicts

    def _verdicts(
        self, base: EvaluationFolder, control: EvaluationFolder, tasks: Sequence[TaskAbout]
    ) -> list[StageVerdict]:
        cost = _compared(base, control, self.margins)
        evidence: list[Evidence] = []
        checked: list[tuple[str, int, TaskAbout]] = []
        for (role, arm, number), tuned in self.folders.items():
            if role != TUNED:
                continue
            restored = self.folders[RESTORED, arm, number]
            fell = _compared(base, tuned, self.margins)
            from_base = _compared(base, restored, self.margins)
            from_control = _compared(control, restored, self.margins)
            for task in tasks:
                key = (task.suite, task.name)
                before = cost[key].before
                control_tolerance = self.allowed.of(task.unit, task.metric, before, before)
                evidence.append(
                    Evidence(
                        tuned=fell[key],
                        restored=from_base[key],
                        against_control=from_control[key],
                        control=cost[key],
                        control_tolerance=control_tolerance,
                        pattern=from_base[PROBING, PROBING],
                        pattern_control=from_control[PROBING, PROBING],
                        above_chance=_above_chance(base, task),
                    )
                )
                checked.append((arm, number, task))
        judgements = judge(evidence, tolerance=self.config.request.tolerance)
        verdicts = []
        for facts, judgement, (arm, number, task) in zip(
            evidence, judgements, checked, strict=True
        ):
            came_back = self._came_back(base, arm, number, task)
            verdicts.append(
                StageVerdict(
                    arm=arm,
                    place=number,
                    task=f"{task.suite}/{task.name}",
                    verdict=judgement.verdict,
                    why=judgement.why,
                    tuned=facts.tuned,
                    restored=facts.restored,
                    against_control=facts.against_control,
                    control=facts.control,
                    control_tolerance=facts.control_tolerance,
                    pattern=facts.pattern,
                    pattern_tolerance=self.config.request.tolerance,
                    came_back=came_back,
                )
            )
        return verdicts

    def _came_back(
        self, base: EvaluationFolder, arm: str, place: int, task: TaskAbout
    ) -> Figure | None:
        """The share of the fall that restoring brought back, with Fieller's interval over
        questions."""
        folders = (base, self.folders[TUNED, arm, place], self.folders[RESTORED, arm, place])
        scores = _joint(folders, task)
        if scores is None:
            return None
        values, draws, n = scores
        fall, back = values[0] - values[1], values[2] - values[1]
        if fall <= 0:
            return None
        fall_draws, back_draws = draws[:, 0] - draws[:, 1], draws[:, 2] - draws[:, 1]
        (back_var, both), (_, fall_var) = np.cov(back_draws, fall_draws)
        squared = t_quantile(max(1, n - 1), 0.975) ** 2
        back_var, both, fall_var = squared * back_var, squared * both, squared * fall_var
        interval = fieller(back, fall, v_aa=back_var, v_ab=both, v_bb=fall_var)
        return None if interval is None else Figure(value=float(back / fall), over_samples=interval)

    def _transition(
        self, base: EvaluationFolder, control: EvaluationFolder, arm: str, task: TaskAbout
    ) -> Transition | None:
        """None where a model is missing or not finite, and where the base has nothing to lose."""
        if not _above_chance(base, task):
            return None
        count = len(self.record.checkpoints[arm])
        folders = [base, control]
        for role in (TUNED, RESTORED):
            for number in range(1, count + 1):
                folder = self.folders.get((role, arm, number))
                if folder is None:
                    return None
                folders.append(folder)
        scores = _joint(folders, task)
        if scores is None:
            return None
        values, draws, _ = scores
        margin = self.margins.of(task.unit, task.metric, float(values[0]), float(values[0]))
        turn = transition(forgotten(values), forgotten(draws), margin)
        return Transition(
            arm=arm,
            task=f"{task.suite}/{task.name}",
            place=_number(turn.place, count),
            interval=(turn.low + 1, _number(turn.high, count)),
        )


def _number(index: int, count: int) -> int | None:
    """The number of a checkpoint, from 1; None after the last one."""
    return index + 1 if index < count else None


def _measured_entry(folder: EvaluationFolder, key: Key) -> Evaluation:
    evaluation = folder.find(*key)
    if evaluation is None:
        raise DataError(f"{'/'.join(key)} was not measured in {folder.path}.")
    return evaluation


def _compared(
    before: EvaluationFolder, after: EvaluationFolder, margins: Margins
) -> dict[Key, Comparison]:
    """The metric that leads each entry."""
    comparisons, left_out = compare_folders(before, after, ComparisonOptions(margins=margins))
    if left_out:
        raise DataError(f"{after.path} cannot be compared with {before.path}: {' '.join(left_out)}")
    return {(comparison.suite, comparison.name): comparison for comparison in comparisons}


def _joint(
    folders: Sequence[EvaluationFolder], task: TaskAbout
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Scores `[K]`, joint bootstrap draws `[B, K]` and samples of a task, signed so that more is
    better; None where one is not finite."""
    key = (task.suite, task.name)
    joint = JointScores(folders, {key: [_measured_entry(folder, key) for folder in folders]})
    if joint.failed(key) is not None:
        return None
    scores, sign = joint.scores(key, task.metric), 1.0 if task.higher_is_better else -1.0
    return sign * scores.values, sign * joint.draws(key, task.metric), scores.n


def _above_chance(base: EvaluationFolder, task: TaskAbout) -> bool:
    return is_above_chance(_measured_entry(base, (task.suite, task.name)))


def is_above_chance(evaluation: Evaluation) -> bool:
    """Whether the interval of the metric that leads lies above chance; where no chance is known, it
    is taken to."""
    chance = evaluation.references.get(evaluation.primary, {}).get(CHANCE)
    interval = evaluation.leading.interval
    return chance is None or (interval is not None and interval[0] > chance)
