"""The page of a study of the instruction residual: the paper's tables 2, 3 and 4 with its printed
figures beside ours, and scores against new tokens.

A column of a table is a model; models that differ in their seed alone are one, with the mean over
seeds and

    half^2 = (t_{n-1} * s / sqrt(n))^2 + mean(h)^2

n seeds of standard deviation s, and h the half-width of each model's own interval (seeds share
their samples, so more of them do not shrink it). Columns stand in blocks, blocks in tables:

- table 2, one for each pair that is continued: base, instruct, and base + the pair's own residual,
  each by new tokens;
- table 3: base, instruct, and the base with another pair's residual, a block for each pair;
- table 4: a derived model, and the same with residuals.

Rows are the paper's sixteen figures with its three averages, in its order, where the models
measured the suite `instruction_residual` or a part of it; what was measured besides follows.
Otherwise a row is a metric of an entry.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.residual import printed_figures
from holdfast.papers.residual.printed_figures import AVERAGES, PaperColumn
from holdfast.records.evaluation import Metric
from holdfast.records.figure import seeds_and_samples
from holdfast.records.measure import Measure, in_percent, interval_text, number
from holdfast.records.metrics import is_share
from holdfast.records.residual import (
    BASE,
    DERIVED,
    INSTRUCT,
    ModelPair,
    ResidualRecord,
    StudiedModel,
)
from holdfast.reports import blocks as b
from holdfast.reports.blocks import Fold, Paragraph, Section, Table, Text, Tile, sub
from holdfast.reports.charts import DASHES, Axis, Chart, Col, Mark, Value
from holdfast.reports.compared import ComparisonRow, measures, ordered, primary_of, without_means
from holdfast.reports.format import (
    count,
    flops_text,
    metric_texts,
    plural,
    significant,
    tally,
)
from holdfast.reports.html import write_page
from holdfast.reports.update_report import (
    REPORT_FILE,
    ResultRow,
    Results,
    breakable,
    lower,
    no_answer,
    pair_title,
    print_results,
    token_tile,
    unfinished_chip,
    whole_page,
)

if TYPE_CHECKING:
    from rich.console import Console

FEWEST_PAPER_ENTRIES = 3
"""From so many entries of the paper's suite on the tables have its layout, with empty cells for
what is missing."""
AVERAGE_WORDS = {
    "sub_average_1": ("Sub-average 1", "mean of the eight figures above", "Instruction following"),
    "sub_average_2": ("Sub-average 2", "mean of the seven figures above", "Reasoning"),
    "average": ("Average", "mean of all sixteen figures", "Average"),
}
"""Title and words in a table, title of a plot (the panels of the paper's figure 1)."""
STYLES = {
    BASE: ("accent", "circle"),
    INSTRUCT: ("second", "square"),
    "residual": ("third", "diamond"),
    "tuning": ("flat", "star"),
    "distillation": ("good", "cross"),
    DERIVED: ("fourth", "triangle-up"),
}
"""Kind of model -> colour and symbol."""
MOST_SCORES = 9
"""Entries that are drawn beside averages."""
TITLES = {2: "Continued on new text", 3: "Residuals of siblings", 4: "Derived models"}
"""Of the paper's tables."""
READING = (
    "Below each figure stands its own interval over samples and, with several seeds, over "
    "seeds. An empty cell was not measured."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperRow(ResultRow):
    """A row of the paper's tables."""

    cell: int | str
    """Number of the figure among the sixteen, or the name of an average."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Models made in the same way with different seeds: one column of a table, one point of a
    chart."""

    table: int
    """In the paper: 2, 3 or 4."""
    family: str
    block: str
    header: str
    """Within its block: "original", "+100 M", "+ llama-3.1 residual"."""
    paper: PaperColumn | None
    """What the paper prints of a model made like it."""
    members: list[StudiedModel]
    tokens: int = 0
    """New tokens of the first member, each once however often it was repeated."""

    @property
    def model(self) -> StudiedModel:
        """The first member."""
        return self.members[0]

    @property
    def flops(self) -> float:
        """Of the training, with every repetition, mean over the members."""
        return statistics.fmean(member.flops for member in self.members)

    def metric(self, row: ResultRow) -> Metric | None:
        """One figure, over the members that have it."""
        values = [row.values.get(model.name) for model in self.members]
        return over_seeds(list(filter(None, values)))

    def printed(self, row: ResultRow) -> float | None:
        """The same figure as the paper prints it."""
        if self.paper is None or not isinstance(row, PaperRow):
            return None
        return (
            self.paper.averages.get(row.cell)
            if isinstance(row.cell, str)
            else self.paper.values[row.cell]
        )


class StudyResults(Results):
    """Everything that lies in the folder of a study."""

    @functools.cached_property
    def paper_rows(self) -> list[ResultRow]:
        """The paper's sixteen figures, each average after the last that it is over; nothing where
        the models measured little of the suite."""
        printed = printed_figures.rows()
        measured = {entry.name for entry in self.entries} & {row.entry for row in printed}
        rows: list[ResultRow] = []
        for number_, row in enumerate(printed if len(measured) >= FEWEST_PAPER_ENTRIES else ()):
            values, words = self.values("", row.entry, row.key), f"{row.metric}: {row.words}"
            score = "Truthfulness" if row.entry == "truthfulqa_mc2" else ""
            rows.append(
                PaperRow(title=row.benchmark, words=words, values=values, score=score, cell=number_)
            )
            for name, members in AVERAGES.items():
                if members.stop == number_ + 1:
                    title, words, score = AVERAGE_WORDS[name]
                    values = self.values("average", name, "average")
                    about: dict[str, Any] = {
                        "title": title,
                        "words": words,
                        "score": score,
                        "cell": name,
                    }
                    rows.append(PaperRow(values=values, suite="average", **about))
        return rows

    @functools.cached_property
    def rows(self) -> list[ResultRow]:
        """What tables have: the paper's rows where its suite was measured, then everything else."""
        in_paper: set[int] = set()
        for row in self.paper_rows:
            in_paper |= set(map(id, row.values.values()))
        rows = list(self.paper_rows)
        for entry in self.entries:
            if in_paper.isdisjoint(map(id, entry.values.values())):
                rows.append(entry)
        return rows

    @functools.cached_property
    def drawn_scores(self) -> list[ResultRow]:
        """What charts show: the paper's groups and average, and what was measured beside its
        suite."""
        if not self.paper_rows:
            leading = [m for m in self.entries if m.leads]
            averages = [m for m in leading if m.average] if len(leading) > MOST_SCORES else []
            return averages + [m for m in leading if m not in averages][:MOST_SCORES]
        scores = []
        for row in self.rows:
            if row.score and row.values and (isinstance(row, PaperRow) or row.leads):
                scores.append(row)
        return scores

    @functools.cached_property
    def tables(self) -> dict[str, list[Column]]:
        """Columns by the title of their table; models of other widths than the first are in
        none."""
        blocks: dict[tuple[int, str, str], dict[object, Column]] = {}
        for model in self.models:
            for table, block, header in (
                self._cells(model) if model.width == self.models[0].width else ()
            ):
                several = table == 2 and len(self.families) > 1
                title = f"{model.family}: {TITLES[table].lower()}" if several else TITLES[table]
                about: dict[str, Any] = {"table": table, "block": block, "header": header}
                about |= {"family": model.family, "tokens": max(0, self.record.new_tokens(model))}
                new = Column(**about, paper=self._paper_column(model), members=[])
                columns = blocks.setdefault((table, title, block), {})
                columns.setdefault((model.repeated, model.scale), new).members.append(model)

        def order(column: Column) -> tuple[bool, bool, int]:
            return (
                column.model.residual is not None,
                column.model.continued,
                column.tokens,
            )

        tables: dict[str, list[Column]] = {}
        for (_, title, _), columns in sorted(blocks.items(), key=lambda item: item[0][0]):
            tables.setdefault(title, []).extend(sorted(columns.values(), key=order))
        return tables

    def columns(self, *numbers: int) -> list[Column]:
        """Those of the paper's tables with these numbers."""
        columns: list[Column] = []
        for table in self.tables.values():
            columns += [column for column in table if column.table in numbers]
        return columns

    def _cells(self, model: StudiedModel) -> Iterator[tuple[int, str, str]]:
        """(table, block, header of the column) of every place where a model stands."""
        start, family = model.start, model.family
        times = "" if model.scale in (None, 1) else f"{significant(model.scale)} × "
        whose = f"{model.residual} " if len(self.families) > 1 and model.residual else ""
        added = f"+ {times}{whose}residual"
        new = self.record.new_tokens(model)
        amount = f"+{count(new)}" if new > 0 else "+ new text"
        tokens = amount if model.continued else "original"
        swapped = set()
        for other in self.models:
            if other.start == BASE and other.residual not in (None, other.family):
                swapped.add(other.family)
        if start == DERIVED:
            yield 4, family, tokens if model.residual is None else added
        elif model.residual not in (None, family):
            yield 3, family or "Base", added
        else:
            if family not in swapped or any(m.continued for m in self.models if m.family == family):
                yield (
                    2,
                    start.capitalize() + (f" + {times}{model.restored}" if model.restored else ""),
                    tokens,
                )
            if model.given and family in swapped:
                yield 3, family or "Base", start

    def _paper_column(self, model: StudiedModel) -> PaperColumn | None:
        """What the paper prints of a model made like this one: same start (by name), new tokens and
        residual at scale 1."""
        start, residual = self._paper_name(model.start, model.family), None
        if model.residual is not None:
            # The difference is taken between a pair: both have to be the paper's.
            residual = self._paper_name(INSTRUCT, model.residual)
            parent = self._paper_name(BASE, model.residual)
            if not residual or residual[:-1] != parent[:-1] or model.scale not in (None, 1):
                return None
        new = self.record.new_tokens(model)
        return printed_figures.find_column(start, new, residual) if start else None

    def _paper_name(self, start: str, family: str) -> str:
        """The paper's name of a given model; "" where it is none of the paper's."""
        for model in self.models:
            if model.given and (model.start, model.family) == (start, family):
                return printed_figures.recognise(model.path) or ""
        return ""


def over_seeds(metrics: Sequence[Metric]) -> Metric | None:
    """The mean over seeds with the interval of the module's head; one alone as it is, None for
    none."""
    if len(metrics) < 2:
        return metrics[0] if metrics else None
    values, interval = [metric.value for metric in metrics], None
    halves = []
    for metric in metrics:
        if metric.interval is not None:
            low, high = metric.interval
            halves.append((high - low) / 2)
    if len(halves) == len(metrics) and all(map(math.isfinite, values)):
        interval = seeds_and_samples(values, statistics.fmean(halves))
    return dataclasses.replace(metrics[0], value=statistics.fmean(values), interval=interval)


# ----------------------------------------------------------------------------------------- the page


def write_study_report(folder: str | os.PathLike[str], record: ResidualRecord) -> Path:
    """Writes `report.html` into the folder and returns its path.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    return write_page(study_page(record, Path(folder)), Path(folder) / REPORT_FILE)


def study_page(record: ResidualRecord, folder: Path) -> b.Page:
    """The page; see `write_study_report`."""
    r = StudyResults(folder, record)
    done = sum(model.state == "complete" for model in r.models)
    tiles = [Tile("Models", f"{done} of {len(r.models)}", "complete"), *token_tile(r)]
    return whole_page(
        r, "residual study", summary(r), tiles, [_figures(r), _tokens_section(r), _pairs(r)]
    )


def print_study(record: ResidualRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer and where the page is.

    Args:
        record: a study, finished or not.
        folder: its folder.
        console: where to print; the terminal by default.
    """
    r = StudyResults(Path(folder), record)
    print_results(r, summary(r), console)


def summary(r: StudyResults) -> str:
    """How far the study is, and what its pairs show, by the question that they answer."""
    sentences = []
    for question, pairs in _questions(r).items():
        verdicts: list[str] = []
        for pair in pairs:
            rows = without_means(primary_of(list(map(ComparisonRow, pair.comparisons))))
            verdicts += [row.verdict for row in rows]
        sentences.append(
            f"{question} {plural(len(verdicts), 'paired comparison')}: {tally(verdicts)}."
        )
    done, models = sum(m.state == "complete" for m in r.models), plural(len(r.models), "model")
    complete = f"{done} of {models} are complete." if done < len(r.models) else f"{models}."
    return " ".join([complete, *sentences]) if sentences else no_answer(r, "study")


def _questions(r: StudyResults) -> dict[str, list[ModelPair]]:
    """Pairs by the question that they answer."""
    questions: dict[str, list[ModelPair]] = {}
    for pair in r.record.pairs:
        questions.setdefault(pair.question, []).append(pair)
    return questions


def _pairs(r: StudyResults) -> Section | None:
    """Every pair with all of its metrics, folded by question: there may be hundreds."""
    parts: list[b.Block] = []
    for question, pairs in _questions(r).items():
        tables = []
        for pair in pairs:
            tables.append(measures(ordered(pair.comparisons), pair_title(pair, r)))
        parts += [b.Heading(question), Fold(plural(len(pairs), "pair"), tables)]
    return Section("Compared pairs", parts, anchor="pairs") if parts else None


# ------------------------------------------------------------------------------------------- tables


def _figures(r: StudyResults) -> Section:
    parts: list[b.Block] = []
    paper, beside = bool(r.paper_rows), False
    for title, columns in r.tables.items():
        beside = beside or any(column.paper is not None for column in columns)
        leading: list[ResultRow] = []
        others: list[ResultRow] = []
        for row in r.rows:
            if isinstance(row, PaperRow) or any(column.metric(row) for column in columns):
                (leading if row.leads else others).append(row)
        if leading or others:
            parts.append(figures_table(columns, leading, title, paper=paper))
        if others:
            parts.append(
                Fold(
                    f"Other metrics ({len(others):,})",
                    [figures_table(columns, others, paper=paper)],
                )
            )
    notes, printed = [READING], printed_figures.printed()
    if beside:
        notes += [printed["beside_ours"], *printed["against_its_text"]]
    if r.paper_rows and 0 < max(m.parameters for m in r.models) < printed_figures.SMALL:
        notes.append(printed["small_models"])
    parts.append(
        b.Bullets(notes) if parts else Paragraph("No model has been evaluated yet.", "note")
    )
    return Section("What was measured", parts, anchor="measured")


def figures_table(
    columns: Sequence[Column], rows: Sequence[ResultRow], title: str = "", *, paper: bool
) -> Table:
    """A table of blocks: block titles over columns, a figure with its interval a cell, the paper's
    below where there is one.

    Args:
        columns: what it shows of which models.
        rows: what it shows of each.
        title: above it.
        paper: shares in percent with two decimals (intervals: one), as in the paper; else as every
            page shows them.
    """
    cells = []
    for row in rows:
        parts: list[Text] = [(breakable(row.title), sub(breakable(row.words)))]
        for column in columns:
            metric, printed = column.metric(row), column.printed(row)
            beside = (
                sub(f"paper {number(printed, 2)}", tone="paper") if printed is not None else None
            )
            if metric is None:
                parts.append(beside)
            else:
                value, interval = cell_text(metric, paper=paper)
                parts.append((value, sub(interval), beside))
        cells.append(parts)
    heads = [b.Column(title="Measure")]
    for column in columns:
        heads.append(b.Column(title=_head(column), numeric=True))
    groups: list[tuple[str, int]] = []
    for block, of_block in itertools.groupby(columns, lambda column: column.block):
        groups.append((block, len(list(of_block))))
    tones = ["average" if row.average else "" for row in rows]
    return Table(columns=heads, rows=cells, title=title, kind="figures", groups=groups, tones=tones)


def _head(column: Column) -> Text:
    seeds = sub(plural(len(column.members), "seed")) if len(column.members) > 1 else None
    return column.header, seeds, unfinished_chip(min(m.state for m in column.members))


def cell_text(metric: Metric, *, paper: bool) -> tuple[str, str]:
    """A figure and its interval as text; see `figures_table`."""
    if paper and is_share(metric.unit, values=[metric.value]):
        return number(100 * metric.value, 2), interval_text(in_percent(metric.interval), 1)
    return metric_texts(metric)


# ------------------------------------------------------------------------------------------- charts


def _tokens_section(r: StudyResults) -> Section | None:
    charts = [*token_charts(r), *compute_charts(r)]
    text = (
        "The charts show how scores change with more new text, for the base, the instruct "
        "model, and the base with the residual added back. The amount of new text counts each "
        "token once, however many epochs read it. The compute includes every epoch."
    )
    return (
        Section("Scores against new tokens", b.side_by_side(charts), intro=text, anchor="tokens")
        if charts
        else None
    )


def _chart(
    score: ResultRow,
    columns: Sequence[Column],
    lines: Sequence[str],
    positions: Sequence[float],
    x: Axis,
) -> Chart:
    """A score of each column at its position across.

    Args:
        score: what is drawn.
        columns: those that have it.
        lines: the name of the line that each belongs to.
        positions: across.
        x: their axis.
    """
    measure = Measure(unit=score.unit, share=score.share, bounded=False)
    rows, kinds = [], {}
    for column, line, position in zip(columns, lines, positions, strict=True):
        metric = column.metric(score)
        assert metric is not None
        kinds[line] = column.model.restored or column.model.start
        header = f"{column.family}: {column.header}".lstrip(": ")
        printed = column.printed(score)
        rows.append(
            {
                "line": line,
                "header": header,
                "score": Value.of(metric, measure),
                "place": position,
                "paper": printed,
            }
        )
    marks: list[Mark] = []
    for number_, (line, kind) in enumerate(kinds.items()):
        colour, symbol = STYLES[kind]
        style: dict[str, Any] = {
            "colour": colour,
            "symbol": symbol,
            "dash": DASHES[number_ // 3 % 4],
        }
        marks.append(
            Mark(where={"line": line}, name=line, x="place", y="score", kind="line", **style)
        )
    marks.append(
        Mark(name="paper", x="place", y="paper", colour="ink", symbol="circle-open", size=11)
    )
    cells = [
        Col("Model", "line", numeric=False),
        Col("", "header", numeric=False),
        Col("Score", "score"),
    ]
    cells.append(Col("Paper", "paper"))
    return Chart(
        title=score.score,
        rows=rows,
        columns=cells,
        marks=marks,
        x=x,
        y=Axis(title=score.unit + lower(score)),
        caption="Bars are the same intervals as in the tables. Hollow points are the paper's "
        "printed figures.",
        legend=True,
        height=320,
    )


def token_charts(r: StudyResults) -> list[Chart]:
    """Figure 1 of the paper: a panel for each score, with a line for the base, the instruct model
    and the base with the residual, against new tokens. A token counts once, however often it was
    repeated. The original stands at the left end; the axis is logarithmic from the smallest budget
    on.

    Returns:
        None where there is one budget alone.
    """
    columns = _of_table_2(r)
    places = [(column.tokens, count(column.tokens)) for column in columns]
    return _along(columns, r.drawn_scores, places, "new tokens")


def compute_charts(r: StudyResults) -> list[Chart]:
    """Figure 2 of the paper: MMLU against the compute of the continuation, in which every
    repetition of a token counts. None where MMLU was not measured."""
    columns = _of_table_2(r)
    places = [(column.flops, flops_text(column.flops)) for column in columns]
    mmlu = [row for row in r.rows if isinstance(row, PaperRow) and row.title == "MMLU"]
    scores = [dataclasses.replace(row, score="MMLU") for row in mmlu if row.values]
    return _along(columns, scores, places, "FLOPs of continuing")


def _of_table_2(r: StudyResults) -> list[Column]:
    """Columns of the continued pairs, with scale 1 alone where it is there; none where there is one
    budget alone."""
    columns = r.columns(2)
    if any(model.scale == 1 for model in r.models):
        columns = [column for column in columns if column.model.scale in (None, 1)]
    return columns if len({c.tokens for c in columns if c.model.continued}) > 1 else []


def _along(
    columns: Sequence[Column],
    scores: Sequence[ResultRow],
    amounts: Sequence[tuple[float, str]],
    title: str,
) -> list[Chart]:
    """A chart for each score.

    Args:
        columns: the models.
        scores: what is drawn.
        amounts: of each column, what stands across and how it is written; 0 at the left end.
        title: of the axis.
    """
    above = sorted({amount for amount, _ in amounts if amount > 0})
    places = {0.0: 0.0}
    for amount in above:
        places[amount] = 1 + math.log10(amount / above[0])
    ticks = {0.0: "original"}
    for amount, text in amounts:
        if amount > 0 and text not in ticks.values():
            ticks[places[amount]] = text
    axis = Axis(title=title, ticks=sorted(ticks.items()))
    several = len({c.family for c in columns}) > 1
    charts = []
    for score in scores:
        drawn, names, xs = [], [], []
        for column, (amount, _) in zip(columns, amounts, strict=True):
            if column.metric(score) is not None:
                drawn.append(column)
                names.append(
                    f"{column.family}: {column.block.lower()}" if several else column.block
                )
                xs.append(places[max(0.0, amount)])
        if len(set(xs)) > 1:
            charts.append(_chart(score, drawn, names, xs, axis))
    return charts
