"""`report.html` of an update (Balancing Continuous Pre-Training), and what the terminal prints: the
answer first, then the figures, then how they came about.

Reads the record and the evaluation folders of its models, nothing else; it can be written at any
moment, and names what is missing. Verdicts are those of the paired comparisons in the record: "no
change beyond noise" means that the interval of the difference holds 0, not that there is no
difference. Intervals of a table are those of one model alone.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.records.measure import number
from holdfast.records.metrics import called, is_share, readings
from holdfast.records.residual import BASE, INSTRUCT, ModelPair, ResidualRecord, StudiedModel
from holdfast.records.run import LayerDistance
from holdfast.reports import blocks as b
from holdfast.reports.blocks import Facts, Fold, Panel, Paragraph, Section, Span, Text, Tile, sub
from holdfast.reports.charts import Col, tabulate
from holdfast.reports.compared import (
    GROUPS,
    ComparisonRow,
    brief_tables,
    by_suite,
    difference_note,
    gains,
    group_rank,
    group_title,
    headline,
    measures,
    ordered,
    primary_of,
    suite_tile,
)
from holdfast.reports.format import (
    count,
    duration,
    flatten,
    flops_text,
    last_part,
    metric_texts,
    moved,
    plural,
)
from holdfast.reports.html import write_page
from holdfast.reports.measured import Measured, names_of
from holdfast.reports.study_page import state_chip, study_page

if TYPE_CHECKING:
    from rich.console import Console

REPORT_FILE = "report.html"
MOST_PAIRS = 2
"""With the result, in a terminal: against the instruct model and, if it was made, against the
continued one. All are on the page."""


# ----------------------------------------------------------------------------------------- measures


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One figure that models have: a metric of an entry, or a mean of several."""

    title: str
    words: str = ""
    """Below the title: metric, shots, unit."""
    values: Mapping[str, Metric]
    """By the model's name."""
    suite: str = ""
    name: str = ""
    """Of the entry."""
    score: str = ""
    """What a plot of it is called."""
    unit: str = "%"
    """In plots: shares are drawn in percent."""
    higher_is_better: bool = True
    leads: bool = True
    """False for metrics that an entry has besides the one it leads with."""

    @property
    def share(self) -> bool:
        return self.unit == "%"

    @property
    def average(self) -> bool:
        """Whether it is a mean of entries."""
        return self.suite == "average"


class Results:
    """Everything that lies in the folder of an update.

    Args:
        folder: the update's; evaluation folders that are not there are empty ones.
        record: what lies in it.
    """

    def __init__(self, folder: Path, record: ResidualRecord) -> None:
        self.folder, self.record, self.models = folder, record, record.models
        self.measured: dict[str, Measured] = {}
        self.problems: list[str] = []
        for model in record.models:
            evaluations = EvaluationFolder(folder / (model.evaluations or ".no-evaluations"))
            measured = Measured(evaluations, model.label or model.name)
            self.measured[model.name] = measured
            self.problems += [
                problem for problem in measured.problems if problem not in self.problems
            ]
        families = [model.family for model in record.models if model.start in (BASE, INSTRUCT)]
        self.families = list(dict.fromkeys([*record.families, *families]))
        """The pairs of the record and those that its bases and instruct models are of; a derived
        model may go by a name of its own."""

    def label(self, name: str) -> str:
        """The label of a model by its name; the name where the record has none."""
        return next((m.label or m.name for m in self.models if m.name == name), name)

    @functools.cached_property
    def entries(self) -> list[ResultRow]:
        """Every metric of every entry that a model measured: learn, keep, other suites, averages
        last; within an entry the one that leads first."""
        entries: dict[tuple[str, str], list[Evaluation]] = {}
        for measured in self.measured.values():
            for key, evaluation in measured.evaluations.items():
                entries.setdefault(key, []).append(evaluation)
        keys = sorted(
            entries, key=lambda key: (entries[key][0].kind == "average", group_rank(key[0]))
        )
        rows = []
        for key, title in zip(keys, names_of(keys), strict=True):
            lead = entries[key][0].primary
            metrics: dict[str, None] = {}
            for evaluation in entries[key]:
                metrics |= dict.fromkeys(evaluation.metrics)
            leading = [lead, *readings(lead, metrics)]
            for metric in sorted(metrics, key=lambda metric: metric not in leading):
                rows.append(self._row(key, metric, title, leads=metric in leading))
        return rows

    def _row(self, key: tuple[str, str], metric: str, title: str, *, leads: bool) -> ResultRow:
        (suite, name), values = key, self.values(*key, metric)
        first = next(iter(values.values()))
        words = [
            group_title(suite),
            metric,
            first.unit if first.unit != metric.split(",")[0] else "",
        ]
        score = name if "/" not in title and suite in (*GROUPS, "average") else f"{suite}: {name}"
        score += f", {reading}" if (reading := metric.partition(",")[2]) else ""
        return ResultRow(
            title=title,
            words=", ".join(dict.fromkeys(filter(None, words))) + lower(first),
            values=values,
            suite=suite,
            name=name,
            score=score.replace("_", " "),
            unit="%"
            if is_share(first.unit, metric, [v.value for v in values.values()])
            else first.unit,
            higher_is_better=first.higher_is_better,
            leads=leads,
        )

    def values(self, suite: str, name: str, metric: str) -> dict[str, Metric]:
        """A metric of an entry by model. An entry without a suite is the only one of its name; a
        metric of another name before its filter is taken where there is one alone."""
        values = {}
        for model, measured in self.measured.items():
            evaluation = (
                measured.evaluations.get((suite, name)) if suite else measured.find("", name)
            )
            names = called(metric, evaluation.metrics) if evaluation is not None else []
            if evaluation is not None and len(names) == 1:
                values[model] = evaluation.metrics[names[0]]
        return values

    def of_result(self) -> list[ModelPair]:
        """What the model that an update is about was compared with: the instruct model and, if it
        was made, the continued one come first."""
        return [
            pair
            for pair in self.record.pairs
            if pair.after == self.record.result and pair.comparisons
        ]


