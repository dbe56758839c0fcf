"""What was measured, in a terminal: a table a model, with the paired differences to the first one; and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import decimals_for, interval_text, number
from holdfast.records.metrics import readings
from holdfast.reports.blocks import Block, Facts, Paragraph, Span, Text, figure, paragraphs, sub
from holdfast.reports.charts import AS_IT_IS, heads, tabulate
from holdfast.reports.compared import ComparisonRow, decision_note
from holdfast.reports.format import direction, joined
from holdfast.statistics.decision import loss_decision

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan

SETTINGS = ("num_fewshot", "limit", "max_documents", "window", "samples", "data")
"""Settings of an entry that a plan shows."""


def result_blocks(
    models: Mapping[str, Sequence[Evaluation]], comparisons: Mapping[str, Sequence[Comparison]]
) -> list[Block]:
    """Figure, interval, number of questions, and the difference to the first model.

    Args:
        models: evaluations by label of the model.
        comparisons: those of the other models with the first, by label.
    """
    blocks: list[Block] = []
    for label, evaluations in models.items():
        compared = comparisons.get(label, ())
        leading = {(c.suite, c.name): ComparisonRow(c) for c in compared if c.primary}
        rows = []
        for e in evaluations:
            rows.append(_row(e, leading.get((e.suite, e.name))))
        columns = heads({"Measure": "measure", "Value": "value", "n": "n"})
        if leading:
            first, *figures = columns
            columns = [first, *heads({"Verdict": "verdict"}), *figures]
            columns += heads({f"Against {next(iter(models))}": "difference"}, words=0)
        title = joined(label, evaluations[0].model.get("origin")) if evaluations else label
        blocks += [tabulate(rows, columns, title=title), decision_note(loss_decision(compared))]
        for e in evaluations:
            if e.failed is not None:
                blocks.append(Paragraph(f"Failed: {e.suite}/{e.name}: {e.failed}", "bad"))
        for e in evaluations:
            blocks += paragraphs(e.notes, before="Note: ")
    return blocks


def _row(e: Evaluation, compared: ComparisonRow | None) -> dict[str, Text]:
    """The cells of an entry, with the verdict and the difference where it was compared."""
    metric = e.metrics[e.primary]
    digits = decimals_for(metric.interval)
    about = f"{e.primary}, {direction(metric.higher_is_better)}"
    for name in readings(e.primary, e.metrics):
        about += f"; {name}: {AS_IT_IS.texts(e.metrics[name])[0]}"
    value, interval = AS_IT_IS.texts(metric)
    cells: dict[str, Text] = {"measure": (f"{e.suite}/{e.name}", sub(about))}
    cells["value"] = Span(value, tone="taken"), sub(interval, tone="flat")
    cells["n"] = Span(f"{metric.n:,}", tone="flat")
    if compared is not None:
        difference = number(compared.raw.difference, digits, sign=True)
        interval = interval_text(compared.raw.interval, digits, sign=True)
        cells["verdict"] = Span((compared.verdict, sub(f"p {compared.p}")), tone=compared.tone)
        cells["difference"] = figure(difference, interval, tone=compared.tone)
    return cells


def plan_blocks(plan: EvaluationPlan, models: Sequence[tuple[str, str]], out: Path) -> list[Block]:
    """What would be measured.

    Args:
        plan: the entries.
        models: label and name of each.
        out: the output folder.
    """
    facts = [("model", f"{label}: {name}") for label, name in models]
    for entry in plan.entries:
        about = [entry.kind]
        for key in SETTINGS:
            if (value := getattr(entry, key, None)) is not None:
                about.append(f"{key} {value}")
        facts.append((entry.suite, f"{entry.name} ({', '.join(about)})"))
    facts += [("average", f"{average.name} of {len(average.members)} figures") for average in plan.averages]
    facts.append(("output", str(out)))
    rows = []
    before = ""
    for label, text in facts:
        rows.append((label if label != before else "", text))
        before = label
    return [Paragraph("Dry run: the request is sound; nothing was measured."), Paragraph(""), Facts(rows)]
