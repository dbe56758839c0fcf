"""One run: what was asked, what changed for better and for worse, how training went, what it ran on. `report.html`, and
the shorter words in the terminal.

Reads the run folder only. Runs that were interrupted or failed get a report too; what is missing is named.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import DataError
from holdfast.records.evaluation import Evaluation
from holdfast.records.metrics import RESTATED
from holdfast.records.run import LayerDistance, RunFolder, RunRecord
from holdfast.reports.along import Trajectory, along_charts, completions
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
    sub,
    widths,
)
from holdfast.reports.charts import AS_IT_IS, SMALL, SMOOTHED_FROM, Chart, Row, heads, tabulate
from holdfast.reports.compared import (
    AFTER,
    BEFORE,
    DIFFERENCE,
    GROUPS,
    PURPOSE,
    ComparisonRow,
    Rows,
    arrow,
    by_suite,
    count_tile,
    decision_note,
    difference_words,
    entry_title,
    gains,
    group_title,
    headline,
    measure_table,
    measures_by_suite,
    one_unit,
    ordered,
    primary_of,
)
from holdfast.reports.format import (
    count,
    direction,
    duration,
    flatten,
    hardware_rows,
    hardware_text,
    joined,
    percent,
    plural,
    shorten,
    significant,
)
from holdfast.reports.html import write_page
from holdfast.reports.measured import Measured
from holdfast.reports.methods import method_text
from holdfast.reports.study_page import TONES
from holdfast.reports.terminal import Printer
from holdfast.reports.training_charts import Log, layer_chart, training_charts
from holdfast.statistics.decision import loss_decision
from holdfast.support.files import read_as

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
NOT_RECORDED = "not recorded"
LEVELS = heads({"Measure": "measure", "Model": "which", "Value": "value", "Interval": "interval", "n": "n"}, words=2)


# ------------------------------------------------------------------------------------------------------------- reading


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Everything a report says about one run."""

    record: RunRecord
    rows: list[ComparisonRow]
    levels: list[dict[str, Text]]
    """Figures of only one of the two models ("start" or "result"), or not compared for another reason."""
    metrics: Log
    trajectory: Trajectory
    """What was measured on the way, start and end with it; empty where nothing was."""
    problems: list[str]
    """Files that could not be read; a report says so instead of leaving them out."""

    @property
    def title(self) -> str:
        return self.record.name or "unnamed run"

    @property
    def method(self) -> str:
        return method_text(self.record.retention)

    @property
    def verdict(self) -> str:
        """The run in one sentence of plain words, from its status and its primary comparisons."""
        return verdict_sentence(self.record, self.rows)

    @property
    def trained(self) -> dict[str, Any]:
        return training_figures(self.record, self.metrics)

    @property
    def largest_move(self) -> LayerDistance | None:
        """The layer with the largest relative distance from the start."""
        layers = [layer for layer in self.record.distance if math.isfinite(layer.relative)]
        return max(layers, key=lambda layer: layer.relative, default=None)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(label, text): model, data, method, steps, tokens, time, ..."""
        record, trained, model = self.record, self.trained, self.record.model
        steps, seconds = trained["steps"], trained["seconds"]
        facts = [
            ("Model", joined(model.get("name"), model.get("architecture"), _size_of(model), model.get("origin"))),
            ("Data", _data(record.data)),
            ("Method", self.method),
            ("Steps", "none logged" if steps is None else significant(steps)),
            ("Tokens trained on", "" if trained["tokens"] is None else count(trained["tokens"])),
            ("Training time", "" if seconds is None else joined(duration(seconds), *_speed(record, trained))),
            ("Seed", str(record.seed)),
            ("Hardware", hardware_text(record.hardware)),
        ]
        if record.parents:
            facts.append(("Derived from", "; ".join(map(_parent, record.parents))))
        facts += [("Started", record.created), ("Finished", record.finished or f"no ({record.status})")]
        return [(label, text or NOT_RECORDED) for label, text in facts]

    @property
    def missing(self) -> list[str]:
        """What a complete run would have and this one has not, one sentence each."""
        sentences = list(self.not_compared)
        if not self.metrics:
            sentences.append("No training step was logged.")
        if not self.record.distance:
            sentences.append("The distance from the starting weights was not recorded.")
        return sentences

    @property
    def not_compared(self) -> list[str]:
        """Of these what concerns evaluations."""
        if not self.rows and not self.levels:
            return ["No evaluation lies in this folder: what the model learnt and lost was not measured."]
        if not self.rows:
            return [
                "Only one of the two models was evaluated, or the two were not compared; the figures below stand alone."
            ]
        absent = [suite for suite in GROUPS if suite not in by_suite(self.rows)]
        words = "No {} measure was compared, so this report cannot say anything about {}."
        return [words.format(suite, PURPOSE[suite]) for suite in absent]


def _parent(model: Row) -> str:
    return joined(model.get("name"), model.get("role"), str(model.get("hash", ""))[:12])


def _size_of(model: Row) -> str:
    parameters, trainable = model.get("parameters"), model.get("trainable")
    if not parameters:
        return ""
    size = f"{count(parameters)} parameters"
    if trainable and trainable != parameters:
        size += f", {count(trainable)} trained ({percent(100 * trainable / parameters, sign=False)})"
    return size


def _data(data: Row) -> str:
    examples, tokens, replayed = (data.get(key) for key in ("examples", "tokens", "replay_examples"))
    parts = [data.get("name")]
    if examples is not None:
        parts.append(plural(int(examples), "example"))
    if tokens is not None:
        parts.append(f"{count(tokens)} tokens")
    if replayed:
        parts.append(plural(int(replayed), "replayed example"))
    return joined(*parts, data.get("format"), "packed" if data.get("packed") else "")


def _speed(record: RunRecord, trained: Row) -> tuple[str, str]:
    speed, sessions = trained["tokens_per_second"], record.training.get("sessions")
    several = plural(sessions, "session") if isinstance(sessions, int) and sessions > 1 else ""
    return f"{count(speed)} tokens/s" if speed else "", several


def read_run(folder: RunFolder) -> RunFigures:
    """Reads a run folder as far as it goes: unfinished runs and unreadable files are reported, not refused.

    Raises:
        DataError: there is no `run.json`, or it cannot be read, so there is no run to report on.
    """
    if not folder.exists():
        raise DataError(
            f"Expected the folder of a run at {folder.path}, but it has no run.json. Give the output folder of a "
            f"holdfast run."
        )
    unread: list[str] = []

    def attempt(read: Callable[[], T], default: T, what: str) -> T:
        try:
            return read()
        except DataError as error:
            unread.append(f"{what} could not be read and is left out here: {error}")
            return default

    record = folder.read()
    metrics: Log = attempt(folder.metrics, [], "metrics.jsonl")
    rows = ordered(attempt(folder.comparisons, [], "evaluations/comparisons.json"))
    compared = {(row.raw.suite, row.name) for row in rows}
    levels: list[dict[str, Text]] = []
    for which in ("start", "result"):
        for path in sorted((folder.evaluations / which).glob("*.json")):
            read: Callable[[], Evaluation | None] = functools.partial(read_as, path, Evaluation)
            evaluation = attempt(read, None, f"evaluations/{which}/{path.name}")
            if evaluation is not None and (evaluation.suite, evaluation.name) not in compared:
                levels += _levels(which, evaluation)
    trajectory = _trajectory(folder, unread) if folder.along.is_dir() else []
    return RunFigures(
        record=record, rows=rows, levels=levels, metrics=metrics, trajectory=trajectory, problems=unread,
    )  # fmt: skip


def _trajectory(folder: RunFolder, unread: list[str]) -> Trajectory:
    """The points of the run, with the entries that were measured on the way."""
    points, entries = [], set()
    for step, path in folder.trajectory():
        point = Measured(path, f"along/step-{step}")
        points.append((step, point.evaluations))
        if path.path.parent == folder.along:  # the ends are read elsewhere
            unread += point.problems
            entries |= set(point.evaluations)
    for _, evaluations in points:
        for key in set(evaluations) - entries:
            del evaluations[key]
    return points


def _levels(which: str, e: Evaluation) -> list[dict[str, Text]]:
    """A row a figure of one model alone, where there is nothing to compare it with."""
    rows: list[dict[str, Text]] = []
    for name, metric in e.metrics.items():
        if RESTATED.get(name) not in e.metrics:
            what = entry_title(e.suite, e.name), sub(f"{name}, {metric.unit}")
            value, interval = AS_IT_IS.texts(metric)
            rows.append({"measure": what, "which": which, "value": value, "interval": interval, "n": f"{metric.n:,}"})
    return rows


def verdict_sentence(record: RunRecord, rows: Rows) -> str:
    """The run in one sentence of plain words, from its status and its primary comparisons."""
    if rows:
        return headline([row.raw for row in rows])
    what = {"running": "has not finished", "interrupted": "was interrupted", "failed": "failed"}.get(record.status)
    if what:
        return f"The run {what} (stage: {record.stage}), so there is no comparison with the starting model yet."
    return (
        "Training finished, but start and result were not compared, so what was learnt and what was lost is not known."
    )


def training_figures(record: RunRecord, metrics: Log) -> dict[str, Any]:
    """`{"steps", "tokens", "seconds", "tokens_per_second"}` from run.json, or from the log where the run did not get to
    write them."""
    figures: dict[str, Any] = {}
    for key, logged in (("steps", "step"), ("tokens", "tokens"), ("seconds", "seconds"), ("tokens_per_second", "")):
        values = [record.training.get(key), *(row.get(logged) for row in reversed(metrics))]
        figures[key] = next((value for value in values if value is not None), None)
    if figures["tokens_per_second"] is None and figures["tokens"] and figures["seconds"]:
        figures["tokens_per_second"] = figures["tokens"] / figures["seconds"]
    return figures


# ------------------------------------------------------------------------------------------------------------ the page


def write_run_report(folder: RunFolder) -> Path:
    """Writes `report.html` into the run folder and returns its path.

    Raises:
        DataError: the folder has no readable `run.json`.
        StorageError: the page could not be written; an earlier one is intact.
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
            Tiles([*_failed_tile(run), *_run_tiles(run)]),
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
        go_on = f" Start it again with the same folder to go on.{reason}"
        banners.append(Banner((Span(f"The run was interrupted {where}", "strong"), go_on), "warn"))
    elif record.status == "running":
        text = f"The run had not ended when this page was written; its last stage was “{record.stage}”."
        banners.append(Banner(text))
    broken: dict[str, None] = {}
    for row in _broken(run):
        broken[f"{row.raw.suite}/{row.name}: {row.raw.failed}"] = None
    banners += problems("NaN or infinity: nothing follows from these comparisons.", list(broken), "bad")
    return banners + problems("Some files could not be read.", run.problems)


