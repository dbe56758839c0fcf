"""One page on a pre-trained ladder: how its rungs learnt, what they know, and how fast they were trained.

Reads only the record (`records.ladder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.ladder.record import LadderRecord, PretrainedRung
from holdfast.records.evaluation import Metric
from holdfast.records.measure import decimals_for, interval_text, number
from holdfast.reports.blocks import (
    Block,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    chip,
    facts_or_nothing,
    figure,
    notes,
    side_by_side,
)
from holdfast.reports.charts import (
    COLOURS,
    DASHES,
    SYMBOLS,
    Axis,
    Chart,
    Col,
    Mark,
    Row,
    Value,
    log_ticks,
    tabulate,
    ticks_at,
)
from holdfast.reports.format import count, duration, hardware_rows, hardware_text, joined, listed, plural, significant
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

STATES = {"complete": "good", "failed": "bad", "running": "warn", "waiting": "flat"}
HOW = (
    "Every rung is a run of its own whose learning rate ends at zero: no checkpoint is taken from the middle of a "
    "longer run, whose rate would still be high there (Overtrained Language Models, appendix B).",
    "All rungs of a size begin with the same weights and read the same windows in the same order, each as far as its "
    "budget goes.",
    "Intervals cover the documents or questions; they say nothing of other seeds.",
)


def print_ladder(record: LadderRecord, folder: Path, console: Console | None = None) -> None:
    """Prints what came of a ladder: blocks of the page.

    Args:
        record: the ladder.
        folder: where it lies.
        console: None: standard output.
    """
    told: list[Block] = [Paragraph(lead(record)), rung_table(record, brief=True)]
    told += [Paragraph(f"note: {n}", "note") for n in record.notes]
    told += [Paragraph(f"Page: {folder / 'report.html'}")]
    told += [
        Paragraph(f"Probe it: holdfast probe --ladder {folder / f'{size}.yaml'} --corpus TEXT")
        for size in record.sizes
        if (folder / f"{size}.yaml").is_file()
    ]
    Printer(console).show(told)


def ladder_page(record: LadderRecord) -> Page:
    """The page as blocks."""
    done = record.status == "finished"
    return Page(
        tab=f"{record.name}: holdfast ladder",
        eyebrow="holdfast ladder report",
        title=f"The ladder {record.name}",
        lead=lead(record),
        status=(record.status, "good" if done else "warn"),
        details=" · ".join(_sizes(record)),
        blocks=[
            Tiles(_tiles(record)),
            Section("What longer pre-training brings", [*side_by_side(figure_charts(record)), rung_table(record)]),
            Section("Along training", [*side_by_side(curve_charts(record))]),
            notes([*HOW, *record.notes], "How to read it"),
            Section("What it was made of", [Panel(facts_or_nothing(_facts(record)), "card")]),
        ],
        footer=joined("Pre-trained with holdfast", hardware_text(record.hardware)),
    )


def lead(record: LadderRecord) -> str:
    """What came out, a sentence a size."""
    told = []
    for size in record.sizes:
        done = [r for r in record.rungs if r.size == size and r.figures]
        if len({r.budget for r in done}) < 2:
            continue
        name = next(iter(done[0].figures))
        first, last = (_of_budget(done, name, pick(r.budget for r in done)) for pick in (min, max))
        unit = done[0].figures[name].unit
        told.append(
            f"{size}: {name.rpartition('/')[2]} from {number(first, 3)} to {number(last, 3)} {unit} between "
            f"{count(min(r.budget for r in done))} and {count(max(r.budget for r in done))} tokens."
        )
    waiting = [r for r in record.rungs if r.state != "complete"]
    if waiting:
        told.append(f"{len(record.rungs) - len(waiting)} of {len(record.rungs)} rungs are there.")
    return " ".join(told) or f"{plural(len(record.rungs), 'rung')} of {plural(len(record.sizes), 'size')}."


def _of_budget(rungs: Sequence[PretrainedRung], name: str, budget: int) -> float:
    held = [r.figures[name].value for r in rungs if r.budget == budget and name in r.figures]
    return sum(held) / len(held) if held else float("nan")


def _sizes(record: LadderRecord) -> list[str]:
    return [
        f"{name}: {plural(s.layers, 'layer')}, width {s.width}"
        + (f", {count(s.parameters)} parameters ({count(s.without_tables)} without tables)" if s.parameters else "")
        for name, s in record.sizes.items()
    ]


def _tiles(record: LadderRecord) -> list[Tile]:
    done = [r for r in record.rungs if r.state == "complete"]
    if not done:
        return []
    longest = max((r for r in done if r.seconds), key=lambda r: r.tokens, default=None)
    tiles = [
        Tile("Rungs", f"{len(done)} of {len(record.rungs)}", listed(list(record.sizes))),
        Tile("Tokens read", count(sum(r.tokens for r in done)), f"text of {count(record.text.get('tokens'))}"),
        Tile("Time", duration(sum(r.seconds for r in done)), "of training, runs added up"),
    ]
    if longest is not None:
        tiles.append(Tile(f"{longest.size}: tokens a second", _speed(longest)))
    return tiles


def rung_table(record: LadderRecord, *, brief: bool = False) -> Table:
    """A line a rung. `brief`: for a terminal, with the first two figures."""
    names = list(dict.fromkeys(name for r in record.rungs for name in r.figures))[: 2 if brief else None]
    seeds = len({r.seed for r in record.rungs}) > 1

    def cell(name: str) -> Any:
        def of(rung: PretrainedRung) -> Text:
            m = rung.figures.get(name)
            if m is None:
                return ""
            digits = decimals_for(m.interval)
            return figure(number(m.value, digits), interval_text(m.interval, digits), value=m.value)

        return of

    units = {name: next(r.figures[name].unit for r in record.rungs if name in r.figures) for name in names}
    return tabulate(
        record.rungs,
        [
            Col("Size", "size", numeric=False),
            Col("Tokens", lambda r: figure(count(r.budget), value=float(r.budget))),
            *([Col("Seed", lambda r: str(r.seed))] if seeds else []),
            Col("Loss, nats", lambda r: "" if r.loss is None else number(r.loss, 3)),
            *(Col(f"{name.rpartition('/')[2]}, {units[name]}", cell(name)) for name in names),
            Col("Tokens/s", _speed),
            Col("", lambda r: chip(r.reason or r.state, STATES.get(r.state, "flat")), numeric=False),
        ],
        kind="dense",
    )


def _speed(rung: PretrainedRung) -> str:
    return count(rung.tokens / rung.seconds) if rung.seconds else ""


def figure_charts(record: LadderRecord) -> list[Chart | None]:
    """Each figure against the budget, a line a size."""
    names = list(dict.fromkeys(name for r in record.rungs for name in r.figures))
    return [_figure_chart(record, name) for name in names]


def _figure_chart(record: LadderRecord, name: str) -> Chart | None:
    held = [r for r in record.rungs if name in r.figures]
    budgets = sorted({r.budget for r in held})
    if len(budgets) < 2:
        return None
    unit = held[0].figures[name].unit
    rows: list[Row] = [
        {"size": r.size, "seed": r.seed, "tokens": r.tokens, "x": r.budget, "y": _value(r.figures[name])}
        for r in sorted(held, key=lambda r: r.budget)
    ]
    marks = [
        Mark(
            kind="line" if len({r.seed for r in held}) == 1 else "points",
            where={"size": size},
            name=size,
            colour=COLOURS[place % len(COLOURS)],
            symbol=SYMBOLS[place % len(SYMBOLS)],
            dash=DASHES[place % len(DASHES)],
        )
        for place, size in enumerate(record.sizes)
    ]
    return Chart(
        title=name.rpartition("/")[2],
        rows=rows,
        columns=[Col("Size", "size", numeric=False), Col("Tokens", lambda r: count(r["tokens"])), Col(unit, "y")],
        marks=marks,
        x=_tokens_axis(budgets),
        y=Axis(title=unit),
        height=320,
    )


def _tokens_axis(budgets: Sequence[int]) -> Axis:
    ticks = [(float(b), count(b)) for b in budgets] if len(budgets) < 7 else log_ticks(budgets[0], budgets[-1])
    return Axis(title="tokens of pre-training", log=True, ticks=ticks or ticks_at(budgets))


def _value(m: Metric) -> Value:
    digits = decimals_for(m.interval)
    low, high = m.interval or (None, None)
    return Value(
        value=m.value, low=low, high=high, text=number(m.value, digits), interval=interval_text(m.interval, digits)
    )


def curve_charts(record: LadderRecord) -> list[Chart | None]:
    """The training loss of each rung, a chart a size."""
    found: list[Chart | None] = []
    for size in record.sizes:
        rungs = [r for r in record.rungs if r.size == size and len(r.curve) > 1]
        if not rungs:
            continue
        rows: list[Row] = [
            {
                "name": f"{count(r.budget)} tokens" + (f", seed {r.seed}" if r.seed else ""),
                "x": [x for x, _ in r.curve],
                "y": [y for _, y in r.curve],
                "last": r.curve[-1][1],
                "colour": COLOURS[place % len(COLOURS)],
            }
            for place, r in enumerate(rungs)
        ]
        found.append(
            Chart(
                title=f"{size}: training loss",
                rows=rows,
                columns=[Col("Run", "name", numeric=False), Col("Last loss, nats", lambda r: significant(r["last"]))],
                marks=[Mark(kind="curves")],
                x=_tokens_axis(sorted(r.budget for r in rungs)),
                y=Axis(title="nats/token"),
                legend=True,
                height=340,
            )
        )
    return found


def _facts(record: LadderRecord) -> list[tuple[str, Text]]:
    config = record.config
    text = record.text
    rows: list[tuple[str, Text]] = [
        ("Architecture", str(config.get("architecture", ""))),
        *(
            (name, f"{s.layers} layers, width {s.width}, {s.heads} heads, MLP {s.mlp}")
            for name, s in record.sizes.items()
        ),
        ("Text", f"{count(text['tokens'])} tokens of {count(text['documents'])} documents" if text else ""),
        ("Vocabulary", count(text.get("vocabulary")) if text else ""),
        ("A step", f"{config.get('batch_size')} windows of {config.get('context')} tokens"),
        ("Learning rate", f"{config.get('learning_rate'):g}, cosine to zero" if config.get("learning_rate") else ""),
        ("muP", f"base width {config['base_width']}" if config.get("base_width") else "no"),
        *hardware_rows(record.hardware),
        *((f"{name} version", version) for name, version in record.versions.items()),
    ]
    return [(name, value) for name, value in rows if value]
