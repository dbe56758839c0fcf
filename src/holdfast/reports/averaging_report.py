"""One page on `theory.averaging_study`: which identities hold between averaging and penalties, what p does, and what
the paper observes, asked of quadratic tasks.

Reads only the record of the study (`AveragingStudy`, what `holdfast theory averaging` writes as JSON).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.reports.blocks import Code, Page, Paragraph, Section, Table, Tile, Tiles, notes
from holdfast.reports.charts import COLOURS, SYMBOLS, Axis, Chart, Col, Mark, Row, Rule, log_ticks, tabulate, ticks_at
from holdfast.reports.format import duration, number, plural, significant
from holdfast.reports.terminal import Printer
from holdfast.reports.theory_charts import drawn, in_words
from holdfast.reports.theory_report import checks_table, statements_table
from holdfast.theory.averaging import period
from holdfast.theory.averaging_study import MIDDLE, AlignedTasks, AveragingStudy, named

if TYPE_CHECKING:
    from rich.console import Console

QUESTION = (
    "Sequential fine-tuning with averaging (SFA, Soup to Go) goes back part of the way to the old model every so often "
    "and trains on from there. β is the weight on the old model, p the share of the run between averages. The paper "
    "shows that averaging after every step is gradient descent with an L2 penalty, says that EWC and Fisher merging "
    "look alike, and observes on networks what averaging less often does.",
    "Here the first is checked step by step, for EWC too, and the last is asked of the smallest case with an answer in "
    "closed form: two tasks with quadratic losses, each with an optimum of its own. Training starts at the old "
    "task's optimum, θo.",
)
EQUATIONS = """\
SFA, every step   θ* = θ − α g(θ)                       θ ← (1 − β) θ* + β θo                    (4), (5)
penalty F         θ ← θ − η (g(θ) + F (θ − θo))                                                  (2); L2: F = λ
the same where    β = ηF,   α = η / (1 − ηF)            for each parameter
EWC as a merge    θ* = θ − η g(θ)                       θ ← (I − ηF) θ* + ηF θo                  (13), (14)
                  less the penalised step: η² F g(θ);   as a penalty of its own: F / (1 − ηF)
Fisher merging    (lo Fo θo + lt Ft θt) / (lo Fo + lt Ft)                                        (15)

SFA every k steps on a quadratic loss, share kept of a direction of curvature h:
after an average  u ← (1 − β)(1 − αh)ᵏ u + β            ends at   u = β / (1 − (1 − β)(1 − αh)ᵏ)
k = 1             u = λ / (λ + h), L2                   k → ∞     u = β in every direction"""
"""Section 4 and appendix A.2; the third, the sixth and the last four lines are ours."""
SHAPE = (
    "Averaging every step is L2: strong directions are learnt first, weak ones stay. Averaging once, after training "
    "has arrived, is a point on the straight segment between both optima: every direction is learnt alike. p lies "
    "between: k steps of training level out what is stronger than about 1/(kα). Which shape forgets least is a "
    "question of what the old task feels. Where it feels the directions of the new task in its own order (alignment "
    "1), the segment is the best that there is; where it feels all alike on average (alignment 0), L2 forgets less."
)
GEOMETRIES = (
    "Old loss over that of L2, both at equal new-task loss; geometric means of ratios within each problem. Alignment: "
    "how far both tasks feel the same directions. Rotation: how far these are from single parameters; at 0 the "
    "diagonal Fisher information holds all of the old loss, and EWC is the best trade-off that there is."
)
PAPER = (
    "Equation 14 takes the penalty's gradient at θ*, after the task's update, not at θ as the penalised step does. It "
    "differs by η²Fg a step, and (13), (14) end where a penalty F/(1 − ηF) does. With α = η/(1 − ηF), parameter by "
    "parameter, the merge is EWC exactly, as section 4 has it for L2.",
    "A p that does not divide the run leaves a shorter last stretch: at p = 0.75 averages come at three quarters and "
    "at the end, so the last one follows a quarter of the run, as at p = 0.25, and the result is nearer to the old "
    "model than at p = 0.5.",
    "Equation 8 has a minus before −1/2τ², which would make the prior favour distance; (9) repeats it, (10) has "
    "the sign that is meant.",
    "Equation 13 writes Δ for the gradient.",
)
"""Where the paper's text and what holds differ, or take reading twice."""


def print_averaging(study: AveragingStudy, console: Console | None = None) -> None:
    """Prints identities and statements: blocks of the page."""
    found = [
        Paragraph(lead(study)),
        checks_table(study.checks, what="Identity", brief=True),
        statements_table(study.statements, brief="What the paper observes, on quadratic tasks"),
    ]
    Printer(console).show([*found, *(Paragraph(f"note: {n}", "note") for n in study.notes), Paragraph("")])


