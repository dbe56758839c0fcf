"""Has a fine-tuned model forgotten, or does it only not show what it knows? (Pattern Shifting or
Knowledge Losing.)

Four models answer the same questions: the base b, the fine-tuned model t, the model t after
restoring r, and the control c, which is the base after the same restoring, since restoring has a
cost and an effect of its own. Restoring may come in several doses d (texts of so many times the
budget), each with a control of its own. What is judged are paired differences
(`holdfast.statistics.paired`), one-sided, against the margin m that does not matter:

    gained               t above b
    no forgetting        t not below b by more than m
    pseudo forgetting    t below b; at a dose the pattern is back and r is not below b, nor below c, by more than m
    actual forgetting    t below b; at the greatest dose the pattern is back and r is below both b and c, and the step
                         to that dose brought back less than m
    not yet restored     the same, and the step to the greatest dose did bring something back
    inconclusive         anything else

With one dose, which is all that the paper has, "actual forgetting" is said of what is below b and c
at that dose, and the reason says that more may bring it back.

A dose counts where the pattern is back, which is where held-out plain text costs r at most a
tolerance more than b, or than c, and where the control is shown to have lost no more than its own
tolerance. Of a task on which the base is not shown to do better than chance nothing follows but a
gain: there is nothing to lose.

Each kind of statement is one family over all checkpoints and tasks. Gains, and what the step to the
greatest dose brings, are adjusted by Holm's method. Forgetting grows along a fine-tuning, so that
"t is below b" and "r is below both" are looked at from the last checkpoint to the first, "t is not
below b by more than m" and "r is back" from the first to the last, each arm and task at its part of
the level, by the fallback procedure (Wiens 2003, "A fixed sequence Bonferroni procedure for testing
multiple endpoints", Pharmaceutical Statistics 2): half of that level is for the first look, the
rest in equal parts for the others, and a look that shows what it is for hands its level on to the
next. "r is below both" and "r is back" have to be shown against b and c alike (the larger of two
p-values); one dose of several is enough for "back" (so many times the smallest). So each verdict is
false anywhere in a study with a chance of at most one side of the level. That a precondition is met
(the pattern is back, the control lost little) is a statement of its own and not adjusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.records.comparison import Comparison
from holdfast.records.stages import ACTUAL, GAINED, INCONCLUSIVE, NONE, NOT_YET, PSEUDO
from holdfast.statistics.decision import level_of
from holdfast.statistics.family_wise import adjust
from holdfast.statistics.paired import paired_test


@dataclass(frozen=True, kw_only=True)
class AtDose:
    """What is known of a restored checkpoint on one task, at one dose."""

    dose: int
    restored: Comparison
    """Base to restored model."""
    against_control: Comparison
    """Control to restored model."""
    control: Comparison
    """Base to control."""
    control_tolerance: float
    """How much the control may have lost, in the task's own unit."""
    pattern: Comparison
    """Held-out plain text, base to restored model."""
    pattern_control: Comparison
    """Held-out plain text, control to restored model."""
    more: Comparison | None = None
    """Restored at the dose before, to restored at this one; None of the first."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one checkpoint on one task. All comparisons are of the same questions."""

    tuned: Comparison
    """Base to fine-tuned model."""
    doses: Sequence[AtDose] = ()
    """Ascending; empty where it was not restored."""
    above_chance: bool = True
    """Whether the base is shown to do better than guessing."""
    chain: tuple[str, ...] = ()
    """Arm and task: checkpoints of one chain follow each other in training."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What follows from it."""

    verdict: str
    """One of `records.stages.VERDICTS`."""
    why: str
    """One of `records.stages.REASONS`."""
    at: AtDose | None = None
    """The dose that the verdict stands at; None where there is none."""


