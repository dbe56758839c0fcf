"""The figures of the regression page: geometry, convergence, errors against lambda, frontier, directions. Plain
dictionaries, as in `charts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.reports.charts import finite, plain
from holdfast.reports.format import number, significant
from holdfast.reports.markup import Column
from holdfast.reports.theory_page import LEGEND, Chart, axis, layout
from holdfast.theory.regression import along_segment, closed_form, errors, illustration, split, weight_for
from holdfast.theory.regression_study import (
    MIDDLE,
    NAMES,
    PENALISED,
    DescentCurve,
    Figures,
    Geometry,
    Interval,
    RegressionStudy,
)

COLOURS = {
    "label_annealing": "var(--accent)",
    "l2": "var(--second)",
    "direct": "var(--bad)",
    "pretraining": "var(--third)",
}
SYMBOLS = {"label_annealing": "circle", "l2": "diamond", "direct": "x"}
PALE = "26"
"""Put after a colour `#rrggbb`: opacity of bands."""
LAMBDAS_SHOWN = (0.3, 1.0, 3.0)


def scientific(value: float | None) -> str:
    """A deviation or a distance: two digits and a power of ten; 0 and what cannot be had as words say them."""
    if value is None or not math.isfinite(value):
        return number(value)
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")


def with_interval(interval: Interval | None, decimals: int = 3) -> str:
    """`0.883 [0.866, 0.901]`, the value alone where there is no interval, "none" where there is nothing."""
    if interval is None:
        return "none"
    if interval.low is None or interval.high is None:
        return number(interval.value, decimals)
    return f"{number(interval.value, decimals)} [{number(interval.low, decimals)}, {number(interval.high, decimals)}]"


def _line(name: str, x: Sequence[float], y: Sequence[float | None], colour: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2.2},
    }
    return found | more


def _spot(name: str, x: float, y: float, symbol: str, colour: str, **more: Any) -> dict[str, Any]:
    marker = {"size": 13, "symbol": symbol, "color": colour, "line": {"color": "var(--surface)", "width": 1}}
    found: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [x],
        "y": [y],
        "marker": marker,
        "cliponaxis": False,
    }
    return found | {"hovertemplate": f"{name}<br>%{{x:.3g}}, %{{y:.3g}}<extra></extra>"} | more


def _framed(height: int, xaxis: dict[str, Any], yaxis: dict[str, Any], *, top: int = 56, **more: Any) -> dict[str, Any]:
    """A layout with its legend above, for which `top` pixels are kept."""
    return layout(
        height,
        xaxis=xaxis,
        yaxis=yaxis,
        showlegend=True,
        legend=LEGEND,
        margin={"l": 12, "r": 18, "t": top, "b": 12},
        **more,
    )


def _band(x: Sequence[float], values: Sequence[Interval], colour: str) -> list[dict[str, Any]]:
    """The interval over seeds as a pale area; nothing where there is one seed."""
    low, high = [v.low for v in values], [v.high for v in values]
    if any(v is None for v in (*low, *high)):
        return []
    style = {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [{**style, "y": low}, {**style, "y": high, "fill": "tonexty", "fillcolor": colour + PALE}]


# ------------------------------------------------------------------------------------------------------------- geometry


def picture_from_above(*, alike: bool) -> Chart:
    """The plane of the fine-tuning rows in an example: label annealing's straight segment, L2's curve, contours of both
    tasks' errors."""
    problem = illustration(alike=alike)
    theta0, goal = problem.theta0[:2], problem.least_norm[:2]
    data: list[dict[str, Any]] = []
    equal = {m: closed_form(problem, m, weight_for(problem, m, MIDDLE)) for m in PENALISED}
    for level, name in ((MIDDLE, f"fine-tuning error {MIDDLE:g} of the start's"), (0.6, ""), (1.0, "")):
        x, y = _ellipse(goal, problem.finetuning_inputs[:, :2], level * float((problem.residual**2).sum()))
        style = {"color": COLOURS["direct"], "width": 1.6 if name else 1, "dash": "solid" if name else "dot"}
        data.append(
            _line(
                name or "fine-tuning error",
                x,
                y,
                COLOURS["direct"],
                line=style,
                opacity=0.55,
                hoverinfo="skip",
                showlegend=bool(name),
            )
        )
    lost = [float(errors(problem, theta).pretraining) * len(problem.pretraining_inputs) for theta in equal.values()]
    for place, level in enumerate((0.3 * min(lost), *sorted(lost))):
        x, y = _ellipse(theta0, problem.pretraining_inputs[:, :2], level)
        style = {"color": COLOURS["pretraining"], "width": 1.2, "dash": "dash"}
        data.append(
            _line(
                "pre-training error, contours",
                x,
                y,
                COLOURS["pretraining"],
                line=style,
                opacity=0.7,
                hoverinfo="skip",
                showlegend=place == 0,
            )
        )
    for method in PENALISED:
        weights = np.concatenate(
            [[0.0], np.geomspace(1e-3, 1e3, 121) * (1.0 if method == "label_annealing" else 2.0), [math.inf]]
        )
        path = closed_form(problem, method, weights)
        data.append(_line(NAMES[method], path[:, 0].tolist(), path[:, 1].tolist(), COLOURS[method], hoverinfo="skip"))
    annealed = closed_form(problem, "label_annealing", LAMBDAS_SHOWN)
    data.append(
        {
            "type": "scatter",
            "mode": "markers+text",
            "showlegend": False,
            "x": annealed[:, 0].tolist(),
            "y": annealed[:, 1].tolist(),
            "text": [f"λ {w:g}" for w in LAMBDAS_SHOWN],
            "textposition": "bottom left",
            "textfont": {"size": 11, "color": "var(--muted)"},
            "marker": {"size": 6, "color": COLOURS["label_annealing"]},
            "hovertemplate": "label annealing, %{text}<extra></extra>",
        }
    )
    for method in PENALISED:
        x_spot, y_spot = equal[method][:2].tolist()
        title = f"{NAMES[method]} at that error"
        data.append(
            _spot(
                title,
                x_spot,
                y_spot,
                SYMBOLS[method],
                COLOURS[method],
                showlegend=False,
                hovertemplate=f"{title}<extra></extra>",
            )
        )
    text: dict[str, Any] = {
        "mode": "markers+text",
        "textfont": {"size": 12, "color": "var(--ink)"},
        "showlegend": False,
    }
    (x0, y0), (x1, y1) = theta0.tolist(), goal.tolist()
    data.append(_spot("P θ0", x0, y0, "star", "var(--ink)", text=["P θ0"], textposition="top center", **text))
    data.append(
        _spot(
            "m, where direct ends",
            x1,
            y1,
            "x",
            COLOURS["direct"],
            text=["m (direct)"],
            textposition="bottom center",
            **text,
        )
    )
    reach = np.array([theta0, goal])
    (left, low), (right, high) = reach.min(0) - 0.75, reach.max(0) + 0.75
    figure = {
        "data": data,
        "layout": _framed(
            460,
            axis("strong direction (singular value 2)", zeroline=False, range=[left, right]),
            axis("weak direction (0.6)", zeroline=False, range=[low, high], scaleanchor="x"),
            top=76,
        ),
    }
    forgot = {m: float(errors(problem, equal[m]).pretraining) for m in PENALISED}
    what = (
        "feel both directions alike: circles"
        if alike
        else "feel the strong direction more, as the new rows do: ellipses of the same shape"
    )
    caption = (
        f"The old rows {what}. Both big marks fit the new data equally well (one red ellipse); the old error is "
        f"{number(forgot['l2'], 3)} for L2 and"
        f" {number(forgot['label_annealing'], 3)} for label annealing. Paths, θ0 and m are the same in both pictures."
    )
    columns = [
        Column(title="Point"),
        *(
            Column(title=t, numeric=True)
            for t in ("Strong direction", "Weak direction", "Fine-tuning error", "Pre-training error")
        ),
    ]
    points = [("θ0", problem.theta0), ("m alone", problem.least_norm), ("direct", closed_form(problem, "direct"))]
    points += [(f"{NAMES[m]} at {MIDDLE:g} of the start's error", equal[m]) for m in PENALISED]
    rows = []
    for name, theta in points:
        found = errors(problem, theta)
        rows.append([name, *(number(float(v), 3) for v in (*theta[:2], found.finetuning, found.pretraining))])
    title = (
        "From above: old data that feels all directions alike"
        if alike
        else "From above: old data that feels them as the new does"
    )
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=460)


