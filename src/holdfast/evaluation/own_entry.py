"""Measures an entry of a user's own class: a dataclass of settings with

```python
metrics = {"toxic": False}                     # name: whether higher is better; the first leads
def measure(self, model, tokenizer): ...       # one mapping a sample, with a number for each metric
def check(self, tokenizer): ...                # may be missing: raises before anything is measured
```

Figures are means over the samples, with the intervals and the paired comparisons that all entries have. Samples are
joined on `doc` in comparisons; without one they are joined by their number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.entries import EvaluationPlan, OwnEntry
from holdfast.evaluation.measures import Outcome, Report, figures
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.partial import Partial
from holdfast.statistics.estimates import Ratio


def refuse_other(value: Any) -> None:
    """Refuses what is no class of this kind.

    Raises:
        ConfigError: says what is missing.
    """
    metrics = getattr(value, "metrics", None)
    for good, wanted in (
        (isinstance(value, type) and dataclasses.is_dataclass(value), "a dataclass, whose fields are its settings"),
        (callable(getattr(value, "measure", None)), "a method measure(self, model, tokenizer)"),
        (
            isinstance(metrics, Mapping) and metrics and all(isinstance(up, bool) for up in metrics.values()),
            "metrics by name, true where higher is better, as in `metrics = {'toxic': False}`",
        ),
    ):
        if not good:
            raise ConfigError(f"expected {wanted}, got {getattr(value, '__name__', value)!r} without")


def measure(
    model: Any, tokenizer: Any, entry: OwnEntry, plan: EvaluationPlan, *, report: Report, partial: Partial
) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    metrics: Mapping[str, bool] = type(entry.own).metrics
    with evaluation_mode(model):
        rows = [dict(row) for row in entry.own.measure(model, tokenizer)]
    if not rows:
        raise DataError("expected at least one sample, got none.")
    for number, row in enumerate(rows):
        row.setdefault("doc", str(number))
        for name in metrics:
            if not (isinstance(row.get(name), (int, float)) and math.isfinite(row[name])):
                raise DataError(f"sample {number}: expected a finite number for '{name}', got {row.get(name)!r}.")
    wanted = {name: Ratio(numerator=name, unit=name, higher_is_better=up) for name, up in metrics.items()}
    return rows, figures(rows, wanted, plan), next(iter(metrics)), {}


def check(entry: OwnEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    getattr(entry.own, "check", lambda tokenizer: None)(tokenizer)
