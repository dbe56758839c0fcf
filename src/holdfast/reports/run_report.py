"""One run: what was asked, what changed for better and for worse, how training went, what it ran on. `report.html`, and
the shorter words in the terminal.

Reads the run folder only. Runs that were interrupted or failed get a report too; what is missing is named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import DataError
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import decimals_for, interval_text, number
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
    problems,
    sub,
    widths,
)
from holdfast.reports.charts import SMALL, SMOOTHED_FROM, Chart, Col, layer_chart, logged_curves, tabulate
from holdfast.reports.compared import (
    AFTER,
    BEFORE,
    DIFFERENCE,
    GROUPS,
    PURPOSE,
    VERDICT_WORDS,
    ComparisonRow,
    arrow,
    by_suite,
    count_tile,
    decision_note,
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
from holdfast.reports.terminal import Printer
from holdfast.statistics.decision import loss_decision
from holdfast.support.files import read_as

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
STATUS_TONES = {"finished": "good", "failed": "bad", "interrupted": "warn"}
NOT_LOGGED = {"step", "epoch", "tokens", "seconds", "num_tokens", "mean_token_accuracy", "total_flos"}
"""Keys of the log that say where a row stands, not what a method did."""
DRAWN = {"loss", "ce", "kl", "learning_rate", "grad_norm", "token_accuracy"}
EVAL_LOSS = ("eval_loss", "held-out loss", "good", True)
CURVES: tuple[tuple[str, str, int, bool, list[tuple[str, str, str, bool]]], ...] = (
    ("Loss", "nats/token", 300, True, []),
    (
        "KL to the teacher",
        "nats/token",
        300,
        False,
        [("kl", "KL", "second", False), ("eval_kl", "held-out KL", "good", True)],
    ),
    ("Learning rate", "", SMALL, False, [("learning_rate", "learning rate", "accent", False)]),
    ("Gradient norm", "L2", SMALL, True, [("grad_norm", "gradient norm", "accent", False)]),
    (
        "Token accuracy",
        "fraction",
        SMALL,
        False,
        [("token_accuracy", "token accuracy", "accent", False), ("eval_token_accuracy", "held-out", "good", True)],
    ),
)
"""Charts of the log: title, unit, height, whether the axis may be logarithmic, and the curves (see `logged_curves`);
those of the loss depend on what was logged."""
BUDGET_KEYS = frozenset({"budget_constraint", "budget_limit", "budget_strength"})


# ------------------------------------------------------------------------------------------------------------- reading


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A figure of one model alone, where there is nothing to compare it with."""

    which: str
    """"start" or "result"."""
    name: str
    """With its suite: `Source: prose`."""
    metric: str
    unit: str
    value: str
    interval: str
    n: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Everything a report says about one run."""

    record: RunRecord
    rows: list[ComparisonRow]
    levels: list[Level]
    """Evaluations of only one of the two models, or not compared for another reason."""
    metrics: Sequence[Mapping[str, Any]]
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
        finite = [d for d in self.record.distance if math.isfinite(d.relative)]
        return max(finite, key=lambda d: d.relative, default=None)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(label, text): model, data, method, steps, tokens, time, ..."""
        record, trained = self.record, self.trained
        model, data = record.model, record.data
        size = ""
        if model.get("parameters"):
            size = f"{count(model['parameters'])} parameters"
            if model.get("trainable") and model["trainable"] != model["parameters"]:
                share = percent(100 * model["trainable"] / model["parameters"], sign=False)
                size += f", {count(model['trainable'])} trained ({share})"
        rows = plural(int(data["examples"]), "example") if data.get("examples") is not None else ""
        tokens = f"{count(data['tokens'])} tokens" if data.get("tokens") is not None else ""
        replayed = plural(int(data["replay_examples"]), "replayed example") if data.get("replay_examples") else ""
        packed = "packed" if data.get("packed") else ""
        speed = f"{count(trained['tokens_per_second'])} tokens/s" if trained["tokens_per_second"] else ""
        sessions = record.training.get("sessions")
        several = plural(int(sessions), "session") if isinstance(sessions, int) and sessions > 1 else ""
        seconds, none = trained["seconds"], "not recorded"
        parents = (joined(p.get("name"), p.get("role"), str(p.get("hash", ""))[:12]) for p in record.parents)
        return [
            ("Model", joined(model.get("name"), model.get("architecture"), size, model.get("origin")) or none),
            ("Data", joined(data.get("name"), rows, tokens, replayed, data.get("format"), packed) or none),
            ("Method", self.method),
            ("Steps", significant(trained["steps"]) if trained["steps"] is not None else "none logged"),
            ("Tokens trained on", count(trained["tokens"]) if trained["tokens"] is not None else none),
            ("Training time", joined(duration(seconds), speed, several) if seconds is not None else none),
            ("Seed", str(record.seed)),
            ("Hardware", hardware_text(record.hardware) or none),
            *([("Derived from", "; ".join(parents))] if record.parents else []),
            ("Started", record.created or none),
            ("Finished", record.finished or f"no ({record.status})"),
        ]

    @property
    def missing(self) -> list[str]:
        """What a complete run would have and this one has not, one sentence each."""
        found = []
        if not self.rows and not self.levels:
            found.append("No evaluation lies in this folder: what the model learnt and lost was not measured.")
        elif not self.rows:
            found.append(
                "Only one of the two models was evaluated, or the two were not compared; the figures below stand alone."
            )
        for suite in GROUPS:
            if self.rows and not any(r.raw.suite == suite for r in self.rows):
                found.append(
                    f"No {suite} measure was compared, so this report cannot say anything about {PURPOSE[suite]}."
                )
        if not self.metrics:
            found.append("No training step was logged.")
        if not self.record.distance:
            found.append("The distance from the starting weights was not recorded.")
        return found


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
    metrics: Sequence[Mapping[str, Any]] = attempt(folder.metrics, [], "metrics.jsonl")
    rows = ordered(attempt(folder.comparisons, [], "evaluations/comparisons.json"))
    compared = {(r.raw.suite, r.name) for r in rows}
    levels: list[Level] = []
    for which in ("start", "result"):
        for path in sorted((folder.evaluations / which).glob("*.json")):
            what = f"evaluations/{which}/{path.name}"
            e = attempt(lambda p=path: read_as(p, Evaluation), None, what)  # type: ignore[misc]
            if e is not None and (e.suite, e.name) not in compared:
                levels += _levels(which, e)
    trajectory = _trajectory(folder, unread) if folder.along.is_dir() else []
    return RunFigures(
        record=record, rows=rows, levels=levels, metrics=metrics, trajectory=trajectory, problems=unread,
    )  # fmt: skip


