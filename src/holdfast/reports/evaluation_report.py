"""One page on what `holdfast evaluate` measured: one model, or several side by side.

The table has an entry a line and a model a column, each with the metric that leads, its interval, n and the number of
examples shown. Intervals are those of each model alone; whether two models differ is decided by the paired
comparisons with the first model, which are given. Entries that are not there yet, and files that cannot be read, are
named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.records.comparison import NOT_FINITE, Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord, Metric
from holdfast.records.metrics import is_share, readings
from holdfast.reports.blocks import (
    Banner,
    Block,
    Bullets,
    Facts,
    Fold,
    Heading,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tile,
    Tiles,
    chip,
    columns,
    figure,
    fold_facts,
    notes,
    problems,
    sub,
)
from holdfast.reports.charts import Axis, Chart, Col, Mark, Value, colour_of, tabulate
from holdfast.reports.compared import (
    difference_note,
    entry_title,
    gains,
    group_rank,
    group_title,
    measures,
    ordered,
    pair_sentence,
    primary_of,
)
from holdfast.reports.comparison_report import subject_names
from holdfast.reports.format import (
    count,
    direction,
    duration,
    flatten,
    hardware_rows,
    joined,
    last_part,
    metric_texts,
    plural,
    shorten,
)
from holdfast.reports.measured import Measured, averages_of, names_of, settings_of

STATUS_TONES = {"finished": "good", "failed": "bad", "interrupted": "warn"}
BANNERS = {
    "failed": ("The evaluation failed. What was finished before is shown; the same command continues.", "bad"),
    "interrupted": ("The evaluation was interrupted. The same command continues with what is missing.", "warn"),
    "running": ("The evaluation had not ended when this page was written.", "flat"),
}
MOST_MISSING = 60
Key = tuple[str, str]
Rows = Mapping[tuple[str, Key], list[dict[str, Any]] | None]


def evaluation_page(
    record: EvaluationRecord,
    folders: Sequence[EvaluationFolder],
    *,
    comparisons: Mapping[str, Sequence[Comparison]] = {},
) -> Page:
    """An evaluation as a page.

    Args:
        record: what was asked; its models name the folders.
        folders: one a model, in the record's order.
        comparisons: label of a model -> its paired comparison with the first of which something was measured.
    """
    scores = Scores(record, folders)
    models, labels, missing = scores.models, [m.label for m in scores.models], scores.missing
    rows = {(m.label, key): m.rows(e) for m in models for key, e in _with_subjects(m)}
    done = any(m.evaluations for m in models)
    seconds = sum(e.seconds for m in models for e in m.evaluations.values())
    text, tone = BANNERS.get(record.status, ("", "flat"))
    more = [Paragraph(f"and {len(missing) - MOST_MISSING:,} more", "note")] if len(missing) > MOST_MISSING else []
    gaps = Fold(f"Not measured ({len(missing):,})", [Bullets(missing[:MOST_MISSING]), *more])
    return Page(
        tab=f"{', '.join(labels) or 'no model'}: holdfast evaluation",
        eyebrow="holdfast evaluation",
        title=" · ".join(labels) if 0 < len(labels) <= 3 else f"{len(labels)} models" if labels else "No model",
        status=(record.status, STATUS_TONES.get(record.status, "flat")),
        lead=_lead_sentence(record, scores),
        details=joined(
            *_origins(record),
            ", ".join(record.suites),
            f"{duration(seconds)} of evaluation" if seconds else "",
            record.created,
        ),
        blocks=[
            Banner(text if tone == "flat" else Span(text, "strong"), tone) if text else None,
            *problems("NaN or infinity: the figures of these entries mean nothing.", scores.broken, "bad"),
            *problems("Some files could not be used.", [p for m in models for p in m.problems]),
            Tiles([*_failed_tile(record, scores), *_tiles(scores)]) if done else None,
            gaps if missing and done else None,
            _scores(record, scores),
            _comparisons([m.label for m in models if m.evaluations], comparisons),
            _subjects(scores, rows),
            notes([f"{m.label}: {note}" for m in models for e in m.evaluations.values() for note in e.notes]),
            _small_print(record, models),
        ],
        footer=f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the evaluation.",
    )


# ------------------------------------------------------------------------------------------------------------- reading


class Scores:
    """Every model's figures on every entry that was asked for or found.

    Args:
        record: what was asked.
        folders: one a model, in the record's order.
    """

    def __init__(self, record: EvaluationRecord, folders: Sequence[EvaluationFolder]) -> None:
        self.models = [
            Measured(folder, str(m.get("label") or m.get("name") or folder.path.name))
            for folder, m in zip(folders, record.models, strict=True)
        ]
        self.averages = averages_of(self.models)
        named = [e for e in record.plan.get("entries") or () if isinstance(e, Mapping) and {"suite", "name"} <= set(e)]
        keys = [(str(e["suite"]), str(e["name"])) for e in named] + [key for m in self.models for key in m.evaluations]
        known = list(dict.fromkeys(keys))
        suites = sorted(dict.fromkeys(suite for suite, _ in known), key=lambda s: group_rank(s)[0])
        self.entries = sorted(known, key=lambda k: (suites.index(k[0]), k in self.averages, known.index(k)))
        """In the plan's order, what no plan names after it, averages last in their suite."""
        self.missing = [
            f"{m.label}: {s}/{n}" for m in self.models for s, n in self.entries if (s, n) not in m.evaluations
        ]

    @property
    def broken(self) -> list[str]:
        """Entries that failed, a sentence each."""
        held = ((m, key, e) for m in self.models for key, e in m.evaluations.items())
        return [f"{m.label}: {'/'.join(key)}: {e.failed}" for m, key, e in held if e.failed is not None]

    def evaluations(self, key: Key) -> list[Evaluation]:
        """An entry of the models that have it."""
        return [m.evaluations[key] for m in self.models if key in m.evaluations]

    def lead(self, key: Key) -> str:
        """The metric that an entry leads with: the first model's that has it."""
        return next((e.primary for e in self.evaluations(key)), "")

    def metrics(self, key: Key, name: str = "") -> list[Metric | None]:
        """One metric of an entry, the leading one by default; None for models that do not have it."""
        held = (m.evaluations.get(key) for m in self.models)
        return [e.metrics.get(name or self.lead(key)) if e is not None else None for e in held]

    def side_by_side(self, keys: Sequence[Key]) -> list[tuple[str, list[Metric | None]]]:
        """The leading metrics of several entries, by the label of the model."""
        held = zip(*(self.metrics(key) for key in keys), strict=True)
        return [(m.label, list(found)) for m, found in zip(self.models, held, strict=True)]


