"""Decisions in words: why a rule's outcome on an entry is what it is, and what all tests of a
comparison say together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.comparison import (
    BEYOND,
    INSIDE,
    NO_INTERVAL,
    NOT_FINITE,
    ON_ITS_OWN,
    ONE_SAMPLE,
    ONLY_AFTER,
    ONLY_BEFORE,
    RELATIVE_TO_ZERO,
    WITHIN,
    Decision,
    FamilyWise,
    GateOutcome,
    Shown,
)
from holdfast.records.measure import between

METHODS: dict[FamilyWise, str] = {
    "holm": "Holm",
    "max_t": "Westfall and Young",
    "none": "not adjusted",
}
_MOST = 8
"""Entries that a sentence names."""
_BEYOND = {">": "above", ">=": "at or above", "<": "below", "<=": "at or below"}
_NOT_JUDGED = {
    NO_INTERVAL: "there is no interval",
    ONE_SAMPLE: "one sample has no interval",
    RELATIVE_TO_ZERO: "nothing is relative to 0",
}
_ONE_SIDED = {ONLY_BEFORE: "before", ONLY_AFTER: "after"}


def reason_in_words(gate: GateOutcome) -> str:
    """Why a rule's outcome is what it is, a sentence out of its figures."""
    if gate.why == NOT_FINITE:
        return str(gate.failed)
    if gate.why in _ONE_SIDED:
        return (
            f"measured only {_ONE_SIDED[gate.why]}. What was not measured is not passed: evaluate "
            "both models on it."
        )
    change = f"{gate.direction} {_figure(gate.value, gate.unit)}"
    if gate.why in _NOT_JUDGED:
        return f"{change}; {_NOT_JUDGED[gate.why]}, so this cannot be judged."
    low, high = gate.interval
    threshold = _figure(gate.threshold, gate.unit)
    beyond = f"{_BEYOND[gate.operator]} {threshold}"
    wheres = {
        BEYOND: f"the whole interval is {beyond}{_adjusted(gate)}",
        ON_ITS_OWN: (
            f"the whole interval is {beyond} on its own; of {gate.tests:,} tests chance alone does "
            f"that (adjusted p {gate.p_adjusted:.3f})"
        ),
        WITHIN: f"none of the interval is {beyond}",
        INSIDE: f"{threshold} lies inside the interval; more samples would decide",
    }
    return f"{change} {between(f'{low:.3g}', f'{high:.3g}')}: {wheres[gate.why]}."


def _adjusted(gate: GateOutcome) -> str:
    return f" (adjusted p {_p_value(gate.p_adjusted)})" if gate.tests > 1 else ""


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".strip() if value == value else "unknown"


def _p_value(p: float) -> str:
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def decision_in_words(decision: Decision) -> str:
    """What is shown, and how it was made sure, a sentence."""
    text = _losses(decision) if decision.about == "losses" else _broken_rules(decision)
    return f"{text} ({_how(decision)})."


def _losses(decision: Decision) -> str:
    lost = decision.shown
    of = f" of {decision.tests:,} entries" if decision.tests > 1 else ""
    if not lost:
        return f"No loss is shown{f' on any{of}' if of else ''}"
    small = sum(loss.within_margin for loss in lost)
    within = ""
    if small:
        within = ", within the margin" if len(lost) == 1 else f"; {small} of them within the margin"
    return f"A loss is shown on {f'{len(lost)}{of}: ' if of else ''}{_named(lost)}{within}"


def _broken_rules(decision: Decision) -> str:
    by_rule: dict[str, list[Shown]] = {}
    for broken in decision.shown:
        by_rule.setdefault(broken.rule, []).append(broken)
    rules = [f"'{rule}' on {_named(broken)}" for rule, broken in by_rule.items()]
    return f"Shown to be broken: {'; '.join(rules)}" if rules else "No rule is shown to be broken"


def _named(entries: Sequence[Shown]) -> str:
    """`keep/mmlu, keep/arc and 3 more`."""
    names = ", ".join(f"{entry.suite}/{entry.name}" for entry in entries[:_MOST])
    return names + (f" and {len(entries) - _MOST} more" if len(entries) > _MOST else "")


def _how(decision: Decision) -> str:
    smallest, level = _p_value(decision.p_value), f"{100 * decision.level:.3g} %"
    if decision.tests == 1:
        return f"one-sided p {smallest}, against {level}"
    if decision.family_wise == "none":
        return (
            f"smallest of {decision.tests:,} one-sided p {smallest}, each against {level} and none "
            "adjusted"
        )
    return (
        f"smallest adjusted p of {decision.tests:,} tests {smallest}; "
        f"{METHODS[decision.family_wise]}, one-sided, false alarms in at most {level} of such "
        "comparisons"
    )
