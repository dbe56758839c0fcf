"""One page on `theory.overtraining_study`: what pre-training for longer does to a model that is then perturbed or
fine-tuned, in a two-layer linear network.

Reads only the record of the study (`OvertrainingStudy`, what `holdfast theory overtraining` writes as JSON).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.reports.blocks import Code, Page, Paragraph, Section, Tile, Tiles, notes
from holdfast.reports.charts import COLOURS, SYMBOLS, Axis, Chart, Col, Mark, Row, Rule, log_ticks, ticks_at
from holdfast.reports.format import duration, number, plural
from holdfast.reports.terminal import Printer
from holdfast.reports.theory_charts import drawn
from holdfast.reports.theory_report import checks_table, statements_table
from holdfast.theory.findings import Interval
from holdfast.theory.overtraining_study import Along, OvertrainingStudy

if TYPE_CHECKING:
    from rich.console import Console

QUESTION = (
    "Language models that were pre-trained on more tokens can come out worse after the same fine-tuning or the same "
    "noise (Overtrained Language Models): the base improves with every token, the modified model turns at some "
    "budget and gets worse. The paper explains it on the smallest model that learns its task piece by piece: a network "
    "of two linear layers, whose singular values s₁ > s₂ > … are learnt one after the other, the features of "
    "pre-training.",
    "Every feature learnt lowers the base's loss by sₙ², once. It also is one more thing that noise disturbs and that "
    "fine-tuning moves away. Where that costs more than sₙ², the modified model gets worse with longer pre-training. "
    "The number of features learnt at that point is the inflection point.",
)
EQUATIONS = """\
pre-training   ‖W₁W₂ − U diag(s) Vᵀ‖²                         xᵢ(t) = sᵢ x₀ / (x₀ + (sᵢ − x₀) exp(−4 sᵢ t))
noise γ        Σ(i>n) sᵢ² + 2Dγ² Σ(i≤n) sᵢ + D³γ⁴             rises at n where sₙ < 2Dγ²
fine-tuning    ‖W₁W₂ − U diag(f) Vᵀ‖² + λ‖W₁W₂ − θₙ‖²         xᵢ → (fᵢ + λsᵢ) / (1 + λ) for i ≤ n
  old loss     Σ(i>n) sᵢ² + Σ(i≤n) ((fᵢ − sᵢ) / (1 + λ))²     rises at n where |fₙ − sₙ| > (1 + λ) sₙ
  new loss     Σ(i>n) fᵢ² + Σ(i≤n) (λ (fᵢ − sᵢ) / (1 + λ))²
  both         √forgotten + √left to learn = ‖f − s‖ over the learnt features, at every λ

x: singular values of θ = W₁W₂, from x₀ = exp(−2τ) on; s, f: those of the two tasks; D features, n learnt"""
"""Section 4, lemmas A.4, A.7 and A.23; the sigmoid is Saxe et al.'s, the last equation ours."""
NOISE = (
    "Noise costs 2Dγ² for every unit of singular value that was learnt, and learning the n-th feature brings sₙ². So a "
    "feature is worth learning while sₙ exceeds 2Dγ². Singular values fall: past the inflection point every further "
    "feature costs more than it brings."
)
TUNING = (
    "A feature is worth learning while fine-tuning moves it by less than (1 + λ) of its own size. As f is positive, "
    "that fails only where the new task weighs the feature more than 2 + λ times as much as pre-training did: a new "
    "task that uses what is known less than before never makes longer pre-training harmful."
)
LONGER = (
    "The theorems hold for fine-tuning that is long enough for learnt features to arrive and too short for the others "
    "to grow. A real model has a trace of every feature, and fine-tuning that goes on learns those too, from the new "
    "task. In the end all checkpoints meet, and how long they were pre-trained no longer matters."
)
PAPER = (
    "Equation 2 and lemma A.4 print ≥; the last line of the proof has equality, as here. Below it the inflection point "
    "is called the smallest n with 2Dγ² > σₙ; by definition 4.2 it is one less.",
    "Theorem A.3 asks for γ² > σ_d/d; half of that is enough, and all that is needed.",
    "The proof of lemma A.5 has E Tr(ααᵀ)‖M‖² in the middle, which is d times too much; its result is right.",
    "The minimiser is (f + λs)/(1 + λ), as A.23 to A.25 use it. Lemmas A.11 and A.28 print (s + λf)/(1 + λ), and "
    "equation 18 lacks an x in its last term, which A.6 has.",
    "Theorem 4.6 asks for a misaligned task (f > αs, α > 1). Its proof needs no more than f ≠ s.",
    "Theorem A.25 prints n ≤ r where n > r is meant, and that larger λ moves the inflection to fewer features; its "
    "proof and theorem 4.7 have it to more. Its inflection point is the feature from which on the loss only rises, "
    "definition 4.2's the first at which it does; both move the same way. Four times σ is sufficient; more than twice "
    "is enough.",
    "W₁ = W₂ = e^(−τ)I as the start needs U = V. Gradient flow keeps the sign of det θ, so a task with a negative "
    "determinant is never reached from there. Here the start is e^(−τ)U, e^(−τ)Vᵀ.",
    "Between checkpoints the perturbed loss falls and rises again within every feature: it is least at x = s − Dγ². "
    "Definition 4.2 sees only the checkpoints.",
)
"""Where the paper's text and what holds differ, or take reading twice."""


