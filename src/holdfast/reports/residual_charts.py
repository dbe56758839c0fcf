"""Plots of an update or a study of the instruction residual: scores against new tokens, compute and scale, siblings,
and what an update kept.

The axis of new tokens has the original at its left end and is logarithmic from the smallest budget on; between the two
lies a gap of one decade's width. Bars are the intervals of each model alone. Where the paper (004) prints a figure of a
model made in the same way, a hollow point shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.records.evaluation import Metric
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ResidualRecord, ScaleChoice
from holdfast.reports import paper_004
from holdfast.reports.evaluation_charts import squeeze
from holdfast.reports.figures import decimals_for, interval_text, number, significant
from holdfast.reports.legacy_charts import LEGEND, Chart, axis, layout, plain
from holdfast.reports.markup import Column
from holdfast.reports.residual_figures import Block, FigureTable, Group, Studied, flops_text, tokens_text
from holdfast.reports.residual_scores import Score, figure_text

STYLES = {
    BASE: ("accent", "circle"),
    INSTRUCT: ("second", "square"),
    "residual": ("third", "diamond"),
    DERIVED: ("fourth", "triangle-up"),
    "others": ("flat", "pentagon"),
}
"""Kind of model -> (colour, symbol), the same on every plot of a page."""
DASHES = ("solid", "dash", "dot", "dashdot")
ALIKE = 1.05
"""Compute that differs by less than this factor is one place of a plot."""
EIGHT_BILLION = (7.5e9, 8.5e9)
"""Between so many parameters the paper's estimate for instruction tuning is drawn: it is of an 8B model."""
INTERVALS = "Bars: {level:g} % intervals over the samples of each model alone{seeds}."


def kind_of(m: Studied) -> str:
    """Key of `STYLES`."""
    if m.model.residual is not None:
        return "residual"
    return m.model.start if m.model.start in STYLES else "others"


def _drawn(value: float, score: Score) -> float:
    return float(f"{100 * value if score.share else value:.6g}")


def _ends(metric: Metric, score: Score) -> tuple[float, float]:
    """Distances from the value to the interval's ends, as drawn; 0 where there is none."""
    if metric.interval is None or not all(math.isfinite(v) for v in metric.interval):
        return 0.0, 0.0
    low, high = metric.interval
    return _drawn(max(0.0, metric.value - low), score), _drawn(max(0.0, high - metric.value), score)


def _error(metrics: Sequence[Metric], score: Score, colour: str) -> dict[str, Any]:
    ends = [_ends(m, score) for m in metrics]
    return {
        "type": "data",
        "symmetric": False,
        "arrayminus": [low for low, _ in ends],
        "array": [high for _, high in ends],
        "color": f"var(--{colour})",
        "thickness": 1.4,
        "width": 3,
    }


def _hover(group: Group, metric: Metric, score: Score) -> str:
    value, interval = figure_text(metric, score)
    m = group.model
    spent = f"<br>{flops_text(m.flops)}" if m.flops else ""
    tokens = f"<br>{tokens_text(group.tokens)} new tokens" if group.tokens else ""
    seeds = f"<br>{len(group.members)} seeds" if len(group.members) > 1 else ""
    return f"{plain(m.label or m.name)}<br>{value} {interval}, n {metric.n:,}{tokens}{spent}{seeds}<extra></extra>"


def _caption(metrics: Sequence[Metric], groups: Sequence[Group]) -> str:
    level = 100 * metrics[0].confidence if metrics else 95
    seeds = " and over seeds" if any(len(g.members) > 1 for g in groups) else ""
    return INTERVALS.format(level=level, seeds=seeds)


def _unit_title(score: Score) -> str:
    return f"{plain(score.unit)}{'' if score.higher_is_better else ', lower is better'}"


# --------------------------------------------------------------------------------------------------------- new tokens


def budgets_of(tables: Sequence[FigureTable]) -> list[int]:
    """New tokens of the columns of the continued tables, those of one header once; 0 is the original."""
    groups = [g for t in tables if t.kind == "continued" for b in t.blocks for g in b.columns]
    found: dict[str, int] = {}
    for g in groups:
        found.setdefault(g.header if g.members[0].continued else "", g.tokens or g.model.budget or 0)
    return sorted(set(found.values()))