def averaging_page(study: AveragingStudy) -> Page:
    """The page as blocks."""
    failed = sum(not c.passed for c in study.checks)
    s = study.setting
    return Page(
        tab="Averaging and penalties (holdfast)",
        eyebrow="holdfast theory report",
        title="Averaging with the old model, and penalties",
        lead=lead(study),
        status=(f"{failed} of the identities failed", "bad") if failed else ("all identities hold", "good"),
        details=(
            f"{plural(s.dimension, 'parameter')}, decay {s.decay:g}, alignment {s.alignment:g}, rotation "
            f"{s.rotation:g}; {plural(s.steps, 'step')}, β {s.beta:g}; {plural(s.seeds, 'seed')} · Soup to Go, section "
            "4 and appendix A.2"
        ),
        blocks=[
            Tiles(_tiles(study)),
            Section("The question", [*(Paragraph(text, "prose") for text in QUESTION), Code(EQUATIONS)]),
            Section(
                "What the paper observes, asked of quadratic tasks",
                [statements_table(study.statements, paper="Soup to Go")],
                intro=(
                    "A statement holds where its ratio is below 1 with the whole interval, does not hold where it is "
                    "above 1 with the whole interval, and cannot be told otherwise. None is a prediction for a "
                    "language model."
                ),
                anchor="statements",
            ),
            Section("Forgotten and learnt", [frontier(study)]),
            Section(
                "What p does",
                [
                    learnt_by_direction(study),
                    along_p(study),
                    geometries_table(study),
                    Paragraph(f"{GEOMETRIES} {_intervals(study, study.geometries[0].ewc.n)}", "note"),
                ],
                intro=SHAPE,
            ),
            Section("Every identity, checked", [checks_table(study.checks, what="Identity")], anchor="checks"),
            notes(PAPER, "Where the paper's text needs reading twice"),
            notes(study.notes),
        ],
        footer=f"Computed in {duration(study.seconds)} by holdfast, in float64.",
    )


def lead(study: AveragingStudy) -> str:
    """What came out, in three sentences."""
    held, total = sum(c.passed for c in study.checks), len(study.checks)
    found = [s.verdict for s in study.statements]
    first = f"All {total} identities hold" if held == total else f"{held} of {total} identities hold"
    best = _best(study)
    return (
        f"{first}. Of {len(found)} statements of the paper, asked of these quadratic tasks, {found.count('holds')} "
        f"hold, {found.count('does not hold')} do not, {found.count('cannot tell')} cannot be told. Where all leave "
        f"{100 * MIDDLE:g} % of the new task's loss, SFA forgets least at {_p_in_words(study, best)}: "
        f"{number(study.equal[named(best)].value, 3)} of what direct fine-tuning does, L2 "
        f"{number(study.equal['l2'].value, 3)}, EWC {number(study.equal['ewc'].value, 3)}; "
        f"{number(study.equal['both'].value, 3)} is the least possible."
    )


def _best(study: AveragingStudy) -> float:
    return min(study.fractions, key=lambda p: study.equal[named(p)].value)


def _p_in_words(study: AveragingStudy, p: float) -> str:
    every = period(p, study.setting.steps)
    return named(p) + (" (once)" if p == 1 else " (every step)" if every == 1 else "")


def _intervals(study: AveragingStudy, n: int) -> str:
    level = f"{100 * study.setting.confidence:g} % intervals"
    return f"Brackets and bands: {level} over {n} seeds." if n > 1 else "One seed, no intervals."


def _tiles(study: AveragingStudy) -> list[Tile]:
    held, total = sum(c.passed for c in study.checks), len(study.checks)
    holds = sum(s.verdict == "holds" for s in study.statements)
    best = _best(study)
    return [
        Tile("Identities that hold", f"{held} of {total}", "to rounding", "good" if held == total else "bad"),
        Tile("Statements that hold", f"{holds} of {len(study.statements)}", "on quadratic tasks"),
        Tile("SFA forgets least", _p_in_words(study, best), "at equal new-task loss"),
    ]


# --------------------------------------------------------------------------------------------------------------- charts


def frontier(study: AveragingStudy) -> Chart:
    """The old loss against the new one, along p, beta and the coefficients."""
    s = study.setting
    least = named(min(s.p))
    styles: dict[str, tuple[str, str, str, str]] = {
        "p": (f"SFA along p, β {s.beta:g}", "accent", "circle", "solid"),
        "once": ("p = 1 along β", "third", "square", "dash"),
        "often": (f"{least} along β", "fourth", "pentagon", "dash"),
        "l2": ("L2 along λ", "second", "diamond", "dash"),
        "ewc": ("EWC along its coefficient", "bad", "triangle-up", "dash"),
        "both": ("best possible: both tasks at once", "good", "x", "dot"),
    }
    rows: list[Row] = [
        {"name": "θo", "of": "start", "strength": "", "x": 1.0, "y": 0.0, "distance": 0.0},
        {"name": "direct", "of": "start", "strength": ""}
        | {"x": drawn(study.direct.new), "y": drawn(study.direct.old), "distance": drawn(study.direct.distance)},
    ]
    marks = []
    for curve, (name, colour, symbol, dash) in styles.items():
        points = [
            {"name": name, "strength": significant(p.strength), "x": drawn(p.new), "y": drawn(p.old)}
            | {"distance": drawn(p.distance)}
            for p in study.curves[curve]
        ]
        rows += points
        look: dict[str, Any] = {"colour": colour, "symbol": symbol, "dash": dash, "bars": 0}
        marks.append(Mark(kind="line", rows=points, name=name, size=7 if curve == "p" else 5, **look))
    marks.append(Mark(where={"of": "start"}, text="name", side="top right", colour="ink", symbol="star", bars=0))
    return Chart(
        title="Old loss against new loss",
        rows=rows,
        columns=[
            Col("Method", "name", numeric=False),
            *(Col(t, k) for t, k in (("Strength", "strength"), ("New loss", "x"), ("Old loss", "y"))),
            Col("Distance to θo", "distance"),
        ],
        marks=marks,
        x=Axis(title="new task's loss, share of θo's", range=(-0.03, 1.05), more={"tickformat": ".0%"}),
        y=Axis(title="old task's loss, share of direct fine-tuning's", range=(-0.03, 1.1), more={"tickformat": ".0%"}),
        caption=(
            "Down and left is better. Means over seeds; intervals in the table, with the distance to θo over that of "
            "the new optimum. Strength: p, β, or the coefficient over the mean curvature in the penalty's metric. "
            "Within a problem nothing does better than the dotted curve."
        ),
        height=440,
    )


