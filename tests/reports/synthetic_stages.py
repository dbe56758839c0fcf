"""Records of stages studies, made up: two tasks, pseudo and then actual forgetting, and a remedy that holds."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.stages import (
    ACTUAL,
    BASE,
    CONTROL,
    NONE,
    PSEUDO,
    RESTORED,
    TUNED,
    Along,
    Figure,
    MeasuredModel,
    StagesRecord,
    StageVerdict,
    TaskAbout,
    Transition,
)

TUNED_ACC = (0.70, 0.60, 0.50)
RESTORED_ACC = (0.80, 0.79, 0.65)
VERDICTS = (PSEUDO, PSEUDO, ACTUAL)
REASON = "It fell by 30.0 points, and a loss is left when the pattern is back."


def figure(value: float, half: float = 0.02) -> Figure:
    return Figure(value=value, interval=(value - half, value + half))


def figures(acc: float, plain: float, name: str) -> dict[str, dict[str, Figure]]:
    letters = {"acc": figure(acc), "mass": figure(0.97), "entropy": figure(1.2)}
    return {f"knowledge/{name}": letters, "probing/probing": {"nats_per_token": figure(plain)}}


def change(name: str, before: float, after: float) -> Comparison:
    return Comparison(
        suite="knowledge",
        name=name,
        metric="acc",
        unit="accuracy",
        higher_is_better=True,
        n=400,
        before=before,
        after=after,
        difference=after - before,
        interval=(after - before - 0.02, after - before + 0.02),
        p_value=0.001,
        test="McNemar (exact)",
    )


def stages(*, name: str = "facts", remedy: bool = False, **changes: Any) -> StagesRecord:
    """A study of three checkpoints.

    Args:
        name: of the task that is judged.
        remedy: with a second arm that forgets nothing.
        changes: of the record's fields.
    """
    arms = ["direct", *(["remedy"] if remedy else [])]
    task = f"knowledge/{name}"
    models = [
        MeasuredModel(role=role, state="complete", figures=figures(0.80, 2.4, name), curve=curve, tokens=5000)
        for role, curve in ((BASE, []), (CONTROL, [(0.0, 2.4), (1.0, 2.41)]))
    ]
    verdicts, transitions = [], []
    for arm in arms:
        held = arm == "remedy"
        for k in range(3):
            tuned, restored = (0.80, 0.80) if held else (TUNED_ACC[k], RESTORED_ACC[k])
            about: dict[str, Any] = {"arm": arm, "place": k + 1, "state": "complete"}
            models += [
                MeasuredModel(role=TUNED, figures=figures(tuned, 2.8, name), **about),
                MeasuredModel(
                    role=RESTORED,
                    figures=figures(restored, 2.42, name),
                    curve=[(0.0, 2.8), (0.5, 2.5), (1.0, 2.42)],
                    seconds=60.0,
                    tokens=5000,
                    **about,
                ),
            ]
            verdicts.append(
                StageVerdict(
                    arm=arm,
                    place=k + 1,
                    task=task,
                    verdict=NONE if held else VERDICTS[k],
                    reason="It did not change." if held else REASON,
                    tuned=change(name, 0.80, tuned),
                    restored=change(name, 0.80, restored),
                    against_control=change(name, 0.80, restored),
                    came_back=None if held else figure((restored - tuned) / (0.80 - tuned)),
                )
            )
        transitions.append(Transition(arm=arm, task=task, place=None if held else 3, interval=(3, None)))
    record = StagesRecord(
        name="study",
        status="finished",
        created="2026-11-24T00:00:00+00:00",
        finished=None,
        config={"base": "base", "margin": ["1pt"], "tolerance": 0.05},
        arms=arms,
        checkpoints={arm: ["epoch 1", "epoch 2", "epoch 3"] for arm in arms},
        tasks=[
            TaskAbout(suite="knowledge", name=name, metric="acc", unit="accuracy", higher_is_better=True, chance=0.25)
        ],
        models=models,
        verdicts=verdicts,
        transitions=transitions,
        along={arm: [point(step, mass, name) for step, mass in ((0, 0.1), (2, 0.9), (30, 0.98))] for arm in arms},
    )
    return dataclasses.replace(record, **changes)


def point(step: int, mass: float, name: str) -> Along:
    metric = Metric(value=mass, n=400, unit="probability", higher_is_better=True, interval=(mass - 0.01, mass + 0.01))
    about = {"suite": "knowledge", "name": name, "kind": "lettered", "primary": "mass", "key": "k"}
    return Along(step=step, evaluations=[Evaluation(metrics={"mass": metric}, settings={}, model={}, **about)])


SELECTED: dict[str, Any] = {
    "counts": {
        **{name: {"passages": 40, "tokens": 5000, "nats_per_token": 2.1} for name in ("restoring", "probing", "all")},
        "overlapping": 3,
    },
    "options": {"overlap": "keep"},
    "questions": {"count": 400, "files": ["q.jsonl"], "short": 2},
}
"""Of selection.json what the page shows."""
