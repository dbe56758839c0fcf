"""One page on what `holdfast evaluate` measured: one model, or several side by side.

The table has an entry a line and a model a column, each with the metric that leads, its interval, n and the number of
examples shown. Intervals are those of each model alone; whether two models differ is decided by the paired
comparisons with the first model, which are given. Entries that are not there yet, and files that cannot be read, are
named.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.records.comparison import NOT_FINITE, Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord, Metric
from holdfast.records.measure import Measure
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
    present,
    problems,
    sub,
)
from holdfast.reports.charts import Axis, Chart, Col, Mark, Row, Value, colour_of, heads, tabulate
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
)
from holdfast.reports.measured import Key, Measured, averages_of, names_of, not_finite_tile, settings_of, subject_names
from holdfast.reports.study_page import TONES

BANNERS = {
    "failed": ("The evaluation failed. What was finished before is shown; the same command continues.", "bad"),
    "interrupted": ("The evaluation was interrupted. The same command continues with what is missing.", "warn"),
    "running": ("The evaluation had not ended when this page was written.", "flat"),
}
MOST_MISSING = 60
NOT_RECORDED = "not recorded"
Column = tuple[str, Sequence[Metric | None]]
"""Label of a model, and its metric on each of several entries; None where it was not measured."""


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
    subjects = _subjects(scores)  # what it cannot read is a problem that the page begins with
    labels = [model.label for model in scores.models]
    title = " · ".join(labels) if len(labels) <= 3 else f"{len(labels)} models"
    seconds = sum(e.seconds for _, e in scores.measured)
    time = f"{duration(seconds)} of evaluation" if seconds else ""
    unusable = itertools.chain.from_iterable(model.problems for model in scores.models)
    remarks = []
    for model, e in scores.measured:
        remarks += [f"{model.label}: {note}" for note in e.notes]
    return Page(
        tab=f"{', '.join(labels) or 'no model'}: holdfast evaluation",
        eyebrow="holdfast evaluation",
        title=title or "No model",
        status=(record.status, TONES.get(record.status, "flat")),
        lead=_lead_sentence(record, scores),
        details=joined(*_origins(record), ", ".join(record.suites), time, record.created),
        blocks=[
            _state_banner(record),
            *problems("NaN or infinity: the figures of these entries mean nothing.", scores.broken, "bad"),
            *problems("Some files could not be used.", list(unusable)),
            *_overview(record, scores),
            _scores(record, scores),
            _comparisons(scores, comparisons),
            subjects,
            notes(remarks),
            _small_print(record, scores),
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
        self.models: list[Measured] = []
        keys: list[Key] = []
        for entry in record.plan.get("entries") or ():
            if isinstance(entry, Mapping) and {"suite", "name"} <= set(entry):
                keys.append((str(entry["suite"]), str(entry["name"])))
        for folder, model in zip(folders, record.models, strict=True):
            label = str(model.get("label") or model.get("name") or folder.path.name)
            self.models.append(Measured(folder, label))
            keys += self.models[-1].evaluations
        self.averages = averages_of(self.models)
        order = list(dict.fromkeys(keys))
        suites = sorted(dict.fromkeys(suite for suite, _ in order), key=lambda suite: group_rank(suite)[0])
        self.entries = sorted(order, key=lambda key: (suites.index(key[0]), key in self.averages))
        """In the plan's order, what no plan names after it, averages last in their suite."""

    @property
    def measured(self) -> list[tuple[Measured, Evaluation]]:
        """Every evaluation with its model."""
        return [(model, e) for model in self.models for e in model.evaluations.values()]

    @property
    def missing(self) -> list[str]:
        """Entries that a model lacks."""
        lacks = []
        for model in self.models:
            absent = [key for key in self.entries if key not in model.evaluations]
            lacks += [f"{model.label}: {suite}/{name}" for suite, name in absent]
        return lacks

    @property
    def broken(self) -> list[str]:
        """Entries that failed, a sentence each."""
        sentences = []
        for model, e in self.measured:
            if e.failed is not None:
                sentences.append(f"{model.label}: {e.suite}/{e.name}: {e.failed}")
        return sentences

    def evaluations(self, key: Key) -> list[Evaluation]:
        """An entry of the models that have it."""
        return [model.evaluations[key] for model in self.models if key in model.evaluations]

    def lead(self, key: Key) -> str:
        """The metric that an entry leads with: the first model's that has it."""
        return next((e.primary for e in self.evaluations(key)), "")

    def metrics(self, key: Key, name: str = "") -> list[Metric | None]:
        """One metric of an entry, the leading one by default; None for models that do not have it."""
        name = name or self.lead(key)
        evaluations = [model.evaluations.get(key) for model in self.models]
        return [None if e is None else e.metrics.get(name) for e in evaluations]

    def side_by_side(self, keys: Sequence[Key]) -> list[Column]:
        """The leading metrics of several entries, by the label of the model."""
        by_model = zip(*map(self.metrics, keys), strict=True)
        return [(model.label, metrics) for model, metrics in zip(self.models, by_model, strict=True)]