def picture_from_the_side() -> Chart:
    """The same example from the side: every method moves at the height of theta0; m alone lies on the ground."""
    problem = illustration(alike=True)
    spots: list[tuple[str, np.ndarray, str, str, str]] = [
        ("θ0", problem.theta0, "star", "var(--ink)", "top center"),
        ("direct", closed_form(problem, "direct"), "x", COLOURS["direct"], "top center"),
        (
            "label annealing, λ 1",
            closed_form(problem, "label_annealing", 1.0),
            "circle",
            COLOURS["label_annealing"],
            "top center",
        ),
        ("L2, λ 1", closed_form(problem, "l2", 1.0), "diamond", COLOURS["l2"], "bottom center"),
        ("m alone", problem.least_norm, "square", "var(--muted)", "top right"),
    ]
    height = float(problem.theta0[2])
    data: list[dict[str, Any]] = [
        _line("kept by all", [0, 1], [height, height], "var(--good)", hoverinfo="skip"),
        _line(
            "ground",
            [1, 1],
            [0, height],
            "var(--muted)",
            line={"color": "var(--muted)", "width": 1.2, "dash": "dot"},
            hoverinfo="skip",
        ),
        _line(
            "ground",
            [-0.05, 1.05],
            [0, 0],
            "var(--line)",
            line={"color": "var(--muted)", "width": 1.2},
            hoverinfo="skip",
        ),
    ]
    rows = []
    for name, theta, symbol, colour, where in spots:
        place, off = along_segment(problem, theta)
        up = float(split(problem, theta).outside[2])
        rows.append([name, number(float(place), 3), number(float(off), 3), number(up, 3)])
        data.append(
            _spot(
                name,
                float(place),
                up,
                symbol,
                colour,
                mode="markers+text",
                text=[name if name != "m alone" else ""],
                textposition=where,
                textfont={"size": 12, "color": "var(--ink)"},
            )
        )

    def note(text: str, x: float, y: float, colour: str) -> dict[str, Any]:
        return {"text": text, "x": x, "y": y, "showarrow": False, "font": {"size": 12, "color": colour}}

    figure = {
        "data": data,
        "layout": layout(
            320,
            xaxis=axis(
                "inside the span: from P θ0 (0) to m (1)",
                zeroline=False,
                range=[-0.16, 1.16],
                tickvals=[0, 0.25, 0.5, 0.75, 1],
            ),
            yaxis=axis("outside the span: (I − P) θ", zeroline=False, range=[-0.18 * height, 1.32 * height]),
            annotations=[
                note("kept: the same height for all three", 0.5, 1.2 * height, "var(--good)"),
                note("m alone: nothing of pre-training", 0.45, 0.08 * height, "var(--muted)"),
            ],
        ),
    }
    caption = (
        "The same examples from the side. Fine-tuning rows cannot see the height, so gradient descent never changes "
        "it: direct, L2 and label"
        " annealing keep it alike. Only the floor plan differs."
    )
    columns = [
        Column(title="Point"),
        *(Column(title=t, numeric=True) for t in ("Along the segment", "Off the segment", "Height")),
    ]
    return Chart(
        title="From the side: outside against inside",
        figure=figure,
        caption=caption,
        columns=columns,
        rows=rows,
        height=320,
    )


