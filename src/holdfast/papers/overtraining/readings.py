"""What the claims read of an overtraining study: tasks and entries, the learning rates that count,
costs along the ladder, and where a curve turns.

*The rates that are read*: those at which no budget diverged and that the study did not leave out
(`max_perplexity`), as the paper leaves them out of figure 5: "This ensures that the learning rates
we plot are in a range where the model is still retaining pre-training capability" (appendix C.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from holdfast.papers.claims.rules import ClaimFigure
from holdfast.papers.overtraining.costs import change_cost, tuned_score, tuning_cost
from holdfast.papers.overtraining.record import (
    OvertrainingRecord,
    Shift,
    TunedModel,
    TunedRate,
    TunedTurn,
    alike,
)
from holdfast.records.figure import CONFIDENCE, Figure, NotMeasured
from holdfast.records.probe import AS_IT_IS, NOISE, Inflection, TurningPoint
from holdfast.statistics.inflection import TURNS, places_at, verdict_of

SHARE = 0.1
"""Of the largest cost along the ladder: what a cost has to rise by at least, and may go back by."""
NATS = "nats/token"
Places = tuple[int, int]
"""The smallest and the largest budget that may be the best, by place."""

# -------------------------------------------------------------------------------- tasks and entries


def leading_key(record: OvertrainingRecord, task: str, suite: str) -> str:
    """The entry that leads a suite; "" before anything was measured."""
    scored = record.leading(task, suite)
    return scored.key if scored is not None else ""


def first_task(record: OvertrainingRecord) -> str:
    """The first task; "" of a study without."""
    return record.tasks[0] if record.tasks else ""


def kept_entry(record: OvertrainingRecord) -> str:
    """The entry that leads what should be kept, which all tasks share; of a study without tasks the
    first that was probed."""
    return leading_key(record, first_task(record), "keep") or (
        record.sensitivities[0].entry if record.sensitivities else ""
    )


def kept_unit(record: OvertrainingRecord) -> str:
    """Of what should be kept."""
    scored = record.leading(first_task(record), "keep")
    return NATS if scored is None else scored.unit or NATS


def where_of(record: OvertrainingRecord, task: str) -> str:
    """A task for people, where a study has several."""
    return task if len(record.tasks) > 1 else ""


def rate_text(rate: float | None) -> str:
    """A rate for people."""
    return "each budget's tuned learning rate" if rate is None else f"learning rate {rate:g}"


# --------------------------------------------------------------------------------- rates and models


def rates_read(record: OvertrainingRecord, task: str) -> list[float]:
    """Direct fine-tuning's rates that are read (module docstring), the smallest first; raises
    `NotMeasured` where there is none."""
    rates, lost = set(), set(record.rates_left_out(task, record.direct))
    for model in alike(record.models, task=task, arm=record.direct):
        rates.add(model.rate)
        if model.diverged:
            lost.add(model.rate)
    if not rates - lost:
        raise NotMeasured("a learning rate at which the model keeps what it learnt in pre-training")
    return sorted(rates - lost)


def models_at(record: OvertrainingRecord, task: str, rate: float) -> list[TunedModel]:
    """Direct fine-tuning at a rate, the smallest budget first."""
    models = []
    for checkpoint in record.checkpoints:
        model = record.model(task, record.direct, rate, checkpoint.label)
        if model is not None:
            models.append(model)
    return models


def tuned_rates(record: OvertrainingRecord, task: str, arm: str = "") -> list[TunedRate]:
    """Of each budget; direct fine-tuning's where no way is named."""
    return alike(record.rates, task=task, arm=arm or record.direct)


def tuned_models(record: OvertrainingRecord, task: str) -> list[TunedModel]:
    """Direct fine-tuning at each budget's tuned rate, the smallest budget first."""
    rates = {rate.checkpoint: rate for rate in tuned_rates(record, task)}
    models = []
    for checkpoint in record.checkpoints:
        rate = rates.get(checkpoint.label)
        model = None if rate is None else record.model(task, rate.arm, rate.rate, rate.checkpoint)
        if model is not None:
            models.append(model)
    return models


def arm_of(record: OvertrainingRecord, kind: str) -> str:
    """The way to fine-tune of a kind."""
    arms = alike(record.arms, kind=kind)
    if not arms:
        raise NotMeasured(f"fine-tuning with {kind}")
    return arms[0].label


def score_of(record: OvertrainingRecord, model: TunedModel) -> Figure | None:
    """The VLM score of a model; None where a seed has diverged."""
    return tuned_score(record, model, leading_key(record, model.task, "learn"))


def gain_of(record: OvertrainingRecord, model: TunedModel) -> Figure | None:
    """What fine-tuning brings to a model's task; None where a seed has diverged."""
    cost = tuning_cost(record, model, leading_key(record, model.task, "learn"))
    return None if cost is None else cost * -1.0


