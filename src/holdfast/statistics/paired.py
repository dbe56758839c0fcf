"""Paired tests: two models on the same samples, is the change more than chance?

Verdict, interval and p come from one test. A test says, for every value v, how surprising the data
would be if the true difference were v or more (`p_below`) or v or less (`p_above`); with a = (1 -
confidence) / 2 the interval is all v that neither rejects at a, and p = 2 min(p_below(0),
p_above(0)). So the interval excludes 0 exactly where p < 1 - confidence. Nothing is resampled: p
has no floor, and the same data give the same figures.

*Right / wrong answers* (`Flips`). Of n samples b were lost and c gained, m = b + c flipped; the
difference is

    d = psi rho,    psi = m / n,    rho = (c - b) / m = 2 q - 1

Given m, c is binomial(m, q), and "no difference" is q = 1/2 whatever psi: McNemar's exact
conditional test (McNemar 1947; the binomial form in Agresti 2013, "Categorical Data Analysis",
section 11.1.2) for every number of flips, never the chi-square form. For v other than 0 psi
matters. With exact limits (Clopper and Pearson 1934) at level a of q among the flips and of psi
among the samples, d >= v is rejected where

    v / psi - rho  >=  ((rho_u - rho)^k + |v (1 / psi - 1 / psi*)|^k)^(1 / k)

psi* being the limit that v leans towards, the upper for v > 0. k = 1 takes both limits at their
worst together, k = 2 joins them as independent errors (MOVER: Zou and Donner 2008). Misses a side
at a = 2.5 %, the whole trinomial enumerated, n from 10 to 400 (for k = 5/4 to 200): at most 2.5 %
for k = 1, 5.6 % for k = 2, 3.6 % for k = 3/2 and 2.5 % for k = 5/4, whose interval for 10 lost and
10 gained of 200 is 16 % narrower than that of k = 1. k = 5/4 is taken. At v = 0 all of them are
McNemar's test. Without a flip the limits are those of psi: 0 of n says that a change is below 1 -
a^(1/n).

*All others* (`Moments`): scores, ratios of sums as nats per token, averages of entries. With w_i
the influence of sample i on the difference, T = (d - v) / se is held against Student's t twice, and
the larger p counts:

    plain                 T
    without skewness      T + l T^2 / 3 + l^2 T^3 / 27 + l / 6        (Hall 1992, "On the removal of skewness by
                                                                       transformation", JRSS B 54; l
                                                                       = sum w^3 / se^3)

with the degrees of freedom of the variance as it was estimated, df = 2 se^4 / Var(se^2), at most n
- 1 (Satterthwaite 1946; Var from the fourth moment): few samples that changed among many that did
  not are few degrees of freedom. Chosen
by the share of intervals that miss on their worse side, 2.5 % asked (`benchmarks/gate.py --tests`,
which has more sizes and differences):

    n, differences                    this     t      Hall   bootstrap-t
    10, exponential                   5.7 %    9.7 %  5.8 %  4.9 %
    50, log-normal                    4.8 %    9.8 %  5.4 %  5.2 %
    200, ratio of sums, skewed        2.7 %    4.5 %  3.0 %  2.9 %
    200, ratio of sums, heavy tails   1.8 %    2.8 %  5.1 %  3.9 %
    200, 2 % of samples +-1, no bias  0.9 %    2.1 %  8.6 %  8.6 %

It does not see what did not happen: with a loss in one sample of a hundred and ten samples, most
intervals miss it. Nor does it model dependence between samples (several questions on one passage):
intervals are then too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from holdfast.records.comparison import Comparison
from holdfast.records.figure import CONFIDENCE
from holdfast.statistics.intervals import clopper_pearson
from holdfast.support.quantiles import normal_quantile

MCNEMAR = "McNemar (exact)"
STUDENT = "paired t, skewness removed"
POWER = 0.8
"""The chance with which a loss is to be seen where power is spoken of."""
ROUNDING = 2.0**-20
"""Share of a figure by which two models may differ because sums in float32 are rounded in another
order."""
_JOIN = 1.25
"""k of the module docstring."""

_SMALLEST = 1e-100
"""One-sided p-values are not told apart below this: the inverse of the incomplete beta function
ends near 1e-200."""

Influence = Mapping[Hashable, np.ndarray]
"""`[n]` float64 for each group of samples that is independent of the others: how much sample i
moves the difference."""


class PairedTest:
    """What samples say of the true difference (module docstring)."""

    @property
    def estimate(self) -> float:
        """The measured difference."""
        raise NotImplementedError

    def p_below(self, value: float = 0.0) -> float:
        """One-sided p-value of "the difference is `value` or more": small where it is shown to be
        below."""
        raise NotImplementedError

    def p_above(self, value: float = 0.0) -> float:
        """One-sided p-value of "the difference is `value` or less"."""
        raise NotImplementedError

    def limits(self, level: float) -> tuple[float, float]:
        """The largest value below and the smallest above which the difference is shown not to be,
        each at `level`; NaNs where nothing is shown."""
        raise NotImplementedError

    def detectable(self, level: float) -> float:
        """The true loss (or gain) that a one-sided test at `level` sees with a chance of `POWER`,
        on these samples."""
        raise NotImplementedError

    def needed(self, change: float, level: float) -> float:
        """How many times as many samples would see a `change` > 0 with a chance of `POWER`."""
        return (self.detectable(level) / change) ** 2

    def decides(self, value: float, level: float) -> float:
        """How many times as many samples would show with a chance of `POWER`, one-sided at `level`,
        on which side of `value` the true difference lies, were it as measured; infinite where it
        is `value`."""
        raise NotImplementedError

    def p_value(self) -> float:
        """Two-sided, of "no difference"."""
        return min(1.0, 2.0 * min(self.p_below(), self.p_above()))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """All differences that the test does not reject at `1 - confidence`; NaNs where it rejects
        none."""
        low, high = self.limits((1.0 - confidence) / 2.0)
        excluded = self.p_value() < 1.0 - confidence
        if excluded and low <= 0.0 <= high:  # rounding: p decides
            low, high = (
                (math.nextafter(0.0, 1.0), high)
                if self.estimate > 0.0
                else (low, math.nextafter(0.0, -1.0))
            )
        elif not excluded and not math.isnan(low):
            low, high = min(low, 0.0), max(high, 0.0)
        return low, high


@dataclass(frozen=True, kw_only=True)
class Flips(PairedTest):
    """Right / wrong answers."""

    lost: int
    """Samples right before and wrong after."""
    gained: int
    n: int
    """Samples in all."""

    @property
    def estimate(self) -> float:
        return (self.gained - self.lost) / self.n

    def p_below(self, value: float = 0.0) -> float:
        if value == 0.0:
            from scipy.special import bdtr

            return float(bdtr(self.gained, self.lost + self.gained, 0.5))
        if self.estimate >= value or abs(value) > 1.0:
            return 1.0 if self.estimate >= value else 0.0
        if not self.lost + self.gained:
            return float((1.0 - value) ** self.n)
        few, many = (
            math.log(_SMALLEST),
            math.log(0.5),
        )  # logarithms of levels: the smallest that rejects `value`
        if self._rejects(value, _SMALLEST):
            return _SMALLEST
        if not self._rejects(value, 0.5):
            return 1.0
        for _ in range(60):
            middle = (few + many) / 2
            few, many = (few, middle) if self._rejects(value, math.exp(middle)) else (middle, many)
        return math.exp(many)

    def p_above(self, value: float = 0.0) -> float:
        return self._turned.p_below(-value)

    def limits(self, level: float) -> tuple[float, float]:
        return -self._turned._above(level), self._above(level)

    def detectable(self, level: float) -> float:
        return self._seen(self.n, level)

    def needed(self, change: float, level: float) -> float:
        # Connor 1987, "Sample size for testing differences in proportions for the paired-sample
        # design", Biometrics 43
        flips = max(self._rate, change)
        alpha, beta = -normal_quantile(level), normal_quantile(POWER)
        root = (alpha * math.sqrt(flips) + beta * math.sqrt(flips - change**2)) / change
        return root**2 / self.n

    def decides(self, value: float, level: float) -> float:
        estimate = self.estimate
        distance = abs(estimate - value)
        if distance == 0.0:
            return math.inf
        alpha, beta = -normal_quantile(level), normal_quantile(POWER)
        flips = max(self._rate, abs(value), abs(estimate))
        # the two limits of the test, each times sqrt(n), as `_rejection` joins them
        of_rho = math.sqrt(flips - estimate**2 / flips if value else flips)
        of_psi = abs(value) * math.sqrt((1.0 - flips) / flips)
        limits = (of_rho**_JOIN + of_psi**_JOIN) ** (1.0 / _JOIN)
        root = alpha * limits + beta * math.sqrt(flips - estimate**2)
        # answers are counted, so that the limits lie one sample further: distance - 1 / n is seen
        n = ((root + math.sqrt(root**2 + 4.0 * distance)) / (2.0 * distance)) ** 2
        return n / self.n

    @property
    def _turned(self) -> Flips:
        return Flips(lost=self.gained, gained=self.lost, n=self.n)

    @property
    def _rate(self) -> float:
        """Share of samples that flip, above 0 where none did."""
        return (self.lost + self.gained + 0.5) / (self.n + 1)

    def _seen(self, n: int, level: float) -> float:
        """The `change` of which `needed` says that n samples see it; all flips go one way where it
        exceeds their rate."""
        alpha, beta = -normal_quantile(level), normal_quantile(POWER)
        low, high = 0.0, 1.0
        for _ in range(60):
            change = (low + high) / 2
            flips = max(self._rate, change)
            is_seen = change * math.sqrt(n) >= alpha * math.sqrt(flips) + beta * math.sqrt(
                flips - change**2
            )
            low, high = (low, change) if is_seen else (change, high)
        return high

    def _above(self, level: float) -> float:
        """The smallest difference that is rejected at `level` as too high, and all above it; 1
        where none is."""
        if not self.lost + self.gained:
            return 1.0 - level ** (1.0 / self.n)
        if self.lost == 0 and self.gained == self.n:
            return 1.0
        low, high = -1.0, 1.0
        rejects = self._rejection(level)
        if not rejects(high):
            return 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if rejects(middle) else (middle, high)
        return high

    def _rejects(self, value: float, level: float) -> bool:
        return self._rejection(level)(value)

    def _rejection(self, level: float) -> Callable[[float], bool]:
        """Whether a difference of a value or more is rejected at `level`, as a function of the
        value; there are flips."""
        flips = self.lost + self.gained
        psi, rho = flips / self.n, (self.gained - self.lost) / flips
        reach = max(0.0, 2.0 * clopper_pearson(self.gained, flips, level)[1] - 1.0 - rho)
        rates = clopper_pearson(flips, self.n, level)

        def rejects(value: float) -> bool:
            leaning = (
                abs(value) * abs(1.0 / psi - 1.0 / rates[value > 0.0])
                if rates[value > 0.0] > 0.0
                else math.inf
            )
            return bool(value / psi - rho >= (reach**_JOIN + leaning**_JOIN) ** (1.0 / _JOIN))

        return rejects


@dataclass(frozen=True, kw_only=True)
class Moments(PairedTest):
    """Everything that is no count of flips."""

    difference: float
    error: float
    """Standard error of the difference; 0 where no sample differs from any other."""
    skewness: float = 0.0
    """Of the difference's own distribution: that of one sample over sqrt(n)."""
    df: float = math.inf
    """Degrees of freedom of the standard error."""
    n: int
    """Samples, those of the group that has the fewest."""

    @property
    def estimate(self) -> float:
        return self.difference

    def p_below(self, value: float = 0.0) -> float:
        if self.n < 2:
            return 1.0
        if self.error == 0.0:  # all samples went one way by the same: the sign test
            return 1.0 if self.difference >= value else 0.5**self.n
        t = (self.difference - value) / self.error
        return max(_student(t, self.df), _student(self._straight(t), self.df))

    def p_above(self, value: float = 0.0) -> float:
        return self._turned.p_below(-value)

    def limits(self, level: float) -> tuple[float, float]:
        if self.n < 2 or (self.error == 0.0 and self.difference != 0.0 and 0.5**self.n >= level):
            return math.nan, math.nan
        return -self._turned._above(level), self._above(level)

    def detectable(self, level: float) -> float:
        return (_t_quantile(self.df, 1.0 - level) + normal_quantile(POWER)) * self.error

    def decides(self, value: float, level: float) -> float:
        distance = abs(self.difference - value)
        return math.inf if distance == 0.0 else (self.detectable(level) / distance) ** 2

    @property
    def _turned(self) -> Moments:
        return Moments(
            difference=-self.difference,
            error=self.error,
            skewness=-self.skewness,
            df=self.df,
            n=self.n,
        )

    def _straight(self, t: float) -> float:
        return t + self.skewness * t**2 / 3.0 + self.skewness**2 * t**3 / 27.0 + self.skewness / 6.0

    def _above(self, level: float) -> float:
        quantile = -_t_quantile(self.df, 1.0 - level)
        turned = quantile
        if self.skewness != 0.0:
            inner = self.skewness * (quantile - self.skewness / 6.0)
            root = (
                math.expm1(math.log1p(inner) / 3.0)
                if inner > -1.0
                else float(np.cbrt(1.0 + inner)) - 1.0
            )
            turned = 3.0 / self.skewness * root
        return self.difference - self.error * min(quantile, turned)


