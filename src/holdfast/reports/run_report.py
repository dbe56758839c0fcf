"""One run: what was asked, what changed for better and for worse, how training went, what it ran
on. `report.html`, and the shorter words in the terminal.

Reads the run folder only. Runs that were interrupted or failed get a report too; what is missing is
named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.run import LayerDistance, RunFolder
from holdfast.reports.along import along_charts, completions
from holdfast.reports.blocks import (
    Banner,
    Block,
    Facts,
    Fold,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tile,
    Tiles,
    facts_or_nothing,
    notes,
    paragraphs,
    problems,
    widths,
)
from holdfast.reports.charts import SMALL, SMOOTHED_FROM, Chart, heads, tabulate
from holdfast.reports.compared import (
    GROUPS,
    PURPOSE,
    brief_tables,
    decision_note,
    difference_words,
    gains,
    group_title,
    measures_by_suite,
    one_unit,
    primary_of,
    suite_tile,
)
from holdfast.reports.format import (
    count,
    duration,
    flatten,
    hardware_rows,
    joined,
    percent,
    plural,
    significant,
)
from holdfast.reports.html import write_page
from holdfast.reports.run_figures import NOT_RECORDED, RunFigures, read_run
from holdfast.reports.study_page import TONES
from holdfast.reports.terminal import Printer
from holdfast.reports.training_charts import layer_chart, training_charts
from holdfast.statistics.decision import loss_decision

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = heads(
    {"Measure": "measure", "Model": "which", "Value": "value", "Interval": "interval", "n": "n"},
    words=2,
)


# ----------------------------------------------------------------------------------------- the page


def write_run_report(folder: RunFolder) -> Path:
    """Writes `report.html` into the run folder and returns its path.

    Raises:
        DataError: the folder has no readable `run.json`.
        StorageError: the page could not be written; an earlier page is intact.
    """
    return write_page(run_page(read_run(folder)), folder.report_file)


def run_page(run: RunFigures) -> Page:
    """A run as a page."""
    record, steps = run.record, run.trained["steps"]
    length = f"{significant(steps)} steps" if steps is not None else ""
    return Page(
        tab=f"{run.title}: holdfast run report",
        eyebrow=f"holdfast run report ({record.command})",
        title=run.title,
        status=(record.status, TONES.get(record.status, "flat")),
        lead=run.verdict,
        details=joined(record.model.get("name"), record.model.get("origin"), run.method, length),
        blocks=[
            *_state_banners(run),
            Tiles(_run_tiles(run)),
            _changes(run),
            Section("What was trained", [Panel([Facts(run.facts)], "card")]),
            _training_section(run),
            _along_section(run),
            _distance(run),
            notes(record.notes, "Notes of the run"),
            _to_repeat(run),
        ],
        footer=f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the run folder.",
    )


def _state_banners(run: RunFigures) -> list[Block]:
    """What a reader must know before reading any figure."""
    record = run.record
    banners: list[Block] = []
    where = f"in stage “{record.stage}”."
    if record.status == "failed":
        reason = f" {record.error or 'No reason was recorded.'}"
        banners.append(Banner((Span(f"The run failed {where}", "strong"), reason), "bad"))
    elif record.status == "interrupted":
        reason = f" {record.error}" if record.error else ""
        go_on = f" Run the same command to continue.{reason}"
        banners.append(Banner((Span(f"The run was interrupted {where}", "strong"), go_on), "warn"))
    elif record.status == "running":
        text = f"The run was still in stage “{record.stage}” when this page was written."
        banners.append(Banner(text))
    broken: dict[str, None] = {}
    for row in run.rows:
        if row.raw.failed is not None:
            broken[f"{row.raw.suite}/{row.name}: {row.raw.failed}"] = None
    banners += problems("NaN or infinity: these comparisons are invalid.", list(broken), "bad")
    return banners + problems("Some files could not be read.", run.problems)


def _run_tiles(run: RunFigures) -> list[Tile]:
    """What became of what was to be learnt, and of what was to be kept."""
    tiles = []
    for suite in GROUPS:
        primary = [row for row in run.rows if row.raw.suite == suite and row.raw.primary]
        tiles.append(
            suite_tile(primary)
            if primary
            else Tile(group_title(suite), "not compared", PURPOSE[suite])
        )
    return tiles


def _layer(move: LayerDistance) -> str:
    return f"layer {move.layer}" if move.layer.isdigit() else move.layer


def _changes(run: RunFigures) -> Section:
    blocks = [*gains(primary_of(run.rows)), *change_tables(run), *paragraphs(run.not_compared)]
    return Section("Before and after", blocks)


def change_tables(run: RunFigures) -> list[Block]:
    """What was compared, suite by suite, and what was measured of one model only."""
    blocks: list[Block] = []
    if run.rows:
        note = decision_note(loss_decision([row.raw for row in run.rows]))
        first, again = one_unit(run.rows)
        text = (
            f"{difference_words(run.rows)} These are results of one training run: the intervals "
            "do not cover other seeds."
        )
        blocks = [note] if note is not None else []
        blocks += [*measures_by_suite(first), Paragraph(text, "note")]
        if again:
            blocks.append(Fold("The same results in other units", measures_by_suite(again)))
    return [*blocks, *_level_table(run)]


def _level_table(run: RunFigures) -> list[Table]:
    """Figures of one model that there is nothing to compare with; nothing without any."""
    return [tabulate(run.levels, LEVELS, title="Measured, but not compared")] if run.levels else []


def _training_section(run: RunFigures) -> Section:
    """The curves of the log."""
    charts = training_charts(run.metrics, run.record.retention)
    if not charts:
        return Section(
            "Training",
            [Paragraph("No training step was logged, so there are no curves to show.", "note")],
        )
    charts.sort(key=lambda chart: chart.height <= SMALL)
    large = sum(chart.height > SMALL for chart in charts)
    wide = ["half" if large == 2 else "full"] * large + widths(len(charts) - large)
    blocks: list[Block] = _placed(charts, wide)
    if len(run.metrics) >= SMOOTHED_FROM:
        blocks.append(Paragraph("Thin lines: values as logged. Bold lines: trailing mean.", "note"))
    if run.record.retention and not any(chart.title.startswith("KL") for chart in charts):
        text = (
            "No divergence from a teacher was logged: the method has no teacher, or logging began "
            "later."
        )
        blocks.append(Paragraph(text, "note"))
    return Section("Training", blocks)


def _placed(charts: Sequence[Chart], wide: Sequence[str]) -> list[Block]:
    return [
        dataclasses.replace(chart, width=width) for chart, width in zip(charts, wide, strict=True)
    ]


def _along_section(run: RunFigures) -> Section | None:
    """What was measured on the way; None where nothing was."""
    charts = along_charts(run.trajectory)
    return Section("Along training", _placed(charts, widths(len(charts)))) if charts else None


def _distance(run: RunFigures) -> Section:
    nothing = Paragraph("The distance from the initial weights was not recorded.", "note")
    return Section("How far the weights moved", [layer_chart(run.record.distance) or nothing])


def _to_repeat(run: RunFigures) -> Section:
    record = run.record
    settings = flatten(record.config)
    model, data = (
        str(source.get("hash") or NOT_RECORDED) for source in (record.model, record.data)
    )
    identity = [
        ("config fingerprint", record.config_key or NOT_RECORDED),
        ("model hash", model),
        ("data hash", data),
    ]
    folds = {
        f"Settings ({plural(len(settings), 'key')})": settings,
        "Versions": list(record.versions.items()),
    }
    folds |= {
        "Hardware": hardware_rows(record.hardware),
        "Fingerprints": [*identity, ("seed", str(record.seed))],
    }
    return Section(
        "To repeat it", [Fold(title, facts_or_nothing(items)) for title, items in folds.items()]
    )


# ----------------------------------------------------------------------------------------- terminal


def print_run_summary(folder: RunFolder, console: Console | None = None) -> None:
    """Prints verdict, changes and cost of one run: the figures of its report.html.

    Raises:
        DataError: the folder has no readable run.json.
    """
    run = read_run(folder)
    record = run.record
    blocks: list[Block] = [
        Paragraph(f"{run.title} ({record.status})", "strong"),
        Paragraph(run.verdict),
    ]
    if record.error:
        blocks.append(Paragraph(f"Stage {record.stage}: {record.error}", "bad"))
    blocks += [*paragraphs(run.problems, "warn"), Paragraph("")]
    blocks += brief_tables(one_unit(run.rows)[0])
    blocks += [*_level_table(run), Facts(brief_facts(run))]
    blocks += [*paragraphs(run.missing), *paragraphs(record.notes, before="Note: ")]
    if folder.report_file.is_file():
        blocks.append(Facts([("Report", str(folder.report_file))]))
    Printer(console).show(blocks)


def brief_facts(run: RunFigures) -> list[tuple[str, Text]]:
    """How it was trained, in a few lines."""
    trained, move, model = run.trained, run.largest_move, run.record.model
    facts: list[tuple[str, Text]] = []
    if model.get("origin"):
        facts.append(("Model", joined(model.get("name"), model["origin"])))
    facts.append(("Method", run.method))
    if trained["steps"] is not None:
        tokens = f"{count(trained['tokens'])} tokens"
        facts.append(
            (
                "Training",
                f"{significant(trained['steps'])} steps, {tokens}, {duration(trained['seconds'])}",
            )
        )
    if move is not None:
        reach = percent(100 * move.relative, sign=False)
        facts.append(("Distance", f"up to {reach} of a layer's norm ({_layer(move)})"))
    if run.trajectory:
        parts = [f"{plural(len(run.trajectory), 'point')} up to step {run.trajectory[-1][0]}"]
        for name, step in completions(run.trajectory).items():
            parts.append(
                f"{name}: format {'not complete' if step is None else f'complete from step {step}'}"
            )
        facts.append(("Along training", "; ".join(parts)))
    return facts
