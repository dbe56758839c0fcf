"""Plotly figures as plain dictionaries, and the table that says the same when no script runs.

Colours are CSS custom properties (`var(--good)`); `page.js` replaces them by their values, so that one style sheet
decides the colours of text and plots, light and dark. No plotly import is needed to describe a figure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.run import LayerDistance
from holdfast.reports.figures import Row, number, significant
from holdfast.reports.markup import Column

MOST_POINTS = 1200
"""A curve is drawn with at most this many points, so that a long run does not make a heavy page."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with its words and its numbers."""

    title: str
    figure: dict[str, Any]
    """`{"data": [...], "layout": {...}}`."""
    caption: str
    columns: list[Column]
    rows: list[list[str]]
    height: int = 300
    """In CSS pixels; the width follows the page."""


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis in the house style."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "var(--muted)"}},
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "tickfont": {"size": 11, "color": "var(--muted)"},
        "automargin": True,
        "exponentformat": "e",
        **more,
    }


def layout(height: int, *, xaxis: dict[str, Any], yaxis: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout in the house style: transparent, so that the page's surface shows through."""
    return {
        "height": height,
        "margin": {"l": 12, "r": 12, "t": 12, "b": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {
            "bgcolor": "var(--raised)",
            "bordercolor": "var(--line)",
            "font": {"color": "var(--ink)", "size": 12},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--accent)"},
        "showlegend": False,
        "xaxis": xaxis,
        "yaxis": yaxis,
        **more,
    }


def row_note(text: str, place: float, side: int, tint: str) -> dict[str, Any]:
    """Words above a row of a plot: side 0 at its left edge, 1 at its right. `text` is as `plain` leaves it."""
    return {
        "xref": "paper",
        "x": side,
        "y": place,
        "yshift": 17,
        "xanchor": "left" if side == 0 else "right",
        "showarrow": False,
        "text": text,
        "font": {"size": 12, "color": tint},
    }


LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": 1.02,
    "yanchor": "bottom",
    "font": {"size": 12, "color": "var(--ink)"},
    "bgcolor": "rgba(0,0,0,0)",
}


def plain(text: str) -> str:
    """Text for inside a figure: plotly reads a little markup, `$...$` as TeX and `%{...}` as a variable there, so all
    are taken out of it."""
    return (
        text.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("$", "&#36;")
        .replace("%{", "&#37;{")
    )


def finite(value: Any) -> float | None:
    """A number plotly can draw, or None for a gap."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


# ---------------------------------------------------------------------------------------------------------- gains


def forest(rows: Sequence[Row]) -> Chart | None:
    """Gains with their paired intervals, one line a measure, right of zero is better.

    Measures of one unit are drawn in that unit; otherwise each is drawn in percent of its value before, and those for
    which that does not exist (a start of 0) are named in the caption.
    """
    primary = [r for r in rows if r.raw.primary] or list(rows)
    units = {r.unit for r in primary}
    relative = len(units) > 1
    drawn = [r for r in primary if math.isfinite(r.raw.gain) and (not relative or r.to_relative(1.0) is not None)]
    if not drawn:
        return None
    left_out = [r.label for r in primary if r not in drawn]

    def scale(r: Row, value: float) -> float:
        return (r.to_relative(value) or 0.0) if relative else value

    data, notes = [], []
    for place, r in enumerate(reversed(drawn)):
        gain = scale(r, r.raw.gain)
        low, high = (scale(r, v) if math.isfinite(v) else gain for v in r.gain_interval)
        colour = f"var(--{r.tone})"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [gain],
                "y": [place],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - gain],
                    "arrayminus": [gain - low],
                    "color": colour,
                    "thickness": 2,
                    "width": 5,
                },
                "marker": {
                    "size": 11,
                    "color": colour if r.verdict != "within noise" else "var(--surface)",
                    "line": {"color": colour, "width": 2},
                    "symbol": {"target": "diamond", "source": "circle"}.get(r.raw.suite, "square"),
                },
                "hovertemplate": f"{plain(r.label)}<br>{r.before} → {r.after} {plain(r.unit)}<br>difference "
                f"{r.difference} {r.interval}<br>"
                f"{r.verdict}, p {r.p}, n {r.n}<extra></extra>",
            }
        )
        shown = r.relative if relative else number(r.raw.gain, 3, sign=True)
        for text, side, tint in ((plain(shorten(r.label, 34)), 0, "var(--ink)"), (shown, 1, colour)):
            notes.append(row_note(text, place, side, tint))
    unit = "% of the value before" if relative else next(iter(units))
    height = 70 + 46 * len(drawn)
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(
                f"gain ({unit}) → better",
                zeroline=True,
                zerolinewidth=2,
                ticksuffix=" %" if relative else "",
                rangemode="tozero",
            ),
            yaxis=axis(visible=False, range=[-0.6, len(drawn) - 0.2], fixedrange=True),
            annotations=notes,
        ),
    }
    caption = (
        f"Right of zero is better whatever the metric's direction. Bars: paired {100 * drawn[0].raw.confidence:g} % "
        f"intervals over the evaluated"
        " samples. Filled: the interval excludes zero. Diamonds: target, circles: source."
    )
    if left_out:
        caption += f" Not drawn, because a start of 0 has no relative change: {', '.join(left_out)}."
    columns = [Column(title="Measure"), Column(title=f"Gain ({unit})", numeric=True), Column(title="Verdict")]
    table = [[r.label, r.relative if relative else number(r.raw.gain, 4, sign=True), r.verdict] for r in drawn]
    return Chart(
        title="Gains with intervals", figure=figure, caption=caption, columns=columns, rows=table, height=height
    )


# --------------------------------------------------------------------------------------------------------- curves


def thin(
    xs: Sequence[float], ys: Sequence[float | None], most: int = MOST_POINTS
) -> tuple[list[float], list[float | None]]:
    """At most about `most` points: each bucket keeps its lowest and highest, in order, so that spikes and gaps
    survive."""
    if len(xs) <= most:
        return list(xs), list(ys)
    size = math.ceil(2 * len(xs) / most)
    keep: list[int] = []
    for start in range(0, len(xs), size):
        bucket = range(start, min(start + size, len(xs)))
        known = [(y, i) for i in bucket if (y := ys[i]) is not None]
        keep += sorted({min(known)[1], max(known)[1]}) if known else [start]
    return [xs[i] for i in keep], [ys[i] for i in keep]


def smooth(ys: Sequence[float | None], window: int) -> list[float | None]:
    """Trailing mean over `window` logged values, gaps left out of it."""
    out: list[float | None] = []
    for i in range(len(ys)):
        known = [y for y in ys[max(0, i - window + 1) : i + 1] if y is not None]
        out.append(sum(known) / len(known) if known else None)
    return out


SMOOTHED_FROM = 60
"""Logged values from which on a trailing mean is drawn over the raw curve."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One logged quantity."""

    key: str
    name: str
    colour: str
    markers: bool = False


SMALL = 210
"""Height of the charts that only accompany the loss, in CSS pixels."""


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5 times the powers of ten, or at the powers alone where that would be
    many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}


