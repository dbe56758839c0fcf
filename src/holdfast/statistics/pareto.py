"""The Pareto frontier of points whose both coordinates are better when larger, and its knee."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other point dominates: more is better on both axes, and what
    dominates is at least as good on both and better on one.

    Equal points stay together; points with a NaN are never among them.

    Returns:
        Indices by the first coordinate ascending (so the second descends), then by place.
    """
    values = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    known = np.flatnonzero(~np.isnan(values).any(1))
    order = known[np.lexsort((known, -values[known, 1], -values[known, 0]))]
    frontier: list[int] = []
    best = -math.inf
    for i in order:
        if values[i, 1] > best or (frontier and np.array_equal(values[i], values[frontier[-1]])):
            frontier.append(int(i))
            best = float(values[i, 1])
    return sorted(frontier, key=lambda i: (values[i, 0], -values[i, 1], i))


def knee_distances(points: Sequence[tuple[float, float]]) -> dict[int, float]:
    """How far each point of the frontier lies beyond the chord between its ends, with both axes
    scaled to 0..1 between these ends.

    Args:
        points: (keep, learn) gains; more is better on both.

    Returns:
        Index -> distance; 0 for the ends and for a frontier of one point, negative within the
        chord. Empty without points.
    """
    frontier = pareto(points)
    if not frontier:
        return {}
    (low_x, high_y), (high_x, low_y) = points[frontier[0]], points[frontier[-1]]
    if high_x == low_x:
        return dict.fromkeys(frontier, 0.0)
    distances = {}
    for i in frontier:
        x, y = points[i]
        scaled_x, scaled_y = (x - low_x) / (high_x - low_x), (y - low_y) / (high_y - low_y)
        distances[i] = (scaled_x + scaled_y - 1) / math.sqrt(2)
    return distances
