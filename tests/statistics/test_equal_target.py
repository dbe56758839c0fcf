"""What a method keeps at equal target: interpolation, seeds that stay paired, and the noise of both sides."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.records.figure import Figure
from holdfast.statistics.equal_target import Point, source_at


def seeds(*values, half=0.0):
    return Figure(value=sum(values) / len(values), by_seed=dict(enumerate(values)), samples_half=half)


def curve(*points, half=0.0):
    return [Point(target=seeds(*t, half=half), source=seeds(*s, half=half)) for t, s in points]


LINE = curve(((1.0,), (-1.0,)), ((0.8,), (-0.2,)), ((0.2,), (-0.1,)))


@pytest.mark.parametrize(
    ("wanted", "source"), [(1.0, -1.0), (0.9, -0.6), (0.8, -0.2), (0.5, -0.15), (0.2, -0.1), (0.1, -0.1)]
)
def test_between_points_and_at_them(wanted, source):
    found = source_at([LINE], seeds(wanted))
    assert found.value == pytest.approx(source)


def test_what_no_setting_reaches():
    assert source_at([LINE], seeds(1.01)) is None
    assert source_at([], seeds(0.5)) is None
    two = curve(((1.0, 0.4), (-1.0, -1.0)), ((0.2, 0.2), (0.0, 0.0)))
    assert source_at([two], seeds(0.5, 0.5)) is None, "the second seed does not get there"


def test_going_on_beyond_the_target_changes_nothing():
    shorter, longer = source_at([LINE[:2]], seeds(0.9)), source_at([LINE], seeds(0.9))
    assert shorter == longer


def test_the_best_of_several_curves_seed_by_seed():
    other = curve(((0.95,), (-0.3,)), ((0.1,), (0.0,)))
    found = source_at([LINE, other], seeds(0.9))
    assert found.value == pytest.approx(-0.3 + 0.3 * 0.05 / 0.85)


def test_what_stands_beside_is_that_of_the_same_place():
    """Direct fine-tuning reaches the target too, and has the larger figure; the place is chosen by the source."""
    points = [
        Point(target=seeds(t), source=seeds(s), beside=seeds(b))
        for t, s, b in ((1.0, -1.0, 9.0), (0.8, -0.2, 2.0), (0.4, -0.1, 1.0))
    ]
    found = source_at([points], seeds(0.7))
    assert found.value == pytest.approx(1.75)


def test_the_place_on_a_curve_is_chosen_by_the_other_seeds():
    """The third seed alone keeps most at the last point; where it is left out the middle one is chosen."""
    points = curve(
        ((1.0, 1.0, 1.0), (-1.0, -1.0, -1.0)),
        ((0.9, 0.9, 0.9), (-0.2, -0.2, -0.2)),
        ((0.8, 0.8, 0.8), (-0.3, -0.3, 0.5)),
    )
    tuned = source_at([points], seeds(0.5, 0.5, 0.5))
    assert tuned.by_seed == {0: -0.3, 1: -0.3, 2: -0.2}
    elsewhere = curve(
        ((1.0, 1.0), (-1.0, -1.0)), ((0.6, 0.4), (-0.2, -0.2)), ((0.2, 0.2), (0.0, 0.0))
    )  # the first seed crosses 0.5 behind the middle point, the second before it
    tuned = source_at([elsewhere], seeds(0.5, 0.5))
    assert tuned.by_seed == pytest.approx({0: -0.15, 1: -0.2 - 0.8 / 6})


def test_seeds_are_paired():
    """A seed that learns more does so in direct fine-tuning too: at each seed's own target nothing differs."""
    shift = np.array([-0.2, 0.0, 0.2])
    points = [((t * (1 + shift)).tolist(), [s] * 3) for t, s in ((1.0, -1.0), (0.5, -0.2))]
    found = source_at([curve(*points)], seeds(*(0.75 * (1 + shift))))
    assert list(found.by_seed.values()) == pytest.approx([-0.6] * 3)
    interval = found.interval_at(0.95)
    assert interval == pytest.approx((-0.6, -0.6))


def test_noise_of_the_samples():
    """At the middle of two points: their own halves as they are, and the target's times the slope (0.8 per 0.2)."""
    noisy = curve(((1.0,), (-1.0,)), ((0.8,), (-0.2,)), half=0.01)
    found = source_at([noisy], seeds(0.9, half=0.02))
    assert found.samples_half == pytest.approx(np.hypot(0.01, 4.0 * np.hypot(0.01, 0.02)))
    at_point = source_at([noisy], seeds(0.8, half=0.02))
    assert at_point is not None and at_point.samples_half == pytest.approx(0.01)