def token_charts(tables: Sequence[FigureTable], scores: Sequence[Score]) -> list[Chart]:
    """Figure 1 of the paper: a panel for each score, with a line for the base, the instruct model and the base with the
    residual.

    Args:
        tables: of `residual_figures.tables`; those of kind "continued" are drawn.
        scores: what to draw.

    Returns:
        Charts of the scores that two points or more of a line have; none where there is one budget alone.
    """
    budgets = [b for b in budgets_of(tables) if b > 0]
    if len(budgets) < 2:
        return []
    charts = []
    families = [t for t in tables if t.kind == "continued"]
    for score in scores:
        data: list[dict[str, Any]] = []
        rows, metrics, drawn = [], [], []
        for number_, t in enumerate(families):
            for place, block in enumerate(t.blocks):
                held = [(g, metric) for g in block.columns if (metric := g.metric(score.pick)) is not None]
                if not held:
                    continue
                name = _line_name(block, several=len(families) > 1)
                data += _token_traces(held, block, score, name, budgets[0], place, DASHES[number_ % 4])
                metrics += [m for _, m in held]
                drawn += [g for g, _ in held]
                rows += [[name, g.header, *figure_text(metric, score), f"{metric.n:,}"] for g, metric in held]
        if not any(len(trace["x"]) > 1 and trace["mode"] != "markers" for trace in data):
            continue
        ticks = [0.0, *(_token_place(b, budgets[0]) for b in budgets)]
        height = 320
        printed = any(trace.get("name") == "paper" for trace in data)
        figure = {
            "data": data,
            "layout": layout(
                height,
                xaxis=axis(
                    "new tokens",
                    tickvals=ticks,
                    ticktext=["original", *(_tick(b) for b in budgets)],
                    range=[-0.15, ticks[-1] + 0.15],
                    zeroline=False,
                    tickangle=0 if len(budgets) < 4 else "auto",
                ),
                yaxis=axis(_unit_title(score), zeroline=False),
                showlegend=True,
                legend=LEGEND,
                margin={"l": 12, "r": 14, "t": 54, "b": 12},
            ),
        }
        caption = _caption(metrics, drawn) + (" Hollow: as the paper prints it." if printed else "")
        columns = [
            Column(title="Model"),
            Column(title="New tokens"),
            *(Column(title=c, numeric=True) for c in ("Score", "Interval", "n")),
        ]
        charts.append(
            Chart(title=score.title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)
        )
    return charts


def _tick(tokens: float) -> str:
    """A budget below its tick, short enough to stand beside another one: "80 k", "100 M"."""
    return f"{tokens / 1000:.3g} k" if 1_000 <= tokens < 1_000_000 else tokens_text(tokens)


def _line_name(block: Block, *, several: bool) -> str:
    """Of a line in the legend: what it began with, and of which pair where there are several."""
    short = block.title.partition(":")[0]
    return f"{block.family}: {short[:1].lower()}{short[1:]}" if several and block.family else short


def _token_place(tokens: int, smallest: int) -> float:
    """Where a count of tokens stands: 0 at 0, 1 at the smallest budget, and one more each factor of ten."""
    return 0.0 if tokens <= 0 else 1 + math.log10(tokens / smallest)


def _token_traces(
    held: Sequence[tuple[Group, Metric]], block: Block, score: Score, name: str, smallest: int, place: int, dash: str
) -> list[dict[str, Any]]:
    colour, symbol = STYLES.get(block.kind, STYLES["others"])
    # Two lines' bars at one budget would cover each other.
    xs = [round(_token_place(g.tokens or g.model.budget or 0, smallest) + 0.02 * (place - 1), 4) for g, _ in held]
    metrics = [m for _, m in held]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(held) > 1 else "markers",
            "name": plain(squeeze(name, 28)),
            "x": xs,
            "y": [_drawn(m.value, score) for m in metrics],
            "error_y": _error(metrics, score, colour),
            "line": {"color": f"var(--{colour})", "width": 2, "dash": dash},
            "marker": {"size": 9, "symbol": symbol, "color": f"var(--{colour})"},
            "hovertemplate": [_hover(g, m, score) for g, m in held],
        }
    ]
    printed = [
        (x, value)
        for x, (g, _) in zip(xs, held, strict=True)
        if g.paper is not None and (value := score.paper(g.paper)) is not None
    ]
    if printed:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "paper",
                "showlegend": False,
                "x": [x for x, _ in printed],
                "y": [value for _, value in printed],
                "marker": {"size": 11, "symbol": f"{symbol}-open", "color": f"var(--{colour})", "line": {"width": 1.4}},
                "hovertemplate": f"{plain(name)}, as the paper prints it: %{{y:.2f}} %<extra></extra>",
            }
        )
    return data


