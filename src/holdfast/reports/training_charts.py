"""The log of a training run as charts: losses, rates, a budget's trajectory, the methods' own
figures; and how far each layer moved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.records.measure import number
from holdfast.records.run import LayerDistance
from holdfast.reports.blocks import present
from holdfast.reports.charts import SMALL, Axis, Chart, Mark, finite, heads, log_ticks
from holdfast.reports.format import moved, significant, signs_kept

Log = Sequence[Mapping[str, Any]]
"""Rows of `metrics.jsonl`."""
NOT_LOGGED = {
    "step",
    "epoch",
    "tokens",
    "seconds",
    "num_tokens",
    "mean_token_accuracy",
    "total_flos",
}
"""Keys of the log that say where a row stands, not what a method did."""
DRAWN = {"loss", "ce", "kl", "learning_rate", "grad_norm", "token_accuracy"}
BUDGET_KEYS = frozenset({"budget_constraint", "budget_limit", "budget_strength"})


class Curve(NamedTuple):
    """One quantity of the log."""

    key: str
    name: str
    colour: str
    marked: bool = False
    """Whether its points are drawn."""


LOSS, CROSS_ENTROPY = Curve("loss", "loss", "accent"), Curve("ce", "cross-entropy", "second")
RATE, GRADIENT = (
    Curve("learning_rate", "learning rate", "accent"),
    Curve("grad_norm", "gradient norm", "accent"),
)
KL = (Curve("kl", "KL", "second"), Curve("eval_kl", "held-out KL", "good", True))
ACCURACY = (
    Curve("token_accuracy", "token accuracy", "accent"),
    Curve("eval_token_accuracy", "held-out", "good", True),
)
BUDGET = (Curve("budget_constraint", "measured", "second"), Curve("budget_limit", "budget", "bad"))
ON_THE_WAY = (
    "The budget applies to the end of the run. Earlier, the measured value may exceed the budget, "
    "even if the method's strength is right. As the learning rate falls, the measured value falls "
    "to the budget."
)


def training_charts(metrics: Log, retention: Log = ()) -> list[Chart]:
    """Loss, KL, learning rate, gradient norm, token accuracy, a budget's trajectory and the
    methods' own figures, as far as they were logged.

    Args:
        metrics: rows of `metrics.jsonl`.
        retention: the run's methods as recorded; tells what a budget is counted in.
    """
    numbers = set()
    for row in metrics:
        numbers |= {key for key, value in row.items() if type(value) in (int, float)}
    # Without a divergence the loss is the cross-entropy, and drawing it twice says nothing.
    loss = [LOSS if "loss" in numbers else CROSS_ENTROPY._replace(colour="accent")]
    loss += [CROSS_ENTROPY] if "kl" in numbers else []
    validation = (
        ("eval_ce", "held-out cross-entropy")
        if {"kl", "eval_ce"} <= numbers
        else ("eval_loss", "held-out loss")
    )
    loss.append(Curve(*validation, "good", True))
    charts = [logged_curves(metrics, loss, "Loss", "nats/token", may_be_log=True)]
    charts.append(logged_curves(metrics, KL, "KL to the teacher", "nats/token"))
    charts.append(logged_curves(metrics, [RATE], "Learning rate", height=SMALL))
    charts.append(
        logged_curves(metrics, [GRADIENT], "Gradient norm", "L2", may_be_log=True, height=SMALL)
    )
    charts.append(logged_curves(metrics, ACCURACY, "Token accuracy", "fraction", height=SMALL))
    for key in sorted(numbers - NOT_LOGGED - DRAWN - BUDGET_KEYS):
        if not key.startswith(("eval_", "train_")):
            charts.append(
                logged_curves(
                    metrics, [Curve(key, key, "third")], key.replace("_", " "), height=SMALL
                )
            )
    return present([*charts, *budget_charts(metrics, retention)])


def budget_charts(metrics: Log, retention: Log = ()) -> list[Chart | None]:
    """A budget's constraint against its limit, and the strength that was found (see
    `retention.methods.budget`)."""
    in_points = any(
        m.get("method") == "budget" and m.get("metric_drop") is not None for m in retention
    )
    unit, strength = (
        "points" if in_points else "nats/token",
        Curve("budget_strength", "strength", "third"),
    )
    return [
        logged_curves(metrics, BUDGET, "Forgetting against its budget", unit, caption=ON_THE_WAY),
        logged_curves(
            metrics, [strength], "Strength that the budget chose", "coefficient", may_be_log=True
        ),
    ]


def logged_curves(
    metrics: Log,
    curves: Iterable[Curve],
    title: str,
    unit: str = "",
    *,
    may_be_log: bool = False,
    **options: Any,
) -> Chart | None:
    """Logged quantities against the optimiser step; None where none was logged.

    Args:
        metrics: rows of the log.
        curves: what to draw.
        title: of the chart.
        unit: of all of them.
        may_be_log: on a logarithmic axis where positive values span more than a factor of 20.
        options: of `Chart`; a caption stands first below.
    """
    rows: list[dict[str, Any]] = []
    values: list[float] = []
    gaps = 0
    for curve in curves:
        xs, ys = [], []
        for row in metrics:
            if "step" in row and row.get(curve.key) is not None:
                xs.append(row["step"])
                ys.append(row[curve.key])
        if xs:
            numbers = present(map(finite, ys))
            line = {"name": curve.name, "colour": curve.colour, "x": xs, "y": ys, "logged": len(ys)}
            line |= {"markers": curve.marked or len(xs) < 20, "smooth": not curve.marked}
            rows.append(line | _ends(numbers, ys))
            values += numbers
            gaps += len(ys) - len(numbers)
    if not rows:
        return None
    lowest, highest = (min(values), max(values)) if values else (0.0, 0.0)
    log = may_be_log and lowest > 0 and highest / lowest > 20
    y = Axis(title=unit, log=log, ticks=log_ticks(lowest, highest) if log else ())
    value_is = "value is" if gaps == 1 else "values are"
    notes = [options.pop("caption", ""), "Logarithmic axis." if log else ""]
    notes.append(f"{gaps} logged {value_is} not finite and shown as gaps." if gaps else "")
    return Chart(
        title=title,
        rows=rows,
        columns=CURVE_COLUMNS,
        marks=[Mark(kind="curves", width=2.2)],
        x=Axis(title="optimiser step"),
        y=y,
        caption=" ".join(filter(None, notes)),
        layout={"hovermode": "x unified"},
        **options,
    )


CURVE_COLUMNS = heads(
    {
        "Curve": "name",
        "First": "first",
        "Lowest": "low",
        "Highest": "high",
        "Last": "last",
        "Values logged": "logged",
    }
)


def _ends(numbers: Sequence[float], ys: Sequence[float]) -> dict[str, str]:
    """First, lowest, highest and last value as text."""
    if not numbers:
        return dict.fromkeys(("first", "low", "high", "last"), "n/a")
    ends = {"first": ys[0], "low": min(numbers), "high": max(numbers), "last": ys[-1]}
    return {name: significant(value) for name, value in ends.items()}


# ----------------------------------------------------------------------------------------- distance


DISTANCE = {
    "Layer": "layer",
    "Relative L2": "relative",
    "L2": "l2",
    "Cosine": "cosine",
    "Signs kept": "signs",
}
DISTANCE |= {"Parameters": "parameters"}
_LAYER_AXIS = Axis(title="layer", more={"type": "category", "tickangle": "auto"})
_NORM_AXIS = Axis(title="% of the layer's norm", from_zero=True)
LAYER_CHART = Chart(
    title="Distance from the initial model, layer by layer",
    rows=(),
    columns=heads(DISTANCE),
    marks=[Mark(kind="columns", x="layer", colour="@colour")],
    x=_LAYER_AXIS,
    y=_NORM_AXIS,
    caption=(
        "L2 norm of (result \u2212 initial model), divided by the L2 norm of the initial model, per "
        "layer. The other colour shows weights outside the layers."
    ),
    height=290,
    layout={"bargap": 0.25},
)


def layer_chart(distance: Sequence[LayerDistance]) -> Chart | None:
    """Relative L2 distance of each layer from the start, as bars in the order of the model; signs
    kept where they were recorded."""
    if not distance:
        return None
    rows, endless, signs = [], [], False
    for d in distance:
        colour = "accent" if d.layer.isdigit() else "second"
        row = {
            "layer": d.layer,
            "y": 100 * d.relative,
            "colour": colour,
            "parameters": f"{d.parameters:,}",
        }
        rows.append(row | distance_texts(d))
        signs |= math.isfinite(d.sign_agreement)
        if not math.isfinite(d.relative):
            endless.append(d.layer)
    caption = LAYER_CHART.caption
    if endless:
        caption += f" Not drawn, because the initial norm is 0: {', '.join(endless)}."
    columns = dict(DISTANCE)
    if not signs:
        del columns["Signs kept"]
    return dataclasses.replace(LAYER_CHART, rows=rows, columns=heads(columns), caption=caption)


def distance_texts(distance: Any) -> dict[str, str]:
    """How far a layer or a tensor moved, as every table shows it."""
    return {
        "relative": moved(distance.relative),
        "l2": significant(float(distance.l2)),
        "cosine": number(distance.cosine, 6),
        "signs": signs_kept(distance.sign_agreement),
    }
