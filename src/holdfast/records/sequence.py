"""Plain records of a sequence study (Soup to Go): which models were trained one after another or
merged, and what each remembers of every task.

```
sequence.json                     SequenceRecord
runs/<model>/seed-<s>/            one ordinary run folder a trained model
models/<model>/seed-<s>/          models that a merge made
evaluations/                      what was measured, by the weights that it was measured of
report.html                       the page
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.records.base import BaseRecord
from holdfast.records.figure import Figure
from holdfast.records.study import SampleCorrelation

RECORD_FILE = "sequence.json"
SEQUENTIAL, SINGLE, MULTITASK, MERGE, RESIDUAL = (
    "sequential",
    "single",
    "multitask",
    "merge",
    "residual",
)
"""Kinds of arms that are no retention methods."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """How a task is scored."""

    suite: str
    """The task's name, which its suite has."""
    name: str
    """Of the entry."""
    metric: str
    unit: str
    higher_is_better: bool
    before: float
    """The base's."""


@dataclass(frozen=True, kw_only=True)
class SequenceModel:
    """One model with one seed: trained from another one on a task, or merged of several."""

    name: str
    """The same for all seeds; a folder's name."""
    label: str
    seed: int
    trained: list[str]
    """The tasks behind it, the oldest first."""
    start: str = ""
    """The model that its training began with; "" the base."""
    folder: str = ""
    """Relative to the study's; "" before it is made."""
    evaluations: str = ""
    """What was measured of it, relative to the study's folder."""
    state: str = "waiting"
    """"waiting", "running", "complete" or "failed"."""
    reason: str | None = None
    """Why it failed."""
    tokens: int = 0
    """That it was trained on."""
    seconds: float = 0.0
    distance: float | None = None
    """L2 distance of the weights to the model after the task before (of a merge and of multitask
    training: to the one that sequential fine-tuning has there; of a first task: to the base)."""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By task: (share of the steps, held-out loss in nats per token), from the start to the end."""


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One way through one order of the tasks."""

    arm: str
    """Its label."""
    kind: str
    """"sequential", "single", "multitask", "merge", "residual", or the names of retention methods
    joined by "+"."""
    strength: float | None
    """The leading parameter of a method: what a curve of the arms of its kind is drawn along."""
    order: list[str]
    retention: list[dict[str, Any]] = field(default_factory=list)
    """Its methods, as the study has them."""
    merge: dict[str, Any] = field(default_factory=dict)
    """Method and parameters of a merge, or of what is added to another base."""
    left_out: list[str] = field(default_factory=list)
    """Tasks that multitask training does without."""
    old_data: bool = False
    """Whether it reads data of earlier tasks while a later one is trained, or has all tasks at
    once."""
    models: list[str] = field(default_factory=list)
    """After each task; of arms that train all at once, the one at the end."""
    scores: dict[str, Figure] = field(default_factory=dict)
    """By task, of the last model; by "task/entry" of a task's other entries."""
    against: dict[str, Figure] = field(default_factory=dict)
    """The same: how much better than sequential fine-tuning, paired by seed and sample; above 0 is
    better."""
    keep: dict[str, list[Figure | None]] = field(default_factory=dict)
    """By what should be kept (`SequenceRecord.keep`): of each of `models`; None where it cannot be
    scored."""
    distance: Figure | None = None
    """Of the last model, see `SequenceModel.distance`."""
    matrix: list[list[float]] = field(default_factory=list)
    """`[stage][task]`, stage 0 being the base, higher is better, mean over the seeds; empty where
    there are no stages, or the tasks' units have no mean."""
    measures: dict[str, Figure] = field(default_factory=dict)
    """Average accuracy, backward and forward transfer, forgetting
    (`evaluation.compare.continual`)."""
    measures_against: dict[str, Figure] = field(default_factory=dict)
    """The same minus those of sequential fine-tuning, paired by seed."""


@dataclass(frozen=True, kw_only=True)
class SequenceRecord(BaseRecord):
    """sequence.json."""

    file: ClassVar[str] = RECORD_FILE
    tasks: dict[str, TaskScore]
    """By name, each by its first entry; empty before anything was measured."""
    orders: list[list[str]]
    seeds: list[int]
    models: list[SequenceModel]
    arms: list[ArmResult]
    keep: dict[str, TaskScore] = field(default_factory=dict)
    """What the base knows and should keep beside the tasks, by the entry's name."""
    entries: dict[str, TaskScore] = field(default_factory=dict)
    """The tasks' other entries, by "task/entry"."""
    correlations: list[SampleCorrelation] = field(default_factory=list)
    """By entry: how far two arms gain over the base on the same samples, the arms by their place in
    `arms`; none in records of earlier versions."""

    def score_of(self, key: str) -> TaskScore:
        """Of a task, or of another entry of one ("law/overruling")."""
        return self.tasks[key] if key in self.tasks else self.entries[key]

    def entries_of(self, task: str) -> list[str]:
        """The keys of a task's entries beside its first one."""
        return [key for key, score in self.entries.items() if score.suite == task]

    def of(self, order: list[str]) -> list[ArmResult]:
        """The arms through one order."""
        return [a for a in self.arms if a.order == order]


read_sequence = SequenceRecord.read