# ------------------------------------------------------------------------------------------------------------ compute


def compute_charts(tables: Sequence[FigureTable], scores: Sequence[Score], *, most: int = 4) -> list[Chart]:
    """Score against the compute that was spent here on making a model (figure 2 of the paper), with the given models as
    lines across.

    Args:
        tables: of `residual_figures.tables`.
        scores: what to draw; at most `most` of them.
        most: charts.

    Returns:
        Charts of the scores that a model with known compute has; none where all models cost the same and the paper's
        estimate is not drawn.
    """
    groups: dict[tuple[int, ...], tuple[Group, Block]] = {}
    for t in tables:
        for b in t.blocks:
            for g in b.columns:
                groups.setdefault(tuple(id(m) for m in g.members), (g, b))
    charts: list[Chart] = []
    for score in scores:
        spent = [
            (g, metric) for g, _ in groups.values() if g.flops > 0 and (metric := g.metric(score.pick)) is not None
        ]
        given = [
            (g, metric)
            for g, _ in groups.values()
            if g.members[0].given and (metric := g.metric(score.pick)) is not None
        ]
        if spent and len(charts) < most and (_large(spent) or max(_flops(spent)) > ALIKE * min(_flops(spent))):
            charts.append(_compute_chart(spent, given, score))
    return charts


def _flops(spent: Sequence[tuple[Group, Metric]]) -> list[float]:
    return [g.flops for g, _ in spent]


def _large(spent: Sequence[tuple[Group, Metric]]) -> bool:
    """Whether a model has the size that the paper's estimate is of."""
    return any(EIGHT_BILLION[0] <= g.model.parameters <= EIGHT_BILLION[1] for g, _ in spent)


def _compute_chart(spent: Sequence[tuple[Group, Metric]], given: Sequence[tuple[Group, Metric]], score: Score) -> Chart:
    flops, large = _flops(spent), _large(spent)
    ends = [min(flops) / 2, max([*flops, paper_004.INSTRUCTION_TUNING_FLOPS] if large else flops) * 2]
    data: list[dict[str, Any]] = []
    for place, (g, metric) in enumerate(given):
        colour = STYLES[kind_of(g.members[0])][0]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain(squeeze(f"{g.model.label or g.model.name}, as given", 30)),
                "x": ends,
                "y": [_drawn(metric.value, score)] * 2,
                "line": {"color": f"var(--{colour})", "width": 1.4, "dash": DASHES[1:][place // 2 % 3]},
                "hovertemplate": _hover(g, metric, score),
            }
        )
    kinds = dict.fromkeys(kind_of(g.members[0]) for g, _ in spent)
    words = {
        BASE: "base, continued",
        INSTRUCT: "instruct, continued",
        "residual": "with residual",
        DERIVED: "derived, continued",
    }
    apart = (ends[1] / ends[0]) ** 0.012  # models of one cost would cover each other
    for place, kind in enumerate(kinds):
        held = [(g, metric) for g, metric in spent if kind_of(g.members[0]) == kind]
        colour, symbol = STYLES[kind]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": words.get(kind, "other"),
                "x": [float(f"{g.flops * apart ** (place - 1):.6g}") for g, _ in held],
                "y": [_drawn(m.value, score) for _, m in held],
                "error_y": _error([m for _, m in held], score, colour),
                "marker": {"size": 10, "symbol": symbol, "color": f"var(--{colour})"},
                "hovertemplate": [_hover(g, m, score) for g, m in held],
            }
        )
    if large:
        values = [v for trace in data for v in trace["y"]]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "paper: instruction tuning",
                "x": [paper_004.INSTRUCTION_TUNING_FLOPS] * 2,
                "y": [min(values), max(values)],
                "line": {"color": "var(--muted)", "width": 2, "dash": "dot"},
                "hovertemplate": f"instruction tuning, by the paper's estimate: "
                f"{flops_text(paper_004.INSTRUCTION_TUNING_FLOPS)}<extra></extra>",
            }
        )
    height = 380
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("FLOPs spent here", type="log", zeroline=False, nticks=6, range=[math.log10(v) for v in ends]),
            yaxis=axis(_unit_title(score), zeroline=False),
            showlegend=True,
            legend=LEGEND,
            margin={"l": 12, "r": 14, "t": 76, "b": 12},
        ),
    }
    caption = (
        "FLOPs of the training behind a model; adding a residual costs some per weight, and is not counted. "
        "Models of one cost are drawn a"
    )
    caption += " little apart. Lines across: models as given."
    if large:
        caption += (
            " Dotted, upright: what the paper states for tuning 8B on instructions (appendix A), an estimate of theirs."
        )
    columns = [Column(title="Model"), *(Column(title=c, numeric=True) for c in ("Compute", "Score", "Interval"))]
    rows = [
        [g.model.label or g.model.name, flops_text(g.flops), *figure_text(metric, score)]
        for g, metric in (*spent, *given)
    ]
    return Chart(
        title=f"{score.title} against compute",
        figure=figure,
        caption=caption,
        columns=columns,
        rows=rows,
        height=height,
    )


