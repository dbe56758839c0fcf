"""One page on two models that answered the same questions: what was kept, what was lost, and which questions those are.

Figures, intervals and tests come from the comparisons given; the page reads the two folders for what a figure cannot
say: the questions that flipped, the subjects of a group, the documents that moved most.
Nothing is drawn for kinds that are not there, and what could not be read or compared is named.

What it does not do: decide. Rules and their outcomes are given (`GateOutcome`); the page shows them first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError
from holdfast.records.comparison import NOT_FINITE, NOT_MEASURED, Decision, GateOutcome, StageMatrix
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import interval_text, number, point_digits, points
from holdfast.records.metrics import is_share
from holdfast.reports.blocks import (
    Facts,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    chip,
    columns,
    figure,
    fold_facts,
    notes,
    problems,
    sub,
)
from holdfast.reports.charts import Axis, Chart, Col, Mark, finite, tabulate
from holdfast.reports.compared import (
    ComparisonRow,
    count_tile,
    decision_note,
    difference_note,
    gain_forest,
    gains,
    group_rank,
    group_title,
    measures_by_suite,
    ordered,
    pair_sentence,
    primary_of,
    short_names,
    without_means,
)
from holdfast.reports.flips import (
    Flips,
    documents_panel,
    flips_of,
    flips_panel,
    has_documents,
    paired,
)
from holdfast.reports.format import joined, last_part, p_value, plural, shorten, squeeze, tally
from holdfast.reports.measured import Measured, averages_of, settings_of

if TYPE_CHECKING:
    from holdfast.evaluation.compare.result import Result

OUTCOMES = {NOT_FINITE: "bad", "failed": "bad", NOT_MEASURED: "bad", "undecided": "warn", "passed": "good"}
"""Outcomes of rules, worst first, with their tones."""


def comparison_page(result: Result) -> Page:
    """A comparison as a page; the rows of the two models are read from their folders."""
    labels, gates, unmatched, matrix = result.labels, result.gates, result.unmatched, result.matrix
    first, last = (Measured(side.folder, side.label) for side in (result.sides[0], result.sides[-1]))
    sides = (first, last)
    rows = ordered(result.comparisons)
    primary = primary_of(rows)
    pairs = _pairs(sides, primary)
    flips = [
        f
        for p in pairs
        if p.shown.raw.flips_lost is not None
        for f in [flips_of(p.name, p.file, p.shown.raw.metric, p.before_rows, p.after_rows)]
        if f.found
    ]
    averages = averages_of(sides)
    outcome = next((o for o in OUTCOMES if any(g.outcome == o for g in gates)), None)
    outcome = NOT_FINITE if result.not_finite else outcome
    samples = sum({(r.raw.suite, r.raw.name): r.raw.n for r in without_means(primary)}.values())
    return Page(
        tab=f"{labels[0]} → {labels[1]}: holdfast comparison",
        eyebrow="holdfast comparison",
        title=f"{labels[0]} → {labels[1]}",
        status=(outcome, OUTCOMES[outcome]) if outcome else None,
        lead=comparison_verdict(labels, primary, gates),
        details=joined(
            f"{samples:,} paired samples" if primary else "", f"{len(unmatched):,} not compared" if unmatched else ""
        ),
        blocks=[
            *problems("NaN or infinity: the comparison has failed.", result.not_finite, "bad"),
            *problems("Some files could not be used.", [p for side in sides for p in side.problems]),
            Tiles([*_failed_tile(result), *_tiles(primary, flips, averages)]) if primary else None,
            rules_section(gates, result.decision) if gates else None,
            _differences(rows, primary, None if gates else result.decision),
            _stages(matrix) if matrix is not None and matrix.tasks else None,
            _subjects(pairs),
            _flips(flips),
            _documents(pairs),
            notes(list(unmatched), "Not compared"),
            _small_print(sides, pairs),
        ],
        footer="Written by holdfast from the files of the two evaluations.",
    )


@dataclasses.dataclass(frozen=True)
class _Pair:
    """One entry of both models with its rows side by side."""

    name: str
    shown: ComparisonRow
    before: Evaluation
    after: Evaluation
    before_rows: list[Mapping[str, Any]]
    after_rows: list[Mapping[str, Any]]
    file: str


def _pairs(sides: tuple[Measured, Measured], primary: Sequence[ComparisonRow]) -> list[_Pair]:
    """Entries whose rows of both models are there and fit together."""
    pairs = []
    seen = set()
    for r, name in zip(primary, short_names(primary), strict=True):
        key = (r.raw.suite, r.raw.name)
        before, after = (side.find(*key) for side in sides)
        if key in seen or before is None or after is None or "average" in (before.kind, after.kind):
            continue
        if r.raw.failed is not None:
            continue
        seen.add(key)
        rows = [side.rows(e) for side, e in zip(sides, (before, after), strict=True)]
        if rows[0] is None or rows[1] is None:
            continue
        try:
            left, right = paired(rows[0], rows[1], what=name)
        except DataError as error:
            sides[1].problems.append(f"{error} Its questions are not shown.")
            continue
        files = dict.fromkeys(side.samples_file(e) for side, e in zip(sides, (before, after), strict=True))
        pairs.append(_Pair(name, r, before, after, left, right, " / ".join(files)))
    return pairs


# ---------------------------------------------------------------------------------------------------------------- head


def comparison_verdict(
    labels: tuple[str, str], rows: Sequence[ComparisonRow], gates: Sequence[GateOutcome] = ()
) -> str:
    """The comparison in one sentence.

    Args:
        labels: names of the two models.
        rows: the primary comparisons.
        gates: rules and what they say.
    """
    outcomes = [g.outcome for g in gates]
    if not gates:
        first = []
    elif outcomes.count("passed") == len(outcomes):
        first = [f"{'the rule' if len(gates) == 1 else f'all {len(gates)} rules'} passed"]
    else:
        first = [f"of {plural(len(gates), 'rule')} {tally(outcomes, list(OUTCOMES))}"]
    return pair_sentence(labels, rows, first)


def _failed_tile(result: Result) -> list[Tile]:
    """What the comparison failed by, the worst first; nothing where it did not."""
    if result.not_finite:
        below = f"entries hold NaN or infinity: {shorten(', '.join(result.not_finite), 90)}"
        return [Tile("Not finite", f"{len(result.not_finite)}", below, "bad", main=True)]
    order = [o for o in OUTCOMES if o != "passed" and (o != "undecided" or result.settings.strict)]
    failed = sorted((g for g in result.gates if g.outcome in order), key=lambda g: order.index(g.outcome))
    if not failed:
        return []
    worst = failed[0]
    more = f"; {plural(len(failed) - 1, 'other rule')} too" if len(failed) > 1 else ""
    figure_ = f"{number(worst.value, 1, sign=True)} {worst.unit}" if math.isfinite(worst.value) else worst.outcome
    below = f"{worst.outcome}: {worst.suite}/{worst.name}, {worst.metric}{more}"
    return [Tile(worst.rule, figure_, below, "bad", main=True)]


def _tiles(rows: Sequence[ComparisonRow], flips: Sequence[Flips], averages: Collection[tuple[str, str]]) -> list[Tile]:
    found = []
    suites = sorted({r.raw.suite for r in rows}, key=group_rank)
    for suite in suites[: 4 if flips else 5]:
        held = [r for r in rows if r.raw.suite == suite]
        means = [r for r in held if (r.raw.suite, r.raw.name) in averages and r.share]
        shares = [r for r in held if r.share and r not in means]
        verdicts = [r.verdict for r in held]
        if NOT_FINITE in verdicts:
            found.append(count_tile(suite, verdicts))
        elif len(held) == 1 or len(means) == 1:
            r = held[0] if len(held) == 1 else means[0]
            below = f"{r.verdict} ({r.before} → {r.after} {r.unit})"
            if len(held) > 1:
                below = f"{r.before} → {r.after}; of {len(held)} measures {tally(verdicts)}"
            text = r.change()[0] if r.share else r.difference
            found.append(Tile(r.label, text, below, r.tone))
        elif len(shares) > 1:
            mean = sum(r.raw.difference for r in shares) / len(shares)
            below = f"mean of {len(shares)} accuracies; {tally(verdicts)}"
            found.append(Tile(group_title(suite), points(mean, 2), below))
        else:
            found.append(count_tile(suite, verdicts))
    if flips:
        lost, gained = sum(f.lost for f in flips), sum(len(f.found) - f.lost for f in flips)
        below = f"{lost:,} right before and wrong after, {gained:,} the reverse"
        found.append(Tile("Answers that flipped", f"{lost + gained:,}", below))
    return found


# ------------------------------------------------------------------------------------------------------------ sections


def rules_section(gates: Sequence[GateOutcome], decision: Decision | None = None) -> Section:
    """Rules and their outcomes, the worst first."""
    order = list(OUTCOMES)
    worst_first = sorted(gates, key=lambda g: order.index(g.outcome) if g.outcome in order else 0)

    def rule(g: GateOutcome) -> Text:
        return g.rule, sub(f"{g.suite}/{g.name}, {g.metric}" if g.suite or g.name else g.metric)

    def change(g: GateOutcome) -> Text:
        half = (g.interval[1] - g.interval[0]) / 2
        digits = max(1, min(5, 1 - math.floor(math.log10(half)))) if math.isfinite(half) and half > 0 else 2
        return figure(f"{number(g.value, digits, sign=True)} {g.unit}", interval_text(g.interval, digits, sign=True))

    columns = [
        Col("Rule", rule, numeric=False),
        Col("Outcome", lambda g: chip(g.outcome, OUTCOMES.get(g.outcome, "flat")), numeric=False),
        Col("Change", change),
        Col("Why", "reason", numeric=False, wide=True),
        Col("Threshold", lambda g: f"{g.threshold:g} {g.unit}", folded=True),
        Col("Adjusted p", lambda g: p_value(g.p_adjusted), folded=True),
    ]
    words = (
        "A rule is judged on the interval of the change, signed as the rule words it: failed where the whole interval "
        "lies beyond the threshold, and still does when all tests are accounted for (adjusted p, one-sided); passed "
        "where all of it lies within; else undecided. Not finite: a figure or a sample is NaN or infinite; not "
        "measured: only one of the two models was; the rule is not passed."
    )
    return Section("Rules", [decision_note(decision), tabulate(worst_first, columns), Paragraph(words, "note")])


def _differences(rows: Sequence[ComparisonRow], primary: Sequence[ComparisonRow], decision: Decision | None) -> Section:
    if not rows:
        text = "No entry of the one model could be compared with one of the other."
        return Section("Before and after", [Paragraph(text, "note")])
    tables = measures_by_suite(rows, relative=True)
    return Section("Before and after", [decision_note(decision), *gains(primary), *tables, difference_note(primary)])


STAGE_MEASURES = {
    "average_accuracy": ("Average accuracy", "mean over tasks after the last stage"),
    "backward_transfer": (
        "Backward transfer",
        "mean over earlier tasks of last score \u2212 score just after its own stage; below 0: later training cost it",
    ),
    "forgetting": ("Forgetting", "mean over earlier tasks of the best score before the last stage \u2212 last score"),
    "forward_transfer": (
        "Forward transfer",
        "mean over later tasks of the score before its own stage \u2212 score at the start",
    ),
}
"""Measures of sequential training: title and definition (Lopez-Paz and Ranzato 2017; Chaudhry et al. 2018)."""


def _stages(matrix: StageMatrix) -> Section:
    cells = []
    for key, m in matrix.measures.items():
        title, words = STAGE_MEASURES.get(key, (key.replace("_", " "), ""))
        digits = 4 if m.interval is None else max(3, point_digits(m.interval) + 2)
        interval = interval_text(m.interval, digits)
        cells.append([(title, sub(words) if words else None), number(m.value, digits), interval, f"{m.n:,}"])
    heads = columns("Measure", "Value", "Interval", "n")
    measures = Table(columns=heads, rows=cells, title="What the stages did to each other") if cells else None
    return Section("Stages of training", [stage_heat(matrix), measures])


def stage_heat(matrix: StageMatrix) -> Chart:
    """Scores of every task (across) after every stage (down); outlined where the task was the one just trained."""
    known = [v for line in matrix.scores for v in line if finite(v) is not None]
    share = is_share(matrix.unit or "accuracy", values=known)
    factor, digits = (100.0, 1) if share else (1.0, 3)
    rows = [
        {
            "after": stage,
            "z": [factor * v for v in line],
            "texts": [number(factor * v, digits) if finite(v) is not None else "" for v in line],
        }
        for stage, line in zip(matrix.stages, matrix.scores, strict=True)
    ]
    edge = {"type": "rect", "line": {"color": "var(--second)", "width": 2.5}}
    outline = [{**edge, "x0": i - 0.5, "x1": i + 0.5, "y0": i + 0.5, "y1": i + 1.5} for i in range(len(matrix.tasks))]
    unit = f"{matrix.unit}, %" if share and matrix.unit else "%" if share else matrix.unit or "score"

    def column(place: int, task: str) -> Col:
        return Col(task, lambda r: r["texts"][place] or "n/a")

    return Chart(
        title="Every task after every stage",
        rows=rows,
        columns=[Col("After", "after", numeric=False), *(column(i, t) for i, t in enumerate(matrix.tasks))],
        marks=[Mark(kind="heat", y="z", text="texts", more={"texttemplate": "%{text}"})],
        x=Axis(
            title="task, in the order of training",
            ticks=[(i, squeeze(t, 16)) for i, t in enumerate(matrix.tasks)],
            more={"showgrid": False, "fixedrange": True},
        ),
        y=Axis(names=matrix.stages, length=20, more={"range": [len(rows) - 0.5, -0.5], "showgrid": False}),
        caption=(
            f"Each row: the model after one stage ({unit}; higher is better). Outlined: the task that this stage "
            "trained. Down a column: what became of it."
        ),
        height=96 + 44 * len(rows),
        layout={"shapes": outline},
    )


def _subjects(pairs: Sequence[_Pair]) -> Section | None:
    from holdfast.evaluation.compare.samples import compare_samples
    from holdfast.statistics.family_wise import adjust

    charts = []
    for pair in pairs:
        places: dict[str, list[int]] = {}
        for place, r in enumerate(pair.before_rows):
            if r.get("task"):
                places.setdefault(str(r["task"]), []).append(place)
        metric, level = pair.shown.raw.metric, pair.shown.raw.confidence
        if len(places) < 2 or not all(metric in r for r in (*pair.before_rows, *pair.after_rows)):
            continue
        metrics = [
            dataclasses.replace(e, primary=metric, metrics={metric: e.metrics[metric]})
            for e in (pair.before, pair.after)
        ]
        rows = []
        for task, held in sorted(places.items()):
            left, right = ([side[i] for i in held] for side in (pair.before_rows, pair.after_rows))
            found = compare_samples(left, right, *metrics, confidence=level)
            rows += [ComparisonRow(dataclasses.replace(c, name=task)) for c in found]
        shown = [r for r in rows if not math.isnan(r.raw.p_value)]
        adjusted = adjust([r.raw.p_value for r in shown], "holm")
        changed = sum(p < 1 - level for p in adjusted)
        words = (
            f"{plural(len(rows), 'subject')}; {changed} changed beyond chance when all are accounted for (Holm, "
            f"two-sided, at {100 * (1 - level):.3g} %)."
        )
        names = subject_names([r.name for r in rows])
        charts.append(gain_forest(rows, title=f"{pair.name}, by subject", names=names, caption=words))
    held_charts = [c for c in charts if c is not None]
    return Section("Subjects", held_charts) if held_charts else None


def subject_names(tasks: Sequence[str]) -> list[str]:
    """Subtasks without what all their names begin with (`mmlu_anatomy` -> `anatomy`), underscores as spaces."""
    first, last = min(tasks, default=""), max(tasks, default="")  # what these two share, all between them share
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    cut = first[:same].rfind("_") + 1 if first != last else 0
    return [t[cut:].replace("_", " ") or t for t in tasks]


def _flips(found: Sequence[Flips]) -> Section | None:
    lost = sum(f.lost for f in found)
    gained = sum(len(f.found) for f in found) - lost
    intro = f"{plural(lost, 'question')} right before and wrong after, {gained:,} the reverse."
    return Section("Questions whose answers flipped", flips_panel(found), intro=intro) if found else None


def _documents(pairs: Sequence[_Pair]) -> Section | None:
    parts: list[Any] = []
    for pair in pairs:
        if not (has_documents(pair.before, pair.before_rows) and has_documents(pair.after, pair.after_rows)):
            continue
        parts.append(documents_panel(pair.before_rows, pair.after_rows))
    return Section("Documents that changed most", parts) if parts else None


def _small_print(sides: tuple[Measured, Measured], pairs: Sequence[_Pair]) -> Section:
    models = []
    versions: dict[str, str] = {}
    for side in sides:
        held = list(side.evaluations.values())
        model = held[0].model if held else {}
        name = joined(last_part(model.get("name"))[:64], shorten(str(model.get("hash") or ""), 17), model.get("origin"))
        models.append((side.label, name or "not recorded"))
        versions |= {k: str(v) for e in held for k, v in e.versions.items()}
    settings = fold_facts("Settings of the entries", settings_of(p.before for p in pairs))
    blocks = [Panel([Facts(models)], "card"), settings, fold_facts("Versions", sorted(versions.items()))]
    return Section("What was compared", blocks)
