"""One page on what `holdfast evaluate` measured: one model, or several side by side.

The table has an entry a line and a model a column, each with the metric that leads, its interval, n
and the number of examples shown. Intervals are those of each model alone; whether two models differ
is decided by the paired comparisons with the first model, which are given. Entries that are not
there yet, and files that cannot be read, are named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from holdfast.records.comparison import NOT_FINITE, Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord, Metric
from holdfast.records.metrics import readings
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
    chip,
    columns,
    figure,
    fold_facts,
    notes,
    problems,
    sub,
)
from holdfast.reports.charts import heads, tabulate
from holdfast.reports.compared import (
    difference_note,
    gains,
    group_rank,
    group_title,
    headline,
    measures,
    ordered,
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
from holdfast.reports.measured import Key, Measured, settings_of
from holdfast.reports.study_page import TONES

BANNERS = {
    "failed": (
        "The evaluation failed. Finished results are shown. Run the same command to continue.",
        "bad",
    ),
    "interrupted": (
        "The evaluation was interrupted. Run the same command to continue.",
        "warn",
    ),
    "running": ("The evaluation was still running when this page was written.", "flat"),
}
NOT_RECORDED = "not recorded"


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
        comparisons: label of a model -> its paired comparison with the first of which something was
            measured.
    """
    scores = Scores(record, folders)
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
        details=joined(", ".join(record.suites), time, record.created),
        blocks=[
            _state_banner(record),
            *problems(
                "NaN or infinity: the results of these entries are invalid.", scores.broken, "bad"
            ),
            *problems("Some files could not be used.", list(unusable)),
            *_overview(record, scores),
            _scores(record, scores),
            _comparisons(scores, comparisons),
            notes(remarks),
            _small_print(record, scores),
        ],
        footer=f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the evaluation.",
    )


# ------------------------------------------------------------------------------------------ reading


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
        order = list(dict.fromkeys(keys))
        suites = sorted(
            dict.fromkeys(suite for suite, _ in order), key=lambda suite: group_rank(suite)[0]
        )
        self.entries = sorted(order, key=lambda key: suites.index(key[0]))
        """By suite, in the plan's order, what no plan names after it."""

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
        """One metric of an entry, the leading one by default; None for models that do not have
        it."""
        name = name or self.lead(key)
        evaluations = [model.evaluations.get(key) for model in self.models]
        return [None if e is None else e.metrics.get(name) for e in evaluations]


def _shots(evaluation: Evaluation) -> str:
    shots = evaluation.settings.get("num_fewshot")
    if isinstance(shots, Mapping):
        numbers = [int(value) for value in shots.values() if isinstance(value, int)]
        return f"{min(numbers)} to {max(numbers)} shots" if numbers else ""
    return f"{shots}-shot" if isinstance(shots, int) and not isinstance(shots, bool) else ""


# ----------------------------------------------------------------------------------------- sections


def _lead_sentence(record: EvaluationRecord, scores: Scores) -> str:
    n, models, missing = len(scores.entries), len(scores.models), len(scores.missing)
    size = f"{plural(models, 'model')} on {n:,} entr{'y' if n == 1 else 'ies'}"
    if not missing:
        return f"{size}."
    why = {"running": " yet", "interrupted": ", because the evaluation was stopped"}.get(
        record.status, ""
    )
    return f"{size}; {missing:,} of {n * models:,} evaluations are missing{why}."


def _state_banner(record: EvaluationRecord) -> Banner | None:
    """That it failed or has not ended."""
    if record.status not in BANNERS:
        return None
    text, tone = BANNERS[record.status]
    return Banner(text if tone == "flat" else Span(text, "strong"), tone)


def _overview(record: EvaluationRecord, scores: Scores) -> list[Block]:
    """By what it failed, and what was not measured; nothing where nothing was."""
    if not scores.measured:
        return []
    missing = scores.missing
    return [Fold(f"Not measured ({len(missing):,})", [Bullets(missing)])] if missing else []


def _scores(record: EvaluationRecord, scores: Scores) -> Section:
    if not scores.measured:
        return Section("Scores", [Paragraph("There is no evaluation yet.", "note")])
    heads = columns("Entry", *(model.label for model in scores.models))
    missing = chip(
        "not finished" if record.status in ("running", "interrupted") else "not measured", "warn"
    )
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
                others.append(
                    [("/".join(key), sub(f"{name}, {unit}")), *_cells(scores, key, "", name)]
                )
    tables = []
    for suite, rows in suites.items():
        tables.append(
            Table(columns=heads, rows=rows, title=group_title(suite), kind="dense scores")
        )
    rest = Table(columns=heads, rows=others, kind="dense")
    fold = Fold(f"Other metrics ({len(others):,})", [rest]) if others else None
    return Section("Scores", [*tables, fold, Paragraph(SCORES, "note")])


SCORES = (
    "Shares are in percent. The brackets show the interval over samples of this model alone, or "
    "“no interval” if the figure is not a mean over samples."
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


# -------------------------------------------------------------------------------------- comparisons


def _comparisons(scores: Scores, comparisons: Mapping[str, Sequence[Comparison]]) -> Section | None:
    first = next((model.label for model in scores.models if model.evaluations), "")
    blocks: list[Block] = []
    every = []
    for label, compared in comparisons.items():
        rows = ordered(compared)
        if rows:
            every += rows
            blocks += [Heading(f"{first} → {label}"), Paragraph(headline(compared))]
            blocks += [*gains(primary_of(rows)), Fold(f"Figures ({len(rows):,})", [measures(rows)])]
    return Section(f"Compared with {first}", [*blocks, difference_note(every)]) if every else None


# -------------------------------------------------------------------------------------- small print


MODELS = heads(
    {
        "Model": "label",
        "Name": lambda model: last_part(model.get("name")) or NOT_RECORDED,
        "Architecture": lambda model: model.get("architecture") or NOT_RECORDED,
        "Weights": "origin",
        "Hash": lambda model: Span(str(model.get("hash") or NOT_RECORDED)[:16], "code"),
        "Parameters": lambda model: count(model.get("parameters")),
    },
    words=5,
)


def _small_print(record: EvaluationRecord, scores: Scores) -> Section:
    settings = settings_of(evaluation for _, evaluation in scores.measured)
    plan = flatten({key: value for key, value in record.plan.items() if key != "entries"})
    facts = [
        ("Started", record.created or NOT_RECORDED),
        ("Finished", record.finished or f"no ({record.status})"),
    ]
    facts.append(("Suites", ", ".join(record.suites) or "none named"))
    folds = {f"Settings ({plural(len(plan), 'key')})": plan}
    folds[f"Settings of the entries ({len(settings):,})"] = settings
    folds |= {"Versions": list(record.versions.items()), "Hardware": hardware_rows(record.hardware)}
    models = tabulate(record.models, MODELS, kind="dense") if record.models else None
    return Section(
        "What was run",
        [models, Panel([Facts(facts)], "card"), *itertools.starmap(fold_facts, folds.items())],
    )
