"""Records of small studies, written down once in `recorded/`, for the tests of what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from holdfast.papers.ladder.record import LadderRecord
from holdfast.papers.overtraining.record import OvertrainingRecord
from holdfast.records.probe import ProbeRecord
from holdfast.support.files import from_json, record_from

FOLDER = Path(__file__).parent / "recorded"

T = TypeVar("T")


def recorded(name: str, cls: type[T], **texts: str) -> T:
    """A record, with a text in place of each of these words, wherever in the file the word stands."""
    content = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    for word, text in texts.items():
        content = content.replace(word, json.dumps(text)[1:-1])
    return record_from(cls, from_json(content))


def probe(**texts: str) -> ProbeRecord:
    """Three checkpoints with growing costs; noise of 1 overflows in the last. Its words: `step` and `remark`."""
    return recorded("probe", ProbeRecord, **texts)


def overtraining(**texts: str) -> OvertrainingRecord:
    """Three budgets by two ways of fine-tuning at two rates; one turns, and one diverges at the largest budget. Its
    words: `reviews` (the task) and `web` (what is kept)."""
    return recorded("overtraining", OvertrainingRecord, **texts)


def ladder(**texts: str) -> LadderRecord:
    """Two sizes at three budgets; the last rung failed. Its word: `web` (what was measured)."""
    return recorded("ladder", LadderRecord, **texts)
