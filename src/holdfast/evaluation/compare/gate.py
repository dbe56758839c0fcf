"""Rules that decide whether a change is acceptable: `mmlu drop > 1pt`, judged on the interval of
the change and not on its point.

    SUBJECT [METRIC] drop|gain|rise|fall >|>=|<|<= NUMBER[pt|%|unit]

Subject: `any` (every entry), a suite, an entry's name, or suite/name. Metric: one of the entry's;
without it the one that leads. It follows the subject after a space or a slash.

Change, with d = after - before and `worse` the sign that makes worse positive:

    drop = worse * d        gain = -worse * d        rise = d        fall = -d

Unit: `pt` is 1/100 of a share in [0, 1] (an accuracy of .52 against .50 is a gain of 2 pt); `%` is
relative to
|before|, which counts as known; none, or the metric's own name for its unit, takes the number as it is.

Outcome, with [low, high] the paired interval of the change, for `change > t`:

    failed      low > t         all of the interval is beyond the threshold: the data say that it was crossed; and they
                                still do when all tests of the gate are accounted for
    passed      high <= t       none of it is: the data say that it was not (non-inferiority with margin t; Piaggio et
                                al. 2012, CONSORT extension)
    undecided   otherwise       more questions would decide. Passes, unless the gate is strict

and likewise for the other operators: failed where the rule holds on the whole interval, passed
where it holds nowhere on it. A two-sided interval at 95 % makes each of the two statements a
one-sided test at 2.5 %.

All rules on all entries are one family with one chance of a false alarm, since one failure closes
the gate: a rule fails where its one-sided p-value, adjusted for the family, is below 2.5 %, too
(`compare.decision`; Holm's method unless asked otherwise). What passes needs no adjustment. Without
an interval (a single sample) a rule is undecided. Of an entry that failed (a figure or a sample is
NaN or infinite) it is "not finite", and of one that only one of the two models has "not measured":
no gate lets these pass, strict or not.

A rule says what fails. One that would fail a model for being better without limit (`drop < 1%`,
`gain > 2pt`) is an acceptance rule and refused.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from holdfast.errors import ConfigError, DataError, did_you_mean
from holdfast.evaluation.compare.decision import Adjustment
from holdfast.evaluation.compare.folders import Compared, EntryPair, Key, Matching, Unmatched
from holdfast.evaluation.former_names import current_path
from holdfast.records.comparison import (
    ACCEPTED,
    ADVISORY,
    BEYOND,
    CANNOT_TELL,
    CRITICAL,
    HOLD,
    INSIDE,
    NEITHER,
    NO_INTERVAL,
    NOT_FINITE,
    NOT_MEASURED,
    ON_ITS_OWN,
    ONE_SAMPLE,
    REFUSED,
    RELATIVE_TO_ZERO,
    SHIP,
    SUPPORTING,
    WITHIN,
    AcceptedLoss,
    Comparison,
    Decision,
    GateOutcome,
    Shown,
    Tier,
    Verdict,
)
from holdfast.records.margins import Margins, StatedMargins
from holdfast.records.metrics import called, is_share
from holdfast.statistics.decision import level_of
from holdfast.statistics.paired import paired_test

T = TypeVar("T")

DIRECTIONS = ("drop", "gain", "rise", "fall")
EXAMPLES = (
    "'mmlu drop > 1pt', 'any drop > 2%', 'keep/prose perplexity rise > 3%', 'learn gain < 2pt'"
)
FAILED, PASSED, UNDECIDED = "failed", "passed", "undecided"

_RULE = re.compile(
    r"(?P<what>.*?)\s*\b(?P<direction>[A-Za-z]+)\s*(?P<operator>>=|<=|>|<)\s*(?P<number>[^\s%A-Za-z]*(?:[eE][-+]?\d+)?)\s*(?P<unit>.*)"
)
_POINTS = ("pt", "pts", "point", "points")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
"""By sign: whether a change is forbidden by a threshold."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule as it was read."""

    text: str
    """The rule as the user wrote it."""
    what: str
    """Subject, followed by the metric if the rule names one. Names may contain spaces and slashes,
    so only the names of the entries tell where the metric begins."""
    direction: str
    """"drop", "gain", "rise" or "fall"."""
    operator: str
    """">", ">=", "<" or "<="."""
    threshold: float
    unit: str
    """"pt", "%", empty, or the metric's own unit."""
    tier: Tier = CRITICAL
    alpha: float | None = None
    """One-sided level of the test; None: the level of the comparison."""
    required: bool = True
    """Whether it is an error that an entry was not measured."""
    margins: Margins | StatedMargins | None = None
    """The margins of a policy's entry. The margin that fits the metric becomes the threshold. The
    entry passes only if the comparison shows that its loss is within the margin."""
    accepted: tuple[AcceptedLoss, ...] = ()
    """The accepted losses of a policy's entry, in any metric."""

    def of_metric(self, c: Comparison) -> Rule | None:
        """The rule with a margin for threshold; None where no margin fits the metric."""
        if self.margins is None:
            return self
        margin = self.margins.threshold(c.unit, c.metric, c.before, c.after)
        return None if margin is None else replace(self, threshold=margin[0], unit=margin[1])

    def beyond(self, loss: AcceptedLoss, c: Comparison) -> Rule:
        """The rule beyond a loss that was accepted."""
        scale = {"pt": 100.0, "%": 100.0 / abs(c.before) if c.before else math.nan}
        return replace(self, threshold=self.threshold + scale.get(self.unit, 1.0) * loss.loss)

    def holds(self, change: float) -> bool:
        """Whether a change is what the rule forbids."""
        return _OPERATORS[self.operator](change, self.threshold)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A rule and the entries that it speaks of."""

    rule: Rule
    metrics: dict[Key, str | None]
    """Of the entries that both models have; None: whatever leads it."""
    missing: list[Key]
    """Entries that only one of the two models has."""


# ------------------------------------------------------------------------------------------ reading


def parse_rules(texts: Iterable[str]) -> list[Rule]:
    """Reads rules.

    Raises:
        ConfigError: any that is malformed, all at once.
    """
    return _all_or_problems([(text, _parse(text)) for text in dict.fromkeys(texts)])


def _all_or_problems(values: Sequence[tuple[str, T | str]]) -> list[T]:
    """What comes of each rule's text.

    Args:
        values: the rule's text, and what comes of it or a problem.

    Raises:
        ConfigError: the problems, all at once.
    """
    sound: list[T] = []
    problems = []
    for text, value in values:
        if isinstance(value, str):
            problems.append(f"rule '{text}': {value}")
        else:
            sound.append(value)
    if problems:
        raise ConfigError(problems)
    return sound


def _parse(text: str) -> Rule | str:
    match = _RULE.fullmatch(text.strip())
    if match is None:
        return f"expected SUBJECT drop|gain|rise|fall > NUMBER, such as {EXAMPLES}"
    what, direction, unit = match["what"].strip(), match["direction"].lower(), match["unit"].strip()
    sign = match["operator"]
    if direction not in DIRECTIONS:
        near = did_you_mean(direction, DIRECTIONS)
        return (
            f"expected one of {', '.join(DIRECTIONS)} before '{sign}', got "
            f"'{match['direction']}'.{near}"
        )
    if not what:
        return f"expected an entry, a suite or 'any' first, such as {EXAMPLES}"
    try:
        threshold = float(match["number"])
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        number = (match["number"] + match["unit"]).strip()
        return f"expected a number after '{sign}', such as 1pt or 2%, got '{number}'"
    rule = Rule(
        text=text.strip(),
        what=what,
        direction=direction,
        operator=sign,
        threshold=threshold,
        unit="pt" if unit.lower() in _POINTS else unit,
    )
    if direction in ("drop", "gain") and (direction == "drop") == (sign in ("<", "<=")):
        reversed_text = rule.text.replace(sign, sign.translate(str.maketrans("<>", "><")), 1)
        return (
            "a rule describes what FAILS, and this rule would fail a model for improving. Write "
            f"'{reversed_text}'. If a worse value is what you want, use rise or fall"
        )
    return rule


# ------------------------------------------------------------------------------------------ binding


def bind_rules(rules: Sequence[Rule], matching: Matching) -> list[Aim]:
    """Finds the entries of every rule and checks its unit against them. Reads no samples, so it
    costs nothing before the work.

    Raises:
        ConfigError: rules that match nothing (with the nearest names), speak of entries that cannot
            be compared, or have a unit that does not fit; all at once.
    """
    return _all_or_problems([(rule.text, _bind(rule, matching)) for rule in rules])


def _bind(rule: Rule, matching: Matching) -> Aim | str:
    pairs = {pair.key: pair for pair in matching.pairs}
    unmatched = {(entry.suite, entry.name): entry for entry in matching.unmatched}
    known = list(dict.fromkeys([*pairs, *unmatched]))
    reasons: list[str] = []
    for subject, metric in _readings(rule.what):
        keys = _entries(subject, known) or _entries(current_path(subject), known)
        if not keys:
            continue
        both = [key for key in keys if key in pairs]
        refused, missing = [], []
        for key in keys:
            entry = unmatched.get(key)
            if entry is not None and entry.why == "refused":
                refused.append(str(entry))
            if entry is not None and (metric is None or called(metric, entry.metrics)):
                missing.append(key)
        if refused:
            return "the rule names entries that cannot be compared: " + " ".join(refused)
        candidates, chosen = meant_metrics(metric, {key: pairs[key] for key in both})
        if chosen or (missing and not both):
            aim = Aim(rule=rule, metrics=chosen, missing=missing)
            return _unit_problem(aim, pairs) or aim
        if candidates:
            reasons.append(
                f"'{metric}' may mean any of {', '.join(candidates)}: write one of them in full"
            )
            continue
        shared: dict[str, None] = {}
        for key in both:
            shared |= dict.fromkeys(shared_metrics(pairs[key]))
        near = did_you_mean(metric or "", shared)
        reasons.append(f"'{subject}' has no metric '{metric}'.{near} It has: {', '.join(shared)}")
    return reasons[0] if reasons else _no_entry(rule, known)


def _no_entry(rule: Rule, known: Sequence[Key]) -> str:
    """What is said of a rule whose words name nothing, with the nearest name or the first of
    all."""
    paths = ["/".join(key) for key in known]
    names = [*(name for _, name in known), *(suite for suite, _ in known), *paths, "any"]
    for subject, _ in _readings(rule.what):
        if near := did_you_mean(subject, list(dict.fromkeys(names))):
            return f"no entry or suite '{rule.what}'.{near}"
    others = f" and {len(paths) - 12} more" if len(paths) > 12 else ""
    return f"no entry or suite '{rule.what}'. There are: {', '.join(paths[:12])}{others}, or 'any'."


def _readings(what: str) -> list[tuple[str, str | None]]:
    """How the words before the direction may divide into subject and metric, the longest subject
    first; names may hold spaces and slashes."""
    readings: list[tuple[str, str | None]] = [(what, None)]
    for i in reversed(range(len(what))):
        subject, metric = what[:i].strip(), what[i + 1 :].strip()
        if what[i] in " /" and subject and metric:
            readings.append((subject, metric))
    return readings


def _entries(subject: str, known: Sequence[Key]) -> list[Key]:
    if subject.lower() == "any":
        return list(known)
    exact = [key for key in known if "/".join(key) == subject]
    return exact or [key for key in known if subject in key]


def shared_metrics(pair: EntryPair) -> list[str]:
    """Metrics that both models have of an entry."""
    return [metric for metric in pair.before.metrics if metric in pair.after.metrics]


def meant_metrics(
    word: str | None, pairs: Mapping[Key, EntryPair]
) -> tuple[list[str], dict[Key, str | None]]:
    """The metrics that a word may mean where it is not clear, and of the other entries the one that
    it means. Without a word it is None: whatever leads the entry."""
    candidates: dict[str, None] = {}
    chosen: dict[Key, str | None] = {}
    for key, pair in pairs.items():
        meant: Sequence[str | None] = [None]
        if word is not None:
            meant = called(word, shared_metrics(pair))
            if pair.before.primary in meant:
                meant = [pair.before.primary]
        if len(meant) == 1:
            chosen[key] = meant[0]
        candidates |= dict.fromkeys(metric for metric in meant if metric)
    return list(candidates), chosen


def _unit_problem(aim: Aim, pairs: Mapping[Key, EntryPair]) -> str | None:
    wrong = []
    for key, word in aim.metrics.items():
        sides = (pairs[key].before, pairs[key].after)
        name = word or sides[0].primary
        metrics = [side.metrics[name] for side in sides if name in side.metrics]
        if metrics and not _fits(
            aim.rule.unit, metrics[0].unit, [metric.value for metric in metrics]
        ):
            wrong.append(f"{'/'.join(key)} {name} is in {metrics[0].unit}")
    return _misfit(aim.rule, wrong) if wrong else None


def _fits(unit: str, of_metric: str, values: Sequence[float]) -> bool:
    if unit == "pt":
        return is_share(of_metric, values=values, unknown=True)
    return unit in ("", "%", of_metric)


def _misfit(rule: Rule, wrong: Sequence[str]) -> str:
    others = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    listed = "; ".join(wrong[:5]) + others
    if rule.unit == "pt":
        return (
            f"points (pt) apply to shares between 0 and 1, but {listed}. Write the threshold in % "
            "(relative to the value before) or without a unit, or name one metric"
        )
    return f"expected pt, %, or the metric's own unit, got '{rule.unit}', but {listed}"


# ------------------------------------------------------------------------------------------ judging


def judge(aims: Sequence[Aim], compared: Compared) -> tuple[list[GateOutcome], Decision | None]:
    """What every rule says of every entry that it speaks of, and what they say together; None where
    nothing is tested.

    Raises:
        DataError: a rule speaks of an entry or metric that turned out not to be comparable once its
            samples were read; all at once.
    """
    leading: dict[Key, Comparison] = {}
    by_metric: dict[tuple[Key, str], Comparison] = {}
    for comparison in compared.comparisons:
        key = (comparison.suite, comparison.name)
        by_metric.setdefault((key, comparison.metric), comparison)
        if comparison.primary:
            leading.setdefault(key, comparison)
    refused = {(entry.suite, entry.name): entry for entry in compared.unmatched}
    outcomes: list[GateOutcome] = []
    tested: dict[int, tuple[Comparison, float]] = {}
    problems: list[str] = []
    for aim in aims:
        rule = aim.rule
        for key, metric in aim.metrics.items():
            c = leading.get(key) if metric is None else by_metric.get((key, metric))
            if c is None and rule.margins is not None:
                outcomes.append(_not_measured(rule, key, refused.get(key, _NO_PAIRS)))
            elif c is None:
                why = (
                    f"{'/'.join(key)}: {metric or 'its metric'} cannot be paired sample by sample."
                )
                problems.append(f"rule '{rule.text}': {refused.get(key, why)}")
            elif c.failed is not None:
                outcome = _without_figure(rule, key, NOT_FINITE, NOT_FINITE)
                outcomes.append(replace(outcome, metric=c.metric, failed=c.failed))
            elif (of_metric := rule.of_metric(c)) is None or not _fits(
                of_metric.unit, c.unit, (c.before, c.after)
            ):
                wrong = f"{'/'.join(key)} {c.metric} is in {c.unit}"
                problems.append(f"rule '{rule.text}': {_misfit(rule, [wrong])}")
            else:
                outcome, sign = _judge(of_metric, c)
                if not math.isnan(outcome.p_value) and rule.tier != ADVISORY:
                    tested[len(outcomes)] = (c, sign)
                outcomes.append(outcome)
        for key in aim.missing:
            outcomes.append(_not_measured(rule, key, refused.get(key)))
    if problems:
        raise DataError(*problems)
    return _together(outcomes, tested, compared.adjustment)


def _together(
    outcomes: Sequence[GateOutcome],
    tested: Mapping[int, tuple[Comparison, float]],
    adjustment: Adjustment,
) -> tuple[list[GateOutcome], Decision | None]:
    """Adjusts the outcomes for all of them; those that fail on their own only are undecided."""
    outcomes = list(outcomes)
    if not tested:
        return outcomes, None
    tests = list(tested.values())
    level = level_of(tests[0][0].confidence)
    adjusted = adjustment.adjusted([outcomes[number].p_value for number in tested], tests)
    together = 1 if adjustment.family_wise == "none" else len(tested)
    for number, p in zip(tested, adjusted, strict=True):
        outcome = replace(outcomes[number], p_adjusted=p, tests=together)
        if outcome.outcome == FAILED and not p < outcome.level:
            outcome = replace(outcome, outcome=UNDECIDED, why=ON_ITS_OWN)
            if outcome.accepted is not None:
                outcome = replace(outcome, outcome=ACCEPTED, why=ACCEPTED)
        if outcome.outcome == UNDECIDED:
            outcome = replace(outcome, needed=_needed(outcome, *tested[number], tests=together))
        outcomes[number] = outcome
    losses = []
    for outcome in outcomes:
        if outcome.outcome == FAILED and outcome.tier != ADVISORY:
            suite, name, metric = outcome.suite, outcome.name, outcome.metric
            losses.append(Shown(suite=suite, name=name, metric=metric, rule=outcome.rule))
    decision = Decision(
        about="rules",
        family_wise=adjustment.family_wise,
        level=level,
        tests=len(tested),
        shown=losses,
        p_value=min(adjusted),
    )
    return outcomes, decision


def _needed(outcome: GateOutcome, c: Comparison, side: float, *, tests: int) -> int | None:
    """How many samples would decide an outcome with a chance of 80 %, were the change as it was
    measured: show that it is too much, which all tests account for, or that it is not."""
    test = paired_test(c)
    if test is None:
        return None
    scale = outcome.value / c.difference if c.difference else 0.0
    threshold = outcome.threshold / scale if scale else math.nan
    is_too_much = side * (c.difference - threshold) > 0.0
    level = outcome.level / tests if is_too_much else outcome.level
    times = test.decides(threshold, level)
    return math.ceil(times * c.n) if 1.0 < times < 1e6 else None


def _judge(rule: Rule, c: Comparison) -> tuple[GateOutcome, float]:
    """As `_judge_one`; what is too much, but not shown to be more than was accepted, is accepted."""
    outcome, side = _judge_one(rule, c)
    losses = [loss for loss in rule.accepted if loss.metric == c.metric]
    if not losses or outcome.outcome == PASSED:
        return outcome, side
    outcome, side = _judge_one(rule.beyond(losses[0], c), c)
    if outcome.outcome != FAILED:
        outcome = replace(outcome, outcome=ACCEPTED, why=ACCEPTED)
    return replace(outcome, accepted=losses[0]), side


def _judge_one(rule: Rule, c: Comparison) -> tuple[GateOutcome, float]:
    """The outcome of one rule on one comparison, on its own, and the sign of the differences that
    break the rule."""
    sign = 1.0 if rule.direction in ("rise", "gain") else -1.0
    if rule.direction in ("drop", "gain") and not c.higher_is_better:
        sign = -sign
    scale = 100.0 if rule.unit == "pt" else 1.0
    if rule.unit == "%":
        scale = 100.0 / abs(c.before) if c.before != 0 else math.nan
        scale = scale if math.isfinite(scale) else math.nan
    value = sign * scale * c.difference + 0.0  # + 0.0: no "-0"
    level = level_of(c.confidence) if rule.alpha is None else rule.alpha
    low, high = sorted(sign * scale * end + 0.0 for end in _interval(c, rule.alpha))
    unit = rule.unit if rule.unit in ("pt", "%") else c.unit
    side = sign if rule.operator in (">", ">=") else -sign
    p_value = _p_value(rule, c, sign * rule.threshold / scale, side, value)
    if math.isnan(low) or math.isnan(high):
        outcome, p_value = UNDECIDED, math.nan
        why = NO_INTERVAL if c.n >= 2 else ONE_SAMPLE
        if math.isnan(scale):
            why = RELATIVE_TO_ZERO
    else:
        held_at_ends = {rule.holds(low), rule.holds(high)}
        outcome, why = UNDECIDED, INSIDE
        if held_at_ends == {True}:
            outcome, why = FAILED, BEYOND
        elif held_at_ends == {False}:
            outcome, why = PASSED, WITHIN
    judged = GateOutcome(
        rule=rule.text,
        direction=rule.direction,
        operator=rule.operator,
        suite=c.suite,
        name=c.name,
        metric=c.metric,
        outcome=outcome,
        value=value,
        interval=(low, high),
        threshold=rule.threshold,
        unit=unit,
        why=why,
        tier=rule.tier,
        required=rule.required,
        of_policy=rule.margins is not None,
        level=level,
        p_value=p_value,
    )
    return judged, side


def _interval(c: Comparison, alpha: float | None) -> tuple[float, float]:
    """The interval of a difference at a level of one side, or at the comparison's; NaN where it is
    not known at that level."""
    if alpha is None:
        return c.interval
    test = paired_test(c)
    return (math.nan, math.nan) if test is None else test.interval(1.0 - 2.0 * alpha)


def _p_value(rule: Rule, c: Comparison, threshold: float, side: float, value: float) -> float:
    """One-sided, of "the rule does not hold": `threshold` is a difference, and the rule speaks of
    those on its `side` of it."""
    test = paired_test(c)
    if test is None or math.isnan(threshold):
        return math.nan
    if (
        c.interval[0] == c.interval[1] and value == rule.threshold
    ):  # all samples lie at the threshold itself
        return 0.5**c.n if rule.holds(value) else 1.0
    return test.p_above(threshold) if side > 0 else test.p_below(threshold)


_NO_PAIRS = Unmatched(
    suite="", name="", why="refused", reason="its metric cannot be paired sample by sample."
)


def _without_figure(rule: Rule, key: Key, outcome: str, why: str) -> GateOutcome:
    return GateOutcome(
        rule=rule.text,
        direction=rule.direction,
        operator=rule.operator,
        suite=key[0],
        name=key[1],
        metric="",
        outcome=outcome,
        value=math.nan,
        interval=(math.nan, math.nan),
        threshold=rule.threshold,
        unit=rule.unit,
        why=why,
        tier=rule.tier,
        required=rule.required,
        of_policy=rule.margins is not None,
    )


def _not_measured(rule: Rule, key: Key, entry: Unmatched | None) -> GateOutcome:
    """The outcome on an entry that is not compared, and why."""
    if entry is None:
        return _without_figure(rule, key, NOT_MEASURED, NEITHER)
    outcome = _without_figure(rule, key, NOT_MEASURED, entry.why)
    return replace(outcome, failed=entry.reason if entry.why == REFUSED else None)


# ----------------------------------------------------------------------------------------- the gate


def outcome_of(outcomes: Sequence[GateOutcome]) -> str:
    """The outcome of one rule from those of its entries: not finite where any is, else failed, else
    not measured, else undecided, else accepted."""
    values = {outcome.outcome for outcome in outcomes}
    for value in (NOT_FINITE, FAILED, NOT_MEASURED, UNDECIDED, ACCEPTED):
        if value in values:
            return value
    return PASSED


def by_rule(outcomes: Iterable[GateOutcome]) -> Mapping[str, list[GateOutcome]]:
    """Outcomes by the rule's text, in order."""
    rules: dict[str, list[GateOutcome]] = {}
    for outcome in outcomes:
        rules.setdefault(outcome.rule, []).append(outcome)
    return rules