def _broken(run: RunFigures) -> list[ComparisonRow]:
    return [row for row in run.rows if row.raw.failed is not None]


def _failed_tile(run: RunFigures) -> list[Tile]:
    """By what the run failed; nothing where it did not."""
    record, broken = run.record, _broken(run)
    if broken:
        names = dict.fromkeys(f"{row.raw.suite}/{row.name}" for row in broken)
        below = f"measures: {shorten(', '.join(names), 90)}"
        return [Tile("Not finite", f"{len(broken)} of {len(run.rows)}", below, "bad", main=True)]
    if record.status == "failed":
        reason = shorten((record.error or "no reason was recorded").partition("\n")[0], 110)
        return [Tile("The run failed in stage", record.stage or NOT_RECORDED, reason, "bad", main=True)]
    return []


def _run_tiles(run: RunFigures) -> list[Tile]:
    """What changed, how far the weights moved, what it took."""
    tiles = [_suite_tile(suite, run.rows) for suite in GROUPS]
    move, trained = run.largest_move, run.trained
    far, where = NOT_RECORDED, "relative L2 distance"
    if move is not None:
        far, where = percent(100 * move.relative, sign=False), f"of its norm, in {_layer(move)}"
    tokens = NOT_RECORDED if trained["tokens"] is None else count(trained["tokens"])
    time = NOT_RECORDED if trained["seconds"] is None else duration(trained["seconds"])
    below = f"tokens {tokens}" if tokens == NOT_RECORDED else f"{tokens} tokens"
    return [*tiles, Tile("Largest move of a layer", far, where), Tile("Training time", time, below)]


