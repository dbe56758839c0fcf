"""Made-up studies whose trials have exactly the gains that a test asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.comparison import Comparison
from holdfast.records.study import Objective, SeedRun, StudyRecord, TrialRecord

UNIGRAM = 10.0
"""Nats a token of the source by its tokens' frequencies alone; the start has 5, so that losing 1 is a fifth of it."""
NOISE = (-0.004, 0.001, 0.003)
"""What each seed adds to every gain: the mean is 0."""


def comparison(side: str, gain: float, half: float) -> Comparison:
    """The start against a result that is better by `gain` nats a token."""
    return Comparison(
        suite=side,
        name=f"{side} text",
        metric="nats_per_token",
        unit="nats/token",
        higher_is_better=False,
        n=150,
        before=5.0,
        after=5.0 - gain,
        difference=-gain,
        interval=(-gain - half, -gain + half),
        p_value=0.01,
        test="paired bootstrap",
    )


def answered(name: str, metric: str, gain: float, half: float = 0.005, suite: str = "keep") -> Comparison:
    """The start against a result that answers a larger share of the questions right."""
    return Comparison(
        suite=suite,
        name=name,
        metric=metric,
        unit="exact_match",
        higher_is_better=True,
        n=400,
        before=0.4,
        after=0.4 + gain,
        difference=gain,
        interval=(gain - half, gain + half),
        p_value=0.01,
        test="McNemar (exact)",
        primary=not metric.endswith("flexible-extract"),
    )


def objective(side: str) -> Objective:
    return Objective(
        side=side,
        entries=[(side, f"{side} text", "nats_per_token")],
        label=f"{side} text",
        unit="nats/token",
        higher_is_better=False,
    )


def trial(
    number: int,
    retention: Sequence[Mapping[str, Any]],
    target: float,
    source: float,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    half: float = 0.01,
    noise: float = 1.0,
    shifts: Sequence[float] = NOISE,
    beside: Sequence[Comparison] = (),
    **changes: Any,
) -> TrialRecord:
    """A trial with these mean gains; `half` is that of its paired intervals, `noise` scales how much seeds differ."""
    methods = [next(iter(method)) for method in retention]
    runs = []
    for place, seed in enumerate(seeds):
        shift = noise * shifts[place % 3] * (1 if len(seeds) > 1 else 0)
        compared = [comparison("learn", target + shift, half), comparison("keep", source - shift, half), *beside]
        runs.append(
            SeedRun(
                seed=seed,
                folder=f"runs/{number}/seed-{seed}",
                host="alpha",
                seconds=20.0,
                training_seconds=15.0,
                comparisons=compared,
                references={"keep/keep text/nats_per_token": {"unigram": UNIGRAM}},
            )
        )
    label = ", ".join(
        f"{name} {' '.join(str(v) for v in method[name].values())}".strip()
        for name, method in zip(methods, retention, strict=True)
    )
    fields: dict[str, Any] = {
        "number": number,
        "state": "complete",
        "kind": "+".join(methods) or "direct",
        "label": label or "direct fine-tuning",
        "params": {},
        "settings": {"retention": list(retention)},
        "runs": runs,
    }
    return TrialRecord(**{**fields, **changes})


