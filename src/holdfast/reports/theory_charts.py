"""The charts of the regression page: geometry, convergence, errors against lambda, frontier, directions. Rows and marks
as in `charts`; the table under each figure, and the tables in the terminal, are made of the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.reports.blocks import known
from holdfast.reports.charts import COLOURS as PALETTE
from holdfast.reports.charts import SYMBOLS as SHAPES
from holdfast.reports.charts import Axis, Chart, Col, Mark, Note, Rule, Value, log_ticks, ticks_at
from holdfast.reports.format import number, significant
from holdfast.theory.findings import Interval
from holdfast.theory.regression import along_segment, closed_form, errors, illustration, split, weight_for
from holdfast.theory.regression_study import (
    MIDDLE,
    NAMES,
    PENALISED,
    DescentCurve,
    Figures,
    Geometry,
    RegressionStudy,
)

COLOURS = {"label_annealing": "accent", "l2": "second", "direct": "bad", "pretraining": "third"}
SYMBOLS = {"label_annealing": "circle", "l2": "diamond", "direct": "x"}
SPOTS = {"direct": ("x", "bad"), "θ0": ("star", "ink"), "both tasks' rows together": ("triangle-up", "good")}
"""Results without a lambda -> (symbol, colour)."""
LAMBDAS_SHOWN = (0.3, 1.0, 3.0)


def scientific(value: float | None) -> str:
    """A deviation or a distance: two digits and a power of ten; 0 as it is, "n/a" for what is not finite."""
    if value is None or not math.isfinite(value):
        return number(value)
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")


def drawn(interval: Interval, decimals: int = 4) -> Value:
    """A mean over seeds to draw, with its interval where there are several."""
    low, high = interval.low, interval.high
    bounds = "" if low is None or high is None else f"[{number(low, decimals)}, {number(high, decimals)}]"
    return Value(value=interval.value, low=low, high=high, text=number(interval.value, decimals), interval=bounds)


def in_words(interval: Interval | None, decimals: int = 3) -> str:
    """`0.883 [0.866, 0.901]`, the value without brackets for one seed, "none" for None."""
    if interval is None:
        return "none"
    value = drawn(interval, decimals)
    return f"{value.text} {value.interval}".rstrip()


def _cols(first: str, *titles: str, of: Sequence[str] = ()) -> list[Col]:
    """Columns whose cells stand under their titles, or under `of`."""
    return [Col(first, "name", numeric=False), *(Col(t, k) for t, k in zip(titles, of or titles, strict=True))]


def _method_cols(first: str) -> list[Col]:
    return _cols(first, *(NAMES[m] for m in PENALISED), of=PENALISED)


def _curve(method: str, **more: Any) -> Mark:
    """The line of a method, without interval bars."""
    shared: dict[str, Any] = {"name": NAMES[method], "colour": COLOURS[method], "symbol": SYMBOLS[method], "bars": 0}
    return Mark(**{"kind": "line", "size": 6, "width": 2.2, **shared, **more})


def _banded() -> list[Mark]:
    """The lines of both penalties, with the intervals over seeds as pale areas."""
    return [m for k in PENALISED for m in (Mark(kind="band", y=k, colour=COLOURS[k]), _curve(k, y=k))]


def _level(xs: Sequence[float], ys: Sequence[float], colour: str, **more: Any) -> Mark:
    """A line to read the others by."""
    rows = [{"x": x, "y": y} for x, y in zip(xs, ys, strict=True)]
    return Mark(
        **{"kind": "line", "rows": rows, "colour": colour, "markers": False, "width": 1.4, "dash": "dash", **more}
    )


def _spots() -> list[Mark]:
    """The results without a lambda, by the rows' names."""
    return [
        Mark(where={"spot": name}, name=name, symbol=symbol, colour=colour, size=13, bars=0)
        for name, (symbol, colour) in SPOTS.items()
    ]


# ------------------------------------------------------------------------------------------------------------- geometry