# -------------------------------------------------------------------------------------------------------------- scale


def scale_chart(choice: ScaleChoice) -> Chart | None:
    """The gain over the base against the scale of the residual, with the chosen one marked; None without a candidate
    that has a score."""
    held = [c for c in choice.candidates if _known(c.get("scale")) and _known(c.get("score"))]
    if not held:
        return None
    held = sorted(held, key=lambda c: float(c["scale"]))
    intervals = [_interval(c.get("interval")) for c in held]
    shown = [c for c in held if float(c["scale"]) == float(choice.chosen)]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "candidates",
            "x": [float(c["scale"]) for c in held],
            "y": [float(c["score"]) for c in held],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "arrayminus": [
                    0.0 if i is None else float(c["score"]) - i[0] for c, i in zip(held, intervals, strict=True)
                ],
                "array": [0.0 if i is None else i[1] - float(c["score"]) for c, i in zip(held, intervals, strict=True)],
                "color": "var(--accent)",
                "thickness": 1.4,
                "width": 4,
            },
            "line": {"color": "var(--accent)", "width": 2},
            "marker": {"size": 9, "color": "var(--accent)"},
            "hovertemplate": "scale %{x}: %{y:.4f}<extra></extra>",
        }
    ]
    if shown:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "chosen",
                "x": [float(shown[0]["scale"])],
                "y": [float(shown[0]["score"])],
                "marker": {"size": 20, "symbol": "circle-open", "color": "var(--third)", "line": {"width": 3}},
                "hoverinfo": "skip",
            }
        )
    height = 320
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis("scale of the residual", zeroline=False, tickvals=[float(c["scale"]) for c in held]),
            yaxis=axis("mean gain over the base", zeroline=True, zerolinewidth=2),
            showlegend=True,
            legend=LEGEND,
            margin={"l": 12, "r": 14, "t": 34, "b": 12},
        ),
    }
    columns = [
        Column(title="Scale"),
        *(Column(title=c, numeric=True) for c in ("Mean gain", "Interval", "Against scale 1", "Interval")),
    ]
    rows = []
    for c, interval in zip(held, intervals, strict=True):
        difference, between = against_one(c)
        digits = decimals_for(interval)
        name = f"{significant(float(c['scale']))}{' (chosen)' if c in shown else ''}"
        rows.append(
            [
                name,
                number(float(c["score"]), digits, sign=True),
                interval_text(interval, digits, sign=True),
                "" if difference is None else number(difference, decimals_for(between), sign=True),
                "" if difference is None else interval_text(between, decimals_for(between), sign=True),
            ]
        )
    what = ", ".join(choice.entries) or "not recorded"
    caption = f"Chosen by: {what}. The chosen scale looks a little better on these than it is, because they chose it."
    return Chart(
        title="Scale of the residual", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )


