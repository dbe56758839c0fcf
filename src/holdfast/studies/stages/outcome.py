"""What came of a stages study: the figures of every model, what each checkpoint has forgotten of
each task, and where actual forgetting begins. Judged by `holdfast.statistics.stages`."""

from __future__ import annotations

import dataclasses
import statistics
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
from holdfast.records.figure import CONFIDENCE, Figure
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
from holdfast.statistics.intervals import clopper_pearson
from holdfast.statistics.shares import fieller
from holdfast.statistics.stages import AtDose, Evidence, Judgement, forgotten, judge, transition
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
    at_dose,
)
from holdfast.support.files import read_object
from holdfast.support.quantiles import t_quantile

Key = tuple[str, str]
"""(suite, name) of an entry."""
GENERATED_NOTE = (
    "The base itself wrote the text to restore on, which may contain the forgotten answers. So "
    "restoring may have taught these answers again. To rule this out, use text without them."
)
"""What a reader should know of a verdict on generated text."""


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
    epoch_tokens = None
    for job in state.latest:
        step = config.steps[job.attributes[STEP]]
        reason = job.attributes.get(stored.REASON)
        result = next(iter(results.get(job.number, ())), {})
        if step.kind in (MEASURE, TEXTS, TUNE):
            if reason is not None:
                notes.append(f"{step.label} failed: {reason}")
            if step.kind == TUNE and step.arm == next(iter(config.arms)) and result.get("tokens"):
                epoch_tokens = round(int(result["tokens"]) / config.epochs)
            continue
        before, after = (TUNED, RESTORED) if step.arm else (BASE, CONTROL)
        model = MeasuredModel(
            role=before, arm=step.arm, place=step.place, state=job.state, reason=reason
        )
        curve = [(float(share), float(loss)) for share, loss in result.get("curve", [])]
        tokens, seconds = int(result.get("tokens", 0)), float(result.get("seconds", 0.0))
        restored = dataclasses.replace(
            model, role=after, dose=step.dose, curve=curve, tokens=tokens, seconds=seconds
        )
        models += [restored] if step.dose > 1 else [model, restored]
    texts = _texts(config)
    if texts and config.not_looked_for:
        notes.append(
            f"The corpus was not checked for questions of {', '.join(config.not_looked_for)}: no "
            "local file has these questions. Give files with them under `select: {questions: "
            "[...]}`."
        )
    if "generated" in texts:
        notes.append(GENERATED_NOTE)
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
        epoch_tokens=epoch_tokens,
    )


