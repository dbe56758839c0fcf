"""Plots of an update or a study of the instruction residual: scores against new tokens, compute and scale, siblings,
and what an update kept.

The axis of new tokens has the original at its left end and is logarithmic from the smallest budget on; between the two
lies a gap of one decade's width. Bars are the intervals of each model alone. Where the paper prints a figure of a
model made in the same way, a hollow point shows it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.records.evaluation import Metric
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ScaleChoice, StudiedModel
from holdfast.reports import paper_004
from holdfast.reports.charts import DASHES, Axis, Chart, Col, Mark, Rule, Value, ticks_at
from holdfast.reports.format import count, flops_text, significant, with_interval
from holdfast.reports.residual_table import Group, Measure, Results, lower

STYLES = {
    BASE: ("base", "accent", "circle"),
    INSTRUCT: ("instruct", "second", "square"),
    "residual": ("with residual", "third", "diamond"),
    "tuning": ("tuned again", "flat", "star"),
    "distillation": ("distilled", "good", "cross"),
    "self-distillation": ("self-distilled", "good", "triangle-down"),
    DERIVED: ("derived", "fourth", "triangle-up"),
    "others": ("other", "flat", "pentagon"),
}
"""Kind of model -> (name, colour, symbol), the same on every plot of a page."""
ALIKE = 1.05
"""Compute that differs by less than this factor is one place of a plot."""
EIGHT_BILLION = (7.5e9, 8.5e9)
"""Between so many parameters the paper's estimate for instruction tuning is drawn: it is of an 8B model."""
FIGURE = [Col("Score", "score"), Col("n", "n"), Col("New tokens", "tokens"), Col("Compute", "compute")]
Held = tuple[Group, Metric]


def kind_of(model: StudiedModel) -> str:
    """Key of `STYLES`."""
    return model.restored or (model.start if model.start in STYLES else "others")


def drawn(metric: Metric, score: Measure) -> Value:
    """A score to draw: shares in percent."""
    factor = 100.0 if score.share else 1.0
    low, high = (factor * v for v in metric.interval or (math.nan, math.nan))
    text, interval = with_interval(metric.value, metric.interval, share=score.share, unit=score.unit)
    return Value(value=factor * metric.value, low=low, high=high, text=text, interval=interval)


def held_of(groups: Iterable[Group], score: Measure) -> list[Held]:
    """Groups that have a score, with it."""
    return [(g, metric) for g in groups if (metric := g.metric(score)) is not None]


def row(group: Group, metric: Metric, score: Measure, **more: Any) -> dict[str, Any]:
    """One model, or several that differ in their seed alone."""
    printed = score.printed(group.paper, recomputed=True)
    return {
        "model": group.model.label or group.model.name,
        "score": drawn(metric, score),
        "n": f"{metric.n:,}" + (f", {len(group.members)} seeds" if len(group.members) > 1 else ""),
        "tokens": count(group.tokens) if group.tokens else "",
        "compute": flops_text(group.flops) if group.flops else "",
        "paper": printed,
        "printed": f"{printed:.2f} %" if printed is not None else None,
        "kind": kind_of(group.model),
        **more,
    }


def chart(
    score: Measure, held: Sequence[Held], rows: Sequence[dict[str, Any]], marks: Sequence[Mark], **more: Any
) -> Chart:
    """A plot of one score.

    Args:
        score: upright; across where `more` has an axis `y`.
        held: what is drawn.
        rows: of `row`.
        marks: see `Chart`.
        more: of the chart; `first`: columns of its table before the figures; `hollow`: what stands for the paper's
            figures.
    """
    seeds = " and over seeds" if any(len(g.members) > 1 for g, _ in held) else ""
    caption = f"Bars: {100 * held[0][1].confidence:g} % intervals over the samples of each model alone{seeds}."
    paper, hollow = any(r["printed"] for r in rows), more.pop("hollow", "")
    heads = [Col(title, key, numeric=False) for title, key in more.pop("first")]
    columns = [*heads, *FIGURE, *([Col("Paper", "printed")] if paper else [])]
    given: dict[str, Any] = {
        "title": score.score,
        "caption": caption + (f" {hollow}: as the paper prints it." if paper else ""),
        "x" if "y" in more else "y": Axis(title=score.unit + lower(score)),
    }
    return Chart(rows=rows, columns=columns, marks=marks, legend=True, **given | more)