def lower(of: Metric | ResultRow) -> str:
    """What is put behind a unit where less is better."""
    return "" if of.higher_is_better else ", lower is better"


def shown_name(model: StudiedModel) -> str:
    """What a given model is called by people: the last part of its folder, or its name on the
    hub."""
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)", model.path)
    return (
        f"{cached[1]}/{cached[2]}" if cached else last_part(model.path) or model.label or model.name
    )


def breakable(text: str) -> str:
    """Names of entries with places where a narrow column may break them."""
    return text.replace("_", "_\u200b")


# ------------------------------------------------------------------------------ the page as a whole


def write_update_report(folder: str | os.PathLike[str], record: ResidualRecord) -> Path:
    """Writes `report.html` into the folder and returns its path.

    Args:
        folder: the update's; the models' evaluations are read from it.
        record: what lies in it, finished or not.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    return write_page(update_page(record, Path(folder)), Path(folder) / REPORT_FILE)


def update_page(record: ResidualRecord, folder: Path) -> b.Page:
    """The page; see `write_update_report`."""
    r = Results(folder, record)
    sections = [_pairs(r), Section("What was measured", _measures(r), anchor="measured")]
    tiles = token_tile(r)
    for pair in r.of_result()[:1]:
        suites = by_suite(primary_of(ordered(pair.comparisons)))
        tiles = [*map(suite_tile, suites.values()), *tiles]
    return whole_page(r, "update", summary(r), tiles, sections)


def whole_page(
    r: Results, what: str, answer: str, tiles: Sequence[Tile], sections: Sequence[b.Block | None]
) -> b.Page:
    """A page of what was measured, with how it came about below.

    Args:
        r: what there is.
        what: the kind of job, in a word or two.
        answer: its lead.
        tiles: the figures beside it.
        sections: what was measured.
    """
    new = corpus_text(r)
    return study_page(
        r.record,
        what,
        answer,
        [*_banners(r), b.Tiles(tiles) if tiles else None, *sections, _models(r), _corpus(r)],
        reading=READING,
        jobs=r.models,
        details=[plural(len(r.models), "model"), f"new text: {new}" if new else ""],
    )


def print_update(
    record: ResidualRecord, folder: str | Path, console: Console | None = None
) -> None:
    """Prints the answer, what every model measured, the pairs of the result and where the page is.

    Args:
        record: an update, finished or not.
        folder: its folder.
        console: where to print; the terminal by default.
    """
    r = Results(Path(folder), record)
    print_results(r, summary(r), console)


def print_results(r: Results, answer: str, console: Console | None = None) -> None:
    """As `print_update`, with another answer."""
    from holdfast.reports.terminal import Printer

    record = r.record
    blocks: list[b.Block] = [
        Paragraph(f"{record.name} ({record.status})", "strong"),
        Paragraph(answer),
    ]
    for model in r.models:
        if model.state != "complete":
            state = f"{model.state}: {model.reason}" if model.reason else model.state
            blocks.append(Paragraph(f"{r.label(model.name)}: {state}", "bad"))
    for pair in r.of_result()[:MOST_PAIRS]:
        blocks += [
            Paragraph(pair.question, "strong"),
            Paragraph(f"  {pair_title(pair, r)}", "note"),
        ]
        blocks += brief_tables(primary_of(ordered(pair.comparisons)))
    facts = [("New text", corpus_text(r))] if record.corpus else []
    for model in r.models:
        if model.name == record.result and model.state == "complete":
            facts.append(("Result", str(r.folder / model.path)))
    facts.append(("Report", str(r.folder / REPORT_FILE)))
    notes = b.paragraphs(record.notes, before="Note: ")
    Printer(console).show([*blocks, Facts(facts), *notes])


# ------------------------------------------------------------------------------------------- answer


def summary(r: Results) -> str:
    """The answer in a few sentences: what was gained and what was kept."""
    sentences = []
    for pair in r.of_result()[:MOST_PAIRS]:
        sentences.append(f"Against {r.label(pair.before)}: {headline(pair.comparisons)}")
    return " ".join(sentences) or no_answer(r, "update")


def no_answer(r: Results, what: str) -> str:
    """Why there is no answer."""
    measured = "models were measured but not compared" if r.entries else "nothing was measured yet"
    return f"The {what} is {r.record.status}, and {measured}."


def corpus_text(r: Results) -> str:
    """The new text in a line: documents, tokens, dates; "" where nothing is recorded."""
    c = r.record.corpus
    parts = [plural(c["documents"], "document"), f"{count(c['tokens'])} tokens"] if c else []
    parts += [f"{c['first_date']} to {c['last_date']}"] if c.get("first_date") else []
    return " · ".join(parts)


def _banners(r: Results) -> list[b.Block]:
    banners = b.problems("Some files could not be used.", r.problems)
    return banners + b.problems(
        "A pair of models does not look like a base and its fine-tune.", _warnings(r)
    )


def _warnings(r: Results) -> list[str]:
    """Sentences on pairs that do not look like a base and its child: with the evidence, or among
    the notes (`holdfast.checkpoints.ancestry`)."""
    warnings = []
    for evidence in r.record.ancestry:
        warnings += evidence["warnings"]
    warnings += [note for note in r.record.notes if note.startswith("WARNING:")]
    return list(dict.fromkeys(warnings))


def token_tile(r: Results) -> list[Tile]:
    """How much new text was trained on."""
    tokens = max(map(r.record.new_tokens, r.models), default=0)
    below = corpus_text(r).partition(" · ")[0] or "trained on"
    if r.record.epochs != 1:
        below += f", read {r.record.epochs:g} times"
    return [Tile("New tokens", count(tokens), below)] if tokens > 0 else []


# ------------------------------------------------------------------------------------------ figures


def _pairs(r: Results) -> Section | None:
    """Every pair with its forests and figures."""
    blocks: list[b.Block] = []
    compared: list[ComparisonRow] = []
    for pair in r.record.pairs:
        if not pair.comparisons:
            continue
        rows = ordered(pair.comparisons)
        blocks += [
            b.Heading(pair.question or pair_title(pair, r)),
            Paragraph(headline(pair.comparisons)),
        ]
        blocks += [
            *b.side_by_side(gains(primary_of(rows))),
            Fold(f"Figures ({len(rows):,})", [measures(rows)]),
        ]
        compared += rows
    return (
        Section("Compared pairs", [*blocks, difference_note(compared)], anchor="pairs")
        if blocks
        else None
    )


def pair_title(pair: ModelPair, r: Results) -> str:
    """The pair by its models' labels."""
    return f"{r.label(pair.before)} → {r.label(pair.after)}"


