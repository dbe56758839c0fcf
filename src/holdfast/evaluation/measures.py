"""Measures one entry: an entry and a model in, per-sample rows and figures with intervals out. `KINDS` of
`holdfast.evaluation.entries` names the module that does it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.evaluation.entries import KINDS, DataEntry, Entry, EvaluationPlan
from holdfast.evaluation.levels import CHOSEN, chance_level
from holdfast.evaluation.partial import Partial
from holdfast.evaluation.processes import SINGLE, ProcessGroup
from holdfast.evaluation.remarks import mark_copies, remarks_on_part, remarks_on_samples
from holdfast.evaluation.text.thoughts import remarks_on_thoughts, with_variables
from holdfast.records.evaluation import CHANCE, EvaluationFolder, Metric, why_not_finite
from holdfast.statistics.estimates import Ratio, estimate

Report = Callable[[int, int], None]
"""Called with (done, in all)."""


def no_report(done: int, total: int) -> None:
    """A `Report` that goes nowhere."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The model that is measured, and what all entries share."""

    model: Any
    """A Hugging Face causal LM, PEFT-wrapped or not, on any device in any floating dtype; left in the state it came
    in."""
    tokenizer: Any
    processor: Callable[[], Any] | None = None
    """Gives the processor of a vision-language model, with which it reads images; None: it takes text only."""
    plan: EvaluationPlan = field(default_factory=EvaluationPlan)
    """Batch size, seed and level of the intervals."""
    report: Report = no_report
    partial: Partial = field(default_factory=lambda: Partial(None))
    """Where results are kept until the entry is complete, so that an interrupted measurement continues."""
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
    """By name: how each comes out of the rows, or the finished metric where it is no mean over samples."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was settled on while measuring, with "notes" for readers."""
    leads: str = ""
    """The metric that leads; empty: the first."""
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """As of `Evaluation.references`, those that the rows do not show."""
    broken: str = ""
    """What the model gave that is NaN or infinite and neither rows nor figures show, such as the logits of a reply; a
    sentence, empty where there is nothing."""

    @property
    def primary(self) -> str:
        """The metric that leads."""
        return self.leads or next(iter(self.figures))

    @property
    def levels(self) -> dict[str, dict[str, float]]:
        """`Evaluation.references`."""
        chance = chance_level(self.rows)
        known = {name: {CHANCE: chance} for name in self.figures if name in CHOSEN and chance is not None}
        return {**known, **{name: dict(levels) for name, levels in self.references.items()}}

    @property
    def failed(self) -> str | None:
        """Why its figures mean nothing, whatever they are: a sample is not finite; None where all are."""
        return self.broken or why_not_finite({}, self.rows)

    def metrics(self, plan: EvaluationPlan) -> dict[str, Metric]:
        """The figures with their intervals, all of them over the same draws; without values (NaN) where a sample is not
        finite."""
        found = {name: self._metric(figure, plan) for name, figure in self.figures.items()}
        if self.failed is None:
            return found
        return {name: replace(m, value=math.nan, interval=None) for name, m in found.items()}

    def _metric(self, figure: Ratio | Metric, plan: EvaluationPlan) -> Metric:
        if isinstance(figure, Metric):
            return replace(figure, confidence=plan.confidence)
        value, interval = estimate(figure, self.rows, confidence=plan.confidence, seed=plan.seed)
        return Metric(
            value=value,
            n=len(self.rows),
            unit=figure.unit,
            higher_is_better=figure.higher_is_better,
            interval=interval,
            confidence=plan.confidence,
        )


def measure(entry: Entry, on: Subject) -> Outcome:
    """Measures one entry.

    Raises:
        UserError: the entry's task, data or tokenizer does not fit.
    """
    if variables := entry.chat_template_kwargs:
        on = replace(
            on,
            tokenizer=with_variables(on.tokenizer, variables),
            processor=_processor_with(on.processor, variables),
        )
    if getattr(entry, "apply_chat_template", False):
        on.notes.extend(remarks_on_thoughts(on.tokenizer))
    outcome: Outcome = _module(entry).measure(entry, on)
    mark_copies(outcome.rows)
    notes = [*outcome.settings.get("notes", ()), *on.notes, *remarks_on_samples(outcome.rows)]
    if isinstance(entry, DataEntry) and entry.max_documents is not None:
        from holdfast.data.sources import load_rows

        whole = load_rows(entry.data, split=entry.split, config=entry.config)
        notes += remarks_on_part(whole, entry.max_documents, setting="max_documents")
    return replace(outcome, settings={**outcome.settings, "notes": notes})


def check(entry: Entry, tokenizer: Any, processor: Callable[[], Any] | None = None) -> None:
    """Loads an entry's data and task without a model.

    Args:
        entry: to be measured.
        tokenizer: of the model.
        processor: as of `Subject`.

    Raises:
        UserError: as `measure` would.
    """
    variables = entry.chat_template_kwargs
    tokenizer, processor = with_variables(tokenizer, variables), _processor_with(processor, variables)
    _module(entry).check(entry, tokenizer, *([processor] if KINDS[entry.kind].images else []))


def _processor_with(processor: Callable[[], Any] | None, variables: Mapping[str, Any]) -> Callable[[], Any] | None:
    if processor is None or not variables:
        return processor
    return lambda: with_variables(processor(), variables)


def versions(entry: Entry) -> dict[str, str]:
    """What decides an entry's figures beside the model, the data and libraries: rules and small models by version."""
    found: Mapping[str, str] = getattr(_module(entry), "versions", lambda entry: {})(entry)
    return dict(found)


def _module(entry: Entry) -> Any:
    return importlib.import_module(f"holdfast.evaluation.{KINDS[entry.kind].module}")