def _with_subjects(model: Measured) -> list[tuple[Key, Evaluation]]:
    """Entries whose rows the page draws: groups of several subtasks."""
    return [(key, e) for key, e in model.evaluations.items() if e.failed is None and e.settings.get("subtasks")]


def _shots(evaluation: Evaluation) -> str:
    shots = evaluation.settings.get("num_fewshot")
    if isinstance(shots, Mapping):
        values = sorted({int(v) for v in shots.values() if isinstance(v, int)})
        return f"{values[0]} to {values[-1]} shots" if values else ""
    return f"{shots}-shot" if isinstance(shots, int) and not isinstance(shots, bool) else ""


# ------------------------------------------------------------------------------------------------------------ sections


def _lead_sentence(record: EvaluationRecord, scores: Scores) -> str:
    n, models = len(scores.entries), len(scores.models)
    found = f"{plural(models, 'model')} on {n:,} entr{'y' if n == 1 else 'ies'}"
    if not scores.missing:
        return f"{found}."
    why = {"running": " yet", "interrupted": ", because it was stopped"}.get(record.status, "")
    return f"{found}; {len(scores.missing):,} of {n * models:,} evaluations are not there{why}."


def _failed_tile(record: EvaluationRecord, scores: Scores) -> list[Tile]:
    """By what the evaluation failed; nothing where it did not."""
    if scores.broken:
        below = f"entries hold NaN or infinity: {shorten(', '.join(scores.broken), 90)}"
        return [Tile("Not finite", f"{len(scores.broken)}", below, "bad", main=True)]
    if record.status == "failed":
        return [Tile("Not measured", f"{len(scores.missing):,}", "entries; the evaluation failed", "bad", main=True)]
    return []