def _measures(r: Results) -> list[b.Block]:
    """Every measure of every model."""
    if not r.entries:
        return [Paragraph("No model has been evaluated yet.", "note")]

    def column(model: StudiedModel) -> Col:
        def figure(row: ResultRow) -> Text:
            return (
                b.figure(*metric_texts(row.values[model.name])) if model.name in row.values else ""
            )

        return Col((model.label or model.name, unfinished_chip(model.state)), figure)

    columns = [
        Col("Measure", lambda row: (breakable(row.title), sub(breakable(row.words))), numeric=False)
    ]
    columns += map(column, r.models)
    leading: list[ResultRow] = []
    others: list[ResultRow] = []
    for row in r.entries:
        (leading if row.leads else others).append(row)
    blocks: list[b.Block] = [tabulate(leading, columns, kind="figures")]
    if others:
        blocks.append(
            Fold(f"Other metrics ({len(others):,})", [tabulate(others, columns, kind="figures")])
        )
    return [
        *blocks,
        Paragraph(
            "The interval below each figure is for that model alone. It covers only the choice of "
            "samples.",
            "note",
        ),
    ]


def unfinished_chip(state: str) -> Text:
    """What keeps a model's figures from being there."""
    return state_chip(state) if state != "complete" else None


# ------------------------------------------------------------------------------------------- models