def cost_of(record: OvertrainingRecord, model: TunedModel) -> Figure | None:
    """What fine-tuning costs a model of what should be kept; None where a seed has diverged."""
    return tuning_cost(record, model, kept_entry(record))


def shown(what: str, figure: Figure, level: float, n: str, unit: str) -> ClaimFigure:
    """A figure at a level."""
    return ClaimFigure.of(figure, what=what, level=level, n=n, unit=unit)


# -------------------------------------------------------------------------------------------- cases


AlongLadder = list[tuple[str, Figure]]
"""A figure of each checkpoint, the smallest budget first."""


def share_of_largest(line: AlongLadder) -> float:
    """`SHARE` of the largest figure along the ladder."""
    return SHARE * max(abs(figure.value) for _, figure in line)


@dataclasses.dataclass(frozen=True)
class Noise:
    """One size of noise, on every checkpoint."""

    record: OvertrainingRecord
    size: float
    where = ""

    @property
    def unit(self) -> str:
        """Of what should be kept."""
        return kept_unit(self.record)

    def behind(self, figure: Figure) -> str:
        """The draws."""
        return f"{len(figure.by_seed)} draws or seeds"

    def costs(self) -> AlongLadder:
        """Of each checkpoint."""
        changes = {}
        for change in alike(
            self.record.sensitivities, kind=NOISE, size=self.size, entry=kept_entry(self.record)
        ):
            changes[change.model] = change
        if any(change.failed for change in changes.values()):
            raise NotMeasured(f"noise {self.size:g} (the loss overflows)")
        costs = []
        for checkpoint in self.record.checkpoints:
            if checkpoint.label in changes:
                cost = change_cost(self.record, changes[checkpoint.label])
                costs.append((checkpoint.label, cost))
        return costs

    def tenth(self) -> float:
        """`SHARE` of the largest cost."""
        return share_of_largest(self.costs())


@dataclasses.dataclass(frozen=True)
class Direct:
    """Direct fine-tuning of every checkpoint on one task, at one rate or at the tuned ones."""

    record: OvertrainingRecord
    at: str
    """The rate for people."""
    models: Sequence[TunedModel]
    where: str = ""
    """The task, where a study has several."""

    @property
    def unit(self) -> str:
        """Of what should be kept."""
        return kept_unit(self.record)

    def behind(self, figure: Figure) -> str:
        """The seeds."""
        return f"{len(figure.by_seed)} seeds, paired"

    def costs(self) -> AlongLadder:
        """In what should be kept, of each checkpoint."""
        return self._line(cost_of)

    def scores(self) -> AlongLadder:
        """The VLM score of each checkpoint."""
        return self._line(score_of)

    def tenth(self) -> float:
        """`SHARE` of the largest cost."""
        return share_of_largest(self.costs())

    def _line(self, of: Callable[[OvertrainingRecord, TunedModel], Figure | None]) -> AlongLadder:
        line = []
        for model in self.models:
            figure = of(self.record, model)
            if figure is not None:
                line.append((model.checkpoint, figure))
        if len(line) < len(self.record.checkpoints):
            raise NotMeasured(f"direct fine-tuning at every budget with {self.at}")
        return line


def noises(record: OvertrainingRecord) -> list[Noise]:
    """Every size of noise."""
    sizes = sorted({change.size for change in alike(record.sensitivities, kind=NOISE)})
    if not sizes:
        raise NotMeasured("noise")
    return [Noise(record, size) for size in sizes]


def every_rate(record: OvertrainingRecord) -> list[Direct]:
    """Direct fine-tuning on every task at every rate that is read."""
    cases = []
    for task in record.tasks:
        for rate in rates_read(record, task):
            models = models_at(record, task, rate)
            cases.append(Direct(record, rate_text(rate), models, where_of(record, task)))
    return cases


def at_tuned_rates(record: OvertrainingRecord) -> list[Direct]:
    """Direct fine-tuning on every task at the tuned rates."""
    cases = []
    for task in record.tasks:
        models = tuned_models(record, task)
        cases.append(Direct(record, rate_text(None), models, where_of(record, task)))
    return cases


# ----------------------------------------------------------------------------------- turning points


Curve = tuple[str, TurningPoint]
"""What a model went through, for people, and where it turns along the budgets."""


def places_of(turn: TurningPoint, level: float) -> Places:
    """The budgets that may be the best."""
    if not turn.chances:
        raise NotMeasured(
            "the confidence level of the inflection point (run the study's command again)"
        )
    return places_at(turn.chances, level)


def is_turning(turn: TurningPoint) -> bool:
    """Whether a curve is shown to turn, by itself."""
    return verdict_of(places_of(turn, CONFIDENCE), len(turn.budgets)) == TURNS