def _shots(evaluation: Evaluation) -> str:
    shots = evaluation.settings.get("num_fewshot")
    if isinstance(shots, Mapping):
        numbers = [int(value) for value in shots.values() if isinstance(value, int)]
        return f"{min(numbers)} to {max(numbers)} shots" if numbers else ""
    return f"{shots}-shot" if isinstance(shots, int) and not isinstance(shots, bool) else ""


# ------------------------------------------------------------------------------------------------------------ sections


def _lead_sentence(record: EvaluationRecord, scores: Scores) -> str:
    n, models, missing = len(scores.entries), len(scores.models), len(scores.missing)
    size = f"{plural(models, 'model')} on {n:,} entr{'y' if n == 1 else 'ies'}"
    if not missing:
        return f"{size}."
    why = {"running": " yet", "interrupted": ", because it was stopped"}.get(record.status, "")
    return f"{size}; {missing:,} of {n * models:,} evaluations are not there{why}."


def _state_banner(record: EvaluationRecord) -> Banner | None:
    """That it failed or has not ended."""
    if record.status not in BANNERS:
        return None
    text, tone = BANNERS[record.status]
    return Banner(text if tone == "flat" else Span(text, "strong"), tone)


def _overview(record: EvaluationRecord, scores: Scores) -> list[Block]:
    """Tiles, and what was not measured; nothing where nothing was."""
    if not scores.measured:
        return []
    missing = scores.missing
    tiles = Tiles([*_failed_tile(record, scores), *_tiles(scores)])
    more = f"and {len(missing) - MOST_MISSING:,} more" if len(missing) > MOST_MISSING else ""
    gaps = [Bullets(missing[:MOST_MISSING]), *([Paragraph(more, "note")] if more else [])]
    return [tiles, Fold(f"Not measured ({len(missing):,})", gaps)] if missing else [tiles]


def _failed_tile(record: EvaluationRecord, scores: Scores) -> list[Tile]:
    """By what the evaluation failed; nothing where it did not."""
    if scores.broken:
        return [not_finite_tile(scores.broken)]
    if record.status == "failed":
        return [Tile("Not measured", f"{len(scores.missing):,}", "entries; the evaluation failed", "bad", main=True)]
    return []


def _tiles(scores: Scores) -> Iterator[Tile]:
    """Averages, then the first entries; of the best model where there are several."""
    for key in sorted(scores.entries, key=lambda key: key not in scores.averages)[:4]:
        best, label = None, ""
        for metric, model in zip(scores.metrics(key), scores.models, strict=True):
            if metric is not None and math.isfinite(metric.value) and (best is None or _better(metric, best)):
                best, label = metric, model.label
        if best is not None:
            text, interval = metric_texts(best)
            below = f"{best.unit} {interval}" if best.interval else best.unit
            yield Tile(entry_title(*key), text, below + (f", best: {label}" if len(scores.models) > 1 else ""))


def _better(metric: Metric, other: Metric) -> bool:
    return metric.value > other.value if other.higher_is_better else metric.value < other.value


