"""Has a fine-tuned model forgotten, or does it only not show what it knows? (Pattern Shifting or
Knowledge Losing.)

Four models answer the same questions: the base b, the fine-tuned model t, the model t after
restoring r, and the control c, which is the base after the same restoring, since restoring has a
cost and an effect of its own. What is judged are paired differences (`holdfast.statistics.paired`),
one-sided, against the margin m that does not matter:

    gained               t above b
    no forgetting        t not below b by more than m
    pseudo forgetting    t below b, the pattern is back, and r not below b, or not below c, by more than m
    actual forgetting    t below b, the pattern is back, and r below both b and c
    inconclusive         anything else

The pattern is back where held-out plain text costs r at most a tolerance more than b, or than c.
Nothing follows where the control lost more than its own tolerance. Of a task on which the base is
not shown to do better than chance nothing follows but a gain: there is nothing to lose.

Each kind of statement is one family over all checkpoints and tasks, adjusted by Holm's method: "t
is below b", "t is above b", "t is not below b by more than m", "r is below both" (the larger of two
p-values: both have to be shown) and "r is back" (twice the smaller: one is enough); tasks with
nothing to lose are in the family of gains alone. So each verdict is false anywhere in a study with
a chance of at most one side of the level. That a precondition is met (the pattern is back) is a
statement of its own and not adjusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.records.comparison import Comparison
from holdfast.records.stages import ACTUAL, GAINED, INCONCLUSIVE, NONE, PSEUDO
from holdfast.statistics.decision import level_of
from holdfast.statistics.family_wise import adjust
from holdfast.statistics.paired import paired_test


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one checkpoint on one task. All comparisons are of the same questions;
    `None` where a model was not measured."""

    tuned: Comparison
    """Base to fine-tuned model."""
    restored: Comparison | None = None
    """Base to restored model."""
    against_control: Comparison | None = None
    """Control to restored model."""
    control: Comparison | None = None
    """Base to control."""
    control_tolerance: float = 0.0
    """How much the control may have lost, in the task's own unit."""
    pattern: Comparison | None = None
    """Held-out plain text, base to restored model."""
    pattern_control: Comparison | None = None
    """Held-out plain text, control to restored model."""
    above_chance: bool = True
    """Whether the base is shown to do better than guessing."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What follows from it."""

    verdict: str
    """One of `records.stages.VERDICTS`."""
    why: str
    """One of `records.stages.REASONS`."""


def judge(evidence: Sequence[Evidence], *, tolerance: float) -> list[Judgement]:
    """The stage of every checkpoint on every task, in order.

    Args:
        evidence: of all checkpoints and tasks that are judged together.
        tolerance: nats per token that plain text may cost more for the pattern to be back.
    """
    rose = _adjusted([_p_gain(e.tuned) for e in evidence])
    known = [e if e.above_chance else None for e in evidence]
    fell = _adjusted([_p_loss(None if e is None else e.tuned) for e in known])
    stayed = _adjusted([_p_kept(None if e is None else e.tuned) for e in known])
    below = _adjusted([_p_below(e) for e in known])
    back = _adjusted([_p_back(e) for e in known])
    judgements = []
    for e, p_fell, p_rose, p_kept, p_below, p_back in zip(
        evidence, fell, rose, stayed, below, back, strict=True
    ):
        level = level_of(e.tuned.confidence)
        judgement = _before_restoring(
            e, fell=p_fell < level, rose=p_rose < level, kept=p_kept < level
        )
        if judgement is None:
            judgement = _unusable(e, level, tolerance=tolerance)
        if judgement is None:
            judgement = _after_restoring(e, below=p_below < level, back=p_back < level)
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


def _unusable(e: Evidence, level: float, *, tolerance: float) -> Judgement | None:
    """Why restoring tells nothing; None where it does."""
    needed = (e.restored, e.against_control, e.control, e.pattern, e.pattern_control)
    if any(c is None for c in needed):
        return Judgement(verdict=INCONCLUSIVE, why="not restored")
    assert e.control is not None
    if any(c is not None and c.failed is not None for c in needed):
        return Judgement(verdict=INCONCLUSIVE, why="restored not scored")
    if e.control.gain < -e.control_tolerance:
        return Judgement(verdict=INCONCLUSIVE, why="restoring costs")
    came_back = _either(_p_kept(e.pattern, tolerance), _p_kept(e.pattern_control, tolerance))
    if came_back >= level:
        return Judgement(verdict=INCONCLUSIVE, why="pattern not back")
    return None


def _after_restoring(e: Evidence, *, below: bool, back: bool) -> Judgement:
    if back:
        return Judgement(verdict=PSEUDO, why="came back")
    if below:
        return Judgement(verdict=ACTUAL, why="loss left")
    return Judgement(verdict=INCONCLUSIVE, why="neither")


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


def _p_loss(c: Comparison | None) -> float:
    """One-sided p-value of "nothing was lost"."""
    test = paired_test(c) if c is not None else None
    return (
        math.nan
        if test is None or c is None
        else test.p_below()
        if c.higher_is_better
        else test.p_above()
    )


def _p_gain(c: Comparison) -> float:
    """One-sided p-value of "nothing was gained"."""
    test = paired_test(c)
    return math.nan if test is None else test.p_above() if c.higher_is_better else test.p_below()


def _p_kept(c: Comparison | None, margin: float | None = None) -> float:
    """One-sided p-value of "at least the margin was lost"."""
    test = paired_test(c) if c is not None else None
    if test is None or c is None:
        return math.nan
    m = c.tolerated if margin is None else margin
    return test.p_above(-m) if c.higher_is_better else test.p_below(m)


def _p_below(e: Evidence | None) -> float:
    """One-sided p-value of "restored, it scores as base or control do"; NaN where that is not
    tested."""
    return math.nan if e is None else _both(_p_loss(e.restored), _p_loss(e.against_control))


def _p_back(e: Evidence | None) -> float:
    """One-sided p-value of "restored, it stays the margin below base and control"; NaN where that
    is not tested."""
    return math.nan if e is None else _either(_p_kept(e.restored), _p_kept(e.against_control))


def _both(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _either(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else min(1.0, 2.0 * min(one, other))


def _adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's; what was not tested is 1 and no part of the family."""
    known = [p for p in p_values if not math.isnan(p)]
    adjusted = iter(adjust(known, "holm"))
    return [1.0 if math.isnan(p) else next(adjusted) for p in p_values]
