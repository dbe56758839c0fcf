"""Methods compared at equal target: what a method keeps of the source where it has learnt just as much.

A method's settings, from the weakest to the strongest, are points (target, source) of a curve. Between neighbours it is
taken as straight. What the method does at a wanted target is the best source of the stretches whose target is at least
that: of the points that reach it, and of the places where the curve crosses it. So a grid that goes on beyond the
wanted target changes nothing, which is not so of a rule that takes one of its points.

The figure is formed seed by seed, each seed's curve at its own wanted target, so that seeds stay paired and the
interval over them is Student's. A place between two points a and b, at the share w of the way, is to first order

    (1 - w) source_a + w source_b - (d source / d target) ((1 - w) target_a + w target_b - the wanted target)

which is linear in the trials' gains, so its samples' part is had as that of any such figure
(`statistics.samples_part`), and so is its covariance with what direct fine-tuning did. Where a record does not say how
far trials go together, it is

    half^2 = ((1 - w) h_a + w h_b)^2 + (d source / d target)^2 * (half of the target there^2 + half of the wanted one^2)

with the halves of a and b added as they are, for they come of the same samples. Where two points have almost the same
target the second part is large, and nothing can be told. The best of several stretches is rather too good by their
noise; the mean over the seeds keeps that in.

A method with other settings (a rate, a temperature) has a curve for each of them. `tuned_source_at` lets the other
seeds choose the curve whose figure a seed gives, so that no curve is taken for that seed's noise. `area` is the figure
at equal target over all targets from 0 to what direct fine-tuning learns: the hypervolume that the curves dominate,
without a premium for grids of many values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from holdfast.statistics.gains import OverSeeds
from holdfast.statistics.samples_part import SamplesPart, total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """What one setting of a method did, over the same seeds on both sides."""

    target: OverSeeds
    source: OverSeeds
    beside: OverSeeds | None = None
    """What is asked for in place of the source, where that is not what the place is chosen by."""


def source_at(curves: Sequence[Sequence[Point]], wanted: OverSeeds) -> OverSeeds | None:
    """The best source of a method where its target is at least as high as wanted (module docstring); with `beside`,
    that at the same place.

    Args:
        curves: of one method, one for each of its other settings (such as a temperature), points in the order of the
            strength.
        wanted: the target, seed by seed.

    Returns:
        None where in some seed no curve reaches it.
    """
    best: dict[int, _Place] = {}
    for seed, target in wanted.by_seed.items():
        places = [p for curve in curves for p in _places(curve, seed, target, wanted)]
        if not places:
            return None
        best[seed] = max(places, key=lambda p: (p.source, p.figure, p.half))
    return _mean({seed: place.figure for seed, place in best.items()}, list(best.values()))


def _mean(by_seed: dict[int, float], parts: Sequence[_Place | OverSeeds]) -> OverSeeds:
    """Over seeds, with the samples' part of the mean of `parts`."""
    whole = total((1 / len(parts), part.samples_part) for part in parts)
    halves = [part.half if isinstance(part, _Place) else part.samples_half for part in parts]
    half = statistics.fmean(halves) if whole is None else whole.half
    return OverSeeds(value=statistics.fmean(by_seed.values()), by_seed=by_seed, samples_half=half, samples_part=whole)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """A method at equal target, its other settings tuned."""

    figure: OverSeeds
    """Each seed's by the curve that the other seeds choose (with one seed, by its own)."""
    curve: int
    """Place of the curve that all seeds together choose."""


def tuned_source_at(curves: Sequence[Sequence[Point]], wanted: OverSeeds) -> Tuned | None:
    """The source of a method where its target is at least as high as wanted, at the curve that is best there.

    Args:
        curves: as of `source_at`.
        wanted: the target, seed by seed.

    Returns:
        None where no curve reaches it in every seed.
    """
    chosen_by, figures = {}, {}
    for place, curve in enumerate(curves):
        alone = source_at([[dataclasses.replace(p, beside=None) for p in curve]], wanted)
        figure = source_at([curve], wanted)
        if alone is not None and figure is not None:
            chosen_by[place], figures[place] = alone.by_seed, figure
    if not figures:
        return None
    seeds = list(wanted.by_seed)

    def best(among: Sequence[int]) -> int:
        return max(figures, key=lambda place: (sum(chosen_by[place][s] for s in among), -place))

    taken = {seed: figures[best([s for s in seeds if s != seed] or seeds)] for seed in seeds}
    by_seed = {seed: figure.by_seed[seed] for seed, figure in taken.items()}
    return Tuned(figure=_mean(by_seed, list(taken.values())), curve=best(seeds))


TARGETS = 100
"""Targets that `area` is a mean over."""


def area(curves: Sequence[Sequence[Point]], gained: OverSeeds, lost: float) -> OverSeeds:
    """The hypervolume of a method's curves, seed by seed: the mean share of a loss that is avoided, between none and
    all of it, over all targets from 0 to what was gained; 1 keeps everything and learns everything, a target that is
    not reached counts 0.

    Args:
        curves: as of `source_at`.
        gained: by direct fine-tuning on the target, above 0 in every seed.
        lost: by it on the source, mean over the seeds, above 0.
    """
    by_seed = {}
    for seed, whole in gained.by_seed.items():
        shares = []
        for step in range(TARGETS):
            places = [p.source for curve in curves for p in _places(curve, seed, (step + 0.5) / TARGETS * whole, None)]
            shares.append(min(1.0, max(0.0, 1 + max(places) / lost)) if places else 0.0)
        by_seed[seed] = statistics.fmean(shares)
    return OverSeeds(value=statistics.fmean(by_seed.values()), by_seed=by_seed, samples_half=0.0)


@dataclasses.dataclass(frozen=True)
class _Place:
    """A point of a curve, or a place between two, with one seed."""

    source: float
    figure: float
    """The source, or what stands beside it."""
    half: float
    """Half-width of the samples' part of the figure."""
    samples_part: SamplesPart | None


def _places(curve: Sequence[Point], seed: int, target: float, wanted: OverSeeds | None) -> Iterator[_Place]:
    """The points that reach a target, and the crossings; `wanted` is what the target is a seed of, None where it is
    known."""
    for point in curve:
        if point.target.by_seed[seed] >= target:
            figure = point.beside or point.source
            yield _Place(point.source.by_seed[seed], figure.by_seed[seed], figure.samples_half, figure.samples_part)
    for a, b in itertools.pairwise(curve):
        t_a, t_b = a.target.by_seed[seed], b.target.by_seed[seed]
        if (t_a - target) * (t_b - target) >= 0:
            continue
        share = (t_a - target) / (t_a - t_b)
        source = (1 - share) * a.source.by_seed[seed] + share * b.source.by_seed[seed]
        first, second = a.beside or a.source, b.beside or b.source
        y_a, y_b = first.by_seed[seed], second.by_seed[seed]
        slope = (y_b - y_a) / (t_b - t_a)
        part = total(
            [
                (1 - share, first.samples_part),
                (share, second.samples_part),
                (-slope * (1 - share), a.target.samples_part),
                (-slope * share, b.target.samples_part),
                *([] if wanted is None else [(slope, wanted.samples_part)]),
            ]
        )
        along = (1 - share) * first.samples_half + share * second.samples_half
        across = math.hypot(
            (1 - share) * a.target.samples_half + share * b.target.samples_half,
            0.0 if wanted is None else wanted.samples_half,
        )
        half = math.hypot(along, slope * across) if part is None else part.half
        yield _Place(source, (1 - share) * y_a + share * y_b, half, part)
