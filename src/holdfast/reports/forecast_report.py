"""Forecasts: what a run says of its end after its first steps, that beside what came, and the page of a predictor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.records.comparison import Comparison
from holdfast.records.forecast import (
    NATS,
    POINTS,
    RUNS,
    Expected,
    HeldOut,
    Linear,
    Predicted,
    Predictor,
    RunForecast,
    loss_in,
)
from holdfast.reports.blocks import (
    Block,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    facts_or_nothing,
    figure,
    notes,
    side_by_side,
)
from holdfast.reports.charts import Axis, Chart, Col, Mark, Row, Value, rounded, tabulate
from holdfast.reports.format import MINUS, interval_text, number, percent, plural
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

DECIMALS = {NATS: 3, POINTS: 1}
HOW = (
    "Each row of the table is a test: the runs with one value of the axis are left out, the regression is fitted on "
    "all others and asked for these. Runs beyond what is left are refused, as a run of yours would be."
)


def forecast_lines(found: RunForecast) -> list[str]:
    """A run's forecast in words: a line for what is expected, and one for what nothing is said of."""
    at = f"step {found.signs.step} of {found.signs.steps}"
    if not found.predictor:
        return [
            f"Forecast: early signs are kept ({at}). Nothing here reads them: 'holdfast forecast fit' makes of runs "
            f"like these what does."
        ]
    said = [_in_words(e) for e in found.expected if e.loss is not None]
    sure = f"{100 * found.level:g} % intervals"
    if found.elsewhere is not None:
        sure += f"; on data unlike that of the fit they held {100 * found.elsewhere:.0f} %"
    lines = [f"Forecast at {at}: at the end {', '.join(said)} ({sure})"] if said else []
    silent: dict[str, list[str]] = {}
    for e in found.expected:
        if e.loss is None:
            silent.setdefault(e.why, []).append(_name(e))
    return lines + [f"No forecast of {', '.join(names)}: {why}" for why, names in silent.items()]


def came_table(found: RunForecast, compared: Sequence[Comparison]) -> Table | None:
    """What was expected beside what came; None where nothing was expected."""
    came = {f"{c.suite}/{c.name}": loss_in(c, e.unit) for e in found.expected for c in compared
            if c.primary and f"{c.suite}/{c.name}" == e.entry}  # fmt: skip
    if not found.expected:
        return None
    columns = [
        Col("Measure", lambda e: (_name(e), f" ({e.unit})"), numeric=False),
        Col(f"Predicted loss at step {found.signs.step}", _value),
        Col("Actual", lambda e: _number(came.get(e.entry), e.unit)),
        Col("In interval", lambda e: _inside(e, came.get(e.entry)), numeric=False),
    ]
    return tabulate(found.expected, columns)


def _name(expected: Expected) -> str:
    return expected.entry.partition("/")[2]


def _in_words(expected: Expected) -> str:
    assert expected.loss is not None
    assert expected.interval is not None
    worse, (low, high) = expected.loss >= 0, expected.interval
    interval = interval_text((low, high) if worse else (-high, -low), DECIMALS[expected.unit])
    size = number(abs(expected.loss), DECIMALS[expected.unit])
    return f"{_name(expected)} {size} {expected.unit} {'worse' if worse else 'better'} {interval}"


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else number(value, DECIMALS[unit], sign=True)


def _value(expected: Expected) -> Text:
    if expected.loss is None:
        return f"none: {expected.why}"
    interval = interval_text(expected.interval, DECIMALS[expected.unit], sign=True)
    return f"{_number(expected.loss, expected.unit)} {interval}"


def _inside(expected: Expected, came: float | None) -> str:
    if came is None or expected.interval is None:
        return ""
    low, high = expected.interval
    return "yes" if low <= came <= high else "no"


# ----------------------------------------------------------------------------------------------------- of a predictor


def predictor_blocks(predictor: Predictor) -> list[Block]:
    """A predictor's tests and regressions, as tables."""
    test = _is_test(predictor)
    columns = [
        Col("Held out", "axis", numeric=False),
        Col("Unit", "unit", numeric=False),
        Col("Methods" if test else "Values", "values"),
        Col("Predicted", "rows"),
        Col("Refused", "refused"),
        Col("R²", lambda h: number(h.r2, 2)),
        Col("R² of asinh", lambda h: number(h.r2_scaled, 2)),
        Col("Coverage", lambda h: percent(100 * h.coverage, sign=False)),
        Col("Median error", lambda h: number(h.error, DECIMALS[h.unit])),
        Col("Median width", lambda h: number(h.width, DECIMALS[h.unit])),
    ]
    asked = "Runs that it was not fitted on" if predictor.fitted_on else "Runs tested on"
    runs = asked if test else "Runs unlike those fitted on"
    tests = tabulate(predictor.held_out, columns, title=f"{runs}, {_level(predictor)} intervals")
    if test:
        return [tests]
    return [tests, Paragraph(HOW, "note"), *(_weights(fit) for fit in predictor.fits)]


