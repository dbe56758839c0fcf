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
from holdfast.reports.blocks import known
from holdfast.reports.charts import DASHES, Axis, Chart, Col, Mark, Rule, Value
from holdfast.reports.format import decimals_for, interval_text, number, significant
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
WORDS = {BASE: "base", INSTRUCT: "instruct", "residual": "with residual", DERIVED: "derived", "others": "other"}
ALIKE = 1.05
"""Compute that differs by less than this factor is one place of a plot."""
EIGHT_BILLION = (7.5e9, 8.5e9)
"""Between so many parameters the paper's estimate for instruction tuning is drawn: it is of an 8B model."""
Rows = list[dict[str, Any]]


def kind_of(m: Studied) -> str:
    """Key of `STYLES`."""
    if m.model.residual is not None:
        return "residual"
    return m.model.start if m.model.start in STYLES else "others"


def value_of(metric: Metric, score: Score) -> Value:
    """A score to draw: shares in percent."""
    factor = 100.0 if score.share else 1.0
    low, high = (factor * v for v in metric.interval or (math.nan, math.nan))
    text, interval = figure_text(metric, score)
    return Value(value=factor * metric.value, low=low, high=high, text=text, interval=interval)


def _row(group: Group, metric: Metric, score: Score, **more: Any) -> dict[str, Any]:
    """One model, or several that differ in their seed alone."""
    printed = score.paper(group.paper) if group.paper is not None else None
    return {
        "model": group.model.label or group.model.name,
        "score": value_of(metric, score),
        "n": f"{metric.n:,}" + (f", {len(group.members)} seeds" if len(group.members) > 1 else ""),
        "tokens": tokens_text(group.tokens) if group.tokens else "",
        "compute": flops_text(group.flops) if group.flops else "",
        "paper": printed,
        "printed": f"{printed:.2f} %" if printed is not None else None,
        "kind": kind_of(group.members[0]),
        **more,
    }


_SCORE = [Col("Score", "score"), Col("n", "n"), Col("New tokens", "tokens"), Col("Compute", "compute")]


def _columns(first: Sequence[Col], rows: Rows) -> list[Col]:
    paper = [Col("Paper", "printed")] if any(r["printed"] for r in rows) else []
    return [*first, *_SCORE, *paper]


def _caption(metrics: Sequence[Metric], groups: Sequence[Group]) -> str:
    level = 100 * metrics[0].confidence if metrics else 95
    seeds = " and over seeds" if any(len(g.members) > 1 for g in groups) else ""
    return f"Bars: {level:g} % intervals over the samples of each model alone{seeds}."


