"""The rules by which the claims of "Pattern Shifting or Knowledge Losing" are judged, on records that are made up so
that the answer is known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.papers.claims.claim import Claim
from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN
from holdfast.papers.stages.claims import STATEMENTS, check_claims
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.figure import Figure
from holdfast.records.stages import (
    BASE,
    CONTROL,
    RESTORED,
    TUNED,
    Along,
    MeasuredModel,
    StagesRecord,
    TaskAbout,
    Transition,
)

EPOCHS = 4
FACTS, LETTERED, LEARNT = "knowledge/old_facts", "knowledge/old_lettered", "knowledge/learnt"
PROBLEMS = "knowledge/old_problems"
PLAIN = "probing/probing"
ALL = tuple(s.number for s in STATEMENTS)
LIKE_THE_PAPER: dict[str, dict[str, list[float]]] = {
    # base and control, then the checkpoints before restoring, after, and after restoring at four times the dose
    "acc": {"given": [0.80, 0.80], "tuned": [0.70, 0.65, 0.62, 0.58], "restored": [0.85, 0.80, 0.72, 0.66]},
    "problems": {"given": [0.80, 0.80], "tuned": [0.70, 0.65, 0.62, 0.58], "restored": [0.85, 0.80, 0.72, 0.66]},
    "plain": {"given": [2.40, 2.41], "tuned": [2.60, 2.70, 2.80, 2.90], "restored": [2.41, 2.41, 2.42, 2.42]},
    "letters": {"given": [0.25, 0.25], "tuned": [0.60, 0.55, 0.45, 0.40], "restored": [0.3, 0.3, 0.3, 0.3]},
    "entropy": {"given": [3.0, 3.0], "tuned": [0.9, 0.9, 0.6, 0.3], "restored": [2.0, 2.0, 2.0, 2.0]},
    "memory": {"given": [0.30, 0.30], "tuned": [0.50, 0.70, 0.80, 0.90], "restored": [0.45, 0.60, 0.70, 0.80]},
}
ENTRIES = {
    "acc": (FACTS, "acc"),
    "problems": (PROBLEMS, "acc"),
    "plain": (PLAIN, "nats_per_token"),
    "letters": (LETTERED, "acc"),
    "entropy": (LETTERED, "entropy"),
    "memory": (LEARNT, "exact_memorisation"),
}


def record(
    world: int,
    figures: dict[str, Any],
    *,
    mass: list[float],
    begins: int | None,
    half: float,
    changed: float = 0.1,
    tokens: int | None = None,
    doses: tuple[int, ...] = (1, 4),
) -> StagesRecord:
    """A study of one world; worlds differ by a little."""

    def model(role: str, place: int, kind: str, at: int, dose: int = 1) -> MeasuredModel:
        shown: dict[str, dict[str, Figure]] = {}
        for name, (entry, metric) in ENTRIES.items():
            kinds = figures[name]
            values = kinds.get(f"more_{kind}", kinds[kind]) if dose > 1 else kinds[kind]
            value = values[at] + 0.001 * world
            shown.setdefault(entry, {})[metric] = Figure(value=value, over_samples=(value - half, value + half))
        about = {"role": role, "arm": "direct" if place else "", "place": place, "dose": dose}
        return MeasuredModel(figures=shown, state="complete", **about)

    models = [model(BASE, 0, "given", 0), *(model(CONTROL, 0, "given", 1, dose) for dose in doses)]
    for k in range(EPOCHS):
        models.append(model(TUNED, k + 1, "tuned", k))
        models += [model(RESTORED, k + 1, "restored", k, dose) for dose in doses]

    def point(step: int, value: float) -> Along:
        metric = Metric(value=value, n=240, unit="", higher_is_better=True, interval=(value - half, value + half))
        about = {
            "suite": "knowledge",
            "name": "old_lettered",
            "kind": "multiple_choice_letters",
            "primary": "mass",
            "key": "k",
        }
        evaluations = [Evaluation(metrics={"mass": metric}, settings={}, model={}, **about)]
        answers = {LETTERED: Figure(value=changed, over_samples=(changed - half, changed + half))} if step else {}
        return Along(step=step, evaluations=evaluations, changed=answers)

    task = {"metric": "acc", "unit": "share", "higher_is_better": True, "chance": 0.25}
    return StagesRecord(
        name=f"world-{world}",
        status="finished",
        created="",
        finished=None,
        config={"seed": world, "tokens": tokens, "restore": {}},
        epoch_tokens=1000,
        arms=["direct"],
        checkpoints={"direct": [f"epoch {k + 1}" for k in range(EPOCHS)]},
        tasks=[
            TaskAbout(suite="knowledge", name=name, **task) for name in ("old_facts", "old_lettered", "old_problems")
        ],
        models=models,
        transitions=[Transition(arm="direct", task=FACTS, place=begins, interval=(1, None))],
        along={"direct": [point(20 * i, value) for i, value in enumerate(mass)]},
    )


def claims(
    *,
    worlds: int = 3,
    begins: int | None = 2,
    smaller: int | None = 4,
    half: float = 0.01,
    about: dict[str, Any] | None = None,
    **changes: list[float],
) -> dict[str, Claim]:
    """Claims about a study like the paper's, with lists such as `acc_tuned` in place of its own."""
    mass = changes.pop("mass", [0.0, 0.98, 0.99, 0.99, 0.97])
    options: dict[str, Any] = {"mass": mass, "half": half, **(about or {})}
    figures = {name: {**kinds} for name, kinds in LIKE_THE_PAPER.items()}
    for name, values in changes.items():
        figure, _, kind = name.partition("_")
        figures[figure][kind] = values
    records: dict[str, StagesRecord | None] = {
        f"world-{w}": record(w, figures, begins=begins, **options) for w in range(worlds)
    }
    if smaller is not None:
        records |= {f"narrow-{w}": record(w, figures, begins=smaller, **options) for w in range(worlds)}
        records |= {f"other-{w}": record(w, figures, begins=begins, **options) for w in range(worlds)}
    return {claim.number: claim for claim in check_claims(records)}