def _suite_tile(suite: str, rows: Rows) -> Tile:
    primary = [row for row in rows if row.raw.suite == suite and row.raw.primary]
    if not primary:
        return Tile(group_title(suite), "not compared", PURPOSE[suite])
    if len(primary) > 1:
        return count_tile(suite, [row.verdict for row in primary])
    [row] = primary
    below = f"{row.unit}, {direction(row.raw.higher_is_better)}: {row.verdict} ({row.before} → {row.after})"
    return Tile(row.label, row.difference, below, row.tone)


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
            f"{difference_words(run.rows)} Relative gain: the change in percent of the value before, signed so that "
            "positive is better. One training run is behind these figures: how far another seed would move them is "
            "not in the intervals."
        )
        blocks = [note] if note is not None else []
        blocks += [*measures_by_suite(first, relative=True), Paragraph(text, "note")]
        if again:
            blocks.append(Fold("The same in other units", measures_by_suite(again, relative=True)))
    return [*blocks, *_level_table(run)]


def _level_table(run: RunFigures) -> list[Table]:
    """Figures of one model that there is nothing to compare with; nothing without any."""
    return [tabulate(run.levels, LEVELS, title="Measured, but not compared")] if run.levels else []


def _training_section(run: RunFigures) -> Section:
    """The curves of the log."""
    charts = training_charts(run.metrics, run.record.retention)
    if not charts:
        return Section("Training", [Paragraph("No training step was logged, so there are no curves to show.", "note")])
    charts.sort(key=lambda chart: chart.height <= SMALL)
    large = sum(chart.height > SMALL for chart in charts)
    wide = ["half" if large == 2 else "full"] * large + widths(len(charts) - large)
    blocks: list[Block] = _placed(charts, wide)
    if len(run.metrics) >= SMOOTHED_FROM:
        blocks.append(Paragraph("Thin lines: as logged. Bold lines: trailing mean.", "note"))
    if run.record.retention and not any(chart.title.startswith("KL") for chart in charts):
        text = "No divergence from a teacher was logged: the method works without one, or logging began later."
        blocks.append(Paragraph(text, "note"))
    return Section("Training", blocks)