def print_overtraining(study: OvertrainingStudy, console: Console | None = None) -> None:
    """Prints checks and statements: blocks of the page."""
    found = [
        Paragraph(lead(study)),
        checks_table(study.checks, what="Closed form", brief=True),
        statements_table(study.statements, brief="What the theorems say, of trained models"),
    ]
    Printer(console).show([*found, *(Paragraph(f"note: {n}", "note") for n in study.notes), Paragraph("")])


def overtraining_page(study: OvertrainingStudy) -> Page:
    """The page as blocks."""
    failed = sum(not c.passed for c in study.checks)
    s = study.setting
    return Page(
        tab="Overtraining in a linear network (holdfast)",
        eyebrow="holdfast theory report",
        title="Overtraining in a two-layer linear network",
        lead=lead(study),
        status=(f"{failed} of the closed forms failed", "bad") if failed else ("all closed forms hold", "good"),
        details=(
            f"{plural(s.dimension, 'feature')}, ratio {s.ratio:g}, flatness {s.flatness:g}, spread {s.spread:g}; τ "
            f"{s.tau:g}, fine-tuning time {s.finetune_time:g}; {plural(s.seeds, 'seed')} · "
            "Overtrained Language Models, section 4 and appendix A"
        ),
        blocks=[
            Tiles(_tiles(study)),
            Section("The question", [*(Paragraph(text, "prose") for text in QUESTION), Code(EQUATIONS)]),
            Section("Features are learnt one after another", [features_chart(study)]),
            Section("Noise", _both(study, noise=True), intro=NOISE),
            Section("Fine-tuning", [*_both(study, noise=False), cost_chart(study)], intro=TUNING),
            Section("Fine-tuning for longer", [longer_chart(study)], intro=LONGER),
            Section(
                "What the theorems say, asked of trained models",
                [statements_table(study.statements, paper="Overtrained Language Models")],
                intro=(
                    "Models pre-trained by gradient flow from a small start and fine-tuned for a finite time by "
                    "gradient descent. A statement holds where its ratio is below 1 with the whole interval, does not "
                    "hold where it is above 1 with the whole interval, and cannot be told otherwise."
                ),
                anchor="statements",
            ),
            Section("Every closed form, checked", [checks_table(study.checks, what="Closed form")], anchor="checks"),
            notes(PAPER, "Where the paper's text needs reading twice"),
            notes(study.notes),
        ],
        footer=f"Computed in {duration(study.seconds)} by holdfast, in float64.",
    )


def lead(study: OvertrainingStudy) -> str:
    """What came out, in three sentences."""
    held, total = sum(c.passed for c in study.checks), len(study.checks)
    found = [s.verdict for s in study.statements]
    first = f"All {total} closed forms hold" if held == total else f"{held} of {total} closed forms hold"
    text = (
        f"{first}. Of {len(found)} statements of the paper, asked of models as training leaves them, "
        f"{found.count('holds')} hold, {found.count('does not hold')} do not, {found.count('cannot tell')} cannot be "
        "told. "
    )
    return f"{text}Of {study.setting.dimension} features, {_turn(study.noise, 'γ')}; {_turn(study.tuning, 'λ')}."


def _turn(along: Sequence[Along], sign: str) -> str:
    ends = [along[0]] if len(along) == 1 else [along[0], along[-1]]
    turns = " and ".join(f"{number(a.inflection.value, 1)} at {sign} {a.strength:g}" for a in ends)
    return f"{'noise' if sign == 'γ' else 'fine-tuning'} makes one more harmful after {turns}"


def _tiles(study: OvertrainingStudy) -> list[Tile]:
    held, total = sum(c.passed for c in study.checks), len(study.checks)
    holds = sum(s.verdict == "holds" for s in study.statements)
    return [
        Tile(
            "Closed forms that hold", f"{held} of {total}", "within what is allowed", "good" if held == total else "bad"
        ),
        Tile("Statements that hold", f"{holds} of {len(study.statements)}", "of models as training leaves them"),
        Tile("Fine-tuning turns after", number(study.tuning[0].inflection.value, 1), "features, at λ 0"),
        Tile("and after", number(study.tuning[-1].inflection.value, 1), f"at λ {study.tuning[-1].strength:g}"),
    ]


