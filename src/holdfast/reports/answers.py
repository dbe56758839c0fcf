"""How sure a model was of its answers: reliability diagrams, sorted curves of entropies, and the table of calibration
errors (the figures are made in `calibration`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.reports.blocks import Paragraph, Section, Table, Text, figure, side_by_side
from holdfast.reports.calibration import Calibration, calibration, calibration_interval, confidences
from holdfast.reports.charts import Axis, Chart, Col, Mark, Series, quantile_chart
from holdfast.reports.format import in_percent, interval_text, number

CURVE_ENTRIES = 8
"""Entries whose calibration and entropies are drawn; all of them stand in the table."""
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
ECE_NOTE = (
    "ECE: expected calibration error, the mean distance between confidence and accuracy over ten bins of equal size "
    "(Guo et al. 2017); confidence is the probability of the given answer among the options. Intervals: basic "
    "bootstrap over questions{paired}. Chance: what a perfectly calibrated model would show on so many questions."
)
Rows = Sequence[Mapping[str, Any]]
Answered = tuple[str, Sequence[tuple[str, str, Rows]]]
"""An entry's name, and (label, colour, rows) of each model."""


def answers_section(entries: Sequence[Answered], table: Table | None, *, paired: str = "") -> Section | None:
    """Calibration errors, reliability diagrams and sorted curves of entries; None where there is nothing to draw.

    Args:
        entries: in the order to draw; curves are drawn of the first `CURVE_ENTRIES`.
        table: of the calibration errors.
        paired: what to add where the note speaks of the intervals.
    """
    charts = [chart for name, models in entries[:CURVE_ENTRIES] for chart in answer_charts(name, models)]
    if not charts:
        return None
    note = ECE_NOTE.format(paired=paired)
    if len(entries) > CURVE_ENTRIES:
        note += f" Curves are drawn for the first {CURVE_ENTRIES} of {len(entries)} entries."
    return Section("Confidence and entropy", [table, *charts, Paragraph(note, "note")])


def answer_charts(name: str, models: Sequence[tuple[str, str, Rows]]) -> list[Chart]:
    """Reliability diagram and sorted curves of one entry.

    Args:
        name: of the entry.
        models: (label, colour, rows) of each model.
    """
    sure = [(label, c, calibration(*found)) for label, c, rows in models if rows and (found := confidences(rows))]
    charts = [reliability_chart(sure, title=f"{name}: calibration") if sure else None]
    for key, title, unit, caption in FIGURES:
        series = [
            Series(label=label, colour=colour, values=[float(r[key]) for r in rows])
            for label, colour, rows in models
            if rows and all(isinstance(r.get(key), (int, float)) for r in rows)
        ]
        charts.append(quantile_chart(series, title=f"{name}: {title}", unit=unit, caption=caption))
    return side_by_side(charts)


def reliability_chart(series: Sequence[tuple[str, str, Calibration]], *, title: str) -> Chart:
    """Accuracy against confidence, one point a bin; on the diagonal confidence is what comes true.

    Args:
        series: (label, colour, calibration) of each model.
        title: of the chart.
    """
    low = min(min((*c.confidence, *c.accuracy)) for _, _, c in series)
    low = max(0.0, 10 * math.floor(10 * low - 0.3))
    rows = [
        {"name": label, "x": 100 * sure, "y": 100 * right, "n": n}
        for label, _, c in series
        for sure, right, n in zip(c.confidence, c.accuracy, c.counts, strict=True)
    ]
    diagonal = [{"x": v, "y": v} for v in (low, 100)]
    lines = [Mark(kind="line", where={"name": label}, name=label, colour=colour, size=7) for label, colour, _ in series]
    return Chart(
        title=title,
        rows=rows,
        columns=[
            Col("Model", "name", numeric=False),
            Col("Confidence", lambda r: f"{number(r['x'], 1)} %"),
            Col("Right", lambda r: f"{number(r['y'], 1)} %"),
            Col("Questions", "n"),
        ],
        marks=[Mark(kind="line", rows=diagonal, colour="muted", width=1, dash="dot", markers=False), *lines],
        x=Axis(title="confidence, %", range=(low - 1, 101)),
        y=Axis(title="right, %", range=(low - 3, 103)),
        caption=(
            "One point a bin of equal size. On the dotted line confidence comes true; below it the model is too sure "
            "of itself."
        ),
        legend=True,
    )


def ece_cell(side: tuple[Sequence[float], Sequence[float]], level: float) -> Text:
    """The calibration error of one model with its interval, in percent."""
    found = calibration(*side)
    interval = interval_text(in_percent(calibration_interval(*side, level=level)), 1)
    return figure(f"{100 * found.error:.1f} %", f"{interval}; chance {100 * found.chance:.1f}")