def _models(r: Results) -> Section:
    columns = [Col("Model", lambda m: m.label or m.name, numeric=False)]
    columns += [
        Col("Tokens read", lambda m: count(m.tokens) if m.tokens > 0 else ""),
        Col("Parameters", lambda m: count(m.parameters) if m.parameters else ""),
        Col("Compute", lambda m: flops_text(m.flops) if m.flops else ""),
        Col("Time", lambda m: duration(m.seconds) if m.seconds else ""),
        Col("State", lambda m: state_chip(m.state), numeric=False),
        Col("Where", lambda m: _where(r.folder, m), numeric=False, wide=True),
    ]
    tones = ["taken" if m.name == r.record.result else "" for m in r.models]
    table = tabulate(r.models, columns, kind="dense", tones=tones)
    return Section("Models", [table, *b.paragraphs(_ancestry(r), "")])


def _where(folder: Path, model: StudiedModel) -> Text:
    inside = bool(model.path) and not model.given and (folder / model.path / REPORT_FILE).is_file()
    link = (
        sub(Span("report of the run", link=quote(f"{model.path}/{REPORT_FILE}")))
        if inside
        else None
    )
    path = shown_name(model) if model.given or not model.path else model.path
    return path, link, sub(Span(model.hash[:16], "code")) if model.hash else None


def _ancestry(r: Results) -> list[str]:
    """Whether each instruct model looks like a child of its base."""
    child = "" if _warnings(r) else " These values are typical of a base and its fine-tune."
    sentences = []
    for evidence in r.record.ancestry:
        title = f"{last_part(evidence['instruct'])} from {last_part(evidence['base'])}"
        for layer in evidence["layers"]:
            if layer["layer"] == "total":
                total = LayerDistance(**layer)
                cosine, weights = number(total.cosine, 4), count(total.parameters)
                sentences.append(
                    f"{title}: the norm of the difference is {moved(total.relative)} of the base's "
                    f"norm, and the cosine is {cosine}, on a sample of {weights} weights.{child}"
                )
    return sentences


READING = [
    "The residual is what instruction tuning changed: instruct \u2212 base, weight by weight. "
    "Added to the base that was trained further on new text, it is meant to bring back "
    "instruction following without instruction data (Balancing Continuous Pre-Training, equations "
    "1 and 2).",
    "Verdicts come from paired comparisons: both models answered the same samples. A measure is "
    "gained or lost if the interval of its difference excludes 0. “No significant change” does not "
    "prove that nothing changed: the interval shows how large a change may be.",
    "The intervals do not cover variation between training runs.",
    "Tokens read: the tokens that a model was trained on, counted again in every epoch. FLOPs: the "
    "floating-point operations of a model's training.",
]


def _corpus(r: Results) -> Section:
    facts = []
    for name, text in flatten(r.record.corpus):
        facts.append((name.replace(".", ": ").replace("_", " "), text))
    if not r.record.corpus.get("first_date"):
        facts.append(
            ("dates", "none recorded, so it is unknown whether the text is new to the models")
        )
    return Section("New text", [Panel([Facts(facts)], "card")], anchor="corpus")
