"""Claims held against a study: a statement, where it is from, the rule that judges it, the figures the verdict rests
on, and the verdict: holds, does not hold, or not enough data.

A rule is a function of the study's record that returns parts; a claim holds if all of its parts do, and does not hold
if one does not. A figure's interval decides: wholly on one side of a bound, wholly on the other, or not to be told.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

R = TypeVar("R")
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not enough data"
MARGIN = 0.2
"""Of an equivalence, as a share of what it is held against."""
NO_INTERVAL = "there is no interval"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure that a verdict rests on, or that a reader wants beside it."""

    what: str
    value: float
    interval: tuple[float, float] | None
    """None where there is none."""
    n: str
    """What is behind it, such as "3 seeds, 299 samples"."""
    unit: str
    """The metric's, or "share of direct's gain" and the like."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim and what a study says of it."""

    number: str
    """As in the paper's list of claims, with a letter where a number has several."""
    text: str
    recipe: str
    """The study that it is judged on."""
    paper: str
    """What the paper prints, and where."""
    verdict: str
    """"holds", "does not hold" or "not enough data"."""
    figures: list[Figure]
    reason: str
    """Why this verdict, for people."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One condition of a claim."""

    verdict: str
    reason: str
    figures: Sequence[Figure] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statement(Generic[R]):
    """One claim before it meets a study."""

    number: str
    recipe: str
    text: str
    paper: str
    check: Callable[[R], list[Part]]
    """The rule; its docstring says it."""
    precondition: Callable[[R], str | None] = lambda record: None
    """Why the rule cannot be applied to a record; None where it can."""
    may_change: bool = True
    """Whether jobs that are not finished may change the verdict."""

    @property
    def rule(self) -> str:
        """The rule as the docstring of `check` has it."""
        return inspect.getdoc(self.check) or ""


def check_claims(
    statements: Iterable[Statement[R]], record: R | None, *, waiting: int = 0, seeds: int = 2, noun: str = "trial"
) -> list[Claim]:
    """Every statement, held against a study.

    Args:
        statements: of one study.
        record: the study's, finished or not; None: not run.
        waiting: jobs that are not finished.
        seeds: of the study; with one, the reason adds that.
        noun: what a job is called.
    """
    return [_checked(s, record, waiting=waiting, seeds=seeds, noun=noun) for s in statements]


def _checked(statement: Statement[R], record: R | None, *, waiting: int, seeds: int, noun: str) -> Claim:
    if record is None:
        parts = [unknown("the study was not run")]
    elif (lacking := statement.precondition(record)) is not None:
        parts = [unknown(lacking)]
    else:
        parts = statement.check(record)
    found = verdict = joint(part.verdict for part in parts)
    reasons = [part.reason for part in parts]
    if waiting and statement.may_change and found != UNKNOWN:
        are = f"{waiting} {noun}{'s are' if waiting > 1 else ' is'}"
        verdict, reasons = UNKNOWN, [f"{are} not finished and may change it; so far: {found}", *reasons]
    if record is not None and seeds == 1 and verdict != UNKNOWN:
        reasons.append("one seed: intervals cover the samples alone, and another seed may say otherwise")
    return Claim(
        number=statement.number,
        text=statement.text,
        recipe=statement.recipe,
        paper=statement.paper,
        verdict=verdict,
        figures=[figure for part in parts for figure in part.figures],
        reason=" ".join(f"{reason[:1].upper()}{reason[1:]}." for reason in dict.fromkeys(reasons)),
    )


def joint(verdicts: Iterable[str]) -> str:
    """Of several conditions: holds if all do, does not hold if one does not."""
    found = set(verdicts)
    return FAILS if FAILS in found else UNKNOWN if UNKNOWN in found else HOLDS


def unknown(reason: str, figures: Sequence[Figure] = ()) -> Part:
    """A condition that cannot be told."""
    return Part(verdict=UNKNOWN, reason=reason, figures=figures)


def against(interval: tuple[float, float] | None, bound: float, *, inclusive: bool = False) -> str:
    """Whether an interval lies above a bound: "holds" wholly above, "does not hold" wholly below.

    Args:
        interval: None, or with an end that is not finite: not to be told.
        bound: what it is held against.
        inclusive: an interval that begins at the bound is above it.
    """
    if interval is None or not all(map(math.isfinite, interval)):
        return UNKNOWN
    low, high = interval
    return HOLDS if low > bound or (inclusive and low == bound) else FAILS if high < bound else UNKNOWN


def above(
    figure: Figure, bound: float, *, yes: str, no: str, between: str | None = None, inclusive: bool = False
) -> Part:
    """A figure that has to lie above a bound with its whole interval.

    Args:
        figure: with its interval.
        bound: in the figure's unit.
        yes, no, between: the reason for each verdict; `between` is made from `yes` where it is left out.
        inclusive: see `against`.
    """
    return _judged(figure, against(figure.interval, bound, inclusive=inclusive), yes, no, between)


def below(
    figure: Figure, bound: float, *, yes: str, no: str, between: str | None = None, inclusive: bool = False
) -> Part:
    """A figure that has to lie below a bound with its whole interval; the arguments of `above`. With `inclusive`, an
    interval that begins at the bound is not below it."""
    found = against(figure.interval, bound, inclusive=inclusive)
    return _judged(figure, {HOLDS: FAILS, FAILS: HOLDS, UNKNOWN: UNKNOWN}[found], yes, no, between)


def _judged(figure: Figure, verdict: str, yes: str, no: str, between: str | None) -> Part:
    if figure.interval is None:
        return unknown(NO_INTERVAL, [figure])
    if not all(map(math.isfinite, (figure.value, *figure.interval))):
        return unknown(f"{figure.what} is not finite", [figure])
    reasons = {HOLDS: yes, FAILS: no, UNKNOWN: between or f"whether {yes} cannot be told"}
    return Part(verdict=verdict, reason=reasons[verdict], figures=[figure])


def claims_json(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """The claims as claims.json has them."""
    return [dataclasses.asdict(claim) for claim in claims]