def _texts(config: StagesConfig) -> dict[str, Any]:
    """What is known of the text that is restored on, and how it was written where the base wrote
    it."""
    file = config.texts[0].parent / "selection.json"
    texts = read_object(file) if file.is_file() else {}
    written = config.generated.with_suffix(".json")
    if config.request.generates and written.is_file():
        texts["generated"] = read_object(written)
    return texts


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
        self.folders: dict[tuple[str, str, int, int], EvaluationFolder] = {}
        for model in record.models:
            if model.state == COMPLETE:
                name = f"{model.arm}-{model.place}-restored" if model.arm else BASE_RESTORED
                which = "start" if model.role in (BASE, TUNED) else "result"
                run = RunFolder(config.run_folder(at_dose(name, model.dose)))
                self.folders[model.role, model.arm, model.place, model.dose] = run.evaluated(which)
        self.doses = [dose for dose in record.doses if (CONTROL, "", 0, dose) in self.folders]
        self.margins = parse_margins(config.request.margin)
        self.allowed = parse_margins(config.request.control_tolerance)

    def record_with_verdicts(self) -> StagesRecord:
        along = {arm: self._along(arm) for arm in self.record.arms}
        record = dataclasses.replace(
            self.record,
            models=[self._measured(model) for model in self.record.models],
            along={arm: points for arm, points in along.items() if points},
        )
        base = self.folders.get((BASE, "", 0, 1))
        if base is None or not self.doses:
            return record
        tasks = [self._about(base, key) for key in self.config.judged]
        transitions = []
        for arm in record.arms:
            for task in tasks:
                for dose in self.doses:
                    transition = self._transition(base, arm, task, dose)
                    if transition is not None:
                        transitions.append(transition)
        verdicts = self._verdicts(base, tasks)
        return dataclasses.replace(record, tasks=tasks, verdicts=verdicts, transitions=transitions)

    def _measured(self, model: MeasuredModel) -> MeasuredModel:
        folder = self.folders.get((model.role, model.arm, model.place, model.dose))
        if folder is None:
            return model
        label = "base"
        if model.arm:
            label = self.record.checkpoints[model.arm][model.place - 1]
        if model.role in (CONTROL, RESTORED):
            label += ", restored"
        if model.dose > 1:
            label += f" at {model.dose}x"
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
        points: list[Along] = []
        answers: dict[str, dict[str, int]] = {}
        for step, folder in run.trajectory():
            evaluations = folder.all()
            if not evaluations:
                continue
            changed = {}
            for evaluation in evaluations:
                entry = f"{evaluation.suite}/{evaluation.name}"
                before, after = answers.get(entry, {}), _answers(folder, evaluation)
                figure = _share_changed(before, after)
                if figure is not None:
                    changed[entry] = figure
                answers[entry] = after
            points.append(Along(step=step, evaluations=evaluations, changed=changed))
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
            chance=_chance(base, evaluation),
        )

    # ------------------------------------------------------------------------------------- verdicts

    def _verdicts(self, base: EvaluationFolder, tasks: Sequence[TaskAbout]) -> list[StageVerdict]:
        evidence: list[Evidence] = []
        checked: list[tuple[str, int, TaskAbout]] = []
        costs = {}
        for dose in self.doses:
            costs[dose] = _compared(base, self.folders[CONTROL, "", 0, dose], self.margins)
        for arm in self.record.arms:
            for checkpoint in range(1, len(self.record.checkpoints[arm]) + 1):
                if (TUNED, arm, checkpoint, 1) not in self.folders:
                    continue
                about = self._evidence(base, costs, arm, checkpoint, tasks)
                evidence += about
                checked += [(arm, checkpoint, task) for task in tasks]
        judgements = judge(evidence, tolerance=self.config.request.tolerance)
        verdicts = []
        for facts, judgement, (arm, checkpoint, task) in zip(
            evidence, judgements, checked, strict=True
        ):
            verdicts.append(self._verdict(base, facts, judgement, (arm, checkpoint, task)))
        return verdicts

    def _evidence(
        self,
        base: EvaluationFolder,
        costs: Mapping[int, Mapping[Key, Comparison]],
        arm: str,
        place: int,
        tasks: Sequence[TaskAbout],
    ) -> list[Evidence]:
        """Of a checkpoint, for each task."""
        fell = _compared(base, self.folders[TUNED, arm, place, 1], self.margins)
        at_doses: dict[Key, list[AtDose]] = {}
        before = None
        for dose in self.doses:
            restored = self.folders.get((RESTORED, arm, place, dose))
            if restored is None:
                continue
            control = self.folders[CONTROL, "", 0, dose]
            from_base = _compared(base, restored, self.margins)
            from_control = _compared(control, restored, self.margins)
            more: Mapping[Key, Comparison] = {}
            if before is not None:
                more = _compared(before, restored, self.margins)
            for task in tasks:
                key = (task.suite, task.name)
                cost = costs[dose][key]
                tolerated = self.allowed.of(task.unit, task.metric, cost.before, cost.before)
                at_doses.setdefault(key, []).append(
                    AtDose(
                        dose=dose,
                        restored=from_base[key],
                        against_control=from_control[key],
                        control=cost,
                        control_tolerance=tolerated,
                        pattern=from_base[PROBING, PROBING],
                        pattern_control=from_control[PROBING, PROBING],
                        more=more.get(key),
                    )
                )
            before = restored
        evidence = []
        for task in tasks:
            key = (task.suite, task.name)
            evidence.append(
                Evidence(
                    tuned=fell[key],
                    doses=at_doses.get(key, []),
                    above_chance=_above_chance(base, task),
                    chain=(arm, *key),
                )
            )
        return evidence

    def _verdict(
        self,
        base: EvaluationFolder,
        facts: Evidence,
        judgement: Judgement,
        about: tuple[str, int, TaskAbout],
    ) -> StageVerdict:
        """For the record, with the comparisons at the dose that it stands at."""
        arm, checkpoint, task = about
        at = judgement.at or next(iter(facts.doses), None)
        verdict = StageVerdict(
            arm=arm,
            place=checkpoint,
            task=f"{task.suite}/{task.name}",
            verdict=judgement.verdict,
            why=judgement.why,
            tuned=facts.tuned,
            pattern_tolerance=self.config.request.tolerance,
        )
        if at is None:
            return verdict
        return dataclasses.replace(
            verdict,
            dose=at.dose,
            restored=at.restored,
            against_control=at.against_control,
            control=at.control,
            control_tolerance=at.control_tolerance,
            pattern=at.pattern,
            more=at.more,
            came_back=self._came_back(base, arm, checkpoint, task, at.dose),
        )

    def _came_back(
        self, base: EvaluationFolder, arm: str, place: int, task: TaskAbout, dose: int
    ) -> Figure | None:
        """The share of the fall that restoring brought back, with Fieller's interval over
        questions."""
        restored = self.folders[RESTORED, arm, place, dose]
        folders = (base, self.folders[TUNED, arm, place, 1], restored)
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
        self, base: EvaluationFolder, arm: str, task: TaskAbout, dose: int
    ) -> Transition | None:
        """None where a model is missing or not finite, and where the base has nothing to lose."""
        if not _above_chance(base, task):
            return None
        count = len(self.record.checkpoints[arm])
        folders = [base, self.folders[CONTROL, "", 0, dose]]
        for role, of_role in ((TUNED, 1), (RESTORED, dose)):
            for number in range(1, count + 1):
                folder = self.folders.get((role, arm, number, of_role))
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
            dose=dose,
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
    entries = {}
    for needed in (key, *_members(_measured_entry(folders[0], key))):
        entries[needed] = [_measured_entry(folder, needed) for folder in folders]
    joint = JointScores(folders, entries)
    if joint.failed(key) is not None:
        return None
    scores, sign = joint.scores(key, task.metric), 1.0 if task.higher_is_better else -1.0
    return sign * scores.values, sign * joint.draws(key, task.metric), scores.n


