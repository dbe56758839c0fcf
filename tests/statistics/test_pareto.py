"""The frontier and its knee, by hand and against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.statistics.pareto import knee_distances, pareto


def test_the_frontier_by_hand():
    points = [(0.0, 0.0), (-1.0, 5.0), (-0.5, 4.0), (-0.5, 3.0), (-2.0, 5.0), (math.nan, 9.0), (-0.5, 4.0)]
    assert pareto(points) == [1, 2, 6, 0]
    assert pareto([]) == []
    assert pareto([(1.0, 1.0)]) == [0]


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), max_size=25))
@settings(max_examples=150, deadline=None)
def test_the_frontier_is_what_nothing_beats(points):
    def better(a, b):
        return a[0] >= b[0] and a[1] >= b[1] and a != b

    expected = {i for i, p in enumerate(points) if not any(better(q, p) for q in points)}
    found = pareto(points)
    assert set(found) == expected
    assert [points[i][0] for i in found] == sorted(points[i][0] for i in found)


def test_the_knee_by_hand_and_its_edge_cases():
    points = [(0.0, 0.0), (-1.0, 1.0), (-0.25, 0.75), (-0.5, 0.5), (-0.6, 0.8)]
    found = knee_distances([(7 * x, y / 3) for x, y in points])  # whatever the units
    assert found == pytest.approx({1: 0.0, 2: 0.5 / math.sqrt(2), 4: 0.2 / math.sqrt(2), 0: 0.0})
    assert knee_distances([(0.0, 0.0), (-1.0, 1.0)]) == {1: 0.0, 0: 0.0}
    assert knee_distances([(0.3, 0.2), (0.0, 0.0)]) == {0: 0.0}
    assert knee_distances([]) == {}
    assert knee_distances([(0.0, 0.0), (-0.9, 0.5), (-1.0, 1.0)])[1] < 0  # within the chord
