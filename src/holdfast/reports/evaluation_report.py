"""One page on what `holdfast evaluate` measured: one model, or several side by side.

The table has an entry a line and a model a column, each with the metric that leads, its interval, n and the number of
examples shown. Intervals are those of each model alone; whether two models differ is said by the paired comparisons
with the first model, which are given. Entries that are not there yet, and files that cannot be read, are said.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord, Metric
from holdfast.records.metrics import is_share
from holdfast.reports.answers import CONFIDENT, CURVE_ENTRIES, ECE_NOTE, answer_charts, ece_cell
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
    problems,
    sub,
)
from holdfast.reports.calibration import confidences
from holdfast.reports.charts import Axis, Chart, Col, Mark, Value, colour_of, narrow
from holdfast.reports.compared import (
    difference_note,
    gains,
    group_rank,
    group_title,
    measures,
    ordered,
    pair_sentence,
    primary_of,
)
from holdfast.reports.comparison_report import subject_names
from holdfast.reports.format import count, direction, duration, flatten, hardware_rows, last_part, metric_texts, plural
from holdfast.reports.html import write_page
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


def write_evaluation_report(
    path: str | os.PathLike[str],
    record: EvaluationRecord,
    folders: Sequence[EvaluationFolder],
    *,
    comparisons: Mapping[str, Sequence[Comparison]] = {},
) -> Path:
    """Writes the page and returns its path.

    Args:
        path: the HTML file.
        record: what was asked; its models name the folders.
        folders: one a model, in the record's order.
        comparisons: label of a model -> its paired comparison with the first.

    Raises:
        ConfigError: not as many folders as models.
        StorageError: the page could not be written; an earlier one is intact.
    """
    if len(folders) != len(record.models):
        raise ConfigError(
            f"Expected a folder for each of {plural(len(record.models), 'model')}, got {len(folders)}. Give them in "
            f"the record's order."
        )
    models = [
        Measured(folder, str(m.get("label") or m.get("name") or folder.path.name))
        for folder, m in zip(folders, record.models, strict=True)
    ]
    entries = _entries(record, models)
    rows = {(m.label, key): m.rows(e) for m in models for key, e in _with_curves(m)}
    missing = [f"{m.label}: {s}/{n}" for m in models for s, n in entries if (s, n) not in m.evaluations]
    done = any(m.evaluations for m in models)
    seconds = sum(e.seconds for m in models for e in m.evaluations.values())
    details = [", ".join(record.suites), f"{duration(seconds)} of evaluation" if seconds else "", record.created]
    labels = [m.label for m in models]
    blocks: list[Block | None] = []
    if record.status in BANNERS:
        text, tone = BANNERS[record.status]
        blocks.append(Banner(text if tone == "flat" else Span(text, "strong"), tone))
    blocks += problems("Some files could not be used.", [p for m in models for p in m.problems])
    if done:
        blocks.append(Tiles(_tiles(models, entries)))
    if missing and done:
        more = [Paragraph(f"and {len(missing) - MOST_MISSING:,} more", "note")] if len(missing) > MOST_MISSING else []
        blocks.append(Fold(f"Not measured ({len(missing):,})", [Bullets(missing[:MOST_MISSING]), *more]))
    page = Page(
        tab=f"{', '.join(labels) or 'no model'}: holdfast evaluation",
        eyebrow="holdfast evaluation",
        title=" · ".join(labels) if 0 < len(labels) <= 3 else f"{len(labels)} models" if labels else "No model",
        status=(record.status, STATUS_TONES.get(record.status, "flat")),
        lead=_lead_sentence(record, models, entries, missing),
        details=" · ".join(d for d in details if d),
        blocks=[
            *blocks,
            _scores(record, models, entries),
            _comparisons(labels, comparisons),
            _subjects(models, entries, rows),
            _answers(models, entries, rows),
            _small_print(record, models),
        ],
        footer=f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the evaluation.",
    )
    return write_page(page, Path(path))


# ------------------------------------------------------------------------------------------------------------- reading


def _entries(record: EvaluationRecord, models: Sequence[Measured]) -> list[Key]:
    """Every entry that was asked for or found: in the plan's order, what no plan names after it, averages last in their
    suite."""
    planned = [e for e in record.plan.get("entries") or () if isinstance(e, Mapping) and {"suite", "name"} <= set(e)]
    keys = [(str(e["suite"]), str(e["name"])) for e in planned] + [key for m in models for key in m.evaluations]
    known = list(dict.fromkeys(keys))
    suites = sorted(dict.fromkeys(suite for suite, _ in known), key=lambda s: group_rank(s)[0])
    averages = averages_of(models)
    return sorted(known, key=lambda key: (suites.index(key[0]), key in averages, known.index(key)))


def _with_curves(model: Measured) -> list[tuple[Key, Evaluation]]:
    """Entries whose rows the page draws: answers, classes and choices, and groups of several subtasks."""
    return [
        (key, e)
        for key, e in model.evaluations.items()
        if e.kind in CONFIDENT or (e.kind == "task" and e.settings.get("subtasks"))
    ]


def _lead(models: Sequence[Measured], key: Key) -> str:
    """The metric that an entry leads with: the first model's that has it."""
    return next((m.evaluations[key].primary for m in models if key in m.evaluations), "")