def curves(
    metrics: Sequence[Mapping[str, Any]],
    wanted: Sequence[Curve],
    *,
    title: str,
    unit: str,
    caption: str = "",
    height: int = 300,
    may_be_log: bool = False,
) -> Chart | None:
    """Logged quantities against the optimiser step; `may_be_log`: on a logarithmic axis where positive values span more
    than a factor of 20."""
    data: list[dict[str, Any]] = []
    everything: list[float] = []
    rows: list[list[str]] = []
    not_finite = 0
    for curve in wanted:
        points = [(m["step"], m[curve.key]) for m in metrics if "step" in m and m.get(curve.key) is not None]
        if not points:
            continue
        xs = [p[0] for p in points]
        ys = [finite(p[1]) for p in points]
        not_finite += ys.count(None)
        known = [y for y in ys if y is not None]
        everything += known
        if known:
            rows.append(
                [
                    curve.name,
                    significant(points[0][1]),
                    significant(min(known)),
                    significant(max(known)),
                    significant(points[-1][1]),
                    str(len(points)),
                ]
            )
        else:
            rows.append([curve.name, "n/a", "n/a", "n/a", "n/a", str(len(points))])
        window = max(5, len(points) // 40)
        style = {"color": f"var(--{curve.colour})", "width": 2.2}
        hover = f"{curve.name} %{{y:.5g}}<extra></extra>"
        if len(points) >= SMOOTHED_FROM and not curve.markers:
            x, y = thin(xs, ys)
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": x,
                    "y": y,
                    "line": {**style, "width": 1},
                    "opacity": 0.3,
                    "hoverinfo": "skip",
                    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--accent)"},
                    "showlegend": False,
                }
            )
            ys = smooth(ys, window)
        x, y = thin(xs, ys)
        mode = "lines+markers" if curve.markers or len(points) < 20 else "lines"
        data.append(
            {
                "type": "scatter",
                "mode": mode,
                "x": x,
                "y": y,
                "name": curve.name,
                "line": style,
                "marker": {"size": 5},
                "hovertemplate": hover,
            }
        )
    if not data:
        return None
    log = may_be_log and bool(everything) and min(everything) > 0 and max(everything) / min(everything) > 20
    words = [caption] if caption else []
    if log:
        words.append("Logarithmic axis.")
    if not_finite:
        words.append(
            f"{not_finite} logged {'value is' if not_finite == 1 else 'values are'} not finite and shown as gaps."
        )
    named = [d for d in data if d.get("name")]
    figure: dict[str, Any] = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("optimiser step", zeroline=False),
            yaxis=axis(unit, zeroline=False, **(_log_ticks(min(everything), max(everything)) if log else {})),
            hovermode="x unified",
            showlegend=len(named) > 1,
            legend=LEGEND,
        ),
    }
    if len(named) > 1:
        figure["layout"]["margin"] = {"l": 12, "r": 12, "t": 30, "b": 12}
    columns = [
        Column(title="Curve"),
        *(Column(title=t, numeric=True) for t in ("First", "Lowest", "Highest", "Last", "Values logged")),
    ]
    return Chart(title=title, figure=figure, caption=" ".join(words), columns=columns, rows=rows, height=height)