def picture_from_above(*, alike: bool) -> Chart:
    """The plane of the fine-tuning rows in an example: label annealing's straight segment, L2's curve, contours of both
    tasks' errors."""
    problem = illustration(alike=alike)
    theta0, goal = problem.theta0, problem.least_norm
    equal = {m: closed_form(problem, m, weight_for(problem, m, MIDDLE)) for m in PENALISED}
    points: list[tuple[str, np.ndarray, str, str, tuple[str, str]]] = [
        ("θ0", theta0, "star", "ink", ("P θ0", "top center")),
        ("m alone", goal, "x", "bad", ("", "")),
        ("direct", closed_form(problem, "direct"), "x", "bad", ("m (direct)", "bottom center")),
    ]
    for m in PENALISED:
        points.append((f"{NAMES[m]} at {MIDDLE:g} of the start's error", equal[m], SYMBOLS[m], COLOURS[m], ("", "")))
    rows = []
    for name, theta, symbol, colour, (label, side) in points:
        found = errors(problem, theta)
        row = {"name": name, "x": float(theta[0]), "y": float(theta[1]), "symbol": symbol, "colour": colour}
        row |= {"label": label, "side": side, "old": float(found.pretraining), "new": float(found.finetuning)}
        rows.append(row)

    marks = []
    dotted: dict[str, Any] = {"opacity": 0.55, "width": 1}
    solid = {"opacity": 0.55, "width": 1.6, "dash": "solid", "name": f"fine-tuning error {MIDDLE:g} of θ0's"}
    for level, style in ((MIDDLE, solid), (0.6, dotted | {"dash": "dot"}), (1.0, dotted | {"dash": "dot"})):
        ring = _ellipse(goal[:2], problem.finetuning_inputs[:, :2], level * float((problem.residual**2).sum()))
        marks.append(_level(*ring, "bad", **style))
    lost = [float(errors(problem, theta).pretraining) * len(problem.pretraining_inputs) for theta in equal.values()]
    for place, level in enumerate((0.3 * min(lost), *sorted(lost))):
        ring = _ellipse(theta0[:2], problem.pretraining_inputs[:, :2], level)
        name = "" if place else "pre-training error, contours"
        marks.append(_level(*ring, "third", opacity=0.7, width=1.2, name=name))
    for m in PENALISED:
        grid = np.geomspace(1e-3, 1e3, 121) * (1.0 if m == "label_annealing" else 2.0)
        path = closed_form(problem, m, np.concatenate([[0.0], grid, [math.inf]]))
        marks.append(
            _level(path[:, 0].tolist(), path[:, 1].tolist(), COLOURS[m], width=2.2, dash="solid", name=NAMES[m])
        )
    annealed = closed_form(problem, "label_annealing", LAMBDAS_SHOWN)
    named = [
        {"x": float(p[0]), "y": float(p[1]), "label": f"λ {w:g}"} for p, w in zip(annealed, LAMBDAS_SHOWN, strict=True)
    ]
    marks.append(Mark(rows=named, text="label", side="bottom left", size=6))
    marks.append(Mark(colour="@colour", symbol="@symbol", text="label", size=13))

    reach = np.array([theta0[:2], goal[:2]])
    (left, low), (right, high) = (reach.min(0) - 0.75).tolist(), (reach.max(0) + 0.75).tolist()
    what, title = (
        ("feel both directions alike: circles", "old data that feels all directions alike")
        if alike
        else (
            "feel the strong direction more, as the new rows do: ellipses of the same shape",
            "old data that feels them as the new does",
        )
    )
    ridge, annealing = (number(float(errors(problem, equal[m]).pretraining), 3) for m in ("l2", "label_annealing"))
    return Chart(
        title=f"From above: {title}",
        rows=rows,
        columns=[
            Col("Point", "name", numeric=False),
            *_figures(("Strong direction", "x"), ("Weak direction", "y")),
            *_figures(("Fine-tuning error", "new"), ("Pre-training error", "old")),
        ],
        marks=marks,
        x=Axis(title="strong direction (singular value 2)", range=(left, right)),
        y=Axis(title="weak direction (0.6)", range=(low, high), more={"scaleanchor": "x"}),
        caption=(
            f"The old rows {what}. Both big marks fit the new data equally well (one red ellipse); the old error is "
            f"{ridge} for L2 and {annealing} for label annealing. Paths, θ0 and m are the same in both pictures."
        ),
        height=460,
        width="half",
    )


def _figures(*columns: tuple[str, str], decimals: int = 3) -> list[Col]:
    """Columns of plain numbers, as (title, key)."""

    def cell(key: str) -> Any:
        return lambda r: number(r[key], decimals)

    return [Col(title, cell(key)) for title, key in columns]