def mark(style: str, where: dict[str, Any], **more: Any) -> Mark:
    """The models of one of `STYLES`."""
    name, colour, symbol = STYLES.get(style, STYLES["others"])
    return Mark(where=where, **{"name": name, "colour": colour, "symbol": symbol} | more)


def token_charts(results: Results) -> list[Chart]:
    """Figure 1 of the paper: a panel for each score, with a line for the base, the instruct model and the base with the
    residual.

    Returns:
        Charts of the scores that two points or more of a line have; none where there is one budget alone.
    """
    families = [t for t in results.tables if t.kind == "continued"]
    headers = {g.header: _tokens(g) for t in families for g in t.groups if g.model.continued}
    budgets = sorted({b for b in headers.values() if b > 0})
    if len(budgets) < 2:
        return []

    def place(tokens: int) -> float:
        return 0.0 if tokens <= 0 else 1 + math.log10(tokens / budgets[0])

    ticks = [(0.0, "original"), *((place(b), f"{b / 1000:.3g} k" if 1e3 <= b < 1e6 else count(b)) for b in budgets)]
    turned: dict[str, Any] = {"tickangle": 0 if len(budgets) < 4 else "auto"}
    across = Axis(title="new tokens", ticks=ticks, range=(-0.15, ticks[-1][0] + 0.15), more=turned)
    lines = [(pair, side, block) for pair, t in enumerate(families) for side, block in enumerate(t.at_scale_1)]
    found = []
    for score in results.scores:
        rows: list[dict[str, Any]] = []
        marks: list[Mark] = []
        everything: list[Held] = []
        longest = 0
        for pair, side, block in lines:
            held, line, short = held_of(block.groups, score), f"{pair} {side}", block.title.partition(":")[0]
            name = f"{block.family}: {short[:1].lower()}{short[1:]}" if len(families) > 1 and block.family else short
            for g, metric in held:  # two lines' bars at one budget would cover each other
                x = round(place(_tokens(g)) + 0.02 * (side - 1), 4)
                rows.append(row(g, metric, score, name=name, header=g.header, x=x, line=line))
            kind, dash = "line" if len(held) > 1 else "points", DASHES[pair % 4]
            marks.append(mark(block.kind, {"line": line}, y="score", kind=kind, dash=dash, name=name))
            hollow = f"{marks[-1].symbol}-open"
            marks.append(
                mark(block.kind, {"line": line}, y="paper", name="paper", symbol=hollow, size=11, legend=False)
            )
            everything += held
            longest = max(longest, len(held))
        if longest > 1:
            first = [("Model", "name"), ("Budget", "header")]
            found.append(chart(score, everything, rows, marks, hollow="Hollow", first=first, x=across, height=320))
    return found


def _tokens(group: Group) -> int:
    return group.tokens or group.model.budget or 0


def compute_charts(results: Results, scores: Sequence[Measure], *, most: int = 4) -> list[Chart]:
    """Score against the compute that was spent here on making a model (figure 2 of the paper), with the given models as
    lines across.

    Args:
        results: every model of its tables is drawn.
        scores: what to draw.
        most: charts.

    Returns:
        Charts of the scores that a model with known compute has; none where all models cost the same and the paper's
        estimate is not drawn.
    """
    groups = {tuple(m.name for m in g.members): g for t in reversed(results.tables) for g in reversed(t.groups)}
    found = []
    for score in scores:
        held = held_of(reversed(groups.values()), score)
        spent, given = [h for h in held if h[0].flops > 0], [h for h in held if h[0].model.given]
        flops = [g.flops for g, _ in spent]
        large = any(EIGHT_BILLION[0] <= g.model.parameters <= EIGHT_BILLION[1] for g, _ in spent)
        if flops and (large or max(flops) > ALIKE * min(flops)):
            found.append(_compute_chart(spent, given, score, large=large))
    return found[:most]