def study(trials: Sequence[TrialRecord], *, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> StudyRecord:
    """A finished study of these trials."""
    target, source = objective("learn"), objective("keep")
    fields: dict[str, Any] = {
        "name": "made-up",
        "status": "finished",
        "created": "2026-01-02T03:04:05+00:00",
        "config": {},
        "seeds": list(seeds),
        "learn": target,
        "keep": source,
        "pairs": [(target, source)],
        "trials": list(trials),
        "selection": {"rule": "paper"},
    }
    return StudyRecord(**{**fields, **changes})


def annealing(weight: float, **more: Any) -> list[dict[str, Any]]:
    return [{"label_annealing": {"weight": weight, **more}}]


def l2(coefficient: float) -> list[dict[str, Any]]:
    return [{"l2": {"coefficient": coefficient}}]


REPLAY: list[dict[str, Any]] = [{"replay": {"data": "old.jsonl", "fraction": 0.1}}]


def direct(**changes: Any) -> TrialRecord:
    """Gains 1 on the target, loses 1 on the source: shares are the gains themselves."""
    return trial(0, [], 1.0, -1.0, **changes)


GRID = ((0.03, 0.99, -0.95), (0.3, 0.98, -0.5), (1, 0.95, -0.17), (3, 0.85, -0.05), (10, 0.3, -0.01))
"""Label annealing's weights with what each gains and loses: from direct fine-tuning to hardly any target."""
L2_GRID = ((0.001, 0.99, -0.97), (0.01, 0.95, -0.8), (0.1, 0.88, -0.65), (1, 0.3, -0.3))
Grid = Sequence[tuple[float, float, float]]


def grids(annealed: Grid = GRID, pulled: Grid = L2_GRID, **changes: Any) -> StudyRecord:
    """Direct fine-tuning, label annealing at these weights and L2 at these coefficients."""
    found = [(annealing(w), t, s) for w, t, s in annealed] + [(l2(c), t, s) for c, t, s in pulled]
    trials = [direct(**changes), *(trial(i, m, t, s, **changes) for i, (m, t, s) in enumerate(found, 1))]
    return study(trials, seeds=changes.get("seeds", (0, 1, 2)))


def others(direct: float, start: float) -> list[Comparison]:
    """A skill that rises with the target, and answers whose form is lost (0) or is the start's (1)."""
    return [
        answered("humaneval", "pass@1", 0.2 * direct, suite="related"),
        answered("gsm8k", "exact_match,strict-match", -0.25 + 0.24 * start),
        answered("gsm8k", "exact_match,flexible-extract", -0.05 + 0.05 * start),
    ]


def preferred(target: float, source: float) -> list[Comparison]:
    """What a judge prefers to the start's replies, on both sides."""
    return [
        answered("alpaca_eval", "win_rate", 0.4 * target, suite="learn"),
        answered("replies", "win_rate", 0.4 * source, suite="keep"),
    ]


WARM: Grid = ((0.03, 0.99, -0.95), (0.3, 0.98, -0.4), (1, 0.95, 0.03), (3, 0.85, 0.05), (10, 0.3, 0.06))


BOTH_GRID: Grid = ((0.03, 0.97, -0.1), (0.3, 0.96, -0.09), (1, 0.93, -0.05), (3, 0.85, -0.03), (10, 0.3, -0.01))
"""Replay with label annealing, by its weights, from replay alone on."""
MASKED: Grid = ((0.03, 0.99, -0.95), (0.3, 0.98, -0.4), (3, 0.97, -0.01), (30, 0.96, 0.0), (100, 0.96, 0.0))
"""With the target masked: never against the target, and levelling off."""


DULL: Grid = ((0.03, 0.99, -0.95), (0.3, 0.98, -0.8), (1, 0.95, -0.6), (3, 0.85, -0.4), (10, 0.3, -0.01))
"""The plain KL where masking is better."""


def variants_like(masked: Grid = MASKED, reverse: Grid = DULL, jsd: Grid = DULL) -> StudyRecord:
    """Direct fine-tuning, and label annealing with the plain KL and its variants."""
    lines: list[tuple[dict[str, Any], Grid]] = [
        ({}, DULL),
        ({"mask_target": True}, masked),
        ({"direction": "reverse"}, reverse),
        ({"direction": "jsd"}, jsd),
    ]
    found = [(annealing(w, **more), t, s) for more, grid in lines for w, t, s in grid]
    return study([direct(), *(trial(i, m, t, s) for i, (m, t, s) in enumerate(found, 1))])


def paper_like(**changes: Any) -> StudyRecord:
    """A study in which every claim of the paper holds, but for one: that label annealing learns more of the target than
    direct fine-tuning, for then direct fine-tuning is not converged."""
    found: list[tuple[list[dict[str, Any]], float, float]] = [([], 1.0, -1.0)]
    found += [(annealing(w), t, s) for w, t, s in GRID]
    found += [(l2(c), t, s) for c, t, s in L2_GRID]
    found += [(REPLAY, 0.97, -0.1), *(([*REPLAY, *annealing(w)], t, s) for w, t, s in BOTH_GRID)]
    found += [(annealing(w, temperature=2), t, s) for w, t, s in WARM]
    found += [(annealing(w, temperature=0.5), t, s - 0.02) for w, t, s in GRID]
    trials = [
        trial(i, m, t, s, beside=[*others(min(t, 0.9), 1 + s if not m else 1.0), *preferred(t, s)], **changes)
        for i, (m, t, s) in enumerate(found)
    ]
    return study(trials, seeds=changes.get("seeds", (0, 1, 2)))
