"""What was measured, in a terminal: a table a model, and its paired differences to the first one;
and a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation
from holdfast.records.metrics import readings
from holdfast.reports.blocks import Block, Facts, Paragraph, Text, figure, paragraphs, sub
from holdfast.reports.charts import AS_IT_IS, heads, tabulate
from holdfast.reports.compared import brief_tables, decision_note, ordered, primary_of
from holdfast.reports.format import direction, joined
from holdfast.statistics.decision import level_of, loss_decision

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.forecast import Forecast

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
        title = joined(label, evaluations[0].model.get("origin")) if evaluations else label
        blocks.append(tabulate(evaluations, RESULTS, title=title))
        compared = comparisons.get(label, ())
        if compared:
            blocks.append(Paragraph(f"Against {next(iter(models))}", "strong"))
            blocks += [
                *brief_tables(primary_of(ordered(compared))),
                decision_note(loss_decision(compared)),
            ]
        for e in evaluations:
            if e.failed is not None:
                blocks.append(Paragraph(f"Failed: {e.suite}/{e.name}: {e.failed}", "bad"))
        for e in evaluations:
            blocks += paragraphs(e.notes, before="Note: ")
    return blocks


def _measure(e: Evaluation) -> Text:
    about = f"{e.primary}, {direction(e.leading.higher_is_better)}"
    for name in readings(e.primary, e.metrics):
        about += f"; {name}: {AS_IT_IS.texts(e.metrics[name])[0]}"
    return f"{e.suite}/{e.name}", sub(about)


RESULTS = heads(
    {
        "Measure": _measure,
        "Value": lambda e: figure(*AS_IT_IS.texts(e.leading)),
        "n": lambda e: f"{e.leading.n:,}",
    }
)


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
    facts += [
        ("average", f"{average.name} of {len(average.members)} figures")
        for average in plan.averages
    ]
    facts.append(("output", str(out)))
    return [
        Paragraph("Dry run: the request is sound; nothing was measured."),
        Paragraph(""),
        Facts(facts),
    ]


def forecast_blocks(
    forecasts: Sequence[Forecast], *, flips: float, confidence: float
) -> list[Block]:
    """What a plan can show before it is measured.

    Args:
        forecasts: one an entry.
        flips: the share of answers that was taken to differ between two models.
        confidence: of the plan's intervals.
    """
    columns = heads(
        {
            "Entry": "entry",
            "Metric": "metric",
            "Samples": lambda f: f"{f.samples:,}",
            "Smallest loss": lambda f: "-" if f.loss is None else f"{100 * f.loss:.3g} pt",
            "Seconds": lambda f: f"{f.seconds:,.0f}" if f.seconds >= 10 else f"{f.seconds:.1f}",
        },
        words=2,
    )
    seconds = sum(forecast.seconds for forecast in forecasts)
    tests = f"{len(forecasts)} entries together" if len(forecasts) > 1 else "the entry"
    return [
        tabulate(list(forecasts), columns),
        Paragraph(
            "Smallest loss: if the true loss is this large, a comparison of two models detects it "
            f"with a probability of 80 %. This assumes that {100 * flips:g} % of the answers differ "
            "(--flips). The probability of a false alarm is at most "
            f"{100 * level_of(confidence):.3g} % for {tests}. A dash marks metrics other than right "
            "/ wrong answers: their smallest loss is known only after two models are measured.",
            "note",
        ),
        Paragraph(
            f"Seconds are estimated from a few samples of one model: about {seconds:,.0f} in all.",
            "note",
        ),
    ]
