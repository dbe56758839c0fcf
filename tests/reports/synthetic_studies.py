"""Studies as a sweep would leave them, made up: every state of a trial, several entries a side, seeds that differ."""

from __future__ import annotations

import dataclasses
import datetime
import random
from collections.abc import Sequence
from typing import Any

from holdfast.records.comparison import Comparison
from holdfast.records.study import Objective, SeedRun, StudyRecord, TrialRecord

START = {"answers": 3.2145, "quiz": 0.31, "prose": 2.9013, "code": 1.8422, "arc_easy": 0.4912}
UNITS = {
    "answers": ("learn", "nats_per_token", "nats/token", False, 400),
    "quiz": ("learn", "acc", "accuracy", True, 570),
    "prose": ("keep", "nats_per_token", "nats/token", False, 500),
    "code": ("keep", "nats_per_token", "nats/token", False, 300),
    "arc_easy": ("keep", "acc", "accuracy", True, 570),
}
BEGAN = datetime.datetime(2026, 3, 2, 9, 0, tzinfo=datetime.UTC)


def objective(side: str, *names: str) -> Objective:
    """The mean of entries of `UNITS`."""
    _, _, unit, higher, _ = UNITS[names[0]]
    entries = [(UNITS[n][0], n, UNITS[n][1]) for n in names]
    return Objective(
        side=side,
        entries=entries,
        label=names[0] if len(names) == 1 else f"mean of {', '.join(names)}",
        unit=unit,
        higher_is_better=higher,
    )


def compared(name: str, gain: float, half: float = 0.01, **changes: Any) -> Comparison:
    """The start against a result that is better by `gain`, with a paired interval of `half` on either side."""
    suite, metric, unit, higher, n = UNITS[name]
    difference = gain if higher else -gain
    fields: dict[str, Any] = {
        "suite": suite,
        "name": name,
        "metric": metric,
        "unit": unit,
        "higher_is_better": higher,
        "n": n,
        "before": START[name],
        "after": START[name] + difference,
        "difference": difference,
        "interval": (difference - half, difference + half),
        "p_value": 0.01,
        "test": "paired bootstrap",
    }
    return Comparison(**{**fields, **changes})


def seed_run(seed: int, comparisons: list[Comparison], **changes: Any) -> SeedRun:
    fields: dict[str, Any] = {
        "folder": f"runs/k/seed-{seed}",
        "host": "alpha",
        "seconds": 120.0,
        "training_seconds": 90.0,
    }
    return SeedRun(**{**fields, "seed": seed, "comparisons": comparisons, **changes})