def test_every_claim_holds_of_a_study_like_the_papers() -> None:
    found = claims()
    assert tuple(found) == ALL
    surge = claims(acc_tuned=[0.70, 0.85, 0.62, 0.58])  # the paper's figures have it on one of two benchmarks
    assert {n: c.verdict for n, c in (found | {"6": surge["6"]}).items()} == dict.fromkeys(ALL, HOLDS)
    assert all(p.met for c in found.values() for p in c.preconditions)
    assert {c.figures[0].n for c in found.values()} == {"3 worlds"}
    assert all(c.paper and s.rule.says for c, s in zip(found.values(), STATEMENTS, strict=True))


def test_figures_of_text_are_in_nats() -> None:
    for claim in claims().values():
        for figure in claim.figures:
            if figure.what.startswith("plain text"):
                assert figure.unit == "nats/token", figure


@pytest.mark.parametrize(
    ("number", "change", "verdict"),
    [
        ("1a", {"plain_tuned": [2.40, 2.40, 2.41, 2.41]}, FAILS),
        ("1a", {"plain_tuned": [2.60, 2.90, 2.70, 2.90]}, FAILS),
        ("1b", {"plain_restored": [2.41, 2.41, 2.42, 2.60]}, FAILS),
        ("1b", {"plain_given": [2.40, 2.50], "plain_restored": [2.41, 2.41, 2.42, 2.48]}, FAILS),
        ("1b", {"about": {"tokens": 15000}}, UNKNOWN),
        ("1b", {"plain_tuned": [2.40, 2.40, 2.40, 2.41]}, UNKNOWN),
        ("2a", {"acc_restored": [0.70, 0.7, 0.7, 0.6]}, FAILS),
        ("2a", {"acc_restored": [0.77, 0.7, 0.7, 0.6], "acc_given": [0.80, 0.785]}, FAILS),
        ("2a", {"acc_tuned": [0.80, 0.7, 0.6, 0.58]}, UNKNOWN),
        ("2a", {"about": {"tokens": 1300}}, UNKNOWN),
        ("2b", {"acc_restored": [0.80, 0.80, 0.80, 0.80]}, FAILS),
        ("2b", {"acc_given": [0.80, 0.77]}, UNKNOWN),
        ("2b", {"acc_tuned": [0.70, 0.65, 0.60, 0.40]}, UNKNOWN),
        ("2c", {"acc_restored": [0.70, 0.8, 0.7, 0.66]}, FAILS),
        ("2d", {"acc_restored": [0.78, 0.8, 0.7, 0.6]}, FAILS),
        ("2d", {"acc_given": [0.98, 0.98]}, UNKNOWN),
        ("2e", {"problems_restored": [0.70, 0.7, 0.7, 0.6]}, FAILS),
        ("2e", {"problems_tuned": [0.80, 0.80, 0.80, 0.80]}, UNKNOWN),
        ("2f", {"acc_more_restored": [0.85, 0.80, 0.80, 0.80]}, FAILS),
        ("2f", {"acc_more_restored": [0.85, 0.80, 0.72, 0.70]}, FAILS),
        ("2f", {"about": {"doses": (1,)}}, UNKNOWN),
        ("3a", {"mass": [0.0, 0.98, 0.90, 0.99, 0.97]}, FAILS),
        ("3a", {"mass": [0.0, float("nan"), 0.99, 0.99, 0.97]}, UNKNOWN),
        ("3b", {"entropy_tuned": [0.9, 0.5, 0.5, 0.5]}, FAILS),
        ("3c", {"letters_tuned": [0.60, 0.6, 0.6, 0.65]}, FAILS),
        ("3c", {"letters_tuned": [0.80, 0.55, 0.55, 0.55]}, FAILS),
        ("3c", {"letters_tuned": [0.25, 0.25, 0.2, 0.2]}, UNKNOWN),
        ("3d", {"about": {"changed": 0.0}}, FAILS),
        ("3d", {"mass": [0.0, 0.98, 0.90, 0.99, 0.97]}, FAILS),
        ("4a", {"memory_tuned": [0.9, 0.9, 0.9, 0.9]}, FAILS),
        ("4a", {"memory_tuned": [0.5, 0.9, 0.7, 0.9]}, FAILS),
        ("4b", {"memory_restored": [0.3, 0.3, 0.3, 0.4]}, FAILS),
        ("5", {"smaller": 2}, FAILS),
        ("5", {"smaller": None}, UNKNOWN),
        ("6", {"acc_tuned": [0.80, 0.80, 0.80, 0.25]}, FAILS),
        ("6", {"acc_given": [0.97, 0.97]}, UNKNOWN),
        ("7a", {"acc_restored": [0.80, 0.80, 0.80, 0.80]}, FAILS),
        ("7a", {"smaller": None}, UNKNOWN),
        ("7b", {"about": {"changed": 0.0}}, FAILS),
        ("7b", {"smaller": None}, UNKNOWN),
    ],
)
def test_a_claim_can_fail_and_may_not_be_told(number: str, change: dict[str, Any], verdict: str) -> None:
    found = claims(**change)[number]
    assert found.verdict == verdict, found.reason
    if verdict == UNKNOWN and number not in ("3a", "5", "7b") and "several doses" not in found.reason:
        assert any(not p.met for p in found.preconditions), found.reason