def picture_from_the_side() -> Chart:
    """The same example from the side: every method moves at the height of theta0; m alone lies on the ground."""
    problem = illustration(alike=True)
    height = float(problem.theta0[2])
    rows = []
    for name, theta, symbol, colour, side in (
        ("θ0", problem.theta0, "star", "ink", "top center"),
        ("direct", closed_form(problem, "direct"), "x", "bad", "top center"),
        ("label annealing, λ 1", closed_form(problem, "label_annealing", 1.0), "circle", "accent", "top center"),
        ("L2, λ 1", closed_form(problem, "l2", 1.0), "diamond", "second", "bottom center"),
        ("m alone", problem.least_norm, "square", "muted", "top right"),
    ):
        place, off = along_segment(problem, theta)
        row = {"name": name, "x": float(place), "off": float(off), "y": float(split(problem, theta).outside[2])}
        rows.append(
            row | {"symbol": symbol, "colour": colour, "side": side, "label": "" if name == "m alone" else name}
        )
    return Chart(
        title="From the side: outside against inside",
        rows=rows,
        columns=[
            Col("Point", "name", numeric=False),
            *_figures(("Along the segment", "x"), ("Off the segment", "off"), ("Height", "y")),
        ],
        marks=[
            _level([0, 1], [height, height], "good", width=2.2, dash="solid"),
            _level([1, 1], [0, height], "muted", width=1.2, dash="dot"),
            _level([-0.05, 1.05], [0, 0], "muted", width=1.2, dash="solid"),
            Mark(colour="@colour", symbol="@symbol", text="label", size=13),
        ],
        x=Axis(
            title="inside the span: from P θ0 (0) to m (1)",
            range=(-0.16, 1.16),
            ticks=ticks_at([0.0, 0.25, 0.5, 0.75, 1.0]),
        ),
        y=Axis(title="outside the span: (I − P) θ", range=(-0.18 * height, 1.32 * height)),
        notes=[
            Note(text="kept: the same height for all three", x=0.5, y=1.2 * height, colour="good"),
            Note(text="m alone: nothing of pre-training", x=0.45, y=0.08 * height),
        ],
        caption=(
            "The same examples from the side. Fine-tuning rows cannot see the height, so gradient descent never "
            "changes it: direct, L2 and label annealing keep it alike. Only the floor plan differs."
        ),
        height=320,
    )


def _ellipse(centre: np.ndarray, rows: np.ndarray, level: float) -> tuple[list[float], list[float]]:
    """Points with `|rows (p - centre)|^2 = level`; `rows` `[2, 2]` of full rank."""
    turn = np.linspace(0, 2 * math.pi, 121)
    ring = centre[:, None] + np.linalg.solve(rows, math.sqrt(level) * np.stack([np.cos(turn), np.sin(turn)]))
    return ring[0].tolist(), ring[1].tolist()


# ---------------------------------------------------------------------------------------------------------- convergence