def _placed(charts: Sequence[Chart], wide: Sequence[str]) -> list[Block]:
    return [dataclasses.replace(chart, width=width) for chart, width in zip(charts, wide, strict=True)]


def _along_section(run: RunFigures) -> Section | None:
    """What was measured on the way; None where nothing was."""
    charts = along_charts(run.trajectory)
    return Section("Along training", _placed(charts, widths(len(charts)))) if charts else None


def _distance(run: RunFigures) -> Section:
    nothing = Paragraph("The distance from the starting weights was not recorded.", "note")
    return Section("How far the weights moved", [layer_chart(run.record.distance) or nothing])


def _to_repeat(run: RunFigures) -> Section:
    record = run.record
    settings = flatten(record.config)
    model, data = (str(source.get("hash") or NOT_RECORDED) for source in (record.model, record.data))
    identity = [("config fingerprint", record.config_key or NOT_RECORDED), ("model hash", model), ("data hash", data)]
    folds = {f"Settings ({plural(len(settings), 'key')})": settings, "Versions": list(record.versions.items())}
    folds |= {"Hardware": hardware_rows(record.hardware), "Fingerprints": [*identity, ("seed", str(record.seed))]}
    return Section("To repeat it", [Fold(title, facts_or_nothing(items)) for title, items in folds.items()])


# ------------------------------------------------------------------------------------------------------------ terminal


def print_run_summary(folder: RunFolder, console: Console | None = None) -> None:
    """Prints verdict, changes and cost of one run: the figures of its report.html.

    Raises:
        DataError: the folder has no readable run.json.
    """
    run = read_run(folder)
    record = run.record
    blocks: list[Block] = [Paragraph(f"{run.title} ({record.status})", "strong"), Paragraph(run.verdict)]
    if record.error:
        blocks.append(Paragraph(f"Stage {record.stage}: {record.error}", "bad"))
    blocks += [*paragraphs(run.problems, "warn"), Paragraph("")]
    blocks += map(_brief, by_suite(one_unit(run.rows)[0]).values())
    blocks += [*_level_table(run), Facts(_brief_facts(run))]
    blocks += [*paragraphs(run.missing), *paragraphs(record.notes, before="Note: ")]
    if folder.report_file.is_file():
        blocks.append(Facts([("Report", str(folder.report_file))]))
    Printer(console).show(blocks)


def _brief_facts(run: RunFigures) -> list[tuple[str, Text]]:
    trained, move, model = run.trained, run.largest_move, run.record.model
    facts: list[tuple[str, Text]] = []
    if model.get("origin"):
        facts.append(("Model", joined(model.get("name"), model["origin"])))
    facts.append(("Method", run.method))
    if trained["steps"] is not None:
        tokens = f"{count(trained['tokens'])} tokens"
        facts.append(("Training", f"{significant(trained['steps'])} steps, {tokens}, {duration(trained['seconds'])}"))
    if move is not None:
        reach = percent(100 * move.relative, sign=False)
        facts.append(("Distance", f"up to {reach} of a layer's norm ({_layer(move)})"))
    if run.trajectory:
        parts = [f"{plural(len(run.trajectory), 'point')} up to step {run.trajectory[-1][0]}"]
        for name, step in completions(run.trajectory).items():
            parts.append(f"{name}: format {'not complete' if step is None else f'complete from step {step}'}")
        facts.append(("Along training", "; ".join(parts)))
    return facts


def _brief(rows: Rows) -> Table:
    """A suite in five columns, which fit into eighty characters."""
    columns = heads({"Measure": _brief_measure, "Verdict": _brief_verdict}, words=2)
    return measure_table(rows, [*columns, BEFORE, AFTER, DIFFERENCE], title=group_title(rows[0].raw.suite))


def _brief_measure(r: ComparisonRow) -> Text:
    # Text measures are known by their unit; a task may have several of one unit (acc and acc_norm).
    name = r.unit if "/" in r.unit or r.raw.metric == r.unit else r.raw.metric
    return r.name, sub(f"{name}, {arrow(r)} is better")


def _brief_verdict(r: ComparisonRow) -> Text:
    below = filter(None, (f"({r.relative})", f"p {r.p}, n {r.n}", r.raw.test, r.flips))
    return Span((r.verdict, *map(sub, below)), tone=r.tone)
