"""Ending a run by what `evaluation:` measures along the way: when an entry no longer improves, or
when it has lost more than allowed.

```yaml
evaluation:
  keep: [prose.jsonl]
  learn: [answers.jsonl]
  along: {every: 50}
early_stopping:
  - {entry: learn/answers, patience: 2}      # two in a row bring nothing better: the best one is the result
  - {entry: keep/prose, max_loss: 0.02}      # nats/token: the result is one of those before the first that lost more
```

What is decided follows from the measurements alone (`outcome`), which lie in the run's `along/`: a
run that is continued reads them there, and ends where it would have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from holdfast.config.declare import Meta
from holdfast.errors import Problem, did_you_mean
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.records.evaluation import Metric


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """One reason to end training early."""

    entry: str
    """Entry of `evaluation`, as suite/name, such as learn/answers."""
    patience: Annotated[int | None, Meta(ge=1)] = None
    """End training after N measurements without improvement. The result is the model of the best
    measured step."""
    max_loss: Annotated[float | None, Meta(ge=0)] = None
    """End training when the entry is worse than the initial model by more than this, in the unit of
    its first metric (nats per token for text, shares for accuracy). The result is the last measured
    step within this limit."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        if (self.patience is None) == (self.max_loss is None):
            came = "neither" if self.patience is None else "both"
            return [
                "expected patience (the result is the best model) or max_loss (a limit), got "
                f"{came}."
            ]
        return []


Rules = tuple[StopRule, ...]


def rules_of(value: StopRule | Rules | None) -> Rules:
    """The setting `early_stopping` as a list, however it was given."""
    return () if value is None else (value,) if isinstance(value, StopRule) else tuple(value)


def check_rules(rules: Rules, plan: EvaluationPlan) -> Iterator[str]:
    """What keeps the rules from deciding anything; a sentence each, of the setting
    `early_stopping`."""
    if not rules:
        return
    if plan.along is None:
        yield (
            Problem(
                "early_stopping",
                "expected evaluation.along, to measure during training, as in evaluation: "
                "{along: {every: 50}, learn: [answers.jsonl]}.",
            )
        )
    entries = {f"{e.suite}/{e.name}": e for e in plan.entries}
    for rule in rules:
        if rule.entry not in entries:
            listed = f"which has {', '.join(entries)}" if entries else "which has none"
            near = did_you_mean(rule.entry, entries)
            yield Problem(
                ("early_stopping", "entry"),
                f"expected an entry of evaluation, {listed}, got {rule.entry!r}.{near}",
            )
        elif rule.max_loss is not None and entries[rule.entry].against_start:
            yield (
                Problem(
                    ("early_stopping", "max_loss"),
                    f"{rule.entry} already measures the change from the initial model. Give "
                    "patience, or another entry.",
                )
            )
        elif rule.max_loss is not None and not plan.before:
            yield Problem(
                ("early_stopping", "max_loss"),
                (
                    "expected evaluation.before: true, because the loss is measured against the "
                    "initial model."
                ),
            )
    if sum(rule.patience is not None for rule in rules) > 1:
        yield Problem(
            "early_stopping",
            "expected one rule with patience, which decides the best model, got several.",
        )
    limits = Counter(rule.entry for rule in rules if rule.max_loss is not None)
    for name in sorted(limits):
        if limits[name] > 1:
            yield Problem(("early_stopping", "entry"), f"{name} has several limits. Keep one.")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What follows from the measurements so far."""

    kept: int | None
    """The step whose model is the result so far; None: none was within the limits."""
    ended: str | None
    """Why training ends, half a sentence; None: it goes on."""


Measured = Sequence[tuple[int, Mapping[str, Metric]]]
"""(optimiser steps, the leading figure of each entry by suite/name), by step."""


def outcome(rules: Rules, start: Mapping[str, Metric], measured: Measured) -> Outcome:
    """Which model is the result, and whether training ends.

    Args:
        rules: at least one.
        start: of the model that the run starts from, for the rules with `max_loss`.
        measured: what was measured along the way, the start left out.
    """
    inside: list[tuple[int, Mapping[str, Metric]]] = []
    ended = None
    for step, figures_at_step in measured:
        ended = next(_beyond(rules, start, figures_at_step), None)
        if ended is not None:
            break
        inside.append((step, figures_at_step))
    chooses = next((rule for rule in rules if rule.patience is not None), None)
    if chooses is None or not inside:
        return Outcome(kept=inside[-1][0] if inside else None, ended=ended)
    figures = [_gain(figures_at_step[chooses.entry]) for _, figures_at_step in inside]
    best = figures.index(max(figures))  # of equal ones the first
    without = len(figures) - 1 - best
    if ended is None and chooses.patience is not None and without >= chooses.patience:
        times = "last measurement" if without == 1 else f"last {without} measurements"
        ended = f"{chooses.entry} did not improve in the {times}"
    return Outcome(kept=inside[best][0], ended=ended)


def _gain(metric: Metric) -> float:
    return metric.value if metric.higher_is_better else -metric.value


def _beyond(
    rules: Iterable[StopRule], start: Mapping[str, Metric], found: Mapping[str, Metric]
) -> Iterator[str]:
    for rule in rules:
        if rule.max_loss is not None:
            now = found[rule.entry]
            lost = _gain(start[rule.entry]) - _gain(now)
            if not lost <= rule.max_loss:
                yield f"{rule.entry} had lost {lost:.4g} {now.unit}, more than {rule.max_loss:g}"
