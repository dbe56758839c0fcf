"""Several tests, one decision: p-values adjusted so that the chance of any false alarm is what one
test's would be.

    none     p as it is: each of m tests has its own chance of a false alarm
    holm     the k-th smallest p times m - k + 1, never falling (Holm 1979). Holds whatever the dependence
    max_t    step-down minimum of p (Westfall and Young 1993, "Resampling-Based Multiple Testing", section 2.6): the
             k-th smallest p becomes the chance that the smallest of the remaining tests' is as
             small where nothing is so. Each test keeps its own distribution; how tests go together
             is drawn by flipping the signs of the samples' influences, one sign for a sample in all
             tests that it is part of, other signs in other entries. Where that is above Holm's
             (draws resolve no p below 1 / B), Holm's is taken

All p-values are one-sided, and those adjusted count at the level of one test.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from holdfast.records.comparison import FamilyWise
from holdfast.statistics.paired import Influence

_CELLS = 1 << 22
"""Signs held at a time."""


def adjust(
    p_values: Sequence[float], method: FamilyWise, draws: Callable[[], np.ndarray] | None = None
) -> list[float]:
    """Adjusted p-values, in order.

    Args:
        p_values: of m tests, all in [0, 1].
        method: see above.
        draws: for max_t: `[B, m]` float64 statistics where nothing is so, large where a test would
            see something.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if method == "none" or len(p) < 2:
        return [float(v) for v in p]
    order = np.argsort(p, kind="stable")
    left = np.arange(len(p), 0, -1)
    bounds = np.minimum(1.0, p[order] * left)
    if method == "max_t":
        if draws is None:
            raise ValueError("max_t needs draws")
        smallest = np.minimum.accumulate(_uniform(draws())[:, order][:, ::-1], axis=1)[:, ::-1]
        chance = ((smallest <= p[order]).sum(0) + 1) / (len(smallest) + 1)
        bounds = np.minimum(bounds, chance)
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.maximum(bounds, p[order]))
    return [float(v) for v in adjusted]


def _uniform(draws: np.ndarray) -> np.ndarray:
    """`[B, m]` p-values of the draws among themselves; ties are parted at random, so that they are
    uniform."""
    noise = np.random.default_rng(0).random(draws.shape)
    ranks = np.empty(draws.shape)
    for column in range(draws.shape[1]):
        ranks[np.lexsort((noise[:, column], -draws[:, column])), column] = np.arange(
            1, len(draws) + 1
        )
    return (ranks - noise) / len(draws)


def sign_flips(
    influences: Sequence[Influence],
    signs: Sequence[float],
    *,
    resamples: int,
    seed_of: Callable[[Hashable], int],
) -> np.ndarray:
    """Statistics `[B, m]` of m tests with the samples' signs flipped, one standard deviation each.

    Args:
        influences: of each test.
        signs: 1 where a test looks for a larger difference, -1 for a smaller one.
        resamples: B.
        seed_of: the seed of a group of samples.
    """
    statistics = np.zeros((resamples, len(influences)))
    for group in dict.fromkeys(key for influence in influences for key in influence):
        tests = [number for number, influence in enumerate(influences) if group in influence]
        columns = np.stack([signs[t] * influences[t][group] for t in tests], axis=1)
        rng = np.random.default_rng(seed_of(group))
        block = max(1, _CELLS // len(columns))
        for start in range(0, resamples, block):
            count = min(block, resamples - start)
            flips = (
                rng.integers(0, 2, size=(count, len(columns)), dtype=np.int8).astype(np.float64)
                * 2.0
                - 1.0
            )
            statistics[start : start + count, tests] += flips @ columns
    spread = np.sqrt([sum(float(w @ w) for w in influence.values()) for influence in influences])
    return statistics / np.where(spread > 0.0, spread, 1.0)
