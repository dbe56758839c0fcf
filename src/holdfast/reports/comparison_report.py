"""One page on two models that answered the same questions: what was kept, what was lost, and which
questions those are.

Figures, intervals and tests come from the comparisons given; the page reads the two folders for
what a figure cannot say: the questions that flipped, the subjects of a group, the documents that
moved most. Nothing is drawn for kinds that are not there, and what could not be read or compared is
named.

What it does not do: decide. Rules and their outcomes are given (`GateOutcome`); the page shows them
first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import DataError
from holdfast.evaluation.compare.breakdown import LENGTH
from holdfast.records.comparison import (
    ACCEPTED,
    CANNOT_TELL,
    GAINED,
    HOLD,
    LITTLE_GAINED,
    LITTLE_LOST,
    LOST,
    NOT_FINITE,
    NOT_MEASURED,
    SHIP,
    Breakdown,
    Comparison,
    Decision,
    GateOutcome,
    Verdict,
)
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import interval_text, number
from holdfast.reports.answers import answers_in_words, answers_section
from holdfast.reports.blocks import (
    Block,
    Code,
    Facts,
    Fold,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Text,
    Tiles,
    Tone,
    chip,
    figure,
    fold_facts,
    notes,
    present,
    problems,
    sub,
)
from holdfast.reports.charts import Chart, Col, Row, fold, heads, tabulate
from holdfast.reports.compared import (
    ComparisonRow,
    Rows,
    by_suite,
    decision_note,
    difference_note,
    gain_forest,
    gains,
    headline,
    measures_by_suite,
    ordered,
    primary_of,
    short_names,
    suite_tile,
    summary,
    without_means,
)
from holdfast.reports.decision_text import reason_in_words, verdict_in_words
from holdfast.reports.flips import (
    Flips,
    documents_panel,
    flips_of,
    flips_table,
    has_documents,
    paired,
)
from holdfast.reports.format import joined, last_part, p_value, plural, shorten
from holdfast.reports.measured import Measured, settings_of, subject_names

if TYPE_CHECKING:
    from holdfast.evaluation.compare.result import Result

OUTCOMES = {
    NOT_FINITE: "bad",
    "failed": "bad",
    NOT_MEASURED: "bad",
    "undecided": "warn",
    ACCEPTED: "warn",
    "passed": "good",
}
"""Outcomes of rules, worst first, with their tones."""
CHANGED = (LOST, GAINED, LITTLE_LOST, LITTLE_GAINED)
"""Verdicts that say that something moved."""
VERDICT_TONES: dict[str, Tone] = {SHIP: "good", HOLD: "bad", CANNOT_TELL: "warn"}


def comparison_page(result: Result) -> Page:
    """A comparison as a page; the rows of the two models are read from their folders."""
    labels, gates, unmatched = result.labels, result.gates, result.unmatched
    before, after = result.sides[0], result.sides[-1]
    sides = [Measured(before.folder, before.label), Measured(after.folder, after.label)]
    rows = ordered(result.comparisons)
    primary = primary_of(rows)
    pairs = list(_pairs(sides, primary, allow_unpaired=result.settings.allow_unpaired))
    flips = []
    for pair in pairs:
        if pair.row.flips:
            flips.append(flips_of(pair.name, pair.file, pair.row.raw.metric, *pair.samples))
    verdict, status = result.verdict, None
    if result.broken:
        status = NOT_FINITE, "bad"
    elif verdict is not None:
        status = verdict.word, VERDICT_TONES[verdict.word]
    samples = {(row.raw.suite, row.raw.name): row.raw.n for row in without_means(primary)}
    counted = f"{sum(samples.values()):,} paired samples" if primary else ""
    tiles = [suite_tile(members) for members in by_suite(primary).values()]
    return Page(
        tab=f"{labels[0]} → {labels[1]}: holdfast comparison",
        eyebrow="holdfast comparison",
        title=f"{labels[0]} → {labels[1]}",
        status=status,
        lead=_lead(result),
        details=joined(counted, f"{len(unmatched):,} not compared" if unmatched else ""),
        blocks=[
            *problems("NaN or infinity.", result.not_finite, "bad"),
            *problems("Some files could not be used.", [*sides[0].problems, *sides[1].problems]),
            Tiles(tiles) if primary else None,
            _rules(gates, result.decision) if gates else None,
            None
            if result.asks_only
            else _differences(rows, primary, None if gates else result.decision),
            _where(result.breakdowns, primary),
            _flips(flips),
            _documents(pairs),
            None if result.answers is None else answers_section(result.answers, labels),
            _next_step(result),
            notes(list(result.notes)),
            notes(list(unmatched), "Not compared"),
            _small_print(sides, pairs),
        ],
        footer="Written by holdfast from the files of the two evaluations.",
    )


@dataclasses.dataclass(frozen=True)
class _Pair:
    """One entry of both models with its rows side by side."""

    name: str
    row: ComparisonRow
    evaluations: tuple[Evaluation, Evaluation]
    samples: Sequence[list[Row]]
    """Of both models, the same at the same place."""
    file: str


def _pairs(sides: Sequence[Measured], primary: Rows, *, allow_unpaired: float) -> Iterator[_Pair]:
    """Entries whose rows of both models are there and fit together."""
    entries = set()
    for row, name in zip(primary, short_names(primary), strict=True):
        entry = row.raw.suite, row.raw.name
        before, after = (side.find(*entry) for side in sides)
        if row.raw.failed is not None or entry in entries or before is None or after is None:
            continue
        if "average" in (before.kind, after.kind):
            continue
        entries.add(entry)
        left, right = sides[0].rows(before), sides[1].rows(after)
        if left is None or right is None:
            continue
        try:
            samples = paired(left, right, what=name, allow_unpaired=allow_unpaired)
        except DataError as error:
            sides[1].problems.append(f"{error} The questions of this entry are not shown.")
            continue
        files = dict.fromkeys((sides[0].samples_file(before), sides[1].samples_file(after)))
        yield _Pair(name, row, (before, after), samples, " / ".join(files))


# --------------------------------------------------------------------------------------------- head


def _lead(result: Result) -> str:
    """What became of everything, or where nothing is compared what both models answer."""
    if result.answers is not None and result.asks_only:
        return answers_in_words(result.answers)
    return comparison_verdict(result.comparisons, result.verdict)


def comparison_verdict(comparisons: Sequence[Comparison], verdict: Verdict | None = None) -> str:
    """What became of everything in a line, and what the gate says, if there is one."""
    verdict_text = "" if verdict is None else f" {verdict_in_words(verdict)}"
    return f"{summary(comparisons)}{verdict_text}"


def _worst_first(gates: Sequence[GateOutcome]) -> list[GateOutcome]:
    order = list(OUTCOMES)
    return sorted(gates, key=lambda gate: order.index(gate.outcome) if gate.outcome in order else 0)


# ----------------------------------------------------------------------------------------- sections

RULE_WORDS = (
    "A rule is judged on the interval of the change, in the direction that the rule names. "
    "Failed: the whole interval is beyond the threshold, also after adjustment for all tests "
    "(adjusted p, one-sided). Passed: no part of the interval is beyond the threshold. Otherwise "
    "the rule is undecided. A rule also does not pass if a metric or a sample is NaN or infinite "
    "(not finite), or if one of the models was not measured (not measured)."
)


def _rules(gates: Sequence[GateOutcome], decision: Decision | None) -> Section:
    """Rules and their outcomes, the worst first."""
    words = heads({"Rule": _rule_and_entry, "Outcome": _outcome_chip}, words=2)
    why = Col("Why", reason_in_words, numeric=False, wide=True)
    statistics = heads(
        {
            "Threshold": lambda g: f"{g.threshold:g} {g.unit}",
            "Adjusted p": lambda g: p_value(g.p_adjusted),
        },
        words=0,
    )
    table = tabulate(_worst_first(gates), [*words, Col("Change", _change), why, *fold(statistics)])
    return Section("Rules", [decision_note(decision), table, Paragraph(RULE_WORDS, "note")])


def _rule_and_entry(gate: GateOutcome) -> Text:
    entry = f"{gate.suite}/{gate.name}, " if gate.suite or gate.name else ""
    return gate.rule, sub(f"{entry}{gate.metric}")


def _outcome_chip(gate: GateOutcome) -> Text:
    return chip(gate.outcome, OUTCOMES.get(gate.outcome, "flat"))


def _change(gate: GateOutcome) -> Text:
    half = (gate.interval[1] - gate.interval[0]) / 2
    digits = max(1, min(5, 1 - math.floor(math.log10(half)))) if 0 < half < math.inf else 2
    interval = interval_text(gate.interval, digits, sign=True)
    return figure(f"{number(gate.value, digits, sign=True)} {gate.unit}", interval)


def _differences(rows: Rows, primary: Rows, decision: Decision | None) -> Section:
    if not rows:
        text = "The two models have no entry that can be compared."
        return Section("Before and after", [Paragraph(text, "note")])
    tables = measures_by_suite(rows)
    changed = headline([row.raw for row in rows])
    return Section(
        "Before and after",
        [
            Paragraph(changed),
            decision_note(decision),
            *gains(primary),
            *tables,
            difference_note(primary),
        ],
    )


def _where(breakdowns: Sequence[Breakdown], rows: Rows) -> Section | None:
    """Groups of the samples: subjects as a forest, the others as tables; lengths only of entries
    that changed."""
    names = {}
    changed = set()
    for row, name in zip(rows, short_names(rows), strict=True):
        key = row.raw.suite, row.raw.name, row.raw.metric
        names[key] = name
        if row.verdict in CHANGED:
            changed.add(key)
    blocks: list[Block | None] = []
    for breakdown in breakdowns:
        key = breakdown.suite, breakdown.name, breakdown.metric
        if key not in names or (breakdown.by == LENGTH and key not in changed):
            continue
        of_what = " of the question" if breakdown.by == LENGTH else ""
        title = f"{names[key]}, by {breakdown.by}{of_what}"
        if breakdown.by == "subject":
            blocks.append(_group_forest(breakdown, title))
            blocks.append(Fold("Lost and gained by subject", [_group_table(breakdown, "")]))
        else:
            blocks.append(_group_table(breakdown, title))
    drawn = present(blocks)
    return Section("Where it changed", drawn) if drawn else None


def _changed_groups(breakdown: Breakdown) -> str:
    """How many groups changed, all of them accounted for."""
    level = 1 - breakdown.groups[0].confidence
    changed = sum(p < level for p in breakdown.p_adjusted)
    return (
        f"{plural(len(breakdown.groups), 'group')}, of which {changed} changed significantly. The "
        f"p values are adjusted for all groups (Holm, two-sided, at {100 * level:.3g} %)."
    )


def _group_forest(breakdown: Breakdown, title: str) -> Chart | None:
    """The gain on each group."""
    rows = list(map(ComparisonRow, breakdown.groups))
    names = subject_names([row.name for row in rows])
    return gain_forest(rows, title, names=names, caption=_changed_groups(breakdown))


def _group_table(breakdown: Breakdown, title: str) -> Table:
    """How many samples of each group were lost and gained; the largest loss first, lengths in their
    order."""
    lines = list(zip(map(ComparisonRow, breakdown.groups), breakdown.p_adjusted, strict=True))
    if breakdown.by != LENGTH:
        lines.sort(key=lambda line: line[0].raw.gain)
    columns = heads(
        {
            breakdown.by.capitalize(): lambda line: line[0].name,
            "Lost": lambda line: _count(line[0].raw.flips_lost),
            "Gained": lambda line: _count(line[0].raw.flips_gained),
            "n": lambda line: line[0].n,
            "Change": lambda line: figure(*line[0].change()),
            "Adjusted p": lambda line: p_value(line[1]),
        },
    )
    if all(group.flips_lost is None for group in breakdown.groups):
        columns = [column for column in columns if column.title not in ("Lost", "Gained")]
    return tabulate(lines, columns, title=title, kind="dense", note=_changed_groups(breakdown))


def _count(flips: int | None) -> str:
    return "" if flips is None else f"{flips:,}"


def _flips(flips: Sequence[Flips]) -> Section | None:
    lost = sum(entry.lost for entry in flips)
    gained = sum(len(entry.questions) for entry in flips) - lost
    intro = f"Right before and wrong after: {plural(lost, 'question')}. The reverse: {gained:,}."
    return (
        Section("Questions whose answers flipped", flips_table(flips), intro=intro)
        if lost + gained
        else None
    )


def _documents(pairs: Sequence[_Pair]) -> Section | None:
    panels = []
    for pair in pairs:
        if all(map(has_documents, pair.evaluations, pair.samples)):
            panels.append(documents_panel(*pair.samples))
    return Section("Documents that changed most", panels) if panels else None


def _next_step(result: Result) -> Section | None:
    """What to do about a loss. Where it is to look at this page, there is no command."""
    step = result.next_step
    if step is None:
        return None
    command = Code(step.command) if step.command and not step.on_page else None
    return Section("Next step", present([Paragraph(step.text), command]))


def _small_print(sides: Sequence[Measured], pairs: Sequence[_Pair]) -> Section:
    models = []
    versions: dict[str, str] = {}
    for side in sides:
        evaluations = list(side.evaluations.values())
        for evaluation in evaluations:
            versions |= evaluation.versions
        model = evaluations[0].model if evaluations else {}
        weights = shorten(str(model.get("hash") or ""), 17)
        name = joined(last_part(model.get("name"))[:64], weights, model.get("origin"))
        models.append((side.label, name or "not recorded"))
    settings = fold_facts(
        "Settings of the entries", settings_of(pair.evaluations[0] for pair in pairs)
    )
    blocks = [
        Panel([Facts(models)], "card"),
        settings,
        fold_facts("Versions", sorted(versions.items())),
    ]
    return Section("What was compared", blocks)
