"""Where longer pre-training turns from help to harm: the inflection point of a curve over budgets.

Overtrained Language Models, definition 4.2: the smallest budget after which the loss of the changed model rises. Of
measured losses the first rise is mostly noise, so the inflection point here is the budget with the least loss: the same
for a curve that falls and then rises, which is what the paper describes.

Its interval are the budgets that are not shown to be worse than the best one (multiple comparisons with the best, Hsu
1984). All budgets answer the same documents (or questions) under the same noise, so two are compared as pairs:

    d_s        loss at one budget minus loss at the best, seed by seed       Student's t over the seeds
    documents  infinitesimal jackknife of the mean over seeds, documents paired

The two parts are added as in `statistics.intervals.seeds_and_samples`; of one seed only the documents are known. The
level is divided by the number of comparisons (Bonferroni), since the best was chosen among them. What follows:

    turns           the largest budget is shown to be worse than the best
    does not turn   every other budget is shown to be worse than the largest
    cannot tell     anything else

It says nothing of other pre-trainings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.errors import DataError
from holdfast.statistics.estimates import Ratio
from holdfast.statistics.intervals import CONFIDENCE, normal_quantile, seeds_and_samples

TURNS, FALLS, CANNOT_TELL = "turns", "does not turn", "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The place of the least loss on a ladder of B budgets, counted from 0."""

    place: int
    interval: tuple[int, int]
    """The smallest and the largest place that is not shown to be worse."""
    losses: tuple[float, ...]
    """`[B]`, mean over seeds, in the figure's unit; signed so that higher is worse. Infinite where one of them is."""

    @property
    def verdict(self) -> str:
        """ "turns", "does not turn" (within the ladder) or "cannot tell"."""
        last = len(self.losses) - 1
        return TURNS if self.interval[1] < last else FALLS if self.interval[0] == last else CANNOT_TELL


def turn(
    figure: Ratio, columns: Sequence[Sequence[np.ndarray | None]], *, confidence: float = CONFIDENCE
) -> Turn | None:
    """Where a figure turns along a ladder.

    Args:
        figure: how it comes out of sums.
        columns: by budget and seed `[N, 2]` float64, what `figure.columns` makes of the N samples, in one order for
            all; None where the model's figures were not finite, which counts as infinitely bad.
        confidence: level of the interval, over all comparisons.

    Returns:
        None where no budget has a finite figure.

    Raises:
        DataError: fewer than two budgets, or samples or seeds that differ between budgets.
    """
    seeds = {len(one) for one in columns}
    shapes = {held.shape for one in columns for held in one if held is not None}
    if len(columns) < 2 or len(seeds) != 1 or len(shapes) > 1:
        raise DataError(
            f"Expected at least two budgets with the same seeds and samples, got {len(columns)} with "
            f"{sorted(seeds)} seeds and samples of {sorted(shapes)}."
        )
    sign = -1.0 if figure.higher_is_better else 1.0
    by_seed = [[math.inf if c is None else sign * float(figure.of_sums(c.sum(0))) for c in one] for one in columns]
    by_seed = [[loss if math.isfinite(loss) else math.inf for loss in one] for one in by_seed]
    losses = np.array(by_seed).mean(axis=1)
    if not np.isfinite(losses).any():
        return None
    finite = [b for b in range(len(columns)) if math.isfinite(losses[b])]
    moved = {b: np.mean([figure.influence(c) for c in columns[b] if c is not None], axis=0) for b in finite}
    best = max(b for b in finite if losses[b] == losses.min())
    level = 1 - (1 - confidence) / (len(columns) - 1)
    as_good = [best]
    for b in (b for b in finite if b != best):
        differences = [one - other for one, other in zip(by_seed[b], by_seed[best], strict=True)]
        half = normal_quantile(0.5 + CONFIDENCE / 2) * float(np.linalg.norm(moved[b] - moved[best]))
        interval = seeds_and_samples(differences, half, confidence=level)
        if interval is None or interval[0] <= 0:
            as_good.append(b)
    return Turn(place=best, interval=(min(as_good), max(as_good)), losses=tuple(float(v) for v in losses))
