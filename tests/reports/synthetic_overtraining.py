"""Records of overtraining studies, made up: three budgets, direct fine-tuning and label annealing at two rates; direct
fine-tuning turns at the higher one, and diverges at the largest budget of another way."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from holdfast.papers.overtraining.record import (
    Arm,
    Checkpoint,
    Growth,
    OvertrainingRecord,
    Scored,
    Shift,
    TunedModel,
    TunedRate,
    TunedTurn,
)
from holdfast.records.figure import Figure
from holdfast.records.probe import ProbedModel, Sensitivity, Trend

BUDGETS = {"1B": 1e9, "2B": 2e9, "4B": 4e9}
RATES = (1e-5, 1e-4)
KEPT = {("direct", 1e-5): (3.0, 2.7, 2.5), ("direct", 1e-4): (3.4, 3.2, 3.6), ("held", 1e-5): (3.0, 2.6, 2.4)}
KEPT |= {("held", 1e-4): (3.1, 2.8, math.inf)}
BASE = (2.9, 2.6, 2.4)


def score(value: float) -> Figure:
    """With an interval of 0.1 on both sides."""
    if math.isinf(value):
        return Figure(value=value)
    return Figure(value=value, over_samples=(value - 0.1, value + 0.1))


def cost(value: float) -> Figure:
    """Of one seed, with an interval of 0.1 on both sides."""
    if math.isinf(value):
        return Figure(value=value)
    return Figure(value=value, by_seed={0: value}, samples_half=0.1)


def overtraining(*, task: str = "reviews", entry: str = "web", **changes: Any) -> OvertrainingRecord:
    """A study of one task.

    Args:
        task: its name.
        entry: what should be kept.
        changes: of the record's fields.
    """
    source, target, valid = f"keep/{entry}", "learn/mr", "validation/mr"
    models = []
    for (arm, rate), values in KEPT.items():
        for (label, _), value, base in zip(BUDGETS.items(), values, BASE, strict=True):
            lost = math.isinf(value)
            task_value = math.inf if lost else 1.5 - 2000 * rate
            models.append(
                TunedModel(
                    task=task,
                    arm=arm,
                    rate=rate,
                    checkpoint=label,
                    state="complete",
                    seeds=[0],
                    diverged={"0": "Step 3: the loss is NaN"} if lost else {},
                    scores={source: score(value), target: score(task_value), valid: score(task_value)},
                    costs={source: cost(value - base), target: cost(task_value - 2), valid: cost(task_value - 2)},
                    distance=None if lost else 4e4 * rate,
                    stopped={"0": 3.0},
                    tokens=1000,
                    seconds=60.0,
                )
            )
    about: dict[str, Any] = {"task": task, "entry": source, "unit": "nats/token"}
    probed = ProbedModel(label="", name="", architecture="Olmo2", parameters=10**9, dtype="float32", hash="a")
    fields: dict[str, Any] = {
        "name": "mine",
        "status": "finished",
        "created": "2026-11-25T12:00:00+00:00",
        "finished": "2026-11-25T13:00:00+00:00",
        "config": {"seeds": [0], "vary": {"learning_rate": list(RATES)}, "ladder": [{"model": "/secret/a"}]},
        "checkpoints": [
            Checkpoint(
                label=label, name=label, tokens=tokens, probed=dataclasses.replace(probed, label=label, tokens=tokens)
            )
            for label, tokens in BUDGETS.items()
        ],
        "tasks": [task],
        "arms": [Arm(label="direct", kind="direct", rates=list(RATES)), Arm(label="held", kind="x", rates=list(RATES))],
        "direct": "direct",
        "scored": {
            task: [
                Scored(suite=suite, name=name, metric="m", unit=unit, higher_is_better=False)
                for suite, name, unit in (
                    ("keep", entry, "nats/token"),
                    ("learn", "mr", "perplexity of the class"),
                    ("validation", "mr", "perplexity of the class"),
                )
            ]
        },
        "sensitivities": [
            Sensitivity(
                model=label, kind="noise", label="", size=0.1, entry=source, metric="m", unit="nats/token",
                higher_is_better=False, before=base, after=base + 0.1, difference=0.1, interval=(0.05, 0.15),
                covers="seeds and samples", by_seed=[0.1, 0.1], samples_half=0.05, failed="",
            )
            for label, base in zip(BUDGETS, BASE, strict=True)
        ],
        "trends": [
            Trend(
                kind="noise", label="", size=0.1, entry=source, unit="nats/token", first=0.1, last=0.1,
                difference=Figure(value=0.0, over_samples=(-0.1, 0.1)),
            )
        ],
        "models": models,
        "rates": [
            TunedRate(
                task=task, arm=arm, checkpoint=label, tokens=tokens, rate=1e-5 if lost else 1e-4,
                interval=(1e-5, 1e-4), edge="smallest" if lost else "largest",
            )
            for arm in ("direct", "held")
            for label, tokens in BUDGETS.items()
            for lost in [arm == "held" and label == "4B"]
        ],
        "turns": [
            TunedTurn(**about, arm="direct", rate=rate, tokens=2e9, interval=(1e9, 2e9), after=0.4, verdict="turns")
            for rate in (None, 1e-4)
        ],
        "growth": [
            Growth(
                **about,
                arm="direct",
                rate=None,
                first=0.5,
                last=1.2,
                difference=Figure(value=0.7, over_samples=(0.5, 0.9)),
            ),
            Growth(**about, arm="held", rate=None, first=0.2, last=0.1, difference=Figure(value=-0.1)),
            Growth(
                **about,
                arm="held",
                rate=1e-4,
                first=0.2,
                last=math.inf,
                difference=Figure(value=math.inf),
            ),
        ],
        "shifts": [
            Shift(
                **about, arm="held", against="direct", rate=None, verdict="later",
                growth=Figure(value=-0.8, over_samples=(-1.0, -0.6)),
            )
        ],
        "notes": ["a note"],
        "hardware": {"processor": "made up"},
    }  # fmt: skip
    return OvertrainingRecord(**{**fields, **changes})
