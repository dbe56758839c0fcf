"""`report.html` of a stages study (Pattern Shifting or Knowledge Losing), and what the terminal prints: what each
checkpoint has forgotten, in words first, and what to do about it.

Reads the record, nothing else; it can be written at any moment and names what is missing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.figure import Figure
from holdfast.records.measure import with_interval
from holdfast.records.metrics import is_share
from holdfast.records.stages import (
    ACTUAL,
    BASE,
    CONTROL,
    GAINED,
    INCONCLUSIVE,
    NONE,
    PROBING,
    PSEUDO,
    RESTORED,
    TUNED,
    StagesRecord,
    StageVerdict,
    TaskAbout,
    Transition,
)
from holdfast.reports import blocks as b
from holdfast.reports.along import along_charts
from holdfast.reports.blocks import Bullets, Facts, Panel, Paragraph, Section, Table, chip
from holdfast.reports.charts import COLOURS, Axis, Chart, Col, Mark, Rule, Shade, Value
from holdfast.reports.format import flatten, hardware_rows, listed, plural

if TYPE_CHECKING:
    from rich.console import Console

STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
TONES: dict[str, b.Tone] = {GAINED: "good", NONE: "good", PSEUDO: "warn", ACTUAL: "bad", INCONCLUSIVE: "flat"}
GROUNDS = {
    GAINED: ("good", "gained"),
    NONE: ("good", "none"),
    PSEUDO: ("third", "pseudo"),
    ACTUAL: ("bad", "actual"),
    INCONCLUSIVE: ("muted", ""),
}
"""Colours behind the scores, and short names that fit over one checkpoint."""
PROBED = f"{PROBING}/{PROBING}"
DRAWN = {
    "mass": "Probability on the options",
    "entropy": "Entropy of the next token (nats)",
    "option_entropy": "Entropy over the options (nats)",
    "exact_memorisation": "Tokens that are the most likely one",
}
"""Metrics that are drawn by checkpoint beside what is judged."""


def stages_page(record: StagesRecord) -> b.Page:
    """The page as blocks."""
    charts = [_accuracy(record, arm, task) for arm in record.arms for task in record.tasks]
    patterns = [_pattern(record, arm) for arm in record.arms]
    return b.Page(
        tab=f"{record.name}: holdfast diagnosis",
        eyebrow="holdfast diagnosis",
        title=record.name,
        lead=lead(record),
        status=(record.status, STATUS_TONES.get(record.status, "")),
        details=" · ".join(
            [
                _base_name(record),
                plural(sum(map(len, record.checkpoints.values())), "checkpoint"),
                record.created,
            ]
        ),
        blocks=[
            *b.problems(
                "Some steps failed.",
                [
                    f"{m.arm or 'base'} {m.place or ''}: {m.reason}"
                    for m in record.models
                    if m.reason and m.role != TUNED
                ],
            ),
            *(_verdicts(record, arm) for arm in record.arms),
            Section("Scores by checkpoint", b.side_by_side([c for c in charts if c is not None]), anchor="scores")
            if any(charts)
            else None,
            Section(
                "The text pattern",
                b.side_by_side([c for c in (*patterns, _restoring(record)) if c is not None]),
                intro="Held-out plain text of the kind that the base was trained on: what it costs after fine-tuning, "
                "and after restoring.",
                anchor="pattern",
            )
            if any(patterns)
            else None,
            _characteristics(record),
            *(_along(record, arm) for arm in record.along),
            b.notes(record.notes, anchor="notes"),
            Section("How to read this page", [Panel([Bullets(_reading(record))], "card")], anchor="reading"),
            Section("The study", [Panel([Facts(_facts(record))], "card"), b.fold_facts("Settings", _settings(record))]),
        ],
        footer="Written by holdfast from the study's records.",
    )


def print_stages(record: StagesRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer, every verdict, and where the page is.

    Args:
        record: finished or not.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    from holdfast.reports.terminal import Printer

    shown: list[Any] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(record)), Paragraph("")]
    for arm in record.arms:
        if any(v.arm == arm for v in record.verdicts):
            shown += [_table(record, arm), Paragraph("")]
    Printer(console).show([*shown, Paragraph(f"Page: {Path(folder) / 'report.html'}")])


# --------------------------------------------------------------------------------------------------------------- answer


def lead(record: StagesRecord) -> str:
    """The answer: what the last checkpoint has forgotten of each task, where that begins, and what to do."""
    if not record.verdicts:
        left = sum(m.state != "complete" for m in record.models if m.role in (CONTROL, RESTORED))
        return f"Not judged yet: {plural(left, 'model')} still to be restored."
    sentences = [_answer(record, task) for task in record.tasks]
    if len(record.arms) > 1:
        sentences.append(_remedied(record))
    return " ".join(s for s in sentences if s)


def _answer(record: StagesRecord, task: TaskAbout) -> str:
    arm, key = record.arms[0], f"{task.suite}/{task.name}"
    found = record.of(arm, key)
    if not found:
        return ""
    labels = record.checkpoints[arm]
    last = found[-1]
    text = f"{task.name}: after {labels[last.place - 1]}, {last.verdict}. {last.reason}"
    return f"{text} {advice(found, labels, _transition(record, arm, key))}".strip()


def advice(found: Sequence[StageVerdict], labels: Sequence[str], begins: Transition | None) -> str:
    """What to do about the verdicts on a task.

    Args:
        found: of an arm's checkpoints, in order.
        labels: of the checkpoints.
        begins: where actual forgetting begins.
    """
    last = found[-1].verdict
    if last == ACTUAL:
        safe = [v.place for v in found if v.verdict in (GAINED, NONE, PSEUDO)]
        before = [p for p in safe if all(v.verdict != ACTUAL for v in found if v.place <= p)]
        stop = f"Stop at {labels[before[-1] - 1]}" if before else "No checkpoint is free of it: fine-tune more gently"
        came = found[-1].came_back
        share = f"; restoring brings back {100 * came.value:.0f} % of the fall" if came is not None else ""
        since = f" Actual forgetting begins at {_span(begins, labels)}." if begins and begins.place else ""
        return f"{stop}, or hold on to the base (label annealing, replay){share}.{since}"
    if last == PSEUDO:
        whole = [labels[v.place - 1] for v in found if v.verdict in (GAINED, NONE)]
        earlier = f", and {whole[-1]} still shows it as it is" if whole else ""
        return f"The knowledge is there: an epoch of plain text on top shows it again{earlier}."
    if last in (GAINED, NONE):
        return "Nothing has to be done."
    return ""


def _remedied(record: StagesRecord) -> str:
    """What the remedy changes, task by task."""
    parts = []
    for task in record.tasks:
        key = f"{task.suite}/{task.name}"
        plain, held = record.of(record.arms[0], key), record.of(record.arms[1], key)
        if plain and held:
            same = plain[-1].verdict == held[-1].verdict
            parts.append(f"{task.name} {'stays' if same else 'becomes'} {held[-1].verdict}: {held[-1].reason}")
    return f"With the remedy, {' '.join(parts)}" if parts else ""


def _transition(record: StagesRecord, arm: str, task: str) -> Transition | None:
    return next((t for t in record.transitions if (t.arm, t.task) == (arm, task)), None)


def _span(found: Transition, labels: Sequence[str]) -> str:
    def name(place: int | None) -> str:
        return labels[place - 1] if place is not None and place <= len(labels) else "after the last one"

    low, high = found.interval
    return name(found.place) if low == high else f"{name(found.place)} [{name(low)} to {name(high)}]"


# ---------------------------------------------------------------------------------------------------------------- table


def _verdicts(record: StagesRecord, arm: str) -> Section | None:
    if not any(v.arm == arm for v in record.verdicts):
        return None
    begins = [t for t in record.transitions if t.arm == arm]
    lines = [f"{t.task}: actual forgetting begins at {_span(t, record.checkpoints[arm])}." for t in begins if t.place]
    reasons = [f"{record.checkpoints[arm][v.place - 1]}, {v.task}: {v.reason}" for v in record.verdicts if v.arm == arm]
    shown = [Panel([_table(record, arm), *([Bullets(lines)] if lines else [])], "card")]
    return Section(f"Verdicts: {arm}", [*shown, b.Fold("Why", [Bullets(reasons)])], anchor=f"verdicts-{arm}")


def _table(record: StagesRecord, arm: str) -> Table:
    """A row a checkpoint and task: the verdict, and what it follows from."""
    rows = []
    several = len(record.tasks) > 1
    for place, label in enumerate(record.checkpoints[arm], 1):
        for task in record.tasks:
            v = next((v for v in record.of(arm, f"{task.suite}/{task.name}") if v.place == place), None)
            if v is not None:
                name = f"{label}, {task.name}" if several else label
                came = _share(v.came_back)
                cells = [_change(c) for c in (v.tuned, v.restored, v.against_control)]
                rows.append([name, chip(v.verdict, TONES[v.verdict]), *cells, came])
    return Table(
        columns=b.columns(
            f"Checkpoint ({arm})",
            "Verdict",
            "Fine-tuned",
            "Restored",
            "Against control",
            "Came back",
            right=[2, 3, 4, 5],
        ),
        rows=rows,
        note="Fine-tuned and restored: changes against the base. Came back: the share of the fall that restoring "
        "brought back.",
    )


def _change(c: Any) -> b.Text:
    if c is None or c.failed is not None:
        return "–"
    sign = 1.0 if c.higher_is_better else -1.0
    low, high = sorted(sign * v for v in c.interval)
    share = is_share(c.unit, c.metric, (c.before, c.after))
    return b.figure(*with_interval(c.gain, (low, high), share=share, sign=True, unit="" if share else c.unit))


def _share(figure: Figure | None) -> b.Text:
    return "–" if figure is None else b.figure(*with_interval(figure.value, figure.interval, share=True))


# --------------------------------------------------------------------------------------------------------------- charts


def _points(
    record: StagesRecord, arm: str, role: str, entry: str, metric: str, factor: float
) -> list[tuple[int, Value]]:
    found = []
    for m in sorted((m for m in record.models if (m.role, m.arm) == (role, arm)), key=lambda m: m.place):
        figure = m.figures.get(entry, {}).get(metric)
        if figure is not None:
            found.append((m.place, _value(figure, factor)))
    return found


def _value(figure: Figure, factor: float) -> Value:
    low, high = (factor * v for v in figure.interval) if figure.interval else (None, None)
    text, interval = with_interval(figure.value, figure.interval, share=factor == 100.0)
    return Value(value=factor * figure.value, low=low, high=high, text=text, interval=interval)


def _by_checkpoint(
    record: StagesRecord, arm: str, entry: str, metric: str, *, title: str, axis: str, factor: float, caption: str
) -> Chart | None:
    """Fine-tuned and restored models by checkpoint, the base and the control as lines across."""
    labels = record.checkpoints[arm]
    rows: list[dict[str, Any]] = [
        {"model": name, "x": place, "checkpoint": labels[place - 1], "y": value}
        for role, name in ((TUNED, "fine-tuned"), (RESTORED, "restored"))
        for place, value in _points(record, arm, role, entry, metric, factor)
    ]
    if not rows:
        return None
    across = []
    for role, name, dash in ((BASE, "base", "dash"), (CONTROL, "base, restored", "dot")):
        for _, value in _points(record, "", role, entry, metric, factor):
            ends = [0.5, len(labels) + 0.5]
            level = {"model": name, "x": ends, "y": [value.value] * 2, "checkpoint": "", "end": value}
            across.append(Mark(kind="curves", rows=[level], name=name, colour="muted", dash=dash))
    return Chart(
        title=title,
        rows=rows,
        columns=[
            Col("Model", "model", numeric=False),
            Col("Checkpoint", "checkpoint", numeric=False),
            Col(axis, "y"),
        ],
        marks=[
            *across,
            Mark(kind="line", where={"model": "fine-tuned"}, name="fine-tuned", colour=COLOURS[1]),
            Mark(kind="line", where={"model": "restored"}, name="restored", colour=COLOURS[0], symbol="diamond"),
        ],
        x=Axis(title="checkpoint", ticks=[(k + 1, label.removeprefix("epoch ")) for k, label in enumerate(labels)]),
        y=Axis(title=axis),
        caption=caption,
        legend=True,
        height=360,
    )


def _accuracy(record: StagesRecord, arm: str, task: TaskAbout) -> Chart | None:
    model = record.model(BASE)
    entry = f"{task.suite}/{task.name}"
    figure = model.figures.get(entry, {}).get(task.metric) if model is not None else None
    share = figure is not None and is_share(task.unit, task.metric, (figure.value,))
    stages = [f"{record.checkpoints[arm][v.place - 1]}: {v.verdict}" for v in record.of(arm, entry)]
    chart = _by_checkpoint(
        record,
        arm,
        entry,
        task.metric,
        title=f"{task.name} ({arm})",
        axis=f"{task.name} ({'%' if share else task.unit})",
        factor=100.0 if share else 1.0,
        caption=f"95 % over questions. {listed(stages)}." if stages else "95 % over questions.",
    )
    if chart is None:
        return None
    rules = [] if task.chance is None else [Rule(y=(100.0 if share else 1.0) * task.chance)]
    return dataclasses.replace(chart, rules=rules, shades=_stages(record.of(arm, entry)))


def _stages(verdicts: Sequence[StageVerdict]) -> list[Shade]:
    """The stages as coloured grounds, neighbours of one verdict together."""
    found = []
    for verdict, group in itertools.groupby(verdicts, key=lambda v: v.verdict):
        places = [v.place for v in group]
        colour, text = GROUNDS[verdict]
        found.append(Shade(start=places[0] - 0.5, end=places[-1] + 0.5, colour=colour, text=text))
    return found


def _pattern(record: StagesRecord, arm: str) -> Chart | None:
    return _by_checkpoint(
        record,
        arm,
        PROBED,
        "nats_per_token",
        title=f"Plain text ({arm})",
        axis="nats per token, lower is better",
        factor=1.0,
        caption="Held-out probing passages. The pattern is back where the restored model is at the base's or the "
        f"control's, within {record.config.get('tolerance')} nats.",
    )


def _restoring(record: StagesRecord) -> Chart | None:
    """Probing text along restoring, a line a checkpoint."""
    rows: list[dict[str, Any]] = []
    for m in record.models:
        if m.role in (CONTROL, RESTORED) and m.curve:
            name = f"{m.arm}, {record.checkpoints[m.arm][m.place - 1]}" if m.arm else "base (control)"
            xs, ys = zip(*m.curve, strict=True)
            rows.append({"model": name, "x": [100 * x for x in xs], "y": list(ys), "end": ys[-1]})
    if not rows:
        return None
    return Chart(
        title="Plain text along restoring",
        rows=rows,
        columns=[Col("Model", "model", numeric=False), Col("At the end", "end")],
        marks=[
            Mark(kind="curves", rows=[row], name=row["model"], colour=COLOURS[i % len(COLOURS)])
            for i, row in enumerate(rows)
        ],
        x=Axis(title="restoring, % of its steps"),
        y=Axis(title="nats per token, lower is better"),
        caption="Probing passages, which are not trained on.",
        legend=len(rows) <= 12,
        height=360,
    )


def _characteristics(record: StagesRecord) -> Section | None:
    """What the models say at the answer position, and how much of the outputs they know by heart."""
    base = record.model(BASE)
    charts = []
    for arm in record.arms:
        for entry, metrics in (base.figures if base is not None else {}).items():
            for metric, title in DRAWN.items():
                if metric in metrics:
                    share = metric in ("mass", "exact_memorisation")
                    charts.append(
                        _by_checkpoint(
                            record,
                            arm,
                            entry,
                            metric,
                            title=f"{title}: {entry.partition('/')[2]} ({arm})",
                            axis="%" if share else "nats",
                            factor=100.0 if share else 1.0,
                            caption="95 % over questions.",
                        )
                    )
    known = [c for c in charts if c is not None]
    return Section("Characteristics", b.side_by_side(known), anchor="characteristics") if known else None


def _along(record: StagesRecord, arm: str) -> Section:
    """Every figure that was measured on the way of a fine-tuning, not at its ends alone."""
    measured = Counter((e.suite, e.name) for p in record.along[arm] for e in p.evaluations)
    points = [
        (p.step, {(e.suite, e.name): e for e in p.evaluations if measured[e.suite, e.name] > 2})
        for p in record.along[arm]
    ]
    intro = "Measured on the way, at the steps that were asked for. The format of the answers is learnt within a few."
    return Section(
        f"Along fine-tuning: {arm}", b.side_by_side(along_charts(points)), intro=intro, anchor=f"along-{arm}"
    )


# ---------------------------------------------------------------------------------------------------------------- words


def _reading(record: StagesRecord) -> list[str]:
    margin = ", ".join(map(str, record.config.get("margin", [])))
    return [
        "The control is the base put through the same restoring: what restoring costs, or teaches, it shows too.",
        f"A loss of no more than the margin ({margin}) counts as none. Verdicts follow from one-sided paired tests "
        "over the questions (exact for right and wrong answers), adjusted by Holm's method over all checkpoints and "
        "tasks.",
        "Pseudo forgetting: the score fell, the text pattern is back after restoring, and so is the score. Actual "
        "forgetting: the pattern is back and the score is below both the base's and the control's. A part of the fall "
        "may have come back all the same; its share is given.",
        "Inconclusive is no verdict: the reason says what would decide.",
        "The choice of a checkpoint by this page is a choice among several; measure it anew on other questions.",
    ]


def _base_name(record: StagesRecord) -> str:
    """The base as it was named, or the small setting that made it."""
    base, small = str(record.config.get("base", "")), record.config.get("small")
    return f"the base of the small setting {small}" if small and base.startswith("${") else base


def _text_facts(texts: Mapping[str, Any]) -> list[tuple[str, b.Text]]:
    """Of the text that was chosen to restore on, as selection.json tells it."""
    if not (counts := texts.get("counts")):
        return []
    sets = [
        f"{plural(counts[name]['passages'], 'passage')}, {counts[name]['nats_per_token']:.3f} nats per token"
        for name in ("restoring", "probing", "all")
    ]
    rows: list[tuple[str, b.Text]] = list(zip(("To restore on", "To probe with", "Corpus"), sets, strict=True))
    if asked := texts.get("questions"):
        kept = "left out" if texts["options"]["overlap"] == "drop" else "kept: select: {overlap: drop} leaves them out"
        shared = f"{plural(counts['overlapping'], 'passage')} with 13 words of one of {asked['count']:,} questions"
        short = f"; {asked['short']:,} are too short to be looked for" if asked["short"] else ""
        rows.append(("Questions in it", (f"{shared} ({kept})" if counts["overlapping"] else shared) + short))
    return rows


def _facts(record: StagesRecord) -> list[tuple[str, b.Text]]:
    rows: list[tuple[str, b.Text]] = [("Base", _base_name(record))]
    rows += _text_facts(record.texts)
    restored = next((m for m in record.models if m.role in (CONTROL, RESTORED) and m.tokens), None)
    if restored is not None:
        rows.append(("Restored on", f"{restored.tokens:,} tokens each"))
    rows.append(("Restoring took", f"{sum(m.seconds for m in record.models):,.0f} s in all"))
    return [*rows, *hardware_rows(record.hardware)]


def _settings(record: StagesRecord) -> list[tuple[str, b.Text]]:
    return list(flatten(record.config))