def against_one(candidate: Any) -> tuple[float | None, tuple[float, float] | None]:
    """A candidate's difference to scale 1 and its interval, from `{"gain", "interval"}`, `[difference, low, high]` or a
    number."""
    found = candidate.get("against_one")
    if isinstance(found, dict):
        value = next((found[k] for k in ("gain", "difference") if _known(found.get(k))), None)
        return (None if value is None else float(value)), _interval(found.get("interval"))
    if isinstance(found, (list, tuple)):
        if len(found) == 3 and all(_known(v) for v in found):
            return float(found[0]), (float(found[1]), float(found[2]))
        if len(found) == 2 and _known(found[0]):
            return float(found[0]), _interval(found[1])
        return None, None
    return (float(found), None) if _known(found) else (None, None)


def _known(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _interval(value: Any) -> tuple[float, float] | None:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(_known(v) for v in value):
        return float(value[0]), float(value[1])
    return None


# --------------------------------------------------------------------------------------------- siblings and derived


def carried_charts(tables: Sequence[FigureTable], scores: Sequence[Score], *, most: int = 4) -> list[Chart]:
    """Whether residuals carry over: every model of the tables of siblings and derived models as a point with its
    interval.

    Args:
        tables: of `residual_figures.tables`.
        scores: what to draw; at most `most` of them.
        most: charts.
    """
    blocks = [b for t in tables if t.kind in ("siblings", "derived") for b in t.blocks]
    charts: list[Chart] = []
    for score in scores:
        held = [(b, g, metric) for b in blocks for g in b.columns if (metric := g.metric(score.pick)) is not None]
        if len(held) > 1 and len(charts) < most:
            names = [f"{b.title.rsplit('/', 1)[-1]}: {g.header}" for b, g, _ in held]
            points = [(place, g, metric) for place, (_, g, metric) in enumerate(held)]
            charts.append(_dots(points, names, score))
    return charts


def _dots(points: Sequence[tuple[int, Group, Metric]], names: Sequence[str], score: Score) -> Chart:
    data: list[dict[str, Any]] = []
    words = {BASE: "base", INSTRUCT: "instruct", "residual": "with residual", DERIVED: "derived", "others": "other"}
    for kind in dict.fromkeys(kind_of(g.members[0]) for _, g, _ in points):
        held = [(place, g, m) for place, g, m in points if kind_of(g.members[0]) == kind]
        colour, symbol = STYLES[kind]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": words[kind],
                "x": [_drawn(m.value, score) for _, _, m in held],
                "y": [place for place, _, _ in held],
                "error_x": _error([m for _, _, m in held], score, colour),
                "marker": {"size": 10, "symbol": symbol, "color": f"var(--{colour})"},
                "hovertemplate": [_hover(g, m, score) for _, g, m in held],
            }
        )
    printed = [
        (place, value) for place, g, _ in points if g.paper is not None and (value := score.paper(g.paper)) is not None
    ]
    if printed:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "paper",
                "x": [value for _, value in printed],
                "y": [place for place, _ in printed],
                "marker": {"size": 12, "symbol": "circle-open", "color": "var(--ink)", "line": {"width": 1.3}},
                "hovertemplate": "as the paper prints it: %{x:.2f} %<extra></extra>",
            }
        )
    height = 96 + 30 * len(points)
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(_unit_title(score), zeroline=False),
            yaxis=_names(names),
            showlegend=True,
            legend=LEGEND,
            meta={"narrow": [plain(squeeze(n, 17)) for n in names]},
            margin={"l": 12, "r": 14, "t": 34, "b": 12},
        ),
    }
    columns = [Column(title="Model"), *(Column(title=c, numeric=True) for c in ("Score", "Interval", "n"))]
    rows = [[names[place], *figure_text(m, score), f"{m.n:,}"] for place, _, m in points]
    caption = _caption([m for _, _, m in points], [g for _, g, _ in points]) + (
        " Circles: as the paper prints it." if printed else ""
    )
    return Chart(title=score.title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)


def _names(names: Sequence[str], length: int = 34) -> dict[str, Any]:
    ticks = [plain(squeeze(n, length)) for n in names]
    return axis(
        tickvals=list(range(len(names))),
        ticktext=ticks,
        range=[len(names) - 0.4, -0.6],
        fixedrange=True,
        zeroline=False,
        ticklen=4,
    )


# -------------------------------------------------------------------------------------------------- before and after


