"""Decisions in words: why a rule's outcome on an entry is what it is, and what all tests of a
comparison say together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.comparison import (
    ACCEPTED,
    BEYOND,
    NEITHER,
    NO_INTERVAL,
    NOT_FINITE,
    ON_ITS_OWN,
    ONE_SAMPLE,
    ONLY_AFTER,
    ONLY_BEFORE,
    REFUSED,
    RELATIVE_TO_ZERO,
    SHIP,
    WITHIN,
    Decision,
    FamilyWise,
    GateOutcome,
    Shown,
    Verdict,
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
    RELATIVE_TO_ZERO: "a change relative to 0 is undefined",
}
_NOT_MEASURED = {
    ONLY_BEFORE: "measured only before",
    ONLY_AFTER: "measured only after",
    NEITHER: "measured neither before nor after",
}


def reason_in_words(gate: GateOutcome) -> str:
    """Why a rule's outcome is what it is, a sentence out of its figures."""
    if gate.why in (NOT_FINITE, REFUSED):
        return str(gate.failed)
    if gate.why in _NOT_MEASURED:
        passed = (
            ""
            if not gate.required
            else " An entry that was not measured does not pass. Evaluate both models on it."
        )
        return f"{_NOT_MEASURED[gate.why]}.{passed}"
    change = f"{gate.direction} {_figure(gate.value, gate.unit)}"
    if gate.why in _NOT_JUDGED:
        return f"{change}; {_NOT_JUDGED[gate.why]}, so this cannot be judged."
    low, high = gate.interval
    threshold = _figure(gate.threshold, gate.unit)
    beyond = f"{_BEYOND[gate.operator]} {threshold}"
    if gate.why == BEYOND:
        where = f"the whole interval is {beyond}{_adjusted(gate)}"
    elif gate.why == ON_ITS_OWN:
        where = (
            f"the whole interval is {beyond} before adjustment, but with {gate.tests:,} tests this "
            f"may be chance (adjusted p {gate.p_adjusted:.3f}); {_more_samples(gate)}"
        )
    elif gate.why == WITHIN:
        where = f"no part of the interval is {beyond}"
    elif gate.why == ACCEPTED:
        where = f"not shown to be more than the accepted loss ({_accepted(gate)})"
    else:
        where = f"{threshold} is inside the interval; {_more_samples(gate)}"
    return f"{change} {between(f'{low:.3g}', f'{high:.3g}')}: {where}."


def _adjusted(gate: GateOutcome) -> str:
    p = f" (adjusted p {_p_value(gate.p_adjusted)})" if gate.tests > 1 else ""
    return p if gate.accepted is None else f"{p}, more than the accepted loss ({_accepted(gate)})"


def _accepted(gate: GateOutcome) -> str:
    loss = gate.accepted
    assert loss is not None
    scale, unit = (100.0, "pt") if gate.unit == "pt" else (1.0, loss.unit)
    return f"{_figure(scale * loss.loss, unit)} by {loss.by} on {loss.date}: {loss.why}"


def _more_samples(gate: GateOutcome) -> str:
    """How many samples would decide, with two digits."""
    if gate.needed is None:
        return "more samples would decide"
    size = 10 ** max(0, len(str(gate.needed)) - 2)
    samples = -(-gate.needed // size) * size
    return f"if the change stays as it is, about {samples:,} samples would decide"


def verdict_in_words(verdict: Verdict) -> str:
    """A gate's verdict with what made it so: `HOLD: keep/mmlu drop 3 pt [2, 4]: ...`."""
    return f"{verdict.word}: {verdict_reason(verdict)}"


def verdict_reason(verdict: Verdict) -> str:
    """What made a verdict so."""
    if verdict.word == SHIP:
        return "all requirements are met."
    reasons = []
    for gate in verdict.because[:_MOST]:
        entry = "/".join(filter(None, (gate.suite, gate.name)))
        reasons.append(f"{entry}: {reason_in_words(gate).rstrip('.')}")
    more = len(verdict.because) - _MOST
    also = f"; and {more} more" if more > 0 else ""
    return f"{'; '.join(reasons)}{also}."


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
    return (
        f"Rules shown to be broken: {'; '.join(rules)}"
        if rules
        else "No rule is shown to be broken"
    )


def _named(entries: Sequence[Shown]) -> str:
    """`keep/mmlu, keep/arc and 3 more`."""
    names = ", ".join(f"{entry.suite}/{entry.name}" for entry in entries[:_MOST])
    return names + (f" and {len(entries) - _MOST} more" if len(entries) > _MOST else "")


def _how(decision: Decision) -> str:
    smallest, level = _p_value(decision.p_value), f"{100 * decision.level:.3g} %"
    if decision.tests == 1:
        return f"one-sided p {smallest}, compared with {level}"
    if decision.family_wise == "none":
        return (
            f"smallest one-sided p of {decision.tests:,} tests: {smallest}; each p is compared "
            f"with {level}, without adjustment"
        )
    return (
        f"smallest adjusted p of {decision.tests:,} tests: {smallest}; "
        f"{METHODS[decision.family_wise]}, one-sided; at most {level} of such comparisons give a "
        "false alarm"
    )