PLAIN_KEYS = {"step", "epoch", "tokens", "seconds", "num_tokens", "mean_token_accuracy", "total_flos"}
DRAWN_KEYS = {"loss", "ce", "kl", "learning_rate", "grad_norm", "token_accuracy"}


def training_charts(metrics: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Loss, KL, learning rate, gradient norm, token accuracy and the methods' own figures, as far as they were
    logged."""

    def logged(key: str) -> bool:
        return any(m.get(key) is not None for m in metrics)

    def held_out(key: str, name: str) -> Curve:
        return Curve(key=key, name=name, colour="good", markers=True)

    # Without a divergence the loss is the cross-entropy, and drawing it twice says nothing.
    loss = [
        Curve(
            key="loss" if logged("loss") else "ce", name="loss" if logged("loss") else "cross-entropy", colour="accent"
        )
    ]
    if logged("kl"):
        loss.append(Curve(key="ce", name="cross-entropy", colour="second"))
    if logged("kl") and logged("eval_ce"):
        loss.append(held_out("eval_ce", "held-out cross-entropy"))
    else:
        loss.append(held_out("eval_loss", "held-out loss"))
    charts = [
        curves(metrics, loss, title="Loss", unit="nats/token", may_be_log=True),
        curves(
            metrics,
            [Curve(key="kl", name="KL", colour="second"), held_out("eval_kl", "held-out KL")],
            title="KL to the teacher",
            unit="nats/token",
        ),
        curves(
            metrics,
            [Curve(key="learning_rate", name="learning rate", colour="accent")],
            title="Learning rate",
            unit="",
            height=SMALL,
        ),
        curves(
            metrics,
            [Curve(key="grad_norm", name="gradient norm", colour="accent")],
            title="Gradient norm",
            unit="L2",
            height=SMALL,
            may_be_log=True,
        ),
        curves(
            metrics,
            [
                Curve(key="token_accuracy", name="token accuracy", colour="accent"),
                held_out("eval_token_accuracy", "held-out"),
            ],
            title="Token accuracy",
            unit="fraction",
            height=SMALL,
        ),
    ]
    numbers = {k for m in metrics for k, v in m.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    for key in sorted(numbers - PLAIN_KEYS - DRAWN_KEYS):
        if not key.startswith(("eval_", "train_")):
            charts.append(
                curves(
                    metrics,
                    [Curve(key=key, name=plain(key), colour="third")],
                    title=key.replace("_", " "),
                    unit="",
                    height=SMALL,
                )
            )
    return [c for c in charts if c is not None]


# ------------------------------------------------------------------------------------------------------- distances


def moved(relative: float) -> str:
    """A relative distance in percent with three significant digits: moves of a millionth are as common as moves of a
    tenth."""
    return f"{significant(float(f'{100 * relative:.3g}'))} %" if math.isfinite(relative) else number(relative)


def signs_kept(share: float) -> str:
    """A share of parameters in percent, two decimals."""
    return f"{number(100 * share, 2)} %" if math.isfinite(share) else number(share)


def layer_chart(distance: Sequence[LayerDistance]) -> Chart | None:
    """Relative L2 distance of each layer from the start, as bars in the order of the model; signs kept where they were
    recorded."""
    if not distance:
        return None
    names = [d.layer for d in distance]
    values = [finite(100 * d.relative) for d in distance]
    endless = [n for n, d in zip(names, distance, strict=True) if not math.isfinite(d.relative)]
    signs = any(math.isfinite(d.sign_agreement) for d in distance)
    height = 290
    figure = {
        "data": [
            {
                "type": "bar",
                "x": [plain(n) for n in names],
                "y": values,
                "marker": {
                    "color": ["var(--accent)" if d.layer.isdigit() else "var(--second)" for d in distance],
                    "cornerradius": 3,
                },
                "customdata": [
                    [significant(float(d.l2)), number(d.cosine, 6), f"{d.parameters:,}", signs_kept(d.sign_agreement)]
                    for d in distance
                ],
                "hovertemplate": "layer %{x}: %{y:.3g} %<br>L2 %{customdata[0]}<br>cosine %{customdata[1]}"
                + ("<br>signs kept %{customdata[3]}" if signs else "")
                + "<br>%{customdata[2]} parameters<extra></extra>",
            }
        ],
        "layout": layout(
            height,
            xaxis=axis("layer", type="category", tickangle="auto"),
            yaxis=axis("% of the layer's norm", rangemode="tozero"),
            bargap=0.25,
        ),
    }
    caption = "L2 norm of (result - start) over the L2 norm of the start, per layer; other colour: outside the blocks.".replace(
        " - ", " \u2212 "
    )
    if endless:
        caption += f" Not drawn, because the start's norm is 0: {', '.join(endless)}."
    titles = ("Relative L2", "L2", "Cosine", *(["Signs kept"] if signs else []), "Parameters")
    columns = [Column(title="Layer"), *(Column(title=t, numeric=True) for t in titles)]
    rows = [
        [
            n,
            moved(d.relative),
            significant(float(d.l2)),
            number(d.cosine, 6),
            *([signs_kept(d.sign_agreement)] if signs else []),
            f"{d.parameters:,}",
        ]
        for n, d in zip(names, distance, strict=True)
    ]
    return Chart(
        title="Distance from the start, layer by layer",
        figure=figure,
        caption=caption,
        columns=columns,
        rows=rows,
        height=height,
    )