def convergence(study: RegressionStudy, *, pretraining: bool) -> Chart:
    """Distance to the closed form by step, lines as measured, circles as predicted; logarithmic."""
    runs = [d for d in study.descents if (d.method == "pretraining") == pretraining]
    rows: list[dict[str, Any]] = []
    predicted = []
    for run in runs:
        before = sum(r["method"] == run.method for r in rows)
        rows.append(_descent(run) | {"dash": ("solid", "dash", "dot")[before % 3]} | ({"legend": ""} if before else {}))
        every = slice(None, None, max(1, len(run.at) // 9))
        for step, distance in zip(run.at[every], run.predicted[every], strict=True):
            predicted.append({"x": step, "y": _positive(distance), "colour": COLOURS[run.method]})
    title, caption = (
        "Pre-training, from 0",
        "The curve ends as a straight line: the slowest direction is the last one left. Circles: computed from the "
        "spectrum, without a single step.",
    )
    if not pretraining:
        weights = [significant(r.weight) for r in runs if r.method == "label_annealing"]
        dashes = f"Solid, dashed, dotted: λ {', '.join(weights)}. " if len(weights) == 3 else ""
        title, caption = (
            "Fine-tuning, from θ0",
            "Label annealing goes at the pace of direct fine-tuning at any λ (its bound shrinks by 1 + λ, its gradient "
            f"grows by it). L2 is faster, because λ lifts the weak directions. {dashes}λ of L2 is times the mean "
            "squared singular value.",
        )
    return Chart(
        title=title,
        rows=rows,
        columns=[Col("Objective", "legend name", numeric=False)]
        + [Col(t, t) for t in ("λ", "Step size", "Steps predicted", "Steps taken", "Last distance")],
        marks=[
            Mark(kind="curves", x="at", y="distances"),
            Mark(rows=predicted, name="predicted from the spectrum", symbol="circle-open", colour="@colour", size=7),
        ],
        x=Axis(title="step", from_zero=True),
        y=Axis(title="distance to the closed form / its norm", log=True, more={"exponentformat": "power", "dtick": 2}),
        caption=caption,
        height=380,
        width="half",
    )


def _descent(run: DescentCurve) -> dict[str, Any]:
    name = NAMES[run.method]
    penalised = run.method in PENALISED
    return {
        "method": run.method,
        "name": f"{name}, λ {significant(run.weight)}" if penalised else name,
        "legend": name,
        "legend name": name,
        "colour": COLOURS[run.method],
        "at": run.at,
        "distances": [_positive(v) for v in run.distances],
        "λ": significant(run.applied) if penalised else "",
        "Step size": run.step,
        "Steps predicted": run.predicted_steps,
        "Steps taken": f"{run.steps_needed:,}" if run.steps_needed is not None else f"stopped at {run.at[-1]:,}",
        "Last distance": scientific(run.relative_distance),
    }


def _positive(value: float) -> float | None:
    """What a logarithmic axis can show."""
    return value if value > 0 else None


# -------------------------------------------------------------------------------------------------- errors and frontier


def against_lambda(study: RegressionStudy, *, pretraining: bool) -> Chart:
    """One task's error on its rows against lambda, with bands over seeds; direct and the start as level lines."""

    def row(name: str, weight: float | None, *figures: Figures) -> dict[str, Any]:
        picked = [drawn(f.pretraining if pretraining else f.finetuning) for f in figures]
        return {"name": name, "x": weight, **dict(zip(PENALISED, picked, strict=True))}

    weights = list(study.setting.weights)
    rows = [row("0 (direct)", None, study.direct, study.direct)]
    for points in zip(*(study.curves[m] for m in PENALISED), strict=True):
        rows.append(row(significant(points[0].weight), points[0].weight, *(p.figures for p in points)))
    rows.append(row("∞ (θ0)", None, study.start, study.start))
    ends = [weights[0], weights[-1]]
    whole = [w for w in weights if math.isclose(math.log10(w), round(math.log10(w)), abs_tol=1e-9)]
    levels = [
        _level(ends, [r[PENALISED[0]].value] * 2, colour, name=name)
        for name, r, colour in (("direct (λ → 0)", rows[0], "bad"), ("θ0 (λ → ∞)", rows[-1], "muted"))
    ]
    title, caption = (
        (
            "Pre-training error: what is forgotten",
            "On the pre-training rows, which θ0 fits exactly; an error of 1 is that of knowing nothing.",
        )
        if pretraining
        else (
            "Fine-tuning error: what is not yet learnt",
            "On the fine-tuning rows, which direct fine-tuning fits exactly.",
        )
    )
    return Chart(
        title=title,
        rows=rows,
        columns=_method_cols("λ"),
        marks=[*_banded(), *levels],
        x=Axis(title="λ", log=True, ticks=ticks_at((weights if len(weights) <= 7 else whole) or ends)),
        y=Axis(title="mean squared error", from_zero=True),
        caption=f"{caption} λ of L2 is times the mean squared singular value. Bands: {_intervals(study)}.",
        height=340,
        width="half",
    )


def frontier(study: RegressionStudy) -> Chart:
    """Pre-training error at equal fine-tuning error, on the rows."""

    def row(name: str, x: float, values: Mapping[str, Interval], **more: Any) -> dict[str, Any]:
        held = {m: drawn(values[m]) for m in PENALISED}
        return {"name": name, "x": x, **held, "y": held[PENALISED[0]], **more}

    def spot(spot: str, name: str, x: float, figures: Figures) -> dict[str, Any]:
        return row(name, x, dict.fromkeys(PENALISED, figures.pretraining), spot=spot)

    rows = [spot("direct", "0 % (direct)", 0.0, study.direct)]
    for e in study.equal_errors:
        ratio = "none" if e.ratio is None else drawn(e.ratio, 3)
        rows.append(row(f"{100 * e.share:g} %", e.share, e.pretraining, ratio=ratio, verdict=e.verdict))
    rows.append(spot("θ0", "100 % (θ0)", 1.0, study.start))
    both = study.joint.finetuning.value / (study.start.finetuning.value or 1.0)
    both_tasks = spot("both tasks' rows together", f"{number(100 * both, 1)} % (both tasks' rows)", both, study.joint)
    return Chart(
        title="Frontier on the rows",
        rows=[*rows, both_tasks],
        columns=[
            *_cols("Fine-tuning error left", "Label annealing", "L2", of=PENALISED),
            Col("L2 / label annealing", "ratio"),
            Col("Verdict", "verdict", numeric=False),
        ],
        marks=[
            *(
                m
                for k in PENALISED
                for m in (Mark(kind="band", rows=rows, y=k, colour=COLOURS[k]), _curve(k, rows=rows, y=k, size=8))
            ),
            *_spots(),
        ],
        x=Axis(title="fine-tuning error left, share of θ0's", range=(-0.04, 1.04), more={"tickformat": ".0%"}),
        y=Axis(title="pre-training error", from_zero=True),
        caption=(
            f"On the rows. Down and left is better. Bands: {_intervals(study)}. Problems differ from each other as "
            "well, so the ratio in the table, formed within each problem, is the sharper comparison."
        ),
        height=400,
        width="half",
    )


def fresh_frontier(study: RegressionStudy) -> Chart:
    """The same on fresh inputs of both tasks, where interpolated noise counts too."""

    def row(name: str, figures: Figures, **more: Any) -> dict[str, Any]:
        return {"name": name, "x": drawn(figures.fresh_finetuning, 3), "y": drawn(figures.fresh_pretraining, 3), **more}

    start, direct, both = (
        row("both tasks' rows" if name.startswith("both") else name, figures, spot=name)
        for name, figures in (
            ("θ0", study.start),
            ("direct", study.direct),
            ("both tasks' rows together", study.joint),
        )
    )
    rows, marks = [start, direct, both], []
    for m in PENALISED:
        points = [row(f"{NAMES[m]}, λ {significant(p.weight)}", p.figures) for p in study.curves[m]]
        rows += points
        marks.append(_curve(m, rows=[direct, *points, start], size=7))
    caption = (
        "Expected error on inputs nobody trained on, without the noise of their targets; means over seeds, intervals "
        "in the table. θ0 is not at 0: fewer rows than parameters leave part of the truth unseen."
    )
    if study.joint.fresh_pretraining.value > study.direct.fresh_pretraining.value:
        caption += (
            " Rows fitted exactly are not tasks known: the triangle is worse than direct fine-tuning on old inputs "
            "here."
        )
    return Chart(
        title="Frontier on fresh inputs",
        rows=rows,
        columns=_cols("Parameters", "Fine-tuning", "Pre-training", of=("x", "y")),
        marks=[*marks, *_spots()],
        x=Axis(title="fine-tuning error on fresh inputs"),
        y=Axis(title="pre-training error on fresh inputs"),
        caption=caption,
        height=400,
        width="half",
    )


def _intervals(study: RegressionStudy) -> str:
    if study.setting.seeds == 1:
        return "none, there is one seed"
    return f"{100 * study.setting.confidence:g} % intervals of the mean over {study.setting.seeds} seeds"


# ------------------------------------------------------------------------------------------------------------------ why


def seen_by_pretraining(study: RegressionStudy) -> Chart | None:
    """Sensitivity of the pre-training error against the squared singular value, direction by direction; None for a
    single direction."""
    shown = study.directions
    if not math.isfinite(shown.slope):
        return None
    squares, felt = np.array(shown.squares), np.array(shown.sensitivities)
    ends = [float(squares.min()), float(squares.max())]
    middle, level = (float(np.exp(np.log(v).mean())) for v in (squares, felt))
    return Chart(
        title="What pre-training feels",
        rows=[
            {"name": str(i), "x": s, "y": f}
            for i, (s, f) in enumerate(zip(shown.squares, shown.sensitivities, strict=True), 1)
        ],
        columns=[
            Col("Direction", "name", numeric=False),
            *_figures(("Squared singular value", "x")),
            *_figures(("Felt", "y"), decimals=4),
        ],
        marks=[
            _level(ends, [level, level], "second", width=1.6, name="fits L2: alike"),
            _level(
                ends,
                [level * e / middle for e in ends],
                "accent",
                width=1.6,
                name="fits label annealing: proportional",
            ),
            Mark(name="directions", colour="third", size=7),
        ],
        x=_log_axis("squared singular value", squares),
        y=_log_axis("felt by pre-training", felt),
        caption=(
            "First problem. Up: how much pre-training error a unit step along a singular direction of the fine-tuning "
            f"rows costs. The slope on these logarithmic axes is {number(shown.slope, 2)}: at 0 L2's penalty is the "
            "right one, at 1 label annealing's."
        ),
        height=360,
        width="half",
    )


def _log_axis(title: str, values: np.ndarray) -> Axis:
    return Axis(title=title, log=True, ticks=log_ticks(float(values.min()), float(values.max())))


def learnt_by_direction(study: RegressionStudy) -> Chart:
    """The share of the residual that each method learns in every direction, at equal fine-tuning error."""
    shown = study.directions
    learnt = [
        dict(zip(PENALISED, shares, strict=True)) for shares in zip(*map(shown.learnt.get, PENALISED), strict=True)
    ]
    return Chart(
        title="What each method learns",
        rows=[{"name": number(s, 3), "x": s, **shares} for s, shares in zip(shown.squares, learnt, strict=True)],
        columns=[
            Col("Squared singular value", "name", numeric=False),
            *_figures(*((NAMES[m], m) for m in PENALISED), decimals=4),
        ],
        marks=[_curve(m, y=m) for m in PENALISED],
        x=_log_axis("squared singular value", np.array(shown.squares)),
        y=Axis(title="share learnt", range=(0, 1.02), more={"tickformat": ".0%"}),
        caption=(
            f"First problem, both at {100 * MIDDLE:g} % of θ0's fine-tuning error. Label annealing learns the same "
            "share of every direction. L2 learns the strong ones first; it saves where a step of the prediction needs "
            "a long step of the parameters."
        ),
        height=360,
        width="half",
    )


def geometry_chart(geometries: Sequence[Geometry], confidence: float) -> Chart | None:
    """Who forgets less, against the slope, over geometries; None where there is nothing to compare."""
    rows: list[dict[str, Any]] = [
        {
            "decay": g.decay,
            "name": f"{g.decay:g}",
            "overlap": f"{g.overlap:g}",
            "x": known(g.slope.value),
            "slope": drawn(g.slope, 2),
            "y": None if g.ratio is None else drawn(g.ratio, 3),
            "ratio": "none" if g.ratio is None else drawn(g.ratio, 3),
            "verdict": g.verdict,
            "n": g.slope.n,
        }
        for g in geometries
    ]
    held = [r for r in rows if r["x"] is not None and r["y"] is not None]
    if not held:
        return None
    n = held[0]["n"]
    bars = f"Bars: {100 * confidence:g} % intervals over {n} seeds." if n > 1 else "One seed, no intervals."
    shared: dict[str, Any] = {"size": 10, "bars": 1.2}
    return Chart(
        title="Which penalty fits which geometry",
        rows=rows,
        columns=[
            *_cols("Decay", "Overlap", "Slope", "Ratio", of=("overlap", "slope", "ratio")),
            Col("Verdict", "verdict", numeric=False),
        ],
        marks=[
            Mark(where={"decay": decay}, name=f"decay {decay:g}", symbol=SHAPES[i % 5], colour=PALETTE[i % 5], **shared)
            for i, decay in enumerate(sorted({r["decay"] for r in held}))
        ],
        x=Axis(title="slope of what pre-training feels"),
        y=Axis(
            title="pre-training error, L2 / label annealing",
            log=True,
            ticks=ticks_at([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]),
        ),
        rules=[Rule(y=1, dash="dash")],
        notes=[
            _corner("above: label annealing forgets less", 0.01, 0.99, "left", "top"),
            _corner("below: L2 forgets less", 0.99, 0.01, "right", "bottom"),
        ],
        caption=(
            f"Each mark is one kind of problem, at {100 * MIDDLE:g} % of θ0's fine-tuning error. Slope 0: alike; 1: in "
            f"proportion. {bars}"
        ),
        height=400,
    )


def _corner(text: str, x: float, y: float, side: str, end: str) -> Note:
    return Note(text=text, x=x, y=y, paper=True, more={"xanchor": side, "yanchor": end})
