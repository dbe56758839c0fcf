"""Records of sequence studies, made up: two tasks or three, arms with the shape of the paper's figures."""

from __future__ import annotations

from typing import Any

from holdfast.records.sequence import ArmResult, Estimate, SequenceModel, SequenceRecord, TaskScore


def about(value: float, half: float = 0.02) -> Estimate:
    """A figure of two seeds."""
    return Estimate(
        value=value, interval=(value - half, value + half), by_seed={"0": value - half / 2, "1": value + half / 2}
    )


def sequence(tasks: tuple[str, ...] = ("math", "law"), *, status: str = "finished", **changes: Any) -> SequenceRecord:
    """Pythia 2.8B's figures (Soup to Go, section 5), accuracies of the last task and of the one before; other tasks
    have figures of the same kind."""
    last = tasks[-1]
    figures = [
        ("sequential fine-tuning", "sequential", None, 0.0, 0.76, 90.99),
        ("single task", "single", None, 0.38, 0.75, None),
        ("multitask training", "multitask", None, 0.40, 0.76, 178.96),
        ("replay, fraction 0.1", "replay", 0.1, 0.33, 0.72, 82.21),
        ("SFA, p 1", "sfa", 1.0, 0.048, 0.74, 45.5),
        ("SFA, p 0.5", "sfa", 0.5, 0.13, 0.69, 35.38),
        ("SFA, p 0.25", "sfa", 0.25, 0.31, 0.59, 24.16),
        ("merge: task arithmetic, weights 0.5/0.5", "merge", 0.5, 0.0, 0.68, None),
    ]
    arms, models = [], []
    for number, (label, kind, strength, old, new, distance) in enumerate(figures):
        staged = kind in ("sequential", "replay", "sfa")
        names = [f"m{number}-{i}" for i in range(len(tasks) if staged or kind == "single" else 1)]
        for stage, name in enumerate(names):
            curve = [(0.0, 1.0), (0.5, 1.6 - old), (1.0, 2.0 - 2 * old)] if stage or kind == "single" else []
            for seed in (0, 1):
                models.append(
                    SequenceModel(
                        name=name,
                        label=f"{label}: {', '.join(tasks[: stage + 1])}",
                        seed=seed,
                        trained=list(tasks[: stage + 1]),
                        folder=f"runs/{name}/seed-{seed}",
                        state="complete",
                        tokens=100_000,
                        seconds=60.0,
                        distance=distance,
                        curves=dict.fromkeys(tasks[:-1], curve) if curve else {},
                    )
                )
        scores = {t: about(new if t == last else old) for t in tasks}
        against = {t: about(new - 0.76 if t == last else old) for t in tasks} if number else {}
        matrix = [[0.05] * len(tasks)] + [
            [0.38 if t <= s else 0.05 for t in range(len(tasks))] for s in range(len(tasks))
        ]
        measures = {
            "average_accuracy": about(0.4),
            "backward_transfer": about(old - 0.38),
            "forgetting": about(0.38 - old),
        }
        arms.append(
            ArmResult(
                arm=label,
                kind=kind,
                old_data=kind in ("single", "multitask", "replay", "merge"),
                strength=strength,
                order=list(tasks),
                retention={"sfa": [{"sfa": {"p": strength}}], "replay": [{"replay": {"fraction": 0.1}}]}.get(kind, []),
                models=names,
                scores=scores,
                against=against,
                distance=None if distance is None else about(distance, 1.0),
                matrix=matrix if staged else [],
                measures={**measures, "forward_transfer": about(0.01)} if staged else {},
                measures_against={"average_accuracy": about(0.1), "forgetting": about(-old)}
                if staged and number
                else {},
            )
        )
    given: dict[str, Any] = {
        "name": "math-law",
        "status": status,
        "created": "2026-01-01T00:00:00Z",
        "finished": "2026-01-01T01:00:00Z",
        "config": {"train": {"learning_rate": 1e-5}},
        "tasks": {
            t: TaskScore(suite=t, name=f"{t}_test", metric="acc", unit="accuracy", higher_is_better=True, before=0.05)
            for t in tasks
        },
        "orders": [list(tasks)],
        "seeds": [0, 1],
        "models": models,
        "arms": arms,
        "versions": {"holdfast": "0.1.0"},
        "hardware": {"cpu": "two cores"},
    }
    return SequenceRecord(**{**given, **changes})
