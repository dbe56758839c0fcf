"""Plain record of a pre-trained ladder.

```
ladder.json                       LadderRecord
<size>.yaml                       the ladder of one size (and seed), for `holdfast probe --ladder`
tokens/                           the text as token windows, which all runs share
tokenizer/                        the one that was trained
fresh/<size>-seed<n>/             the model before its first step
<size>-tokens<budget>[-seed<n>]/  a run folder a rung: its checkpoint, its log, what was measured
report.html                       the page
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.records.base import BaseRecord
from holdfast.records.evaluation import Metric

RECORD_FILE = "ladder.json"


@dataclass(frozen=True, kw_only=True)
class PretrainedRung:
    """One run."""

    size: str
    budget: int
    """Tokens that were asked for."""
    seed: int
    folder: str
    """Relative to the ladder's."""
    tokens: int = 0
    """That it has read: whole steps."""
    steps: int = 0
    loss: float | None = None
    """Of the last logged steps, in nats a token."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(tokens, training loss in nats a token)."""
    figures: dict[str, Metric] = field(default_factory=dict)
    """What was measured at its end, by "suite/name"."""
    seconds: float = 0.0
    """Of training."""
    state: str = "waiting"
    """"waiting", "running", "complete" or "failed"."""
    reason: str | None = None
    """Why it failed."""


@dataclass(frozen=True, kw_only=True)
class SizeAbout:
    """One size of the model."""

    layers: int
    width: int
    heads: int
    mlp: int
    parameters: int = 0
    """0 before it was built."""
    without_tables: int = 0
    """Without embeddings and head, which is how "Overtrained Language Models" counts."""


@dataclass(frozen=True, kw_only=True)
class LadderRecord(BaseRecord):
    """ladder.json."""

    file: ClassVar[str] = RECORD_FILE
    sizes: dict[str, SizeAbout]
    rungs: list[PretrainedRung]
    """By size, budget and seed."""
    text: dict[str, Any] = field(default_factory=dict)
    """Of the token windows: tokens, windows, documents, vocabulary, hash."""


read_ladder = LadderRecord.read
