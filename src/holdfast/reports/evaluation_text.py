"""What was measured, in a terminal: a table a model, with the paired differences to the first one; and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import decimals_for, interval_text, number
from holdfast.records.metrics import readings
from holdfast.reports.blocks import Block, Facts, Paragraph, Span, Text, figure, sub
from holdfast.reports.charts import Col, tabulate
from holdfast.reports.compared import ComparisonRow, decision_note
from holdfast.reports.format import direction, joined
from holdfast.statistics.decision import loss_decision

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan

SETTINGS = ("num_fewshot", "limit", "max_documents", "window", "samples", "data")
"""Settings of an entry that a plan shows."""


def result_blocks(
    found: Mapping[str, Sequence[Evaluation]], comparisons: Mapping[str, Sequence[Comparison]]
) -> list[Block]:
    """Figure, interval, number of questions, and the difference to the first model.

    Args:
        found: evaluations by label of the model.
        comparisons: those of the other models with the first, by label.
    """
    blocks: list[Block] = []
    for label, evaluations in found.items():
        differences = {(c.suite, c.name): ComparisonRow(c) for c in comparisons.get(label, ()) if c.primary}

        def difference(e: Evaluation, rows: Mapping[tuple[str, str], ComparisonRow] = differences) -> Text:
            r = rows.get((e.suite, e.name))
            if r is None:
                return None
            digits = decimals_for(e.metrics[e.primary].interval)
            change = number(r.raw.difference, digits, sign=True)
            return figure(change, interval_text(r.raw.interval, digits, sign=True), tone=r.tone)

        def verdict(e: Evaluation, rows: Mapping[tuple[str, str], ComparisonRow] = differences) -> Text:
            r = rows.get((e.suite, e.name))
            return None if r is None else Span((r.verdict, sub(f"p {r.p}")), tone=r.tone)

        columns = [Col("Measure", _measure, numeric=False), Col("Value", _value), Col("n", _samples)]
        if differences:
            columns.insert(1, Col("Verdict", verdict, numeric=False))
            columns.append(Col(f"Against {next(iter(found))}", difference))
        blocks.append(
            tabulate(
                evaluations,
                columns,
                title=joined(label, evaluations[0].model.get("origin")) if evaluations else label,
            )
        )
        note = decision_note(loss_decision(comparisons.get(label, ())))
        blocks += [note] if note is not None else []
        broken = [e for e in evaluations if e.failed is not None]
        blocks += [Paragraph(f"Failed: {e.suite}/{e.name}: {e.failed}", "bad") for e in broken]
        blocks += [Paragraph(f"Note: {note}", "note") for e in evaluations for note in e.notes]
    return blocks


def _measure(e: Evaluation) -> Text:
    others = readings(e.primary, e.metrics)
    also = [f"; {m}: {number(e.metrics[m].value, decimals_for(e.metrics[m].interval))}" for m in others]
    return f"{e.suite}/{e.name}", sub(f"{e.primary}, {direction(e.metrics[e.primary].higher_is_better)}{''.join(also)}")


def _value(e: Evaluation) -> Text:
    m = e.metrics[e.primary]
    digits = decimals_for(m.interval)
    return Span(number(m.value, digits), tone="taken"), sub(interval_text(m.interval, digits), tone="flat")


def _samples(e: Evaluation) -> Text:
    return Span(f"{e.metrics[e.primary].n:,}", tone="flat")


def plan_blocks(plan: EvaluationPlan, models: Sequence[tuple[str, str]], out: Path) -> list[Block]:
    """What would be measured.

    Args:
        plan: the entries.
        models: label and name of each.
        out: the output folder.
    """
    facts = [("model", f"{label}: {name}") for label, name in models]
    for entry in plan.entries:
        settings = [f"{key} {value}" for key in SETTINGS if (value := getattr(entry, key, None)) is not None]
        facts.append((entry.suite, f"{entry.name} ({', '.join([entry.kind, *settings])})"))
    facts += [("average", f"{a.name} of {len(a.members)} figures") for a in plan.averages]
    facts.append(("output", str(out)))
    first = [a if not i or facts[i - 1][0] != a else "" for i, (a, _) in enumerate(facts)]
    rows = list(zip(first, (text for _, text in facts), strict=True))
    return [Paragraph("Dry run: the request is sound; nothing was measured."), Paragraph(""), Facts(rows)]