def _tiles(scores: Scores) -> list[Tile]:
    """Averages, then the first entries; of the best model where there are several."""
    several, found = len(scores.models) > 1, []
    for key in sorted(scores.entries, key=lambda k: k not in scores.averages)[:4]:
        found_here = zip(scores.metrics(key), scores.models, strict=True)
        held = [(m, label.label) for m, label in found_here if m is not None and math.isfinite(m.value)]
        if held:
            pick = max if held[0][0].higher_is_better else min
            best, label = pick(held, key=lambda pair: pair[0].value)
            text, interval = metric_texts(best)
            below = f"{best.unit}{f' {interval}' if best.interval else ''}{f', best: {label}' if several else ''}"
            found.append(Tile(entry_title(*key), text, below))
    return found


def _scores(record: EvaluationRecord, scores: Scores) -> Section:
    if not any(m.evaluations for m in scores.models):
        return Section("Scores", [Paragraph("No evaluation is there yet.", "note")])
    heads = columns("Entry", *(m.label for m in scores.models))
    missing = chip("not finished" if record.status in ("running", "interrupted") else "not measured", "warn")

    def cells(key: Key, gap: Text, name: str = "") -> list[Text]:
        return [gap if m is None else _cell(m) for m in scores.metrics(key, name)]

    def lines(key: Key) -> list[list[Text]]:
        """The entry, and other readings of its answers."""
        first = next(iter(scores.evaluations(key)), None)
        others = readings(first.primary, first.metrics) if first is not None else []
        return [
            [_entry_cell(scores, key), *cells(key, missing)],
            *([sub(f"{key[1]}: {name}"), *cells(key, "", name)] for name in others),
        ]

    tables: list[Block] = []
    for suite in dict.fromkeys(s for s, _ in scores.entries):
        rows = [line for key in scores.entries if key[0] == suite for line in lines(key)]
        tables.append(Table(columns=heads, rows=rows, title=group_title(suite), kind="dense scores"))
    units = {
        (key, name): m.unit
        for key in scores.entries
        for e in reversed(scores.evaluations(key))
        for name, m in e.metrics.items()
        if name != scores.lead(key)
    }
    order = [(key, name) for key in scores.entries for e in scores.evaluations(key) for name in e.metrics]
    others = [
        [(f"{key[0]}/{key[1]}", sub(f"{name}, {units[key, name]}")), *cells(key, "", name)]
        for key, name in dict.fromkeys(order)
        if (key, name) in units
    ]
    note = (
        "Shares in percent. In brackets: the interval over samples of this model alone; “no interval” where a figure "
        "is no mean over samples."
    )
    rest = Table(columns=heads, rows=others, kind="dense")
    fold = Fold(f"Other metrics ({len(others):,})", [rest]) if others else None
    return Section("Scores", [*_score_charts(scores), *tables, fold, Paragraph(note, "note")])


def _cell(metric: Metric) -> Text:
    return figure(*metric_texts(metric)) if math.isfinite(metric.value) else chip(NOT_FINITE, "bad")


def _entry_cell(scores: Scores, key: Key) -> Text:
    held, name = scores.evaluations(key), scores.lead(key)
    if not held:
        return key[1]
    first = held[0]
    metric, average = first.metrics[name], first.kind == "average"
    counts = {m.n for m in scores.metrics(key) if m is not None}
    words = [name, metric.unit if metric.unit != name.split(",")[0] else "", _shots(first)]
    words.append("mean of " + plural(len(first.settings.get("members") or ()), "figure") if average else "")
    words.append(f"n {next(iter(counts)):,}" if len(counts) == 1 and not average else "")
    words.append("" if metric.higher_is_better else direction(False))
    return key[1], sub(", ".join(w for w in words if w))