def _trajectory(folder: RunFolder, unread: list[str]) -> Trajectory:
    """The points of the run, with the entries that were measured on the way."""
    points = [(step, Measured(found, f"along/step-{step}")) for step, found in folder.trajectory()]
    between = [found for _, found in points if found.folder.path.parent == folder.along]  # the ends are read elsewhere
    unread += [problem for found in between for problem in found.problems]
    wanted = {key for found in between for key in found.evaluations}
    return [(step, {k: e for k, e in found.evaluations.items() if k in wanted}) for step, found in points]


def _levels(which: str, e: Evaluation) -> list[Level]:
    return [
        Level(
            which=which,
            name=entry_title(e.suite, e.name),
            metric=key,
            unit=m.unit,
            value=number(m.value, decimals_for(m.interval)),
            interval=interval_text(m.interval, decimals_for(m.interval)),
            n=f"{m.n:,}",
        )
        for key, m in e.metrics.items()
        if RESTATED.get(key) not in e.metrics
    ]


def verdict_sentence(record: RunRecord, rows: Sequence[ComparisonRow]) -> str:
    """The run in one sentence of plain words, from its status and its primary comparisons."""
    if rows:
        return headline([r.raw for r in rows])
    what = {"running": "has not finished", "interrupted": "was interrupted", "failed": "failed"}.get(record.status)
    if what:
        return f"The run {what} (stage: {record.stage}), so there is no comparison with the starting model yet."
    return (
        "Training finished, but start and result were not compared, so what was learnt and what was lost is not known."
    )


