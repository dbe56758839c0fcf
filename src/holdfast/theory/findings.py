"""What every study of `theory` finds: checks that have to pass, statements that may turn out either way, intervals over
random problems, and the record that holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from holdfast.errors import ConfigError, DataError
from holdfast.statistics.intervals import t_half_width
from holdfast.support.files import record_from

EXACT = 1e-9
"""What rounding may leave of an identity, relative."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over seeds."""

    value: float
    low: float | None
    """None where there is one seed."""
    high: float | None
    n: int
    """Seeds behind it."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement of the theory that has to hold, tested on the first problem."""

    name: str
    what: str
    value: float
    """The largest deviation found, relative."""
    allowed: float
    passed: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What the paper observes or claims, asked of these problems."""

    name: str
    what: str
    source: str
    ratio: Interval
    """Geometric mean over seeds; below 1 the statement holds."""
    verdict: str
    """"holds", "does not hold" or "cannot tell"."""


class Study:
    """What the records of all studies share; each is a frozen dataclass of its own."""

    subject: ClassVar[str]
    """Of `holdfast theory SUBJECT`."""
    checks: list[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """A study as `to_jsonable` wrote it.

        Raises:
            DataError: the mapping is no such study.
        """
        try:
            return record_from(cls, value)
        except DataError as error:
            raise DataError(f"Expected the record that 'holdfast theory {cls.subject}' writes: {error}") from error


def check_of(name: str, what: str, values: Any, allowed: float = EXACT, note: str = "") -> Check:
    """The check that the largest of some deviations is at most `allowed`; NaN, where one is, fails."""
    value = float(np.max(values))
    return Check(name=name, what=what, value=value, allowed=allowed, passed=value <= allowed, note=note)


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float) -> Interval:
    """The mean of one value a seed with its t-interval; no interval for one seed."""
    found = np.asarray(values, dtype=np.float64)
    n, mean = len(found), float(found.mean())
    if n < 2:
        return Interval(value=mean, low=None, high=None, n=n)
    half = t_half_width(found.tolist(), confidence=confidence)
    return Interval(value=mean, low=mean - half, high=mean + half, n=n)


def geometric_interval(ratios: Sequence[float] | np.ndarray, confidence: float) -> Interval:
    """The geometric mean of one positive ratio a seed, its interval that of the logarithms."""
    found = mean_interval(np.log(ratios), confidence)
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Interval(value=math.exp(found.value), low=low, high=high, n=found.n)


def verdict(ratio: Interval) -> str:
    """Of a statement that holds where the ratio is below 1."""
    if ratio.low is None or ratio.high is None:
        return "cannot tell"
    return "holds" if ratio.high < 1 - EXACT else "does not hold" if ratio.low > 1 + EXACT else "cannot tell"


def statement_of(name: str, source: str, what: str, ratios: Sequence[float] | np.ndarray, level: float) -> Statement:
    """The statement that one positive ratio a seed is below 1, with its verdict."""
    ratio = geometric_interval(ratios, level)
    return Statement(name=name, what=what, source=source, ratio=ratio, verdict=verdict(ratio))


def expect(name: str, value: Any, sound: Any, what: str) -> None:
    """Refuses numbers that are not finite or not `sound` (of the value's shape).

    Raises:
        ConfigError: names the first of them and what was expected.
    """
    numbers = np.asarray(value, np.float64)
    wrong = np.atleast_1d(~(np.isfinite(numbers) & sound))
    if wrong.any():
        raise ConfigError(f"{name}: expected {what}, got {np.atleast_1d(numbers)[wrong][0]:g}")
