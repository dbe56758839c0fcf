"""Measures one entry: a model and an entry in, per-sample rows and figures with intervals out. Which module does it is
said by `holdfast.evaluation.entries.KINDS`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.evaluation.entries import KINDS, Entry, EvaluationPlan
from holdfast.evaluation.partial import Partial
from holdfast.records.evaluation import Metric
from holdfast.statistics.estimates import Ratio, estimate

Report = Callable[[int, int], None]
Outcome = tuple[list[dict[str, Any]], dict[str, Metric], str, dict[str, Any]]
"""(rows, metrics, the leading metric, what was settled on while measuring)."""


def measure(
    model: Any, tokenizer: Any, entry: Entry, plan: EvaluationPlan, *, report: Report, partial: Partial
) -> Outcome:
    """Measures one entry.

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not; left in the state it came in.
        tokenizer: its tokenizer.
        entry: of the plan.
        plan: settings that all entries share.
        report: called with (done, in all).
        partial: where what is found is kept until the entry is whole.

    Raises:
        UserError: the entry's task, data or tokenizer does not fit.
    """
    outcome: Outcome = _module(entry).measure(model, tokenizer, entry, plan, report=report, partial=partial)
    return outcome


def check(entry: Entry, tokenizer: Any) -> None:
    """Loads an entry's data and task without a model.

    Raises:
        UserError: as `measure` would.
    """
    _module(entry).check(entry, tokenizer)


def versions(entry: Entry) -> dict[str, str]:
    """What decides an entry's figures beside the model, the data and libraries: rules and small models by version."""
    found: Mapping[str, str] = getattr(_module(entry), "versions", lambda entry: {})(entry)
    return dict(found)


def _module(entry: Entry) -> Any:
    return importlib.import_module(f"holdfast.evaluation.{KINDS[entry.kind].module}")


def figures(rows: Sequence[dict[str, Any]], wanted: dict[str, Ratio], plan: EvaluationPlan) -> dict[str, Metric]:
    """Figures with intervals, all of them over the same draws."""
    found = {}
    for name, figure in wanted.items():
        value, interval = estimate(figure, rows, confidence=plan.confidence, seed=plan.seed)
        better = figure.higher_is_better
        found[name] = Metric(
            value=value,
            n=len(rows),
            unit=figure.unit,
            higher_is_better=better,
            interval=interval,
            confidence=plan.confidence,
        )
    return found
