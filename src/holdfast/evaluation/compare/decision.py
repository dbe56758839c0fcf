"""One decision over many entries: with what is lost anywhere, how often would chance alone say so?

The tests of a comparison are one family. Without rules they ask of the metric that leads each entry
whether anything was lost; with rules they ask of each rule and entry whether the rule is broken
there, and all rules together are one family, since one broken rule closes the gate. p-values are
one-sided and adjusted (`statistics.family_wise`); the chance that anything at all is shown where
nothing is so is at most the level of one side of an interval, 2.5 % at a confidence of 95 %.

What passes is not adjusted: a gate that passes says "within everywhere", which is wrong only if it
is wrong somewhere, so each part may be tested at the full level (intersection-union test: Berger
1982).

Where an entry is not shown either way, its power is: the loss that these samples show with a chance
of 80 %, and how many samples show one of the margin, both at the level that the adjustment leaves
the first test, level / m for m tests.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.records.comparison import NOT_SHOWN, Comparison, Decision, FamilyWise
from holdfast.statistics.decision import level_of, loss_decision
from holdfast.statistics.estimates import entry_seed
from holdfast.statistics.family_wise import adjust, sign_flips
from holdfast.statistics.paired import Influence, PairedTest, paired_test

Metric = tuple[str, str, str]
"""Suite, name and metric of a comparison."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adjustment:
    """How p-values are adjusted."""

    family_wise: FamilyWise = "holm"
    """See `statistics.family_wise`."""
    influences: Mapping[Metric, Influence] = dataclasses.field(default_factory=dict)
    """What each sample contributes to each difference; for max_t."""
    resamples: int = 4000
    """Draws of max_t."""
    seed: int = 0
    """Of the draws."""

    def adjusted(
        self, p_values: Sequence[float], tests: Sequence[tuple[Comparison, float]]
    ) -> list[float]:
        """Adjusted p-values of tests, each a comparison with 1 where a larger difference is looked
        for and -1 where a smaller one."""
        return adjust(p_values, self.family_wise, functools.partial(self._draws, tests))

    def share(self, level: float, tests: int) -> float:
        """The level that the first of several tests is held to (an upper bound of none for
        max_t)."""
        return level if self.family_wise == "none" else level / max(tests, 1)

    def _draws(self, tests: Sequence[tuple[Comparison, float]]) -> np.ndarray:
        influences, signs = [], []
        for c, sign in tests:
            influences.append(self.influences[c.suite, c.name, c.metric])
            signs.append(sign)
        return sign_flips(influences, signs, resamples=self.resamples, seed_of=self._seed)

    def _seed(self, group: Any) -> int:
        return entry_seed(self.seed, group)


def with_decision(
    comparisons: Sequence[Comparison], adjustment: Adjustment
) -> tuple[list[Comparison], Decision | None]:
    """The comparisons with the adjusted p-values of those that lead, and the power of those that
    show nothing; and what they say together, None where there is nothing to test."""
    family: list[tuple[int, Comparison, PairedTest]] = []
    for number, c in enumerate(comparisons):
        paired = paired_test(c) if c.primary and not math.isnan(c.interval[0]) else None
        if paired is not None:
            family.append((number, c, paired))
    if not family:
        return list(comparisons), None
    p_values, tests = [], []
    for _, c, test in family:
        p_values.append(test.p_below() if c.higher_is_better else test.p_above())
        tests.append((c, -1.0 if c.higher_is_better else 1.0))
    adjusted = adjustment.adjusted(p_values, tests)
    level = level_of(family[0][1].confidence)
    decided = list(comparisons)
    for (number, c, test), p in zip(family, adjusted, strict=True):
        power = (
            _power(c, test, adjustment.share(level, len(family))) if c.verdict == NOT_SHOWN else {}
        )
        decided[number] = dataclasses.replace(c, p_adjusted=p, **power)
    return decided, loss_decision(decided, adjustment.family_wise)


def _power(c: Comparison, test: PairedTest, level: float) -> dict[str, Any]:
    detectable = test.detectable(level)
    if not math.isfinite(detectable) or detectable <= 0.0:
        return {}
    times = test.needed(c.tolerated, level) if c.tolerated > 0.0 else math.nan
    return {"detectable": detectable, "needed": math.ceil(times * c.n) if times > 1.0 else None}
