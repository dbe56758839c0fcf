"""Methods compared at equal target: what a method keeps of the source where it has learnt just as much.

A method's settings, from the weakest to the strongest, are points (target, source) of a curve. Between neighbours it is
taken as straight. What the method does at a wanted target is the best source of the stretches whose target is at least
that: of the points that reach it, and of the places where the curve crosses it. So a grid that goes on beyond the
wanted target changes nothing, which is not so of a rule that takes one of its points.

The figure is formed seed by seed, each seed's curve at its own wanted target, so that seeds stay paired and the
interval over them is Student's. The samples' part of a place between two points a and b, at the share w of the way, is

    half^2 = ((1 - w) h_a + w h_b)^2 + (d source / d target)^2 * (half of the target there^2 + half of the wanted one^2)

with the halves of a and b added as they are, for they come of the same samples. Where two points have almost the same
target the second part is large, and nothing can be told. The best of several stretches is rather too good by their
noise; the mean over the seeds keeps that in.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from holdfast.statistics.gains import OverSeeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """What one setting of a method did, over the same seeds on both sides."""

    target: OverSeeds
    source: OverSeeds


def source_at(curves: Sequence[Sequence[Point]], wanted: OverSeeds) -> OverSeeds | None:
    """The best source of a method where its target is at least as high as wanted (module docstring).

    Args:
        curves: of one method, one for each of its other settings (such as a temperature), points in the order of the
            strength.
        wanted: the target, seed by seed.

    Returns:
        None where in some seed no curve reaches it.
    """
    by_seed, halves = {}, []
    for seed, target in wanted.by_seed.items():
        places = [p for curve in curves for p in _places(curve, seed, target, wanted.samples_half)]
        if not places:
            return None
        by_seed[seed], half = max(places)
        halves.append(half)
    return OverSeeds(value=statistics.fmean(by_seed.values()), by_seed=by_seed, samples_half=statistics.fmean(halves))


def _places(curve: Sequence[Point], seed: int, target: float, wanted_half: float) -> Iterator[tuple[float, float]]:
    """(source, half-width of the samples' part) of the points that reach a target, and of the crossings."""
    for point in curve:
        if point.target.by_seed[seed] >= target:
            yield point.source.by_seed[seed], point.source.samples_half
    for a, b in itertools.pairwise(curve):
        t_a, t_b = a.target.by_seed[seed], b.target.by_seed[seed]
        if (t_a - target) * (t_b - target) >= 0:
            continue
        s_a, s_b, share = a.source.by_seed[seed], b.source.by_seed[seed], (t_a - target) / (t_a - t_b)
        along = (1 - share) * a.source.samples_half + share * b.source.samples_half
        across = math.hypot((1 - share) * a.target.samples_half + share * b.target.samples_half, wanted_half)
        yield (1 - share) * s_a + share * s_b, math.hypot(along, (s_b - s_a) / (t_b - t_a) * across)