def _score_charts(scores: Scores) -> list[Chart]:
    """One chart of all shares, one for each other unit."""
    units: dict[str, list[Key]] = {"accuracy": []}
    for key in scores.entries:
        metrics = [m for m in scores.metrics(key) if m is not None]
        if metrics:
            share = is_share(metrics[0].unit, scores.lead(key), (m.value for m in metrics))
            units.setdefault("accuracy" if share else metrics[0].unit, []).append(key)
    charts = []
    for unit, keys in units.items():
        title = "Shares of right answers" if unit == "accuracy" else f"In {unit}"
        charts.append(score_bars(names_of(keys), scores.side_by_side(keys), title=title, unit=unit) if keys else None)
    return [c for c in charts if c is not None]


def value_of(metric: Metric, factor: float = 1.0) -> Value:
    """A metric to draw, `factor` times as large."""
    text, interval = metric_texts(metric)
    low, high = (factor * v for v in metric.interval or (math.nan, math.nan))
    return Value(value=factor * metric.value, low=low, high=high, text=text, interval=interval)


def _lines(
    names: Sequence[str], models: Sequence[tuple[str, Sequence[Metric | None]]], factor: float
) -> tuple[list[dict[str, Any]], list[Col]]:
    """A row an entry and a column a model."""
    rows: list[dict[str, Any]] = [
        {"name": name, "place": i}
        | {label: value_of(m, factor) for label, held in models if (m := held[i]) is not None}
        for i, name in enumerate(names)
    ]
    return rows, [Col(label, _measured(label)) for label, _ in models]


