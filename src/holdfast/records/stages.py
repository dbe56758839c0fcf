"""Plain records of a stages study (Pattern Shifting or Knowledge Losing): every checkpoint of a
fine-tuning, restored, and what it has forgotten.

```
stages.json                       StagesRecord
texts/                            what is restored on and probed with (`holdfast data select`)
runs/tune-<arm>/                  the fine-tuning of an arm, with a checkpoint an epoch
runs/<arm>-<k>-restored/          one ordinary run folder a restored checkpoint; base-restored: the control;
                                  ...-restored-4x: at four times the dose
evaluations/                      what was measured, by the weights that it was measured of
report.html                       the page
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.records.base import BaseRecord
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation
from holdfast.records.figure import Figure

RECORD_FILE = "stages.json"
GAINED, NONE, PSEUDO, ACTUAL = "gained", "no forgetting", "pseudo forgetting", "actual forgetting"
NOT_YET = "not yet restored"
INCONCLUSIVE = "inconclusive"
VERDICTS = (GAINED, NONE, PSEUDO, ACTUAL, NOT_YET, INCONCLUSIVE)
"""Of a checkpoint on a task, see `statistics.stages`."""
REASONS = (
    "gained",
    "within margin",
    "came back",
    "loss left",
    "loss left, one dose",
    "still coming back",
    "tuned not scored",
    "base at chance",
    "within noise",
    "not restored",
    "restored not scored",
    "restoring costs",
    "pattern not back",
    "neither",
    "level with the control",
    "may still come back",
)
"""Why a verdict is what it is: "gained" to "still coming back" of the verdicts in their order
("actual forgetting" has two, for one dose and for several), the others of "inconclusive"."""
PROBING = "probing"
"""Suite, and entry, of the held-out plain text."""
BASE, CONTROL, TUNED, RESTORED = "base", "control", "tuned", "restored"
"""Roles of models."""


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """One model of the study."""

    role: str
    """"base", "control", "tuned" or "restored"."""
    arm: str = ""
    """Whose checkpoint it is; "" of base and control."""
    place: int = 0
    """Of the checkpoint in its arm, from 1; 0 of base and control."""
    dose: int = 1
    """What it was restored with, as a multiple of the budget; 1 of what was not restored, too."""
    label: str = ""
    evaluations: str = ""
    """What was measured of it, relative to the study's folder; "" before it was."""
    figures: dict[str, dict[str, Figure]] = field(default_factory=dict)
    """By entry ("suite/name") and metric."""
    tokens: int = 0
    """That restoring trained it on."""
    seconds: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Along restoring: (share of the steps, probing text in nats per token)."""
    state: str = "waiting"
    """"waiting", "running", "complete" or "failed"."""
    reason: str | None = None
    """Why it failed."""


@dataclass(frozen=True, kw_only=True)
class TaskAbout:
    """What is judged."""

    suite: str
    name: str
    metric: str
    unit: str
    higher_is_better: bool
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageVerdict:
    """What a checkpoint has forgotten of a task."""

    arm: str
    place: int
    """Of the checkpoint, from 1."""
    task: str
    """"suite/name"."""
    verdict: str
    """One of `VERDICTS`."""
    why: str = ""
    """One of `REASONS`; empty in records of earlier versions, which have `reason`."""
    reason: str = ""
    """The reason in words, in records of earlier versions."""
    tuned: Comparison
    """Base to fine-tuned model."""
    restored: Comparison | None = None
    """Base to restored model."""
    against_control: Comparison | None = None
    """Control to restored model."""
    control: Comparison | None = None
    """Base to control."""
    control_tolerance: float = 0.0
    """How much the control may have lost, in the task's own unit."""
    pattern: Comparison | None = None
    """Held-out plain text, base to restored model."""
    pattern_tolerance: float = 0.0
    """Nats per token that it may cost more for the pattern to be back."""
    dose: int = 1
    """At which the verdict stands, and which `restored` to `pattern` are of."""
    more: Comparison | None = None
    """Restored at the dose below the greatest, to restored at the greatest; None with one dose."""
    came_back: Figure | None = None
    """Share of the lost score that restoring brought back, 1 is all of it; None where nothing fell."""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """Where actual forgetting begins."""

    arm: str
    task: str
    place: int | None
    """The first checkpoint from which on more than the margin is forgotten, from 1: fine-tuning
    took it, and restoring does not bring it back; None: none is."""
    interval: tuple[int, int | None]
    """95 % over questions; one more than there are checkpoints, and None: after the last one."""
    dose: int = 1
    """Of restoring."""


@dataclass(frozen=True, kw_only=True)
class Along:
    """What was measured on the way of a fine-tuning."""

    step: int
    """Number of optimiser steps; 0 is the base model."""
    evaluations: list[Evaluation]
    changed: dict[str, Figure] = field(default_factory=dict)
    """Share of questions whose answer has changed since the previous point, for each entry
    ("suite/name") that has answers. Empty for the first point."""


@dataclass(frozen=True, kw_only=True)
class StagesRecord(BaseRecord):
    """stages.json."""

    file: ClassVar[str] = RECORD_FILE
    arms: list[str]
    """The first is what is diagnosed, others are remedies."""
    checkpoints: dict[str, list[str]]
    """By arm: labels of its checkpoints, in order."""
    tasks: list[TaskAbout] = field(default_factory=list)
    models: list[MeasuredModel] = field(default_factory=list)
    verdicts: list[StageVerdict] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    along: dict[str, list[Along]] = field(default_factory=dict)
    """By arm, in the order of the steps; empty where nothing was measured on the way."""
    texts: dict[str, Any] = field(default_factory=dict)
    """Of the text that is restored on: tokens, passages, how it was chosen."""
    epoch_tokens: int | None = None
    """Tokens of one epoch of the fine-tuning; None where the study did not train, or not yet."""

    @property
    def doses(self) -> list[int]:
        """That the base was restored with, ascending."""
        return sorted({m.dose for m in self.models if m.role == CONTROL})

    def model(
        self, role: str, arm: str = "", place: int = 0, dose: int = 1
    ) -> MeasuredModel | None:
        """The model of a role."""
        key = (role, arm, place, dose)
        return next((m for m in self.models if (m.role, m.arm, m.place, m.dose) == key), None)

    def of(self, arm: str, task: str) -> list[StageVerdict]:
        """An arm's verdicts on a task, in the order of its checkpoints."""
        return sorted(
            (v for v in self.verdicts if v.arm == arm and v.task == task), key=lambda v: v.place
        )


read_stages = StagesRecord.read