def judge(evidence: Sequence[Evidence], *, tolerance: float) -> list[Judgement]:
    """The stage of every checkpoint on every task, in order.

    Args:
        evidence: of all checkpoints and tasks that are judged together; those of a chain in the
            order of training.
        tolerance: nats per token that plain text may cost more for the pattern to be back.
    """
    if not evidence:
        return []
    level = level_of(evidence[0].tuned.confidence)
    known = [e.tuned if e.above_chance else None for e in evidence]
    usable = [_usable(e, level, tolerance) if e.above_chance else [] for e in evidence]
    last = [doses[-1] if doses else None for doses in usable]
    more = [None if at is None else at.more for at in last]
    looks = _Looks(chains=[e.chain for e in evidence], level=level)
    rose = looks.by_holm([_p_gain(e.tuned) for e in evidence])
    fell = looks.in_order([_p_loss(tuned) for tuned in known], last_first=True)
    not_lost = looks.in_order([_p_kept(tuned) for tuned in known])
    below = looks.in_order([_p_below(at) for at in last], last_first=True)
    back = looks.in_order([_p_back(doses) for doses in usable])
    rising = looks.by_holm([_p_gain(step) for step in more])
    done = looks.by_holm([_p_no_more(step) for step in more])
    judgements = []
    for number, e in enumerate(evidence):
        judgement = _before_restoring(
            e, fell=fell[number], rose=rose[number], kept=not_lost[number]
        )
        if judgement is None and back[number]:
            at = min(usable[number], key=lambda at: _p_back([at]))
            judgement = Judgement(verdict=PSEUDO, why="came back", at=at)
        if judgement is None and not usable[number]:
            judgement = _unusable(e, level, tolerance)
        if judgement is None:
            judgement = _not_back(
                usable[number],
                below=below[number],
                rising=rising[number],
                done=done[number],
                level=level,
            )
        judgements.append(judgement)
    return judgements


def _before_restoring(e: Evidence, *, fell: bool, rose: bool, kept: bool) -> Judgement | None:
    """What is settled by the fine-tuned model alone; None where it fell."""
    if e.tuned.failed is not None:
        return Judgement(verdict=INCONCLUSIVE, why="tuned not scored")
    if rose:
        return Judgement(verdict=GAINED, why="gained")
    if not e.above_chance:
        return Judgement(verdict=INCONCLUSIVE, why="base at chance")
    if kept:
        return Judgement(verdict=NONE, why="within margin")
    if not fell:
        return Judgement(verdict=INCONCLUSIVE, why="within noise")
    return None


def _usable(e: Evidence, level: float, tolerance: float) -> list[AtDose]:
    """The doses that something follows from."""
    return [at for at in e.doses if _why_not(at, level, tolerance) is None]


def _why_not(at: AtDose, level: float, tolerance: float) -> str | None:
    """Why nothing follows from a dose; None where something does."""
    needed = (at.restored, at.against_control, at.control, at.pattern, at.pattern_control)
    if any(c.failed is not None for c in needed):
        return "restored not scored"
    if _p_kept(at.control, at.control_tolerance) >= level:
        return "restoring costs"
    came_back = _either(_p_kept(at.pattern, tolerance), _p_kept(at.pattern_control, tolerance))
    return "pattern not back" if came_back >= level else None


def _unusable(e: Evidence, level: float, tolerance: float) -> Judgement:
    if not e.doses:
        return Judgement(verdict=INCONCLUSIVE, why="not restored")
    at = e.doses[-1]
    why = _why_not(at, level, tolerance)
    assert why is not None
    return Judgement(verdict=INCONCLUSIVE, why=why, at=at)


def _not_back(
    usable: Sequence[AtDose], *, below: bool, rising: bool, done: bool, level: float
) -> Judgement:
    """What follows where it fell, is restored and not shown to be back."""
    at = usable[-1]
    if not below:
        level_with_control = _p_kept(at.against_control) < level
        why = "level with the control" if level_with_control else "neither"
        return Judgement(verdict=INCONCLUSIVE, why=why, at=at)
    if at.more is None:
        return Judgement(verdict=ACTUAL, why="loss left, one dose", at=at)
    if rising:
        return Judgement(verdict=NOT_YET, why="still coming back", at=at)
    if done:
        return Judgement(verdict=ACTUAL, why="loss left", at=at)
    return Judgement(verdict=INCONCLUSIVE, why="may still come back", at=at)


# --------------------------------------------------------------------------------------- transition


def forgotten(scores: np.ndarray) -> np.ndarray:
    """What each of K checkpoints has forgotten: the lesser of what fine-tuning took and what
    restoring left of that. A checkpoint that scores like the base has forgotten nothing, whatever
    restoring then does to it.

    Args:
        scores: `[..., 2 + 2K]` float64, more is better: base, control, K fine-tuned models, the
            same restored.

    Returns:
        `[..., K]`: below 0 where it gained, or restoring brought it above base or control.
    """
    base, control = scores[..., :1], scores[..., 1:2]
    tuned, restored = np.split(scores[..., 2:], 2, -1)
    return np.minimum(base - tuned, np.minimum(base, control) - restored)


