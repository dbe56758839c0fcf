"""One page on a study of `theory`: what the statements are, whether they hold, what they say about forgetting.

Reads only the record of the study (`RegressionStudy`, what `holdfast theory regression` writes as JSON); the
three-parameter pictures are the fixed examples of `theory.regression.illustration`. The figures are drawn in
`theory_charts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.reports.blocks import (
    Block,
    Code,
    Facts,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    chip,
    columns,
    notes,
    sub,
    words,
)
from holdfast.reports.claims_report import TONES
from holdfast.reports.format import duration, number, plural, significant
from holdfast.reports.terminal import Printer
from holdfast.reports.theory_charts import (
    against_lambda,
    convergence,
    fresh_frontier,
    frontier,
    geometry_chart,
    in_words,
    learnt_by_direction,
    picture_from_above,
    picture_from_the_side,
    scientific,
    seen_by_pretraining,
)
from holdfast.theory.findings import Check, Interval, Statement
from holdfast.theory.regression_study import RegressionStudy

if TYPE_CHECKING:
    from rich.console import Console

QUESTION = (
    "A model was trained on old data and is now trained on new data, with the old data gone. How much of the old does "
    'it lose, and does it help to tie the new model to the old one? The paper "Memory Retaining Finetuning" asks this '
    "of language models and answers it exactly for the smallest model with the same problem: linear regression with "
    "more parameters than examples. Such a model can fit its old data perfectly and still has room; what new data does "
    "to it can be written down.",
    "Three ways to train on the new data are compared. Direct fine-tuning minimises only the new error. L2 adds a "
    "penalty on how far the parameters move from where they started. Label annealing adds a penalty on how far the "
    "predictions on the new inputs move; it is the linear counterpart of the KL term that holdfast adds to a language "
    "model's loss. Both penalties are weighed by λ.",
)
EQUATIONS = """\
pre-training      ½‖X̃θ − ỹ‖²                         ends at   θ0 = X̃ᵀ(X̃X̃ᵀ)⁻¹ỹ
direct            ½‖Xθ − y‖²                         ends at   (I − P)θ0 + m
L2                ½‖Xθ − y‖² + λ/2‖θ − θ0‖²          ends at   (XᵀX + λI)⁻¹(Xᵀy + λθ0)
label annealing   ½‖Xθ − y‖² + λ/2‖Xθ − Xθ0‖²        ends at   (I − P)θ0 + λ/(1+λ)·Pθ0 + 1/(1+λ)·m

P = Xᵀ(XXᵀ)⁻¹X   projects onto the span of the new rows        m = Xᵀ(XXᵀ)⁻¹y   fits the new rows with least norm