def _measured(label: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: row.get(label, "not measured")


def score_bars(
    names: Sequence[str], models: Sequence[tuple[str, Sequence[Metric | None]]], *, title: str, unit: str
) -> Chart | None:
    """Scores of several models on several entries as bars with intervals; shares in percent.

    Args:
        names: of the entries.
        models: (label, metric of every entry or None where it was not measured).
        title: of the chart.
        unit: of all of them.

    Returns:
        None where no model has a finite score.
    """
    metrics = [m for _, held in models for m in held if m is not None]
    if not any(math.isfinite(m.value) for m in metrics):
        return None
    share = is_share(unit, values=(m.value for m in metrics))
    rows, heads = _lines(names, models, 100.0 if share else 1.0)
    caption = f"Thin lines: {100 * metrics[0].confidence:g} % intervals over the samples of each model alone."
    several = len(models) > 1
    if several:
        caption += (
            " Two of them may overlap and the difference still be sure, since both models answered the same questions."
        )
    return Chart(
        title=title,
        rows=rows,
        columns=[Col("Entry", "name", numeric=False), *heads],
        marks=[
            Mark(kind="bars", x=label, y="place", name=label, colour=colour_of(i, len(models)), bars=1.1)
            for i, (label, _) in enumerate(models)
        ],
        x=Axis(title=f"{unit}, %" if share else unit, from_zero=True),
        y=Axis(names=names, length=22, more={"showgrid": False}),
        caption=caption,
        height=70 + len(names) * (12 + 15 * len(models)) + (24 if several else 0),
        layout={"barmode": "group", "bargap": 0.25},
    )


def subject_dots(names: Sequence[str], models: Sequence[tuple[str, Sequence[Metric | None]]], *, title: str) -> Chart:
    """Scores on the subjects of a group, a line a subject and a dot a model, with intervals; sorted by the first
    model."""
    first = models[0][1]
    known = [math.inf if m is None or math.isnan(m.value) else -m.value for m in first]
    order = sorted(range(len(names)), key=known.__getitem__)
    metrics = [m for _, held in models for m in held if m is not None]
    unit = next((m.unit for m in metrics), "")
    share = is_share(unit, values=(m.value for m in metrics))
    called = [names[i] for i in order]
    rows, heads = _lines(called, [(lb, [held[i] for i in order]) for lb, held in models], 100.0 if share else 1.0)
    marks = []
    for number, (label, held) in enumerate(models):
        shift = 0.5 * (number / (len(models) - 1) - 0.5) if len(models) > 1 else 0.0
        for row, i in zip(rows, order, strict=True):
            row[f"place {number}"] = round(row["place"] + shift, 3)
            if (m := held[i]) is not None:
                row.setdefault("n", m.n)
        colour = colour_of(number, len(models))
        marks.append(Mark(x=label, y=f"place {number}", name=label, colour=colour, size=7, bars=1))
    return Chart(
        title=title,
        rows=rows,
        columns=[Col("Subject", "name", numeric=False), *heads, Col("n", lambda r: f"{r.get('n', 0):,}")],
        marks=marks,
        x=Axis(title="%" if share else unit),
        y=Axis(names=called, length=26),
        caption="Sorted by the first model. Lines: intervals over the questions of the subject.",
        height=80 + len(names) * max(18, 9 * len(models)),
    )


def _comparisons(labels: Sequence[str], comparisons: Mapping[str, Sequence[Comparison]]) -> Section | None:
    known = {label: ordered(held) for label, held in comparisons.items() if held}
    if not known:
        return None
    first = labels[0] if labels else ""
    parts: list[Any] = []
    for label, rows in known.items():
        primary = primary_of(rows)
        parts += [Heading(f"{first} → {label}"), Paragraph(pair_sentence((first, label), primary)), *gains(primary)]
        parts.append(Fold(f"Figures ({len(rows):,})", [measures(rows)]))
    return Section(f"Compared with {first}", [*parts, difference_note([r for rows in known.values() for r in rows])])


def _subjects(scores: Scores, rows: Rows) -> Section | None:
    charts = []
    for key in scores.entries:
        held = [rows.get((m.label, key)) or [] for m in scores.models]
        tasks = sorted({str(r["task"]) for found in held for r in found if r.get("task")})
        if len(tasks) >= 2:
            drawn = [
                (m.label, [_subject(lead, scores.lead(key), [r for r in found if r.get("task") == t]) for t in tasks])
                for m, lead, found in zip(scores.models, scores.metrics(key), held, strict=True)
            ]
            charts.append(subject_dots(subject_names(tasks), drawn, title=f"{key[1]}, by subject"))
    return Section("Subjects", charts) if charts else None


def _subject(lead: Metric | None, name: str, rows: Sequence[Mapping[str, Any]]) -> Metric | None:
    """The leading metric on the questions of one subject."""
    from holdfast.statistics.estimates import estimate, figure_for

    if lead is None:
        return None
    ratio = figure_for(name, rows, higher_is_better=lead.higher_is_better, unit=lead.unit)
    if ratio is None:
        return None
    value, interval = estimate(ratio, rows, confidence=lead.confidence, resamples=1000)
    return dataclasses.replace(lead, value=value, n=len(rows), unit=ratio.unit, interval=interval)


def _origins(record: EvaluationRecord) -> list[str]:
    """What has to be said of the models' weights, a sentence each."""
    return [f"{m.get('label')}: {m['origin']}" for m in record.models if m.get("origin")]


def _small_print(record: EvaluationRecord, models: Sequence[Measured]) -> Section:
    unknown = "not recorded"

    def parameters(m: Mapping[str, Any]) -> str:
        return count(m["parameters"]) if isinstance(m.get("parameters"), (int, float)) else unknown

    held = [
        Col("Model", lambda m: str(m.get("label") or ""), numeric=False),
        Col("Name", lambda m: last_part(m.get("name")) or unknown, numeric=False),
        Col("Architecture", lambda m: str(m.get("architecture") or unknown), numeric=False),
        Col("Parameters", parameters),
        *([Col("Weights", lambda m: str(m.get("origin") or ""), numeric=False)] if _origins(record) else []),
        Col("Hash", lambda m: Span(str(m.get("hash") or unknown)[:16], "code"), numeric=False),
    ]
    settings = settings_of(e for m in models for e in m.evaluations.values())
    plan = flatten({k: v for k, v in record.plan.items() if k != "entries"})
    when = [
        ("Started", record.created or unknown),
        ("Finished", record.finished or f"no ({record.status})"),
        ("Suites", ", ".join(record.suites) or "none named"),
    ]
    return Section(
        "What was run",
        [
            tabulate(record.models, held, kind="dense") if record.models else None,
            Panel([Facts(when)], "card"),
            fold_facts(f"Settings ({plural(len(plan), 'key')})", plan),
            fold_facts(f"Settings of the entries ({len(settings):,})", settings),
            fold_facts("Versions", list(record.versions.items())),
            fold_facts("Hardware", hardware_rows(record.hardware)),
        ],
    )
