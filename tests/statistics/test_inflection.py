"""The inflection point: where a curve over budgets turns, with an interval that covers what it says it covers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.errors import DataError
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio
from holdfast.statistics.inflection import CANNOT_TELL, FALLS, TURNS, turn

NATS = TEXT_FIGURES["nats_per_token"]


def rungs(means: list[float], *, seeds: int = 3, documents: int = 60, noise: float = 0.05, rng: int = 0) -> list:
    """Documents whose nats lie about a budget's mean; what makes a document hard is the same at all budgets."""
    draws = np.random.default_rng(rng)
    tokens = draws.integers(20, 60, documents).astype(float)
    hard = draws.normal(0, 0.5, documents)
    found = []
    for mean in means:
        level = mean + hard + draws.normal(0, noise, documents)
        found.append([np.stack([tokens * (level + draws.normal(0, noise)), tokens], axis=1) for _ in range(seeds)])
    return found


def test_a_clear_minimum_is_found_with_its_verdict() -> None:
    best = turn(NATS, rungs([3.0, 2.5, 2.0, 2.6]))
    assert best.place == 2 and best.interval == (2, 2) and best.turned == 1.0
    assert best.verdict(0.95) == TURNS
    falling = turn(NATS, rungs([3.0, 2.5, 2.0, 1.5]))
    assert (falling.place, falling.turned, falling.verdict(0.95)) == (3, 0.0, FALLS)
    same = turn(NATS, [rungs([2.0])[0]] * 3)
    assert (same.place, same.turned, same.fell, same.verdict(0.95)) == (2, 0.0, 0.0, CANNOT_TELL), "a tie says nothing"
    flat = turn(NATS, rungs([3.0, 2.0, 2.0, 2.0]))
    assert flat.verdict(0.95) == CANNOT_TELL and flat.interval[0] < flat.interval[1]


def test_losses_are_those_of_the_sums() -> None:
    held = rungs([3.0, 2.0], seeds=2)
    best = turn(NATS, held)
    for b, one in enumerate(held):
        wanted = np.mean([columns[:, 0].sum() / columns[:, 1].sum() for columns in one])
        assert best.losses[b] == pytest.approx(wanted, abs=1e-12)


def test_accuracy_turns_the_other_way() -> None:
    right = [np.stack([np.array([1.0] * n + [0.0] * (40 - n)), np.ones(40)], axis=1) for n in (10, 30, 15)]
    best = turn(Ratio(numerator="acc", higher_is_better=True), [[one] for one in right])
    assert best.place == 1 and best.losses == pytest.approx((-0.25, -0.75, -0.375)) and best.verdict(0.95) == TURNS


def test_what_overflows_is_the_worst_and_not_averaged_away() -> None:
    held = rungs([3.0, 2.0, 1.5])
    held[2][1] = None
    best = turn(NATS, held)
    assert best.losses[2] == math.inf and best.place == 1 and best.turned > 0.6
    assert turn(NATS, [*rungs([3.0, 2.0]), [None] * 3]).verdict(0.95) == TURNS


def test_the_interval_covers_the_true_place() -> None:
    """Of 80 ladders whose true losses turn softly, the interval holds the true best budget in about 95 %."""
    true = [2.00, 1.97, 1.965, 1.99]
    held = [turn(NATS, rungs(true, seeds=8, noise=0.02, rng=n), resamples=200).interval for n in range(80)]
    covered = sum(low <= 2 <= high for low, high in held) / 80
    assert covered >= 0.88, covered
    assert sum(low < high for low, high in held) > 8, "it is not one place always"


def test_equal_seeds_and_samples_are_wanted() -> None:
    with pytest.raises(DataError, match="at least two budgets"):
        turn(NATS, rungs([3.0]))
    with pytest.raises(DataError, match="the same seeds and samples"):
        turn(NATS, [rungs([3.0])[0], rungs([2.0], seeds=2)[0]])
    with pytest.raises(DataError, match="the same seeds and samples"):
        turn(NATS, [rungs([3.0])[0], rungs([2.0], documents=9)[0]])
