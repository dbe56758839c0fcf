"""What several tests say together: which losses are shown at the level of all
(`evaluation.compare.decision` adjusts the p-values)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.comparison import LITTLE_LOST, Comparison, Decision, FamilyWise, Shown


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
    losses = []
    for c, p in known:
        if p < level:
            within_margin = c.verdict == LITTLE_LOST
            losses.append(
                Shown(suite=c.suite, name=c.name, metric=c.metric, within_margin=within_margin)
            )
    return Decision(
        about="losses",
        family_wise=family_wise,
        level=level,
        tests=len(known),
        shown=losses,
        p_value=min(p for _, p in known),
    )