def _scores(record: EvaluationRecord, scores: Scores) -> Section:
    if not scores.measured:
        return Section("Scores", [Paragraph("No evaluation is there yet.", "note")])
    heads = columns("Entry", *(model.label for model in scores.models))
    missing = chip("not finished" if record.status in ("running", "interrupted") else "not measured", "warn")
    suites: dict[str, list[list[Text]]] = {}
    others: list[list[Text]] = []
    for key in scores.entries:
        lead, units = scores.lead(key), _units(scores, key)
        rows = suites.setdefault(key[0], [])
        rows.append([_entry_cell(scores, key), *_cells(scores, key, missing)])
        for name in readings(lead, _units(scores, key, 1)):
            rows.append([sub(f"{key[1]}: {name}"), *_cells(scores, key, "", name)])
        for name, unit in units.items():
            if name != lead:
                others.append([("/".join(key), sub(f"{name}, {unit}")), *_cells(scores, key, "", name)])
    tables = []
    for suite, rows in suites.items():
        tables.append(Table(columns=heads, rows=rows, title=group_title(suite), kind="dense scores"))
    rest = Table(columns=heads, rows=others, kind="dense")
    fold = Fold(f"Other metrics ({len(others):,})", [rest]) if others else None
    return Section("Scores", [*_score_charts(scores), *tables, fold, Paragraph(SCORES, "note")])


SCORES = (
    "Shares in percent. In brackets: the interval over samples of this model alone; “no interval” where a figure "
    "is no mean over samples."
)


def _units(scores: Scores, key: Key, models: int | None = None) -> dict[str, str]:
    """Unit of every metric of an entry, of the first models that have it."""
    units: dict[str, str] = {}
    for evaluation in scores.evaluations(key)[:models]:
        for name, metric in evaluation.metrics.items():
            units.setdefault(name, metric.unit)
    return units


def _cells(scores: Scores, key: Key, missing: Text, name: str = "") -> list[Text]:
    """A metric of an entry of every model; the leading one by default."""
    cells: list[Text] = []
    for metric in scores.metrics(key, name):
        if metric is None:
            cells.append(missing)
        elif math.isfinite(metric.value):
            cells.append(figure(*metric_texts(metric)))
        else:
            cells.append(chip(NOT_FINITE, "bad"))
    return cells


def _entry_cell(scores: Scores, key: Key) -> Text:
    """An entry's name, and below it what leads it."""
    evaluations, name = scores.evaluations(key), scores.lead(key)
    if not evaluations:
        return key[1]
    first = evaluations[0]
    metric = first.metrics[name]
    words = [name, "" if metric.unit == name.split(",")[0] else metric.unit, _shots(first)]
    sizes = {e.metrics[name].n for e in evaluations if name in e.metrics}
    if first.kind == "average":
        words.append(f"mean of {plural(len(first.settings.get('members') or ()), 'figure')}")
    elif len(sizes) == 1:
        words.append(f"n {sizes.pop():,}")
    words.append("" if metric.higher_is_better else direction(False))
    return key[1], sub(", ".join(filter(None, words)))


# -------------------------------------------------------------------------------------------------------------- charts


def _score_charts(scores: Scores) -> list[Chart]:
    """One chart of all shares, one for each other unit."""
    units: dict[str, list[Key]] = {"accuracy": []}
    for key in scores.entries:
        metrics = present(scores.metrics(key))
        if metrics:
            share = is_share(metrics[0].unit, scores.lead(key), [metric.value for metric in metrics])
            units.setdefault("accuracy" if share else metrics[0].unit, []).append(key)
    charts = []
    for unit, keys in units.items():
        if keys:
            title = "Shares of right answers" if unit == "accuracy" else f"In {unit}"
            charts.append(_score_bars(names_of(keys), scores.side_by_side(keys), title, unit))
    return present(charts)


