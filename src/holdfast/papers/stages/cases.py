"""What the claims of "Pattern Shifting or Knowledge Losing" look at: the studies by world, figures of
their models, and the checkpoints that a rule has to hold for."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping

from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.stages import BASE, CONTROL, PROBING, RESTORED, TUNED, StagesRecord

WIDE, NARROW, OTHER = "world-", "narrow-", "other-"
"""What the studies' names begin with: the models of the claims, smaller ones for claims 5 and 7a,
and the same models tuned on other conversations for claim 7b."""
GROUPS = {
    WIDE: "a study of the larger model (recipes world-6, ...)",
    NARROW: "a study of a smaller model in the same worlds (recipes narrow-6, ...)",
    OTHER: "a study of other instruction data (recipes other-6, ...)",
}
FEW = 0.05
"""Of all steps of fine-tuning: half of the first of ten epochs."""


@dataclasses.dataclass(frozen=True)
class Worlds:
    """The studies by group (`GROUPS`) and world."""

    groups: Mapping[str, Mapping[int, StagesRecord]]

    def of(self, group: str) -> Mapping[int, StagesRecord]:
        """The studies of a group by world, at least one."""
        records = self.groups.get(group, {})
        if not records:
            raise NotMeasured(GROUPS[group])
        return records

    def last(self, group: str = WIDE) -> int:
        """The checkpoint after all epochs, counted from 1; 0 where there is none."""
        records = self.groups.get(group, {}).values()
        return min((len(labels(record)) for record in records), default=0)

    def middle(self, group: str = WIDE) -> int:
        """After half of them."""
        return max(1, self.last(group) // 2)

    def doses(self) -> list[int]:
        """That every world was restored with, ascending."""
        common: set[int] | None = None
        for record in self.of(WIDE).values():
            doses = set(record.doses)
            common = doses if common is None else common & doses
        return sorted(common or ())

    def without(self, world: int) -> Worlds:
        """All but one world."""
        groups = {}
        for group, records in self.groups.items():
            groups[group] = {number: r for number, r in records.items() if number != world}
        return Worlds(groups)


# ----------------------------------------------------------------------------------------- measures


Measure = Callable[[StagesRecord], tuple[str, str]]
"""Of a record, the entry ("suite/name") and the metric; raises `NotMeasured`."""
Model = tuple[str, int, int]
"""Role, checkpoint (0 of base and control) and dose of restoring."""
BASE_MODEL: Model = (BASE, 0, 1)


def labels(record: StagesRecord) -> list[str]:
    """Of the checkpoints that are diagnosed."""
    return record.checkpoints[record.arms[0]]


def plain(record: StagesRecord) -> tuple[str, str]:
    """Plain text."""
    return f"{PROBING}/{PROBING}", "nats_per_token"


def knowledge(record: StagesRecord) -> tuple[str, str]:
    """The first task."""
    if not record.tasks:
        raise NotMeasured("a task")
    task = record.tasks[0]
    return f"{task.suite}/{task.name}", task.metric


def second(record: StagesRecord) -> tuple[str, str]:
    """The next task that has no letters."""
    base = record.model(BASE)
    for task in record.tasks[1:]:
        entry = f"{task.suite}/{task.name}"
        if base is not None and "entropy" not in base.figures.get(entry, {}):
            return entry, task.metric
    raise NotMeasured("a second benchmark")


def entropy(record: StagesRecord) -> tuple[str, str]:
    """At the answer position of lettered questions."""
    return entry_with("entropy", record), "entropy"


def letters(record: StagesRecord) -> tuple[str, str]:
    """Lettered questions that are answered right."""
    return entry_with("entropy", record), "acc"


def memorised(record: StagesRecord) -> tuple[str, str]:
    """What fine-tuning's data is memorised of."""
    return entry_with("exact_memorisation", record), "exact_memorisation"


def entry_with(metric: str, record: StagesRecord) -> str:
    """The first entry that has a metric."""
    for model in record.models:
        for entry, figures in model.figures.items():
            if metric in figures:
                return entry
    raise NotMeasured(metric.replace("_", " "))


def figure_of(record: StagesRecord, model: Model, measure: Measure) -> Figure:
    """A figure of a model of a world."""
    (role, number, dose), (entry, metric) = model, measure(record)
    measured = record.model(role, record.arms[0] if number else "", number, dose)
    figure = None if measured is None else measured.figures.get(entry, {}).get(metric)
    if figure is None or not math.isfinite(figure.value):
        which = f"checkpoint {number}" if number else "model"
        at_dose = f" at {dose} times the dose" if dose > 1 else ""
        raise NotMeasured(f"{entry} ({metric}) of the {role} {which}{at_dose}")
    return figure