def learnt_by_direction(study: AveragingStudy) -> Chart:
    """The share learnt of each direction at equal new-task loss, by p."""
    shown = [1.0, *sorted(study.setting.p)[:1], study.fractions[-1]]
    rows = [
        {"x": curvature, **{m: study.learnt[m][place] for m in study.learnt}}
        for place, curvature in enumerate(study.curvatures)
    ]
    picked = [
        (named(p), _p_in_words(study, p), colour)
        for p, colour in zip(dict.fromkeys(shown), ("accent", "third", "good"), strict=False)
    ]
    return Chart(
        title="What is learnt, direction by direction",
        rows=rows,
        columns=[Col("Curvature", _figure("x")), *(Col(n, _figure(k)) for k, n, _ in picked), Col("L2", _figure("l2"))],
        marks=[
            *(Mark(kind="line", y=k, name=n, colour=colour, markers=False) for k, n, colour in picked),
            Mark(y="l2", name="L2", colour="second", symbol="circle-open", size=7),
        ],
        x=Axis(title="curvature of the new loss over its largest", log=True, ticks=_ticks(study.curvatures)),
        y=Axis(title="share learnt", range=(0, 1.05), more={"tickformat": ".0%"}),
        caption=f"First problem, all at {100 * MIDDLE:g} % of θo's new-task loss. L2 and averaging every step agree.",
        height=360,
        width="half",
    )


def _figure(key: str) -> Any:
    return lambda row: number(row[key], 4)


def _ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    return log_ticks(min(values), max(values))


def along_p(study: AveragingStudy) -> Chart:
    """The old loss over L2's at equal new-task loss against p, one line an alignment, where directions are drawn at
    random."""
    drawn_at_random = [g for g in study.geometries if g.rotation == 1]
    rows: list[Row] = []
    marks = []
    for place, g in enumerate(drawn_at_random):
        name = f"alignment {g.alignment:g}"
        points = [
            {"name": name, "p": f"{p:g}", "x": p, "y": drawn(ratio, 3)}
            for p, ratio in zip(study.fractions, g.along_p, strict=True)
        ]
        rows += points
        look: dict[str, Any] = {"rows": points, "colour": COLOURS[place]}
        marks.append(Mark(kind="band", **look))
        marks.append(Mark(kind="line", name=name, symbol=SYMBOLS[place], size=7, bars=0, **look))
    return Chart(
        title="Which p forgets least",
        rows=rows,
        columns=[Col("Tasks", "name", numeric=False), Col("p", "p"), Col("Old loss, SFA / L2", "y")],
        marks=marks,
        x=Axis(title="p (left: every step, right: once)", log=True, ticks=_ticks(study.fractions)),
        y=Axis(
            title="old loss at equal new loss, SFA / L2", log=True, ticks=ticks_at([0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5])
        ),
        rules=[Rule(y=1, dash="dash")],
        caption=f"Below 1: SFA forgets less than L2. {_intervals(study, drawn_at_random[0].ewc.n)}",
        height=360,
        width="half",
    )


def geometries_table(study: AveragingStudy) -> Table:
    """Who forgets less in which geometry."""

    def best(g: AlignedTasks) -> str:
        place = min(range(len(g.along_p)), key=lambda i: g.along_p[i].value)
        return f"{_p_in_words(study, study.fractions[place])}: {number(g.along_p[place].value, 3)}"

    return tabulate(
        study.geometries,
        [
            Col("Alignment", lambda g: f"{g.alignment:g}"),
            Col("Rotation", lambda g: f"{g.rotation:g}"),
            Col("Best p / L2", best, numeric=False),
            Col("p = 1 / L2", lambda g: in_words(g.along_p[0])),
            Col("EWC / L2", lambda g: in_words(g.ewc)),
            Col("Best possible / L2", lambda g: in_words(g.best)),
        ],
        kind="dense",
        cards=True,
    )