def _compute_chart(spent: Sequence[Held], given: Sequence[Held], score: Measure, *, large: bool) -> Chart:
    tuning = paper_004.INSTRUCTION_TUNING_FLOPS
    flops = [g.flops for g, _ in spent] + ([tuning] if large else [])
    ends = (min(flops) / 2, max(flops) * 2)
    kinds = list(dict.fromkeys(kind_of(g.model) for g, _ in spent))
    apart = (ends[1] / ends[0]) ** 0.012  # models of one cost would cover each other
    rows = [row(g, m, score, spent=True) for g, m in spent]
    rows = [r | {"x": x * apart ** (kinds.index(r["kind"]) - 1)} for r, x in zip(rows, flops, strict=False)]
    levels = [row(g, m, score) for g, m in given]
    lines = [([(x, r["score"].value) for x in ends], r["kind"], f"{r['model']}, as given") for r in levels]
    marks = [
        mark(
            kind,
            {},
            kind="line",
            rows=_ends(line),
            name=name,
            symbol="circle",
            width=1.4,
            dash=DASHES[1 + i // 2 % 3],
            markers=False,
        )
        for i, (line, kind, name) in enumerate(lines)
    ]
    for kind in kinds:
        name = STYLES[kind][0] + ("" if kind in ("residual", "others") else ", continued")
        marks.append(mark(kind, {"kind": kind, "spent": True}, y="score", name=name, size=10))
    caption = (
        "FLOPs of the training behind a model; adding a residual costs some per weight, and is not counted. Models of "
        "one cost are drawn a little apart. Lines across: models as given."
    )
    if large:
        drawn_ = [r["score"].value for r in rows + levels]
        upright = _ends([(tuning, min(drawn_)), (tuning, max(drawn_))])
        name = "paper: instruction tuning"
        marks.append(Mark(kind="line", rows=upright, name=name, colour="muted", dash="dot", markers=False))
        caption += (
            " Dotted, upright: what the paper states for tuning 8B on instructions (appendix A), "
            f"{flops_text(tuning)}, an estimate of theirs."
        )
    x = Axis(title="FLOPs spent here", log=True, range=ends, more={"nticks": 6})
    words = {"title": f"{score.score} against compute", "caption": caption, "first": [("Model", "model")]}
    return chart(score, spent, rows + levels, marks, x=x, height=380, **words)


def _ends(points: Sequence[tuple[float, float]]) -> list[dict[str, float]]:
    return [{"x": x, "y": y} for x, y in points]


def scale_chart(choice: ScaleChoice) -> Chart | None:
    """The gain over the base against the scale of the residual, with the chosen one marked; None without a candidate
    that has a score."""
    rows: list[dict[str, Any]] = []
    for c in sorted((c for c in choice.candidates if c["score"] is not None), key=lambda c: float(c["scale"])):
        scale, chosen, one = float(c["scale"]), float(c["scale"]) == choice.chosen, c["against_one"]
        text, interval = with_interval(c["score"], c["interval"], sign=True)
        low, high = c["interval"]
        rows.append(
            {
                "name": f"{significant(scale)}{' (chosen)' if chosen else ''}",
                "x": scale,
                "y": Value(value=c["score"], low=low, high=high, text=text, interval=interval),
                "one": " ".join(with_interval(one["gain"], one["interval"], sign=True)) if one else "",
                "chosen": chosen,
            }
        )
    if not rows:
        return None
    ring = [r | {"y": r["y"].value} for r in rows if r["chosen"]]
    ringed = Mark(rows=ring, name="chosen", colour="third", symbol="circle-open", size=20)
    what = ", ".join(choice.entries) or "not recorded"
    return Chart(
        title="Scale of the residual",
        heading=False,
        rows=rows,
        columns=[Col("Scale", "name", numeric=False), Col("Mean gain", "y"), Col("Against scale 1", "one")],
        marks=[Mark(kind="line", name="candidates"), ringed],
        x=Axis(title="scale of the residual", ticks=ticks_at([r["x"] for r in rows])),
        y=Axis(title="mean gain over the base", zero=True),
        caption=(
            f"Chosen by: {what}. The chosen scale looks a little better on these than it is, because they chose it."
        ),
        height=320,
        legend=True,
    )


def carried_charts(results: Results, scores: Sequence[Measure], *, most: int = 4) -> list[Chart]:
    """Whether residuals carry over: every model of the tables of siblings and derived models as a point with its
    interval.

    Args:
        results: of a study.
        scores: what to draw.
        most: charts.
    """
    blocks = [b for t in results.tables if t.kind in ("siblings", "derived") for b in t.blocks]
    groups = [(g, f"{b.title.rsplit('/', 1)[-1]}: {g.header}") for b in blocks for g in b.groups]
    found = []
    for score in scores:
        named = [(g, m, name) for g, name in groups if (m := g.metric(score)) is not None]
        rows = [row(g, m, score, name=name, place=place) for place, (g, m, name) in enumerate(named)]
        kinds, names = dict.fromkeys(r["kind"] for r in rows), [name for *_, name in named]
        marks = [mark(kind, {"kind": kind}, x="score", y="place", size=10) for kind in kinds]
        marks.append(Mark(x="paper", y="place", name="paper", colour="ink", symbol="circle-open", size=12))
        axis, height = Axis(names=names, length=34), 96 + 30 * len(rows)
        words: dict[str, Any] = {"hollow": "Circles", "first": [("Model", "name")], "narrow": names}
        if len(rows) > 1:
            found.append(chart(score, [h[:2] for h in named], rows, marks, y=axis, height=height, **words))
    return found[:most]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a plot of scores against something."""

    name: str
    style: str
    """One of `STYLES`."""
    dash: str
    points: list[tuple[Group, float, dict[str, Any]]]
    """Models, where they stand, and what the chart's table says besides."""


def added_charts(results: Results, scores: Sequence[Measure], *, most: int = 4) -> list[Chart]:
    """Scores against the relative norm of what was added: a line for each model that residuals were put on, and each
    residual, over its scales from 0 (the model itself) on.

    Args:
        results: of a study.
        scores: what to draw.
        most: charts.

    Returns:
        None where no residual was tried at two scales.
    """
    groups = _main_groups(results)
    bare = {m.name: g for g in groups for m in g.members if not m.restored}
    held: dict[tuple[str, str], list[Group]] = {}
    for g in (g for g in groups if g.model.added is not None):
        held.setdefault((results.target_of(g.model).name, str(g.model.residual)), []).append(g)
    if all(len(scaled) < 2 for scaled in held.values()):
        return []
    lines = []
    for number, ((target, residual), scaled) in enumerate(held.items()):
        model = scaled[0].model
        foreign = residual != model.family
        name = f"{bare[target].model.repeated} + {f'{residual} ' if foreign and residual else ''}residual"
        style = DERIVED if model.start == DERIVED else "others" if foreign else "residual"
        points = [
            (g, x := added_of(g), {"norm": f"{x:.3g} %", "scale": f"{g.model.scale or 0:g}"})
            for g in (bare[target], *sorted(scaled, key=added_of))
        ]
        lines.append(Line(name=name, style=style, dash=DASHES[number % 4], points=points))
    first = [("Model", "name"), ("Scale", "scale"), ("Norm of what was added", "norm")]
    across = Axis(title="norm of what was added, % of the base's")
    return _line_charts(lines, scores[:most], across, first)


def added_of(group: Group) -> float:
    """The relative norm of what was added, in percent, mean over the members; 0 where nothing was."""
    return 100 * statistics.fmean(m.added or 0.0 for m in group.members)


def width_charts(results: Results, scores: Sequence[Measure], *, most: int = 4) -> list[Chart]:
    """Scores against the width of the models, at the largest budget: a line for the base, the instruct model, both
    continued and the base with its own residual.

    Args:
        results: of a study.
        scores: what to draw.
        most: charts.

    Returns:
        None where there is one width.
    """
    widths = sorted({m.width for m in results.models})
    if len(widths) < 2:
        return []
    family, largest = results.models[0].family, max((m.budget or 0 for m in results.models), default=0)
    held: dict[str, list[Group]] = {}
    for g in sorted((g for t in results.tables for g in t.groups), key=lambda g: g.model.width):
        m = g.model
        own = m.residual is None or (m.residual == m.family and m.scale in (None, 1))
        if m.family == family and own and m.restored in ("", "residual") and (m.given or m.budget == largest):
            name = f"{m.start}{', continued' if m.continued else ''}{', with residual' if m.restored else ''}"
            if all(g.members != other.members for other in held.setdefault(name, [])):
                held[name].append(g)
    lines = [
        Line(
            name=name,
            style=kind_of(of[0].model),
            dash=DASHES[1 if of[0].model.continued and not of[0].model.restored else 0],
            points=[(g, math.log2(g.model.width), {"width": str(g.model.width)}) for g in of],
        )
        for name, of in held.items()
    ]
    across = Axis(title="width", ticks=[(math.log2(w), str(w)) for w in widths])
    return _line_charts(lines, scores[:most], across, [("Model", "name"), ("Width", "width")])


def _main_groups(results: Results) -> list[Group]:
    """Every column of the tables but those of other widths, once."""
    groups = (g for t in results.tables for g in t.groups if g.model.width == results.width)
    return list({tuple(m.name for m in g.members): g for g in groups}.values())


def _line_charts(
    lines: Sequence[Line], scores: Sequence[Measure], across: Axis, first: Sequence[tuple[str, str]]
) -> list[Chart]:
    found = []
    for score in scores:
        rows: list[dict[str, Any]] = []
        everything: list[Held] = []
        for number, line in enumerate(lines):
            for g, x, more in line.points:
                metric = g.metric(score)
                if metric is not None:
                    rows.append(row(g, metric, score, name=line.name, x=x, line=number, **more))
                    everything.append((g, metric))
        marks = [
            mark(line.style, {"line": number}, y="score", kind="line", dash=line.dash, name=line.name)
            for number, line in enumerate(lines)
        ]
        if len({r["x"] for r in rows}) > 1:
            found.append(chart(score, everything, rows, marks, first=first, x=across, height=360))
    return found


def before_and_after(results: Results) -> dict[str, tuple[StudiedModel, str]]:
    """An update's base, instruct model, continued instruct model and result by their names in a legend, each with its
    kind, as far as they are there."""
    result = next((m for m in results.models if m.name == results.record.result), None)
    if result is None:
        return {}
    own = [m for m in reversed(results.models) if m.family == result.family and m.residual is None]
    held = {(m.start, m.continued): m for m in own}
    wanted = {"base": (BASE, False), "instruct": (INSTRUCT, False), "instruct, continued": (INSTRUCT, True)}
    kinds = {name: "others" if continued else start for name, (start, continued) in wanted.items()}
    found = {name: (held[key], kinds[name]) for name, key in wanted.items() if key in held}
    return found | {"result": (result, "residual")}


def kept_charts(results: Results) -> list[Chart]:
    """What an update kept, a line for each score: the base, the instruct model, the continued instruct model and the
    result as points; shares together, others by their unit."""
    chosen = before_and_after(results)
    shown = [s for s in results.scores if sum(m.name in s.values for m, _ in chosen.values()) > 1]
    return [_kept_chart([s for s in shown if s.unit == unit], chosen) for unit in dict.fromkeys(s.unit for s in shown)]


def _kept_chart(scores: Sequence[Measure], chosen: dict[str, tuple[StudiedModel, str]]) -> Chart:
    offset, first = 0.52 / len(chosen), scores[0]
    rows: list[dict[str, Any]] = []
    for line, s in enumerate(scores):
        rows.append({"title": s.score})
        for place, (name, (m, _)) in enumerate(chosen.items()):
            if m.name in s.values:
                y = round(line + offset * (place - (len(chosen) - 1) / 2), 3)
                rows[-1] |= {name: drawn(s.values[m.name], s), f"place {place}": y}
    names = [s.score for s in scores]
    level = 100 * next(iter(first.values.values())).confidence
    return Chart(
        title="Shares" if first.share else f"In {first.unit}",
        rows=rows,
        columns=[Col("Measure", "title", numeric=False), *(Col(name, name) for name in chosen)],
        marks=[
            mark(kind, {}, x=name, y=f"place {place}", name=name)
            for place, (name, (_, kind)) in enumerate(chosen.items())
        ],
        x=Axis(title=first.unit + lower(first)),
        y=Axis(names=names, more={"showgrid": False}),
        rules=[Rule(y=line + 0.5, colour="grid", dash="solid") for line in range(len(scores) - 1)],
        narrow=names,
        caption=(
            f"Bars: {level:g} % intervals over the samples of each model alone. Two may overlap and their difference "
            "still be sure: the models answered the same questions, see the pairs."
        ),
        height=96 + 62 * len(scores),
        legend=True,
    )
