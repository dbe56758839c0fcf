"""Claims against made-up studies: each one where it holds, where it does not, and where nothing can be said."""

from __future__ import annotations

import dataclasses

import pytest

from claim_studies import REPLAY, annealing, direct, l2, paper_like, study, trial
from holdfast.statistics.selection import select
from holdfast.statistics.shares import shares
from holdfast.studies.claims import (
    FAILS,
    HOLDS,
    RECIPES,
    UNKNOWN,
    check_claims,
    paper_choice,
    share_of_direct,
    weights_line,
)

NUMBERS = {
    "math": ["1a", "2a", "3a", "5"],
    "code": ["1b", "2b", "3b"],
    "alignment_tax": ["4a", "4b"],
    "niche_knowledge": ["4c", "4d"],
}


def claim(number, found):
    recipe = next(r for r, numbers in NUMBERS.items() if number in numbers)
    return next(c for c in check_claims({recipe: found}) if c.number == number)


def test_every_claim_holds_where_the_paper_is_right():
    found = check_claims(dict.fromkeys(RECIPES, paper_like()))
    assert {c.number: c.verdict for c in found} == {number: HOLDS for numbers in NUMBERS.values() for number in numbers}
    assert [c.number for c in found] == sorted(c.number for c in found)
    assert all(c.paper and c.reason and c.figures for c in found)
    assert [c.number for c in check_claims({"code": paper_like()})] == NUMBERS["code"]


def curve(*points, **changes):
    return study([direct(), *(trial(i, annealing(w), t, s, **changes) for i, (w, t, s) in enumerate(points, 1))])


@pytest.mark.parametrize("number", [n for numbers in NUMBERS.values() for n in numbers])
def test_without_a_study_or_without_direct_fine_tuning_nothing_can_be_said(number):
    missing = claim(number, None)
    assert (missing.verdict, missing.figures) == (UNKNOWN, [])
    assert "not run" in missing.reason
    headless = paper_like()
    headless = dataclasses.replace(headless, trials=headless.trials[1:])
    assert claim(number, headless).verdict == UNKNOWN
    assert "Direct fine-tuning" in claim(number, headless).reason


def test_direct_fine_tuning_that_lacks_a_seed_is_no_reference():
    found = paper_like()
    short = dataclasses.replace(found.trials[0], runs=found.trials[0].runs[:2])
    assert "seed 2 not finished" in claim("1a", dataclasses.replace(found, trials=[short, *found.trials[1:]])).reason


@pytest.mark.parametrize(
    ("target", "source", "half", "verdict"),
    [
        (1.0, -1.0, 0.01, HOLDS),
        (1.0, 0.2, 0.01, FAILS),
        (-0.3, -1.0, 0.01, FAILS),
        (1.0, -0.1, 0.3, UNKNOWN),
        (0.1, -1.0, 0.3, UNKNOWN),
        (0.1, 0.9, 0.3, FAILS),  # one failed part decides over an open one
    ],
)
def test_direct_learns_and_forgets(target, source, half, verdict):
    found = claim("1b", study([trial(0, [], target, source, half=half)]))
    assert found.verdict == verdict
    assert [f.value for f in found.figures] == pytest.approx([target, source])
    assert found.figures[0].n == "3 seeds, 150 samples"


@pytest.mark.parametrize(
    ("target", "source", "half", "number", "verdict"),
    [
        (0.95, -0.05, 0.01, "2a", HOLDS),
        (0.60, -0.05, 0.01, "2a", FAILS),  # learns too little for "no loss"
        (0.60, -0.05, 0.01, "2b", HOLDS),  # which is still most of it
        (0.95, -0.50, 0.01, "2a", FAILS),  # forgets half
        (0.85, -0.15, 0.20, "2a", UNKNOWN),  # within the margin, but nobody knows
        (0.40, -0.05, 0.01, "2b", FAILS),
        (1.20, 0.30, 0.01, "2a", HOLDS),  # better than the start, and than direct: no loss either
    ],
)
def test_label_annealing_keeps(target, source, half, number, verdict):
    assert claim(number, study([direct(), trial(1, annealing(1), target, source, half=half)])).verdict == verdict