def _ellipse(centre: np.ndarray, rows: np.ndarray, level: float) -> tuple[list[float], list[float]]:
    """Points with `|rows (p - centre)|^2 = level`; `rows` `[2, 2]` of full rank."""
    turn = np.linspace(0, 2 * math.pi, 121)
    ring = centre[:, None] + np.linalg.solve(rows, math.sqrt(level) * np.stack([np.cos(turn), np.sin(turn)]))
    return ring[0].tolist(), ring[1].tolist()


# ---------------------------------------------------------------------------------------------------------- convergence


def convergence(study: RegressionStudy, *, pretraining: bool) -> Chart:
    """Distance to the closed form by step, lines as measured, dots as predicted; logarithmic."""
    runs = [d for d in study.descents if (d.method == "pretraining") == pretraining]
    data: list[dict[str, Any]] = []
    seen: set[str] = set()
    dashes = ("solid", "dash", "dot")
    for run in runs:
        place = len([r for r in runs[: runs.index(run)] if r.method == run.method])
        name = NAMES[run.method]
        style = {"color": COLOURS[run.method], "width": 2, "dash": dashes[place % 3]}
        label = f"{name}, λ {significant(run.weight)}" if run.method in PENALISED else name
        hover = f"{label}<br>step %{{x}}: %{{y:.2g}}<extra></extra>"
        data.append(
            _line(
                name,
                run.at,
                [_positive(v) for v in run.distances],
                COLOURS[run.method],
                line=style,
                hovertemplate=hover,
                showlegend=place == 0,
            )
        )
        every = max(1, len(run.at) // 9)
        marker = {"size": 7, "symbol": "circle-open", "color": COLOURS[run.method]}
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "predicted from the spectrum",
                "x": run.at[::every],
                "y": [_positive(v) for v in run.predicted[::every]],
                "marker": marker,
                "hoverinfo": "skip",
                "showlegend": "predicted" not in seen,
            }
        )
        seen.add("predicted")
    height = 380
    yaxis = axis("distance to the closed form / its norm", zeroline=False, type="log", exponentformat="power", dtick=2)
    figure = {
        "data": data,
        "layout": _framed(
            height, axis("step", zeroline=False, rangemode="tozero"), yaxis, top=30 if pretraining else 56
        ),
    }
    columns = [
        Column(title="Objective"),
        *(Column(title=t, numeric=True) for t in ("λ", "Step size", "Steps predicted", "Steps taken", "Last distance")),
    ]
    rows = [_descent_cells(run) for run in runs]
    if pretraining:
        title = "Pre-training, from 0"
        caption = (
            "The curve ends as a straight line: the slowest direction alone is left. Circles: computed from "
            "the spectrum, without a single step."
        )
    else:
        title = "Fine-tuning, from θ0"
        caption = (
            "Label annealing goes at the pace of direct fine-tuning at any λ (its bound shrinks by 1 + λ, its "
            "gradient grows by it). L2 is faster,"
            f" because λ lifts the weak directions. {_dashes_text(runs)}λ of L2 is times the mean squared singular "
            f"value."
        )
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)


