"""How far a rule's choice can be trusted.

A chosen trial's own interval is too good: the noise that made it the winner is in it.
`leave_one_out` scores the *rule* instead: choose on all seeds but one, score on the one left out,
t-interval over the seeds (Cawley and Talbot 2010, JMLR 11, on selection bias). `stability` chooses
again on bootstrap draws of the seeds, drawn alike for all trials. With one seed there is neither.
"""

from __future__ import annotations

import collections
import itertools
import math

import numpy as np

from holdfast.records.figure import Figure
from holdfast.statistics.rules import Rule, Table

MOST_ENUMERATED = 3125
"""Bootstrap draws of the seeds are enumerated up to this many (5 seeds), drawn at random beyond."""
DRAWS = 2000


def _draws(seeds: int) -> tuple[list[tuple[int, ...]], list[float], int]:
    """(how often each seed is drawn, its weight, number of draws). Draws that differ in order alone
    choose alike, so each kind is one."""
    total = seeds**seeds
    if total <= MOST_ENUMERATED:
        kinds, weights = [], []
        for drawn in itertools.combinations_with_replacement(range(seeds), seeds):
            counts = tuple(drawn.count(s) for s in range(seeds))
            kinds.append(counts)
            weights.append(math.factorial(seeds) / math.prod(map(math.factorial, counts)) / total)
        return kinds, weights, total
    drawn_counts = np.random.default_rng(0).multinomial(
        seeds, np.full(seeds, 1 / seeds), size=DRAWS
    )
    times = collections.Counter(tuple(int(c) for c in row) for row in drawn_counts)
    return list(times), [n / DRAWS for n in times.values()], DRAWS


def stability(
    table: Table, rule: Rule, points: float | None
) -> tuple[dict[int, float], float, int]:
    """(trial -> share of the bootstrap draws over seeds in which it is chosen, largest first; share
    in which none is; number of draws)."""
    kinds, weights, draws = _draws(len(table.seeds))
    chosen: dict[int | None, list[float]] = {}
    for counts, weight in zip(kinds, weights, strict=True):
        chosen.setdefault(
            table.choose(np.array(counts, dtype=np.float64), rule, points), []
        ).append(weight)
    none = math.fsum(chosen.get(None, []))
    shares = {}
    for index, weights_of_draws in chosen.items():
        if index is not None:
            shares[table.trials[index].number] = math.fsum(weights_of_draws)
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))), none, draws


def leave_one_out(
    table: Table, rule: Rule, points: float | None
) -> tuple[tuple[Figure, Figure], dict[int, int | None]]:
    """((what the rule earns on learn, on keep), left-out seed -> trial chosen by the others). The
    figures are over the seeds left out, 0 (the start) where the others chose none; they have no
    samples' part."""
    n = len(table.seeds)
    choices: dict[int, int | None] = {}
    learn: dict[int, float] = {}
    keep: dict[int, float] = {}
    for row, seed in enumerate(table.seeds):
        counts = np.ones(n)
        counts[row] = 0
        index = table.choose(counts, rule, points)
        choices[seed] = None if index is None else table.trials[index].number
        learn[seed] = 0.0 if index is None else float(table.learnt.gains[row, index])
        keep[seed] = 0.0 if index is None else float(table.keep.gains[row, index])
    return (Figure.over_seeds(learn), Figure.over_seeds(keep)), choices
