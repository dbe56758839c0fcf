"""Plain record of a probe: what changes of its weights cost a checkpoint, or each checkpoint of a
ladder.

```
probe.json                        ProbeRecord
<label>/as-it-is/                 evaluations of the model, with per-sample rows
<label>/<change>/                 the same of the changed model, one folder a change
<label>/curvature.jsonl           products with the Hessian, one a line
report.html                       the page
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.records.evaluation import SCHEMA
from holdfast.records.figure import Figure
from holdfast.records.study import Entry
from holdfast.support.files import read_as, record_from

RECORD_FILE = "probe.json"
AS_IT_IS = "as-it-is"
NOISE, QUANTIZE, PRUNE, TOWARD = "noise", "quantize", "prune", "toward"
KINDS = (NOISE, QUANTIZE, PRUNE, TOWARD)
"""Of changes."""


@dataclass(frozen=True, kw_only=True)
class ProbedModel:
    """One checkpoint."""

    label: str
    name: str
    hash: str = ""
    architecture: str = ""
    parameters: int = 0
    dtype: str = ""
    tokens: float | None = None
    """That it was pre-trained on; None where nobody said."""
    stds: str = ""
    """What noise was scaled by: "init" or "tensor"; "" without noise."""
    origin: str = ""
    """Where its weights come from, where that must be said."""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What one change costs one model in one figure."""

    model: str
    """Its label."""
    kind: str
    """One of `KINDS`."""
    label: str
    """"int8", the model that a step goes towards; "" for others."""
    size: float
    """Gamma, bits, pruned share, share of the way."""
    entry: str
    """Suite and name: "keep/prose"."""
    metric: str
    unit: str
    higher_is_better: bool
    before: float
    """Of the model as it is."""
    after: float
    """Of the changed one; the mean over seeds of noise. Infinite where one of them is."""
    difference: float
    """after - before."""
    interval: tuple[float, float] | None = None
    """Of the difference; None where one is not finite."""
    covers: str = ""
    """What the interval covers: "samples only" (paired), "seeds and samples", "seeds only" where
    the samples' part is not known, "nothing"."""
    by_seed: list[float] = field(default_factory=list)
    """Differences seed by seed."""
    samples_half: float = 0.0
    """Half-width of the samples' part of the interval, at 95 %."""
    failed: str = ""
    """How many seeds gave no finite figure; "" where all did."""

    @property
    def key(self) -> Entry:
        """(suite, name, metric)."""
        suite, _, name = self.entry.partition("/")
        return suite, name, self.metric

    @property
    def harm(self) -> float:
        """The difference, signed so that a loss is positive."""
        return -self.difference if self.higher_is_better else self.difference


@dataclass(frozen=True, kw_only=True)
class CostTrend:
    """How a cost moves from the smallest to the largest budget of a ladder."""

    entry: str
    unit: str
    first: float
    """Cost at the smallest budget; a loss is positive."""
    last: float
    difference: Figure
    """last - first, of pairs, over seeds and samples, with its interval at the level that was asked
    for; infinite where one of them is."""

    @property
    def verdict(self) -> str:
        """ "grows" or "shrinks" where the interval excludes 0, or one end is infinite; else "cannot
        tell"."""
        interval = self.difference.interval
        infinite = math.isinf(self.difference.value)
        excludes_0 = interval is not None and not interval[0] <= 0 <= interval[1]
        if not infinite and not excludes_0:
            return "cannot tell"
        return "grows" if self.difference.value > 0 else "shrinks"

    @classmethod
    def fields_from_json(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a stored trend; before there were figures, the interval stood beside the
        difference."""
        if "interval" not in value:
            return value
        return {
            **value,
            "difference": {"value": value["difference"], "interval": value["interval"]},
        }


@dataclass(frozen=True, kw_only=True)
class Trend(CostTrend):
    """How the cost of one change moves."""

    kind: str
    label: str
    size: float


@dataclass(frozen=True, kw_only=True)
class TurningPoint:
    """At which budget of a ladder a changed or fine-tuned model is at its best
    (`statistics.inflection`)."""

    entry: str
    unit: str
    tokens: float
    """The budget with the best figure."""
    interval: tuple[float, float]
    """The budgets that are not shown to be worse: from the smallest to the largest of them."""
    after: float
    """What the figure has lost from there to the largest budget; infinite where it is not finite
    there."""
    verdict: str
    """"turns", "does not turn" (within the ladder) or "cannot tell"."""
    budgets: list[float] = field(default_factory=list)
    """Tokens, ascending."""
    chances: list[float] = field(default_factory=list)
    """Of each budget, see `statistics.inflection.places_at`; empty in records of before."""


@dataclass(frozen=True, kw_only=True)
class Inflection(TurningPoint):
    """At which budget the model under a change is at its best."""

    kind: str
    """One of `KINDS`; `AS_IT_IS` for the models themselves."""
    label: str
    size: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """The loss along a direction to second order; see `evaluation.probe.curvature`."""

    label: str
    """The model that a step goes towards, or "noise" and its seed."""
    slope: float
    curvature: float
    norm: float
    losses: list[tuple[float, float]] = field(default_factory=list)
    """(share of the way or gamma, loss) as measured, on the same documents, ascending; 0 among
    them. Infinite where it is not finite."""

    def quadratic(self, size: float, loss: float) -> float:
        """The loss that the quadratic gives at `size`, from the loss at 0."""
        return loss + size * self.slope + size * size / 2 * self.curvature


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """The curvature of one model's loss on some documents, nats a token."""

    model: str
    documents: int
    tokens: int
    loss: float
    gradient_norm: float
    trace: float
    """Of the Hessian, Hutchinson's estimate."""
    trace_interval: tuple[float, float] | None
    """Over random signs."""
    noise_trace: float | None = None
    """Tr(S H), S the variances at initialisation: noise costs gamma^2 / 2 times this where the
    quadratic holds."""
    noise_trace_interval: tuple[float, float] | None = None
    probes: int = 0
    eigenvalues: list[float] = field(default_factory=list)
    """The largest ones, descending."""
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """probe.json."""

    models: list[ProbedModel]
    sensitivities: list[Sensitivity] = field(default_factory=list)
    """By model, in order; then by change and entry."""
    trends: list[Trend] = field(default_factory=list)
    """Of a ladder."""
    inflections: list[Inflection] = field(default_factory=list)
    """Of a ladder of three checkpoints and more: as they are, then by change."""
    sharpness: list[Sharpness] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """The request as resolved."""
    ladder: bool = False
    """Whether the models are one at rising budgets."""
    status: str = "running"
    """"running", "interrupted", "failed" or "finished"."""
    notes: list[str] = field(default_factory=list)
    confidence: float = 0.95
    created: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ProbeRecord:
        return record_from(ProbeRecord, value)


def read_probe(folder: str | Path) -> ProbeRecord:
    """The record of a probe's folder.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    return read_as(Path(folder) / RECORD_FILE, ProbeRecord)