def _side_by_side(
    title: str, names: Sequence[str], models: Sequence[Column], mark: Mark, *, spread: float = 0.0
) -> Chart | None:
    """Several models on several entries, a row an entry and a mark a model, shares in percent; None where no model has
    a finite score.

    Args:
        title: of the chart.
        names: of the entries.
        models: their metrics.
        mark: what is drawn of each model.
        spread: how far the models of a row lie apart; those that do are sorted by the first of them.
    """
    metrics = present(itertools.chain.from_iterable(column for _, column in models))
    if not any(math.isfinite(metric.value) for metric in metrics):
        return None
    measure = Measure(share=is_share(metrics[0].unit, values=[metric.value for metric in metrics]))
    rows: list[dict[str, Any]] = [{"name": name, "n": 0} for name in names]
    columns, marks = heads({"Entry": "name"}), []
    for number, (label, column) in enumerate(models):
        key, colour = f"model {number}", colour_of(number, len(models))
        for row, metric in zip(rows, column, strict=True):
            if metric is not None:
                row[key] = Value.of(metric, measure)
                row["n"] = row["n"] or metric.n
        columns.append(Col(label, functools.partial(_value_or_gap, key)))
        marks.append(dataclasses.replace(mark, x=key, y=f"{key}, place", name=label, colour=colour))
    if spread:
        rows.sort(key=_first_score)
    for height, row in enumerate(rows):
        for number in range(len(models)):
            shift = spread * (number / (len(models) - 1) - 0.5) if len(models) > 1 else 0.0
            row[f"model {number}, place"] = round(height + shift, 3)
    unit = "%" if measure.share else metrics[0].unit
    y = Axis(names=[row["name"] for row in rows], length=26)
    return Chart(title=title, rows=rows, columns=columns, marks=marks, x=Axis(title=unit), y=y)


def _value_or_gap(key: str, row: Row) -> Any:
    return row.get(key, "not measured")


def _first_score(row: Row) -> float:
    """By what the largest score of the first model comes first, and what it has not last."""
    value = row.get("model 0")
    return math.inf if value is None or math.isnan(value.value) else -value.value


def _score_bars(names: Sequence[str], models: Sequence[Column], title: str, unit: str) -> Chart | None:
    """Scores on several entries as bars with intervals."""
    chart = _side_by_side(title, names, models, Mark(kind="bars", bars=1.1))
    if chart is None:
        return None
    level = next(metric.confidence for _, column in models for metric in present(column))
    caption = f"Thin lines: {100 * level:g} % intervals over the samples of each model alone."
    if len(models) > 1:
        caption += (
            " Two of them may overlap and the difference still be sure, since both models answered the same questions."
        )
    x = Axis(title=f"{unit}, %" if chart.x.title == "%" else unit, from_zero=True)
    y = dataclasses.replace(chart.y, length=22, more={"showgrid": False})
    height = 70 + len(names) * (12 + 15 * len(models)) + (24 if len(models) > 1 else 0)
    layout = {"barmode": "group", "bargap": 0.25}
    return dataclasses.replace(chart, x=x, y=y, caption=caption, height=height, layout=layout)


def _subject_dots(names: Sequence[str], models: Sequence[Column], title: str) -> Chart | None:
    """Scores on the subjects of a group, a line a subject and a dot a model, with intervals; sorted by the first
    model."""
    chart = _side_by_side(title, names, models, Mark(size=7, bars=1), spread=0.5)
    if chart is None:
        return None
    columns = [*heads({"Subject": "name"}), *chart.columns[1:], Col("n", lambda row: f"{row['n']:,}")]
    caption = "Sorted by the first model. Lines: intervals over the questions of the subject."
    height = 80 + len(names) * max(18, 9 * len(models))
    return dataclasses.replace(chart, columns=columns, caption=caption, height=height)


# ------------------------------------------------------------------------------------------------ comparisons, subjects


def _comparisons(scores: Scores, comparisons: Mapping[str, Sequence[Comparison]]) -> Section | None:
    first = next((model.label for model in scores.models if model.evaluations), "")
    blocks: list[Block] = []
    every = []
    for label, compared in comparisons.items():
        rows = ordered(compared)
        if rows:
            primary = primary_of(rows)
            every += rows
            blocks += [Heading(f"{first} → {label}"), Paragraph(pair_sentence((first, label), primary))]
            blocks += [*gains(primary), Fold(f"Figures ({len(rows):,})", [measures(rows)])]
    return Section(f"Compared with {first}", [*blocks, difference_note(every)]) if every else None


