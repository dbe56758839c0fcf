"""A fragility card: one page on one checkpoint of an overtraining study. What noise, few bits, pruning and a
fine-tuning cost it, beside its sibling of the next smaller budget, and what retention buys.

Reads the study's record, nothing else. Costs are signed so that a loss is positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.records.overtraining import Arm, Checkpoint, OvertrainingRecord, Scored, TunedFigure, TunedModel
from holdfast.records.probe import Sensitivity
from holdfast.reports import blocks as b
from holdfast.reports.blocks import Page, Panel, Section, Table, Text, Tile, Tiles, figure
from holdfast.reports.charts import Axis, Chart, Col, Mark, Row, Value, tabulate
from holdfast.reports.format import (
    count,
    decimals_for,
    hardware_text,
    interval_text,
    joined,
    listed,
    number,
)
from holdfast.reports.html import write_page
from holdfast.reports.overtraining_report import cost_value, line_look
from holdfast.reports.probe_report import KINDS, change_text

FOLDER = "cards"
"""Of the cards, in a study's folder."""
MOST_RATES = 3
"""That the table shows of each way: the tuned one, and those beside it."""
MEANING = (
    "Cost: what a figure loses against the checkpoint as it is, on the same documents or questions; positive is worse. "
    "Intervals (95 %) cover samples and, where there are several, seeds; they say nothing of another pre-training.",
    "Tuned: the learning rate that the validation data chooses for this checkpoint.",
)


def write_cards(folder: Path, record: OvertrainingRecord) -> list[Path]:
    """Writes a card for each checkpoint of which something was measured.

    Args:
        folder: the study's; the cards go to `FOLDER` in it.
        record: the study.

    Raises:
        StorageError: a page could not be written; an earlier one is intact.
    """
    return [
        write_page(card_page(record, c), folder / FOLDER / f"{c.label}.html")
        for c in record.checkpoints
        if _changes(record, c.label) or _models(record, c.label)
    ]


def card_page(record: OvertrainingRecord, checkpoint: Checkpoint) -> Page:
    """The card as blocks."""
    sibling = _sibling(record, checkpoint)
    about = [checkpoint.name]
    about += [f"{count(checkpoint.tokens)} tokens of pre-training"] if checkpoint.tokens else []
    about += [f"{count(checkpoint.probed.parameters)} parameters"] if checkpoint.probed is not None else []
    changes = _changes(record, checkpoint.label)
    kinds = [KINDS[k] for k in KINDS if any(s.kind == k for s in changes)]
    return Page(
        tab=f"{checkpoint.label}: fragility card",
        eyebrow="holdfast fragility card",
        title=checkpoint.label,
        lead=lead(record, checkpoint),
        details=" · ".join(about),
        blocks=[
            Tiles(_tiles(record, checkpoint)),
            Section("Without training", [change_table(record, checkpoint, sibling)]) if changes else None,
            *(section for task in record.tasks for section in _fine_tuning(record, checkpoint, sibling, task)),
            b.notes([*MEANING, *kinds, *([_of_sibling(checkpoint, sibling)] if sibling else [])], "How to read it"),
            Section("Made of", [Panel(b.facts_or_nothing(_facts(record, checkpoint)), "card")]),
        ],
        footer=joined("Measured by holdfast", hardware_text(record.hardware)),
    )


# --------------------------------------------------------------------------------------------------------------- answer


def lead(record: OvertrainingRecord, checkpoint: Checkpoint) -> str:
    """What it costs, in words: each change of middle size, a fine-tuning at the tuned rate, and what retention buys."""
    told, sibling = [], _sibling(record, checkpoint)
    for s in _spoken(_changes(record, checkpoint.label)):
        other = next((o for o in _spoken(_changes(record, sibling.label)) if _same(o, s)), None) if sibling else None
        beside = f" ({_sibling_words(checkpoint, sibling)} {_words(other)})" if other is not None and sibling else ""
        told.append(f"{change_text(s)} costs it {_words(s)}{beside}")
    sentences = [f"On {_kept_name(record)}: {', '.join(told)}."] if told else []
    for task in record.tasks:
        sentences += _task_words(record, checkpoint, sibling, task)
    return " ".join(sentences) or "Nothing was measured yet."