def _unit_title(score: Score) -> str:
    return f"{score.unit}{'' if score.higher_is_better else ', lower is better'}"


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
    families = [t for t in tables if t.kind == "continued"]
    ticks = [(0.0, "original"), *((_token_place(b, budgets[0]), _tick(b)) for b in budgets)]
    charts = []
    for score in scores:
        rows: Rows = []
        marks: list[Mark] = []
        drawn: list[tuple[Group, Metric]] = []
        lines = 0
        for number_, t in enumerate(families):
            for place, block in enumerate(t.blocks):
                held = [(g, metric) for g in block.columns if (metric := g.metric(score.pick)) is not None]
                name = _line_name(block, several=len(families) > 1)
                line = f"{number_} {place}"
                for g, metric in held:
                    # Two lines' bars at one budget would cover each other.
                    x = _token_place(g.tokens or g.model.budget or 0, budgets[0]) + 0.02 * (place - 1)
                    rows.append(_row(g, metric, score, name=name, header=g.header, x=round(x, 4), line=line))
                colour, symbol = STYLES.get(block.kind, STYLES["others"])
                style: dict[str, Any] = {"where": {"line": line}, "colour": colour}
                kind = "line" if len(held) > 1 else "points"
                marks.append(Mark(kind=kind, y="score", name=name, symbol=symbol, dash=DASHES[number_ % 4], **style))
                marks.append(Mark(y="paper", name="paper", symbol=f"{symbol}-open", size=11, legend=False, **style))
                drawn += held
                lines += len(held) > 1
        if lines:
            printed = any(r["printed"] for r in rows)
            caption = _caption([m for _, m in drawn], [g for g, _ in drawn])
            charts.append(
                Chart(
                    title=score.title,
                    rows=rows,
                    columns=_columns(
                        [Col("Model", "name", numeric=False), Col("Budget", "header", numeric=False)], rows
                    ),
                    marks=marks,
                    x=Axis(
                        title="new tokens",
                        ticks=ticks,
                        range=(-0.15, ticks[-1][0] + 0.15),
                        more={"tickangle": 0 if len(budgets) < 4 else "auto"},
                    ),
                    y=Axis(title=_unit_title(score)),
                    caption=caption + (" Hollow: as the paper prints it." if printed else ""),
                    height=320,
                    legend=True,
                )
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
    groups: dict[tuple[int, ...], Group] = {}
    for t in tables:
        for g in t.columns:
            groups.setdefault(tuple(id(m) for m in g.members), g)
    charts: list[Chart] = []
    for score in scores:
        found = [(g, metric) for g in groups.values() if (metric := g.metric(score.pick)) is not None]
        spent = [(g, m) for g, m in found if g.flops > 0]
        given = [(g, m) for g, m in found if g.members[0].given]
        flops = [g.flops for g, _ in spent]
        if spent and len(charts) < most and (_large(spent) or max(flops) > ALIKE * min(flops)):
            charts.append(_compute_chart(spent, given, score))
    return charts


def _large(spent: Sequence[tuple[Group, Metric]]) -> bool:
    """Whether a model has the size that the paper's estimate is of."""
    return any(EIGHT_BILLION[0] <= g.model.parameters <= EIGHT_BILLION[1] for g, _ in spent)


def _compute_chart(spent: Sequence[tuple[Group, Metric]], given: Sequence[tuple[Group, Metric]], score: Score) -> Chart:
    flops, large = [g.flops for g, _ in spent], _large(spent)
    ends = (min(flops) / 2, max([*flops, paper_004.INSTRUCTION_TUNING_FLOPS] if large else flops) * 2)
    kinds = list(dict.fromkeys(kind_of(g.members[0]) for g, _ in spent))
    apart = (ends[1] / ends[0]) ** 0.012  # models of one cost would cover each other
    rows = [
        _row(g, m, score, x=g.flops * apart ** (kinds.index(kind_of(g.members[0])) - 1), spent=True) for g, m in spent
    ]
    rows += [_row(g, m, score) for g, m in given]
    marks = []
    for place, (g, metric) in enumerate(given):
        level = value_of(metric, score).value
        name, dash = f"{g.model.label or g.model.name}, as given", DASHES[1:][place // 2 % 3]
        style: dict[str, Any] = {
            "colour": STYLES[kind_of(g.members[0])][0],
            "width": 1.4,
            "dash": dash,
            "markers": False,
        }
        marks.append(Mark(kind="line", rows=[{"x": x, "y": level} for x in ends], name=name, **style))
    words = {BASE: "base, continued", INSTRUCT: "instruct, continued", DERIVED: "derived, continued"}
    for kind in kinds:
        name, where = words.get(kind, WORDS[kind]), {"kind": kind, "spent": True}
        marks.append(Mark(y="score", where=where, name=name, colour=STYLES[kind][0], symbol=STYLES[kind][1], size=10))
    caption = (
        "FLOPs of the training behind a model; adding a residual costs some per weight, and is not counted. Models of "
        "one cost are drawn a little apart. Lines across: models as given."
    )
    if large:
        levels = [r["score"].value for r in rows]
        upright = [{"x": paper_004.INSTRUCTION_TUNING_FLOPS, "y": y} for y in (min(levels), max(levels))]
        name = "paper: instruction tuning"
        marks.append(Mark(kind="line", rows=upright, name=name, colour="muted", dash="dot", markers=False))
        caption += (
            " Dotted, upright: what the paper states for tuning 8B on instructions (appendix A), "
            f"{flops_text(paper_004.INSTRUCTION_TUNING_FLOPS)}, an estimate of theirs."
        )
    return Chart(
        title=f"{score.title} against compute",
        rows=rows,
        columns=_columns([Col("Model", "model", numeric=False)], rows),
        marks=marks,
        x=Axis(title="FLOPs spent here", log=True, range=ends, more={"nticks": 6}),
        y=Axis(title=_unit_title(score)),
        caption=caption,
        height=380,
        legend=True,
    )


# -------------------------------------------------------------------------------------------------------------- scale


def scale_chart(choice: ScaleChoice) -> Chart | None:
    """The gain over the base against the scale of the residual, with the chosen one marked; None without a candidate
    that has a score."""
    held = [c for c in choice.candidates if known(c.get("scale")) is not None and known(c.get("score")) is not None]
    if not held:
        return None
    rows: Rows = []
    for c in sorted(held, key=lambda c: float(c["scale"])):
        scale, interval = float(c["scale"]), _interval(c.get("interval"))
        chosen = scale == float(choice.chosen)
        digits = decimals_for(interval)
        low, high = interval or (None, None)
        text, ends = number(float(c["score"]), digits, sign=True), interval_text(interval, digits, sign=True)
        rows.append(
            {
                "name": f"{significant(scale)}{' (chosen)' if chosen else ''}",
                "chosen": chosen,
                "x": scale,
                "y": Value(value=float(c["score"]), low=low, high=high, text=text, interval=ends),
                "one": _against_one_text(c),
            }
        )
    what = ", ".join(choice.entries) or "not recorded"
    ring = [r | {"y": r["y"].value} for r in rows if r["chosen"]]
    return Chart(
        title="Scale of the residual",
        heading=False,
        rows=rows,
        columns=[Col("Scale", "name", numeric=False), Col("Mean gain", "y"), Col("Against scale 1", "one")],
        marks=[
            Mark(kind="line", name="candidates"),
            Mark(rows=ring, name="chosen", colour="third", symbol="circle-open", size=20),
        ],
        x=Axis(title="scale of the residual", ticks=[(r["x"], significant(r["x"])) for r in rows]),
        y=Axis(title="mean gain over the base", zero=True),
        caption=f"Chosen by: {what}. The chosen scale looks a little better on these than it is, because they chose it.",
        height=320,
        legend=True,
    )


def _against_one_text(candidate: Any) -> str:
    difference, between = against_one(candidate)
    if difference is None:
        return ""
    digits = decimals_for(between)
    return f"{number(difference, digits, sign=True)} {interval_text(between, digits, sign=True)}"


def against_one(candidate: Any) -> tuple[float | None, tuple[float, float] | None]:
    """A candidate's difference to scale 1 and its interval, from `{"gain", "interval"}`, `[difference, low, high]` or a
    number."""
    found = candidate.get("against_one")
    if isinstance(found, dict):
        value = next((v for k in ("gain", "difference") if (v := known(found.get(k))) is not None), None)
        return value, _interval(found.get("interval"))
    if isinstance(found, (list, tuple)):
        rest = found[1] if len(found) == 2 else found[1:]
        value = known(found[0]) if len(found) in (2, 3) else None
        interval = _interval(rest) if value is not None else None
        return (None, None) if len(found) == 3 and interval is None else (value, interval)
    return known(found), None


def _interval(value: Any) -> tuple[float, float] | None:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        low, high = known(value[0]), known(value[1])
        return None if low is None or high is None else (low, high)
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
            charts.append(_dots(held, score))
    return charts


def _dots(held: Sequence[tuple[Block, Group, Metric]], score: Score) -> Chart:
    names = [f"{b.title.rsplit('/', 1)[-1]}: {g.header}" for b, g, _ in held]
    rows = [_row(g, m, score, name=names[i], place=i) for i, (_, g, m) in enumerate(held)]
    marks = [
        Mark(x="score", y="place", where={"kind": kind}, name=WORDS[kind], colour=colour, symbol=symbol, size=10)
        for kind in dict.fromkeys(r["kind"] for r in rows)
        for colour, symbol in [STYLES[kind]]
    ]
    marks.append(Mark(x="paper", y="place", name="paper", colour="ink", symbol="circle-open", size=12))
    caption = _caption([m for _, _, m in held], [g for _, g, _ in held])
    return Chart(
        title=score.title,
        rows=rows,
        columns=_columns([Col("Model", "name", numeric=False)], rows),
        marks=marks,
        x=Axis(title=_unit_title(score)),
        y=Axis(names=names, length=34),
        narrow=names,
        caption=caption + (" Circles: as the paper prints it." if any(r["printed"] for r in rows) else ""),
        height=96 + 30 * len(rows),
        legend=True,
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
        held = [s for s in scores if s.unit == unit and sum(s.pick(m) is not None for m, _, _ in chosen) > 1]
        if held:
            charts.append(_kept_chart(held, chosen, unit))
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


def _kept_chart(scores: Sequence[Score], found: Sequence[tuple[Studied, str, str]], unit: str) -> Chart:
    offset = 0.52 / max(1, len(found))
    rows: Rows = []
    metrics = []
    for line, s in enumerate(scores):
        row: dict[str, Any] = {"title": s.title}
        for place, (m, name, _) in enumerate(found):
            metric = s.pick(m)
            if metric is not None:
                metrics.append(metric)
                row |= {
                    name: value_of(metric, s),
                    f"place {place}": round(line + offset * (place - (len(found) - 1) / 2), 3),
                }
        rows.append(row)
    names = [s.title for s in scores]
    lower = ", lower is better" if not scores[0].higher_is_better else ""
    return Chart(
        title="Shares" if unit == "%" else f"In {unit}",
        rows=rows,
        columns=[Col("Measure", "title", numeric=False), *(Col(name, name) for _, name, _ in found)],
        marks=[
            Mark(x=name, y=f"place {place}", name=name, colour=STYLES[kind][0], symbol=STYLES[kind][1])
            for place, (_, name, kind) in enumerate(found)
        ],
        x=Axis(title=unit + lower),
        y=Axis(names=names, more={"showgrid": False}),
        rules=[Rule(y=line + 0.5, colour="grid", dash="solid") for line in range(len(scores) - 1)],
        narrow=names,
        caption=(
            f"{_caption(metrics, [])} Two may overlap and their difference still be sure: the models answered the same "
            "questions, see the pairs."
        ),
        height=96 + 62 * len(scores),
        legend=True,
    )
