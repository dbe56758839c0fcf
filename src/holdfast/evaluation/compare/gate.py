"""Rules that decide whether a change is acceptable: `mmlu drop > 1pt`, judged on the interval of the change and not on
its point.

    SUBJECT [METRIC] drop|gain|rise|fall >|>=|<|<= NUMBER[pt|%|unit]

Subject: `any` (every entry), a suite, an entry's name, or suite/name. Metric: one of the entry's; without it the one
that leads. It follows the subject after a space or a slash.

Change, with d = after - before and `worse` the sign that makes worse positive:

    drop = worse * d        gain = -worse * d        rise = d        fall = -d

Unit: `pt` is 1/100 of a share in [0, 1] (an accuracy of .52 against .50 is a gain of 2 pt); `%` is relative to
|before|, which counts as known; none, or the metric's own name for its unit, takes the number as it is.

Outcome, with [low, high] the paired interval of the change, for `change > t`:

    failed      low > t         all of the interval is beyond the threshold: the data say that it was crossed; and they
                                still do when all tests of the gate are accounted for
    passed      high <= t       none of it is: the data say that it was not (non-inferiority with margin t; Piaggio et
                                al. 2012, CONSORT extension)
    undecided   otherwise       more questions would decide. Passes, unless the gate is strict

and likewise for the other operators: failed where the rule holds on the whole interval, passed where it holds nowhere
on it. A two-sided interval at 95 % makes each of the two statements a one-sided test at 2.5 %.

All rules on all entries are one family with one chance of a false alarm, since one failure closes the gate: a rule
fails where its one-sided p-value, adjusted for the family, is below 2.5 %, too (`compare.decision`; Holm's method
unless asked otherwise). What passes needs no adjustment. Without an interval (a single sample) a rule is undecided. Of
an entry that failed (a figure or a sample is NaN or infinite) it is "not finite", and of one that only one of the two
models has "not measured": no gate lets these pass, strict or not.

A rule says what fails. One that would fail a model for being better without limit (`drop < 1%`, `gain > 2pt`) is an
acceptance rule and refused; of `rise` and `fall`, whose direction is the metric's affair, it is a note.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.errors import ConfigError, DataError, did_you_mean
from holdfast.evaluation.compare.decision import Adjustment
from holdfast.evaluation.compare.folders import Compared, EntryPair, Key, Matching
from holdfast.records.comparison import NOT_FINITE, NOT_MEASURED, Comparison, Decision, GateOutcome
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import between
from holdfast.records.metrics import called, is_share
from holdfast.statistics.decision import decision_of, level_of, named
from holdfast.statistics.paired import paired_test

T = TypeVar("T")

DIRECTIONS = ("drop", "gain", "rise", "fall")
EXAMPLES = "'mmlu drop > 1pt', 'any drop > 2%', 'source/prose perplexity rise > 3%', 'target gain < 2pt'"
FAILED, PASSED, UNDECIDED = "failed", "passed", "undecided"

_RULE = re.compile(
    r"(?P<what>.*?)\s*\b(?P<direction>[A-Za-z]+)\s*(?P<operator>>=|<=|>|<)\s*(?P<number>[^\s%A-Za-z]*(?:[eE][-+]?\d+)?)\s*(?P<unit>.*)"
)
_POINTS = ("pt", "pts", "point", "points")
_OPERATORS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    ">": (operator.gt, "above"),
    ">=": (operator.ge, "at or above"),
    "<": (operator.lt, "below"),
    "<=": (operator.le, "at or below"),
}
"""By sign: whether a change is forbidden by a threshold, and the words for where it is."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule as it was read."""

    text: str
    """As the user wrote it."""
    what: str
    """Subject, with the metric after it if there is one. Which is which is known once the entries are."""
    direction: str
    """"drop", "gain", "rise" or "fall"."""
    operator: str
    """">", ">=", "<" or "<="."""
    threshold: float
    unit: str
    """"pt", "%", empty, or the metric's own unit."""

    def holds(self, change: float) -> bool:
        """Whether a change is what the rule forbids."""
        return _OPERATORS[self.operator][0](change, self.threshold)

    def fails_the_better(self, higher_is_better: bool) -> bool:
        """Whether the rule fails a model that is better by any amount, given the metric's direction."""
        worse = {"drop": True, "gain": False, "rise": not higher_is_better, "fall": higher_is_better}[self.direction]
        return worse == (self.operator in ("<", "<="))

    @property
    def reversed_text(self) -> str:
        """The rule with its operator the other way round."""
        return self.text.replace(self.operator, self.operator.translate(str.maketrans("<>", "><")), 1)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A rule and the entries that it speaks of."""

    rule: Rule
    keys: list[Key]
    """Entries that both models have."""
    metrics: dict[Key, str | None]
    """The metric of each; None: whatever leads it."""
    missing: list[Key]
    """Entries that only one of the two models has."""
    notes: list[str]
    """What to know of the rule."""


# ------------------------------------------------------------------------------------------------------------- reading


def parse_rules(texts: Iterable[str]) -> list[Rule]:
    """Reads rules.

    Raises:
        ConfigError: any that is malformed, all at once.
    """
    return _all_or_problems((text, _parse(text)) for text in dict.fromkeys(texts))


def _all_or_problems(found: Iterable[tuple[str, T | str]]) -> list[T]:
    """What was found for each rule's text, where no text of a problem is among it.

    Raises:
        ConfigError: the problems, all at once.
    """
    found = list(found)
    if problems := [f"rule '{text}': {value}" for text, value in found if isinstance(value, str)]:
        raise ConfigError(problems)
    return [value for _, value in found if not isinstance(value, str)]


def _parse(text: str) -> Rule | str:
    match = _RULE.fullmatch(text.strip())
    if match is None:
        return f"expected SUBJECT drop|gain|rise|fall > NUMBER, such as {EXAMPLES}"
    what, direction, unit = match["what"].strip(), match["direction"].lower(), match["unit"].strip()
    if direction not in DIRECTIONS:
        near = did_you_mean(direction, DIRECTIONS)
        return (
            f"expected one of {', '.join(DIRECTIONS)} before '{match['operator']}', got '{match['direction']}'.{near}"
        )
    if not what:
        return f"it names no entry. Begin with one, with a suite, or with 'any', such as {EXAMPLES}"
    try:
        threshold = float(match["number"])
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        return (
            f"expected a number after '{match['operator']}', such as 1pt or 2%, got "
            f"'{(match['number'] + match['unit']).strip()}'"
        )
    found = Rule(
        text=text.strip(),
        what=what,
        direction=direction,
        operator=match["operator"],
        threshold=threshold,
        unit="pt" if unit.lower() in _POINTS else unit,
    )
    if direction in ("drop", "gain") and found.fails_the_better(True):
        return (
            f"it says what is acceptable, but a rule says what FAILS: this one fails every model that is better. Write "
            f"'{found.reversed_text}'; for a model that is to get worse, say so with rise or fall"
        )
    return found


# ------------------------------------------------------------------------------------------------------------- binding


def bind_rules(rules: Sequence[Rule], matching: Matching) -> list[Aim]:
    """Finds the entries of every rule and checks its unit against them. Reads no samples, so it costs nothing before
    the work.

    Raises:
        ConfigError: rules that match nothing (with the nearest names), speak of entries that cannot be compared, or
            have a unit that does not fit; all at once.
    """
    return _all_or_problems((rule.text, _bind(rule, matching)) for rule in rules)


def _bind(rule: Rule, matching: Matching) -> Aim | str:
    both = {p.key: p for p in matching.pairs}
    apart = {(u.suite, u.name): u for u in matching.unmatched}
    known = [*both, *(k for k in apart if k not in both)]
    reasons: list[str] = []
    for subject, metric in _readings(rule.what):
        keys = _entries(subject, known)
        if not keys:
            continue
        refused = [str(apart[k]) for k in keys if k in apart and apart[k].why == "refused"]
        if refused:
            return "it speaks of what cannot be compared: " + " ".join(refused)
        here = [k for k in keys if k in both]
        missing = [k for k in keys if k in apart and (metric is None or called(metric, apart[k].metrics))]
        found = {k: _metrics(metric, both[k].before, both[k].after) for k in here}
        chosen = {k: names[0] for k, names in found.items() if len(names) == 1}
        if chosen or (missing and not here):
            aim = Aim(
                rule=rule, keys=list(chosen), metrics=chosen, missing=missing, notes=_warnings(rule, chosen, both)
            )
            return _unit_problem(aim, both) or aim
        candidates = list(dict.fromkeys(m for names in found.values() for m in names if m))
        shared = list(dict.fromkeys(m for k in here for m in _shared(both[k].before, both[k].after)))
        if candidates:
            reasons.append(f"'{metric}' is any of {', '.join(candidates)}: write one of them in full")
        else:
            reasons.append(
                f"'{subject}' has no metric '{metric}'.{did_you_mean(metric or '', shared)} It has: {', '.join(shared)}"
            )
    if reasons:
        return reasons[0]
    suites = list(dict.fromkeys(suite for suite, _ in known))
    names = list(dict.fromkeys([*(name for _, name in known), *suites, *("/".join(k) for k in known), "any"]))
    near = next((n for n in (did_you_mean(subject, names) for subject, _ in _readings(rule.what)) if n), "")
    listed = ", ".join("/".join(k) for k in known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"no entry or suite '{rule.what}'.{near or f' There are: {listed}; and any.'}"


def _readings(what: str) -> list[tuple[str, str | None]]:
    """How the words before the direction may divide into subject and metric, the longest subject first; names may hold
    spaces and slashes."""
    borders = [i for i, letter in enumerate(what) if letter in " /"]
    parts = [(what[:i].strip(), what[i + 1 :].strip()) for i in reversed(borders)]
    return [(what, None), *((subject, metric) for subject, metric in parts if subject and metric)]


def _entries(subject: str, known: Sequence[Key]) -> list[Key]:
    if subject.lower() == "any":
        return list(known)
    exact = [k for k in known if "/".join(k) == subject]
    return exact or [k for k in known if subject in k]


def _shared(before: Evaluation, after: Evaluation) -> list[str]:
    return [m for m in before.metrics if m in after.metrics]


def _metrics(wanted: str | None, before: Evaluation, after: Evaluation) -> list[str | None]:
    """The metrics of both that a word means: one, several where it is not clear, or none at all. Without a word it is
    None: whatever leads the entry."""
    if wanted is None:
        return [None]
    found = called(wanted, _shared(before, after))
    return [before.primary] if before.primary in found else list(found)


def _warnings(rule: Rule, chosen: Mapping[Key, str | None], both: Mapping[Key, EntryPair]) -> list[str]:
    sides = [(key, both[key].before, metric or both[key].before.primary) for key, metric in chosen.items()]
    odd = [
        key for key, e, name in sides if name in e.metrics and rule.fails_the_better(e.metrics[name].higher_is_better)
    ]
    if not odd:
        return []
    return [
        f"The rule '{rule.text}' fails models that are better on {named(odd)}: a rule says what fails. If it was to "
        f"say what is acceptable, write '{rule.reversed_text}'."
    ]


def _unit_problem(aim: Aim, both: Mapping[Key, EntryPair]) -> str | None:
    wrong = []
    for key, metric in aim.metrics.items():
        name = metric or both[key].before.primary
        known = [side.metrics[name] for side in (both[key].before, both[key].after) if name in side.metrics]
        if known and not _fits(aim.rule.unit, known[0].unit, [m.value for m in known]):
            wrong.append(f"{'/'.join(key)} {name} is in {known[0].unit}")
    return _misfit(aim.rule, wrong) if wrong else None


def _fits(unit: str, own: str, values: Sequence[float]) -> bool:
    if unit == "pt":
        return is_share(own, values=values, unknown=True)
    return unit in ("", "%", own)


def _misfit(rule: Rule, wrong: Sequence[str]) -> str:
    listed = "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
    if rule.unit == "pt":
        return (
            f"points are of shares between 0 and 1, but {listed}. Write the threshold in % (relative to before) "
            f"or without a unit, or name one metric"
        )
    return f"expected pt, %, or the metric's own unit, got '{rule.unit}', but {listed}"


# ------------------------------------------------------------------------------------------------------------- judging


def judge(aims: Sequence[Aim], compared: Compared) -> tuple[list[GateOutcome], Decision | None]:
    """What every rule says of every entry that it speaks of, and what they say together; None where nothing is tested.

    Raises:
        DataError: a rule speaks of an entry or metric that turned out not to be comparable once its samples were read;
            all at once.
    """
    by_key: dict[Key, list[Comparison]] = {}
    for comparison in compared.comparisons:
        by_key.setdefault((comparison.suite, comparison.name), []).append(comparison)
    refused = {(u.suite, u.name): u for u in compared.unmatched}
    outcomes: list[GateOutcome] = []
    tested: dict[int, tuple[Comparison, float]] = {}
    problems: list[str] = []
    for aim in aims:
        for key in aim.keys:
            wanted = aim.metrics[key]
            found = next(
                (c for c in by_key.get(key, []) if (c.primary if wanted is None else c.metric == wanted)), None
            )
            if found is None:
                why = (
                    str(refused[key])
                    if key in refused
                    else f"{'/'.join(key)}: {wanted or 'its metric'} cannot be paired sample by sample."
                )
                problems.append(f"rule '{aim.rule.text}': {why}")
            elif found.failed is not None:
                outcomes.append(_without_figure(aim.rule, key, NOT_FINITE, found.failed, metric=found.metric))
            elif not _fits(aim.rule.unit, found.unit, (found.before, found.after)):
                wrong = f"{'/'.join(key)} {found.metric} is in {found.unit}"
                problems.append(f"rule '{aim.rule.text}': {_misfit(aim.rule, [wrong])}")
            else:
                outcome, sign = _judge_one(aim.rule, found)
                if not math.isnan(outcome.p_value):
                    tested[len(outcomes)] = (found, sign)
                outcomes.append(outcome)
        advice = "What was not measured is not passed: evaluate both models on it."
        outcomes += [
            _without_figure(aim.rule, key, NOT_MEASURED, f"{refused[key].reason} {advice}") for key in aim.missing
        ]
    if problems:
        raise DataError(*problems)
    return _together(outcomes, tested, compared.adjustment)


def _together(
    outcomes: list[GateOutcome], tested: Mapping[int, tuple[Comparison, float]], adjustment: Adjustment
) -> tuple[list[GateOutcome], Decision | None]:
    """Adjusts the outcomes for all of them; those that fail on their own only are undecided."""
    if not tested:
        return outcomes, None
    level = level_of(next(iter(tested.values()))[0].confidence)
    adjusted = adjustment.adjusted([outcomes[place].p_value for place in tested], list(tested.values()))
    found = list(outcomes)
    for place, p in zip(tested, adjusted, strict=True):
        o, more = outcomes[place], len(tested) > 1 and adjustment.family_wise != "none"
        if o.outcome == FAILED and not p < level:
            text = f"on its own; of {len(tested):,} tests chance alone does that (adjusted p {p:.3f})"
            o = dataclasses.replace(o, outcome=UNDECIDED, reason=f"{o.reason.removesuffix('.')} {text}.")
        elif o.outcome == FAILED and more:
            figure = "below 0.001" if p < 0.001 else f"{p:.3f}"
            o = dataclasses.replace(o, reason=f"{o.reason.removesuffix('.')} (adjusted p {figure}).")
        found[place] = dataclasses.replace(o, p_adjusted=p)
    broken = [o for o in found if o.outcome == FAILED]
    rules = list(dict.fromkeys(o.rule for o in broken))
    listed = "; ".join(f"'{rule}' on {named([(o.suite, o.name) for o in broken if o.rule == rule])}" for rule in rules)
    text = f"shown to be broken: {listed}" if broken else "no rule is shown to be broken"
    shown = [f"{o.suite}/{o.name} {o.metric}: {o.rule}" for o in broken]
    return found, decision_of("rules", text, adjusted, shown, family_wise=adjustment.family_wise, level=level)


def _judge_one(rule: Rule, c: Comparison) -> tuple[GateOutcome, float]:
    """The outcome of one rule on one comparison, on its own, and the sign of the differences that break the rule."""
    sign = 1.0 if rule.direction in ("rise", "gain") else -1.0
    if rule.direction in ("drop", "gain") and not c.higher_is_better:
        sign = -sign
    scale = 100.0 if rule.unit == "pt" else 1.0
    if rule.unit == "%":
        scale = 100.0 / abs(c.before) if c.before != 0 else math.nan
        scale = scale if math.isfinite(scale) else math.nan
    value = sign * scale * c.difference + 0.0  # + 0.0: no "-0"
    low, high = sorted(sign * scale * end + 0.0 for end in c.interval)
    unit = rule.unit if rule.unit in ("pt", "%") else c.unit
    shown, threshold = f"{rule.direction} {_figure(value, unit)}", _figure(rule.threshold, unit)
    beyond = f"{_OPERATORS[rule.operator][1]} {threshold}"
    side = sign if rule.operator in (">", ">=") else -sign
    p_value = _p_value(rule, c, sign * rule.threshold / scale, side, value)
    if math.isnan(low) or math.isnan(high):
        outcome, p_value = UNDECIDED, math.nan
        why = "nothing is relative to 0" if math.isnan(scale) else "one sample has no interval"
        why = why if math.isnan(scale) or c.n < 2 else "there is no interval"
        reason = f"{shown}; {why}, so this cannot be judged."
    else:
        outcome = (
            FAILED
            if rule.holds(low) and rule.holds(high)
            else PASSED
            if not rule.holds(low) and not rule.holds(high)
            else UNDECIDED
        )
        where = {
            FAILED: f"the whole interval is {beyond}",
            PASSED: f"none of the interval is {beyond}",
            UNDECIDED: f"{threshold} lies inside the interval; more samples would decide",
        }
        reason = f"{shown} {between(f'{low:.3g}', f'{high:.3g}')}: {where[outcome]}."
    found = GateOutcome(
        rule=rule.text,
        suite=c.suite,
        name=c.name,
        metric=c.metric,
        outcome=outcome,
        value=value,
        interval=(low, high),
        threshold=rule.threshold,
        unit=unit,
        reason=reason,
        p_value=p_value,
    )
    return found, side


def _p_value(rule: Rule, c: Comparison, threshold: float, side: float, value: float) -> float:
    """One-sided, of "the rule does not hold": `threshold` is a difference, and the rule speaks of those on its `side`
    of it."""
    test = paired_test(c)
    if test is None or math.isnan(threshold):
        return math.nan
    if c.interval[0] == c.interval[1] and value == rule.threshold:  # all samples lie at the threshold itself
        return 0.5**c.n if rule.holds(value) else 1.0
    return test.p_above(threshold) if side > 0 else test.p_below(threshold)


def _without_figure(rule: Rule, key: Key, outcome: str, reason: str, *, metric: str = "") -> GateOutcome:
    return GateOutcome(
        rule=rule.text,
        suite=key[0],
        name=key[1],
        metric=metric,
        outcome=outcome,
        value=math.nan,
        interval=(math.nan, math.nan),
        threshold=rule.threshold,
        unit=rule.unit,
        reason=reason,
    )


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".strip() if not math.isnan(value) else "unknown"


# ------------------------------------------------------------------------------------------------------------ the gate


def outcome_of(outcomes: Sequence[GateOutcome]) -> str:
    """The outcome of one rule from those of its entries: not finite where any is, else failed, else not measured, else
    undecided."""
    found = {o.outcome for o in outcomes}
    return next((outcome for outcome in (*_CLOSED, UNDECIDED) if outcome in found), PASSED)


def by_rule(outcomes: Iterable[GateOutcome]) -> Mapping[str, list[GateOutcome]]:
    """Outcomes by the rule's text, in order."""
    rules: dict[str, list[GateOutcome]] = {}
    for outcome in outcomes:
        rules.setdefault(outcome.rule, []).append(outcome)
    return rules


def is_failed(outcomes: Iterable[GateOutcome], *, strict: bool = False) -> bool:
    """Whether the gate is closed: a rule failed or speaks of what is not finite or was not measured, or under `strict`
    is undecided."""
    closed = (*_CLOSED, UNDECIDED) if strict else _CLOSED
    return any(o.outcome in closed for o in outcomes)


_CLOSED = (NOT_FINITE, FAILED, NOT_MEASURED)


def to_record(outcomes: Sequence[GateOutcome], *, strict: bool) -> list[dict[str, Any]]:
    """One `{"rule", "outcome", "failed"}` a rule, for programs."""
    rules = by_rule(outcomes)
    return [
        {"rule": rule, "outcome": outcome_of(found), "failed": is_failed(found, strict=strict)}
        for rule, found in rules.items()
    ]
