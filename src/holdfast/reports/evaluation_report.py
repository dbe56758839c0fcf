"""One page on what `holdfast evaluate` measured: one model, or several side by side.

The table has an entry a line and a model a column, each with the metric that leads, its interval, n and the number of
examples shown. Intervals are those of each model alone; whether two models differ is said by the paired comparisons
with the first model, which are given. Entries that are not there yet, and files that cannot be read, are said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord, Metric
from holdfast.reports.calibration import confidences
from holdfast.reports.comparison_report import (
    CURVE_ENTRIES,
    ECE_NOTE,
    Measured,
    answer_charts,
    comparison_verdict,
    difference_note,
    ece_cell,
    gains_panels,
    measures_table,
    model_name,
    settings_text,
)
from holdfast.reports.evaluation_charts import (
    colour_of,
    is_share,
    metric_interval,
    metric_text,
    score_bars,
    subject_dots,
    subject_names,
)
from holdfast.reports.figures import count, duration, flatten, group_rank, group_title, hardware_text, plural, row
from holdfast.reports.markup import Column, Html, join, table, tag
from holdfast.reports.page import Page, banner, bullets, facts, fold, header, tiles

STATUS_TONE = {"finished": "good", "failed": "bad", "interrupted": "warn"}

Key = tuple[str, str]

_CONFIDENT = ("answers", "classes", "choices")
"""Kinds whose rows have probabilities over options, of which confidence and calibration are drawn."""


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
    rows = {
        (m.label, key): m.rows(e) for m in models for key, e in _with_curves(m)
    }  # read first, so that what is unreadable is said on top
    page = Page(f"{', '.join(m.label for m in models) or 'no model'}: holdfast evaluation")
    _head(page, record, models, entries)
    _scores(page, record, models, entries)
    _comparisons(page, models, comparisons)
    _subjects(page, models, entries, rows)
    _answers(page, models, entries, rows)
    _small_print(page, record, models)
    return page.write(Path(path))


# ------------------------------------------------------------------------------------------------------------- reading


def _entries(record: EvaluationRecord, models: Sequence[Measured]) -> list[Key]:
    """Every entry that was asked for or found: in the plan's order, what no plan names after it, averages last in their
    suite."""
    planned = record.plan.get("entries")
    keys = [
        (str(e["suite"]), str(e["name"]))
        for e in planned or ()
        if isinstance(e, Mapping) and "suite" in e and "name" in e
    ]
    keys += [key for m in models for key in m.evaluations]
    known = list(dict.fromkeys(keys))
    suites = list(dict.fromkeys(suite for suite, _ in known))
    suites.sort(key=lambda s: group_rank(s)[0])
    averages = {key for m in models for key, e in m.evaluations.items() if e.kind == "average"}
    return sorted(known, key=lambda key: (suites.index(key[0]), key in averages, known.index(key)))


def _with_curves(model: Measured) -> list[tuple[Key, Evaluation]]:
    """Entries whose rows the page draws: answers, classes and choices, and groups of several subtasks."""
    return [
        (key, e)
        for key, e in model.evaluations.items()
        if e.kind in _CONFIDENT or (e.kind == "task" and e.settings.get("subtasks"))
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


def _head(page: Page, record: EvaluationRecord, models: Sequence[Measured], entries: Sequence[Key]) -> None:
    missing = [
        f"{m.label}: {suite}/{name}" for m in models for suite, name in entries if (suite, name) not in m.evaluations
    ]
    done = sum(len(m.evaluations) for m in models)
    title = " · ".join(m.label for m in models) if len(models) <= 3 else f"{len(models)} models"
    lead = f"{plural(len(models), 'model')} on {_entries_text(len(entries))}"
    lead += (
        "."
        if not missing
        else f"; {len(missing):,} of {len(entries) * len(models):,} evaluations are not there{_why(record.status)}."
    )
    seconds = sum(e.seconds for m in models for e in m.evaluations.values())
    details = [", ".join(record.suites), f"{duration(seconds)} of evaluation" if seconds else "", record.created]
    page.add(
        header(
            eyebrow="holdfast evaluation",
            title=title or "No model",
            status=(record.status, STATUS_TONE.get(record.status, "flat")),
            lead=lead,
            details=" · ".join(d for d in details if d),
        )
    )
    if record.status == "failed":
        page.add(
            banner(
                tag("strong", "The evaluation failed. What was finished before is shown; the same command continues."),
                "bad",
            )
        )
    elif record.status == "interrupted":
        page.add(
            banner(
                tag("strong", "The evaluation was interrupted. The same command continues with what is missing."),
                "warn",
            )
        )
    elif record.status == "running":
        page.add(banner("The evaluation had not ended when this page was written."))
    problems = [p for m in models for p in m.problems]
    if problems:
        page.add(banner(join(tag("strong", "Some files could not be used."), bullets(problems)), "warn"))
    if done:
        page.add(tiles(_tiles(models, entries)))
    if missing and done:
        page.add(
            fold(
                f"Not measured ({len(missing):,})",
                bullets(missing[:60]),
                tag("p", f"and {len(missing) - 60:,} more", cls="note") if len(missing) > 60 else None,
            )
        )


def _entries_text(n: int) -> str:
    return f"{n:,} entr{'y' if n == 1 else 'ies'}"


def _why(status: str) -> str:
    return " yet" if status == "running" else ", because it was stopped" if status == "interrupted" else ""


def _tiles(models: Sequence[Measured], entries: Sequence[Key]) -> list[tuple[str, str, str, str]]:
    """Averages, then the first entries; of the best model where there are several."""
    averages = [
        key for key in entries if any(m.evaluations[key].kind == "average" for m in models if key in m.evaluations)
    ]
    found = []
    for key in [*averages, *(k for k in entries if k not in averages)][:4]:
        name = _lead(models, key)
        scored = [(metric, m.label) for m in models if (metric := _metric(m, key, name)) is not None]
        if not scored:
            continue
        best, label = (max if scored[0][0].higher_is_better else min)(scored, key=lambda pair: pair[0].value)
        words = f"{best.unit} {metric_interval(best) if best.interval else ''}{f', best: {label}' if len(models) > 1 else ''}".strip()
        found.append((f"{group_title(key[0])}: {key[1]}", metric_text(best), words, ""))
    return found


def _scores(page: Page, record: EvaluationRecord, models: Sequence[Measured], entries: Sequence[Key]) -> None:
    if not any(m.evaluations for m in models):
        page.section("Scores", tag("p", "No evaluation is there yet.", cls="note"))
        return
    panels: list[Html] = _score_charts(page, models, entries)
    columns = [Column(title="Entry"), *(Column(title=m.label, numeric=True) for m in models)]
    for suite in dict.fromkeys(s for s, _ in entries):
        cells, classes = [], []
        for key in (k for k in entries if k[0] == suite):
            cells.append(
                [_entry_cell(models, key), *(_score_cell(m, key, _lead(models, key), record.status) for m in models)]
            )
            classes.append("")
        panels.append(
            tag(
                "div",
                tag("h3", group_title(suite)),
                table(columns, cells, cards=True, classes=classes),
                cls="panel dense scores",
            )
        )
    others = _other_metrics(models, entries)
    panels += [others] if others is not None else []
    note = (
        "Shares in percent. In brackets: the interval over samples of this model alone; “no interval” where a "
        "figure is no mean over samples."
    )
    page.section("Scores", tag("div", tag("div", *panels, cls="panels"), tag("p", note, cls="note"), cls="stacked"))


def _entry_cell(models: Sequence[Measured], key: Key) -> Html:
    held = [m.evaluations[key] for m in models if key in m.evaluations]
    if not held:
        return join(key[1])
    first, name = held[0], _lead(models, key)
    counts = {e.metrics[name].n for e in held if name in e.metrics}
    words = [name, first.metrics[name].unit if first.metrics[name].unit != name.split(",")[0] else "", _shots(first)]
    words.append(
        "mean of " + plural(len(first.settings.get("members") or ()), "figure") if first.kind == "average" else ""
    )
    words.append(f"n {next(iter(counts)):,}" if len(counts) == 1 and first.kind != "average" else "")
    words.append("" if first.metrics[name].higher_is_better else "lower is better")
    return join(key[1], tag("span", ", ".join(w for w in words if w), cls="sub"))


def _score_cell(model: Measured, key: Key, name: str, status: str) -> Html:
    metric = _metric(model, key, name)
    if metric is None:
        return tag("span", "not finished" if status in ("running", "interrupted") else "not measured", cls="chip warn")
    return tag("span", metric_text(metric), tag("span", metric_interval(metric), cls="sub"))


def _score_charts(page: Page, models: Sequence[Measured], entries: Sequence[Key]) -> list[Html]:
    """One chart of all shares, one for each other unit."""
    units: dict[str, list[Key]] = {"accuracy": []}
    for key in entries:
        name = _lead(models, key)
        metrics = [metric for m in models if (metric := _metric(m, key, name)) is not None]
        if metrics:
            share = all(is_share(metric.unit, name, metric.value) for metric in metrics)
            units.setdefault("accuracy" if share else metrics[0].unit, []).append(key)
    charts = []
    for unit, keys in units.items():
        if not keys:
            continue
        names = [name if [n for _, n in keys].count(name) == 1 else f"{suite}/{name}" for suite, name in keys]
        drawn = [
            (m.label, "accent" if len(models) == 1 else colour_of(i), [_metric(m, k, _lead(models, k)) for k in keys])
            for i, m in enumerate(models)
        ]
        chart = score_bars(
            names, drawn, title="Shares of right answers" if unit == "accuracy" else f"In {unit}", unit=unit
        )
        if chart is not None:
            charts.append(chart)
    return [page.chart(c) for c in charts]


def _other_metrics(models: Sequence[Measured], entries: Sequence[Key]) -> Html | None:
    """Every metric that does not lead, behind a heading."""
    cells = []
    for key in entries:
        lead = _lead(models, key)
        for name in dict.fromkeys(
            n for m in models if key in m.evaluations for n in m.evaluations[key].metrics if n != lead
        ):
            held = [_metric(m, key, name) for m in models]
            unit = next(m.unit for m in held if m is not None)
            shown = [
                "" if m is None else tag("span", metric_text(m), tag("span", metric_interval(m), cls="sub"))
                for m in held
            ]
            cells.append([join(f"{key[0]}/{key[1]}", tag("span", f"{name}, {unit}", cls="sub")), *shown])
    if not cells:
        return None
    columns = [Column(title="Entry"), *(Column(title=m.label, numeric=True) for m in models)]
    return tag(
        "div",
        fold(f"Other metrics ({len(cells):,})", tag("div", table(columns, cells, cards=True), cls="dense")),
        cls="whole",
    )


def _comparisons(page: Page, models: Sequence[Measured], comparisons: Mapping[str, Sequence[Comparison]]) -> None:
    if not any(comparisons.values()):
        return
    first = models[0].label if models else ""
    parts: list[Html] = []
    shown = []
    for label, held in comparisons.items():
        rows = [row(c) for c in sorted(held, key=lambda c: (group_rank(c.suite), not c.primary))]
        if not rows:
            continue
        shown += rows
        primary = [r for r in rows if r.raw.primary] or rows
        panels = gains_panels(page, primary)
        table_of_all = tag(
            "div", fold(f"Figures ({len(rows):,})", tag("div", measures_table(rows), cls="dense compared")), cls="whole"
        )
        parts += [
            tag("h3", f"{first} → {label}"),
            tag("p", comparison_verdict((first, label), primary)),
            tag("div", *panels, table_of_all, cls="panels"),
        ]
    page.section(f"Compared with {first}", tag("div", *parts, difference_note(shown), cls="stacked"))


def _subjects(
    page: Page,
    models: Sequence[Measured],
    entries: Sequence[Key],
    rows: Mapping[tuple[str, Key], list[dict[str, Any]] | None],
) -> None:
    from holdfast.statistics.estimates import estimate, figure_for

    panels = []
    for key in entries:
        name = _lead(models, key)
        held = [(m, rows.get((m.label, key)) or []) for m in models]
        tasks = sorted({str(r["task"]) for _, found in held for r in found if r.get("task")})
        if len(tasks) < 2:
            continue
        drawn = []
        for place, (m, found) in enumerate(held):
            scores: list[Metric | None] = []
            lead = _metric(m, key, name)
            for task in tasks:
                alone = [r for r in found if r.get("task") == task]
                figure = (
                    figure_for(name, alone, higher_is_better=lead.higher_is_better, unit=lead.unit)
                    if lead is not None
                    else None
                )
                if figure is None or lead is None:
                    scores.append(None)
                    continue
                value, interval = estimate(figure, alone, confidence=lead.confidence, resamples=1000)
                scores.append(
                    Metric(
                        value=value,
                        n=len(alone),
                        unit=figure.unit,
                        higher_is_better=figure.higher_is_better,
                        interval=interval,
                        confidence=lead.confidence,
                    )
                )
            drawn.append((m.label, "accent" if len(models) == 1 else colour_of(place), scores))
        panels.append(page.chart(subject_dots(subject_names(tasks), drawn, title=f"{key[1]}, by subject")))
    if panels:
        page.section("Subjects", tag("div", *panels, cls="panels"))


def _answers(
    page: Page,
    models: Sequence[Measured],
    entries: Sequence[Key],
    rows: Mapping[tuple[str, Key], list[dict[str, Any]] | None],
) -> None:
    panels: list[Html] = []
    cells = []
    drawn = 0
    for key in entries:
        held = [
            (m.label, "accent" if len(models) == 1 else colour_of(place), found)
            for place, m in enumerate(models)
            if key in m.evaluations and m.evaluations[key].kind in _CONFIDENT and (found := rows.get((m.label, key)))
        ]
        if not held:
            continue
        for label, _, found in held:
            side = confidences(found)
            if side is not None:
                level = (
                    next(m for m in models if m.label == label).evaluations[key].metrics[_lead(models, key)].confidence
                )
                sure, right = (100 * sum(v) / len(v) for v in side)
                cells.append(
                    [
                        join(key[1], tag("span", label, cls="sub")),
                        ece_cell(side, level),
                        f"{sure:.1f} %",
                        f"{right:.1f} %",
                        f"{len(found):,}",
                    ]
                )
        drawn += 1
        if drawn <= CURVE_ENTRIES:
            charts = answer_charts(key[1], held)
            panels += [page.chart(c, width="half" if len(charts) > 1 else "full") for c in charts]
    if not panels:
        return
    columns = [Column(title="Entry"), *(Column(title=t, numeric=True) for t in ("ECE", "Confidence", "Right", "n"))]
    measures = tag(
        "div",
        tag("div", table(columns, cells, cards=True), cls="panel dense") if cells else None,
        *panels,
        cls="panels",
    )
    left_out = f" Curves are drawn for the first {CURVE_ENTRIES} of {drawn} entries." if drawn > CURVE_ENTRIES else ""
    page.section(
        "Confidence and entropy",
        tag(
            "div",
            measures,
            tag("p", ECE_NOTE.replace(", paired for the change", "", 1) + left_out, cls="note"),
            cls="stacked",
        ),
    )


def _small_print(page: Page, record: EvaluationRecord, models: Sequence[Measured]) -> None:
    columns = [
        Column(title="Model"),
        Column(title="Name"),
        Column(title="Architecture"),
        Column(title="Parameters", numeric=True),
        Column(title="Hash"),
    ]
    cells = [
        [
            str(m.get("label") or ""),
            model_name(m.get("name")) or "not recorded",
            str(m.get("architecture") or "not recorded"),
            count(m["parameters"]) if isinstance(m.get("parameters"), (int, float)) else "not recorded",
            tag("code", str(m.get("hash") or "not recorded")[:16]),
        ]
        for m in record.models
    ]
    settings: dict[str, str] = {}
    for m in models:
        for (suite, name), e in m.evaluations.items():
            settings.setdefault(f"{suite}/{name}", settings_text(e.settings))
    plan = flatten({k: v for k, v in record.plan.items() if k != "entries"})
    hardware = [
        (k.replace("_", " "), hardware_text({k: v}).partition(": ")[2] or "none") for k, v in record.hardware.items()
    ]
    when = facts(
        [
            ("Started", record.created or "not recorded"),
            ("Finished", record.finished or f"no ({record.status})"),
            ("Suites", ", ".join(record.suites) or "none named"),
        ]
    )
    page.section(
        "What was run",
        tag(
            "div",
            tag("div", table(columns, cells, cards=True), cls="panel dense") if cells else None,
            tag("div", when, cls="card"),
            cls="stacked",
        ),
        fold(f"Settings ({plural(len(plan), 'key')})", facts(plan)) if plan else None,
        fold(f"Settings of the entries ({len(settings):,})", facts(list(settings.items()))) if settings else None,
        fold("Versions", facts(list(record.versions.items()))) if record.versions else None,
        fold("Hardware", facts(hardware)) if hardware else None,
    )
    page.add(
        tag(
            "footer",
            f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the evaluation. This page "
            f"needs no network.",
        )
    )


__all__ = ["write_evaluation_report"]
