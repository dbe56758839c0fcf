"""What a plan can show before it is measured: samples of each entry, the smallest loss that two
models' answers would show with a chance of 80 %, and the seconds that a model takes.

Of right / wrong answers the loss follows from the number of questions, the share of them that flips
between two models, and the number of entries, which share one chance of a false alarm. Of all other
figures it depends on how much samples differ, which nobody knows before two models were measured.
Seconds are those of a few samples on the model, for all.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.evaluation.entries import DataEntry, Entry, EvaluationPlan
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.measures import Outcome, Subject, check, measure
from holdfast.models import Loaded
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.metrics import is_right_or_wrong
from holdfast.statistics.decision import level_of
from holdfast.statistics.power import smallest_loss

TIMED = 8
"""Samples that are measured to tell how long all take (of each subtask of a group)."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is known of an entry before it is measured."""

    entry: str
    """Suite and name."""
    samples: int
    metric: str
    loss: float | None
    """The smallest that is shown with a chance of 80 %, a share; None where the metric is not of
    right / wrong answers."""
    seconds: float
    """Of one model."""


def forecasts(plan: EvaluationPlan, loaded: Loaded, *, flips: float) -> Iterator[Forecast]:
    """One an entry, in the plan's order.

    Args:
        plan: what is to be measured.
        loaded: the model that a few samples are measured on.
        flips: share of answers that differ between two models.

    Raises:
        UserError: an entry's task, data or tokenizer does not fit.
    """
    level = level_of(plan.confidence) / max(len(plan.entries), 1)
    for entry in plan.entries:
        with _subject(plan, loaded) as on:
            counted = entry.count(check(entry, on.tokenizer, on.processor))
            began = time.perf_counter()
            outcome = measure(_cut(entry), on)
            seconds = time.perf_counter() - began
        measured = len(outcome.rows)
        samples = counted or measured
        loss = smallest_loss(samples, flips, level) if _is_right_or_wrong(outcome) else None
        yield Forecast(
            entry=entry.path,
            samples=samples,
            metric=outcome.primary,
            loss=loss,
            seconds=seconds * max(samples / measured, 1.0),
        )


@contextmanager
def _subject(plan: EvaluationPlan, loaded: Loaded) -> Iterator[Subject]:
    with tempfile.TemporaryDirectory() as folder:
        folder_of_samples = EvaluationFolder(Path(folder))
        yield Subject(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            processor=loaded.processor,
            plan=plan,
            folder=folder_of_samples,
            start=folder_of_samples,
            verdicts=folder_of_samples.path,
        )


def _cut(entry: Entry) -> Entry:
    """An entry with its first few samples only, where that can be said."""
    if isinstance(entry, TaskEntry):
        return dataclasses.replace(entry, limit=min(entry.limit or TIMED, TIMED))
    if isinstance(entry, DataEntry):
        return dataclasses.replace(entry, max_documents=min(entry.max_documents or TIMED, TIMED))
    return entry


def _is_right_or_wrong(outcome: Outcome) -> bool:
    """Whether the metric that leads is of right / wrong answers: by its name too, since a few
    samples of a score such as F1 may all be 0."""
    name = outcome.primary
    values = [row.get(name) for row in outcome.rows]
    is_binary = is_right_or_wrong(outcome.figures[name].unit, name)
    return is_binary and all(value in (0.0, 1.0) for value in values)
