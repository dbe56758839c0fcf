"""How far a rule's choice can be trusted.

A chosen trial's own interval is too good: the noise that made it the winner is in it. `leave_one_out` scores the *rule*
instead: choose on all seeds but one, score on the one left out, t-interval over the seeds (Cawley and Talbot 2010, JMLR
11, on selection bias). `stability` chooses again on bootstrap draws of the seeds, drawn alike for all trials. With one
seed there is neither.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from holdfast.records.figure import t_half_width
from holdfast.statistics.rules import Rule, Table

MOST_ENUMERATED = 3125
"""Bootstrap draws of the seeds are enumerated up to this many (5 seeds), drawn at random beyond."""
DRAWS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleGain:
    """What a rule earns on seeds that it did not choose by."""

    value: float
    """Mean over the left-out seeds."""
    interval: tuple[float, float]
    """t-interval over the seeds at `CONFIDENCE`; the samples' part is not in it."""
    by_seed: dict[int, float]
    """Left-out seed -> gain on it of the trial chosen by the others; 0 (the start) where they chose none."""


def _draws(seeds: int) -> tuple[list[tuple[int, ...]], list[float], int]:
    """(how often each seed is drawn, its weight, number of draws). Draws that differ in order alone choose alike, so
    each kind is one."""
    total = seeds**seeds
    if total <= MOST_ENUMERATED:
        kinds, weights = [], []
        for drawn in itertools.combinations_with_replacement(range(seeds), seeds):
            counts = tuple(drawn.count(s) for s in range(seeds))
            kinds.append(counts)
            weights.append(math.factorial(seeds) / math.prod(map(math.factorial, counts)) / total)
        return kinds, weights, total
    drawn_counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=DRAWS)
    times = collections.Counter(tuple(int(c) for c in row) for row in drawn_counts)
    return list(times), [n / DRAWS for n in times.values()], DRAWS


def stability(table: Table, rule: Rule, points: float | None) -> tuple[dict[int, float], float, int]:
    """(trial -> share of the bootstrap draws over seeds in which it is chosen, largest first; share in which none is;
    number of draws)."""
    kinds, weights, draws = _draws(len(table.seeds))
    chosen: dict[int | None, list[float]] = {}
    for counts, weight in zip(kinds, weights, strict=True):
        chosen.setdefault(table.choose(np.array(counts, dtype=np.float64), rule, points), []).append(weight)
    found = {table.trials[place].number: math.fsum(w) for place, w in chosen.items() if place is not None}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))), math.fsum(chosen.get(None, [])), draws


def leave_one_out(
    table: Table, rule: Rule, points: float | None
) -> tuple[tuple[RuleGain, RuleGain], dict[int, int | None]]:
    """((what the rule earns on the target, on the source) on the seeds left out, left-out seed -> trial chosen by the
    others)."""
    n = len(table.seeds)
    choices: dict[int, int | None] = {}
    scores: list[tuple[float, float]] = []
    for row, seed in enumerate(table.seeds):
        counts = np.ones(n)
        counts[row] = 0
        place = table.choose(counts, rule, points)
        choices[seed] = None if place is None else table.trials[place].number
        scores.append(
            (0.0, 0.0)
            if place is None
            else (float(table.learnt.gains[row, place]), float(table.source.gains[row, place]))
        )
    return (_over_seeds(table.seeds, [s[0] for s in scores]), _over_seeds(table.seeds, [s[1] for s in scores])), choices


def _over_seeds(seeds: Sequence[int], values: Sequence[float]) -> RuleGain:
    mean = statistics.fmean(values)
    half = t_half_width(values)
    return RuleGain(value=mean, interval=(mean - half, mean + half), by_seed=dict(zip(seeds, values, strict=True)))