def _dashes_text(runs: Sequence[DescentCurve]) -> str:
    weights = [significant(r.weight) for r in runs if r.method == "label_annealing"]
    return f"Solid, dashed, dotted: λ {', '.join(weights)}. " if len(weights) == 3 else ""


def _descent_cells(run: DescentCurve) -> list[str]:
    taken = f"{run.steps_needed:,}" if run.steps_needed is not None else f"stopped at {run.at[-1]:,}"
    weight = significant(run.applied) if run.method in PENALISED else ""
    return [
        NAMES[run.method],
        weight,
        significant(run.step),
        f"{run.predicted_steps:,}",
        taken,
        scientific(run.relative_distance),
    ]


def _positive(value: float) -> float | None:
    """What a logarithmic axis can show."""
    return value if value > 0 else None


# -------------------------------------------------------------------------------------------------- errors and frontier


def against_lambda(study: RegressionStudy, *, pretraining: bool) -> Chart:
    """One task's error on its rows against lambda, with bands over seeds; direct and the start as level lines."""

    def pick(figures: Figures) -> Interval:
        return figures.pretraining if pretraining else figures.finetuning

    weights = list(study.setting.weights)
    data: list[dict[str, Any]] = []
    for method in PENALISED:
        values = [pick(point.figures) for point in study.curves[method]]
        data += _band(weights, values, COLOURS[method])
        hover = f"{NAMES[method]}, λ %{{x}}: %{{y:.4g}}<extra></extra>"
        mode = "lines+markers" if len(weights) < 20 else "lines"
        marker = {"size": 6, "symbol": SYMBOLS[method]}
        data.append(
            _line(
                NAMES[method],
                weights,
                [finite(v.value) for v in values],
                COLOURS[method],
                mode=mode,
                marker=marker,
                hovertemplate=hover,
            )
        )
    ends = [weights[0], weights[-1]]
    for name, figures, colour in (
        ("direct (λ → 0)", study.direct, COLOURS["direct"]),
        ("θ0 (λ → ∞)", study.start, "var(--muted)"),
    ):
        level = pick(figures).value
        data.append(
            _line(
                name,
                ends,
                [level, level],
                colour,
                line={"color": colour, "width": 1.4, "dash": "dash"},
                hoverinfo="skip",
            )
        )
    height = 340
    ticks = [
        w for w in weights if len(weights) <= 7 or math.isclose(math.log10(w), round(math.log10(w)), abs_tol=1e-9)
    ] or ends
    xaxis = axis("λ", type="log", zeroline=False, tickvals=ticks, ticktext=[significant(t) for t in ticks])
    figure = {
        "data": data,
        "layout": _framed(height, xaxis, axis("mean squared error", zeroline=False, rangemode="tozero"), top=60),
    }
    columns = [Column(title="λ"), *(Column(title=NAMES[m], numeric=True) for m in PENALISED)]
    rows = [["0 (direct)", *[with_interval(pick(study.direct), 4)] * 2]]
    for place, weight in enumerate(weights):
        rows.append([significant(weight), *(with_interval(pick(study.curves[m][place].figures), 4) for m in PENALISED)])
    rows.append(["∞ (θ0)", *[with_interval(pick(study.start), 4)] * 2])
    if pretraining:
        title, caption = (
            "Pre-training error: what is forgotten",
            "On the pre-training rows, which θ0 fits exactly; an error of 1 is that of knowing nothing.",
        )
    else:
        title, caption = (
            "Fine-tuning error: what is not yet learnt",
            "On the fine-tuning rows, which direct fine-tuning fits exactly.",
        )
    return Chart(
        title=title,
        figure=figure,
        caption=f"{caption} λ of L2 is times the mean squared singular value. Bands: {_level(study)}.",
        columns=columns,
        rows=rows,
        height=height,
    )