def _metric(model: Measured, key: Key, name: str) -> Metric | None:
    found = model.evaluations.get(key)
    return found.metrics.get(name) if found is not None else None


def _shots(evaluation: Evaluation) -> str:
    shots = evaluation.settings.get("num_fewshot")
    if isinstance(shots, Mapping):
        values = sorted({int(v) for v in shots.values() if isinstance(v, int)})
        return f"{values[0]} to {values[-1]} shots" if values else ""
    return f"{shots}-shot" if isinstance(shots, int) and not isinstance(shots, bool) else ""


# ------------------------------------------------------------------------------------------------------------ sections


def _lead_sentence(
    record: EvaluationRecord, models: Sequence[Measured], entries: Sequence[Key], missing: Sequence[str]
) -> str:
    found = f"{plural(len(models), 'model')} on {len(entries):,} entr{'y' if len(entries) == 1 else 'ies'}"
    if not missing:
        return f"{found}."
    why = {"running": " yet", "interrupted": ", because it was stopped"}.get(record.status, "")
    of = len(entries) * len(models)
    return f"{found}; {len(missing):,} of {of:,} evaluations are not there{why}."


def _tiles(models: Sequence[Measured], entries: Sequence[Key]) -> list[Tile]:
    """Averages, then the first entries; of the best model where there are several."""
    averages = averages_of(models)
    found = []
    for key in sorted(entries, key=lambda k: k not in averages)[:4]:
        name = _lead(models, key)
        scored = [(metric, m.label) for m in models if (metric := _metric(m, key, name)) is not None]
        if scored:
            pick = max if scored[0][0].higher_is_better else min
            best, label = pick(scored, key=lambda pair: pair[0].value)
            text, interval = metric_texts(best)
            words = [best.unit, f" {interval}" if best.interval else "", f", best: {label}" if len(models) > 1 else ""]
            found.append(Tile(f"{group_title(key[0])}: {key[1]}", text, "".join(words)))
    return found


def _scores(record: EvaluationRecord, models: Sequence[Measured], entries: Sequence[Key]) -> Section:
    if not any(m.evaluations for m in models):
        return Section("Scores", [Paragraph("No evaluation is there yet.", "note")])
    heads = columns("Entry", *(m.label for m in models))
    missing = chip("not finished" if record.status in ("running", "interrupted") else "not measured", "warn")

    def cells(key: Key, name: str, gap: Text) -> list[Text]:
        held = [_metric(m, key, name) for m in models]
        return [gap if m is None else figure(*metric_texts(m)) for m in held]

    tables: list[Block] = []
    for suite in dict.fromkeys(s for s, _ in entries):
        held = [k for k in entries if k[0] == suite]
        rows = [[_entry_cell(models, k), *cells(k, _lead(models, k), missing)] for k in held]
        tables.append(Table(columns=heads, rows=rows, title=group_title(suite), kind="dense scores"))
    others = []
    for key in entries:
        lead = _lead(models, key)
        names = dict.fromkeys(
            n for m in models if key in m.evaluations for n in m.evaluations[key].metrics if n != lead
        )
        for name in names:
            unit = next(metric.unit for m in models if (metric := _metric(m, key, name)) is not None)
            others.append([(f"{key[0]}/{key[1]}", sub(f"{name}, {unit}")), *cells(key, name, "")])
    note = (
        "Shares in percent. In brackets: the interval over samples of this model alone; “no interval” where a figure "
        "is no mean over samples."
    )
    rest = Table(columns=heads, rows=others, kind="dense")
    fold = Fold(f"Other metrics ({len(others):,})", [rest]) if others else None
    return Section("Scores", [*_score_charts(models, entries), *tables, fold, Paragraph(note, "note")])


def _entry_cell(models: Sequence[Measured], key: Key) -> Text:
    held = [m.evaluations[key] for m in models if key in m.evaluations]
    if not held:
        return key[1]
    first, name = held[0], _lead(models, key)
    metric, average = first.metrics[name], first.kind == "average"
    counts = {e.metrics[name].n for e in held if name in e.metrics}
    words = [name, metric.unit if metric.unit != name.split(",")[0] else "", _shots(first)]
    words.append("mean of " + plural(len(first.settings.get("members") or ()), "figure") if average else "")
    words.append(f"n {next(iter(counts)):,}" if len(counts) == 1 and not average else "")
    words.append("" if metric.higher_is_better else direction(False))
    return key[1], sub(", ".join(w for w in words if w))


