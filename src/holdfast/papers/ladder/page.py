"""The page of a pre-trained ladder, and what the terminal prints: how its rungs learnt, what they
know, and how fast they were trained."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.ladder.record import LadderRecord, PretrainedRung
from holdfast.records.measure import Measure, number
from holdfast.reports import blocks as b
from holdfast.reports.charts import Axis, Chart, Value, log_ticks, rounded
from holdfast.reports.format import count, plural, significant
from holdfast.reports.study_page import (
    cell,
    grid,
    lines,
    print_study,
    scatter,
    section,
    state_chip,
    study_page,
)

if TYPE_CHECKING:
    from rich.console import Console

PLAIN = Measure()
"""Of all figures: their unit stands in the title, shares are numbers between 0 and 1."""
READING = (
    "Every checkpoint comes from its own run, whose learning rate ends at zero. No checkpoint "
    "comes from the middle of a longer run, where the learning rate would still be high "
    "(Overtrained Language Models, section 3.2).",
    "All models of a size begin with the same weights. They read the same text in the same "
    "order, each up to its budget.",
    "Intervals cover the measured documents or questions, but not other seeds.",
)


def ladder_page(record: LadderRecord) -> b.Page:
    """The page as blocks."""
    names = _figure_names(record)
    charts = [figure_chart(record, name) for name in names]
    curves = [_loss_chart(record, size) for size in record.sizes]
    sections = [
        section("Effect of longer pre-training", *charts, rung_table(record, names)),
        section("During training", *curves),
    ]
    return study_page(
        record,
        "ladder",
        summary(record),
        sections,
        reading=READING,
        details=_sizes(record),
        facts=_facts(record),
    )


def print_ladder(record: LadderRecord, folder: Path, console: Console | None = None) -> None:
    """Prints what came of a ladder: blocks of the page, and how to probe it.

    Args:
        record: the ladder.
        folder: where it lies.
        console: None: standard output.
    """
    blocks: list[b.Block] = [rung_table(record, _figure_names(record)[:2])]
    for size in record.sizes:
        path = folder / f"{size}.yaml"
        if path.is_file():
            blocks.append(b.Paragraph(f"Probe it: holdfast probe --ladder {path} --corpus TEXT"))
    print_study(record, summary(record), blocks, folder, console)


def summary(record: LadderRecord) -> str:
    """What came out, a sentence a size."""
    sentences = []
    for size in record.sizes:
        rungs = [rung for rung in record.rungs if rung.size == size and rung.figures]
        budgets = sorted({rung.budget for rung in rungs})
        if len(budgets) < 2:
            continue
        name, figure = next(iter(rungs[0].figures.items()))
        means = [_mean_text(rungs, name, budget) for budget in (budgets[0], budgets[-1])]
        change = f"{_short(name)} from {means[0]} to {means[1]} {figure.unit}"
        sentences.append(
            f"{size}: {change} between {count(budgets[0])} and {count(budgets[-1])} tokens."
        )
    complete = sum(rung.state == "complete" for rung in record.rungs)
    if complete < len(record.rungs):
        sentences.append(f"{complete} of {len(record.rungs)} models are complete.")
    return (
        " ".join(sentences)
        or f"{plural(len(record.rungs), 'rung')} of {plural(len(record.sizes), 'size')}."
    )


def _mean_text(rungs: Sequence[PretrainedRung], name: str, budget: int) -> str:
    """A figure at a budget, mean over the seeds."""
    values = []
    for rung in rungs:
        if rung.budget == budget and name in rung.figures:
            values.append(rung.figures[name].value)
    return number(statistics.fmean(values) if values else None, 3)


def _figure_names(record: LadderRecord) -> list[str]:
    """What was measured of any rung, by "suite/name"."""
    names: dict[str, Any] = {}
    for rung in record.rungs:
        names |= rung.figures
    return list(names)


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _unit(record: LadderRecord, name: str) -> str:
    return next(rung.figures[name].unit for rung in record.rungs if name in rung.figures)


def _sizes(record: LadderRecord) -> list[str]:
    texts = []
    for name, size in record.sizes.items():
        text = (
            f"{name}: {plural(size.layers, 'layer')}, width {size.width}, {size.heads} heads, MLP "
            f"{size.mlp}"
        )
        if size.parameters:
            text += (
                f", {count(size.parameters)} parameters ({count(size.without_tables)} without "
                "embedding tables)"
            )
            budgets = sorted(rung.budget for rung in record.rungs if rung.size == name)
            text += f", {_per_parameter(budgets, size.parameters)} tokens per parameter"
        texts.append(text)
    return texts


def _per_parameter(budgets: Sequence[int], parameters: int) -> str:
    """Tokens a parameter of the smallest and of the largest budget, tables counted."""
    ends = dict.fromkeys([budgets[0], budgets[-1]]) if budgets else {}
    return " to ".join(significant(rounded(budget / parameters, 2)) for budget in ends)


def _speed(rung: PretrainedRung) -> str:
    return count(rung.tokens / rung.seconds) if rung.seconds else ""


def rung_table(record: LadderRecord, names: Sequence[str]) -> b.Table:
    """A line a rung.

    Args:
        record: the ladder.
        names: which figures to show, by "suite/name".
    """
    cells: dict[b.Text, Any] = {
        "Size": "size",
        "State": lambda rung: state_chip(rung.state, rung.reason or ""),
    }
    cells["Tokens"] = lambda rung: b.figure(count(rung.budget), value=float(rung.budget))
    if len({rung.seed for rung in record.rungs}) > 1:
        cells["Seed"] = lambda rung: str(rung.seed)
    cells["Loss, nats"] = lambda rung: "" if rung.loss is None else number(rung.loss, 3)
    for name in names:
        cells[f"{_short(name)}, {_unit(record, name)}"] = lambda rung, name=name: cell(
            PLAIN, rung.figures.get(name)
        )
    cells["Tokens/s"] = _speed
    return grid(record.rungs, cells, words=2, kind="dense")


def _tokens_axis(budgets: Sequence[int]) -> Axis:
    few = [(float(budget), count(budget)) for budget in budgets]
    ticks = few if len(budgets) < 7 else log_ticks(budgets[0], budgets[-1])
    return Axis(title="tokens of pre-training", log=True, ticks=ticks or few)


def figure_chart(record: LadderRecord, name: str) -> Chart | None:
    """A figure against the budget, a line a size; points where a budget has several seeds."""
    rungs = [rung for rung in record.rungs if name in rung.figures]
    budgets = sorted({rung.budget for rung in rungs})
    if len(budgets) < 2:
        return None
    rows = []
    for rung in rungs:
        value = Value.of(rung.figures[name], PLAIN)
        rows.append({"line": rung.size, "tokens": count(rung.tokens), "x": rung.budget, "y": value})
    unit = _unit(record, name)
    draw = scatter if len({rung.seed for rung in rungs}) > 1 else lines
    columns = {"line": "Size", "tokens": "Tokens", "y": unit}
    return draw(
        _short(name), rows, _tokens_axis(budgets), Axis(title=unit), columns=columns, height=320
    )


def _loss_chart(record: LadderRecord, size: str) -> Chart | None:
    """The training loss of each rung of a size."""
    rows = []
    budgets = []
    for rung in record.rungs:
        if rung.size != size or len(rung.curve) < 2:
            continue
        budgets.append(rung.budget)
        seed = f", seed {rung.seed}" if rung.seed else ""
        tokens, losses = zip(*rung.curve, strict=True)
        rows.append(
            {"line": f"{count(rung.budget)} tokens{seed}", "x": list(tokens), "y": list(losses)}
        )
    if not rows:
        return None
    return lines(
        f"{size}: training loss",
        rows,
        _tokens_axis(sorted(budgets)),
        Axis(title="nats/token"),
        columns={"line": "Run", "end": "Final loss, nats"},
        legend=True,
        height=340,
    )


def _facts(record: LadderRecord) -> list[tuple[str, b.Text]]:
    config, text = record.config, record.text
    facts: list[tuple[str, b.Text]] = [("Architecture", str(config.get("architecture", "")))]
    if text:
        facts.append(
            ("Text", f"{count(text['tokens'])} tokens of {count(text['documents'])} documents")
        )
        facts.append(("Vocabulary", count(text.get("vocabulary"))))
    facts.append(
        ("A step", f"{config.get('batch_size')} windows of {config.get('context')} tokens")
    )
    if config.get("learning_rate"):
        facts.append(("Learning rate", f"{config['learning_rate']:g}, cosine to zero"))
    facts.append(
        ("muP", f"base width {config['base_width']}" if config.get("base_width") else "no")
    )
    return facts