def trial(
    number: int, kind: str, label: str, params: dict[str, Any], runs: list[SeedRun], **changes: Any
) -> TrialRecord:
    began = BEGAN + datetime.timedelta(minutes=7 * (number // 2))
    fields: dict[str, Any] = {
        "state": "complete",
        "settings": {"learning_rate": 1e-4},
        "worker": f"{('alpha', 'beta')[number % 2]}:{4100 + number % 2}",
        "started": began.isoformat(),
        "finished": (began + datetime.timedelta(minutes=6)).isoformat(),
        "overhead": 1.5,
    }
    return TrialRecord(number=number, kind=kind, label=label, params=params, runs=runs, **{**fields, **changes})


def record(trials: Sequence[TrialRecord], *, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> StudyRecord:
    target, source = objective("learn", "answers"), objective("keep", "prose", "code")
    fields: dict[str, Any] = {
        "name": "medical answers",
        "status": "finished",
        "created": BEGAN.isoformat(),
        "finished": (BEGAN + datetime.timedelta(hours=2)).isoformat(),
        "config": {"search": {"sampler": "grid"}},
        "seeds": list(seeds),
        "learn": target,
        "keep": source,
        "pairs": [
            (target, objective("keep", "prose")),
            (target, objective("keep", "code")),
            (objective("learn", "quiz"), objective("keep", "arc_easy")),
        ],
        "trials": list(trials),
        "selection": {"rule": "paper"},
        "storage": "sqlite:///study.db",
        "versions": {"holdfast": "0.1.0", "torch": "2.13.0"},
        "hardware": {"device": "cpu", "cpu": "2 cores"},
        "notes": ["2 documents of code were longer than the window and were cut."],
    }
    return StudyRecord(**{**fields, **changes})


def points_study(
    points: Sequence[Sequence[tuple[float, float]]], *, halves: float = 0.0, direct: int | None = None, **changes: Any
) -> StudyRecord:
    """Trials with exactly these (target, source) gains, one a seed; one entry a side.

    Args:
        points: by trial, then by seed.
        halves: half-width of every paired interval.
        direct: number of the trial that is direct fine-tuning.
    """
    seeds = list(range(len(points[0])))
    trials = [
        trial(
            i,
            "direct" if i == direct else "label_annealing",
            "direct" if i == direct else f"trial {i}",
            {},
            [
                seed_run(s, [compared("answers", t, halves), compared("prose", k, halves)])
                for s, (t, k) in zip(seeds, gains, strict=True)
            ],
        )
        for i, gains in enumerate(points)
    ]
    return record(trials, seeds=seeds, **{"keep": objective("keep", "prose"), **changes})


def one_seed(points: Sequence[tuple[float, float]], **changes: Any) -> StudyRecord:
    return points_study([[p] for p in points], **changes)


def measured_runs(
    rng: random.Random, seeds: Sequence[int], target: float, source: float, *, spread: float = 0.012, key: str = "k"
) -> list[SeedRun]:
    """Runs of every entry around a gain on each side."""
    runs = []
    for seed in seeds:
        t, s = target + rng.gauss(0, spread), source + rng.gauss(0, spread)
        rows = [
            compared("answers", t),
            compared("prose", s * 1.2),
            compared("code", s * 0.8),
            compared("quiz", 0.5 * t, 0.03),
        ]
        rows.append(compared("arc_easy", 0.4 * s, 0.035))
        seconds = 100 + rng.random() * 30
        runs.append(
            seed_run(seed, rows, folder=f"runs/{key}/seed-{seed}", seconds=seconds, training_seconds=0.7 * seconds)
        )
    return runs


def frontier(*, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> StudyRecord:
    """Direct, label annealing at 6 weights and 2 temperatures, L2, replay, SFA; one pruned, one failed, one lost and
    continued, one running, one waiting."""
    rng = random.Random(3)
    trials: list[TrialRecord] = []

    def add(
        kind: str, label: str, params: dict[str, Any], target: float = 0.0, source: float = 0.0, **more: Any
    ) -> None:
        runs = more.pop("runs", None)
        number = len(trials)
        trials.append(
            trial(
                number,
                kind,
                label,
                params,
                measured_runs(rng, seeds, target, source, key=f"{number:04x}") if runs is None else runs,
                **more,
            )
        )

    add("direct", "direct fine-tuning", {}, 0.52, -0.31)
    for temperature in (1.0, 2.0):
        for weight in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
            hold = weight * (0.9 if temperature == 2.0 else 1.0)
            params = {"retention.label_annealing.weight": weight, "retention.label_annealing.temperature": temperature}
            label = f"label annealing, weight {weight:g}, temperature {temperature:g}"
            add("label_annealing", label, params, 0.52 / (1 + 0.12 * hold), -0.31 / (1 + 2.4 * hold))
    for coefficient in (0.001, 0.01, 0.1):
        hold = 60 * coefficient
        add(
            "l2",
            f"L2, coefficient {coefficient:g}",
            {"retention.l2.coefficient": coefficient},
            0.52 / (1 + 0.6 * hold),
            -0.31 / (1 + 0.8 * hold),
        )
    add("replay", "replay, fraction 0.1", {"retention.replay.fraction": 0.1}, 0.5, -0.09)
    add("sfa", "SFA, p 0.25", {"retention.sfa.p": 0.25}, 0.41, -0.14)
    add(
        "l2",
        "L2, coefficient 1",
        {"retention.l2.coefficient": 1.0},
        state="pruned",
        runs=[],
        reason="at half of seed 0 no better than the start",
    )
    add(
        "label_annealing",
        "label annealing, weight 100, temperature 1",
        {"retention.label_annealing.weight": 100.0, "retention.label_annealing.temperature": 1.0},
        state="failed",
        runs=[],
        reason="the loss became NaN at step 12",
    )
    lost = len(trials)
    add(
        "replay",
        "replay, fraction 0.3",
        {"retention.replay.fraction": 0.3},
        state="lost",
        runs=[],
        continued_by=lost + 1,
        finished=None,
    )
    add("replay", "replay, fraction 0.3", {"retention.replay.fraction": 0.3}, 0.48, -0.05)
    add(
        "sfa",
        "SFA, p 0.5",
        {"retention.sfa.p": 0.5},
        state="running",
        runs=measured_runs(rng, seeds[:1], 0.3, -0.1, key="run"),
        finished=None,
        started=(BEGAN + datetime.timedelta(minutes=84)).isoformat(),
    )
    add(
        "sfa",
        "SFA, p 0.75",
        {"retention.sfa.p": 0.75},
        state="waiting",
        runs=[],
        worker="",
        started=None,
        finished=None,
        settings={},
    )
    return record(trials, seeds=seeds, **{"status": "running", "finished": None, **changes})


def finished_frontier(*, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> StudyRecord:
    """The same without what is under way."""
    whole = frontier(seeds=seeds)
    kept = [t for t in whole.trials if t.state not in ("running", "waiting")]
    return dataclasses.replace(
        whole,
        **{
            "trials": kept,
            "status": "finished",
            "finished": (BEGAN + datetime.timedelta(hours=2)).isoformat(),
            **changes,
        },
    )


def nothing_finished() -> StudyRecord:
    trials = [
        trial(0, "direct", "direct fine-tuning", {}, [], state="running", finished=None),
        trial(
            1,
            "l2",
            "L2, coefficient 0.01",
            {"retention.l2.coefficient": 0.01},
            [],
            state="waiting",
            worker="",
            started=None,
            finished=None,
            settings={},
        ),
    ]
    return record(trials, status="running", finished=None, notes=[])


def large(count: int = 200, *, seeds: Sequence[int] = (0, 1, 2)) -> StudyRecord:
    """A random search over learning rate, weight and temperature, with methods in between and a few trials that went
    nowhere."""
    rng = random.Random(11)
    trials = [trial(0, "direct", "direct fine-tuning", {"learning_rate": 1e-4}, measured_runs(rng, seeds, 0.52, -0.31))]
    for number in range(1, count):
        rate = 10 ** rng.uniform(-5, -3.3)
        kind = rng.choice(["label_annealing", "label_annealing", "l2", "replay", "sfa"])
        key = {"label_annealing": "weight", "l2": "coefficient", "replay": "fraction", "sfa": "p"}[kind]
        strength = 10 ** rng.uniform(-1.5, 1.5) if key in ("weight", "coefficient") else rng.random()
        good = {"label_annealing": 2.4, "l2": 0.7, "replay": 4.0, "sfa": 1.5}[kind]
        reach = min(1.0, rate / 1e-4) ** 0.5
        params = {"learning_rate": rate, f"retention.{kind}.{key}": strength}
        wild = number % 61 == 0
        runs = measured_runs(
            rng,
            seeds,
            reach * 0.52 / (1 + 0.15 * strength),
            -6.0 if wild else -0.31 * reach / (1 + good * strength),
            key=f"{number:04x}",
        )
        label = f"{kind.replace('_', ' ')}, {key} {strength:.3g}, learning rate {rate:.2g}"
        more: dict[str, Any] = (
            {"state": "pruned", "reason": "no better than the start at half", "runs": []}
            if number % 17 == 0
            else {"runs": runs}
        )
        trials.append(trial(number, kind, label, params, **more))
    return record(trials, seeds=seeds, sampler="random", config={"search": {"sampler": "random", "trials": count}})