def _task_words(record: OvertrainingRecord, checkpoint: Checkpoint, sibling: Checkpoint | None, task: str) -> list[str]:
    kept, target = (record.leading(task, suite) for suite in ("source", "target"))
    direct = _tuned(record, task, record.direct, checkpoint)
    if kept is None or target is None or direct is None:
        return []
    rate, model = direct
    cost, brought = model.figures[kept.key], model.figures[target.key]
    if not math.isfinite(cost.cost):
        return [f"Fine-tuned on {task} at {rate:g} it diverges."]
    beside = ""
    other = record.model(task, record.direct, rate, sibling.label) if sibling is not None else None
    if other is not None and sibling is not None and kept.key in other.figures:
        beside = f" ({_sibling_words(checkpoint, sibling)} {_amount(other.figures[kept.key].cost, kept)})"
    found = [
        f"A fine-tune on {task} at {rate:g} costs it {_amount(cost.cost, kept)} of {kept.name}{beside} and brings "
        f"{_amount(-brought.cost, target)} of {target.name}."
    ]
    for arm in (a for a in record.arms if a.label != record.direct):
        tuned = _tuned(record, task, arm.label, checkpoint)
        if tuned is not None and math.isfinite(tuned[1].figures[kept.key].cost):
            one = tuned[1].figures
            found.append(
                f"With {arm.label} at {tuned[0]:g} it costs {_amount(one[kept.key].cost, kept)} and brings "
                f"{_amount(-one[target.key].cost, target)}."
            )
    return found


def _amount(value: float, scored: Scored) -> str:
    return f"{number(value, 3)} {scored.unit}" if math.isfinite(value) else "a loss without end"


def _words(s: Sensitivity) -> str:
    return "a figure that is not finite" if s.failed else f"{number(s.harm, 3)} {s.unit}"