All three are  θ0 + V·diag(fᵢ/sᵢ)·r  with X = U·diag(s)·Vᵀ and r = Uᵀ(y − Xθ0):
direct fᵢ = 1        label annealing fᵢ = 1/(1+λ)        L2 fᵢ = sᵢ²/(sᵢ² + λ)"""
"""Section 4, equations 4 and 6 to 8, and theorem 1; the last two lines are ours."""

GEOMETRY = (
    "The new rows see a part of the parameter space, their span; they are blind to the rest. No method changes what "
    "the rows are blind to. Inside the span, direct fine-tuning ends at m and has forgotten what θ0 was there. Label "
    "annealing stops on the straight segment from Pθ0 to m. L2 stops on a curve between the same ends: directions in "
    "which the new rows are strong are learnt first."
)
WHY = (
    "Both are the best of their kind. Of all parameters with the same new error, L2's are nearest to θ0, and label "
    "annealing's change the predictions on the new inputs least. The old error is neither: it is the change of the "
    "predictions on the old inputs. Where the old data feels every direction alike, nearness is what counts, and L2 "
    "forgets less. Where it feels most the directions that are strong in the new data too, as when both come from one "
    "uneven distribution, predictions on the new inputs stand in for those on the old ones, and label annealing "
    "forgets less."
)
SHAPES = (
    "Overlap: share of the new inputs' squared length inside the span of the old rows. Decay: the j-th feature has "
    "variance in proportion to j to the power of −decay, in both tasks; 0 is an even distribution. All other settings "
    "are those of this study."
)
DESCENT = (
    "Nothing above was trained: it was computed from the closed forms. Here gradient descent is run on the first "
    "problem, with 0.99 of the paper's largest step, and compared with the closed form after every step. Its distance "
    "is known beforehand from the eigenvalues (lemma B.1)."
)
PAPER = (
    "It prints (XX)⁻¹ in theorem 1, section 4.3 and appendix B.1. For X with n rows and d columns that product does "
    "not exist; (XXᵀ)⁻¹ is meant.",
    "Section 4.3 says label annealing adds back a component along [I − Xᵀ(XXᵀ)⁻¹X]θ0. The equation below it, and this "
    "page, say Pθ0: the part inside the span.",
    "Section 4.3 finds no clean intuition for L2 because its two terms overlap. Sorted by the span, L2 keeps the same "
    "outside part as the others and mixes inside, direction by direction; label annealing's two inside terms overlap "
    "as well. That L2 must do worse does not follow from this theory.",
    "Lemma B.1 asks for a step below 1/q, q being the largest eigenvalue. Descent converges below 2/q; the bound is "
    "sufficient, not necessary.",
    "In theorem 1's bound, min{1/σ², 1/(λ+σ²), 1/((1+λ)σ²)}, the first is never the least for λ > 0.",
    "Appendix B.1 gives Σ of the compact SVD the shape d × d (it is n × n). Proposition 4.1 refers to problem (6), X "
    "and y where it means (4), X̃ and ỹ. The proof said to be in appendix A is in appendix B.",
)
"""Where the paper's text and what holds differ."""


def print_regression(study: RegressionStudy, console: Console | None = None) -> None:
    """Prints the checks and the comparison at equal fine-tuning error: blocks of the page."""
    title = "Pre-training error where the same share of the start's fine-tuning error is left"
    ratios = ratios_table(study, title)
    # Figures and their heads are never broken, so words of the other columns would be in eighty characters.
    heads = [
        dataclasses.replace(c, title=words(c.title).replace("label annealing", "label\nannealing"))
        for c in ratios.columns
    ]
    ratios = dataclasses.replace(ratios, columns=heads)
    found = [Paragraph(lead(study)), checks_table(study.checks, brief=True), ratios]
    Printer(console).show([*found, *(Paragraph(f"note: {n}", "note") for n in study.notes), Paragraph("")])


def regression_page(study: RegressionStudy) -> Page:
    """The page as blocks."""
    failed = sum(not c.passed for c in study.checks)
    title = "Label annealing in linear regression"
    s = study.setting
    level = f"{100 * s.confidence:g} %"
    return Page(
        tab=f"{title} (holdfast)",
        eyebrow="holdfast theory report",
        title=title,
        lead=lead(study),
        status=(f"{plural(failed, 'statement')} failed", "bad") if failed else ("all statements hold", "good"),
        details=(
            f"{s.dimension} parameters, {plural(s.pretrain_rows, 'pre-training row')}, "
            f"{plural(s.finetune_rows, 'fine-tuning row')}, overlap {s.overlap:g}, decay {s.decay:g}, shift "
            f"{s.shift:g}, noise {s.noise:g}; {plural(s.seeds, 'seed')} · "
            "Memory Retaining Finetuning, section 4 and appendix B"
        ),
        blocks=[
            Tiles(_tiles(study)),
            Section("The question", [*(Paragraph(text, "prose") for text in QUESTION), Code(EQUATIONS)]),
            Section(
                "The geometry",
                [picture_from_above(alike=True), picture_from_above(alike=False), picture_from_the_side()],
                intro=GEOMETRY,
            ),
            Section(
                "Forgotten and learnt, against λ",
                [against_lambda(study, pretraining=first) for first in (True, False)],
                intro="Small λ is direct fine-tuning, large λ does not train at all.",
            ),
            Section(
                "At equal fine-tuning error, which forgets less?",
                [
                    frontier(study),
                    fresh_frontier(study),
                    ratios_table(study),
                    Paragraph(
                        f"Pre-training error on the rows, mean and {level} interval over {plural(s.seeds, 'seed')}; "
                        "the ratio is a geometric mean of ratios within each problem.",
                        "note",
                    ),
                ],
                intro=_frontier_words(study),
            ),
            Section(
                "Why, and when it turns",
                [
                    seen_by_pretraining(study),
                    learnt_by_direction(study),
                    geometry_chart(study.geometries, s.confidence),
                    Paragraph(SHAPES, "note"),
                ],
                intro=WHY,
            ),
            Section(
                "Gradient descent arrives",
                [convergence(study, pretraining=first) for first in (True, False)],
                intro=DESCENT,
            ),
            Section("Every statement, checked", [checks_table(study.checks)], anchor="checks"),
            notes(PAPER, "Where the paper's text needs reading twice"),
            notes(study.notes),
            Section("Settings", [Panel([Facts(_settings(study))], "card")]),
        ],
        footer=f"Computed in {duration(study.seconds)} by holdfast, in float64.",
    )


