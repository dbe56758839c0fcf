"""Measures an entry of a user's own class (`holdfast.evaluation.entries.OwnMeasure`).

Figures are means over its samples, with the intervals and the paired comparisons that all entries have. Samples are
joined on `doc` in comparisons; without one they are joined by their number.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.entries import OwnEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.modes import evaluation_mode
from holdfast.statistics.estimates import Ratio


def measure(entry: OwnEntry, on: Subject) -> Outcome:
    """See `holdfast.evaluation.measures.measure`.

    Raises:
        DataError: no sample came, or one without a number for a declared metric.
    """
    metrics = entry.own.metrics
    with evaluation_mode(on.model):  # what the class does is its own: one process asks it
        rows = on.processes.broadcast(lambda: [dict(row) for row in entry.own.measure(on.model, on.tokenizer)])
    if not rows:
        raise DataError("expected at least one sample, got none.")
    for number, row in enumerate(rows):
        row.setdefault("doc", str(number))
        for name in metrics:
            if not isinstance(row.get(name), (int, float)):
                raise DataError(f"sample {number}: expected a finite number for '{name}', got {row.get(name)!r}.")
    wanted = {name: Ratio(numerator=name, unit=name, higher_is_better=up) for name, up in metrics.items()}
    return Outcome(rows=rows, figures=wanted)


def check(entry: OwnEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    entry.own.check(tokenizer)