def above_guessing(record: StagesRecord, model: Model, measure: Measure) -> Figure:
    """What a model answers beyond chance."""
    for task in record.tasks:
        if f"{task.suite}/{task.name}" == measure(record)[0]:
            return Figure(value=figure_of(record, model, measure).value - (task.chance or 0.0))
    raise NotMeasured("chance")


def least_mass(record: StagesRecord) -> Figure:
    """The least mass on the letters from `FEW` of the fine-tuning's steps on, of what was measured
    on the way."""
    entry, points = entropy(record)[0], record.along.get(record.arms[0], [])
    last = max((point.step for point in points), default=0)
    figures = []
    for point in points:
        for evaluation in point.evaluations if last and point.step >= FEW * last else ():
            mass = evaluation.metrics.get("mass")
            if f"{evaluation.suite}/{evaluation.name}" == entry and mass is not None:
                figures.append(Figure(value=mass.value, over_samples=mass.interval))
    if not figures or not all(math.isfinite(figure.value) for figure in figures):
        raise NotMeasured("a finite probability of the answer letters during fine-tuning")
    return min(figures, key=lambda figure: figure.value)


def changing(record: StagesRecord) -> Figure:
    """Between neighbouring points of the fine-tuning, the mean share of lettered questions that are
    answered otherwise, from `FEW` of the steps to half of them."""
    entry, points = entropy(record)[0], record.along.get(record.arms[0], [])
    last = max((point.step for point in points), default=0)
    shares = []
    for before, after in itertools.pairwise(points):
        figure = after.changed.get(entry)
        if figure is not None and before.step >= FEW * last and after.step <= last / 2:
            shares.append(figure)
    if not shares:
        raise NotMeasured("the change of answers between measured points of fine-tuning")
    mean = statistics.fmean(figure.value for figure in shares)
    half = statistics.fmean(figure.half_over_samples for figure in shares)
    return Figure(value=mean, over_samples=(mean - half, mean + half))


def dose_of(record: StagesRecord) -> float:
    """Tokens that restoring reads, as a multiple of one epoch of the fine-tuning."""
    epochs = float(record.config.get("restore", {}).get("num_train_epochs", 1))
    tokens = record.config.get("tokens")
    if tokens is None:  # the study takes an epoch where nothing is said
        return epochs
    if not record.epoch_tokens:
        raise NotMeasured("the number of tokens in an epoch of the fine-tuning")
    return epochs * float(tokens) / record.epoch_tokens


def transition(record: StagesRecord) -> int:
    """The checkpoint at which actual forgetting of the knowledge begins; one more than there are
    where it does not."""
    for begin in record.transitions:
        if (begin.arm, begin.task, begin.dose) == (record.arms[0], knowledge(record)[0], 1):
            return begin.place or len(labels(record)) + 1
    raise NotMeasured("the transition to actual forgetting")


