"""The inflection point: where a curve over budgets turns, with an interval that covers what it says it covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from holdfast.errors import DataError
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio
from holdfast.statistics.inflection import CANNOT_TELL, FALLS, TURNS, places_at, turn

NATS = TEXT_FIGURES["nats_per_token"]


def rungs(
    means: list[float], *, seeds: int = 3, documents: int = 60, noise: float = 0.05, rng: int = 0, apart: float = 0.0
) -> list:
    """Documents whose nats lie about a budget's mean; what makes a document hard is the same at all budgets. `apart`:
    how far a seed's noise moves a whole budget."""
    draws = np.random.default_rng(rng)
    tokens = draws.integers(20, 60, documents).astype(float)
    hard = draws.normal(0, 0.5, documents)
    found = []
    for mean in means:
        one = []
        for _ in range(seeds):
            level = mean + draws.normal(0, apart) + hard + draws.normal(0, noise, documents)
            one.append(np.stack([tokens * level, tokens], axis=1))
        found.append(one)
    return found


def test_a_clear_minimum_is_found_with_its_verdict() -> None:
    best = turn(NATS, rungs([3.0, 2.5, 2.0, 2.6]))
    assert best.place == 2 and best.interval == (2, 2) and best.verdict == TURNS
    falling = turn(NATS, rungs([3.0, 2.5, 2.0, 1.5]))
    assert (falling.place, falling.interval, falling.verdict) == (3, (3, 3), FALLS)
    same = turn(NATS, [rungs([2.0])[0]] * 3)
    assert (same.place, same.interval, same.verdict) == (2, (0, 2), CANNOT_TELL), "a tie says nothing"
    flat = turn(NATS, rungs([3.0, 2.0, 2.0, 2.0]))
    assert flat.verdict == CANNOT_TELL and flat.interval == (1, 3)


def test_the_interval_at_any_level_is_that_of_its_own_computation() -> None:
    held = rungs([2.02, 2.0, 2.01, 2.05], noise=0.1, apart=0.01)
    whole = turn(NATS, held)
    for level in (0.5, 0.8, 0.95, 0.99, 0.9999, 1 - 1e-9):
        assert places_at(whole.chances, level) == turn(NATS, held, confidence=level).interval
    assert places_at(whole.chances, 0.0) == (whole.place, whole.place)
    spans = [np.ptp(places_at(whole.chances, level)) for level in (0.0, 0.5, 0.95, 1 - 1e-12)]
    assert spans == sorted(spans) and spans[0] < spans[-1], "and it says more the less is asked"
    # where the documents bring no noise, Student's t over the seeds, times the comparisons
    alike = [[np.array([[v, 1.0]] * 40) for v in row] for row in ([2.0, 2.1, 2.2], [1.9, 2.05, 2.0], [2.5, 2.4, 2.6])]
    d = np.array([0.1, 0.05, 0.2])
    t = d.mean() / (d.std(ddof=1) / math.sqrt(3))
    assert turn(NATS, alike).chances[0] == pytest.approx(2 * 2 * stats.t.sf(t, 2), rel=1e-6)


def test_losses_are_those_of_the_sums() -> None:
    held = rungs([3.0, 2.0], seeds=2)
    for b, one in enumerate(held):
        wanted = np.mean([columns[:, 0].sum() / columns[:, 1].sum() for columns in one])
        assert turn(NATS, held).losses[b] == pytest.approx(wanted, abs=1e-12)


def test_accuracy_turns_the_other_way() -> None:
    right = [np.stack([np.array([1.0] * n + [0.0] * (200 - n)), np.ones(200)], axis=1) for n in (50, 150, 75)]
    best = turn(Ratio(numerator="acc", higher_is_better=True), [[one] for one in right])
    assert best.place == 1 and best.losses == pytest.approx((-0.25, -0.75, -0.375)) and best.verdict == TURNS


def test_what_overflows_is_the_worst_and_not_averaged_away() -> None:
    held = rungs([3.0, 2.0, 1.5])
    held[2][1] = None
    best = turn(NATS, held)
    assert best.losses[2] == math.inf and best.place == 1 and best.verdict == TURNS
    assert turn(NATS, [*rungs([3.0, 2.0]), [None] * 3]).verdict == TURNS
    assert turn(NATS, [[None] * 3] * 2) is None, "where nothing is left nothing turns"


def test_equal_seeds_and_samples_are_wanted() -> None:
    with pytest.raises(DataError, match="at least two token budgets"):
        turn(NATS, rungs([3.0]))
    with pytest.raises(DataError, match="the same number of seeds and the same samples"):
        turn(NATS, [rungs([3.0])[0], rungs([2.0], seeds=2)[0]])
    with pytest.raises(DataError, match="the same number of seeds and the same samples"):
        turn(NATS, [rungs([3.0])[0], rungs([2.0], documents=9)[0]])
