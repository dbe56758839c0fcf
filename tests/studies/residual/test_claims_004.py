"""The rules by which paper 004's claims are judged, on records that are made up so that the answer is known."""

from __future__ import annotations

import itertools

import pytest

from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, INSTRUCT, Pair, ResidualRecord, StudiedModel
from holdfast.studies.engine.claims import FAILS, HOLDS, UNKNOWN
from holdfast.studies.residual.claims import check_claims


def change(suite, name, gain, half, unit="accuracy"):
    return Comparison(
        suite=suite, name=name, metric="acc", unit=unit, higher_is_better=True, n=200, before=0.5, after=0.5 + gain, difference=gain,
        interval=(gain - half, gain + half), p_value=0.01, test="paired bootstrap", primary=True,
    )  # fmt: skip


def study(
    *,
    instruct=(-0.2, -0.4),
    residual_to_instruct=0.0,
    base_kept=-0.01,
    new=0.5,
    sibling=0.3,
    half=0.02,
    seeds=(0, 1),
    spread=0.0,
    left=(),
):
    """A record of two budgets; gains of following, of what the base keeps, and of the new text."""
    models = [StudiedModel(name=f"w-{s}", label=s, start=s, family="w", state="complete") for s in (BASE, INSTRUCT)]
    pairs = []
    for (budget, lost), seed in itertools.product(zip((100, 200), instruct, strict=True), seeds):
        made = {"family": "w", "budget": budget, "seed": seed, "tokens": budget, "state": "complete"}
        off = spread * (1 if seed % 2 else -1)
        b, i = (
            StudiedModel(name=f"w-{s}-{budget}-{seed}", label=f"{s} {budget}", start=s, **made)
            for s in (BASE, INSTRUCT)
        )
        r = StudiedModel(
            name=f"w-r-{budget}-{seed}", label=f"residual {budget}", start=BASE, residual="w", scale=1.0, **made
        )
        models += [b, i, r]
        pairs += [
            Pair(
                before="w-instruct",
                after=i.name,
                question="",
                comparisons=[change("following", "instructions", lost + off, half)],
            ),
            Pair(before="w-base", after=b.name, question="", comparisons=[change("source", "old", base_kept, half)]),
            Pair(
                before="w-instruct",
                after=r.name,
                question="",
                comparisons=[change("following", "instructions", residual_to_instruct + off, half)],
            ),
            Pair(
                before=i.name,
                after=r.name,
                question="",
                comparisons=[change("following", "instructions", residual_to_instruct - lost, half)],
            ),
            Pair(
                before="w-base",
                after=r.name,
                question="",
                comparisons=[change("new_text", "held_out", new, half, "nats/token")],
            ),
        ]
    if sibling is not None:
        models += [StudiedModel(name="s-base", label="s base", start=BASE, family="s", state="complete")]
        models += [
            StudiedModel(
                name="s-base-w",
                label="s base + w residual",
                start=BASE,
                family="s",
                residual="w",
                scale=1.0,
                state="complete",
            )
        ]
        pairs += [
            Pair(
                before="s-base",
                after="s-base-w",
                question="",
                comparisons=[change("following", "instructions", sibling, half)],
            )
        ]
    models += [StudiedModel(name=n, label=n, start=BASE, family="w", state="waiting") for n in left]
    return ResidualRecord(name="x", kind="study", families=["w", "s"], models=models, pairs=pairs)


def verdicts(record):
    return {c.number: c.verdict for c in check_claims(record)}


def test_the_papers_picture_holds():
    found = verdicts(study())
    assert found == {
        "1a": HOLDS,
        "1b": HOLDS,
        "1c": HOLDS,
        "2a": HOLDS,
        "2b": HOLDS,
        "2c": HOLDS,
        "3a": HOLDS,
        "3b": UNKNOWN,
        "4": UNKNOWN,
    }


@pytest.mark.parametrize(
    ("changes", "number", "verdict"),
    [
        ({"instruct": (0.2, 0.3)}, "1a", FAILS),
        ({"instruct": (-0.01, -0.3)}, "1a", UNKNOWN),
        ({"instruct": (-0.4, -0.2)}, "1b", FAILS),
        ({"spread": 0.3}, "1a", UNKNOWN),  # the seeds differ by more than the change
        ({"base_kept": -0.2}, "1c", FAILS),
        ({"base_kept": -0.1}, "1c", UNKNOWN),  # the bound, a quarter of 0.4, lies in the interval
        ({"instruct": (0.1, 0.1)}, "1c", UNKNOWN),
        ({"residual_to_instruct": -0.5}, "2a", FAILS),
        ({"residual_to_instruct": -0.3}, "2b", FAILS),
        (
            {"residual_to_instruct": -0.05},
            "2b",
            UNKNOWN,
        ),  # the margin of the first budget, 20 % of 0.2, lies in the interval
        ({"residual_to_instruct": 0.2}, "2b", HOLDS),
        ({"new": -0.5}, "2c", FAILS),
        ({"sibling": -0.3}, "3a", FAILS),
        ({"sibling": None}, "3a", UNKNOWN),
    ],
)
def test_what_changes_a_verdict(changes, number, verdict):
    assert verdicts(study(**changes))[number] == verdict


def test_models_that_are_still_to_come_leave_it_open():
    found = check_claims(study(left=("w-more",)))
    assert {c.verdict for c in found} == {UNKNOWN}
    assert "1 model is not finished and may change it; so far: holds" in found[0].reason


def test_one_seed_is_said():
    found = {c.number: c for c in check_claims(study(seeds=(0,)))}
    assert found["1a"].verdict == HOLDS and "One seed" in found["1a"].reason
    assert found["1b"].verdict == UNKNOWN, "two budgets of one seed: no interval"


def test_nothing_was_run():
    assert {c.verdict for c in check_claims(None)} == {UNKNOWN}
    assert {c.verdict for c in check_claims(ResidualRecord(name="x"))} == {UNKNOWN}