def lead(study: RegressionStudy) -> str:
    """What came out, in two or three sentences."""
    held = sum(c.passed for c in study.checks)
    total = len(study.checks)
    first = (
        f"All {total} statements of the theory hold"
        if held == total
        else f"{held} of {total} statements of the theory hold"
    )
    return f"{first}. {finding(study)}"


def finding(study: RegressionStudy) -> str:
    """Which method forgets less at equal fine-tuning error, here and in the other geometries."""
    e = study.middle
    if e.ratio is None:
        return (
            "In these problems neither L2 nor label annealing forgets anything: the new rows are orthogonal to the "
            "old ones."
        )
    size = 100 * abs(e.ratio.value - 1)
    if e.ratio.low is None:
        ratio = number(e.ratio.value, 3)
        text = (
            f"With one seed there is no verdict; at equal fine-tuning error L2's pre-training error is {ratio} of "
            "label annealing's."
        )
    elif e.verdict == "no difference beyond noise":
        text = (
            "At equal fine-tuning error no difference between L2 and label annealing is established here (ratio "
            f"{in_words(e.ratio)})."
        )
    else:
        less, more = ("L2", "label annealing") if e.ratio.value < 1 else ("label annealing", "L2")
        size = size if e.ratio.value < 1 else 100 * (1 - 1 / e.ratio.value)
        text = (
            f"At equal fine-tuning error {less} forgets {number(size, 0)} % less than {more} here (L2 / label "
            f"annealing {in_words(e.ratio)})."
        )
    annealing, ridge = (sum(g.verdict.startswith(name) for g in study.geometries) for name in ("label annealing", "L2"))
    if annealing or ridge:
        count = len(study.geometries)
        rest = count - annealing - ridge
        text += (
            f" It depends on the data: of {count} geometries tried, {annealing} favour label annealing, {ridge} L2, "
            f"{rest} neither."
        )
    return text


def _tiles(study: RegressionStudy) -> list[Tile]:
    held, total = sum(c.passed for c in study.checks), len(study.checks)
    arrived = [d.relative_distance for d in study.descents if d.steps_needed is not None]
    ratio, direct = study.middle.ratio, study.direct.pretraining
    reach = f"largest relative distance, {len(arrived)} of {len(study.descents)} runs arrived"
    unit = "pre-training errors at equal fine-tuning error"
    return [
        Tile(
            "Statements that hold", f"{held} of {total}", "to the stated tolerance", "good" if held == total else "bad"
        ),
        Tile("Descent to closed form", scientific(max(arrived, default=None)), reach),
        Tile("Direct forgets", number(direct.value, 3), f"pre-training error, {_bracket(study, direct)}"),
        Tile("L2 / label annealing", "none", "nothing is forgotten")
        if ratio is None
        else Tile("L2 / label annealing", number(ratio.value, 3), f"{unit}, {_bracket(study, ratio)}"),
    ]