def kept_charts(models: Sequence[Studied], scores: Sequence[Score], record: ResidualRecord) -> list[Chart]:
    """What an update kept, a line for each score: the base, the instruct model, the continued instruct model and the
    result as points.

    Args:
        models: of the update.
        scores: what to draw; shares together, others by their unit.
        record: of the update; the result and the models of its pair are drawn.
    """
    chosen = before_and_after(models, record)
    if len(chosen) < 2:
        return []
    charts = []
    for unit in dict.fromkeys(s.unit for s in scores):
        held = [s for s in scores if s.unit == unit]
        found = [(m, name, style, [s.pick(m) for s in held]) for m, name, style in chosen]
        rows_with = [
            place for place in range(len(held)) if sum(metrics[place] is not None for _, _, _, metrics in found) > 1
        ]
        if rows_with:
            charts.append(
                _kept_chart(
                    [held[p] for p in rows_with], [(m, n, s, [v[p] for p in rows_with]) for m, n, s, v in found], unit
                )
            )
    return charts


def before_and_after(models: Sequence[Studied], record: ResidualRecord) -> list[tuple[Studied, str, str]]:
    """(model, name in the legend, kind) of an update's base, instruct model, continued instruct model and result, as
    far as they are there."""
    result = next((m for m in models if m.model.name == record.result), None)
    if result is None:
        return []
    own = [m for m in models if m.model.family == result.model.family and m.model.residual is None]
    found: list[tuple[Studied, str, str]] = []
    for start, continued, name, kind in (
        (BASE, False, "base", BASE),
        (INSTRUCT, False, "instruct", INSTRUCT),
        (INSTRUCT, True, "instruct, continued", "others"),
    ):
        first = next((m for m in own if m.model.start == start and m.continued == continued), None)
        if first is not None:
            found.append((first, name, kind))
    return [*found, (result, "result", "residual")]


def _kept_chart(
    scores: Sequence[Score], found: Sequence[tuple[Studied, str, str, list[Metric | None]]], unit: str
) -> Chart:
    data: list[dict[str, Any]] = []
    offset = 0.52 / max(1, len(found))
    for place, (m, name, kind, metrics) in enumerate(found):
        held = [
            (row, s, metric) for row, (s, metric) in enumerate(zip(scores, metrics, strict=True)) if metric is not None
        ]
        colour, symbol = STYLES[kind]
        ends = [_ends(metric, s) for _, s, metric in held]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [_drawn(metric.value, s) for _, s, metric in held],
                "y": [round(row + offset * (place - (len(found) - 1) / 2), 3) for row, _, _ in held],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "arrayminus": [low for low, _ in ends],
                    "array": [high for _, high in ends],
                    "color": f"var(--{colour})",
                    "thickness": 1.4,
                    "width": 3,
                },
                "marker": {"size": 9, "symbol": symbol, "color": f"var(--{colour})"},
                "hovertemplate": [
                    f"{plain(s.title)}<br>{plain(m.model.label or m.model.name)}: {' '.join(figure_text(metric, s))}, "
                    f"n {metric.n:,}<extra></extra>"
                    for _, s, metric in held
                ],
            }
        )
    names = [s.title for s in scores]
    height = 96 + 62 * len(scores)
    lower = not scores[0].higher_is_better
    shapes = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": row + 0.5,
            "y1": row + 0.5,
            "line": {"color": "var(--grid)", "width": 1},
        }
        for row in range(len(scores) - 1)
    ]
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(plain(unit) + (", lower is better" if lower else ""), zeroline=False),
            yaxis={**_names(names, 24), "showgrid": False},
            showlegend=True,
            legend=LEGEND,
            shapes=shapes,
            meta={"narrow": [plain(squeeze(n, 15)) for n in names]},
            margin={"l": 12, "r": 14, "t": 34, "b": 12},
        ),
    }
    columns = [Column(title="Measure"), *(Column(title=name, numeric=True) for _, name, _, _ in found)]
    rows = [
        [
            s.title,
            *(
                " ".join(figure_text(metric, s)) if (metric := metrics[row]) is not None else ""
                for _, _, _, metrics in found
            ),
        ]
        for row, s in enumerate(scores)
    ]
    drawn = [metric for _, _, _, metrics in found for metric in metrics if metric is not None]
    caption = (
        _caption(drawn, [])
        + " Two may overlap and their difference still be sure: the models answered the same questions, see the pairs."
    )
    title = "Shares" if unit == "%" else f"In {unit}"
    return Chart(title=title, figure=figure, caption=caption, columns=columns, rows=rows, height=height)
