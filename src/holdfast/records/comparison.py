"""Two models on the same samples: one metric's paired difference, what a gate's rule says of it,
groups of the samples, answers side by side, and scores over stages of training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from holdfast.records.evaluation import Metric
from holdfast.records.margins import Margins
from holdfast.support.display import Displayed
from holdfast.support.files import record_from

NOT_FINITE = "not finite"
"""The verdict of a comparison that failed, and the outcome of a rule that speaks of it."""
NOT_MEASURED = "not measured"
"""The outcome of a rule that speaks of an entry which only one of the two models has."""
LOST, GAINED, KEPT, NOT_SHOWN = "lost", "gained", "kept", "not shown"
LITTLE_LOST, LITTLE_GAINED = "lost within the margin", "gained within the margin"
BEYOND, WITHIN, INSIDE = "beyond", "within", "threshold inside"
ON_ITS_OWN = "beyond on its own"
NO_INTERVAL, ONE_SAMPLE, RELATIVE_TO_ZERO = "no interval", "one sample", "relative to 0"
ONLY_BEFORE, ONLY_AFTER, NEITHER = "only before", "only after", "neither"
REFUSED = "refused"
ACCEPTED = "accepted"
"""The outcome, and the reason, of a loss that somebody accepted (`AcceptedLoss`)."""
GATE_REASONS = (
    BEYOND, ON_ITS_OWN, WITHIN, INSIDE, NO_INTERVAL, ONE_SAMPLE, RELATIVE_TO_ZERO, NOT_FINITE,
    ONLY_BEFORE, ONLY_AFTER, NEITHER, REFUSED, ACCEPTED,
)  # fmt: skip
"""Why a rule's outcome is what it is; `reports.decision_text` has the sentences."""
SHIP, HOLD, CANNOT_TELL = "SHIP", "HOLD", "CANNOT TELL"
Tier = Literal["critical", "supporting", "advisory"]
"""What follows where a rule fails (`evaluation.compare.policy`)."""
CRITICAL: Tier = "critical"
SUPPORTING: Tier = "supporting"
ADVISORY: Tier = "advisory"
FamilyWise = Literal["holm", "max_t", "none"]
"""How p-values of several tests are adjusted (`statistics.family_wise`)."""
VERDICTS = (LOST, GAINED, LITTLE_LOST, LITTLE_GAINED, KEPT, NOT_SHOWN, NOT_FINITE)
"""Of comparisons, in the order in which they are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(Displayed):
    """The initial model compared with the result in one metric, paired sample by sample.

    `difference` is after - before in the metric's own unit. `gain` is the same with the sign that
    makes more better.
    """

    suite: str
    name: str
    metric: str
    unit: str
    higher_is_better: bool
    n: int
    before: float
    after: float
    difference: float
    interval: tuple[float, float]
    """All differences that the test does not reject at `confidence`."""
    p_value: float
    """Two-sided p-value of the same test: below 1 - `confidence` exactly if the interval excludes
    0."""
    test: str
    """"McNemar (exact)" for right/wrong metrics, else "paired t, skewness removed"
    (`statistics.paired`). Records of earlier versions have "paired bootstrap", whose interval and
    p-value may disagree."""
    primary: bool = True
    confidence: float = 0.95
    flips_lost: int | None = None
    """Number of samples that were right before and wrong after; None if the metric is not
    right/wrong."""
    flips_gained: int | None = None
    standard_error: float | None = None
    """Standard error of `difference`, with `skewness` and degrees of freedom `df`. None if the
    flips determine the test, and in records of earlier versions."""
    skewness: float = 0.0
    df: float | None = None
    smallest: int | None = None
    """For an average: number of samples of its smallest member."""
    margin: float | None = None
    """The largest loss that does not matter, in the metric's unit; None: the default
    (`records.margins`)."""
    p_adjusted: float | None = None
    """One-sided p-value of "no loss", adjusted for all entries of the comparison (`Decision`); None
    if the metric is not the entry's primary one."""
    detectable: float | None = None
    """If no change is shown: the true loss that these samples detect with a probability of 80 %, in
    the metric's unit, at the level that remains after the adjustment."""
    needed: int | None = None
    """If no change is shown: the number of samples that detect a loss of the margin with a
    probability of 80 %."""
    chance: float | None = None
    """The level of guessing, in the metric's unit; None if there is no such level."""
    at_chance: tuple[str, ...] = ()
    """The models ("before", "after") that are not shown to be better than guessing, because their
    own interval reaches down to it."""
    failed: str | None = None
    """Why the comparison means nothing: a figure, or a sample behind it, is NaN or infinite.
    Difference and interval are NaN then."""

    def __post_init__(self) -> None:
        figures = {"before": self.before, "after": self.after, "the difference": self.difference}
        wrong = [
            f"{name} is {value:g}" for name, value in figures.items() if not math.isfinite(value)
        ]
        if self.failed is None and (wrong or any(map(math.isinf, self.interval))):
            object.__setattr__(self, "failed", f"{', '.join(wrong) or 'the interval is infinite'}.")
        if self.failed is not None:
            nothing = {
                "difference": math.nan,
                "interval": (math.nan, math.nan),
                "p_value": math.nan,
            }
            unknown = (
                "flips_lost",
                "flips_gained",
                "standard_error",
                "p_adjusted",
                "detectable",
                "needed",
            )
            for name, value in {**nothing, **dict.fromkeys(unknown)}.items():
                object.__setattr__(self, name, value)

    @property
    def gain(self) -> float:
        """The difference, with the sign that makes positive better."""
        return self.difference if self.higher_is_better else -self.difference

    @property
    def needed_about(self) -> int | None:
        """`needed`, rounded up to two digits."""
        if self.needed is None:
            return None
        size = 10 ** max(0, len(str(self.needed)) - 2)
        return math.ceil(self.needed / size) * size

    @property
    def tolerated(self) -> float:
        """The largest loss that does not matter (the margin), in the metric's unit."""
        return (
            Margins().of(self.unit, self.metric, self.before, self.after)
            if self.margin is None
            else self.margin
        )

    @property
    def verdict(self) -> str:
        """The verdict, one of `VERDICTS`. If the interval of the gain excludes 0, it is "gained" or
        "lost", or "within the margin" if the whole interval is within the margin. If the interval
        includes 0, it is "kept" if no part of it is a loss larger than the margin
        (non-inferiority), else "not shown"."""
        if self.failed is not None:
            return NOT_FINITE
        low, high = (
            self.interval if self.higher_is_better else (-self.interval[1], -self.interval[0])
        )
        if math.isnan(low):
            return NOT_SHOWN
        if low > 0.0:
            return GAINED if high > self.tolerated else LITTLE_GAINED
        if high < 0.0:
            return LOST if low < -self.tolerated else LITTLE_LOST
        return KEPT if low >= -self.tolerated else NOT_SHOWN

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Comparison:
        return record_from(Comparison, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcceptedLoss:
    """A loss that somebody accepted, of one model before."""

    suite: str
    name: str
    metric: str
    unit: str
    loss: float
    """As it was measured, in `unit`; more than 0."""
    before: str
    """What tells the model before from others: its weights' hash, or where nobody knows that its
    name."""
    labels: tuple[str, str]
    """Of the two models."""
    by: str
    why: str
    date: str
    """ISO 8601."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcceptedLosses:
    """The file of a policy's accepted losses."""

    losses: list[AcceptedLoss]

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> AcceptedLosses:
        return record_from(AcceptedLosses, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateOutcome:
    """What a rule such as "mmlu drop > 1pt" says of one comparison."""

    rule: str
    """As the user wrote it."""
    direction: str
    """"drop", "gain", "rise" or "fall"."""
    operator: str
    """">", ">=", "<" or "<="."""
    suite: str
    name: str
    metric: str
    """Empty where only one of the two models was measured."""
    outcome: str
    """"failed": the whole interval lies beyond the threshold, and still does when all tests of the
    gate are accounted for. "passed": the whole interval lies within it. "undecided": neither. "not
    finite": a figure or a sample is NaN or infinite. "not measured": only one of the two models
    was."""
    value: float
    """The change that the rule speaks of, signed so that the rule's direction is positive, in the
    rule's unit."""
    interval: tuple[float, float]
    """Of `value`, at `level` on each side."""
    threshold: float
    unit: str
    """"pt" (hundredths of a share), "%" of the value before, or the metric's own."""
    why: str
    """One of `GATE_REASONS`."""
    tier: Tier = CRITICAL
    required: bool = True
    """Whether it matters that it was not measured, or is not finite."""
    of_policy: bool = False
    """Whether a policy asks for it, so that it has to be shown to pass."""
    level: float = 0.025
    """Of one side of the interval, and of the adjusted p-value."""
    failed: str | None = None
    """What is not finite, as `Comparison.failed` says it; or why the two were not compared."""
    accepted: AcceptedLoss | None = None
    """What was accepted here; the threshold has its loss in it."""
    p_value: float = math.nan
    """One-sided, of "the rule does not hold"; NaN where nothing was tested."""
    p_adjusted: float = math.nan
    """The same for all tests of the gate together (`Decision`)."""
    needed: int | None = None
    """Where it is undecided: how many samples would decide with a chance of 80 %, were the change
    as it was measured; None where so many cannot be had, or nothing is known of the spread."""
    tests: int = 0
    """Tests that `p_adjusted` accounts for: all of the gate, 1 where none is adjusted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """A loss that is shown, or a rule that is shown to be broken, on one entry."""

    suite: str
    name: str
    metric: str
    rule: str = ""
    """As the user wrote it; empty for a loss."""
    within_margin: bool = False
    """Of a loss: whether it is shown to be one that does not matter."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What several tests say together, with one chance of a false alarm for all of them."""

    about: str
    """"rules": of a gate; "losses": of the metrics that lead each entry, where there is no rule."""
    family_wise: FamilyWise
    """How p-values were adjusted."""
    level: float
    """The chance, one-sided, that anything is shown where nothing is so; of "none", that of each
    test."""
    tests: int
    shown: list[Shown]
    p_value: float
    """The smallest adjusted p-value, one-sided."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a gate says."""

    word: str
    """SHIP, HOLD or CANNOT TELL."""
    because: list[GateOutcome]
    """The outcomes that make it so; empty for SHIP."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breakdown:
    """One entry's comparison, group by group of its samples."""

    suite: str
    name: str
    metric: str
    by: str
    """"subject", "category", "source", or "length": characters of the question."""
    groups: list[Comparison]
    """Each with the group as its name."""
    p_adjusted: list[float]
    """Two-sided p-values of the groups, adjusted for their number (Holm)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model said to one prompt."""

    text: str
    """Without special tokens and without its thought."""
    tokens: int
    """All that were written."""
    ended: bool
    """Whether it ended by itself, before the tokens ran out."""
    open_thought: bool
    """Whether it is a thought without an end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnsweredPrompt:
    """One prompt with the answers of two models."""

    messages: list[dict[str, Any]]
    before: Answer
    after: Answer

    @property
    def differs(self) -> bool:
        """Whether the two texts do."""
        return self.before.text != self.after.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What two models answer to the user's own prompts, greedily: shown, and not judged."""

    file: str
    """Its name."""
    max_new_tokens: int
    chat_template: bool
    """Whether prompts were asked in the models' chat templates; else as they stand."""
    prompts: list[AnsweredPrompt]
    notes: list[str]
    """What a reader should know, a sentence each."""
    not_finite: list[str]
    """A sentence for each model whose answers were chosen by logits that are NaN or infinite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMatrix:
    """Scores of every task after every stage of sequential training, and measures of forgetting
    from them (GEM 2017; Chaudhry et al. 2018)."""

    tasks: list[str]
    """Names of the tasks in the order of training, one for each stage after the start. A task of
    None, which has no stage of its own, is not in the list."""
    stages: list[str]
    """Labels of the start and of the model after each stage; `len(tasks) + 1` of them."""
    scores: list[list[float]]
    """`scores[l][i]`: task i after stage l, l = 0 being the start; higher is better."""
    measures: dict[str, Metric]
    """"average_accuracy", "backward_transfer", "forgetting", "forward_transfer", each with its
    interval."""
    unit: str = ""
    failed: list[str] = dataclasses.field(default_factory=list)
    """One sentence for each task with a figure or a sample that is NaN or infinite. Scores of such
    a task are NaN."""