def _bracket(study: RegressionStudy, interval: Interval) -> str:
    if interval.low is None:
        return "one seed"
    return f"{100 * study.setting.confidence:g} % interval [{number(interval.low, 3)}, {number(interval.high, 3)}]"


def _frontier_words(study: RegressionStudy) -> str:
    both = study.joint.pretraining.value <= 1e-12 and study.joint.finetuning.value <= 1e-12
    room = ": there is room for both, so nothing has to be forgotten" if both else ""
    return (
        "λ of one method is not comparable with λ of another. So each is taken at the λ that leaves a given share of "
        "the start's fine-tuning error, and the pre-training errors are compared. The triangle is least squares on "
        f"both tasks' rows together, as replay of all old data would allow{room}."
    )


def ratios_table(study: RegressionStudy, title: str = "") -> Table:
    """The numbers of the frontier with the verdicts, without the ends that both methods share."""
    whole = frontier(study)
    held = dataclasses.replace(whole, rows=[r for r in whole.rows if "verdict" in r]).table
    rows = [[*cells, chip(verdict)] for *cells, verdict in held.rows]
    return dataclasses.replace(held, rows=rows, title=title, kind="dense", cards=True)


def checks_table(checks: Sequence[Check], *, what: str = "Statement", brief: bool = False) -> Table:
    """Every statement with its deviation; `brief`: without what is measured, for eighty characters."""
    rows: list[list[Block]] = []
    for c in checks:
        small = sub(c.note) if c.note else None
        holds = chip("holds", "good") if c.passed else chip("fails", "bad")
        figures = [scientific(c.value), scientific(c.allowed)]
        rows.append([c.name, *figures, (holds, small)] if brief else [c.name, (c.what, small), *figures, holds])
    titles = (what, "Deviation", "Allowed", "Holds")
    if brief:
        return Table(columns=columns(*titles, right=(1, 2)), rows=rows, title="Largest relative deviation")
    heads = columns(titles[0], "What is measured", *titles[1:], right=(2, 3), wide=(1,))
    return Table(columns=heads, rows=rows, kind="dense")


def statements_table(statements: Sequence[Statement], *, paper: str = "", brief: str = "") -> Table:
    """Every statement with its ratio and verdict; `brief`: the title of the same without what is compared, for eighty
    characters."""
    rows: list[list[Block]] = []
    for s in statements:
        ends = [in_words(s.ratio), chip(s.verdict, TONES[s.verdict])]
        rows.append([s.name, *ends] if brief else [s.name, s.what, s.source, *ends])
    if brief:
        heads = columns("Statement", "Ratio", "Verdict", right=(1,))
        return Table(columns=heads, rows=rows, title=f"{brief} (ratio below 1: holds)")
    titles = ("Statement", "What is compared", paper, "Ratio", "Verdict")
    return Table(columns=columns(*titles, right=(3,), wide=(1,)), rows=rows, kind="dense")


def _settings(study: RegressionStudy) -> list[tuple[str, str]]:
    s = study.setting
    return [
        ("Parameters", f"{s.dimension:,}"),
        ("Pre-training rows", f"{s.pretrain_rows:,}"),
        ("Fine-tuning rows", f"{s.finetune_rows:,}"),
        (
            "Overlap",
            f"{s.overlap:g} of the squared length of fine-tuning inputs lies in the span of the pre-training rows",
        ),
        ("Decay", f"{s.decay:g}: variance of the j-th feature in proportion to j to the power of −decay"),
        (
            "Shift",
            f"{s.shift:g}: the tasks' parameters differ by this times the size of the first's (standard deviation of "
            "predictions)",
        ),
        ("Noise", f"{s.noise:g}: standard deviation in the targets; the pre-training signal's is 1"),
        ("λ", ", ".join(significant(w) for w in s.weights)),
        ("Seeds", f"{s.seed} to {s.seed + s.seeds - 1}" if s.seeds > 1 else f"{s.seed}"),
        ("Tolerance", f"{scientific(s.tolerance)} relative, for gradient descent, at most {s.most_steps:,} steps"),
    ]
