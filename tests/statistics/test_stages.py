"""The stages of forgetting: every verdict from flips that make it so, and from those that nearly do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.records.comparison import Comparison
from holdfast.records.stages import ACTUAL, GAINED, INCONCLUSIVE, NONE, NOT_YET, PSEUDO, REASONS
from holdfast.statistics.paired import Flips, Moments
from holdfast.statistics.stages import AtDose, Evidence, first_lasting, forgotten, judge, transition

N = 1000


def flips(lost: int, gained: int = 0, *, n: int = N, before: float = 0.8) -> Comparison:
    """Right and wrong answers of which so many flipped."""
    test = Flips(lost=lost, gained=gained, n=n)
    return Comparison(
        suite="knowledge",
        name="facts",
        metric="acc",
        unit="accuracy",
        higher_is_better=True,
        n=n,
        before=before,
        after=before + test.estimate,
        difference=test.estimate,
        interval=test.interval(),
        p_value=test.p_value(),
        test="McNemar (exact)",
        flips_lost=lost,
        flips_gained=gained,
    )


def text(difference: float, error: float = 0.002) -> Comparison:
    """Plain text, which costs so much more."""
    test = Moments(difference=difference, error=error, skewness=0.0, df=math.inf, n=200)
    return Comparison(
        suite="probing",
        name="probing",
        metric="nats_per_token",
        unit="nats/token",
        higher_is_better=False,
        n=200,
        before=2.0,
        after=2.0 + difference,
        difference=difference,
        interval=test.interval(),
        p_value=test.p_value(),
        test="paired t, skewness removed",
        standard_error=error,
        df=math.inf,
    )


def evidence(
    tuned: Comparison,
    restored: Comparison | None = None,
    against: Comparison | None = None,
    *,
    control: Comparison | None = None,
    pattern: float = 0.0,
    chain: tuple[str, ...] = ("direct",),
    **others: bool,
) -> Evidence:
    """With one dose."""
    if restored is None:
        return Evidence(tuned=tuned, chain=chain, **others)
    at = dose(1, restored, against, control=control, pattern=pattern)
    return Evidence(tuned=tuned, doses=[at], chain=chain, **others)


def dose(
    number: int,
    restored: Comparison,
    against: Comparison | None = None,
    *,
    control: Comparison | None = None,
    pattern: float = 0.0,
    more: Comparison | None = None,
) -> AtDose:
    return AtDose(
        dose=number,
        restored=restored,
        against_control=against or restored,
        control=control or flips(3, 3),
        control_tolerance=0.02,
        pattern=text(pattern),
        pattern_control=text(pattern),
        more=more,
    )


def verdict(*all_of: Evidence) -> str:
    return judge(all_of, tolerance=0.05)[0].verdict


def test_each_stage_has_its_verdict() -> None:
    fell = flips(300, 20)
    assert verdict(evidence(flips(10, 80))) == GAINED
    assert verdict(evidence(flips(2, 2))) == NONE
    assert verdict(evidence(fell, flips(4, 10))) == PSEUDO
    assert verdict(evidence(fell, flips(120, 20))) == ACTUAL


def test_a_loss_that_stays_is_actual_though_part_of_it_came_back() -> None:
    [found] = judge([evidence(flips(400, 10), flips(90, 5))], tolerance=0.05)
    assert (found.verdict, found.why) == (ACTUAL, "loss left, one dose")


def test_what_restoring_costs_anybody_is_not_forgotten() -> None:
    """Below the base and level with the control: restoring took it, not fine-tuning. Nor is it shown to be back."""
    fell, control = flips(300, 20), flips(8, 1)
    level = evidence(fell, flips(60, 10), flips(2, 2), control=control)
    [found] = judge([level], tolerance=0.05)
    assert (found.verdict, found.why) == (INCONCLUSIVE, "level with the control")
    assert verdict(evidence(fell, flips(60, 10), flips(60, 10), control=control)) == ACTUAL


def test_more_restoring_tells_what_is_lost_from_what_is_not_back_yet() -> None:
    fell, left = flips(300, 20), flips(120, 20)

    def judged(*doses: AtDose) -> tuple[str, str, int]:
        [found] = judge([Evidence(tuned=fell, doses=doses, chain=("direct",))], tolerance=0.05)
        return found.verdict, found.why, 0 if found.at is None else found.at.dose

    one = dose(1, left)
    assert judged(one) == (ACTUAL, "loss left, one dose", 1)
    assert judged(one, dose(4, left, more=flips(1, 1))) == (ACTUAL, "loss left", 4)
    assert judged(one, dose(4, flips(60, 10), more=flips(5, 55))) == (NOT_YET, "still coming back", 4)
    assert judged(one, dose(4, left, more=flips(40, 48))) == (INCONCLUSIVE, "may still come back", 4)
    assert judged(one, dose(4, flips(4, 10), more=flips(5, 110))) == (PSEUDO, "came back", 4)
    dear = dose(4, left, control=flips(80, 2), more=flips(1, 1))
    assert judged(one, dear) == (ACTUAL, "loss left, one dose", 1), "a dose that costs the control tells nothing"
    assert judged(dose(1, left, pattern=0.2), dose(4, left, more=flips(1, 1)))[2] == 4, "the pattern is back at 4"


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (evidence(flips(24, 20)), "within noise"),
        (evidence(flips(300, 20)), "not restored"),
        (evidence(flips(300, 20), flips(4, 10), pattern=0.2), "pattern not back"),
        (evidence(flips(300, 20), flips(4, 10), control=flips(80, 2)), "restoring costs"),
        (evidence(flips(300, 20), flips(4, 10), control=flips(60, 50)), "restoring costs"),
        (evidence(flips(300, 20), flips(40, 34)), "neither"),
        (evidence(flips(300, 20), flips(4, 10), above_chance=False), "base at chance"),
        (evidence(flips(2, 2), above_chance=False), "base at chance"),
    ],
)
def test_what_cannot_be_told_says_why(of: Evidence, why: str) -> None:
    [found] = judge([of], tolerance=0.05)
    assert (found.verdict, found.why) == (INCONCLUSIVE, why)
    assert why in REASONS


def test_tasks_with_nothing_to_lose_make_the_others_no_harder() -> None:
    guessed = [
        evidence(flips(250, 250), flips(250, 250), above_chance=False, chain=("direct", str(n))) for n in range(50)
    ]
    close = evidence(flips(300, 20), flips(30, 12))
    assert verdict(close) == verdict(close, *guessed) == ACTUAL
    known = [evidence(flips(250, 250), flips(250, 250), chain=("direct", str(n))) for n in range(50)]
    assert verdict(close, *known) == INCONCLUSIVE, "the family of those that may be judged"
    assert verdict(evidence(flips(10, 80), above_chance=False)) == GAINED


def test_not_finite_is_no_verdict() -> None:
    import dataclasses

    broken = dataclasses.replace(flips(300), after=math.nan)
    [tuned] = judge([evidence(broken)], tolerance=0.05)
    [restored] = judge([evidence(flips(300), broken)], tolerance=0.05)
    assert tuned.verdict == restored.verdict == INCONCLUSIVE
    assert (tuned.why, restored.why) == ("tuned not scored", "restored not scored")


def test_many_checkpoints_ask_for_more() -> None:
    """One loss at p 0.01 is shown; in the middle of twenty, nineteen of which are nothing, it is not; last it is."""
    small = evidence(flips(40, 20))
    nothing = evidence(flips(10, 10))
    assert 0.005 < small.tuned.p_value < 0.02

    def why(*all_of: Evidence) -> str:
        judged = judge(all_of, tolerance=0.05)
        return judged[all_of.index(small)].why

    assert why(small) == "not restored"
    assert why(*[nothing] * 10, small, *[nothing] * 9) == "within noise"
    assert why(*[nothing] * 19, small) == "not restored", "the last checkpoint is looked at first"
    clear = evidence(flips(100, 10))
    assert why(*[nothing] * 10, small, *[clear] * 9) == "not restored", "each that is shown hands its level on"


def test_the_fallback_procedure_keeps_its_level() -> None:
    """No effect anywhere: some false statement in at most `level` of the studies (200 simulated p-values, 4 chains)."""
    from holdfast.statistics.stages import _Looks

    rng, chains, false = np.random.default_rng(0), [(str(n // 10),) for n in range(40)], 0
    for _ in range(4000):
        false += any(_Looks(chains=chains, level=0.025).in_order(list(rng.uniform(size=40))))
    assert false / 4000 < 0.025 + 3 * math.sqrt(0.025 * 0.975 / 4000)


def test_the_first_checkpoint_that_stays_lost() -> None:
    lost = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]], dtype=bool)
    assert first_lasting(lost).tolist() == [2, 4, 0, 4]


def test_what_did_not_fall_is_not_forgotten_by_being_restored() -> None:
    base, control = 0.9, 0.8
    tuned, restored = [0.9, 0.5, 0.5, 0.95], [0.6, 0.8, 0.6, 0.9]
    found = forgotten(np.array([[base, control, *tuned, *restored]] * 3))
    assert found.shape == (3, 4)
    assert found[0] == pytest.approx([0.0, 0.0, 0.2, -0.1])


def test_the_transition_has_an_interval() -> None:
    losses = np.array([0.0, 0.005, 0.03, 0.08, 0.12])
    draws = losses + np.random.default_rng(1).normal(0, 0.006, (4000, 5))
    found = transition(losses, draws, 0.01)
    assert (found.place, found.low, found.high) == (2, 1, 2)
    never = transition(np.zeros(5), np.zeros((100, 5)), 0.01)
    assert (never.place, never.low, never.high) == (5, 5, 5)