def test_the_papers_rule_decides_and_a_better_weight_is_named():
    found = claim("2a", curve((1, 0.95, -0.1), (30, 0.3, -0.01), (99, -0.1, 0.2)))
    assert found.verdict == FAILS
    reason = found.reason.replace("Label", "label")
    assert "label_annealing 30 avoids at least 80 % of direct fine-tuning's loss on the source" in reason
    assert "label_annealing 30 keeps less than 80 % of direct fine-tuning's gain on the target" in reason
    assert "label_annealing 1 would have met both" in found.reason
    assert any(f.what.startswith("label_annealing 1:") for f in found.figures)


def test_no_trial_learns_is_said():
    found = claim("2a", study([direct(), trial(1, annealing(1), -0.2, -0.1)]))
    assert (found.verdict, found.reason) == (UNKNOWN, "No trial of label annealing improves the target on the start.")
    assert "no trial of label annealing" in claim("2a", study([direct()])).reason.lower()
    waiting = trial(1, annealing(1), 0.0, 0.0, state="waiting")
    assert "is complete" in claim("2a", study([direct(), dataclasses.replace(waiting, runs=[])])).reason


def test_shares_need_something_to_share():
    found = claim("2b", study([trial(0, [], 1.0, 0.4), trial(1, annealing(1), 0.9, 0.1)]))
    assert found.verdict == UNKNOWN
    assert "lost nothing on the source" in found.reason


@pytest.mark.parametrize(
    ("source", "half", "verdict"), [(-0.8, 0.01, HOLDS), (-0.2, 0.01, FAILS), (-0.5, 0.1, UNKNOWN)]
)
def test_l2_helps_little(source, half, verdict):
    found = claim("3a", study([direct(), trial(1, l2(0.1), 0.9, source, half=half), trial(2, annealing(1), 0.9, -0.1)]))
    assert found.verdict == verdict
    assert any(f.what.startswith("label_annealing 1:") for f in found.figures), (
        "label annealing's figures stand beside L2's"
    )


@pytest.mark.parametrize(("source", "verdict"), [(-0.6, HOLDS), (-0.02, FAILS), (-0.101, UNKNOWN)])
def test_label_annealing_against_l2(source, verdict):
    trials = [direct(), trial(2, annealing(1), 0.9, -0.1)]
    assert claim("3b", study([*trials, trial(1, l2(0.1), 0.9, source)])).verdict == verdict
    assert "no trial of L2" in claim("3b", study(trials)).reason


def test_a_smooth_curve():
    assert claim("4a", curve((0.1, 0.95, -0.8), (1, 0.8, -0.4), (10, 0.5, -0.1))).verdict == HOLDS
    assert (
        claim("4c", curve((10, 0.5, -0.1), (0.1, 0.95, -0.8), (1, 0.8, -0.4))).verdict == HOLDS
    )  # whatever their order
    backwards = claim("4a", curve((0.1, 0.95, -0.8), (1, 0.8, -0.05), (10, 0.5, -0.3)))
    assert backwards.verdict == FAILS
    assert "source goes the wrong way from weight 1 to 10" in backwards.reason.replace("The", "the")
    flat = claim("4a", curve((0.1, 0.90, -0.31), (1, 0.9, -0.305), (10, 0.9, -0.30), half=0.1))
    assert flat.verdict == UNKNOWN
    turned = claim("4a", curve((0.1, 0.5, -0.1), (1, 0.5, -0.1), (10, 0.9, -0.5)))
    assert turned.verdict == FAILS


def test_a_rise_in_small_steps_is_seen():
    creeping = curve((0.1, 0.60, -0.8), (0.3, 0.68, -0.6), (1, 0.75, -0.4), (3, 0.82, -0.2), (10, 0.3, -0.1), half=0.06)
    found = claim("4c", creeping)
    assert found.verdict == FAILS, "from one weight to the next it is noise, over four of them it is not"
    assert "from 0.1 to 3" in found.reason
    assert "0.1 to 0.3" not in found.reason
    calmer = curve((0.1, 0.60, -0.8), (0.3, 0.65, -0.6), (1, 0.70, -0.4), (10, 0.3, -0.1), half=0.065)
    assert claim("4c", calmer).verdict == UNKNOWN, "beyond noise at 95 %, but six pairs were looked at"