def moments(difference: float, influence: Influence, *, scale: float) -> Moments:
    """The test of a difference from what each sample contributes to it.

    Args:
        difference: as measured; one within `ROUNDING` of the figures is none.
        influence: `[n]` float64 a group of samples; groups are independent of each other.
        scale: size of both figures together: a spread of 1e-12 of it is rounding.
    """
    if abs(difference) <= ROUNDING * scale / 2:
        difference = 0.0
    n = min(len(w) for w in influence.values())
    variance = third = noise = welch = 0.0
    for w in influence.values():
        squares = float(w @ w)
        of_entry = squares * len(w) / max(len(w) - 1, 1)
        variance += of_entry
        third += float((w**3).sum())
        noise += max(float((w**4).sum()) - squares**2 / len(w), 0.0)
        welch += of_entry**2 / max(len(w) - 1, 1)
    error = math.sqrt(variance)
    if not error > 1e-12 * scale:
        return Moments(difference=difference, error=0.0, n=n, df=float(max(n - 1, 1)))
    most = variance**2 / welch
    df = min(most, 2.0 * variance**2 / noise) if noise > 0.0 else most
    return Moments(
        difference=difference, error=error, skewness=third / error**3, df=max(1.0, df), n=n
    )


def paired_test(comparison: Comparison) -> Flips | Moments | None:
    """The test behind a comparison; None where it failed, or was written by a version that did not
    record it."""
    c = comparison
    if c.failed is not None:
        return None
    n = c.smallest or c.n
    if c.flips_lost is not None and c.flips_gained is not None:
        return Flips(lost=c.flips_lost, gained=c.flips_gained, n=n)
    if c.standard_error is None:
        return None
    return Moments(
        difference=c.difference,
        error=c.standard_error,
        skewness=c.skewness,
        df=c.df or math.inf,
        n=n,
    )


def _student(t: float, df: float) -> float:
    from scipy.special import ndtr, stdtr

    return float(ndtr(t) if math.isinf(df) else stdtr(df, t))


def _t_quantile(df: float, p: float) -> float:
    from scipy.special import stdtrit

    return normal_quantile(p) if math.isinf(df) else float(stdtrit(df, p))