def turn_of(
    record: OvertrainingRecord, task: str, rate: float | None, entry: str, arm: str = ""
) -> TunedTurn:
    """Where a way to fine-tune turns, direct fine-tuning where none is named."""
    turns = alike(record.turns, task=task, arm=arm or record.direct, rate=rate, entry=entry)
    if not turns:
        raise NotMeasured(f"the inflection point at {rate_text(rate)}")
    return turns[0]


def noisy(record: OvertrainingRecord, place: int) -> Curve:
    """Under one of the sizes of noise, the smallest first."""
    turns = sorted(
        alike(record.inflections, kind=NOISE, entry=kept_entry(record)), key=lambda turn: turn.size
    )
    if not turns:
        raise NotMeasured("noise at three budgets")
    return f"noise {turns[place].size:g}", turns[place]


def as_they_are(record: OvertrainingRecord) -> list[Inflection]:
    """The checkpoints as they are, the text that leads what should be kept first."""
    turns, first = alike(record.inflections, kind=AS_IT_IS), kept_entry(record)
    if not alike(turns, entry=first):
        raise NotMeasured("the unmodified checkpoint at three budgets")
    return sorted(turns, key=lambda turn: turn.entry != first)


def at_rates(record: OvertrainingRecord, place: int, suite: str = "keep") -> list[Curve]:
    """Every task fine-tuned directly at one of the rates that are read, the smallest first: what
    should be kept, or the task itself."""
    curves: list[Curve] = []
    for task in record.tasks:
        rate = rates_read(record, task)[place]
        turn = turn_of(record, task, rate, leading_key(record, task, suite))
        curves.append((_named(record, task, rate_text(rate)), turn))
    return curves


def tuned(record: OvertrainingRecord, suite: str = "keep") -> list[Curve]:
    """The same at tuned rates."""
    curves: list[Curve] = []
    for task in record.tasks:
        turn = turn_of(record, task, None, leading_key(record, task, suite))
        curves.append((_named(record, task, rate_text(None)), turn))
    return curves


def tuned_benchmarks(record: OvertrainingRecord, task: str) -> list[Curve]:
    """Every entry of what should be kept, fine-tuned directly on a task at tuned rates."""
    curves: list[Curve] = []
    for scored in alike(record.scored.get(task, ()), suite="keep"):
        for turn in alike(record.turns, task=task, arm=record.direct, rate=None, entry=scored.key):
            curves.append((_named(record, task, scored.name), turn))
    if not curves:
        raise NotMeasured("the entries of keep at the tuned learning rates")
    return curves


def _named(record: OvertrainingRecord, task: str, what: str) -> str:
    where = where_of(record, task)
    return f"{what} ({where})" if where else what


# ---------------------------------------------------------------------------- what direct is harmed


TaskAndRate = tuple[str, float | None]
"""A task with a rate; None: each budget's tuned one."""


def settings_read(record: OvertrainingRecord, *, at_fixed_rates: bool) -> list[TaskAndRate]:
    """Every task with every rate that is read, or with its tuned rates."""
    settings: list[TaskAndRate] = []
    for task in record.tasks:
        if not at_fixed_rates:
            settings.append((task, None))
            continue
        settings += [(task, rate) for rate in rates_read(record, task)]
    return settings


def turning_settings(record: OvertrainingRecord, *, at_fixed_rates: bool) -> list[TaskAndRate]:
    """Those at which direct fine-tuning is shown to turn in what should be kept."""
    turning = []
    for task, rate in settings_read(record, at_fixed_rates=at_fixed_rates):
        if is_turning(turn_of(record, task, rate, kept_entry(record))):
            turning.append((task, rate))
    return turning


def growing_settings(record: OvertrainingRecord, *, at_fixed_rates: bool) -> list[TaskAndRate]:
    """Those at which the cost of direct fine-tuning is shown to grow along the ladder."""
    growing = []
    for task, rate in settings_read(record, at_fixed_rates=at_fixed_rates):
        interval = growth_of(record, task, rate).interval
        if interval is not None and interval[0] > 0:
            growing.append((task, rate))
    return growing


def growth_of(record: OvertrainingRecord, task: str, rate: float | None) -> Figure:
    """How the cost of direct fine-tuning grows along the ladder."""
    growth = alike(record.growth, task=task, arm=record.direct, rate=rate, entry=kept_entry(record))
    if not growth:
        raise NotMeasured(f"forgetting at every budget with {rate_text(rate)}")
    return growth[0].difference


def shift_of(record: OvertrainingRecord, kind: str, task: str, rate: float | None) -> Shift:
    """What a method does at a rate, against direct fine-tuning."""
    arm = arm_of(record, kind)
    shifts = alike(record.shifts, task=task, arm=arm, rate=rate, entry=kept_entry(record))
    if not shifts:
        raise NotMeasured(f"fine-tuning with {kind} at {rate_text(rate)}")
    return shifts[0]