def _score_charts(models: Sequence[Measured], entries: Sequence[Key]) -> list[Chart]:
    """One chart of all shares, one for each other unit."""
    units: dict[str, list[Key]] = {"accuracy": []}
    for key in entries:
        name = _lead(models, key)
        metrics = [metric for m in models if (metric := _metric(m, key, name)) is not None]
        if metrics:
            share = is_share(metrics[0].unit, name, (m.value for m in metrics))
            units.setdefault("accuracy" if share else metrics[0].unit, []).append(key)
    charts = []
    for unit, keys in units.items():
        held = [(m.label, [_metric(m, k, _lead(models, k)) for k in keys]) for m in models]
        title = "Shares of right answers" if unit == "accuracy" else f"In {unit}"
        charts.append(score_bars(names_of(keys), held, title=title, unit=unit))
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
    order = sorted(range(len(names)), key=lambda i: -m.value if (m := first[i]) is not None else math.inf)
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
        narrow=narrow(called),
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


def _subjects(models: Sequence[Measured], entries: Sequence[Key], rows: Rows) -> Section | None:
    charts = []
    for key in entries:
        name = _lead(models, key)
        held = [rows.get((m.label, key)) or [] for m in models]
        tasks = sorted({str(r["task"]) for found in held for r in found if r.get("task")})
        if len(tasks) >= 2:
            drawn = [
                (
                    m.label,
                    [_subject(_metric(m, key, name), name, [r for r in found if r.get("task") == t]) for t in tasks],
                )
                for m, found in zip(models, held, strict=True)
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


def _answers(models: Sequence[Measured], entries: Sequence[Key], rows: Rows) -> Section | None:
    charts: list[Chart] = []
    cells: list[list[Any]] = []
    drawn = 0
    for key in entries:
        held = [
            (m, colour_of(place, len(models)), found)
            for place, m in enumerate(models)
            if key in m.evaluations and m.evaluations[key].kind in CONFIDENT and (found := rows.get((m.label, key)))
        ]
        if not held:
            continue
        for m, _, found in held:
            side = confidences(found)
            if side is not None:
                level = m.evaluations[key].metrics[_lead(models, key)].confidence
                means = [f"{100 * sum(v) / len(v):.1f} %" for v in side]
                cells.append([(key[1], sub(m.label)), ece_cell(side, level), *means, f"{len(found):,}"])
        drawn += 1
        if drawn <= CURVE_ENTRIES:
            charts += answer_charts(key[1], [(m.label, colour, found) for m, colour, found in held])
    if not charts:
        return None
    note = ECE_NOTE.format(paired="")
    note += f" Curves are drawn for the first {CURVE_ENTRIES} of {drawn} entries." if drawn > CURVE_ENTRIES else ""
    table = (
        Table(columns=columns("Entry", "ECE", "Confidence", "Right", "n"), rows=cells, kind="dense") if cells else None
    )
    return Section("Confidence and entropy", [table, *charts, Paragraph(note, "note")])


def _small_print(record: EvaluationRecord, models: Sequence[Measured]) -> Section:
    cells = [
        [
            str(m.get("label") or ""),
            last_part(m.get("name")) or "not recorded",
            str(m.get("architecture") or "not recorded"),
            count(m["parameters"]) if isinstance(m.get("parameters"), (int, float)) else "not recorded",
            Span(str(m.get("hash") or "not recorded")[:16], "code"),
        ]
        for m in record.models
    ]
    settings = settings_of(e for m in models for e in m.evaluations.values())
    plan = flatten({k: v for k, v in record.plan.items() if k != "entries"})
    hardware = hardware_rows(record.hardware)
    when = [
        ("Started", record.created or "not recorded"),
        ("Finished", record.finished or f"no ({record.status})"),
        ("Suites", ", ".join(record.suites) or "none named"),
    ]
    heads = columns("Model", "Name", "Architecture", "Parameters", "Hash", right=(3,))
    return Section(
        "What was run",
        [
            Table(columns=heads, rows=cells, kind="dense") if cells else None,
            Panel([Facts(when)], "card"),
            Fold(f"Settings ({plural(len(plan), 'key')})", [Facts(plan)]) if plan else None,
            Fold(f"Settings of the entries ({len(settings):,})", [Facts(settings)]) if settings else None,
            Fold("Versions", [Facts(list(record.versions.items()))]) if record.versions else None,
            Fold("Hardware", [Facts(hardware)]) if hardware else None,
        ],
    )
