"""Measures one entry: an entry and a model in, per-sample rows and figures with intervals out. What
is asked of the model is the entry's own affair (`Entry.requests`, `Entry.scores`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.evaluation.baselines import CHOSEN, chance_level
from holdfast.evaluation.entries import DataEntry, Entry, EvaluationPlan, Processor
from holdfast.evaluation.processes import SINGLE, ProcessGroup
from holdfast.evaluation.resume import Partial
from holdfast.evaluation.text.thoughts import remarks_on_thoughts, with_variables
from holdfast.records.evaluation import CHANCE, EvaluationFolder, Metric, why_not_finite

if TYPE_CHECKING:
    from holdfast.statistics.estimates import Ratio

Report = Callable[[int, int], None]
"""Called with (done, in all)."""


def no_report(done: int, total: int) -> None:
    """A `Report` that goes nowhere."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The model that is measured, and what all entries share."""

    model: Any
    """A Hugging Face causal LM, PEFT-wrapped or not, on any device in any floating dtype; left in
    the state it came in."""
    tokenizer: Any
    processor: Processor | None = None
    """Gives the processor of a vision-language model, with which it reads images; None: it takes
    text only."""
    plan: EvaluationPlan = field(default_factory=EvaluationPlan)
    """Batch size, seed and level of the intervals."""
    report: Report = no_report
    partial: Partial = field(default_factory=lambda: Partial(None))
    """Where results are kept until the entry is complete, so that an interrupted measurement
    continues."""
    folder: EvaluationFolder | None = None
    """Where the evaluation will lie."""
    start: EvaluationFolder | None = None
    """See `runner.evaluate`."""
    processes: ProcessGroup = SINGLE
    """Those that share the measurement, each with the whole model."""
    verdicts: Path | None = None
    """Folder where a judge's verdicts are kept, for all runs that share it."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the figures should know; added to while an entry is measured."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an entry's module returns."""

    rows: list[dict[str, Any]]
    """One a sample, see `holdfast.records.evaluation.Evaluation`."""
    figures: Mapping[str, Ratio | Metric]
    """By name: how each comes out of the rows, or the finished metric where it is no mean over
    samples."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was settled on while measuring, with "notes" for readers."""
    leads: str = ""
    """The metric that leads; empty: the first."""
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """As of `Evaluation.references`, those that the rows do not show."""
    broken: str = ""
    """What the model gave that is NaN or infinite and neither rows nor figures show, such as the
    logits of a reply; a sentence, empty where there is nothing."""

    @property
    def primary(self) -> str:
        """The metric that leads."""
        return self.leads or next(iter(self.figures))

    @property
    def levels(self) -> dict[str, dict[str, float]]:
        """`Evaluation.references`."""
        levels = {}
        chance = chance_level(self.rows)
        for name in CHOSEN:
            if name in self.figures and chance is not None:
                levels[name] = {CHANCE: chance}
        for name, references in self.references.items():
            levels[name] = dict(references)
        return levels

    @property
    def failed(self) -> str | None:
        """Why its figures mean nothing, whatever they are: a sample is not finite; None where all
        are."""
        return self.broken or why_not_finite({}, self.rows)

    def metrics(self, plan: EvaluationPlan) -> dict[str, Metric]:
        """The figures with their intervals, all of them over the same draws; without values (NaN)
        where a sample is not finite."""
        metrics = {}
        for name, figure in self.figures.items():
            metric = self._metric(figure, plan)
            metrics[name] = (
                metric if self.failed is None else replace(metric, value=math.nan, interval=None)
            )
        return metrics

    def _metric(self, figure: Ratio | Metric, plan: EvaluationPlan) -> Metric:
        from holdfast.statistics.estimates import estimate

        if isinstance(figure, Metric):
            return replace(figure, confidence=plan.confidence)
        value, interval = estimate(figure, self.rows, confidence=plan.confidence, seed=plan.seed)
        applies = figure.columns(self.rows)[:, 1] > 0
        return Metric(
            value=value,
            n=int(applies.sum()),
            unit=figure.unit,
            higher_is_better=figure.higher_is_better,
            interval=interval,
            confidence=plan.confidence,
        )


def measure(entry: Entry, on: Subject) -> Outcome:
    """Measures one entry, and adds what a reader of its figures should know.

    Raises:
        UserError: the entry's task, data or tokenizer does not fit.
    """
    from holdfast.evaluation.remarks import mark_copies, remarks_on_part, remarks_on_samples

    if variables := entry.chat_template_kwargs:
        tokenizer, processor = (
            with_variables(on.tokenizer, variables),
            _processor_with(on.processor, variables),
        )
        on = replace(on, tokenizer=tokenizer, processor=processor)
    if getattr(entry, "apply_chat_template", False):
        on.notes.extend(remarks_on_thoughts(on.tokenizer))
    outcome = entry.measure(on)
    mark_copies(outcome.rows)
    notes = [*outcome.settings.get("notes", ()), *on.notes, *remarks_on_samples(outcome.rows)]
    if isinstance(entry, DataEntry) and entry.max_documents is not None:
        from holdfast.evaluation.text.question_files import all_rows

        notes += remarks_on_part(all_rows(entry), entry.max_documents, setting="max_documents")
    return replace(outcome, settings={**outcome.settings, "notes": notes})


def check(entry: Entry, tokenizer: Any, processor: Processor | None = None) -> Any:
    """Loads an entry's data and task without a model, and gives what is asked (`Entry.requests`).

    Args:
        entry: to be measured.
        tokenizer: of the model.
        processor: as of `Subject`.

    Raises:
        UserError: as `measure` would.
    """
    variables = entry.chat_template_kwargs
    return entry.requests(
        with_variables(tokenizer, variables), _processor_with(processor, variables)
    )


def _processor_with(processor: Processor | None, variables: Mapping[str, Any]) -> Processor | None:
    if processor is None or not variables:
        return processor
    return lambda: with_variables(processor(), variables)
