"""What the pages of evaluations draw: gains, retention, scores, reliability, entropies, stages. Plotly figures as plain
dictionaries.

numpy is imported where it is used; nothing here reads a file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from holdfast.records.comparison import Comparison, StageMatrix
from holdfast.records.evaluation import Metric
from holdfast.reports.calibration import Calibration
from holdfast.reports.figures import Row, decimals_for, interval_text, number, percent, significant
from holdfast.reports.legacy_charts import LEGEND, Chart, axis, finite, layout, plain, row_note
from holdfast.reports.markup import Column

COLOURS = ("accent", "second", "good", "third", "fourth", "bad")
"""Colours of models where there are more than two; they begin again after the last."""

COMPACT_FROM = 15
"""Lines of a forest from which on each takes one text line, with its name at the axis."""

CURVE_POINTS = 160
"""A sorted curve is drawn with at most this many points."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """Values of one model, one a sample, and how they are drawn."""

    label: str
    colour: str
    """Name of a custom property of the style sheet."""
    values: Sequence[float]
    dash: str = "solid"


def colour_of(place: int) -> str:
    """The colour of the model at `place`, from 0."""
    return COLOURS[place % len(COLOURS)]


def squeeze(text: str, length: int) -> str:
    """At most `length` characters, the middle left out: names of one family often differ at their end only."""
    if len(text) <= length:
        return text
    tail = (length - 1) * 2 // 5
    return f"{text[: length - 1 - tail].rstrip()}…{text[-tail:].lstrip()}" if tail else text[:length]


def is_share(unit: str, metric: str = "", *values: float) -> bool:
    """True for a figure between 0 and 1 of which more is better to read in hundredths: accuracies, exact match, pass@k.

    Args:
        unit: of the figure.
        metric: its name; some units say less.
        values: the figure itself; anything outside [0, 1] is no share.
    """
    words = {w.split(",")[0].partition("@")[0] for w in (unit, metric)}
    known = bool(words & _SHARES) or any(
        w.startswith(("acc", "exact_match", "quasi_")) or w.endswith("_acc") for w in words
    )
    return known and all(not math.isfinite(v) or -1e-9 <= v <= 1 + 1e-9 for v in values)


_SHARES = {"accuracy", "exact_match", "exact match", "pass", "f1", "share", "fraction", "mass", "win_rate", "em"}


def share_compared(c: Comparison) -> bool:
    """True where both figures of a comparison are shares, so that their difference is in points."""
    return c.higher_is_better and (c.flips_lost is not None or is_share(c.unit, c.metric, c.before, c.after))


def points(value: float, digits: int = 2) -> str:
    """A difference of shares in points, signed."""
    return f"{number(100 * value, digits, sign=True)} pt"


def point_digits(interval: tuple[float, float] | None) -> int:
    """Decimals for points: two fewer than for the share itself."""
    return max(1, decimals_for(interval) - 2)


def metric_text(metric: Metric) -> str:
    """The value of a metric with the decimals that its interval allows: shares in percent, the rest in their unit."""
    digits = decimals_for(metric.interval)
    if is_share(metric.unit, "", metric.value):
        return f"{number(100 * metric.value, max(1, digits - 2))} %"
    return number(metric.value, digits)


def metric_interval(metric: Metric) -> str:
    """The interval of a metric, in percent for shares."""
    digits = decimals_for(metric.interval)
    if metric.interval is not None and is_share(metric.unit, "", metric.value):
        return interval_text((100 * metric.interval[0], 100 * metric.interval[1]), max(1, digits - 2))
    return interval_text(metric.interval, digits)


def short_names(comparisons: Sequence[Comparison]) -> list[str]:
    """A name a comparison: the entry's, with its suite where two entries share it and its metric where one entry has
    several."""
    names = [c.name for c in comparisons]
    full = [f"{c.suite}/{c.name}" for c in comparisons]
    chosen = [n if names.count(n) == 1 else f for n, f in zip(names, full, strict=True)]
    return [n if chosen.count(n) == 1 else f"{n} {c.metric}" for n, c in zip(chosen, comparisons, strict=True)]


# ------------------------------------------------------------------------------------------------------------- samples


def reliability_chart(series: Sequence[tuple[str, str, Calibration]], *, title: str, height: int = 300) -> Chart:
    """Accuracy against confidence, one point a bin; on the diagonal confidence is what comes true.

    Args:
        series: (label, colour, calibration) of each model.
        title: of the chart.
        height: in CSS pixels.
    """
    low = min(min((*c.confidence, *c.accuracy)) for _, _, c in series)
    low = max(0.0, 10 * math.floor(10 * low - 0.3))
    diagonal = {"color": "var(--muted)", "width": 1, "dash": "dot"}
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [low, 100],
            "y": [low, 100],
            "line": diagonal,
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    rows = []
    for label, colour, found in series:
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(squeeze(label, 28)),
                "x": [_rounded(100 * v) for v in found.confidence],
                "y": [_rounded(100 * v) for v in found.accuracy],
                "customdata": list(found.counts),
                "line": {"color": f"var(--{colour})", "width": 2},
                "marker": {"size": 7},
                "hovertemplate": f"{plain(label)}<br>confidence %{{x:.1f}} %<br>right %{{y:.1f}} % of "
                f"%{{customdata}}<extra></extra>",
            }
        )
        for sure, right, n in zip(found.confidence, found.accuracy, found.counts, strict=True):
            rows.append([label, f"{number(100 * sure, 1)} %", f"{number(100 * right, 1)} %", f"{n:,}"])
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("confidence, %", range=[low - 1, 101], zeroline=False),
            yaxis=axis("right, %", range=[low - 3, 103], zeroline=False),
            showlegend=True,
            legend=LEGEND,
            margin={"l": 12, "r": 12, "t": 30, "b": 12},
        ),
    }
    caption = (
        "One point a bin of equal size. On the dotted line confidence comes true; below it the model is too "
        "sure of itself."
    )
    columns = [Column(title="Model"), *(Column(title=t, numeric=True) for t in ("Confidence", "Right", "Questions"))]
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)


def quantile_chart(
    series: Sequence[Series], *, title: str, unit: str, caption: str, height: int = 300, zero: bool = False
) -> Chart | None:
    """Each model's values sorted, smallest first, against the share of samples below: the whole distribution in one
    line.

    Args:
        series: values of each model; those that are not finite are left out.
        title: of the chart.
        unit: of the values.
        caption: said below.
        height: in CSS pixels.
        zero: draws a line at 0, for differences.

    Returns:
        None where no series has a finite value.
    """
    import numpy as np

    data: list[dict[str, Any]] = []
    rows = []
    for s in series:
        values = np.asarray(s.values, dtype=np.float64)
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        levels = np.linspace(0, 1, min(CURVE_POINTS, max(2, values.size)))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain(squeeze(s.label, 28)),
                "x": [_rounded(100 * v) for v in levels.tolist()],
                "y": [_rounded(v) for v in np.quantile(values, levels).tolist()],
                "line": {"color": f"var(--{s.colour})", "width": 2.2, "dash": s.dash},
                "hovertemplate": f"{plain(s.label)}: %{{y:.4g}}<extra></extra>",
            }
        )
        five = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
        rows.append(
            [s.label, *(significant(float(v)) for v in (five[0], five[1], five[2], values.mean())), f"{values.size:,}"]
        )
    if not data:
        return None
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("samples, sorted, %", range=[0, 100], zeroline=False),
            yaxis=axis(unit, zeroline=zero, zerolinewidth=2),
            hovermode="x unified",
            showlegend=len(data) > 1,
            legend=LEGEND,
            margin={"l": 12, "r": 14, "t": 30 if len(data) > 1 else 12, "b": 12},
        ),
    }
    columns = [
        Column(title="Model"),
        *(Column(title=t, numeric=True) for t in ("10 % below", "Median", "90 % below", "Mean", "Samples")),
    ]
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)


def _rounded(value: float) -> float:
    """Five significant digits draw a point as well as seventeen, in a third of the page."""
    return float(f"{value:.5g}")


# --------------------------------------------------------------------------------------------------------------- gains


def gain_forest(
    rows: Sequence[Row], *, title: str, names: Sequence[str] | None = None, caption: str = "", ordered: bool = True
) -> Chart | None:
    """Gains with their paired intervals, one line a comparison, the largest loss first; right of zero is better.

    Shares are drawn in points. Other figures are drawn in their unit where they share one, otherwise in percent of the
    value before; those without such a percentage (a start of 0) are named in the caption. From `COMPACT_FROM` lines on
    each takes one text line.

    Args:
        rows: what was compared.
        title: of the chart.
        names: how each row is called; None: `short_names`.
        caption: said first below the figure.
        ordered: sorts by gain; False keeps the order given.

    Returns:
        None where nothing can be drawn.
    """
    names = short_names([r.raw for r in rows]) if names is None else list(names)
    share = all(share_compared(r.raw) for r in rows)
    relative = not share and len({r.unit for r in rows}) > 1
    found: list[tuple[Row, str]] = []
    left_out: list[tuple[Row, str]] = []
    for r, name in zip(rows, names, strict=True):
        drawable = math.isfinite(r.raw.gain) and (not relative or r.to_relative(1.0) is not None)
        (found if drawable else left_out).append((r, name))
    if not found:
        return None

    def scale(r: Row, value: float) -> float:
        return 100 * value if share else (r.to_relative(value) or 0.0) if relative else value

    if ordered:
        found.sort(key=lambda pair: scale(pair[0], pair[0].raw.gain))
    unit = "points" if share else "% of the value before" if relative else rows[0].unit
    compact = len(found) >= COMPACT_FROM
    shown = [_shown(r, share=share, relative=relative) for r, _ in found]
    data, notes = [], []
    for tone in ("flat", "bad", "good"):
        held = [(place, r, name) for place, (r, name) in enumerate(found) if r.tone == tone]
        if held:
            data.append(_forest_trace(held, tone, scale, compact=compact))
    for place, ((r, name), text) in enumerate(zip(found, shown, strict=True)):
        for said, side in ((plain(squeeze(name, 34)), 0), (text, 1)):
            tint = "var(--ink)" if side == 0 or r.tone == "flat" else f"var(--{r.tone})"
            notes.append(row_note(said, place, side, tint))
    height = 66 + (19 if compact else 46) * len(found)
    down: dict[str, Any] = {
        "range": [len(found) - 0.4, -0.9 if not compact else -0.7],
        "fixedrange": True,
        "zeroline": False,
    }
    if compact:
        ticks = [plain(squeeze(name, 26)) for _, name in found]
        down |= {"tickvals": list(range(len(found))), "ticktext": ticks, "gridcolor": "var(--grid)"}
    else:
        down["visible"] = False
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(
                f"gain, {plain(unit)} → better",
                zeroline=True,
                zerolinewidth=2,
                zerolinecolor="var(--muted)",
                rangemode="tozero",
                nticks=7,
            ),
            yaxis=axis(**down),
            annotations=[] if compact else notes,
            meta={"narrow": _narrow([name for _, name in found])} if compact else None,
        ),
    }
    words = [caption] if caption else []
    words.append(
        f"Right of zero is better whatever the metric's direction. Bars: paired {100 * found[0][0].raw.confidence:g} "
        f"% intervals over the"
        " evaluated samples. Filled: the interval excludes zero."
    )
    if left_out:
        reason = "a start of 0 has no relative change" if relative else "the difference is not a number"
        words.append(f"Not drawn, because {reason}: {', '.join(name for _, name in left_out)}.")
    columns = [
        Column(title="Measure"),
        *(Column(title=t, numeric=True) for t in (f"Gain, {unit}", "Interval")),
        Column(title="Verdict"),
    ]
    cells = [
        [name, text, _shown_interval(r, share=share, relative=relative), r.verdict]
        for (r, name), text in zip(found, shown, strict=True)
    ]
    return Chart(title=title, figure=figure, caption=" ".join(words), columns=columns, rows=cells, height=height)


def _shown(r: Row, *, share: bool, relative: bool) -> str:
    if share:
        return points(r.raw.gain, point_digits(r.raw.interval))
    return r.relative if relative else number(r.raw.gain, decimals_for(r.raw.interval), sign=True)


def _shown_interval(r: Row, *, share: bool, relative: bool) -> str:
    low, high = r.gain_interval
    if share:
        return interval_text((100 * low, 100 * high), point_digits(r.raw.interval), sign=True)
    if relative and math.isfinite(low):
        return f"[{percent(r.to_relative(low))}, {percent(r.to_relative(high))}]"
    return interval_text((low, high), decimals_for(r.raw.interval), sign=True)


def _forest_trace(held: Sequence[tuple[int, Row, str]], tone: str, scale: Any, *, compact: bool) -> dict[str, Any]:
    """All lines of one verdict as one trace: sixty traces would make a slow page."""
    gains = [scale(r, r.raw.gain) for _, r, _ in held]
    ends = [
        [scale(r, v) if math.isfinite(v) else gain for v in r.gain_interval]
        for (_, r, _), gain in zip(held, gains, strict=True)
    ]
    colour = f"var(--{tone})"
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_rounded(g) for g in gains],
        "y": [place for place, _, _ in held],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_rounded(high - gain) for (_, high), gain in zip(ends, gains, strict=True)],
            "arrayminus": [_rounded(gain - low) for (low, _), gain in zip(ends, gains, strict=True)],
            "color": colour,
            "thickness": 1.6 if compact else 2,
            "width": 3 if compact else 5,
        },
        "marker": {
            "size": 8 if compact else 11,
            "color": "var(--surface)" if tone == "flat" else colour,
            "line": {"color": colour, "width": 2},
            "symbol": "circle",
        },
        "hovertemplate": [
            f"{plain(name)}<br>{r.before} → {r.after} {plain(r.unit)}<br>difference {r.difference} "
            f"{r.interval}<br>{r.verdict}, p {r.p}, n {r.n}"
            "<extra></extra>"
            for _, r, name in held
        ],
    }


# ----------------------------------------------------------------------------------------------------------- retention


def retained(rows: Sequence[Row]) -> list[Row]:
    """The rows of which a share can be retained: more is better, and there was something before."""
    return [r for r in rows if r.raw.higher_is_better and r.raw.before > 0 and math.isfinite(r.raw.after)]


def retention_bars(rows: Sequence[Row]) -> Chart | None:
    """After in percent of before, a bar an entry, with a line at 100 %; None where no figure has a meaning as a share
    kept."""
    held = sorted(
        zip(retained(rows), short_names([r.raw for r in retained(rows)]), strict=True),
        key=lambda p: p[0].raw.after / p[0].raw.before,
    )
    if not held:
        return None
    kept = [100 * r.raw.after / r.raw.before for r, _ in held]
    ends = [
        [100 + (r.to_relative(v) or 0.0) if math.isfinite(v) else k for v in r.raw.interval]
        for (r, _), k in zip(held, kept, strict=True)
    ]
    height = 76 + (20 if len(held) >= COMPACT_FROM else 30) * len(held)
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": list(range(len(held))),
                "x": [_rounded(k) for k in kept],
                "marker": {"color": [f"var(--{r.tone})" for r, _ in held], "cornerradius": 3},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_rounded(high - k) for (_, high), k in zip(ends, kept, strict=True)],
                    "arrayminus": [_rounded(k - low) for (low, _), k in zip(ends, kept, strict=True)],
                    "color": "var(--ink)",
                    "thickness": 1.2,
                    "width": 3,
                },
                "hovertemplate": [
                    f"{plain(name)}: {k:.1f} %<br>{r.before} → {r.after}, n {r.n}<extra></extra>"
                    for (r, name), k in zip(held, kept, strict=True)
                ],
            }
        ],
        "layout": layout(
            height,
            xaxis=axis("after in % of before", rangemode="tozero", zeroline=False),
            yaxis=_names_axis([name for _, name in held]),
            bargap=0.3,
            shapes=[_line_at(100)],
        ),
    }
    caption = (
        "Left of the line: less than before. Bars: the interval of the paired difference over the value before, which "
        "is taken as it is. A task at"
        " chance level keeps a high share even where all that was known is gone."
    )
    left_out = len(rows) - len(held)
    if left_out:
        caption += f" Not drawn, because less is better or nothing was there before: {left_out}."
    columns = [
        Column(title="Measure"),
        *(Column(title=t, numeric=True) for t in ("Kept", "Interval", "Before", "After")),
    ]
    cells = [
        [name, f"{number(k, 1)} %", f"[{number(low, 1)}, {number(high, 1)}] %", r.before, r.after]
        for (r, name), k, (low, high) in zip(held, kept, ends, strict=True)
    ]
    return Chart(
        title="Kept of the value before", figure=figure, caption=caption, columns=columns, rows=cells, height=height
    )


def retention_radar(rows: Sequence[Row], labels: tuple[str, str], *, fewest: int = 3, most: int = 12) -> Chart | None:
    """After in percent of before as a radar chart; None unless `fewest` to `most` accuracies can be compared."""
    held = [r for r in retained(rows) if share_compared(r.raw)]
    if not fewest <= len(held) <= most:
        return None
    names = short_names([r.raw for r in held])
    around = [plain(squeeze(n, 14)) for n in names]
    kept = [100 * r.raw.after / r.raw.before for r in held]
    step = 360 / len(held)  # places are angles, so that two tasks whose shortened names are equal stay apart
    data = []
    for label, values, colour, dash in (
        (labels[0], [100.0] * len(held), "muted", "dot"),
        (labels[1], kept, "accent", "solid"),
    ):
        data.append(
            {
                "type": "scatterpolar",
                "name": plain(squeeze(label, 28)),
                "r": [_rounded(v) for v in (*values, values[0])],
                "theta": [round(place * step, 3) for place in (*range(len(held)), 0)],
                "mode": "lines+markers" if dash == "solid" else "lines",
                "line": {"color": f"var(--{colour})", "width": 2, "dash": dash},
                "marker": {"size": 6},
                "fill": "toself" if dash == "solid" else "none",
                "opacity": 0.85,
                "text": [plain(n) for n in (*names, names[0])],
                "hovertemplate": "%{text}: %{r:.1f} %<extra></extra>",
            }
        )
    height = 380
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(visible=False),
            yaxis=axis(visible=False),
            polar={
                "bgcolor": "rgba(0,0,0,0)",
                "radialaxis": {
                    "range": [0, 1.05 * max(100, *kept)],
                    "ticksuffix": " %",
                    "nticks": 4,
                    "angle": 90,
                    "tickangle": 90,
                    "tickfont": {"size": 10, "color": "var(--muted)"},
                    "gridcolor": "var(--grid)",
                    "linecolor": "var(--line)",
                },
                "angularaxis": {
                    "tickvals": [round(place * step, 3) for place in range(len(held))],
                    "ticktext": around,
                    "tickfont": {"size": 10, "color": "var(--ink)"},
                    "direction": "clockwise",
                    "rotation": 90,
                    "gridcolor": "var(--grid)",
                    "linecolor": "var(--line)",
                },
            },
            showlegend=True,
            legend={**LEGEND, "y": 1.12},
            margin={"l": 78, "r": 78, "t": 64, "b": 34},
        ),
    }
    columns = [Column(title="Task"), Column(title="Kept", numeric=True)]
    cells = [[name, f"{number(k, 1)} %"] for name, k in zip(names, kept, strict=True)]
    return Chart(
        title="Kept, all tasks at a glance",
        figure=figure,
        caption="Each task in percent of its value before; the dotted ring is 100 %.",
        columns=columns,
        rows=cells,
        height=height,
    )


def _names_axis(names: Sequence[str], length: int = 24) -> dict[str, Any]:
    """Names from the top down at places 0, 1, 2, ...: equal names stay apart."""
    ticks = [plain(squeeze(n, length)) for n in names]
    return axis(
        tickvals=list(range(len(names))),
        ticktext=ticks,
        range=[len(names) - 0.4, -0.6],
        fixedrange=True,
        showgrid=False,
        zeroline=False,
        ticklen=4,
    )


def _narrow(names: Sequence[str]) -> list[str]:
    """Names for an axis on a phone; page.js puts them in where there is no room for the longer ones."""
    return [plain(squeeze(n.replace("high school ", "HS ").replace("professional ", "prof. "), 17)) for n in names]


def _line_at(x: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": "var(--ink)", "width": 1.2, "dash": "dot"},
    }


# -------------------------------------------------------------------------------------------------------------- scores


def score_bars(
    names: Sequence[str], models: Sequence[tuple[str, str, Sequence[Metric | None]]], *, title: str, unit: str
) -> Chart | None:
    """Scores of several models on several entries as bars with intervals; shares in percent.

    Args:
        names: of the entries.
        models: (label, colour, metric of every entry or None where it was not measured).
        title: of the chart.
        unit: of all of them.

    Returns:
        None where no model has a finite score.
    """
    share = all(m is None or is_share(unit, "", m.value) for _, _, metrics in models for m in metrics)
    factor = 100.0 if share else 1.0
    if not any(m is not None and math.isfinite(m.value) for _, _, metrics in models for m in metrics):
        return None
    data = []
    for label, colour, metrics in models:
        values = [None if m is None else finite(factor * m.value) for m in metrics]
        spans = [_reach(m, factor) for m in metrics]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plain(squeeze(label, 28)),
                "y": list(range(len(names))),
                "x": values,
                "marker": {"color": f"var(--{colour})", "cornerradius": 2},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [s[1] for s in spans],
                    "arrayminus": [s[0] for s in spans],
                    "color": "var(--ink)",
                    "thickness": 1.1,
                    "width": 3,
                },
                "hovertemplate": [
                    f"{plain(name)}<br>{plain(label)}: {_metric_cell(m)}<extra></extra>"
                    for name, m in zip(names, metrics, strict=True)
                ],
            }
        )
    height = 70 + len(names) * (12 + 15 * len(models)) + (24 if len(models) > 1 else 0)
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(f"{plain(unit)}, %" if share else plain(unit), rangemode="tozero", zeroline=False),
            yaxis=_names_axis(names, 22),
            barmode="group",
            bargap=0.25,
            showlegend=len(models) > 1,
            legend={**LEGEND, "traceorder": "normal"},
            margin={"l": 12, "r": 14, "t": 34 if len(models) > 1 else 12, "b": 12},
        ),
    }
    confidence = next((m.confidence for _, _, metrics in models for m in metrics if m is not None), 0.95)
    caption = f"Thin lines: {100 * confidence:g} % intervals over the samples of each model alone."
    if len(models) > 1:
        caption += (
            " Two of them may overlap and the difference still be sure, since both models answered the same questions."
        )
    columns = [Column(title="Entry"), *(Column(title=label, numeric=True) for label, _, _ in models)]
    rows = [[name, *(_metric_cell(metrics[i]) for _, _, metrics in models)] for i, name in enumerate(names)]
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)


def subject_dots(
    names: Sequence[str], models: Sequence[tuple[str, str, Sequence[Metric | None]]], *, title: str
) -> Chart:
    """Scores on the subjects of a group, a line a subject and a dot a model, with intervals; sorted by the first model.

    Args:
        names: of the subjects.
        models: (label, colour, metric of every subject or None).
        title: of the chart.
    """
    first = models[0][2]
    order = sorted(range(len(names)), key=lambda i: -m.value if (m := first[i]) is not None else math.inf)
    share = all(m is None or is_share(m.unit, "", m.value) for _, _, metrics in models for m in metrics)
    factor = 100.0 if share else 1.0
    spread = 0.5 if len(models) > 1 else 0.0
    data = []
    for number_of, (label, colour, metrics) in enumerate(models):
        shift = spread * (number_of / max(1, len(models) - 1) - 0.5)
        held = [(place, m) for place, i in enumerate(order) if (m := metrics[i]) is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(squeeze(label, 28)),
                "x": [_rounded(factor * m.value) for _, m in held],
                "y": [round(place + shift, 3) for place, _ in held],
                "marker": {"size": 7, "color": f"var(--{colour})"},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_reach(m, factor)[1] for _, m in held],
                    "arrayminus": [_reach(m, factor)[0] for _, m in held],
                    "color": f"var(--{colour})",
                    "thickness": 1,
                    "width": 0,
                },
                "hovertemplate": [
                    f"{plain(names[order[place]])}<br>{plain(label)}: {metric_text(m)} {metric_interval(m)}, n "
                    f"{m.n:,}<extra></extra>"
                    for place, m in held
                ],
            }
        )
    height = 80 + len(names) * max(18, 9 * len(models))
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("%" if share else plain(next((m.unit for m in first if m is not None), "")), zeroline=False),
            yaxis={**_names_axis([names[i] for i in order], 26), "showgrid": True},
            meta={"narrow": _narrow([names[i] for i in order])},
            showlegend=len(models) > 1,
            legend=LEGEND,
            margin={"l": 12, "r": 14, "t": 34 if len(models) > 1 else 12, "b": 12},
        ),
    }
    columns = [
        Column(title="Subject"),
        *(Column(title=label, numeric=True) for label, _, _ in models),
        Column(title="n", numeric=True),
    ]
    rows = []
    for i in order:
        held_here = [metrics[i] for _, _, metrics in models]
        n = next((m.n for m in held_here if m is not None), 0)
        rows.append([names[i], *(_metric_cell(m) for m in held_here), f"{n:,}"])
    caption = "Sorted by the first model. Lines: intervals over the questions of the subject."
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)


def _metric_cell(metric: Metric | None) -> str:
    return "not measured" if metric is None else f"{metric_text(metric)} {metric_interval(metric)}"


def _reach(metric: Metric | None, factor: float) -> tuple[float, float]:
    """How far the interval reaches below and above the value; 0 where there is none."""
    if metric is None or metric.interval is None or not all(math.isfinite(v) for v in (*metric.interval, metric.value)):
        return 0.0, 0.0
    below, above = metric.value - metric.interval[0], metric.interval[1] - metric.value
    return _rounded(max(0.0, factor * below)), _rounded(max(0.0, factor * above))


def subject_names(tasks: Sequence[str]) -> list[str]:
    """Subtasks without what all their names begin with (`mmlu_anatomy` -> `anatomy`), underscores as spaces."""
    first, last = min(tasks, default=""), max(tasks, default="")  # what these two share, all between them share
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    cut = first[:same].rfind("_") + 1 if first != last else 0
    return [t[cut:].replace("_", " ") or t for t in tasks]


# -------------------------------------------------------------------------------------------------------------- stages


def stage_heat(matrix: StageMatrix) -> Chart:
    """Scores of every task (across) after every stage (down); outlined where the task was the one just trained."""
    scores = [[finite(v) for v in line] for line in matrix.scores]
    known = [v for line in scores for v in line if v is not None]
    share = is_share(matrix.unit or "accuracy", "", *known)
    factor = 100.0 if share else 1.0

    def text(value: float | None) -> str:
        return "" if value is None else number(factor * value, 1 if share else 3)

    height = 96 + 44 * len(matrix.stages)
    outline = [
        {
            "type": "rect",
            "x0": i - 0.5,
            "x1": i + 0.5,
            "y0": i + 0.5,
            "y1": i + 1.5,
            "line": {"color": "var(--second)", "width": 2.5},
        }
        for i in range(len(matrix.tasks))
    ]
    figure = {
        "data": [
            {
                "type": "heatmap",
                "x": list(range(len(matrix.tasks))),
                "y": list(range(len(matrix.stages))),
                "z": [[None if v is None else _rounded(factor * v) for v in line] for line in scores],
                "text": [[text(v) for v in line] for line in scores],
                "texttemplate": "%{text}",
                "customdata": [[[plain(stage), plain(task)] for task in matrix.tasks] for stage in matrix.stages],
                "hovertemplate": "%{customdata[1]} after %{customdata[0]}: %{text}<extra></extra>",
                "hoverongaps": False,
                "colorscale": [[n / 3, f"var(--heat-{n})"] for n in range(4)],
                "showscale": False,
                "xgap": 2,
                "ygap": 2,
            }
        ],
        "layout": layout(
            height,
            xaxis=axis(
                "task, in the order of training",
                tickvals=list(range(len(matrix.tasks))),
                ticktext=[plain(squeeze(t, 16)) for t in matrix.tasks],
                showgrid=False,
                zeroline=False,
                fixedrange=True,
            ),
            yaxis={**_names_axis(matrix.stages, 20), "range": [len(matrix.stages) - 0.5, -0.5]},
            shapes=outline,
        ),
    }
    columns = [Column(title="After"), *(Column(title=t, numeric=True) for t in matrix.tasks)]
    rows = [[stage, *(text(v) or "n/a" for v in line)] for stage, line in zip(matrix.stages, scores, strict=True)]
    unit = f"{matrix.unit}, %" if share and matrix.unit else "%" if share else matrix.unit or "score"
    caption = (
        f"Each row: the model after one stage ({unit}; higher is better). Outlined: the task that this stage trained. "
        f"Down a column: what became"
        " of it."
    )
    return Chart(
        title="Every task after every stage", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )
