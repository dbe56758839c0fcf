"""Two models on the same samples: one metric's paired difference, what a gate's rule says of it, and scores over stages
of training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from holdfast.records.evaluation import Metric
from holdfast.support.files import record_from

NOT_FINITE = "not finite"
"""The verdict of a comparison that failed, and the outcome of a rule that speaks of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of the start model against the result, paired sample by sample.

    `difference` is after - before in the metric's own unit; `gain` has the sign turned so that more is better.
    """

    suite: str
    name: str
    metric: str
    unit: str
    higher_is_better: bool
    n: int
    before: float
    after: float
    difference: float
    interval: tuple[float, float]
    """Paired bootstrap interval of `difference` at `confidence`."""
    p_value: float
    test: str
    """"McNemar (exact)" for right/wrong metrics, "paired bootstrap" otherwise."""
    primary: bool = True
    confidence: float = 0.95
    flips_lost: int | None = None
    """Samples right before and wrong after; None where the metric is not right/wrong."""
    flips_gained: int | None = None
    failed: str | None = None
    """Why nothing follows from it: a figure, or a sample behind one, is NaN or infinite. There is no difference then,
    and no interval (NaN)."""

    def __post_init__(self) -> None:
        figures = {"before": self.before, "after": self.after, "the difference": self.difference}
        wrong = [f"{name} is {value:g}" for name, value in figures.items() if not math.isfinite(value)]
        if self.failed is None and (wrong or any(map(math.isinf, self.interval))):
            object.__setattr__(self, "failed", f"{', '.join(wrong) or 'the interval is infinite'}.")
        if self.failed is not None:
            nothing = {"difference": math.nan, "interval": (math.nan, math.nan), "p_value": math.nan}
            for name, value in {**nothing, "flips_lost": None, "flips_gained": None}.items():
                object.__setattr__(self, name, value)

    @property
    def gain(self) -> float:
        """The difference, signed so that positive is better."""
        return self.difference if self.higher_is_better else -self.difference

    @property
    def verdict(self) -> str:
        """ "gained" or "lost" when the interval excludes 0, else "within noise"; "not finite" where it failed."""
        if self.failed is not None:
            return NOT_FINITE
        low, high = self.interval
        if low <= 0.0 <= high or math.isnan(low):
            return "within noise"
        return "gained" if self.gain > 0 else "lost"

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Comparison:
        return record_from(Comparison, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """What a rule such as "mmlu drop > 1pt" says of one comparison."""

    rule: str
    """As the user wrote it."""
    suite: str
    name: str
    metric: str
    outcome: str
    """"failed": the whole interval lies beyond the threshold. "passed": the whole interval lies within it. "undecided":
    the threshold lies inside. "not finite": a figure or a sample is NaN or infinite."""
    value: float
    """The change that the rule speaks of, signed so that the rule's direction is positive, in the rule's unit."""
    interval: tuple[float, float]
    """Of `value`, at the comparison's confidence."""
    threshold: float
    unit: str
    """"pt" (hundredths of a share), "%" of the value before, or the metric's own."""
    reason: str
    """One sentence for people."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMatrix:
    """Scores of every task after every stage of sequential training, and what they say of forgetting (GEM 2017;
    Chaudhry et al. 2018)."""

    tasks: list[str]
    """In the order of training, one a stage after the start; a task of None (no stage of its own) is not among them."""
    stages: list[str]
    """Labels of the start and of the model after each stage; `len(tasks) + 1` of them."""
    scores: list[list[float]]
    """`scores[l][i]`: task i after stage l, l = 0 being the start; higher is better."""
    measures: dict[str, Metric]
    """"average_accuracy", "backward_transfer", "forgetting", "forward_transfer", each with its interval."""
    unit: str = ""
    failed: list[str] = dataclasses.field(default_factory=list)
    """Of which task a figure or a sample is NaN or infinite, a sentence each; its scores are NaN then."""
