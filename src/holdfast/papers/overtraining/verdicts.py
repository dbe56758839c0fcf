"""What the figures of an overtraining study say: the rate that validation chooses at each budget,
where longer pre-training turns from help to harm, how the cost grows along the ladder, and what
retention does to that."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.evaluation.probe.outcome import Columns, turn_of, turning_point
from holdfast.papers.overtraining.costs import tuning_cost
from holdfast.papers.overtraining.plan import VALIDATION, OvertrainingConfig
from holdfast.papers.overtraining.record import (
    CANNOT_TELL,
    EARLIER,
    LATER,
    Arm,
    Growth,
    OvertrainingRecord,
    Scored,
    Shift,
    TunedModel,
    TunedRate,
    TunedTurn,
    alike,
)
from holdfast.records.figure import Figure
from holdfast.statistics.inflection import Turn, places_at
from holdfast.studies.engine.states import COMPLETE

LEAST_BUDGETS = 3
"""For a curve to turn, and for a rate to have a trend."""
ColumnsOf = Callable[[TunedModel, str], list[Columns | None]]
"""What was measured of a model on an entry, seed by seed."""
Curve = tuple[str, str, float | None, str]
"""Task, arm, rate (None: tuned) and entry of a figure along the budgets."""


def add_verdicts(
    record: OvertrainingRecord, config: OvertrainingConfig, columns: ColumnsOf
) -> OvertrainingRecord:
    """The record with rates, turning points, growth and shifts.

    Args:
        record: with the scores of its models.
        config: of the study.
        columns: reads samples.
    """
    builder = _Verdicts(record, config, columns)
    for task in record.tasks:
        for arm in record.arms if task in record.scored else ():
            builder.choose_rates(task, arm)
            for rate in (None, *arm.rates):
                builder.follow_budgets(task, arm.label, rate)
    return dataclasses.replace(
        record,
        rates=builder.rates,
        turns=builder.turns,
        growth=builder.growth,
        shifts=builder.shifts(),
        notes=builder.notes,
    )


class _Verdicts:
    """Verdicts of all tasks and arms; rates are chosen first."""

    def __init__(
        self, record: OvertrainingRecord, config: OvertrainingConfig, columns: ColumnsOf
    ) -> None:
        self.record, self.config, self.columns = record, config, columns
        self.tokens = [c.tokens for c in record.checkpoints]
        self.models = {
            (m.task, m.arm, m.rate, m.checkpoint): m for m in record.models if m.state == COMPLETE
        }
        self.rates: list[TunedRate] = []
        self.turns: list[TunedTurn] = []
        self.turned: dict[Curve, Turn] = {}
        self.growth: list[Growth] = []
        self.grown: dict[Curve, Figure] = {}
        """Growth where no end diverged."""
        self.notes = list(record.notes)

    def confidence(self, task: str) -> float:
        return self.config.plan(task).confidence

    # ------------------------------------------------------------------------------- the tuned rate

    def choose_rates(self, task: str, arm: Arm) -> None:
        """At each budget the rate whose validation figure is the best."""
        lead = self.record.leading(task, VALIDATION)
        if lead is None:
            return
        edges: set[str] = set()
        for checkpoint in self.record.checkpoints:
            models = self._at_rates(task, arm, checkpoint.label)
            if len(models) < len(arm.rates):
                return
            if all(model.diverged for model in models):
                self.notes.append(
                    f"{task}, {arm.label}: every learning rate diverged at {checkpoint.label}. "
                    "Try lower learning rates."
                )
                continue
            best, low, high = self._best(task, lead, models)
            edge = ""
            if len(models) > 1:
                edge = {0: "smallest", len(models) - 1: "largest"}.get(best, "")
            edges.add(edge)
            self.rates.append(
                TunedRate(
                    task=task,
                    arm=arm.label,
                    checkpoint=checkpoint.label,
                    tokens=checkpoint.tokens,
                    rate=arm.rates[best],
                    interval=(arm.rates[low], arm.rates[high]),
                    edge=edge,
                )
            )
        if len(arm.rates) == 1:
            self.notes.append(
                f"{task}, {arm.label}: only one learning rate was tried, so it is not tuned. Do "
                "not compare it with arms whose learning rate was tuned."
            )
        if ends := sorted(edges - {""}):
            self.notes.append(
                f"{task}, {arm.label}: at some budgets the tuned learning rate is the "
                f"{' or the '.join(ends)} that was tried, so a better one may lie beyond it. "
                "Try more learning rates at that end."
            )

    def _at_rates(self, task: str, arm: Arm, checkpoint: str) -> list[TunedModel]:
        """The models of a budget that are there, by rising rate."""
        keys = [(task, arm.label, rate, checkpoint) for rate in arm.rates]
        return [self.models[key] for key in keys if key in self.models]

    def _best(self, task: str, lead: Scored, models: Sequence[TunedModel]) -> tuple[int, int, int]:
        """Places of the best model, and of the first and the last that is not shown to be worse."""
        if len(models) == 1:
            return 0, 0, 0
        turn = turn_of(
            [self.columns(model, lead.key) for model in models], confidence=self.confidence(task)
        )
        if turn is not None:
            return turn.place, *turn.interval
        costs = [model.costs[lead.key].value for model in models]  # the figure is no ratio of sums
        return costs.index(min(costs)), 0, len(models) - 1

    # -------------------------------------------------------------------------------- along budgets

    def follow_budgets(self, task: str, arm: str, rate: float | None) -> None:
        """Where an arm turns along the ladder, and how its cost grows; nothing where a budget is
        missing."""
        tuned = {tuned.checkpoint: tuned.rate for tuned in alike(self.rates, task=task, arm=arm)}
        models = []
        for checkpoint in self.record.checkpoints:
            at = tuned.get(checkpoint.label) if rate is None else rate
            model = None if at is None else self.models.get((task, arm, at, checkpoint.label))
            if model is None:
                return
            models.append(model)
        if len(models) < 2:
            return
        for scored in self.record.scored[task]:
            about: dict[str, Any] = {
                "task": task,
                "arm": arm,
                "rate": rate,
                "entry": scored.key,
                "unit": scored.unit,
            }
            curve = (task, arm, rate, scored.key)
            turn = None
            if len(models) >= LEAST_BUDGETS:
                turn = turn_of(
                    [self.columns(m, scored.key) for m in models], confidence=self.confidence(task)
                )
            if turn is not None:
                self.turned[curve] = turn
                self.turns.append(TunedTurn(**about, **turning_point(turn, self.tokens)))
            first, last = models[0].costs[scored.key].value, models[-1].costs[scored.key].value
            self.growth.append(
                Growth(**about, first=first, last=last, difference=self._growth(curve, models))
            )

    def _growth(self, curve: Curve, models: Sequence[TunedModel]) -> Figure:
        """The cost at the largest budget less that at the smallest; infinite where one of them
        diverged."""
        first = tuning_cost(self.record, models[0], curve[-1])
        last = tuning_cost(self.record, models[-1], curve[-1])
        if first is None and last is None:
            return Figure(value=math.nan)
        if first is None or last is None:
            return Figure(value=math.inf if last is None else -math.inf)
        growth = last - first
        self.grown[curve] = growth
        return Figure(
            value=growth.value, over_samples=growth.interval_at(self.confidence(curve[0]))
        )

    def shifts(self) -> list[Shift]:
        """What every arm does to turning point and growth, against direct fine-tuning."""
        shifts = []
        for (task, arm, rate, key), growth in self.grown.items():
            direct = (task, self.record.direct, rate, key)
            if arm == self.record.direct or direct not in self.grown:
                continue
            about: dict[str, Any] = {"task": task, "arm": arm, "rate": rate, "entry": key}
            about["unit"] = alike(self.record.scored[task], key=key)[0].unit
            verdict = self._which_turns_later((task, arm, rate, key), direct)
            more = growth - self.grown[direct]
            shifts.append(Shift(**about, against=self.record.direct, verdict=verdict, growth=more))
        return shifts

    def _which_turns_later(self, curve: Curve, direct: Curve) -> str:
        """Whether a curve turns later than that of direct fine-tuning; each has half of the
        error."""
        mine, theirs = self.turned.get(curve), self.turned.get(direct)
        if mine is None or theirs is None:
            return CANNOT_TELL
        level = 1 - (1 - self.confidence(curve[0])) / 2
        first, last = places_at(mine.chances, level)
        first_direct, last_direct = places_at(theirs.chances, level)
        if first > last_direct:
            return LATER
        return EARLIER if last < first_direct else CANNOT_TELL
