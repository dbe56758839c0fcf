"""What the claims of "Soup to Go" are about: an order of tasks with one of its earlier ones, and the
figures that a rule asks of it.

*Old* is a task before the last of an order, *new* the last one. *Learnt*: what training a task alone
gains on it over the base. *Forgotten*: how much better the old task's score is with that model than
after sequential fine-tuning. All are signed so that more is better; arms are differences to
sequential fine-tuning, paired by seed and sample. All arms answer the same samples: where the record
knows how far two of them go together over these, differences and shares of several are pairs as well
(`holdfast.statistics.samples_part`); otherwise they count as independent, which is as a rule too
wide.

The *trade-off* of an arm is the mean over the order's tasks of its score beside sequential
fine-tuning, each as a share of what training that task alone gains, so that all tasks weigh alike
whatever their units and however much there was to learn. The gains are taken as known numbers: their
own noise is not in the interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.records.figure import Figure, NotMeasured, SamplesPart
from holdfast.records.sequence import (
    MERGE,
    MULTITASK,
    SEQUENTIAL,
    SINGLE,
    ArmResult,
    SequenceRecord,
)
from holdfast.statistics.samples_part import part_of

NAMES = {
    SEQUENTIAL: "sequential fine-tuning",
    SINGLE: "the single task",
    MULTITASK: "multitask training",
    "replay": "rehearsal",
    "sfa": "SFA",
    "l2": "L2",
    "ewc": "EWC",
    "ties": "TIES",
    "task_arithmetic": "task arithmetic",
}
"""Of kinds of arms, for people."""
LEAST_SHARE, LEAST_NATS = 0.02, 0.05
"""What a task has to be learnt by, and forgotten by: of shares and of nats a token."""


@dataclass(frozen=True)
class Pair:
    """An order with one of its old tasks. What is asked for and was not measured raises
    `NotMeasured`."""

    record: SequenceRecord
    order: list[str]
    old: str
    entry: str = ""
    """Key of another entry of the last task that stands for it, such as "law/overruling"; "" its
    first one."""

    @property
    def new(self) -> str:
        """The last task, or its entry."""
        return self.entry or self.order[-1]

    @property
    def path(self) -> str:
        """The order for people."""
        return " → ".join(self.order)

    @property
    def where(self) -> str:
        """For people, with the old task where there are several."""
        return f"{self.path}, {self.old}" if len(self.order) > 2 else self.path

    @property
    def unit(self) -> str:
        """Of the old task."""
        return self.record.score_of(self.old).unit

    @property
    def unit_of_new(self) -> str:
        """Of the last task."""
        return self.record.score_of(self.new).unit

    def behind(self, figure: Figure) -> str:
        """The seeds."""
        return f"{len(self.record.seeds)} seeds" if len(self.record.seeds) > 1 else "one seed"

    # ----------------------------------------------------------------------------------------- arms

    def arms(self, kind: str) -> list[ArmResult]:
        """Those of a kind, or of a merge method."""
        arms = []
        for arm in self.record.of(self.order):
            is_merge = arm.kind == MERGE and arm.merge.get("method") == kind
            if arm.scores and (arm.kind == kind or is_merge):
                arms.append(arm)
        if not arms:
            raise NotMeasured(NAMES[kind])
        return arms

    def alone(self, kind: str) -> list[ArmResult]:
        """Arms of a method by itself, or of a merge method."""
        arms = []
        for arm in self.arms(kind):
            if arm.kind == MERGE or len(arm.retention) == 1:
                arms.append(arm)
        if not arms:
            raise NotMeasured(f"{NAMES[kind]} without other methods")
        return arms

    def averaging(self, **fixed: float) -> list[ArmResult]:
        """SFA by itself, the rarest averages first, at some p or beta."""
        arms = []
        for arm in self.arms("sfa"):
            parameters = averaging_of(arm)
            if set(parameters) == {"p", "beta"} and parameters.items() >= fixed.items():
                arms.append(arm)
        if not arms:
            lacking = ["SFA"]
            for name, value in fixed.items():
                lacking.append(f"at {name} = {value:g}")
            raise NotMeasured(" ".join(lacking))
        return sorted(arms, key=lambda arm: (-averaging_of(arm)["p"], averaging_of(arm)["beta"]))

    # -------------------------------------------------------------------------------------- figures

    def gained_by(self, arm: ArmResult, task: str) -> Figure:
        """What an arm gains on a task over the base."""
        about, score = self.record.score_of(task), arm.scores.get(task)
        if score is None or not score.by_seed:
            raise NotMeasured(f"{arm.arm} on {task}")
        sign = 1.0 if about.higher_is_better else -1.0
        gains = {seed: sign * (value - about.before) for seed, value in score.by_seed.items()}
        return Figure.over_seeds(gains, score.samples_half, self._samples_part(arm, task))

    def _samples_part(self, arm: ArmResult, task: str) -> SamplesPart | None:
        """Of an arm's gain over the base on a task that it has a score of; None where the record
        does not say how far the arm goes along with others over the samples."""
        about = self.record.score_of(task)
        entry = (about.suite, about.name, about.metric)
        halves = {entry: arm.scores[task].samples_half}
        return part_of(self.record.arms.index(arm), halves, self.record.correlations)

    def gained(self, task: str, kind: str = SINGLE) -> Figure:
        """Over the base, by training the task alone."""
        return self.gained_by(self.arms(kind)[0], task)

    def against(self, arm: ArmResult, task: str) -> Figure:
        """Over sequential fine-tuning."""
        sequential = self.arms(SEQUENTIAL)[0]
        if arm.kind == SEQUENTIAL and arm.arm == sequential.arm:
            return self.gained_by(arm, task) * 0.0
        figure = arm.against.get(task)
        if figure is None:
            raise NotMeasured(f"{arm.arm} on {task}")
        if task not in arm.scores or task not in sequential.scores:
            return figure
        arm_part, other = self._samples_part(arm, task), self._samples_part(sequential, task)
        return replace(figure, samples_part=SamplesPart.total([(1.0, arm_part), (-1.0, other)]))

    @property
    def forgotten(self) -> Figure:
        """Of the old task by sequential fine-tuning."""
        return self.against(self.arms(SINGLE)[0], self.old)

    def share(self, figure: Figure, task: str) -> Figure:
        """A difference on a task as a share of what training it alone gains."""
        gain = self.gained(task).value
        if not gain > 0:
            raise NotMeasured(f"a gain from training {task} alone")
        return figure * (1 / gain)

    def trade_off(self, arm: ArmResult) -> Figure:
        """The mean share over the order's tasks, over sequential fine-tuning (module docstring)."""
        shares = [self.share(self.against(arm, task), task) for task in self.order]
        return mean(shares)

    @property
    def forgotten_share(self) -> Figure:
        """What sequential fine-tuning loses in the trade-off: of every old task what is forgotten,
        of the new one nothing."""
        single = self.arms(SINGLE)[0]
        shares = [self.share(self.against(single, task), task) for task in self.order[:-1]]
        return mean(shares) * (len(shares) / len(self.order))

    def best(self, kind: str) -> ArmResult:
        """The arm of a method with the best trade-off."""
        return max(self.alone(kind), key=lambda arm: self.trade_off(arm).value)


