"""Adjusted p-values against hand calculation, and the chance of a false alarm over many tests."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.statistics.family_wise import adjust, sign_flips


def test_holm_by_hand():
    assert adjust([0.01, 0.04, 0.03, 0.005], "holm") == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust([0.6, 0.5], "holm") == [1.0, 1.0]
    assert adjust([0.01, 0.04], "none") == [0.01, 0.04]
    assert adjust([0.01], "holm") == [0.01] and adjust([], "holm") == []


def flips(columns: np.ndarray, resamples: int = 4000) -> np.ndarray:
    """Tests that share all samples, one a column."""
    return sign_flips(
        [{"one": c} for c in columns.T], [1.0] * columns.shape[1], resamples=resamples, seed_of=lambda _: 0
    )


def test_max_t_counts_tests_that_say_the_same_once():
    same = np.repeat(np.random.default_rng(0).normal(size=(200, 1)), 10, axis=1)
    p = [0.02] * 10
    assert adjust(p, "holm") == pytest.approx([0.2] * 10)
    assert adjust(p, "max_t", lambda: flips(same)) == pytest.approx([0.02] * 10, abs=0.012)
    independent = np.random.default_rng(1).normal(size=(200, 10))
    independent -= independent.mean(0)
    found = adjust(p, "max_t", lambda: flips(np.linalg.qr(independent)[0]))
    assert found == pytest.approx([1 - 0.98**10] * 10, abs=0.02), "Sidak's, where tests are independent"


def test_entries_flip_on_their_own_and_samples_together():
    w = np.random.default_rng(0).normal(size=300)
    draws = sign_flips(
        [{"a": w}, {"a": w}, {"b": w}, {"a": w, "b": w}], [1, -1, 1, 1], resamples=4000, seed_of=lambda key: ord(key)
    )
    together = np.corrcoef(draws.T)
    assert together[0, 1] == pytest.approx(-1.0)
    assert together[0, 2] == pytest.approx(0.0, abs=0.06)
    assert together[0, 3] == pytest.approx(0.5**0.5, abs=0.04)
    assert draws.std(0) == pytest.approx(np.ones(4), rel=0.05)