# --------------------------------------------------------------------------------------------------------------- charts


def _both(study: OvertrainingStudy, *, noise: bool) -> list[Chart]:
    """The figures that both modifications have."""
    return [draw(study, noise=noise) for draw in (time_chart, along_chart, sensitivity_chart, inflection_chart)]


def _intervals(study: OvertrainingStudy, what: str = "Bands") -> str:
    n = study.setting.seeds
    return (
        f"{what}: {100 * study.setting.confidence:g} % intervals over {n} seeds."
        if n > 1
        else "One seed, no intervals."
    )


def _shown(study: OvertrainingStudy, noise: bool) -> list[tuple[Along, str, str, str]]:
    """The weakest, the middle and the strongest modification: with name, colour and symbol."""
    every = study.noise if noise else study.tuning
    places = sorted({0, len(every) // 2, len(every) - 1})
    sign = "γ" if noise else "λ"
    return [
        (every[place], f"{sign} {every[place].strength:g}", COLOURS[i + 1], SYMBOLS[i + 1])
        for i, place in enumerate(places)
    ]


def _line(key: str, name: str, colour: str, symbol: str = "circle", **more: Any) -> Mark:
    return Mark(
        **{"kind": "line", "y": key, "name": name, "colour": colour, "symbol": symbol, "size": 6, "bars": 0, **more}
    )


def _figure(key: str) -> Any:
    return lambda row: number(row[key], 4)


def features_chart(study: OvertrainingStudy) -> Chart:
    """Every singular value against pre-training time: sigmoids, and gradient descent on them."""
    first = study.first
    names = [str(i) for i in range(1, len(first.pretraining) + 1)]
    rows: list[Row] = [
        {"name": name, "s": s, "f": f, "t": t}
        for name, s, f, t in zip(names, first.pretraining, first.finetuning, first.checkpoints, strict=True)
    ]
    marks = []
    for place, (flow, descent) in enumerate(zip(first.learnt, first.descended, strict=True)):
        look: dict[str, Any] = {"colour": COLOURS[place % len(COLOURS)], "x": "x", "y": "y"}
        lines = [{"x": x, "y": y} for x, y in zip(first.times, flow, strict=True)]
        spots = [{"x": x, "y": y} for x, y in zip(first.descent_times, descent, strict=True)]
        marks.append(Mark(kind="line", rows=lines, markers=False, **look))
        marks.append(Mark(rows=spots, symbol="circle-open", size=5, **look))
    return Chart(
        title="Singular values against pre-training time",
        rows=rows,
        columns=[
            Col("Feature", "name"),
            *(Col(t, _figure(k)) for t, k in (("s", "s"), ("f, new task", "f"), ("Learnt by", "t"))),
        ],
        marks=marks,
        x=Axis(title="pre-training time", log=True, ticks=log_ticks(first.times[0], first.times[-1])),
        y=Axis(title="singular value", from_zero=True),
        rules=[Rule(x=t) for t in first.checkpoints],
        caption=(
            "First problem. Lines: gradient flow, in closed form. Circles: gradient descent in finite steps, which "
            "takes a little longer. Dotted: t₁ to the last, when one feature is there and the next is not yet."
        ),
        height=340,
    )


def time_chart(study: OvertrainingStudy, *, noise: bool) -> Chart:
    """The loss of base and modified models against pre-training time, first problem."""
    first = study.first
    losses = {"base": first.base}
    losses |= {name: (first.noisy if noise else first.tuned)[f"{a.strength:g}"] for a, name, *_ in _shown(study, noise)}
    rows: list[Row] = []
    for n, t in enumerate(first.checkpoints, 1):
        at = first.times.index(t)
        rows.append({"name": str(n), "x": t, **{key: values[at] for key, values in losses.items()}})
    marks = []
    looks = [("base", "muted", "circle"), *(look for _, *look in _shown(study, noise))]
    for name, colour, symbol in looks:
        lines = [{"x": x, name: y} for x, y in zip(first.times, losses[name], strict=True)]
        marks.append(_line(name, "", colour, rows=lines, markers=False))
        marks.append(Mark(y=name, name=name, colour=colour, symbol=symbol, size=6))
    modified = "after noise, expected" if noise else "after fine-tuning"
    return Chart(
        title=f"Loss {modified}, in time",
        rows=rows,
        columns=[Col("Features", "name"), Col("Time", _figure("x")), *(Col(k, _figure(k)) for k in losses)],
        marks=marks,
        x=Axis(title="pre-training time", log=True, ticks=log_ticks(first.times[0], first.times[-1])),
        y=Axis(title="pre-training loss", from_zero=True),
        caption="First problem. Marks: t₁ to the last, after 1, 2, … features.",
        height=360,
        width="half",
    )


def _by_features(
    study: OvertrainingStudy, series: Sequence[tuple[str, Sequence[Interval], str, str]], **more: Any
) -> Chart:
    """Means over seeds with bands against the number of features learnt."""
    rows: list[Row] = [
        {"name": str(n), "x": n, **{name: drawn(values[n], 3) for name, values, *_ in series}}
        for n in range(len(study.base))
    ]
    bands = [Mark(kind="band", y=name, colour=colour) for name, _, colour, _ in series]
    return Chart(
        rows=rows,
        columns=[Col("Features", "name"), *(Col(name, name) for name, *_ in series)],
        marks=[*bands, *(_line(name, name, colour, symbol) for name, _, colour, symbol in series)],
        x=Axis(title="features learnt in pre-training", more={"dtick": max(1, study.setting.dimension // 8)}),
        height=360,
        width="half",
        **more,
    )


def along_chart(study: OvertrainingStudy, *, noise: bool) -> Chart:
    """The loss of base and modified models against features learnt, over all problems."""
    series = [(name, a.loss, colour, symbol) for a, name, colour, symbol in _shown(study, noise)]
    return _by_features(
        study,
        [("base", study.base, "muted", "circle"), *series],
        title=f"Loss after {'noise' if noise else 'fine-tuning'}, by features learnt",
        y=Axis(title="pre-training loss", from_zero=True),
        caption=_intervals(study),
    )


def sensitivity_chart(study: OvertrainingStudy, *, noise: bool) -> Chart:
    """What the modification adds to the loss, against features learnt."""
    series = [(name, a.sensitivity, colour, symbol) for a, name, colour, symbol in _shown(study, noise)]
    return _by_features(
        study,
        series,
        title=f"Sensitivity to {'noise' if noise else 'fine-tuning'}",
        y=Axis(title="loss after minus loss before", from_zero=True),
        caption=f"It grows with every feature, also where the loss itself still falls. {_intervals(study)}",
    )


def inflection_chart(study: OvertrainingStudy, *, noise: bool) -> Chart:
    """The inflection point against the strength of the modification."""
    every = study.noise if noise else study.tuning
    rows: list[Row] = [{"name": f"{a.strength:g}", "x": a.strength, "y": drawn(a.inflection, 2)} for a in every]
    sign = "γ" if noise else "λ"
    strengths = [a.strength for a in every]
    x = Axis(title=sign, log=True, ticks=ticks_at(strengths)) if noise else Axis(title=sign)
    return Chart(
        title=f"Inflection point against {sign}",
        rows=rows,
        columns=[Col(sign, "name"), Col("Features learnt", "y")],
        marks=[Mark(kind="line", size=8)],
        x=x,
        y=Axis(title="features learnt when one more harms", range=(0, study.setting.dimension + 0.5)),
        rules=[Rule(y=study.setting.dimension, dash="dash")],
        caption=f"The dashed line: no feature harms. {_intervals(study, 'Bars')}",
        height=360,
        width="half",
    )


def cost_chart(study: OvertrainingStudy) -> Chart:
    """What lambda saves of the old loss and costs on the new task, after all features."""
    rows: list[Row] = [
        {"name": f"{a.strength:g}", "x": a.strength, "old": drawn(a.loss[-1], 3), "new": drawn(a.task[-1], 3)}
        for a in study.tuning
    ]
    return Chart(
        title="What λ saves and what it costs",
        rows=rows,
        columns=[Col("λ", "name"), Col("Pre-training loss", "old"), Col("New task's loss", "new")],
        marks=[
            *(Mark(kind="band", y=k, colour=c) for k, c in (("old", "accent"), ("new", "second"))),
            _line("old", "pre-training loss", "accent"),
            _line("new", "new task's loss", "second", "diamond"),
        ],
        x=Axis(title="λ"),
        y=Axis(title="loss after fine-tuning", from_zero=True),
        caption=f"All features learnt before. {_intervals(study)}",
        height=340,
    )


def longer_chart(study: OvertrainingStudy) -> Chart:
    """The loss after fine-tuning at lambda 0 against features learnt, by how long it went on; first problem."""
    longer = study.first.longer
    rows: list[Row] = [
        {"name": str(n), "x": n, **{key: values[n] for key, values in longer.items()}} for n in range(len(study.base))
    ]
    return Chart(
        title="Loss after fine-tuning that goes on",
        rows=rows,
        columns=[Col("Features", "name"), *(Col(f"× {key}", _figure(key)) for key in longer)],
        marks=[_line(k, f"× {k}", COLOURS[i], SYMBOLS[i]) for i, k in enumerate(longer)],
        x=Axis(title="features learnt in pre-training", more={"dtick": max(1, study.setting.dimension // 8)}),
        y=Axis(title="pre-training loss", from_zero=True),
        caption=f"First problem, λ 0. × 1: a fine-tuning time of {study.setting.finetune_time:g}, as above.",
        height=340,
    )