def _is_test(predictor: Predictor) -> bool:
    """Whether it is shown for a test on runs of its own, see `runs.forecasting.tested`."""
    return any(test.axis == RUNS for test in predictor.held_out)


def _level(predictor: Predictor) -> str:
    return f"{100 * predictor.level:g} %"


def _weights(linear: Linear) -> Table:
    rows = zip(linear.features, linear.weights, linear.low, linear.high, strict=True)
    columns = [
        Col("Feature", lambda r: r[0], numeric=False),
        Col("Weight", lambda r: number(r[1], 2, sign=True)),
        Col("Fitted on", lambda r: f"{r[2]:.3g} to {r[3]:.3g}"),
    ]
    title = f"Loss in {linear.unit}: {plural(linear.rows, 'measure')} of {plural(linear.groups, 'different run')}"
    return tabulate(rows, columns, title=title)


def predictor_page(predictor: Predictor) -> Page:
    """A predictor as a page: expected against came, for runs unlike those fitted on."""
    resolutions = {fit.unit: fit.resolution for fit in predictor.fits}
    charts = [
        _scatter(h, [p for p in predictor.predicted if (p.axis, p.unit) == (h.axis, h.unit)], resolutions[h.unit])
        for h in predictor.held_out
    ]
    about = [
        ("Fitted on", predictor.about),
        ("Runs tested on" if _is_test(predictor) else "Runs", str(predictor.runs)),
        ("Parameters of the models", " to ".join(f"{n:,}" for n in dict.fromkeys(predictor.parameters))),
    ]
    return Page(
        tab="holdfast forecast",
        eyebrow="holdfast forecast",
        title="What the first steps of a fine-tune say of its end",
        lead="Ridge regression on how far a model has drifted once 5 % of the cumulative learning rate was spent; "
        f"intervals of {_level(predictor)} from groups of runs left out.",
        blocks=[
            Tiles([_tile(h) for h in predictor.held_out]),
            Section("Predicted against actual", list(side_by_side(charts))),
            Section("In numbers", predictor_blocks(predictor)),
            Section("About", [Panel([*facts_or_nothing(about)], "card")]),
            notes(predictor.notes),
        ],
        footer=f"Written by holdfast {predictor.versions.get('holdfast', '')}.",
    )  # fmt: skip


def _tile(test: HeldOut) -> Tile:
    below = f"R², {test.unit}; {percent(100 * test.coverage, sign=False)} of {test.rows} in their interval"
    return Tile(f"Other {test.axis}", number(test.r2, 2), below)


def _scatter(test: HeldOut, predicted: Sequence[Predicted], resolution: float) -> Chart | None:
    """Predicted against actual, on axes that are linear near 0 and logarithmic beyond."""
    if not predicted:
        return None

    def place(loss: float) -> float:
        return rounded(math.asinh(loss / resolution))

    rows: list[Row] = [
        {
            "name": f"{p.run}: {p.entry}",
            "left": p.value,
            "x": place(p.came),
            "came": number(p.came, DECIMALS[p.unit]),
            "y": Value(value=place(p.loss), low=place(p.interval[0]), high=place(p.interval[1])),
            "expected": figure(number(p.loss, DECIMALS[p.unit]), interval_text(p.interval, DECIMALS[p.unit])),
        }
        for p in predicted
    ]
    ends = [place(bound(v for p in predicted for v in (p.came, p.loss))) for bound in (min, max)]
    span = (ends[0] - 0.4, ends[1] + 0.4)
    ticks = [
        (place(sign * size * resolution), f"{sign * size * resolution:g}".replace("-", MINUS))
        for sign in (-1, 1)
        for size in (2, 10, 50, 250)
        if span[0] < place(sign * size * resolution) < span[1]
    ]
    axis = Axis(range=span, ticks=sorted([*ticks, (0.0, "0")]))
    return Chart(
        title=f"Other {test.axis}, {test.unit}",
        rows=rows,
        columns=[
            Col("Run", "name", numeric=False),
            Col("Left out", "left", numeric=False),
            Col("Actual", "came"),
            Col("Predicted", "expected"),
        ],
        marks=[
            Mark(
                kind="line", rows=[{"x": v, "y": v} for v in span], colour="muted", dash="dot", width=1.4,
                markers=False, legend=False,
            ),
            Mark(kind="points", size=6, opacity=0.75, bars=0.7),
        ],
        x=dataclasses.replace(axis, title=f"actual loss, {test.unit}"),
        y=dataclasses.replace(axis, title="predicted"),
        caption=f"R² {number(test.r2, 2)}, of asinh {number(test.r2_scaled, 2)}; "
        f"{percent(100 * test.coverage, sign=False)} in their interval. Intervals that leave the frame are cut.",
        height=360,
    )  # fmt: skip


def print_predictor(predictor: Predictor, console: Console | None = None) -> None:
    """Prints the tables of a predictor's page."""
    Printer(console).show([*predictor_blocks(predictor), *(Paragraph(n, "note") for n in predictor.notes)])
