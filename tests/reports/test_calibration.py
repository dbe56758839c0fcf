"""Calibration errors: by hand, against what chance shows, and with intervals that are paired between models."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.errors import DataError
from holdfast.reports.calibration import calibration, calibration_change, calibration_interval, confidences


def test_calibration_error_by_hand() -> None:
    """Bins {0.5, 0.6} with 1 of 2 right and {0.8, 0.9} with 2 of 2: (|0.5 - 0.55| + |1 - 0.85|) / 2 = 0.1."""
    found = calibration([0.9, 0.5, 0.8, 0.6], [1, 1, 1, 0], bins=2)
    assert found.error == pytest.approx(0.1)
    assert found.confidence == pytest.approx((0.55, 0.85))
    assert found.accuracy == pytest.approx((0.5, 1.0))
    assert found.counts == (2, 2)
    variances = 0.5 * 0.5 + 0.6 * 0.4, 0.9 * 0.1 + 0.8 * 0.2
    assert found.chance == pytest.approx(sum(math.sqrt(2 * v / math.pi) for v in variances) / 4)


def test_bins_have_equal_mass_and_perfect_answers_no_error() -> None:
    rng = np.random.default_rng(0)
    found = calibration(rng.random(1003), rng.random(1003) < 0.5)
    assert sum(found.counts) == 1003 and max(found.counts) - min(found.counts) <= 1 and len(found.counts) == 10
    assert calibration([1.0, 1.0, 1.0], [1, 1, 1]).error == 0
    assert calibration([1.0], [0]).error == 1
    assert calibration([0.7] * 10, [1] * 7 + [0] * 3, bins=1).error == pytest.approx(0)


def test_what_a_calibrated_model_shows_by_chance() -> None:
    rng = np.random.default_rng(1)
    shown, chance = [], []
    for _ in range(60):
        sure = rng.uniform(0.3, 0.98, 400)
        found = calibration(sure, rng.random(400) < sure)
        shown.append(found.error)
        chance.append(found.chance)
    assert np.mean(shown) == pytest.approx(np.mean(chance), rel=0.07)


def test_the_interval_surrounds_the_error_and_the_change_is_paired() -> None:
    rng = np.random.default_rng(2)
    sure = rng.uniform(0.3, 0.98, 800)
    luck = rng.random(800)
    little, much = luck < sure - 0.05, luck < sure - 0.2
    low, high = calibration_interval(sure, much, resamples=300)
    assert 0.1 < low < 0.2 < high < 0.3
    assert np.isnan(calibration_interval(sure[:1], much[:1])).all(), "one question says nothing of how it varies"
    change, interval = calibration_change((sure, little), (sure, much), resamples=300)
    assert change == pytest.approx(calibration(sure, much).error - calibration(sure, little).error)
    assert interval[0] < change < interval[1] and interval[0] > 0.05
    same = calibration_change((sure, much), (sure, much), resamples=300)
    assert same[0] == 0 and all(math.isnan(v) for v in same[1])  # no draw differs, so there is no interval to form


@pytest.mark.parametrize(
    ("confidence", "correct", "bins"),
    [([], [], 10), ([0.5], [1, 0], 10), ([1.5], [1], 10), ([-3.2], [1], 10), ([0.5], [2], 10), ([0.5], [1], 0)],
)
def test_what_cannot_be_binned_is_refused(confidence, correct, bins) -> None:
    with pytest.raises(DataError, match="Expected"):
        calibration(confidence, correct, bins=bins)


def test_a_change_of_other_questions_is_refused() -> None:
    with pytest.raises(DataError, match=r"same questions.*got 1 and 2"):
        calibration_change(([0.5], [1]), ([0.5, 0.6], [1, 0]))


def test_models_are_paired_however_few_confidences_the_one_has() -> None:
    """One model has two confidences, the other many; both are right on nearly the same questions."""
    rng = np.random.default_rng(5)
    coarse = np.where(rng.random(1000) < 0.5, 0.9, 0.6)
    fine = coarse + rng.uniform(-1e-6, 1e-6, 1000)
    right = (rng.random(1000) < coarse - 0.2).astype(float)
    _, (low, high) = calibration_change((coarse, right), (fine, right), bins=2, resamples=300)
    unpaired = calibration_interval(coarse, right, bins=2, resamples=300)
    assert high - low < 0.2 * (unpaired[1] - unpaired[0])


def test_confidences_are_those_of_the_given_answer() -> None:
    rows = [{"probabilities": [0.2, 0.8], "answer": 1, "acc": 1}, {"probabilities": [0.6, 0.4], "answer": 0, "acc": 0}]
    assert confidences(rows) == ([0.8, 0.6], [1.0, 0.0])
    for wrong in (
        {"answer": 1, "acc": 1},
        {"probabilities": [0.5], "answer": 1, "acc": 1},
        {"probabilities": [1.0], "answer": None, "acc": 1},
    ):
        assert confidences([*rows, wrong]) is None