def test_one_world_is_warned_of_and_its_questions_give_the_interval() -> None:
    found = claims(worlds=1, smaller=None)["2b"]
    assert found.verdict == HOLDS and any("only one seed" in w for w in found.warnings)
    assert found.figures[0].interval is not None and found.figures[0].n == "one world"
    assert claims(worlds=1, smaller=None, half=0.3)["2b"].verdict == UNKNOWN


def test_models_that_are_not_made_leave_a_claim_open() -> None:
    records: dict[str, StagesRecord | None] = {
        f"world-{w}": record(w, LIKE_THE_PAPER, mass=[0.0, 1.0], begins=2, half=0.01) for w in range(2)
    }
    assert all(c.verdict == UNKNOWN for c in check_claims({**records, "world-2": None}))
    first = records["world-0"]
    assert first is not None
    failed = [dataclasses.replace(m, state="failed") if m.place == 4 else m for m in first.models]
    found = check_claims({**records, "world-0": dataclasses.replace(first, models=failed)})
    assert all("failed" in c.reason for c in found)
    assert all(c.reason == "The study was not run." for c in check_claims({"world-0": None}))


def test_the_world_that_the_regime_was_chosen_on_decides_nothing() -> None:
    from holdfast.papers.stages.paper import PAPER, WORLDS
    from holdfast.papers.stages.reproduction import TWINS

    judged = {name for name, twin in TWINS.studies.items() if "medium" in twin.sizes}
    assert {f"world-{w}" for w in WORLDS} <= judged and not judged & {"world-0", "narrow-0", "other-0"}
    assert 0 not in WORLDS and all(
        "quick" in TWINS.studies[f"{group}-0"].sizes for group in ("world", "narrow", "other")
    )
    assert PAPER.rules >= 1, "outcomes judged by the first rules are withdrawn"
