"""Rules that judge claims: what a study has to show for a claim to hold, not to hold, or not to be
told.

- A *rule* (`Rule`) gives parts of a study's record and of the level of its intervals; a claim holds
  if all of its parts do, and does not hold if one does not. A figure's interval decides: wholly
  beyond a bound, wholly on the other side of it, or not to be told. A bound of a claim of direction
  is not zero but the least effect that counts.
- Most rules are declared: `rule`, `some` and `rising` say in which *cases* (an order with one of
  its old tasks, a checkpoint, a learning rate) which `Check` has to hold. A figure that was not
  measured raises `NotMeasured`, and the part cannot be told.
- *Cannot tell* is what an experiment says that was not able to decide; it never counts against a
  claim. An interval that contains the bound is one reason, a study or a trial that is missing
  another, a precondition that is not met a third.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from holdfast.records.figure import Figure, NotMeasured

R = TypeVar("R")
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot tell"
MARGIN = 0.2
"""Of an equivalence, as a share of what it is held against."""
NO_INTERVAL = "there is no interval"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimFigure:
    """One figure that a verdict rests on, or that a reader wants beside it."""

    what: str
    value: float
    interval: tuple[float, float] | None
    """None where there is none."""
    n: str
    """What is behind it, such as "3 seeds, 299 samples"."""
    unit: str
    """The metric's, or "share of direct fine-tuning's gain" and the like."""
    needs: str = ""
    """What it is held against, such as "above 0.1"; empty where it only stands beside."""
    seeds: int | None = None
    """How many training seeds or worlds it is the mean of; None where it has none."""

    @classmethod
    def of(cls, figure: Figure, *, what: str, level: float, n: str, unit: str) -> ClaimFigure:
        """A measured figure with its interval at a level; the other arguments are the fields."""
        return cls(
            what=what,
            value=figure.value,
            interval=figure.interval_at(level),
            n=n,
            unit=unit,
            seeds=len(figure.by_seed) or None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One condition of a claim."""

    verdict: str
    reason: str
    figures: Sequence[ClaimFigure] = ()
    warning: str = ""
    """What a reader has to know of it beside the verdict."""


@dataclasses.dataclass(frozen=True)
class Rule(Generic[R]):
    """What a claim is judged by. Called with a record and the level of its intervals it gives the
    parts."""

    says: str
    """The rule in words, as docs/claims.md shows it."""
    judge: Callable[[R, float], list[Part]]
    """May raise `NotMeasured`."""

    def __call__(self, record: R, level: float) -> list[Part]:
        """The parts, at least one; one that cannot be told where a figure was not measured."""
        try:
            return self.judge(record, level) or [not_measured("what the claim is about")]
        except NotMeasured as missing:
            return [not_measured(missing)]


# -------------------------------------------------------------------------------------------- rules


def joint(verdicts: Iterable[str]) -> str:
    """Of several conditions: holds if all do, does not hold if one does not."""
    different = set(verdicts)
    return FAILS if FAILS in different else UNKNOWN if UNKNOWN in different else HOLDS


def unknown(reason: str, figures: Sequence[ClaimFigure] = ()) -> Part:
    """A condition that cannot be told."""
    return Part(verdict=UNKNOWN, reason=reason, figures=figures)


def not_measured(missing: NotMeasured | str, where: str = "") -> Part:
    """A condition that cannot be told for want of a figure."""
    return unknown(f"{_at(where, str(missing))} was not measured")


def _at(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text


def widened(level: float, looks: int) -> float:
    """The level of each of several looks (Bonferroni)."""
    return 1 - (1 - level) / max(1, looks) if level > 0 else level


def all_of(parts: Sequence[Part]) -> Part:
    """Several conditions as one."""
    verdict = joint(condition.verdict for condition in parts)
    reasons = [condition.reason for condition in parts if condition.verdict == verdict]
    return Part(
        verdict=verdict,
        reason="; ".join(reasons),
        figures=[f for condition in parts for f in condition.figures],
    )


def one_of(parts: Sequence[Part]) -> Part:
    """Of several conditions, at least one: the first that holds, else the first that cannot be
    told; it does not hold where none does."""
    for verdict in (HOLDS, UNKNOWN):
        for condition in parts:
            if condition.verdict == verdict:
                return condition
    return dataclasses.replace(
        parts[0], reason="; ".join(condition.reason for condition in parts[:3])
    )


def side_of_bound(
    interval: tuple[float, float] | None, bound: float, *, inclusive: bool = False
) -> str:
    """Whether an interval lies above a bound: "holds" wholly above, "does not hold" wholly below.

    Args:
        interval: None, or with an end that is not finite: not to be told.
        bound: what it is held against.
        inclusive: an interval that begins at the bound is above it.
    """
    if interval is None or not all(map(math.isfinite, interval)):
        return UNKNOWN
    low, high = interval
    return (
        HOLDS if low > bound or (inclusive and low == bound) else FAILS if high < bound else UNKNOWN
    )


def above(
    figure: ClaimFigure,
    bound: float,
    *,
    yes: str,
    no: str,
    between: str | None = None,
    inclusive: bool = False,
) -> Part:
    """A figure that has to lie above a bound with its whole interval.

    Args:
        figure: with its interval.
        bound: in the figure's unit; of a claim of direction the least effect that counts.
        yes, no, between: the reason for each verdict; `between` is made from `yes` where it is left
            out.
        inclusive: see `side_of_bound`.
    """
    figure = dataclasses.replace(
        figure, needs=f"{'at least' if inclusive else 'above'} {bound:.3g}"
    )
    return _judged(
        figure, side_of_bound(figure.interval, bound, inclusive=inclusive), yes, no, between
    )


def below(
    figure: ClaimFigure,
    bound: float,
    *,
    yes: str,
    no: str,
    between: str | None = None,
    inclusive: bool = False,
) -> Part:
    """A figure that has to lie below a bound with its whole interval; the arguments of `above`.
    With `inclusive`, an interval that begins at the bound is not below it."""
    figure = dataclasses.replace(figure, needs=f"below {bound:.3g}")
    is_above = side_of_bound(figure.interval, bound, inclusive=inclusive)
    return _judged(
        figure, {HOLDS: FAILS, FAILS: HOLDS, UNKNOWN: UNKNOWN}[is_above], yes, no, between
    )


def within(
    figure: ClaimFigure, margin: float, *, yes: str, no: str, between: str | None = None
) -> Part:
    """A figure that has to lie within -margin and margin with its whole interval, which is an
    equivalence (two one-sided tests; Schuirmann 1987); wholly beyond one end it does not hold.
    Finding no difference is no equivalence.
    """
    figure = dataclasses.replace(figure, needs=f"within ±{margin:.3g}")
    sides = {
        side_of_bound(figure.interval, -margin, inclusive=True),
        _turned(figure.interval, margin),
    }
    return _judged(figure, joint(sides), yes, no, between)


def _turned(interval: tuple[float, float] | None, bound: float) -> str:
    """Whether an interval lies at or below a bound."""
    return side_of_bound(
        None if interval is None else (-interval[1], -interval[0]), -bound, inclusive=True
    )


def _judged(figure: ClaimFigure, verdict: str, yes: str, no: str, between: str | None) -> Part:
    if figure.interval is None:
        return unknown(NO_INTERVAL, [figure])
    if not all(map(math.isfinite, (figure.value, *figure.interval))):
        return unknown(f"{figure.what} is not finite", [figure])
    reasons = {HOLDS: yes, FAILS: no, UNKNOWN: between or f"it is undecided whether {yes}"}
    return Part(verdict=verdict, reason=reasons[verdict], figures=[figure])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trend:
    """How a figure has to change along a line of points."""

    least: float
    """By how much the ends have to differ, in the figure's unit."""
    margin: float
    """What a way back may be, in the figure's unit."""
    rises: bool = True
    """False: it falls."""
    along: str = "the strength"
    """What the line is a line of, such as "the budget"."""


def monotone(
    line: Sequence[tuple[str, Figure]], trend: Trend, *, what: str, level: float, n: str, unit: str
) -> Part:
    """Whether a figure rises (or falls) along a line of points, at least two: its ends differ by
    more than the trend's `least`, and between no two points does it go back by more than its
    `margin`, for all pairs at once.

    The pairs' intervals are widened to 1 - (1 - level) / pairs (Bonferroni). It holds only where
    each of them shows that the way back is less than the margin: that no step contradicts is not
    enough.

    Args:
        line: names of the points, such as "weight 0.3", with what was measured there, over the same
            seeds.
        trend: how it has to change.
        what: the figure, in a word.
        level: of the intervals.
        n, unit: see `ClaimFigure`.
    """
    least, margin = trend.least, trend.margin
    pairs = list(itertools.combinations(line, 2))
    each = widened(level, len(pairs))
    (first, start), (last, end) = line[0], line[-1]
    rise = end - start
    figure = ClaimFigure.of(rise, what=f"{what}: {last} - {first}", level=level, n=n, unit=unit)
    doubtful, backwards = [], []
    for (a, before), (b, after) in pairs:
        step = (after - before).interval_at(each)
        if step is None or not all(map(math.isfinite, step)):
            return unknown(f"{what} has no interval", [figure])
        least_ahead, most_ahead = step if trend.rises else (-step[1], -step[0])
        if most_ahead < -margin:
            backwards.append(f"{a} to {b}")
        elif least_ahead < -margin:
            doubtful.append(f"{a} to {b}")
    judge, bound, way, back = (
        (above, least, "rise", "fall") if trend.rises else (below, -least, "fall", "rise")
    )
    yes, no = (
        f"{what} {way}s with {trend.along}",
        f"{what} does not {way} by at least the smallest change that counts",
    )
    ends = judge(figure, bound, yes=yes, no=no)
    if backwards:
        reason = f"{what} {back}s by more than {margin:.3g} from {', '.join(backwards)}"
        return dataclasses.replace(ends, verdict=FAILS, reason=reason)
    if doubtful and ends.verdict == HOLDS:
        reason = (
            f"it is undecided whether {what} {back}s by more than {margin:.3g} from "
            f"{', '.join(doubtful)}"
        )
        return dataclasses.replace(ends, verdict=UNKNOWN, reason=reason)
    return ends


# ----------------------------------------------------------------------------------- declared rules


class Case(Protocol):
    """What a claim has to hold for: an order with one of its old tasks, a checkpoint, a learning
    rate."""

    @property
    def where(self) -> str:
        """For people; empty where there is one case."""

    @property
    def unit(self) -> str:
        """Of its figures."""

    def behind(self, figure: Figure) -> str:
        """What is behind a figure, as `ClaimFigure.n`."""


Cases = Callable[[Any], Iterable[Any]]
"""Of a record."""


def for_case(case: Any, value: Any) -> Any:
    """A value, or that of a case."""
    return value(case) if callable(value) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """A figure that has to lie beyond a bound with its whole interval. `{case}` in its texts stands
    for the case, `{arm}` and `{other}` for what `some` looks at."""

    what: str
    of: Callable[..., Figure]
    """The figure of a case, with `arm` and `other` under `some`; raises `NotMeasured`."""
    above: float | None = None
    """One of three bounds."""
    below: float | None = None
    within: float | None = None
    yes: str
    no: str
    unit: str | Callable[[Any], str] = lambda case: case.unit

    def part(self, case: Case, level: float, **options: Any) -> Part:
        """How it is in a case."""
        try:
            value = self.of(case, **options)
        except NotMeasured as missing:
            return not_measured(missing, case.where)
        what, yes, no = (
            text.format(case=case, **options) for text in (self.what, self.yes, self.no)
        )
        figure = ClaimFigure.of(
            value,
            what=_at(case.where, what),
            level=level,
            n=case.behind(value),
            unit=for_case(case, self.unit),
        )
        if self.above is not None:
            return above(figure, self.above, yes=yes, no=no)
        if self.below is not None:
            return below(figure, self.below, yes=yes, no=no)
        assert self.within is not None, "a check needs a bound: above, below or within"
        return within(figure, self.within, yes=yes, no=no)


def rule(says: str, cases: Cases, *checks: Check) -> Rule[Any]:
    """Every check holds in every case.

    Args:
        says: the rule for people.
        cases: of a record; none: the rule cannot be told.
        checks: see `Check`.
    """

    def judge(record: Any, level: float) -> list[Part]:
        return [check.part(case, level) for check in checks for case in cases(record)]

    return Rule(says, judge)


def some(
    says: str,
    cases: Cases,
    options: Callable[[Any], Iterable[tuple[Any, Sequence[Any]]]],
    *checks: Check,
) -> Rule[Any]:
    """In every case, beside every rival, one of several arms passes all checks, with intervals
    widened for the number of arms.

    Args:
        says: the rule for people.
        cases: of a record.
        options: of a case, each rival (`other`) with the arms (`arm`) beside it; raises
            `NotMeasured` where there is none.
        checks: see `Check`.
    """

    def judge(record: Any, level: float) -> list[Part]:
        parts = []
        for case in cases(record):
            try:
                rivals = list(options(case))
            except NotMeasured as missing:
                parts.append(not_measured(missing, case.where))
                continue
            for other, arms in rivals:
                each = widened(level, len(arms))
                looks = []
                for arm in arms:
                    looks.append(
                        all_of([check.part(case, each, arm=arm, other=other) for check in checks])
                    )
                parts.append(one_of(looks))
        return parts

    return Rule(says, judge)


def rising(
    says: str,
    cases: Cases,
    line: Callable[[Any], list[tuple[str, Figure]]],
    *,
    what: str,
    least: float | Callable[[Any], float],
    back: float | Callable[[Any], float],
    along: str = "the strength",
    points: int = 2,
) -> Rule[Any]:
    """In every case a figure rises along a line of points (`monotone`).

    Args:
        says: the rule for people.
        cases: of a record.
        line: of a case, the points with what was measured there; raises `NotMeasured`.
        what: the figure; `{case}` stands for the case.
        least: by how much the ends have to differ, or that of a case.
        back: what a way back may be, or that of a case.
        along: what the line is a line of.
        points: how many are needed.
    """

    def judged(case: Any, level: float) -> Part:
        figures = line(case)
        if len(figures) < points:
            raise NotMeasured(f"{what.format(case=case)} at {points} points")
        return monotone(
            figures,
            Trend(least=for_case(case, least), margin=for_case(case, back), along=along),
            what=_at(case.where, what.format(case=case)),
            level=level,
            n=case.behind(figures[0][1]),
            unit=case.unit,
        )

    def judge(record: Any, level: float) -> list[Part]:
        parts = []
        for case in cases(record):
            try:
                parts.append(judged(case, level))
            except NotMeasured as missing:
                parts.append(not_measured(missing, case.where))
        return parts

    return Rule(says, judge)
