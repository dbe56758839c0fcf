"""The rules by which paper 004's claims are judged, on records that are made up so that the answer is known."""

from __future__ import annotations

import itertools

import pytest

from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, INSTRUCT, ModelPair, ResidualRecord, StudiedModel
from holdfast.studies.engine.claims import FAILS, HOLDS, UNKNOWN
from holdfast.studies.residual.claims import check_claims


def pair(
    before: str, after: str, gain: float, half: float, suite: str = "following", unit: str = "accuracy"
) -> ModelPair:
    change = Comparison(
        suite=suite,
        name=suite,
        metric="acc",
        unit=unit,
        higher_is_better=True,
        n=200,
        before=0.5,
        after=0.5 + gain,
        difference=gain,
        interval=(gain - half, gain + half),
        p_value=0.01,
        test="paired bootstrap",
        primary=True,
    )
    return ModelPair(before=before, after=after, question="", comparisons=[change])


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

    def model(name, start=BASE, family="w", state="complete", **made):
        return StudiedModel(name=name, label=name, start=start, family=family, state=state, **made)

    models, pairs = [model("w-base"), model("w-instruct", INSTRUCT)], []
    for (budget, lost), seed in itertools.product(zip((100, 200), instruct, strict=True), seeds):
        made = {"budget": budget, "seed": seed, "tokens": budget}
        b, i, r = (f"w-{kind}-{budget}-{seed}" for kind in ("base", "instruct", "residual"))
        models += [model(b, **made), model(i, INSTRUCT, **made), model(r, residual="w", scale=1.0, **made)]
        off = spread * (1 if seed % 2 else -1)
        pairs += [
            pair("w-instruct", i, lost + off, half),
            pair("w-base", b, base_kept, half, "source"),
            pair("w-instruct", r, residual_to_instruct + off, half),
            pair(i, r, residual_to_instruct - lost, half),
            pair("w-base", r, new, half, "new_text", "nats/token"),
        ]
    if sibling is not None:
        models += [model("s-base", family="s"), model("s-base-w", family="s", residual="w", scale=1.0)]
        pairs.append(pair("s-base", "s-base-w", sibling, half))
    models += [model(name, state="waiting") for name in left]
    return ResidualRecord(name="x", kind="study", families=["w", "s"], models=models, pairs=pairs)


def verdicts(record):
    return {c.number: c.verdict for c in check_claims(record)}


def test_the_papers_picture_holds():
    held = dict.fromkeys(("1a", "1b", "1c", "2a", "2b", "2c", "3a"), HOLDS)
    assert verdicts(study()) == held | {"3b": UNKNOWN, "4": UNKNOWN}


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
        ({"residual_to_instruct": -0.05}, "2b", UNKNOWN),  # the margin of the first budget, 20 % of 0.2, is in there
        ({"residual_to_instruct": 0.2}, "2b", HOLDS),
        ({"new": -0.5}, "2c", FAILS),
        ({"sibling": -0.3}, "3a", FAILS),
        ({"sibling": None}, "3a", UNKNOWN),
        ({"seeds": (0,)}, "1b", UNKNOWN),  # two budgets of one seed: no interval
        *(({"left": ("w-more",)}, number, UNKNOWN) for number in ("1a", "2b", "3a")),
    ],
)
def test_what_changes_a_verdict(changes, number, verdict):
    assert verdicts(study(**changes))[number] == verdict


def test_a_reason_names_what_is_still_to_come_and_what_was_repeated():
    assert "1 model is not finished and may change it; so far: holds" in check_claims(study(left=("w-more",)))[0].reason
    first, _, third, *_ = check_claims(study(seeds=(0,)))
    assert first.verdict == HOLDS and "One seed" in first.warnings[0]
    assert [f.what.partition(":")[0] for f in third.figures] == [
        "base + 200 tokens against base",
        "instruct + 200 tokens against instruct",
    ]


@pytest.mark.parametrize("record", [None, ResidualRecord(name="x")])
def test_nothing_was_run(record):
    assert set(verdicts(record).values()) == {UNKNOWN}