def frontier(study: RegressionStudy) -> Chart:
    """Pre-training error at equal fine-tuning error, on the rows."""
    data: list[dict[str, Any]] = []
    shares = [e.share for e in study.equal_errors]
    for method in PENALISED:
        values = [e.pretraining[method] for e in study.equal_errors]
        xs = [0.0, *shares, 1.0]
        ends = [study.direct.pretraining, *values, study.start.pretraining]
        data += _band(xs, ends, COLOURS[method])
        hover = f"{NAMES[method]}: %{{y:.4g}} at %{{x:.0%}} of the start's fine-tuning error<extra></extra>"
        marker = {"size": 8, "symbol": SYMBOLS[method]}
        ys = [finite(v.value) for v in ends]
        data.append(
            _line(NAMES[method], xs, ys, COLOURS[method], mode="lines+markers", marker=marker, hovertemplate=hover)
        )
    data.append(_spot("direct", 0.0, study.direct.pretraining.value, "x", COLOURS["direct"]))
    data.append(_spot("θ0", 1.0, study.start.pretraining.value, "star", "var(--ink)"))
    both = study.joint
    scale = study.start.finetuning.value or 1.0
    data.append(
        _spot(
            "both tasks' rows together",
            both.finetuning.value / scale,
            both.pretraining.value,
            "triangle-up",
            "var(--good)",
        )
    )
    height = 400
    xaxis = axis("fine-tuning error left, share of θ0's", zeroline=False, tickformat=".0%", range=[-0.04, 1.04])
    figure = {
        "data": data,
        "layout": _framed(height, xaxis, axis("pre-training error", zeroline=False, rangemode="tozero"), top=80),
    }
    caption = (
        f"On the rows. Down and left is better. Bands: {_level(study)}. Problems differ from each other as well, so "
        f"the ratio in the table, formed"
        " within each problem, is the sharper comparison."
    )
    titles = ("Label annealing", "L2", "L2 / label annealing")
    columns = [
        Column(title="Fine-tuning error left"),
        *(Column(title=t, numeric=True) for t in titles),
        Column(title="Verdict"),
    ]
    rows = [
        [
            f"{100 * e.share:g} %",
            *(with_interval(e.pretraining[m], 4) for m in PENALISED),
            with_interval(e.ratio),
            e.verdict,
        ]
        for e in study.equal_errors
    ]
    return Chart(
        title="Frontier on the rows", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )


def fresh_frontier(study: RegressionStudy) -> Chart:
    """The same on fresh inputs of both tasks, where interpolated noise counts too."""
    data: list[dict[str, Any]] = []
    rows = [
        [name, *_fresh(figures)]
        for name, figures in (("θ0", study.start), ("direct", study.direct), ("both tasks' rows", study.joint))
    ]
    for method in PENALISED:
        points = [study.direct, *(p.figures for p in study.curves[method]), study.start]
        xs = [finite(p.fresh_finetuning.value) for p in points]
        ys = [finite(p.fresh_pretraining.value) for p in points]
        names = ["λ 0", *(f"λ {significant(p.weight)}" for p in study.curves[method]), "λ ∞"]
        marker = {"size": 7, "symbol": SYMBOLS[method]}
        hover = f"{NAMES[method]}, %{{text}}<br>fine-tuning %{{x:.4g}}, pre-training %{{y:.4g}}<extra></extra>"
        more: dict[str, Any] = {"mode": "lines+markers", "text": names, "marker": marker, "hovertemplate": hover}
        data.append(_line(NAMES[method], [x or 0.0 for x in xs], ys, COLOURS[method], **more))
        rows += [[f"{NAMES[method]}, λ {significant(p.weight)}", *_fresh(p.figures)] for p in study.curves[method]]
    data.append(
        _spot(
            "direct", study.direct.fresh_finetuning.value, study.direct.fresh_pretraining.value, "x", COLOURS["direct"]
        )
    )
    data.append(
        _spot("θ0", study.start.fresh_finetuning.value, study.start.fresh_pretraining.value, "star", "var(--ink)")
    )
    data.append(
        _spot(
            "both tasks' rows together",
            study.joint.fresh_finetuning.value,
            study.joint.fresh_pretraining.value,
            "triangle-up",
            "var(--good)",
        )
    )
    height = 400
    xaxis, yaxis = (
        axis("fine-tuning error on fresh inputs", zeroline=False),
        axis("pre-training error on fresh inputs", zeroline=False),
    )
    figure = {"data": data, "layout": _framed(height, xaxis, yaxis, top=80)}
    caption = (
        "Expected error on inputs nobody trained on, without the noise of their targets; means over seeds, intervals "
        "in the table. θ0 is not at 0:"
        " fewer rows than parameters leave part of the truth unseen."
    )
    if study.joint.fresh_pretraining.value > study.direct.fresh_pretraining.value:
        caption += (
            " Rows fitted exactly are not tasks known: the triangle is worse than direct fine-tuning on old "
            "inputs here."
        )
    columns = [
        Column(title="Parameters"),
        Column(title="Fine-tuning", numeric=True),
        Column(title="Pre-training", numeric=True),
    ]
    return Chart(
        title="Frontier on fresh inputs", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )


def _fresh(figures: Figures) -> list[str]:
    return [with_interval(figures.fresh_finetuning), with_interval(figures.fresh_pretraining)]


def _level(study: RegressionStudy) -> str:
    if study.setting.seeds == 1:
        return "none, there is one seed"
    return f"{100 * study.setting.confidence:g} % intervals of the mean over {study.setting.seeds} seeds"


# ------------------------------------------------------------------------------------------------------------------ why


def felt_by_pretraining(study: RegressionStudy) -> Chart | None:
    """Sensitivity of the pre-training error against the squared singular value, direction by direction; None for a
    single direction."""
    shown = study.directions
    if not math.isfinite(shown.slope):
        return None
    squares, felt = np.array(shown.squares), np.array(shown.sensitivities)
    middle, level = float(np.exp(np.log(squares).mean())), float(np.exp(np.log(felt).mean()))
    ends = [float(squares[-1]), float(squares[0])]
    data: list[dict[str, Any]] = [
        _line(
            "fits L2: alike",
            ends,
            [level, level],
            COLOURS["l2"],
            line={"color": COLOURS["l2"], "width": 1.6, "dash": "dash"},
            hoverinfo="skip",
        ),
        _line(
            "fits label annealing: in proportion",
            ends,
            [level * e / middle for e in ends],
            COLOURS["label_annealing"],
            line={"color": COLOURS["label_annealing"], "width": 1.6, "dash": "dash"},
            hoverinfo="skip",
        ),
        {
            "type": "scatter",
            "mode": "markers",
            "name": "directions",
            "x": shown.squares,
            "y": shown.sensitivities,
            "marker": {"size": 7, "color": COLOURS["pretraining"]},
            "hovertemplate": "squared singular value %{x:.3g}<br>felt %{y:.3g}<extra></extra>",
        },
    ]
    height = 360
    xaxis = axis("squared singular value", zeroline=False, **_log_ticks(squares))
    figure = {
        "data": data,
        "layout": _framed(height, xaxis, axis("felt by pre-training", zeroline=False, **_log_ticks(felt)), top=80),
    }
    caption = (
        "First problem. Up: how much pre-training error a unit step along a singular direction of the fine-tuning "
        "rows costs. The slope on these"
        f" logarithmic axes is {number(shown.slope, 2)}: at 0 L2's penalty is the right one, at 1 label annealing's."
    )
    columns = [Column(title="Direction"), *(Column(title=t, numeric=True) for t in ("Squared singular value", "Felt"))]
    rows = [
        [str(i), number(s, 3), number(f, 4)]
        for i, (s, f) in enumerate(zip(shown.squares, shown.sensitivities, strict=True), 1)
    ]
    return Chart(
        title="What pre-training feels", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )


def _log_ticks(values: np.ndarray) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5 times the powers of ten; at the powers alone over more than three of
    them."""
    low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in ((1, 2, 5) if high - low <= 3 else (1,))]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}


def learnt_by_direction(study: RegressionStudy) -> Chart:
    """The share of the residual that each method learns in every direction, at equal fine-tuning error."""
    shown = study.directions
    data = []
    for method in PENALISED:
        marker = {"size": 6, "symbol": SYMBOLS[method]}
        hover = f"{NAMES[method]}: %{{y:.1%}} at %{{x:.3g}}<extra></extra>"
        data.append(
            _line(
                NAMES[method],
                shown.squares,
                shown.learnt[method],
                COLOURS[method],
                mode="lines+markers",
                marker=marker,
                hovertemplate=hover,
            )
        )
    height = 360
    xaxis = axis("squared singular value", zeroline=False, **_log_ticks(np.array(shown.squares)))
    figure = {
        "data": data,
        "layout": _framed(
            height, xaxis, axis("share learnt", zeroline=False, tickformat=".0%", range=[0, 1.02]), top=34
        ),
    }
    caption = (
        f"First problem, both at {100 * MIDDLE:g} % of θ0's fine-tuning error. Label annealing learns the same share "
        f"of every direction. L2 learns"
        " the strong ones first; it saves where a step of the prediction needs a long step of the parameters."
    )
    columns = [Column(title="Squared singular value"), *(Column(title=NAMES[m], numeric=True) for m in PENALISED)]
    rows = [[number(s, 3), *(number(shown.learnt[m][i], 4) for m in PENALISED)] for i, s in enumerate(shown.squares)]
    return Chart(
        title="What each method learns", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )


def geometry_chart(geometries: Sequence[Geometry], confidence: float) -> Chart | None:
    """Who forgets less, against the slope, over geometries; None where there is nothing to compare."""
    drawn = [g for g in geometries if g.ratio is not None and math.isfinite(g.slope.value)]
    if not drawn:
        return None
    data: list[dict[str, Any]] = []
    symbols = ("circle", "diamond", "square", "triangle-up", "pentagon")
    colours = ("accent", "second", "good", "third", "fourth")
    for place, decay in enumerate(sorted({g.decay for g in drawn})):
        mine = [g for g in drawn if g.decay == decay]
        colour = f"var(--{colours[place % 5]})"
        bars = [(g.ratio.value, g.ratio.low, g.ratio.high) for g in mine if g.ratio is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"decay {decay:g}",
                "x": [g.slope.value for g in mine],
                "y": [value for value, _, _ in bars],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [0.0 if high is None else high - value for value, _, high in bars],
                    "arrayminus": [0.0 if low is None else value - low for value, low, _ in bars],
                    "color": colour,
                    "thickness": 1.2,
                    "width": 3,
                },
                "marker": {"size": 10, "symbol": symbols[place % 5], "color": colour},
                "text": [plain(f"overlap {g.overlap:g}, {g.verdict}") for g in mine],
                "hovertemplate": f"decay {decay:g}, %{{text}}<br>slope %{{x:.2f}}, ratio %{{y:.3f}}<extra></extra>",
            }
        )
    height = 400
    ticks = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6]
    yaxis = axis(
        "pre-training error, L2 / label annealing",
        type="log",
        zeroline=False,
        tickvals=ticks,
        ticktext=[f"{t:g}" for t in ticks],
    )

    def note(text: str, x: float, side: str) -> dict[str, Any]:
        place = {"xref": "paper", "x": x, "xanchor": side, "yref": "paper", "y": 0.99 if side == "left" else 0.01}
        place["yanchor"] = "top" if side == "left" else "bottom"
        return {**place, "text": text, "showarrow": False, "font": {"size": 12, "color": "var(--muted)"}}

    rule = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 1,
        "y1": 1,
        "line": {"color": "var(--muted)", "width": 1.4, "dash": "dash"},
    }
    figure = {
        "data": data,
        "layout": _framed(
            height,
            axis("slope of what pre-training feels", zeroline=False),
            yaxis,
            top=34,
            shapes=[rule],
            annotations=[
                note("above: label annealing forgets less", 0.01, "left"),
                note("below: L2 forgets less", 0.99, "right"),
            ],
        ),
    }
    n = drawn[0].slope.n
    bars_text = f"Bars: {100 * confidence:g} % intervals over {n} seeds." if n > 1 else "One seed, no intervals."
    caption = (
        f"Each mark is one kind of problem, at {100 * MIDDLE:g} % of θ0's fine-tuning error. Slope 0: alike; "
        f"1: in proportion. {bars_text}"
    )
    columns = [
        Column(title="Decay"),
        Column(title="Overlap", numeric=True),
        *(Column(title=t, numeric=True) for t in ("Slope", "Ratio")),
    ]
    columns.append(Column(title="Verdict"))
    rows = [
        [f"{g.decay:g}", f"{g.overlap:g}", with_interval(g.slope, 2), with_interval(g.ratio), g.verdict]
        for g in geometries
    ]
    return Chart(
        title="Which penalty fits which geometry",
        figure=figure,
        caption=caption,
        columns=columns,
        rows=rows,
        height=height,
    )