def _spoken(held: Sequence[Sensitivity]) -> list[Sensitivity]:
    """One change of each kind: the one in the middle of its sizes."""
    own = [[s for s in held if s.kind == kind] for kind in KINDS]
    return [some[len(some) // 2] for some in own if some]


def _same(one: Sensitivity, other: Sensitivity) -> bool:
    return (one.kind, one.label, one.size) == (other.kind, other.label, other.size)


def _sibling(record: OvertrainingRecord, checkpoint: Checkpoint) -> Checkpoint | None:
    """The checkpoint of the next smaller budget."""
    place = [c.label for c in record.checkpoints].index(checkpoint.label)
    return record.checkpoints[place - 1] if place else None


def _sibling_words(checkpoint: Checkpoint, sibling: Checkpoint) -> str:
    here, there = checkpoint.tokens, sibling.tokens
    half = here is not None and there is not None and abs(here / there - 2) < 0.05
    return "its sibling of half the tokens" if half else f"its sibling of {count(sibling.tokens)} tokens"


def _of_sibling(checkpoint: Checkpoint, sibling: Checkpoint) -> str:
    return f"Beside it: {_sibling_words(checkpoint, sibling)} ({sibling.label}), put through the same."


def _kept_name(record: OvertrainingRecord) -> str:
    return record.sensitivities[0].entry.rpartition("/")[2]


def _changes(record: OvertrainingRecord, label: str) -> list[Sensitivity]:
    """What was done to it without training, on the first entry."""
    entry = record.sensitivities[0].entry if record.sensitivities else ""
    return [s for s in record.sensitivities if (s.model, s.entry) == (label, entry)]


def _models(record: OvertrainingRecord, label: str) -> list[TunedModel]:
    return [m for m in record.models if m.checkpoint == label and m.figures]


def _tuned(record: OvertrainingRecord, task: str, arm: str, checkpoint: Checkpoint) -> tuple[float, TunedModel] | None:
    """The tuned rate of a way, and the model there; with one rate alone that one."""
    wanted = (task, arm, checkpoint.label)
    rate = next((r.rate for r in record.rates if (r.task, r.arm, r.checkpoint) == wanted), None)
    model = record.model(task, arm, rate, checkpoint.label) if rate is not None else None
    return (rate, model) if rate is not None and model is not None and model.figures else None


def _tiles(record: OvertrainingRecord, checkpoint: Checkpoint) -> list[Tile]:
    found = []
    for s in _spoken(_changes(record, checkpoint.label)):
        value = "∞" if s.failed else number(s.harm, decimals_for(s.interval), sign=True)
        found.append(Tile(change_text(s), value, s.failed or s.unit))
    for task in record.tasks:
        kept = record.leading(task, "source")
        for arm in record.arms[:2]:
            tuned = _tuned(record, task, arm.label, checkpoint)
            if kept is not None and tuned is not None:
                cost = cost_value(tuned[1].figures[kept.key]).text
                found.append(Tile(f"{task}: {arm.label}", cost, f"{kept.unit}, at {tuned[0]:g}"))
    return found


# --------------------------------------------------------------------------------------------------------------- tables


def change_table(record: OvertrainingRecord, checkpoint: Checkpoint, sibling: Checkpoint | None) -> Table:
    """A change a line: what it costs, and what it costs the sibling."""
    others = _changes(record, sibling.label) if sibling is not None else []

    def of(held: Sequence[Sensitivity]) -> Any:
        def cell(s: Sensitivity) -> Text:
            own = next((o for o in held if _same(o, s)), None)
            if own is None:
                return ""
            if own.failed:
                return figure("∞", own.failed, tone="bad")
            ends = own.interval
            if ends is not None and own.higher_is_better:
                ends = (-ends[1], -ends[0])
            digits = decimals_for(ends)
            return figure(number(own.harm, digits, sign=True), interval_text(ends, digits, sign=True), value=own.harm)

        return cell

    mine = _changes(record, checkpoint.label)
    return tabulate(
        mine,
        [
            Col("Change", change_text, numeric=False),
            Col(f"Cost, {mine[0].unit}", of(mine)),
            *([Col(f"Of {sibling.label}", of(others))] if sibling is not None and others else []),
        ],
        kind="dense",
        title=f"On {_kept_name(record)}",
    )


def _fine_tuning(
    record: OvertrainingRecord, checkpoint: Checkpoint, sibling: Checkpoint | None, task: str
) -> list[Section]:
    kept, target = (record.leading(task, suite) for suite in ("source", "target"))
    if kept is None or target is None or not any(m.task == task for m in _models(record, checkpoint.label)):
        return []
    charts = [
        _rates_chart(record, checkpoint, task, kept, f"What it costs: {kept.name}", sign=1.0),
        _rates_chart(record, checkpoint, task, target, f"What it brings: {target.name}", sign=-1.0),
    ]
    blocks = [*b.side_by_side(charts), rate_table(record, checkpoint, sibling, task, kept, target)]
    return [Section(f"Fine-tuned on {task}", blocks)]


def rate_table(
    record: OvertrainingRecord,
    checkpoint: Checkpoint,
    sibling: Checkpoint | None,
    task: str,
    kept: Scored,
    target: Scored,
) -> Table:
    """A way and rate a line: what it costs, what it costs the sibling and everything else that should be kept, and what
    it brings."""
    beside = [s for s in record.scored[task] if s.suite == kept.suite and s.key != kept.key]
    rows = [
        m
        for arm in record.arms
        for rate in _shown_rates(record, checkpoint, task, arm)
        if (m := record.model(task, arm.label, rate, checkpoint.label)) is not None and m.figures
    ]

    def other(m: TunedModel) -> Text:
        own = record.model(task, m.arm, m.rate, sibling.label) if sibling is not None else None
        return _figure(own.figures.get(kept.key)) if own is not None else ""

    def rate(m: TunedModel) -> str:
        tuned = _tuned(record, task, m.arm, checkpoint)
        return f"{m.rate:g}" + (", tuned" if tuned is not None and tuned[0] == m.rate else "")

    def cost(scored: Scored) -> Col:
        return Col(f"Cost in {scored.name}, {scored.unit}", lambda m: _figure(m.figures.get(scored.key)))

    return tabulate(
        rows,
        [
            Col("Way", "arm", numeric=False),
            Col("Rate", rate),
            cost(kept),
            *([Col(f"Of {sibling.label}", other)] if sibling is not None else []),
            *map(cost, beside),
            Col(f"Gain in {target.name}, {target.unit}", lambda m: _figure(m.figures.get(target.key), sign=-1.0)),
        ],
        kind="dense",
    )


def _shown_rates(record: OvertrainingRecord, checkpoint: Checkpoint, task: str, arm: Arm) -> list[float]:
    """The tuned rate and those beside it; without one the smallest, the middle and the largest."""
    if len(arm.rates) <= MOST_RATES:
        return arm.rates
    tuned = _tuned(record, task, arm.label, checkpoint)
    if tuned is None:
        return [arm.rates[0], arm.rates[len(arm.rates) // 2], arm.rates[-1]]
    first = min(max(0, arm.rates.index(tuned[0]) - 1), len(arm.rates) - MOST_RATES)
    return arm.rates[first : first + MOST_RATES]


def _figure(f: TunedFigure | None, sign: float = 1.0) -> Text:
    if f is None:
        return ""
    if not math.isfinite(f.cost):
        return figure("∞" if sign > 0 else "none", "diverged", tone="bad")
    value = _signed(f, sign)
    return figure(value.text, value.interval, value=value.value)


def _signed(f: TunedFigure, sign: float) -> Value:
    """A cost, or with -1 a gain."""
    if sign > 0:
        return cost_value(f)
    ends = None if f.cost_interval is None else (-f.cost_interval[1], -f.cost_interval[0])
    digits = decimals_for(ends)
    low, high = ends or (None, None)
    text = number(-f.cost, digits, sign=True)
    return Value(value=-f.cost, low=low, high=high, text=text, interval=interval_text(ends, digits, sign=True))


def _rates_chart(
    record: OvertrainingRecord, checkpoint: Checkpoint, task: str, scored: Scored, title: str, *, sign: float
) -> Chart | None:
    """A figure against the rate, a line a way."""
    rows: list[Row] = []
    lost = []
    for arm in record.arms:
        for rate in arm.rates:
            m = record.model(task, arm.label, rate, checkpoint.label)
            f = m.figures.get(scored.key) if m is not None else None
            if f is not None and math.isfinite(f.cost):
                rows.append({"line": arm.label, "x": rate, "rate": f"{rate:g}", "y": _signed(f, sign)})
            elif f is not None:
                lost.append(f"{arm.label} at {rate:g}")
    tried = sorted({r["x"] for r in rows})
    if len(tried) < 2:
        return None
    return Chart(
        title=title,
        rows=rows,
        columns=[Col("Way", "line", numeric=False), Col("Rate", "rate"), Col(scored.unit, "y")],
        marks=[
            Mark(kind="line", where={"line": a.label}, name=a.label, **line_look(n)) for n, a in enumerate(record.arms)
        ],
        x=Axis(title="learning rate", log=True, ticks=[(t, f"{t:g}") for t in tried[:9]]),
        y=Axis(title=scored.unit, zero=True),
        caption=f"Diverged, so not drawn: {listed(lost)}." if lost else "",
        height=340,
    )


def _facts(record: OvertrainingRecord, checkpoint: Checkpoint) -> list[tuple[str, Text]]:
    origin = checkpoint.probed.origin if checkpoint.probed is not None else ""
    own = _models(record, checkpoint.label)
    seeds = sorted({s for m in own for s in m.seeds})
    counted_seeds = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return [
        ("Model", f"{checkpoint.name}{f', {origin}' if origin else ''}"),
        *([("Fine-tunings", f"{sum(len(m.seeds) for m in own)}, {counted_seeds}")] if own else []),
        ("Study", f"{record.name}, {record.created}"),
    ]
