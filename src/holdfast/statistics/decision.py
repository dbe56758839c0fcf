"""What several tests say together, as a record and a sentence: which are shown at the level of all,
and how it was made sure (`evaluation.compare.decision` adjusts the p-values)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.comparison import LITTLE_LOST, Comparison, Decision, FamilyWise

METHODS: dict[FamilyWise, str] = {
    "holm": "Holm",
    "max_t": "Westfall and Young",
    "none": "not adjusted",
}
_MOST = 8
"""Entries that a sentence names."""


def level_of(confidence: float) -> float:
    """The level of one side of an interval."""
    return (1.0 - confidence) / 2.0


def loss_decision(
    comparisons: Sequence[Comparison], family_wise: FamilyWise = "holm"
) -> Decision | None:
    """What the adjusted p-values of comparisons say together; None where there is none.

    Args:
        comparisons: as `with_decision` gives them.
        family_wise: how they were adjusted.
    """
    known = [(c, c.p_adjusted) for c in comparisons if c.p_adjusted is not None]
    if not known:
        return None
    level = level_of(known[0][0].confidence)
    lost = [c for c, p in known if p < level]
    small = [c for c in lost if c.verdict == LITTLE_LOST]
    of = f"of {len(known):,} entries" if len(known) > 1 else ""
    if lost:
        names = named([(c.suite, c.name) for c in lost])
        text = (
            f"a loss is shown on {len(lost)} {of}: {names}" if of else f"a loss is shown on {names}"
        )
        text += f"; {len(small)} of them within the margin" if small and len(lost) > 1 else ""
        text += ", within the margin" if small and len(lost) == 1 else ""
    else:
        text = f"no loss is shown on any {of}" if of else "no loss is shown"
    entries = [f"{c.suite}/{c.name}" for c in lost]
    return decision_of(
        "losses", text, [p for _, p in known], entries, family_wise=family_wise, level=level
    )


def named(entries: Sequence[tuple[str, str]]) -> str:
    """`keep/mmlu, keep/arc and 3 more`, of suites and names."""
    names = ", ".join("/".join(entry) for entry in entries[:_MOST])
    return names + (f" and {len(entries) - _MOST} more" if len(entries) > _MOST else "")


def decision_of(
    about: str,
    text: str,
    adjusted: Sequence[float],
    shown: list[str],
    *,
    family_wise: FamilyWise,
    level: float,
) -> Decision:
    """A decision and its sentence.

    Args:
        about: "losses" or "rules".
        text: what is shown.
        adjusted: p-values of all tests, at least one.
        shown: entries where something is.
        family_wise: how they were adjusted.
        level: of the family.
    """
    smallest, m = min(adjusted), len(adjusted)
    figure = "below 0.001" if smallest < 0.001 else f"{smallest:.3f}"
    if m == 1:
        how = f"one-sided p {figure}, against {100 * level:.3g} %"
    elif family_wise == "none":
        how = (
            f"smallest of {m:,} one-sided p {figure}, each against {100 * level:.3g} % and none "
            "adjusted"
        )
    else:
        how = (
            f"smallest adjusted p of {m:,} tests {figure}; {METHODS[family_wise]}, one-sided, "
            f"false alarms in at most {100 * level:.3g} % of such comparisons"
        )
    return Decision(
        about=about,
        family_wise=family_wise,
        level=level,
        tests=m,
        shown=shown,
        p_value=smallest,
        sentence=f"{text[:1].upper()}{text[1:]} ({how}).",
    )