def training_figures(record: RunRecord, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`{"steps", "tokens", "seconds", "tokens_per_second"}` from run.json, or from the log where the run did not get to
    write them."""
    found = {k: record.training.get(k) for k in ("steps", "tokens", "seconds", "tokens_per_second")}
    for key, logged in (("steps", "step"), ("tokens", "tokens"), ("seconds", "seconds")):
        if found[key] is None:
            found[key] = next((m[logged] for m in reversed(metrics) if m.get(logged) is not None), None)
    if found["tokens_per_second"] is None and found["tokens"] and found["seconds"]:
        found["tokens_per_second"] = found["tokens"] / found["seconds"]
    return found


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
    return Page(
        tab=f"{run.title}: holdfast run report",
        eyebrow=f"holdfast run report ({record.command})",
        title=run.title,
        status=(record.status, STATUS_TONES.get(record.status, "flat")),
        lead=run.verdict,
        details=joined(
            record.model.get("name"),
            record.model.get("origin"),
            run.method,
            f"{significant(steps)} steps" if steps is not None else "",
        ),
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
    found: list[Block] = []
    where = f"in stage “{record.stage}”."
    if record.status == "failed":
        reason = f" {record.error or 'No reason was recorded.'}"
        found.append(Banner((Span(f"The run failed {where}", "strong"), reason), "bad"))
    elif record.status == "interrupted":
        reason = f" {record.error}" if record.error else ""
        go_on = f" Start it again with the same folder to go on.{reason}"
        found.append(Banner((Span(f"The run was interrupted {where}", "strong"), go_on), "warn"))
    elif record.status == "running":
        found.append(Banner(f"The run had not ended when this page was written; its last stage was “{record.stage}”."))
    broken = {f"{r.raw.suite}/{r.name}: {r.raw.failed}": None for r in run.rows if r.raw.failed is not None}
    found += problems("NaN or infinity: nothing follows from these comparisons.", list(broken), "bad")
    return found + problems("Some files could not be read.", run.problems)


def _failed_tile(run: RunFigures) -> list[Tile]:
    """By what the run failed; nothing where it did not."""
    record = run.record
    broken = [r for r in run.rows if r.raw.failed is not None]
    if record.status == "failed" and not broken:
        reason = shorten((record.error or "no reason was recorded").partition("\n")[0], 110)
        return [Tile("The run failed in stage", record.stage or "not recorded", reason, "bad", main=True)]
    if broken:
        names = shorten(", ".join(dict.fromkeys(f"{r.raw.suite}/{r.name}" for r in broken)), 90)
        return [Tile("Not finite", f"{len(broken)} of {len(run.rows)}", f"measures: {names}", "bad", main=True)]
    return []


def _run_tiles(run: RunFigures) -> list[Tile]:
    """What changed, how far the weights moved, what it took."""
    found = []
    for suite in GROUPS:
        rows = [r for r in run.rows if r.raw.suite == suite and r.raw.primary]
        if not rows:
            found.append(Tile(group_title(suite), "not compared", PURPOSE[suite]))
        elif len(rows) == 1:
            [r] = rows
            below = f"{r.unit}, {direction(r.raw.higher_is_better)}: {r.verdict} ({r.before} → {r.after})"
            found.append(Tile(r.label, r.difference, below, r.tone))
        else:
            found.append(count_tile(suite, [r.verdict for r in rows]))
    move, title, trained = run.largest_move, "Largest move of a layer", run.trained
    if move is not None:
        below = f"of its norm, in {_layer(move)}"
        found.append(Tile(title, percent(100 * move.relative, sign=False), below))
    else:
        found.append(Tile(title, "not recorded", "relative L2 distance"))
    tokens = f"{count(trained['tokens'])} tokens" if trained["tokens"] is not None else "tokens not recorded"
    time = duration(trained["seconds"]) if trained["seconds"] is not None else "not recorded"
    return [*found, Tile("Training time", time, tokens)]


def _layer(move: LayerDistance) -> str:
    return f"layer {move.layer}" if move.layer.isdigit() else move.layer


def _changes(run: RunFigures) -> Section:
    missing = [Paragraph(m, "note") for m in run.missing if "evaluat" in m or "compared" in m]
    return Section("Before and after", [*gains(primary_of(run.rows)), *change_tables(run), *missing])


def change_tables(run: RunFigures) -> list[Block]:
    """What was compared, suite by suite, and what was measured of one model only."""
    found: list[Block] = []
    if run.rows:
        level = f"{100 * run.rows[0].raw.confidence:g} %"
        text = (
            f"Difference: after \u2212 before, with its paired {level} interval over the evaluated samples. "
            f"{VERDICT_WORDS} Relative gain: the change in percent of the value before, signed so that positive is "
            "better. One training run is behind these figures: how far another seed would move them is not in the "
            "intervals."
        )
        note = decision_note(loss_decision([r.raw for r in run.rows]))
        found += [note] if note is not None else []
        shown, again = one_unit(run.rows)
        found += [*measures_by_suite(shown, relative=True), Paragraph(text, "note")]
        found += [Fold("The same in other units", measures_by_suite(again, relative=True))] if again else []
    return [*found, _level_table(run.levels)] if run.levels else found


def _level_table(levels: Sequence[Level]) -> Table:
    """Figures of one model that there is nothing to compare with."""
    what = Col("Measure", lambda v: (v.name, sub(f"{v.metric}, {v.unit}")), numeric=False)
    rest = [Col("Model", "which", numeric=False), Col("Value", "value"), Col("Interval", "interval"), Col("n", "n")]
    return tabulate(levels, [what, *rest], title="Measured, but not compared")


def _training_section(run: RunFigures) -> Section:
    """The curves of the log."""
    charts = training_charts(run.metrics, run.record.retention)
    if not charts:
        return Section("Training", [Paragraph("No training step was logged, so there are no curves to show.", "note")])
    large = [c for c in charts if c.height > SMALL]
    small = [c for c in charts if c.height <= SMALL]
    wide = ["half" if len(large) == 2 else "full"] * len(large) + widths(len(small))
    parts: list[Block] = [dataclasses.replace(c, width=w) for c, w in zip((*large, *small), wide, strict=True)]
    if len(run.metrics) >= SMOOTHED_FROM:
        parts.append(Paragraph("Thin lines: as logged. Bold lines: trailing mean.", "note"))
    if run.record.retention and not any(c.title.startswith("KL") for c in charts):
        text = "No divergence from a teacher was logged: the method works without one, or logging began later."
        parts.append(Paragraph(text, "note"))
    return Section("Training", parts)


def _along_section(run: RunFigures) -> Section | None:
    """What was measured on the way; None where nothing was."""
    charts = along_charts(run.trajectory)
    wide = widths(len(charts))
    parts = [dataclasses.replace(chart, width=w) for chart, w in zip(charts, wide, strict=True)]
    return Section("Along training", parts) if parts else None


def _along_fact(run: RunFigures) -> list[tuple[str, Text]]:
    """How often it was measured on the way, and since when the answer's format is learnt."""
    if not run.trajectory:
        return []
    said = [
        f"{name}: {'format not complete' if step is None else f'format complete from step {step}'}"
        for name, step in completions(run.trajectory).items()
    ]
    points = f"{plural(len(run.trajectory), 'point')} up to step {run.trajectory[-1][0]}"
    return [("Along training", "; ".join([points, *said]))]


def training_charts(metrics: Sequence[Mapping[str, Any]], retention: Sequence[Mapping[str, Any]] = ()) -> list[Chart]:
    """Loss, KL, learning rate, gradient norm, token accuracy, a budget's trajectory and the methods' own figures, as
    far as they were logged.

    Args:
        metrics: rows of `metrics.jsonl`.
        retention: the run's methods as recorded; tells what a budget is counted in.
    """

    def logged(key: str) -> bool:
        return any(m.get(key) is not None for m in metrics)

    # Without a divergence the loss is the cross-entropy, and drawing it twice says nothing.
    loss = [("loss", "loss", "accent", False) if logged("loss") else ("ce", "cross-entropy", "accent", False)]
    loss += [("ce", "cross-entropy", "second", False)] if logged("kl") else []
    both = logged("kl") and logged("eval_ce")
    loss.append(("eval_ce", "held-out cross-entropy", "good", True) if both else EVAL_LOSS)
    charts = [
        logged_curves(metrics, curves or loss, title=title, unit=unit, height=height, may_be_log=may_be_log)
        for title, unit, height, may_be_log, curves in CURVES
    ]
    numbers = {k for m in metrics for k, v in m.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    for key in sorted(numbers - NOT_LOGGED - DRAWN - BUDGET_KEYS):
        if not key.startswith(("eval_", "train_")):
            own = [(key, key, "third", False)]
            charts.append(logged_curves(metrics, own, title=key.replace("_", " "), unit="", height=SMALL))
    return [c for c in (*charts, *budget_charts(metrics, retention)) if c is not None]


def budget_charts(
    metrics: Sequence[Mapping[str, Any]], retention: Sequence[Mapping[str, Any]] = ()
) -> list[Chart | None]:
    """A budget's constraint against its limit, and the strength that was found (see `retention.methods.budget`)."""
    in_points = any(entry.get("method") == "budget" and entry.get("metric_drop") is not None for entry in retention)
    against = [("budget_constraint", "measured", "second", False), ("budget_limit", "budget", "bad", False)]
    caption = (
        "The budget holds for the end of the run. On the way the measured value may lie above it, as it does in a run "
        "whose strength is right from the start, and sinks to it with the learning rate."
    )
    unit = "points" if in_points else "nats/token"
    found = [("budget_strength", "strength", "third", False)]
    title = "Strength found by the budget"
    return [
        logged_curves(metrics, against, title="Forgetting against its budget", unit=unit, caption=caption),
        logged_curves(metrics, found, title=title, unit="coefficient", may_be_log=True),
    ]


def _distance(run: RunFigures) -> Section:
    chart = layer_chart(run.record.distance)
    nothing = Paragraph("The distance from the starting weights was not recorded.", "note")
    return Section("How far the weights moved", [nothing if chart is None else chart])


def _to_repeat(run: RunFigures) -> Section:
    record = run.record
    settings = flatten(record.config)
    identity = [
        ("config fingerprint", record.config_key or "not recorded"),
        ("model hash", str(record.model.get("hash") or "not recorded")),
        ("data hash", str(record.data.get("hash") or "not recorded")),
        ("seed", str(record.seed)),
    ]
    folds: list[Block] = [
        Fold(f"Settings ({plural(len(settings), 'key')})", facts_or_nothing(settings)),
        Fold("Versions", facts_or_nothing(list(record.versions.items()))),
        Fold("Hardware", facts_or_nothing(hardware_rows(record.hardware))),
        Fold("Fingerprints", [Facts(identity)]),
    ]
    return Section("To repeat it", folds)


# ------------------------------------------------------------------------------------------------------------ terminal


def print_run_summary(folder: RunFolder, console: Console | None = None) -> None:
    """Prints verdict, changes and cost of one run: the figures of its report.html.

    Raises:
        DataError: the folder has no readable run.json.
    """
    run = read_run(folder)
    record, trained, move = run.record, run.trained, run.largest_move
    found: list[Block] = [Paragraph(f"{run.title} ({record.status})", "strong"), Paragraph(run.verdict)]
    if record.error:
        found.append(Paragraph(f"Stage {record.stage}: {record.error}", "bad"))
    found += [Paragraph(p, "warn") for p in run.problems] + [Paragraph("")]
    found += [_brief(held) for held in by_suite(one_unit(run.rows)[0])]
    found += [_level_table(run.levels)] if run.levels else []
    facts = [("Method", run.method)]
    if origin := run.record.model.get("origin"):
        facts.insert(0, ("Model", joined(run.record.model.get("name"), origin)))
    if trained["steps"] is not None:
        spent = (
            f"{significant(trained['steps'])} steps, {count(trained['tokens'])} tokens, {duration(trained['seconds'])}"
        )
        facts.append(("Training", spent))
    if move is not None:
        reach = percent(100 * move.relative, sign=False)
        facts.append(("Distance", f"up to {reach} of a layer's norm ({_layer(move)})"))
    facts += _along_fact(run)
    found.append(Facts(facts))
    found += [Paragraph(text, "note") for text in (*run.missing, *(f"Note: {n}" for n in record.notes))]
    if folder.report_file.is_file():
        found.append(Facts([("Report", str(folder.report_file))]))
    Printer(console).show(found)


def _brief(rows: Sequence[ComparisonRow]) -> Table:
    """A suite in five columns, which fit into eighty characters."""

    def what(r: ComparisonRow) -> Text:
        # Text measures are known by their unit; a task may have several of one unit (acc and acc_norm).
        name = r.unit if "/" in r.unit or r.raw.metric == r.unit else r.raw.metric
        return r.name, sub(f"{name}, {arrow(r)} is better")

    def verdict(r: ComparisonRow) -> Text:
        below = [f"({r.relative})", f"p {r.p}, n {r.n}", r.raw.test, r.flips]
        return Span((r.verdict, *(sub(b) for b in below if b)), tone=r.tone)

    columns = [Col("Measure", what, numeric=False), Col("Verdict", verdict, numeric=False), BEFORE, AFTER, DIFFERENCE]
    return measure_table(rows, columns, title=group_title(rows[0].raw.suite))