@dataclass(frozen=True)
class Curve(Pair):
    """An order with its first task, whose held-out loss is followed along the others."""

    @property
    def unit(self) -> str:
        """Of the loss."""
        return "nats/token"

    def losses(self) -> list[tuple[str, Figure]]:
        """The first task's held-out loss after its own training and after each later task's, by
        sequential fine-tuning."""
        models = self.arms(SEQUENTIAL)[0].models[1:]
        points = [(f"after {self.old}", self._loss(models[0], first=True))]
        for model, task in zip(models, self.order[1:], strict=True):
            points.append((f"after {task}", self._loss(model)))
        return points

    def _loss(self, name: str, *, first: bool = False) -> Figure:
        by_seed = {}
        for model in self.record.models:
            curve = model.curves.get(self.old)
            if model.name == name and curve:
                by_seed[model.seed] = curve[0 if first else -1][1]
        if not by_seed:
            raise NotMeasured(f"the held-out loss of {self.old} during later training")
        return Figure.over_seeds(by_seed)

    def never_saw(self) -> ArmResult:
        """The multitask model of all tasks but the first."""
        for arm in self.arms(MULTITASK):
            if arm.left_out == [self.old]:
                return arm
        raise NotMeasured(f"{NAMES[MULTITASK]} without {self.old}")


def mean(figures: Sequence[Figure]) -> Figure:
    """Of figures over the same seeds, at least one."""
    total = figures[0]
    for figure in figures[1:]:
        total = total + figure
    return total * (1 / len(figures))


def averaging_of(arm: ArmResult) -> dict[str, Any]:
    """Parameters of SFA."""
    return {"p": 0.25, "beta": 0.5, **(arm.retention[0]["sfa"] or {})}


# -------------------------------------------------------------------------------------------- cases


def pairs(record: SequenceRecord) -> list[Pair]:
    """Every order with each of its old tasks."""
    cases = []
    for order in record.orders:
        cases += [Pair(record, order, old) for old in order[:-1]]
    return cases