def _members(evaluation: Evaluation) -> list[Key]:
    """The entries of an average; none of an entry."""
    members = []
    for member in evaluation.settings.get("members", ()) if evaluation.kind == "average" else ():
        members.append((str(member["suite"]), str(member["name"])))
    return members


def _chance(folder: EvaluationFolder, evaluation: Evaluation) -> float | None:
    """What guessing gives, of an average the mean of its members'; None where it is not known."""
    members = _members(evaluation)
    if not members:
        return evaluation.references.get(evaluation.primary, {}).get(CHANCE)
    chances = []
    for key in members:
        chances.append(_chance(folder, _measured_entry(folder, key)))
    known = [chance for chance in chances if chance is not None]
    return statistics.fmean(known) if len(known) == len(chances) else None


def _answers(folder: EvaluationFolder, evaluation: Evaluation) -> dict[str, int]:
    """What was answered, by sample; nothing where there is no answer among options."""
    if "entropy" not in evaluation.metrics:
        return {}
    answers = {}
    for row in folder.samples(evaluation.suite, evaluation.name):
        if "answer" in row:
            answers[f"{row.get('task', '')} {row['doc']}"] = int(row["answer"])
    return answers


def _share_changed(before: Mapping[str, int], after: Mapping[str, int]) -> Figure | None:
    """The share of questions that are answered otherwise; None where there are none in common."""
    common = [sample for sample in after if sample in before]
    if not common:
        return None
    count = sum(before[sample] != after[sample] for sample in common)
    half = (1 - CONFIDENCE) / 2
    low, high = clopper_pearson(count, len(common), half)
    return Figure(value=count / len(common), over_samples=(low, high))


def _above_chance(base: EvaluationFolder, task: TaskAbout) -> bool:
    return is_above_chance(base, _measured_entry(base, (task.suite, task.name)))


def is_above_chance(folder: EvaluationFolder, evaluation: Evaluation) -> bool:
    """Whether the interval of the metric that leads lies above chance; where no chance is known, it
    is taken to."""
    chance = _chance(folder, evaluation)
    interval = evaluation.leading.interval
    return chance is None or (interval is not None and interval[0] > chance)