def verdict_of(
    outcomes: Sequence[GateOutcome], *, strict: bool = False, supporting_losses: int = 1
) -> Verdict:
    """What the outcomes of rules and of a policy's entries come to.

    Args:
        outcomes: as `judge` gives them.
        strict: whether a rule that is undecided holds, too.
        supporting_losses: failures on supporting entries that hold.
    """
    holds: list[GateOutcome] = []
    unknown: list[GateOutcome] = []
    supporting: list[GateOutcome] = []
    for outcome in outcomes:
        if outcome.outcome in (NOT_FINITE, NOT_MEASURED):
            if outcome.required:
                holds.append(outcome)
        elif outcome.outcome == FAILED and outcome.tier == SUPPORTING:
            supporting.append(outcome)
        elif outcome.outcome == FAILED and outcome.tier == CRITICAL:
            holds.append(outcome)
        elif outcome.outcome == UNDECIDED and outcome.tier == CRITICAL:
            if outcome.of_policy:
                unknown.append(outcome)
            elif strict:
                holds.append(outcome)
    if len(supporting) >= supporting_losses:
        holds += supporting
    if holds:
        return Verdict(word=HOLD, because=holds)
    if unknown:
        return Verdict(word=CANNOT_TELL, because=unknown)
    return Verdict(word=SHIP, because=[])


def to_record(outcomes: Sequence[GateOutcome], verdict: Verdict | None) -> list[dict[str, Any]]:
    """One `{"rule", "outcome", "failed"}` a rule, for programs; one has failed where the verdict is
    HOLD because of it."""
    because = verdict.because if verdict is not None and verdict.word == HOLD else []
    records = []
    for rule, of_rule in by_rule(outcomes).items():
        failed = any(outcome in because for outcome in of_rule)
        records.append({"rule": rule, "outcome": outcome_of(of_rule), "failed": failed})
    return records
