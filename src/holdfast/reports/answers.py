"""How sure a model was of its answers: sorted curves of what the rows say of the distribution at the answer position.

What it does not do: calibration. Rows have the probabilities of the options and whether the answer is right, from which
torchmetrics computes it (docs/evaluation.md has the lines).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Paragraph, Section, side_by_side
from holdfast.reports.charts import Chart, Series, quantile_chart

CURVE_ENTRIES = 8
"""Entries of which curves are drawn."""
CONFIDENT = ("answers", "classes", "choices", "lettered")
"""Kinds whose rows have probabilities over options."""
FIGURES = (
    (
        "entropy",
        "entropy over the vocabulary",
        "nats",
        "At the place of the answer, over all tokens. Lower: fewer tokens share the probability.",
    ),
    (
        "mass",
        "probability mass on the options",
        "share",
        "How much of the probability at the place of the answer falls on the options at all.",
    ),
    ("option_entropy", "entropy over the options", "nats", "Over the options alone. 0: one option has everything."),
)
"""Columns of rows about answers that are drawn as sorted curves: (key, title, unit, caption)."""
Rows = Sequence[Mapping[str, Any]]
Answered = tuple[str, Sequence[tuple[str, str, Rows]]]
"""An entry's name, and (label, colour, rows) of each model."""


def answers_section(entries: Sequence[Answered]) -> Section | None:
    """Sorted curves of entries, in the order given; None where there is nothing to draw."""
    charts = [chart for name, models in entries[:CURVE_ENTRIES] for chart in answer_charts(name, models)]
    if not charts:
        return None
    left_out = len(entries) > CURVE_ENTRIES
    text = f"Curves are drawn for the first {CURVE_ENTRIES} of {len(entries)} entries."
    return Section("Entropy of the answers", [*charts, Paragraph(text, "note") if left_out else None])


def answer_charts(name: str, models: Sequence[tuple[str, str, Rows]]) -> list[Chart]:
    """The sorted curves of one entry.

    Args:
        name: of the entry.
        models: (label, colour, rows) of each model.
    """
    charts = []
    for key, title, unit, caption in FIGURES:
        series = [
            Series(label=label, colour=colour, values=[float(r[key]) for r in rows])
            for label, colour, rows in models
            if rows and all(isinstance(r.get(key), (int, float)) for r in rows)
        ]
        charts.append(quantile_chart(series, title=f"{name}: {title}", unit=unit, caption=caption))
    return side_by_side(charts)
