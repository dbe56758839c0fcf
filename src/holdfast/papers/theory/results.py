"""What every theory returns: checks that have to pass, and findings that may turn out either
way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.config.declare import Meta, bounds_in_words, in_bounds
from holdfast.errors import ConfigError
from holdfast.records.figure import t_half_width

Array = np.ndarray
EXACT = 1e-9
"""What rounding may leave of an identity, relative."""

Comparison = tuple[Any, Any, Any]
"""A closed form, the number that it should be (a scalar or an array each), and the scale of their
difference."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement of the theory that has to hold: a closed form against a number."""

    name: str
    formula: str
    """What is compared, with its place in the paper."""
    closed: float
    """The closed form where the two are furthest apart."""
    number: float
    """What descent, enumeration or simulation gives there."""
    deviation: float
    """Their difference over its scale."""
    allowed: float
    passed: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the paper observes, or what follows from it, asked of random problems. If it does not
    hold, that is no error."""

    name: str
    formula: str
    """The ratio, with its place in the paper."""
    ratio: float
    """Geometric mean over seeds; below 1 the statement holds."""
    low: float
    """Of the 95 % interval over seeds; NaN where there is one."""
    high: float
    verdict: str
    """"holds", "does not hold" or "cannot tell"."""


@dataclass(frozen=True, kw_only=True)
class Theory:
    """One paper's theory, computed."""

    title: str
    source: str
    """The paper and its sections."""
    equations: str
    problems: str
    """What is drawn at random."""
    seeds: int
    checks: list[Check]
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def check(
    name: str, formula: str, *comparisons: Comparison, allowed: float = EXACT, note: str = ""
) -> Check:
    """The check that the furthest of some comparisons is at most `allowed`, relative; NaN fails."""
    worst = []
    for closed, number, scale in comparisons:
        forms, numbers = np.broadcast_arrays(np.asarray(closed, float), np.asarray(number, float))
        apart = np.abs(numbers - forms)
        index = apart.argmax()  # of a NaN where there is one
        worst.append((apart.flat[index] / scale, forms.flat[index], numbers.flat[index]))
    deviation, form, number = np.array(worst)[np.argmax(np.array(worst)[:, 0])].tolist()
    return Check(
        name=name,
        formula=formula,
        closed=form,
        number=number,
        deviation=deviation,
        allowed=allowed,
        passed=deviation <= allowed,
        note=note,
    )


def finding(name: str, formula: str, ratios: Any) -> Finding:
    """The statement that one positive ratio a seed is below 1, with the t-interval of the
    logarithms and a verdict.

    Raises:
        ConfigError: a ratio that is not finite and above 0.
    """
    expect(name, ratios, Meta(gt=0))
    logs = np.log(ratios).tolist()
    mean = float(np.mean(logs))
    half = t_half_width(logs) if len(logs) > 1 else math.nan
    low, high = math.exp(mean - half), math.exp(mean + half)
    verdict = "cannot tell"
    if high < 1 - EXACT:
        verdict = "holds"
    elif low > 1 + EXACT:
        verdict = "does not hold"
    return Finding(
        name=name, formula=formula, ratio=math.exp(mean), low=low, high=high, verdict=verdict
    )


def expect(name: str, value: Any, bounds: Meta) -> None:
    """Refuses numbers, of any shape, of which one is NaN or outside of the domain of a formula.

    Raises:
        ConfigError: says what was expected and what came.
    """
    numbers = np.asarray(value, np.float64)
    kind = "a finite number" if bounds.finite else "a number"
    for extreme in (numbers.min(), numbers.max()):  # NaN where there is one
        if not in_bounds(extreme, bounds):
            raise ConfigError(f"{name}: expected {kind}{bounds_in_words(bounds)}, got {extreme:g}")
