"""The rules for the claims of "Overtrained Language Models", each on a record that it holds for, one that it does not,
and one that cannot tell."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from holdfast.papers.claims.claim import Claim
from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN
from holdfast.papers.overtraining.claims import LANGUAGE, PICTURES, STATEMENTS, check_claims
from holdfast.papers.overtraining.record import (
    Arm,
    Checkpoint,
    OvertrainingRecord,
    Scored,
    Shift,
    TunedModel,
    TunedRate,
    TunedTurn,
)
from holdfast.records.figure import Figure
from holdfast.records.probe import Inflection, Line, Sensitivity, Sharpness
from holdfast.records.study import SampleCorrelation

BUDGETS = (1e6, 2e6, 4e6, 8e6)
LABELS = ("1M", "2M", "4M", "8M")
RATES = (1e-3, 3e-3, 1e-2)
KEPT, TARGET = "keep/people", "learn/problems"
GROWING = (0.1, 0.2, 0.4, 0.8)


def figure(value: float, samples_half: float = 0.0) -> Figure:
    """Three seeds near each other."""
    return Figure.over_seeds({s: value + d for s, d in enumerate((-0.001, 0.0, 0.001))}, samples_half)


def model(rate: float, place: int, cost: float, *, arm: str = "direct", **changes: Any) -> TunedModel:
    away = {str(s): 1000 * rate * (1 + d) for s, d in enumerate((-0.01, 0.0, 0.01))}
    fields: dict[str, Any] = {
        "task": "problems",
        "arm": arm,
        "rate": rate,
        "checkpoint": LABELS[place],
        "state": "complete",
        "seeds": [0, 1, 2],
        "scores": {KEPT: Figure(value=1 + cost), TARGET: Figure(value=0.5)},
        "costs": {KEPT: figure(cost), TARGET: figure(-0.5)},
        "distance_by_seed": away,
    }
    return TunedModel(**{**fields, **changes})


WORSE = 1e-9
"""Chance that a budget outside of an interval is as good as the best."""


def chances(low: float, high: float, worse: float = WORSE) -> dict[str, Any]:
    found = [4.0 if b == low else 1.0 if low < b <= high else worse for b in BUDGETS]
    return {"tokens": low, "interval": (low, high), "budgets": list(BUDGETS), "chances": found}


def turn(
    rate: float | None, verdict: str, low: float, high: float, *, entry: str = KEPT, arm: str = "direct"
) -> TunedTurn:
    about: dict[str, Any] = {"task": "problems", "arm": arm, "entry": entry, "unit": "nats/token", "after": 0.1}
    return TunedTurn(rate=rate, verdict=verdict, **chances(low, high), **about)


def inflection(kind: str, size: float, verdict: str, low: float, high: float, worse: float = WORSE) -> Inflection:
    about: dict[str, Any] = {"kind": kind, "label": "", "size": size, "entry": KEPT, "unit": "nats/token"}
    return Inflection(verdict=verdict, after=0.1, **chances(low, high, worse), **about)


def noise(place: int, size: float, cost: float) -> Sensitivity:
    before = 2.0 - 0.2 * place
    return Sensitivity(
        model=LABELS[place], kind="noise", label="", size=size, entry=KEPT, metric="nats_per_token", unit="nats/token",
        higher_is_better=False, before=before, after=before + cost, difference=cost, interval=None, covers="seeds only",
        by_seed=[cost - 0.001, cost, cost + 0.001], samples_half=0.0, failed="",
    )  # fmt: skip


def sharpness(near: float, far: float) -> list[Sharpness]:
    """Lines whose loss deviates from the quadratic (of curvature 2: size squared) by these shares of it."""
    losses = [(0.0, 1.0), (0.1, 1 + 0.01 * (1 + near)), (1.0, 1 + 1.0 * (1 + far))]
    line = Line(label="noise, seed 0", slope=0.0, curvature=2.0, norm=1.0, losses=losses)
    about: dict[str, Any] = {"documents": 1, "tokens": 9, "loss": 1.0, "gradient_norm": 1.0, "trace": 1.0}
    return [Sharpness(model=label, trace_interval=None, lines=[line], **about) for label in LABELS[:3]]


def shift(kind: str, verdict: str, growth: float, half: float = 0.05) -> Shift:
    return Shift(
        task="problems", arm=kind, against="direct", rate=None, entry=KEPT, unit="nats/token", verdict=verdict,
        growth=Figure.over_seeds(dict.fromkeys(range(3), growth), half),
    )  # fmt: skip


@pytest.fixture
def record() -> OvertrainingRecord:
    """A study in which everything is as the paper says."""
    largest = BUDGETS[-1]
    return OvertrainingRecord(
        name="world",
        status="finished",
        created="",
        finished="",
        config={"seeds": [0, 1, 2]},
        checkpoints=[Checkpoint(label=n, name=n, tokens=t) for n, t in zip(LABELS, BUDGETS, strict=True)],
        tasks=["problems"],
        arms=[Arm(label=k, kind=k, rates=list(RATES)) for k in ("direct", "label_annealing", "l2", "sfa")],
        direct="direct",
        scored={
            "problems": [
                Scored(
                    suite=k.split("/")[0], name=k.split("/")[1], metric="m", unit="nats/token", higher_is_better=False
                )
                for k in (KEPT, TARGET)
            ]
        },
        sensitivities=[noise(n, size, 10 * size * c) for size in (0.1, 0.3) for n, c in enumerate(GROWING)],
        inflections=[
            inflection("as-it-is", 0.0, "does not turn", largest, largest),
            inflection("noise", 0.1, "does not turn", largest, largest),
            inflection("noise", 0.3, "turns", 2e6, 4e6),
        ],
        sharpness=sharpness(0.0, 0.5),
        models=[model(rate, n, 100 * rate * c) for rate in RATES for n, c in enumerate(GROWING)],
        rates=[
            TunedRate(task="problems", arm="direct", checkpoint=n, tokens=t, rate=3e-3, interval=(3e-3, 3e-3), edge="")
            for n, t in zip(LABELS, BUDGETS, strict=True)
        ],
        turns=[
            turn(None, "turns", 2e6, 4e6),
            turn(None, "turns", 4e6, 4e6, entry=TARGET),
            turn(1e-3, "does not turn", largest, largest),
            turn(1e-2, "turns", 1e6, 2e6),
            *(turn(None, "does not turn", largest, largest, arm=k) for k in ("label_annealing", "l2", "sfa")),
        ],
        shifts=[shift(kind, "later", -0.3) for kind in ("label_annealing", "l2", "sfa")],
    )  # fmt: skip


def judged(record: OvertrainingRecord, **changes: Any) -> dict[str, Claim]:
    return {c.number: c for c in check_claims({"budgets": dataclasses.replace(record, **changes)})}


def verdicts(record: OvertrainingRecord, **changes: Any) -> dict[str, str]:
    return {number: claim.verdict for number, claim in judged(record, **changes).items()}


def test_a_study_as_the_paper_has_it(record: OvertrainingRecord) -> None:
    found = judged(record)
    assert {n: c.verdict for n, c in found.items()} == {s.number: HOLDS for s in STATEMENTS if s.recipe == LANGUAGE}
    assert all(c.family is not None and c.recipe == "budgets" for c in found.values())
    assert all(s.rule.says and s.paper for s in STATEMENTS)


def test_the_checkpoint_itself(record: OvertrainingRecord) -> None:
    others = record.inflections[1:]
    turns = inflection("as-it-is", 0.0, "turns", 2e6, 4e6)
    assert verdicts(record, inflections=[turns, *others])["1"] == FAILS
    unsure = inflection("as-it-is", 0.0, "cannot tell", 4e6, 8e6)
    assert verdicts(record, inflections=[unsure, *others])["1"] == UNKNOWN


def test_costs_that_go_back(record: OvertrainingRecord) -> None:
    """One step back by more than the margin is no monotone rise, at any size and rate."""
    back = (0.1, 0.5, 0.2, 0.8)
    some = [noise(n, 0.1, c) for n, c in enumerate(GROWING)] + [noise(n, 0.3, c) for n, c in enumerate(back)]
    assert verdicts(record, sensitivities=some)["2"] == FAILS
    models = [m for m in record.models if m.rate != 1e-2] + [model(1e-2, n, c) for n, c in enumerate(back)]
    assert verdicts(record, models=models)["3"] == FAILS
    wide = [dataclasses.replace(s, samples_half=1.0) for s in record.sensitivities]
    assert verdicts(record, sensitivities=wide)["2"] == UNKNOWN


def test_a_rate_at_which_a_model_diverged_is_not_judged(record: OvertrainingRecord) -> None:
    lost = model(3e-2, 3, 0.0, diverged={"0": "NaN"}, scores={}, costs={}, distance_by_seed={})
    more = [*record.models, lost, *(model(3e-2, n, 1.0 - n / 10) for n in range(3))]
    assert verdicts(record, models=more) == verdicts(record)
    assert judged(record, models=[lost])["3"].verdict == UNKNOWN
    overflown = [dataclasses.replace(s, failed="not finite") if s.size == 0.3 else s for s in record.sensitivities]
    assert judged(record, sensitivities=overflown)["2"].verdict == UNKNOWN


def test_turning_points(record: OvertrainingRecord) -> None:
    largest = BUDGETS[-1]
    calm = [*record.inflections[:2], inflection("noise", 0.3, "does not turn", largest, largest)]
    found = verdicts(record, inflections=calm)
    assert found["4a"] == FAILS and found["4b"] == UNKNOWN, "where neither turns nobody knows which is first"
    reverse = [record.inflections[0], inflection("noise", 0.1, "turns", 1e6, 1e6), record.inflections[2]]
    assert verdicts(record, inflections=reverse)["4b"] == FAILS
    turns = [
        turn(None, "does not turn", largest, largest),
        turn(1e-3, "turns", 1e6, 1e6),
        turn(1e-2, "turns", 2e6, 2e6),
    ]
    found = verdicts(record, turns=turns)
    assert (found["4c"], found["4d"], found["5a"], found["5b"], found["8"]) == (HOLDS, FAILS, FAILS, UNKNOWN, FAILS)
    overlapping = [turn(None, "cannot tell", 2e6, 8e6), turn(1e-3, "cannot tell", 4e6, 8e6)]
    found = verdicts(record, turns=overlapping)
    assert (found["5a"], found["8"], found["4c"], found["4d"]) == (UNKNOWN,) * 4


def test_turning_points_at_the_level_of_the_family(record: OvertrainingRecord) -> None:
    """What is told at 95 % by a hair does not stand with more claims beside it, and two points share one error."""
    largest = BUDGETS[-1]
    found = judged(record, inflections=[inflection("as-it-is", 0.0, "", largest, largest, worse=0.04)])
    assert (found["1"].verdict, found["1"].family) == (HOLDS, False)
    clear = judged(record, inflections=[inflection("as-it-is", 0.0, "", largest, largest, worse=1e-6)])
    assert (clear["1"].verdict, clear["1"].family) == (HOLDS, True)

    def noises(worse: float) -> list[Inflection]:
        ends = (("", 0.1, largest, largest), ("", 0.3, 2e6, 4e6))
        return [inflection("noise", size, "", low, high, worse) for _, size, low, high in ends]

    assert [verdicts(record, inflections=noises(w))["4b"] for w in (0.04, 0.02)] == [UNKNOWN, HOLDS]
    assert [judged(record, inflections=noises(w))["4a"].family for w in (0.02, 1e-6)] == [False, True]


def test_distances(record: OvertrainingRecord) -> None:
    def with_distances(of: Any) -> list[TunedModel]:
        found = []
        for m in record.models:
            away = of(m.rate, LABELS.index(m.checkpoint))
            found.append(dataclasses.replace(m, distance_by_seed={s: away * (1 + int(s) / 1000) for s in "012"}))
        return found

    assert verdicts(record, models=with_distances(lambda rate, n: rate**0.5))["6"] == FAILS
    assert verdicts(record, models=with_distances(lambda rate, n: rate * 2**n))["6"] == FAILS
    assert verdicts(record, models=with_distances(lambda rate, n: rate**1.1 * 1.02**n))["6"] == HOLDS
    assert verdicts(record, models=[dataclasses.replace(m, distance_by_seed={}) for m in record.models])["6"] == UNKNOWN


def test_the_quadratic(record: OvertrainingRecord) -> None:
    assert verdicts(record, sharpness=sharpness(0.5, 0.5))["7"] == FAILS
    assert verdicts(record, sharpness=sharpness(0.0, -0.5))["7"] == FAILS
    assert verdicts(record, sharpness=[])["7"] == UNKNOWN
    lost = judged(record, sharpness=[*sharpness(0.0, 0.5)[:2], *sharpness(0.0, math.inf)[:1]])["7"]
    assert lost.verdict == UNKNOWN and "not finite at an end of the line of 1 checkpoints" in lost.reason


def test_what_retention_does(record: OvertrainingRecord) -> None:
    shifts = [shift("label_annealing", "earlier", 0.3), shift("l2", "cannot tell", -0.03)]
    earlier = turn(None, "turns", 1e6, 1e6, arm="label_annealing")
    same = turn(None, "cannot tell", 4e6, 8e6, arm="l2")
    found = judged(record, shifts=shifts, turns=[*record.turns[:4], earlier, same])
    assert [found[f"9{letter}"].verdict for letter in "abcdef"] == [FAILS, FAILS, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]
    assert "Fine-tuning with sfa at tuned rates was not measured" in found["9e"].reason
    (figure,) = found["9d"].figures
    assert figure.interval == pytest.approx((-0.08, 0.02)) and figure.needs == "below -0.02"


def test_what_has_to_be_so_before(record: OvertrainingRecord) -> None:
    edge = [dataclasses.replace(record.rates[0], edge="largest"), *record.rates[1:]]
    found = judged(record, rates=edge)
    tuned = {"5a", "5b", "8", *(f"9{letter}" for letter in "abcdef")}
    assert {n for n, c in found.items() if c.verdict == UNKNOWN} == tuned
    assert "The rule by itself: holds" in found["5a"].reason and "try more rates on that side" in found["5a"].reason
    lazy = [
        dataclasses.replace(m, costs={**m.costs, TARGET: figure(-0.05)}) if m.checkpoint == "1M" else m
        for m in record.models
    ]
    assert {n for n, v in verdicts(record, models=lazy).items() if v == UNKNOWN} == tuned
    flat = [dataclasses.replace(s, before=2.0) for s in record.sensitivities]
    assert {n for n, v in verdicts(record, sensitivities=flat).items() if v == HOLDS} == {"1", "7"}


def test_fine_tunings_that_are_still_to_come(record: OvertrainingRecord) -> None:
    waiting = [*record.models, dataclasses.replace(record.models[0], rate=9e-3, state="waiting")]
    assert set(verdicts(record, models=waiting).values()) == {UNKNOWN}


# --------------------------------------------------------------------------------------------------- models that see

SEES, CHANCE = "learn/vision", 0.4
SCORES = (0.55, 0.6, 0.65, 0.7)


def looking(arm: str, rate: float, place: int, score: float, lost: float) -> TunedModel:
    """A model with a VLM score, and what it lost of language."""
    return model(
        rate, place, lost, arm=arm,
        scores={KEPT: Figure(value=3.0 - 0.2 * place + lost), SEES: Figure(value=score)},
        scores_alone={SEES: figure(score, 0.01)},
        costs={KEPT: figure(lost), SEES: Figure(value=CHANCE - score)},
    )  # fmt: skip


@pytest.fixture
def pictures(record: OvertrainingRecord) -> OvertrainingRecord:
    """A study of pictures in which everything is as the paper says, and every method keeps more."""
    about: dict[str, Any] = {"name": "vision", "metric": "acc", "unit": "accuracy", "higher_is_better": True}
    kinds = ("direct", "label_annealing", "sfa", "LoRA")
    return dataclasses.replace(
        record,
        arms=[Arm(label=k, kind=k, rates=list(RATES)) for k in kinds],
        scored={"problems": [record.scored["problems"][0], Scored(suite="learn", chance=CHANCE, **about)]},
        sensitivities=[], inflections=[], sharpness=[], turns=[], shifts=[],
        models=[
            looking(k, rate, n, score, 60 * rate * cost * (1.0 if k == "direct" else 0.3))
            for k in kinds for rate in RATES for n, (score, cost) in enumerate(zip(SCORES, GROWING, strict=True))
        ],
    )  # fmt: skip


def of_pictures(record: OvertrainingRecord, **changes: Any) -> dict[str, str]:
    return {c.number: c.verdict for c in check_claims({PICTURES: dataclasses.replace(record, **changes)})}


def test_models_that_see_as_the_paper_has_them(pictures: OvertrainingRecord) -> None:
    asked = [s.number for s in STATEMENTS if s.recipe == PICTURES]
    assert of_pictures(pictures) == dict.fromkeys(asked, HOLDS) and asked == [f"10{letter}" for letter in "abcdefg"]
    assert {c.verdict for c in check_claims({PICTURES: None})} == {UNKNOWN}


def changed_at(record: OvertrainingRecord, arm: str, place: int, score: float, lost: float) -> list[TunedModel]:
    wanted = (arm, LABELS[place])
    return [looking(arm, m.rate, place, score, lost) if (m.arm, m.checkpoint) == wanted else m for m in record.models]


def test_scores_and_costs_along_the_budget(pictures: OvertrainingRecord) -> None:
    falling = of_pictures(pictures, models=changed_at(pictures, "direct", 3, 0.5, 0.5))
    assert (falling["10a"], falling["10c"]) == (FAILS, FAILS) and falling["10b"] == HOLDS
    same = of_pictures(pictures, models=changed_at(pictures, "direct", 3, 0.7, 0.0))
    assert (same["10b"], same["10d"]) == (FAILS, FAILS) and same["10a"] == HOLDS
    few = [
        dataclasses.replace(m, scores_alone={SEES: dataclasses.replace(m.scores_alone[SEES], samples_half=0.12)})
        for m in pictures.models
    ]
    unsure = of_pictures(pictures, models=few)
    assert unsure["10a"] == unsure["10c"] == UNKNOWN
    rows = [[0.99] * place for place in range(len(few))]
    alike = SampleCorrelation(entry=("learn", "vision", "acc"), trials=list(range(len(few))), rows=rows)
    paired = of_pictures(pictures, models=few, score_correlations=[alike])
    assert paired["10a"] == paired["10c"] == HOLDS, "all models were asked the same questions"
    one = [m for m in pictures.models if m.rate != 1e-2]
    worse = [looking("direct", 1e-2, n, 0.6, 0.1) for n in range(4)]
    at_one = of_pictures(pictures, models=[*one, *worse])
    assert (at_one["10a"], at_one["10c"], at_one["10d"]) == (HOLDS, FAILS, FAILS), "every rate counts"


def test_language_at_equal_score(pictures: OvertrainingRecord) -> None:
    dearer = of_pictures(pictures, models=changed_at(pictures, "sfa", 3, 0.7, 0.9))
    assert dearer["10f"] == FAILS and dearer["10e"] == dearer["10g"] == HOLDS
    blind = of_pictures(pictures, models=changed_at(pictures, "label_annealing", 3, 0.6, 0.0))
    assert blind["10e"] == UNKNOWN, "what does not reach the score says nothing of it"
    near = of_pictures(pictures, models=changed_at(pictures, "label_annealing", 3, 0.685, 0.01))
    assert near["10e"] == HOLDS, "two points of the score are no difference"
    none = [m for m in pictures.models if m.arm != "LoRA"]
    assert of_pictures(pictures, models=none, arms=pictures.arms[:3])["10g"] == UNKNOWN


def test_what_has_to_be_so_before_models_that_see_are_judged(pictures: OvertrainingRecord) -> None:
    at_chance = of_pictures(pictures, models=changed_at(pictures, "direct", 0, CHANCE + 0.005, 0.01))
    assert set(at_chance.values()) == {UNKNOWN}
    edge = [*pictures.rates[:-1], dataclasses.replace(pictures.rates[-1], edge="largest")]
    found = of_pictures(pictures, rates=edge)
    assert {n for n, v in found.items() if v == HOLDS} == {"10c", "10d"}, "fixed rates need no tuned one"

    def as_good(m: TunedModel) -> TunedModel:
        return dataclasses.replace(m, scores={**m.scores, KEPT: Figure(value=3.0 + m.costs[KEPT].value)})

    alike = [as_good(m) for m in pictures.models]
    assert set(of_pictures(pictures, models=alike).values()) == {UNKNOWN}, "the checkpoints do not get better"
