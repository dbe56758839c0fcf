"""Methods compared at equal target: what a method keeps of the source where it has learnt just as
much.

A method's settings, from the weakest to the strongest, are points (target, source) of a curve.
Between neighbours it is taken as straight. What the method does at a wanted target is the best
source of the stretches whose target is at least that: of the points that reach it, and of the
places where the curve crosses it. So a grid that goes on beyond the wanted target changes nothing,
which is not so of a rule that takes one of its points.

The figure is formed seed by seed, each seed's curve at its own wanted target, so that seeds stay
paired and the interval over them is Student's. A place between two points a and b, at the share w
of the way, is to first order

    (1 - w) source_a + w source_b - (d source / d target) ((1 - w) target_a + w target_b - the
    wanted target)

which is linear in the trials' gains, so its samples' part is had as that of any such figure
(`statistics.samples_part`), and so is its covariance with what direct fine-tuning did. Where a
record does not say how far trials go together, it is

    half^2 = ((1 - w) h_a + w h_b)^2 + (d source / d target)^2 * (half of the target there^2 + half
    of the wanted one^2)

with the halves of a and b added as they are, for they come of the same samples. Where two points
have almost the same target the second part is large, and nothing can be told.

A method with other settings (a rate, a temperature) has a curve for each of them. Were every seed
to take the best of its own stretches, the figure would be too good by their noise, and the more so
the more there are. So the other seeds choose the curve and the place on it whose figure a seed
gives: from the noise of seeds a grid of many values has no advantage. Where the seed's own curve
crosses the target elsewhere, the crossing nearest to the chosen one is taken.

From the noise of samples it has one: all seeds answer the same questions, so that what these happen
to favour is favoured in every seed, and the others choose it too. Of equally good curves whose
noise of samples is independent with standard deviation s the figure is too good by about the
largest of so many normal numbers: 0.56 s of two, 1.27 s of six; less where seeds vary as well (1.0
s of six where they do as much) and where curves answer alike. The interval does not have it.
Compare methods with grids of about one size, or on samples that chose nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from holdfast.records.figure import Figure, SamplesPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """What one setting of a method did, over the same seeds on both sides."""

    target: Figure
    source: Figure
    beside: Figure | None = None
    """What is asked for in place of the source, where that is not what the place is chosen by."""


def _mean(places: Mapping[int, _Place]) -> Figure:
    """Over seeds, with the samples' part of the mean of their places."""
    by_seed = {seed: crossing.figure for seed, crossing in places.items()}
    samples_part = SamplesPart.total(
        (1 / len(places), crossing.samples_part) for crossing in places.values()
    )
    half = (
        statistics.fmean(crossing.half for crossing in places.values())
        if samples_part is None
        else samples_part.half
    )
    return Figure.over_seeds(by_seed, half, samples_part)


def source_at(curves: Sequence[Sequence[Point]], wanted: Figure) -> Figure | None:
    """The best source of a method where its target is at least as high as wanted (module
    docstring); with `beside`, that at the same place.

    Args:
        curves: of one method, one for each of its other settings (such as a temperature), points in
            the order of the strength.
        wanted: the target, seed by seed.

    Returns:
        Each seed's figure at the curve and the place that the other seeds choose (with one seed,
        that it chooses itself); None where no curve reaches the target in every seed.
    """
    places: dict[int, list[dict[float, _Place]]] = {}
    for seed in wanted.by_seed:
        places[seed] = [{p.at: p for p in _places(curve, seed, wanted)} for curve in curves]
    reaching = [n for n in range(len(curves)) if all(of_seed[n] for of_seed in places.values())]
    if not reaching:
        return None
    seeds = list(places)

    def best_place(among: Sequence[int]) -> tuple[int, float]:
        """The curve and the place on it where these seeds keep most of the source."""
        means: dict[tuple[int, float], float] = {}
        for n in reaching:
            for at in sorted(set().union(*(places[seed][n] for seed in among))):
                means[n, at] = statistics.fmean(
                    _nearest(places[seed][n], at).source for seed in among
                )
        return max(means, key=means.__getitem__)

    chosen = {}
    for seed in seeds:
        number, at = best_place([s for s in seeds if s != seed] or seeds)
        chosen[seed] = _nearest(places[seed][number], at)
    return _mean(chosen)


def _nearest(places: Mapping[float, _Place], at: float) -> _Place:
    """The place of a seed that is nearest to one that other seeds chose; to a crossing it is a
    crossing, where the seed has one."""

    def apart(own: float) -> tuple[bool, float, bool, float]:
        is_point = own.is_integer()
        return is_point and not at.is_integer(), abs(own - at), is_point, own

    return places[min(places, key=apart)]


@dataclasses.dataclass(frozen=True)
class _Place:
    """A point of a curve, or a place between two, with one seed."""

    at: float
    """Number of the point along the curve; between two of them their mean."""
    source: float
    figure: float
    """The source, or what stands beside it."""
    half: float
    """Half-width of the samples' part of the figure."""
    samples_part: SamplesPart | None


def _places(curve: Sequence[Point], seed: int, wanted: Figure) -> Iterator[_Place]:
    """The points that reach the target that is wanted of a seed, and the crossings."""
    target = wanted.by_seed[seed]
    for number, point in enumerate(curve):
        if point.target.by_seed[seed] >= target:
            figure = point.beside or point.source
            of_seed = point.source.by_seed[seed], figure.by_seed[seed]
            yield _Place(float(number), *of_seed, figure.samples_half, figure.samples_part)
    for number, (a, b) in enumerate(itertools.pairwise(curve)):
        t_a, t_b = a.target.by_seed[seed], b.target.by_seed[seed]
        if (t_a - target) * (t_b - target) >= 0:
            continue
        share = (t_a - target) / (t_a - t_b)
        source = (1 - share) * a.source.by_seed[seed] + share * b.source.by_seed[seed]
        first, second = a.beside or a.source, b.beside or b.source
        y_a, y_b = first.by_seed[seed], second.by_seed[seed]
        slope = (y_b - y_a) / (t_b - t_a)
        samples_part = SamplesPart.total(
            [
                (1 - share, first.samples_part),
                (share, second.samples_part),
                (-slope * (1 - share), a.target.samples_part),
                (-slope * share, b.target.samples_part),
                (slope, wanted.samples_part),
            ]
        )
        along = (1 - share) * first.samples_half + share * second.samples_half
        across = math.hypot(
            (1 - share) * a.target.samples_half + share * b.target.samples_half,
            wanted.samples_half,
        )
        half = math.hypot(along, slope * across) if samples_part is None else samples_part.half
        yield _Place(number + 0.5, source, (1 - share) * y_a + share * y_b, half, samples_part)