def orders(record: SequenceRecord) -> list[Pair]:
    """Every order once, with its first task as the old one."""
    return [Pair(record, order, order[0]) for order in record.orders]


def curves(record: SequenceRecord) -> list[Curve]:
    """Every order with its first task's loss."""
    return [Curve(record, order, order[0]) for order in record.orders]


def new_entries(record: SequenceRecord) -> list[Pair]:
    """Every order with each entry of its last task: the first one, and the others that training the
    task alone improves."""
    cases = []
    for pair in orders(record):
        cases.append(pair)
        for entry in record.entries_of(pair.new):
            other = replace(pair, entry=entry)
            if is_learnt(other, entry):
                cases.append(other)
    return cases


def is_learnt(pair: Pair, task: str) -> bool:
    """Whether training a task alone improves an entry by the least that counts."""
    try:
        return lower_end(pair.gained(task)) >= least(pair.record.score_of(task).unit)
    except NotMeasured:
        return False


def every_task(record: SequenceRecord) -> list[Pair]:
    """Every order with each of its tasks, the last one too; none before anything was measured."""
    cases = []
    for order in record.orders if record.tasks else ():
        cases += [Pair(record, order, task) for task in order]
    return cases


def lower_end(figure: Figure) -> float:
    """The end of the interval that is nearer to 0; the value itself where there is none.

    Raises:
        NotMeasured: the figure is not finite.
    """
    if not math.isfinite(figure.value):
        raise NotMeasured("a finite value")
    return figure.value if figure.interval is None else figure.interval[0]


def least(unit: str) -> float:
    """What counts of a task, in its unit."""
    return LEAST_NATS if "nat" in unit else LEAST_SHARE


def settings_beyond(pair: Pair, kind: str) -> int:
    """How many settings of a method lie beyond its best one on the side that has fewer; 0: the best
    is the end of the grid, so that another setting might do better. Only arms that differ from the
    best in their strength alone count."""
    best = pair.best(kind)
    strengths = set()
    for arm in pair.alone(kind):
        if arm.strength is not None and _other_parameters(arm) == _other_parameters(best):
            strengths.add(arm.strength)
    if best.strength is None:
        raise NotMeasured(f"more than one setting of {NAMES[kind]}")
    position = sorted(strengths).index(best.strength)
    return min(position, len(strengths) - 1 - position)


def _other_parameters(arm: ArmResult) -> dict[str, Any]:
    """What an arm has beside its strength."""
    parameters: Iterable[tuple[str, Any]] = arm.merge.items()
    if not arm.merge:
        parameters = (next(iter(arm.retention[0].values())) or {}).items()
    others = {}
    for key, value in parameters:
        is_strength = not isinstance(value, bool) and value == arm.strength
        if not is_strength and key != "weights":
            others[key] = value
    return others


def best_of_other_seeds(pair: Pair, kind: str) -> Figure:
    """The trade-off of a method's best arm: of each seed the arm that is best with the other
    seeds."""
    arms = [pair.trade_off(arm) for arm in pair.alone(kind)]
    seeds = sorted(set.intersection(*(set(arm.by_seed) for arm in arms)))
    if len(seeds) < 2:
        raise NotMeasured(f"{NAMES[kind]} with two seeds")
    by_seed, parts = {}, []
    for seed in seeds:
        others = [s for s in seeds if s != seed]
        chosen = max(arms, key=lambda arm: statistics.fmean(arm.by_seed[s] for s in others))
        by_seed[seed] = chosen.by_seed[seed]
        parts.append((1 / len(seeds), chosen.samples_part))
    samples_part = SamplesPart.total(parts)
    half = max(arm.samples_half for arm in arms) if samples_part is None else samples_part.half
    return Figure.over_seeds(by_seed, half, samples_part)


def correlation(pair: Pair, arms: Sequence[ArmResult]) -> Figure:
    """Of the distance to the model before with the old task's score, over arms."""
    sequential = pair.arms(SEQUENTIAL)[0]
    points = []
    for arm in arms:
        if arm.distance is not None and (arm.against or arm == sequential):
            points.append((arm.distance.by_seed, pair.against(arm, pair.old).by_seed))
    by_seed = {}
    for seed in pair.record.seeds:
        distances, scores = [], []
        for distance, score in points:
            if seed in distance and seed in score:
                distances.append(distance[seed])
                scores.append(score[seed])
        if len(scores) >= 4 and len(set(distances)) > 1 and len(set(scores)) > 1:
            by_seed[seed] = statistics.correlation(distances, scores)
    if not by_seed:
        raise NotMeasured("the distance of at least four arms")
    return Figure.over_seeds(by_seed)