def first_lasting(lost: np.ndarray) -> np.ndarray:
    """`[..., K]` bool -> `[...]` int: the first checkpoint from which on all are lost; K where the
    last one is not."""
    lasting = np.flip(np.logical_and.accumulate(np.flip(lost, -1), -1), -1)
    return np.where(lasting.any(-1), lasting.argmax(-1), lost.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Range:
    """A checkpoint with an interval, all as places from 0; K stands for "after the last one"."""

    place: int
    low: int
    high: int


def transition(
    losses: np.ndarray, draws: np.ndarray, margin: float, *, confidence: float = 0.95
) -> Range:
    """Where actual forgetting begins: the first checkpoint from which on what is forgotten exceeds
    the margin.

    Args:
        losses: `[K]` float64: see `forgotten`.
        draws: `[B, K]` float64: the same from joint bootstrap samples.
        margin: that does not matter.
        confidence: of the interval, percentiles of the draws.
    """
    places = first_lasting(draws > margin)
    edge = 100.0 * (1.0 - confidence) / 2.0
    low, high = np.percentile(places, [edge, 100.0 - edge], method="inverted_cdf")
    return Range(place=int(first_lasting(losses > margin)), low=int(low), high=int(high))


# -------------------------------------------------------------------------------------------- tests


@dataclass(frozen=True, kw_only=True)
class _Looks:
    """Which of many p-values show what they are for, none of them falsely but with a chance of
    `level`. NaN: not tested, and no part of the family."""

    chains: Sequence[tuple[str, ...]]
    """Of each p-value; those of a chain in the order of training."""
    level: float

    def by_holm(self, p_values: Sequence[float]) -> list[bool]:
        """By Holm's method."""
        adjusted = iter(adjust([p for p in p_values if not math.isnan(p)], "holm"))
        return [not math.isnan(p) and next(adjusted) < self.level for p in p_values]

    def in_order(self, p_values: Sequence[float], *, last_first: bool = False) -> list[bool]:
        """By the fallback procedure (module docstring)."""
        places: dict[tuple[str, ...], list[int]] = {}
        for number, (chain, p) in enumerate(zip(self.chains, p_values, strict=True)):
            if not math.isnan(p):
                places.setdefault(chain, []).append(number)
        rejected = [False] * len(p_values)
        for numbers in places.values():
            ordered = numbers[::-1] if last_first else numbers
            of_chain = self.level / len(places)
            level = of_chain if len(ordered) == 1 else of_chain / 2
            carried = 0.0
            for number in ordered:
                level += carried
                rejected[number] = p_values[number] < level
                carried = level if rejected[number] else 0.0
                level = of_chain / 2 / max(1, len(ordered) - 1)
        return rejected


def _p_loss(c: Comparison | None) -> float:
    """One-sided p-value of "nothing was lost"; NaN, as below, where that is not tested."""
    test = paired_test(c) if c is not None else None
    if test is None or c is None:
        return math.nan
    return test.p_below() if c.higher_is_better else test.p_above()


def _p_gain(c: Comparison | None) -> float:
    """One-sided p-value of "nothing was gained"."""
    test = paired_test(c) if c is not None else None
    if test is None or c is None:
        return math.nan
    return test.p_above() if c.higher_is_better else test.p_below()


def _p_kept(c: Comparison | None, margin: float | None = None) -> float:
    """One-sided p-value of "at least the margin was lost"."""
    test = paired_test(c) if c is not None else None
    if test is None or c is None:
        return math.nan
    m = c.tolerated if margin is None else margin
    return test.p_above(-m) if c.higher_is_better else test.p_below(m)


def _p_no_more(c: Comparison | None) -> float:
    """One-sided p-value of "at least the margin was gained"."""
    test = paired_test(c) if c is not None else None
    if test is None or c is None:
        return math.nan
    m = c.tolerated
    return test.p_below(m) if c.higher_is_better else test.p_above(-m)


def _p_below(at: AtDose | None) -> float:
    """One-sided p-value of "restored, it scores as base or control do"."""
    return math.nan if at is None else _both(_p_loss(at.restored), _p_loss(at.against_control))


def _p_back(usable: Sequence[AtDose]) -> float:
    """One-sided p-value of "restored at any of the doses, it stays the margin below base or
    control"."""
    p_values = [_both(_p_kept(at.restored), _p_kept(at.against_control)) for at in usable]
    return min(1.0, len(p_values) * min(p_values)) if p_values else math.nan


def _both(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _either(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else min(1.0, 2.0 * min(one, other))
