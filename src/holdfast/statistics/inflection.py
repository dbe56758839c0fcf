"""Where longer pre-training turns from help to harm: the inflection point of a curve over budgets.

Overtrained Language Models, definition 4.2: the smallest budget after which the loss of the changed
model rises. Of measured losses the first rise is mostly noise, so the inflection point here is the
budget with the least loss: the same for a curve that falls and then rises, which is what the paper
describes.

Its interval are the budgets that are not shown to be worse than the best one (multiple comparisons
with the best, Hsu 1984). All budgets answer the same documents (or questions) under the same noise,
so two are compared as pairs:

    d_s        loss at one budget minus loss at the best, seed by seed       Student's t over the seeds
    documents  infinitesimal jackknife of the mean over seeds, documents paired

The two parts are added as in `statistics.intervals.seeds_and_samples`; of one seed only the
documents are known. The level is divided by the number of comparisons (Bonferroni), since the best
was chosen among them. For each budget the chance is kept at which it just stays in, so that the
interval can be had at any level. What follows:

    turns           the largest budget is shown to be worse than the best
    does not turn   every other budget is shown to be worse than the largest
    cannot tell     anything else

It says nothing of other pre-trainings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.errors import DataError
from holdfast.records.figure import CONFIDENCE, seeds_and_samples
from holdfast.statistics.estimates import Ratio
from holdfast.statistics.intervals import two_sided_p
from holdfast.support.quantiles import normal_quantile

TURNS, FALLS, CANNOT_TELL = "turns", "does not turn", "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The place of the least loss on a ladder of B budgets, counted from 0."""

    place: int
    interval: tuple[int, int]
    """The smallest and the largest place that is not shown to be worse."""
    losses: tuple[float, ...]
    """`[B]`, mean over seeds, in the figure's unit; signed so that higher is worse. Infinite where
    one of them is."""
    chances: tuple[float, ...]
    """`[B]`, see `places_at`; that of the best is the largest."""

    @property
    def verdict(self) -> str:
        """ "turns", "does not turn" (within the ladder) or "cannot tell"."""
        return verdict_of(self.interval, len(self.losses))


def places_at(chances: Sequence[float], level: float) -> tuple[int, int]:
    """The smallest and the largest place that is not shown to be worse than the best, at another
    level.

    Args:
        chances: for each place the chance left at the level at which it is just not shown to be
            worse, over all comparisons; above 1 where it never is.
        level: in [0, 1); at 0 the best place alone.
    """
    least = 1 - level if level > 0 else max(chances)
    as_good = [number for number, chance in enumerate(chances) if chance >= least]
    return min(as_good), max(as_good)


def verdict_of(interval: tuple[int, int], budgets: int) -> str:
    """What places that are not shown to be worse say of a ladder: "turns", "does not turn" (within
    it) or "cannot tell"."""
    last = budgets - 1
    return TURNS if interval[1] < last else FALLS if interval[0] == last else CANNOT_TELL


def turn(
    figure: Ratio, columns: Sequence[Sequence[np.ndarray | None]], *, confidence: float = CONFIDENCE
) -> Turn | None:
    """Where a figure turns along a ladder.

    Args:
        figure: how it comes out of sums.
        columns: by budget and seed `[N, 2]` float64, what `figure.columns` makes of the N samples,
            in one order for all; None where the model's figures were not finite, which counts as
            infinitely bad.
        confidence: level of the interval, over all comparisons.

    Returns:
        None where no budget has a finite figure.

    Raises:
        DataError: fewer than two budgets, or samples or seeds that differ between budgets.
    """
    seeds = {len(of_budget) for of_budget in columns}
    shapes = {matrix.shape for matrix in itertools.chain(*columns) if matrix is not None}
    if len(columns) < 2 or len(seeds) != 1 or len(shapes) > 1:
        raise DataError(
            "Expected at least two token budgets, all with the same number of seeds and the same "
            f"samples. Got {len(columns)} budgets, with {sorted(seeds)} seeds and samples of shape "
            f"{sorted(shapes)}."
        )
    sign = -1.0 if figure.higher_is_better else 1.0

    def loss_of(samples: np.ndarray | None) -> float:
        loss = math.inf if samples is None else sign * float(figure.of_sums(samples.sum(0)))
        return loss if math.isfinite(loss) else math.inf

    by_seed = [[loss_of(samples) for samples in of_budget] for of_budget in columns]
    losses = np.array(by_seed).mean(axis=1)
    if not np.isfinite(losses).any():
        return None
    finite = [b for b in range(len(columns)) if math.isfinite(losses[b])]
    moved = {}
    for b in finite:
        moved[b] = np.mean(
            [figure.influence(samples) for samples in columns[b] if samples is not None], axis=0
        )
    best = max(b for b in finite if losses[b] == losses.min())
    chances = [0.0] * len(columns)  # what is not finite is shown to be worse at any level
    for b in finite:
        differences = [loss - least for loss, least in zip(by_seed[b], by_seed[best], strict=True)]
        half = normal_quantile(0.5 + CONFIDENCE / 2) * float(np.linalg.norm(moved[b] - moved[best]))
        chances[b] = (len(columns) - 1) * _chance(differences, half)
    chances[best] = float(len(columns))
    return Turn(
        place=best,
        interval=places_at(chances, confidence),
        losses=tuple(float(v) for v in losses),
        chances=tuple(chances),
    )


def _chance(differences: Sequence[float], half: float) -> float:
    p = two_sided_p(lambda level: seeds_and_samples(differences, half, confidence=level))
    return 1.0 if math.isnan(p) else p  # one seed, and nothing known of the samples
