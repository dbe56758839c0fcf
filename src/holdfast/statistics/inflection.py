"""Where longer pre-training turns from help to harm: the inflection point of a curve over budgets.

Paper 003, definition 4.2: the smallest budget after which the loss of the changed model rises. Of measured losses the
first rise is mostly noise, so the inflection point here is the budget with the least loss: the same for a curve that
falls and then rises, which is what the paper describes. Where that is the largest budget, the loss has not turned
within the ladder.

The interval is that of the bootstrap: documents (or questions) and seeds are drawn with replacement, the same ones for
all budgets, since all answer the same questions under the same noise. With one seed it covers the documents alone, and
of two or three seeds the bootstrap sees less spread than there is. It says nothing of other pre-trainings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.errors import DataError
from holdfast.statistics.estimates import Ratio
from holdfast.statistics.intervals import resampled_counts

TURNS, FALLS, CANNOT_TELL = "turns", "does not turn", "cannot tell"
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The place of the least loss on a ladder of B budgets, counted from 0; B - 1: it has not turned."""

    place: int
    interval: tuple[int, int]
    """Of the place, at the confidence asked for."""
    turned: float
    """Share of the resamples in which a smaller budget than the largest has the least loss."""
    fell: float
    """Share in which the largest has it; the rest are ties."""
    losses: tuple[float, ...]
    """By budget, mean over seeds; signed so that higher is worse. Infinite where one of them is."""

    def verdict(self, confidence: float) -> str:
        """ "turns" or "does not turn" where all but (1 - confidence) / 2 of the resamples say so."""
        most = (1 + confidence) / 2
        return TURNS if self.turned >= most else FALLS if self.fell >= most else CANNOT_TELL


def turn(
    figure: Ratio,
    columns: Sequence[Sequence[np.ndarray | None]],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Turn:
    """Where a figure turns along a ladder.

    Args:
        figure: how it comes out of sums.
        columns: by budget and seed `[N, 2]` float64, what `figure.columns` makes of the N samples, in one order for
            all; None where the model's figures were not finite, which counts as infinitely bad.
        confidence: level of the interval.
        resamples: of samples and seeds.
        seed: of the draws.

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
    sign, count = (-1.0 if figure.higher_is_better else 1.0), next(iter(seeds))

    def figures(weights: np.ndarray) -> np.ndarray:
        """`[budgets, seeds, R]` of weights of the samples `[R, N]`."""
        found = np.full((len(columns), count, len(weights)), math.inf)
        for b, one in enumerate(columns):
            for s, held in enumerate(one):
                if held is not None:
                    with np.errstate(over="ignore", invalid="ignore"):
                        found[b, s] = sign * figure.of_sums(weights @ held)
        return np.where(np.isnan(found), math.inf, found)

    samples = next(iter(shapes))[0] if shapes else 1
    losses = figures(np.ones((1, samples))).mean(axis=1)[:, 0]
    rng = np.random.default_rng(seed)
    places: list[np.ndarray] = []
    turned = fell = 0
    for weights in resampled_counts(samples, resamples=resamples, seed=seed):
        drawn = figures(weights)
        chosen = rng.multinomial(count, np.full(count, 1 / count), size=len(weights)).T / count
        with np.errstate(invalid="ignore"):
            mean = np.where(chosen > 0, drawn * chosen, 0.0).sum(axis=1)  # a seed that is not drawn counts for nothing
        before = mean[:-1].min(axis=0)
        turned += int((before < mean[-1]).sum())
        fell += int((before > mean[-1]).sum())
        places.append(_least(mean))
    ends = np.quantile(np.concatenate(places), [(1 - confidence) / 2, (1 + confidence) / 2], method="nearest")
    return Turn(
        place=int(_least(losses)),
        interval=(int(ends[0]), int(ends[1])),
        turned=turned / resamples,
        fell=fell / resamples,
        losses=tuple(float(v) for v in losses),
    )


def _least(losses: np.ndarray) -> np.ndarray:
    """Where the least of the first axis is; of equal ones the last."""
    return np.asarray(len(losses) - 1 - losses[::-1].argmin(axis=0))
