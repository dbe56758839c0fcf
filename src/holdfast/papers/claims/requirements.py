"""What has to be so before a rule may speak: a figure with a bound. Was this an experiment that the
claim speaks of? Where a precondition is not met, the verdict is "cannot tell", whatever the rule
says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

from holdfast.papers.claims.rules import for_case
from holdfast.records.figure import NotMeasured


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precondition:
    """What has to be so before a rule may speak, and how it is. Made by `at_most` and
    `at_least`."""

    name: str
    """What is required: "direct fine-tuning forgets moderately"."""
    figure: str
    """What was looked at, such as "direct's loss / (unigram - start)"."""
    value: float | None
    """None: it was not measured, so that nobody knows."""
    bound: float
    sense: Literal["at most", "at least"]
    advice: str
    """What to change where it is not met."""

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the bound; False where there is none."""
        # a mean of shares may be off by its last bit
        return self.by is not None and self.by <= 1e-9

    @property
    def by(self) -> float | None:
        """By how much it is missed; 0 where it is met, None where nothing was measured."""
        if self.value is None or math.isnan(self.value):
            return None
        excess = self.value - self.bound
        return max(0.0, excess if self.sense == "at most" else -excess)

    @property
    def sentence(self) -> str:
        """How it is; where it is not met also by how much, and what to do."""
        if self.by is None:
            state = f"{self.figure} was not measured"
        else:
            state = f"{self.figure} is {self.value:.3g}, expected {self.sense} {self.bound:.3g}"
        if self.met:
            return f"precondition met: {self.name}; {state}"
        off = "" if self.by is None else f", off by {self.by:.2g}"
        return f"precondition not met: {self.name}; {state}{off}; {self.advice}"


def at_most(
    name: str, value: float | None, bound: float, *, figure: str, advice: str
) -> Precondition:
    """A figure that may be as large as a bound; the arguments are the fields of `Precondition`."""
    return Precondition(
        name=name, figure=figure, value=value, bound=bound, sense="at most", advice=advice
    )


def at_least(
    name: str, value: float | None, bound: float, *, figure: str, advice: str
) -> Precondition:
    """A figure that has to be as large as a bound; the arguments are the fields of
    `Precondition`."""
    return Precondition(
        name=name, figure=figure, value=value, bound=bound, sense="at least", advice=advice
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Requirement:
    """A precondition before it meets a study: one of `Statement.preconditions`. `{case}` in its
    texts stands for the case."""

    name: str
    """As in `Precondition`; `figure` and `advice` too."""
    of: Callable[[Any], float]
    """The figure of a case; raises `NotMeasured`."""
    at_least: float | Callable[[Any], float] | None = None
    """The bound, or that of a case; the other one is None."""
    at_most: float | None = None
    figure: str
    advice: str
    cases: Callable[[Any], Iterable[Any]] = lambda record: [record]
    """What it has to be so for; the record itself."""

    def __call__(self, record: Any) -> list[Precondition]:
        """How it is in a study."""
        return [self._of_case(case) for case in self.cases(record)]

    def _of_case(self, case: Any) -> Precondition:
        try:
            value: float | None = self.of(case)
        except NotMeasured:
            value = None
        name, figure = self.name.format(case=case), self.figure.format(case=case)
        if self.at_most is not None:
            return at_most(name, value, self.at_most, figure=figure, advice=self.advice)
        return at_least(
            name, value, for_case(case, self.at_least), figure=figure, advice=self.advice
        )