def _subjects(scores: Scores) -> Section | None:
    """Groups of several subtasks, a chart each."""
    charts = []
    for key in scores.entries:
        by_task = [_by_task(model, key) for model in scores.models]
        tasks = sorted(set().union(*by_task))
        if len(tasks) > 1:
            columns = []
            for model, lead, rows in zip(scores.models, scores.metrics(key), by_task, strict=True):
                name = scores.lead(key)
                columns.append((model.label, [_subject(lead, name, rows.get(task, [])) for task in tasks]))
            charts.append(_subject_dots(subject_names(tasks), columns, f"{key[1]}, by subject"))
    drawn = present(charts)
    return Section("Subjects", drawn) if drawn else None


def _by_task(model: Measured, key: Key) -> dict[str, list[Row]]:
    """The rows of a group's subtasks; nothing for what is no group, or failed, or cannot be read."""
    tasks: dict[str, list[Row]] = {}
    evaluation = model.evaluations.get(key)
    if evaluation is not None and evaluation.failed is None and evaluation.settings.get("subtasks"):
        for row in model.rows(evaluation) or ():
            if row.get("task"):
                tasks.setdefault(str(row["task"]), []).append(row)
    return tasks


def _subject(lead: Metric | None, name: str, rows: Sequence[Row]) -> Metric | None:
    """The leading metric on the questions of one subject."""
    from holdfast.statistics.estimates import estimate, figure_for

    if lead is None:
        return None
    ratio = figure_for(name, rows, higher_is_better=lead.higher_is_better, unit=lead.unit)
    if ratio is None:
        return None
    value, interval = estimate(ratio, rows, confidence=lead.confidence, resamples=1000)
    return dataclasses.replace(lead, value=value, n=len(rows), unit=ratio.unit, interval=interval)


# --------------------------------------------------------------------------------------------------------- small print


def _origins(record: EvaluationRecord) -> list[str]:
    """What has to be said of the models' weights, a sentence each."""
    return [f"{model.get('label')}: {model['origin']}" for model in record.models if model.get("origin")]


def _parameters(model: Row) -> str:
    parameters = model.get("parameters")
    return count(parameters) if isinstance(parameters, (int, float)) else NOT_RECORDED


def _hash(model: Row) -> Text:
    return Span(str(model.get("hash") or NOT_RECORDED)[:16], "code")


def _models_table(record: EvaluationRecord) -> Table:
    rows = []
    for model in record.models:
        row: dict[str, Text] = {"label": model.get("label"), "origin": model.get("origin")}
        row |= {"name": last_part(model.get("name")) or NOT_RECORDED, "parameters": _parameters(model)}
        rows.append(row | {"architecture": model.get("architecture") or NOT_RECORDED, "hash": _hash(model)})
    words = heads({"Model": "label", "Name": "name", "Architecture": "architecture"}, words=3)
    weights = heads({"Weights": "origin"} if _origins(record) else {})
    return tabulate(rows, [*words, Col("Parameters", "parameters"), *weights, *heads({"Hash": "hash"})], kind="dense")


def _small_print(record: EvaluationRecord, scores: Scores) -> Section:
    settings = settings_of(evaluation for _, evaluation in scores.measured)
    plan = flatten({key: value for key, value in record.plan.items() if key != "entries"})
    facts = [("Started", record.created or NOT_RECORDED), ("Finished", record.finished or f"no ({record.status})")]
    facts.append(("Suites", ", ".join(record.suites) or "none named"))
    folds = {f"Settings ({plural(len(plan), 'key')})": plan}
    folds[f"Settings of the entries ({len(settings):,})"] = settings
    folds |= {"Versions": list(record.versions.items()), "Hardware": hardware_rows(record.hardware)}
    models = _models_table(record) if record.models else None
    return Section(
        "What was run", [models, Panel([Facts(facts)], "card"), *itertools.starmap(fold_facts, folds.items())]
    )