def test_a_curve_needs_three_weights_of_one_kind():
    two = claim("4a", curve((0.1, 0.95, -0.8), (10, 0.5, -0.1)))
    assert two.verdict == UNKNOWN
    assert "at least three" in two.reason
    mixed = study(
        [
            direct(),
            trial(1, annealing(1), 0.9, -0.5),
            trial(2, annealing(1, temperature=2), 0.9, -0.5),
            trial(3, annealing(3, temperature=2), 0.8, -0.3),
            trial(4, annealing(9, temperature=2), 0.7, -0.2),
            trial(5, [*REPLAY, *annealing(1)], 0.7, -0.2),
        ]
    )
    assert [weight for weight, _ in weights_line(mixed)] == [1, 3, 9]
    plain = study([direct(), trial(1, annealing(1, temperature=1.0), 0.9, -0.5), trial(2, annealing(3), 0.9, -0.5)])
    assert len(weights_line(plain)) == 2, "a temperature of 1 is the default"


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([(0.3, 0.97, -0.6), (1, 0.92, -0.1), (3, 0.5, -0.02)], HOLDS),
        ([(0.3, 0.97, -0.6), (1, 0.70, -0.1), (3, 0.5, -0.02)], FAILS),
        ([(0.3, 0.97, -0.6), (1, 0.80, -0.1), (3, 0.5, -0.02)], UNKNOWN),
    ],
)
def test_some_weight_keeps_most(points, verdict):
    found = claim("4d", curve(*points))
    assert found.verdict == verdict
    assert "label_annealing 1" in found.reason.lower()


def test_several_weights_widen_the_intervals():
    single = claim("4d", curve((1, 0.9, -0.1)))
    among = claim("4d", curve((1, 0.9, -0.1), (3, 0.1, -0.0), (9, 0.1, 0.0), (0.1, 1.0, -1.0)))
    width = [c.figures[0].interval for c in (single, among)]
    assert width[1][0] < width[0][0] < width[0][1] < width[1][1]


@pytest.mark.parametrize(
    ("both", "half", "verdict"), [(-0.05, 0.01, HOLDS), (0.3, 0.01, FAILS), (-0.6, 0.01, FAILS), (0.05, 0.15, UNKNOWN)]
)
def test_replay_with_and_without(both, half, verdict):
    for methods in ([*REPLAY, *annealing(1)], [*annealing(1), *REPLAY]):
        trials = [trial(1, REPLAY, 0.9, -0.1, half=half), trial(2, methods, 0.9, both, half=half)]
        found = claim("5", study([direct(), *trials]))
        assert found.verdict == verdict
        assert found.figures[0].value == pytest.approx(both + 0.1)


@pytest.mark.parametrize("trials", [[trial(1, REPLAY, 0.9, -0.1)], []])
def test_replay_needs_both(trials):
    found = claim("5", study([direct(), *trials]))
    assert found.verdict == UNKNOWN
    assert "no trial of replay with label annealing" in found.reason


def test_what_is_still_to_come_may_change_it():
    whole = paper_like()

    def verdicts(state):
        last = dataclasses.replace(whole.trials[-1], number=8, state=state, runs=[], reason="no memory")
        return {c.number: c for c in check_claims({"code": dataclasses.replace(whole, trials=[*whole.trials, last])})}

    found = verdicts("running")
    assert {number: c.verdict for number, c in found.items()} == {"1b": HOLDS, "2b": UNKNOWN, "3b": UNKNOWN}
    assert found["2b"].reason.startswith("1 trial is not finished and may change it; so far: holds.")
    assert found["2b"].figures
    assert verdicts("failed")["2b"].verdict == HOLDS


def test_one_seed_is_said():
    found = check_claims({"code": paper_like(seeds=(0,))})
    assert {c.verdict for c in found} == {HOLDS}
    assert all("One seed" in c.reason for c in found)


def test_seeds_that_differ_widen_the_interval():
    calm, wild = (
        claim("2a", study([direct(), trial(1, annealing(1), 0.9, -0.1, noise=noise)])) for noise in (0.0, 40.0)
    )
    assert (calm.verdict, wild.verdict) == (HOLDS, UNKNOWN)


def test_shares_are_those_of_the_selection():
    found = paper_like(noise=5.0)
    for number in range(1, 8):
        kept, avoided = shares(found.trials[number], found)
        for side, theirs in (("target", kept), ("source", avoided)):
            ours = share_of_direct(found.trials[number], found, side)
            assert ours.value == pytest.approx(theirs.value)
            assert ours.interval == pytest.approx(theirs.interval)


def test_the_choice_is_that_of_the_papers_rule():
    found = curve((1, 0.9, -0.1), (3, 0.8, -0.05), (9, -0.1, 0.1))
    chosen = paper_choice(found, frozenset({"label_annealing"}))
    assert chosen is not None
    assert chosen.number == select(found, "paper").chosen == 2
