"""Records of ladders, made up: two sizes, three budgets, of which the last failed."""

from __future__ import annotations

from typing import Any

from holdfast.papers.ladder.record import LadderRecord, PretrainedRung, SizeAbout
from holdfast.records.evaluation import Metric


def ladder(*, entry: str = "keep/web", **changes: Any) -> LadderRecord:
    """A ladder of two sizes.

    Args:
        entry: what was measured.
        changes: of the record's fields.
    """
    rungs = []
    for size, speed in (("1M", 9000.0), ("3M", 4000.0)):
        for place, budget in enumerate((10**6, 2 * 10**6, 4 * 10**6)):
            value = 3.0 - 0.3 * place
            done = (size, place) != ("3M", 2)
            found: dict[str, Any] = {}
            if done:
                metric = Metric(
                    value=value, n=40, unit="nats/token", higher_is_better=False, interval=(value - 0.1, value + 0.1)
                )
                found = {
                    "tokens": budget,
                    "steps": budget // 2048,
                    "loss": value,
                    "curve": [(budget * k // 5, value + 1 / k) for k in range(1, 6)],
                    "figures": {entry: metric},
                    "seconds": budget / speed,
                }
            folder = f"{size}-tokens{budget // 10**6}M"
            rungs.append(
                PretrainedRung(
                    size=size,
                    budget=budget,
                    seed=0,
                    folder=folder,
                    state="complete" if done else "failed",
                    reason=None if done else "a loss was not finite",
                    **found,
                )
            )
    about = {"heads": 2, "mlp": 512, "parameters": 1_069_696, "without_tables": 525_440}
    fields: dict[str, Any] = {
        "name": "mine",
        "status": "failed",
        "created": "2026-11-25T12:00:00Z",
        "finished": None,
        "config": {"architecture": "olmo2", "batch_size": 16, "context": 128, "learning_rate": 3e-3, "base_width": 128},
        "sizes": {
            "1M": SizeAbout(layers=2, width=128, **about),
            "3M": SizeAbout(layers=3, width=192, **about),
        },
        "rungs": rungs,
        "text": {"tokens": 64_000_000, "documents": 600_000, "vocabulary": 2126},
    }
    return LadderRecord(**{**fields, **changes})
