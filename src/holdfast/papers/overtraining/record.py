"""What an overtraining study leaves: its folder and overtraining.json, of which the page is made.

```
overtraining.json                 this record
study.db                          the queue
probed/CHECKPOINT/CHANGE/         evaluations of every checkpoint as it is and under every change
aligned/CHECKPOINT/WAY/seed-N/    stage 1 of models that see, ordinary run folders
runs/CHECKPOINT/MODEL/seed-N/     the fine-tunings, ordinary run folders
report.html                       the page
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from holdfast.errors import DataError
from holdfast.records.base import BaseRecord
from holdfast.records.figure import Figure
from holdfast.records.probe import (
    CostTrend,
    Inflection,
    ProbedModel,
    Sensitivity,
    Sharpness,
    Trend,
    TurningPoint,
)
from holdfast.records.study import SampleCorrelation

RECORD_FILE = "overtraining.json"
TUNED = "tuned"
"""In place of a learning rate: at each budget the one that the validation data chose."""
LATER, EARLIER, CANNOT_TELL = "later", "earlier", "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A rung of the ladder."""

    label: str
    name: str
    """Model, as it was named."""
    tokens: float
    """Of pre-training."""
    parameters: int = 0
    """Of the language model, tables included; 0 where nobody counted."""
    probed: ProbedModel | None = None
    """None where nothing was probed."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to fine-tune; the learning rate is varied in each."""

    label: str
    kind: str
    """The methods' names joined by "+", "direct", or what a way without a method is called, such as
    "LoRA"."""
    rates: list[float]
    """Ascending."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """An entry that the models are measured on."""

    suite: str
    """"keep" (what should be kept), "validation" or "learn" (the test)."""
    name: str
    metric: str
    unit: str
    higher_is_better: bool
    chance: float | None = None
    """What guessing gives, where that is known."""

    @property
    def key(self) -> str:
        """ "suite/name"."""
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class TunedModel:
    """One checkpoint fine-tuned in one way at one rate, with all seeds."""

    task: str
    arm: str
    rate: float
    checkpoint: str
    state: str = "waiting"
    """"waiting", "running", "complete" or "failed"."""
    reason: str | None = None
    """Why it failed."""
    seeds: list[int] = field(default_factory=list)
    """Those that are there."""
    diverged: dict[str, str] = field(default_factory=dict)
    """By seed, what was not finite."""
    scores: dict[str, Figure] = field(default_factory=dict)
    """By "suite/name", in the metric's own direction; infinite where a seed has diverged. The
    interval is that of the change, so the checkpoint counts as known."""
    scores_alone: dict[str, Figure] = field(default_factory=dict)
    """The same with the seeds and samples of the model by itself; none where a seed has
    diverged."""
    costs: dict[str, Figure] = field(default_factory=dict)
    """What fine-tuning has taken from the checkpoint's score: positive is worse, infinite where a
    seed has diverged."""
    distance: float | None = None
    """L2 distance of the weights to the checkpoint's, mean over the seeds."""
    distance_by_seed: dict[str, float] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)
    """By seed, epochs that were trained."""
    tokens: int = 0
    """That one seed has read."""
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """Of pages."""
        return f"{self.checkpoint}: {self.task}, {self.arm}, {self.rate:g}"

    @classmethod
    def fields_from_json(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a stored model, which are not to pass for those of one that was not
        measured.

        Raises:
            DataError: a record of before there were scores and costs.
        """
        if "figures" in value:
            raise DataError(
                "expected 'scores' and 'costs' of a fine-tuned model, got 'figures' of an "
                "earlier version of holdfast."
            )
        return value


@dataclass(frozen=True, kw_only=True)
class TunedRate:
    """The learning rate that the validation data chooses at one budget."""

    task: str
    arm: str
    checkpoint: str
    tokens: float
    rate: float
    interval: tuple[float, float]
    """The smallest and the largest rate that is not shown to be worse."""
    edge: str
    """"smallest" or "largest" where it is the end of what was tried, so that a better one may lie
    beyond it."""


@dataclass(frozen=True, kw_only=True)
class TunedTurn(TurningPoint):
    """At which budget a fine-tuned model is at its best."""

    task: str
    arm: str
    rate: float | None
    """None: each budget at its tuned rate."""


@dataclass(frozen=True, kw_only=True)
class Growth(CostTrend):
    """How the cost of fine-tuning moves from the smallest to the largest budget."""

    task: str
    arm: str
    rate: float | None
    """None: each budget at its tuned rate."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """What a way to fine-tune does to the inflection point and to the growth of the cost, against
    direct fine-tuning."""

    task: str
    arm: str
    against: str
    rate: float | None
    """None: each at its tuned rates."""
    entry: str
    unit: str
    verdict: str
    """"later", "earlier" or "cannot tell": whether the budgets that may be best are all beyond
    those of direct fine-tuning."""
    growth: Figure
    """How much more the cost grows along the ladder than that of direct fine-tuning; below 0 it
    grows less."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A learning rate at which a way to fine-tune gets beyond `max_perplexity` at some budget."""

    task: str
    arm: str
    rate: float


T = TypeVar("T")


def alike(items: Iterable[T], **fields: Any) -> list[T]:
    """Those of some records whose fields have these values."""
    same = list(items)
    for name, value in fields.items():
        same = [item for item in same if getattr(item, name) == value]
    return same


@dataclass(frozen=True, kw_only=True)
class OvertrainingRecord(BaseRecord):
    """overtraining.json."""

    file: ClassVar[str] = RECORD_FILE
    checkpoints: list[Checkpoint]
    """The smallest budget first."""
    tasks: list[str]
    arms: list[Arm]
    direct: str
    """The arm that others are held against."""
    scored: dict[str, list[Scored]] = field(default_factory=dict)
    """By task; of each suite the leading entry first."""
    sensitivities: list[Sensitivity] = field(default_factory=list)
    """Of what was probed."""
    trends: list[Trend] = field(default_factory=list)
    inflections: list[Inflection] = field(default_factory=list)
    sharpness: list[Sharpness] = field(default_factory=list)
    models: list[TunedModel] = field(default_factory=list)
    rates: list[TunedRate] = field(default_factory=list)
    turns: list[TunedTurn] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    shifts: list[Shift] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    """Neither drawn nor judged: `max_perplexity`."""
    correlations: list[SampleCorrelation] = field(default_factory=list)
    """How far the costs of fine-tuned models go together over the samples of an entry; its trials
    are places in `models`."""
    probed_correlations: list[SampleCorrelation] = field(default_factory=list)
    """The same of changes without training; its trials are places in `sensitivities`."""
    score_correlations: list[SampleCorrelation] = field(default_factory=list)
    """The same of what models with a vision tower score on pictures; its trials are places in
    `models`."""

    def leading(self, task: str, suite: str) -> Scored | None:
        """The entry of a suite that leads; None before anything was measured."""
        return next(iter(alike(self.scored.get(task, ()), suite=suite)), None)

    def rates_left_out(self, task: str, arm: str) -> list[float]:
        """Of one way to fine-tune on a task, the smallest first."""
        return sorted(item.rate for item in alike(self.left_out, task=task, arm=arm))

    def model(self, task: str, arm: str, rate: float, checkpoint: str) -> TunedModel | None:
        """One fine-tuned model."""
        models = alike(self.models, task=task, arm=arm, rate=rate, checkpoint=checkpoint)
        return models[0] if models else None


read_overtraining = OvertrainingRecord.read