# -------------------------------------------------------------------------------------------- cases


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of every world. What is asked for and was not measured raises
    `NotMeasured`."""

    worlds: Worlds
    place: int
    """From 1."""
    group: str = WIDE
    """Of which studies."""
    dose: int = 1
    """Of restoring."""
    unit: str = "share"
    """Of figures whose check names no other."""
    where = ""

    def behind(self, figure: Figure) -> str:
        """The worlds."""
        return f"{len(figure.by_seed)} worlds" if len(figure.by_seed) > 1 else "one world"

    @property
    def tuned(self) -> Model:
        """Before restoring."""
        return TUNED, self.place, 1

    @property
    def restored(self) -> Model:
        """After restoring."""
        return RESTORED, self.place, self.dose

    @property
    def control(self) -> Model:
        """The base after the same restoring."""
        return CONTROL, 0, self.dose

    @property
    def middle(self) -> Model:
        """The checkpoint after half of the epochs."""
        return TUNED, self.worlds.middle(self.group), 1

    def at(self, dose: int) -> Checkpoint:
        """The same checkpoint at another dose."""
        return dataclasses.replace(self, dose=dose)

    def over(self, of: Callable[[StagesRecord], Figure]) -> Figure:
        """A figure over worlds: their spread is its noise, of one world that of the samples."""
        by_world, half = {}, 0.0
        records = self.worlds.of(self.group)
        for world, record in records.items():
            figure = of(record)
            by_world[world] = figure.value
            if len(records) == 1:
                half = figure.half_over_samples
        return Figure.over_seeds(by_world, half)

    def figure(self, model: Model, measure: Measure) -> Figure:
        """Of a model."""
        return self.over(lambda record: figure_of(record, model, measure))

    def change(self, after: Model, before: Model, measure: Measure) -> Figure:
        """Between two models."""
        return self.figure(after, measure) - self.figure(before, measure)

    def pattern_left(self) -> Figure:
        """What plain text costs the restored model more than the dearer of base and control."""

        def left(record: StagesRecord) -> Figure:
            base = figure_of(record, BASE_MODEL, plain)
            control = figure_of(record, self.control, plain)
            dearer = control if control.value > base.value else base
            return figure_of(record, self.restored, plain) - dearer

        return self.over(left)

    def share_kept(self, measure: Measure) -> float:
        """Of what the base knows above guessing, the share that the checkpoint still shows."""
        known = self.over(lambda record: above_guessing(record, BASE_MODEL, measure)).value
        tuned = self.over(lambda record: above_guessing(record, self.tuned, measure)).value
        if known <= 0:
            raise NotMeasured("a base that is better than guessing")
        return tuned / known

    def earlier_than_smaller(self) -> Figure:
        """The checkpoint of the transition minus that of the smaller model, over the worlds that
        have both."""
        by_world, smaller = {}, self.worlds.of(NARROW)
        for world, record in self.worlds.of(WIDE).items():
            try:
                by_world[world] = float(transition(record) - transition(smaller[world]))
            except (KeyError, NotMeasured):
                continue
        if not by_world:
            raise NotMeasured(
                "the transition to actual forgetting of both models in the same world"
            )
        return Figure.over_seeds(by_world)


Cases = Callable[[Worlds], list[Checkpoint]]


def first(worlds: Worlds) -> list[Checkpoint]:
    """The checkpoint after the first epoch."""
    return [Checkpoint(worlds, 1)]


def last(worlds: Worlds) -> list[Checkpoint]:
    """That after all of them."""
    return [Checkpoint(worlds, worlds.last())]


def last_in_nats(worlds: Worlds) -> list[Checkpoint]:
    """The same, for figures of text."""
    return [dataclasses.replace(at, unit="nats/token") for at in last(worlds)]


def three(worlds: Worlds) -> list[Checkpoint]:
    """The first, the middle and the last one."""
    numbers = dict.fromkeys((1, worlds.middle(), worlds.last()))
    return [Checkpoint(worlds, number) for number in numbers]


def every(worlds: Worlds) -> list[Checkpoint]:
    """All of them."""
    return [Checkpoint(worlds, number) for number in range(1, 1 + worlds.last())]


def first_narrow(worlds: Worlds) -> list[Checkpoint]:
    """The smaller model's after the first epoch."""
    return [Checkpoint(worlds, 1, NARROW)]


def last_narrow(worlds: Worlds) -> list[Checkpoint]:
    """The smaller model's after all of them."""
    return [Checkpoint(worlds, worlds.last(NARROW), NARROW)]


def last_other(worlds: Worlds) -> list[Checkpoint]:
    """The last one of what was tuned on other data."""
    return [Checkpoint(worlds, worlds.last(OTHER), OTHER)]


def greatest(worlds: Worlds) -> list[Checkpoint]:
    """The last one at the greatest dose, which may be the only one."""
    doses = worlds.doses()
    return [Checkpoint(worlds, worlds.last(), WIDE, doses[-1] if doses else 1)]


def several_doses(worlds: Worlds) -> list[Checkpoint]:
    """The same where there is more than one dose."""
    if len(worlds.doses()) < 2:
        raise NotMeasured("restoring at several doses (doses: [1, 4, 16])")
    return greatest(worlds)


def coming_back(case: Checkpoint) -> Figure:
    """What the step to the greatest dose brings back: the rise of restored - control."""
    doses = case.worlds.doses()
    before = case.at(doses[doses.index(case.dose) - 1])
    left = case.change(case.restored, case.control, knowledge)
    return left - before.change(before.restored, before.control, knowledge)


def along_checkpoints(measure: Measure) -> Callable[[Checkpoint], list[tuple[str, Figure]]]:
    """A figure of every fine-tuned checkpoint, in order."""

    def line(case: Checkpoint) -> list[tuple[str, Figure]]:
        points = []
        for number in range(1, 1 + case.worlds.last(case.group)):
            points.append((f"checkpoint {number}", case.figure((TUNED, number, 1), measure)))
        return points

    return line
