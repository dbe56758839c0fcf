"""The figures of an update, or of a study of the instruction residual, as plain tables: what every model measured, in
the paper's layout or its own.

Tables
------
A table has blocks of columns. Models that differ in their seed alone are one column: the mean over seeds, with

    half^2 = (t_{n-1} * s / sqrt(n))^2 + mean(h)^2

n seeds of standard deviation s, and h the half-width of each model's own interval (seeds share their samples, so more
of them do not shrink it).

- continued (the paper's table 2), one for each pair: base, instruct, and base + the pair's own residual, each by new
  tokens;
- siblings (table 3): base, instruct, and the base with another pair's residual, a block for each pair;
- derived (table 4): a derived model, and the same with residuals.

Rows are the paper's sixteen figures with its three averages, in its order, where the models measured the suite
`instruction_residual` or a part of it (`PAPER_ENTRIES`); what was measured besides follows. Otherwise a row is a metric
of an entry. The best figure of a block and the second best are marked, as in the paper (table 3's caption); that says
nothing about noise.

Two models are told apart by paired comparisons (`ResidualRecord.pairs`) and by nothing here: intervals of the tables
are those of one model alone.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.records.evaluation import EvaluationFolder, Metric
from holdfast.records.metrics import is_share
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ResidualRecord, StudiedModel
from holdfast.reports import paper_004
from holdfast.reports.compared import group_rank, group_title
from holdfast.reports.format import count, in_percent, interval_text, last_part, metric_texts, number, significant
from holdfast.reports.measured import Measured
from holdfast.reports.paper_004 import PaperColumn, PaperRow
from holdfast.statistics.intervals import t_half_width

PAPER_ENTRIES = frozenset(row.entry for row in paper_004.ROWS)
FEWEST_PAPER_ENTRIES = 3
"""From so many entries of the paper's suite on the tables have its layout, with empty cells for what is missing."""

AVERAGES = ("sub_average_1", "sub_average_2", "average")
PARTS: dict[str, tuple[PaperRow, ...]] = {
    "sub_average_1": tuple(paper_004.ROWS[paper_004.FIRST]),
    "sub_average_2": tuple(paper_004.ROWS[paper_004.SECOND]),
    "average": paper_004.ROWS,
}
"""What the paper's averages are over."""
AVERAGE_TITLES = {"sub_average_1": "Sub-average 1", "sub_average_2": "Sub-average 2", "average": "Average"}
CHOICE = ("average", "scale_choice")
"""The average that scales are chosen by: it is shown with the choice."""

Key = tuple[str, str]


# --------------------------------------------------------------------------------------------------------------- models


def trained(model: StudiedModel) -> bool:
    """Whether a model was, or is to be, trained on new text; tokens below 0 are not counted yet."""
    return model.tokens != 0 or model.budget is not None


class Studied:
    """One model of the record with what was measured of it."""

    def __init__(self, model: StudiedModel, measured: Measured) -> None:
        self.model = model
        self.measured = measured

    @property
    def continued(self) -> bool:
        """Whether it was, or is to be, trained on new text."""
        return trained(self.model)

    @property
    def given(self) -> bool:
        """Whether nothing was done to it here."""
        return not self.continued and self.model.residual is None

    def metric(self, entry: str, key: str, *, suite: str | None = None) -> Metric | None:
        """A figure by entry and metric; "exact_match" stands for "exact_match,custom-extract" where there is no other
        of that name.

        Args:
            entry: the entry's name.
            key: the metric's name; "" is the one that leads.
            suite: of the entry; None: any, where one alone has an entry of that name.
        """
        found = (
            self.measured.find(suite or "", entry) if suite is None else self.measured.evaluations.get((suite, entry))
        )
        if found is None:
            return None
        if key in found.metrics or not key:
            return found.metrics[key or found.primary]
        same = [name for name in found.metrics if name.split(",")[0] == key]
        return found.metrics[same[0]] if len(same) == 1 else None


def read_models(folder: Path, record: ResidualRecord) -> list[Studied]:
    """The record's models with their evaluations, in its order; folders that are not there are empty ones.

    Args:
        folder: the update's or study's.
        record: what lies in it.
    """
    return [
        Studied(m, Measured(m.measured(folder), m.label or m.name) if m.evaluations else _nothing(folder, m))
        for m in record.models
    ]


def _nothing(folder: Path, model: StudiedModel) -> Measured:
    """An evaluation folder with nothing in it: the record names none, and the study's own folder is none."""
    return Measured(EvaluationFolder(folder / ".no-evaluations"), model.label or model.name)


def problems_of(models: Sequence[Studied]) -> list[str]:
    """Files that could not be read, one sentence each."""
    return list(dict.fromkeys(p for m in models for p in m.measured.problems))


def target_of(m: Studied, models: Sequence[Studied]) -> Studied | None:
    """What a model's residual was put on: the model of the same start, training and seed without one; None where that
    is not one model."""
    made = m.model
    found = [
        o
        for o in models
        if o.model.residual is None
        and o.continued == m.continued
        and (o.model.start, o.model.family, o.model.budget) == (made.start, made.family, made.budget)
    ]
    if len(found) > 1:
        found = [o for o in found if o.model.seed == made.seed and o.model.tokens == made.tokens]
    return found[0] if len(found) == 1 else None


def spent_in_all(models: Sequence[Studied]) -> tuple[float, float]:
    """FLOPs and seconds of all complete models, each training counted once: a model with a residual has those of what
    it was put on in its own."""
    done = [m for m in models if m.model.state == "complete"]
    flops = seconds = 0.0
    for m in done:
        below = target_of(m, done) if m.model.residual is not None else None
        flops += max(0.0, m.model.flops - (below.model.flops if below is not None else 0.0))
        seconds += max(0.0, m.model.seconds - (below.model.seconds if below is not None else 0.0))
    return flops, seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Models made in the same way with different seeds: one column of a table, one point of a plot."""

    members: tuple[Studied, ...]
    header: str
    """Within its block: "original", "+100 M", "+ llama-3.1 residual"."""
    paper: PaperColumn | None = None
    """What the paper prints of a model made like it."""

    @property
    def model(self) -> StudiedModel:
        """The first member's."""
        return self.members[0].model

    @property
    def tokens(self) -> int:
        """New tokens, mean over the members."""
        return round(statistics.fmean(max(0, m.model.tokens) for m in self.members))

    @property
    def flops(self) -> float:
        """Floating-point operations of one member, mean."""
        return statistics.fmean(m.model.flops for m in self.members)

    @property
    def state(self) -> str:
        """ "complete" where one member is, else the first one's state."""
        states = [m.model.state for m in self.members]
        return "complete" if "complete" in states else states[0]

    def metric(self, pick: Callable[[Studied], Metric | None]) -> Metric | None:
        """One figure, over the members that have it."""
        return over_seeds([metric for m in self.members if (metric := pick(m)) is not None])


def over_seeds(metrics: Sequence[Metric]) -> Metric | None:
    """The mean over seeds with the interval of the module's head; one alone as it is, None for none."""
    if len(metrics) < 2:
        return metrics[0] if metrics else None
    values = [m.value for m in metrics]
    mean = statistics.fmean(values)
    intervals = [m.interval for m in metrics if m.interval is not None]
    interval = None
    if len(intervals) == len(metrics) and all(math.isfinite(v) for v in values):
        level = metrics[0].confidence
        samples = statistics.fmean((high - low) / 2 for low, high in intervals)
        half = math.hypot(t_half_width(values, confidence=level), samples)
        interval = (mean - half, mean + half)
    return dataclasses.replace(metrics[0], value=mean, interval=interval)


# ---------------------------------------------------------------------------------------------------------------- words


def tokens_text(tokens: float) -> str:
    """ "100 M", "1 B", "262,144": a count of tokens."""
    return count(tokens)


def scale_text(scale: float | None) -> str:
    """ "" for 1 or none, else "0.8 ×"."""
    return "" if scale is None or scale == 1 else f"{significant(float(scale))} × "


def residual_text(model: StudiedModel, families: Sequence[str]) -> str:
    """The residual that a model has, such as "0.8 × llama-3.1 residual"; "" for none."""
    if model.residual is None:
        return ""
    name = f"{model.residual} " if len(families) > 1 and model.residual else ""
    return f"{scale_text(model.scale)}{name}residual"


def label_of(record: ResidualRecord, name: str) -> str:
    """The label of a model by its name; the name where the record has none."""
    return next((m.label or m.name for m in record.models if m.name == name), name)


def shown_name(model: StudiedModel) -> str:
    """What a given model is called by people: the last part of its folder, or its name on the hub."""
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)", model.path)
    return f"{cached[1]}/{cached[2]}" if cached else last_part(model.path) or model.label or model.name


# --------------------------------------------------------------------------------------------------------------- tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Columns that belong together, and are ranked against each other."""

    title: str
    kind: str
    """"base", "instruct", "residual", "derived" or "siblings": what a plot gives it a colour for."""
    family: str
    columns: tuple[Group, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRow:
    """One figure of every column."""

    title: str
    words: str
    """Below the title: metric, shots, unit."""
    metrics: tuple[Metric | None, ...]
    """One a column, over all blocks."""
    marks: tuple[str, ...]
    """"best", "second" or "" a column."""
    paper: tuple[float | None, ...]
    """What the paper prints, in percent."""
    average: bool = False
    leads: bool = True
    """False for metrics that an entry has besides the one it leads with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureTable:
    """One table."""

    kind: str
    """"continued", "siblings", "derived" or "others"."""
    title: str
    blocks: tuple[Block, ...]
    rows: tuple[TableRow, ...]
    in_paper: bool
    """Whether the rows are the paper's."""
    has_paper: bool
    """Whether a column has the paper's figures beside ours."""

    @property
    def columns(self) -> list[Group]:
        return [c for block in self.blocks for c in block.columns]


def tables(models: Sequence[Studied], record: ResidualRecord) -> list[FigureTable]:
    """Every table that the models make; each model is in one at least.

    Args:
        models: from `read_models`.
        record: of the same update or study.
    """
    made: list[tuple[str, str, list[Block]]] = []
    families = families_of(record)
    for family in families:
        blocks = _continued_blocks(models, record, family)
        if blocks:
            name = f"{family}: " if family and len(families) > 1 else ""
            made.append(("continued", f"{name}{'continued on new text' if name else 'Continued on new text'}", blocks))
    siblings = [b for f in families if (b := _sibling_block(models, record, f)) is not None]
    if siblings:
        made.append(("siblings", "Residuals of siblings", siblings))
    theirs = dict.fromkeys(m.model.family for m in models if m.model.start == DERIVED)
    derived = [b for f in theirs if (b := _derived_block(models, record, f)) is not None]
    if derived:
        made.append(("derived", "Derived models", derived))
    placed = {id(m) for _, _, blocks in made for b in blocks for c in b.columns for m in c.members}
    rest = [m for m in models if id(m) not in placed]
    if rest:
        columns = tuple(Group(members=(m,), header=m.model.label or m.model.name) for m in rest)
        made.append(
            ("others", "Other models", [Block(title="Other models", kind="others", family="", columns=columns)])
        )
    rows = _rows_wanted(models)
    return [_table(kind, title, blocks, rows) for kind, title, blocks in made]


def families_of(record: ResidualRecord) -> list[str]:
    """The pairs of the record and those that its bases and instruct models are of, in order. A derived model may go by
    a name of its own."""
    return list(dict.fromkeys([*record.families, *(m.family for m in record.models if m.start in (BASE, INSTRUCT))]))


def _continued_blocks(models: Sequence[Studied], record: ResidualRecord, family: str) -> list[Block]:
    own = [m for m in models if m.model.family == family]
    here = any(m.continued or m.model.residual == family for m in own if m.model.start in (BASE, INSTRUCT))
    if not here and len(families_of(record)) > 1 and any(m.model.residual is not None for m in own):
        return []  # the table of siblings has them
    blocks = []
    for start in (BASE, INSTRUCT):
        held = [m for m in own if m.model.start == start and m.model.residual is None]
        if held:
            first = next((m for m in held if m.given), None)
            name = shown_name(first.model) if first is not None else ""
            title = start.capitalize() + (f": {name}" if name.lower() not in ("", start) else "")
            blocks.append(
                Block(title=title, kind=start, family=family, columns=_columns(held, models, record, _tokens_header))
            )
    added = [m for m in own if m.model.start == BASE and m.model.residual == family]
    for scale in dict.fromkeys(m.model.scale for m in added):
        held = [m for m in added if m.model.scale == scale]
        title = f"Base + {scale_text(scale)}residual"
        blocks.append(
            Block(title=title, kind="residual", family=family, columns=_columns(held, models, record, _tokens_header))
        )
    return blocks


def _sibling_block(models: Sequence[Studied], record: ResidualRecord, family: str) -> Block | None:
    own = [m for m in models if m.model.family == family and m.model.start == BASE]
    foreign = [m for m in own if m.model.residual not in (None, family)]
    if not foreign:
        return None
    given = [m for m in models if m.model.family == family and m.model.start in (BASE, INSTRUCT) and m.given]

    def header(m: Studied) -> str:
        return m.model.start if m.given else _residual_header(m, record)

    columns = _columns([*given, *foreign], models, record, header)
    return Block(title=family or "Base", kind="siblings", family=family, columns=columns)


def _derived_block(models: Sequence[Studied], record: ResidualRecord, family: str) -> Block | None:
    held = [m for m in models if m.model.family == family and m.model.start == DERIVED]
    if not held:
        return None
    originals = [m for m in held if m.given]
    alone = len(originals) == 1

    def header(m: Studied) -> str:
        if m.model.residual is None:
            return _tokens_header(m) if alone else shown_name(m.model)
        return _residual_header(m, record) if alone else m.model.label or m.model.name

    columns = _columns(held, models, record, header)
    title = shown_name(originals[0].model) if alone else f"Derived from {family}" if family else "Derived"
    return Block(title=title, kind="derived", family=family, columns=columns)


def _tokens_header(m: Studied) -> str:
    if not m.continued:
        return "original"
    tokens = m.model.budget if m.model.budget is not None else m.model.tokens
    return f"+{tokens_text(tokens)}" if tokens > 0 else "+ new text"


def _residual_header(m: Studied, record: ResidualRecord) -> str:
    tokens = f" {_tokens_header(m)}" if m.continued else ""
    return f"+ {residual_text(m.model, families_of(record))}{tokens}"


def _columns(
    held: Sequence[Studied], models: Sequence[Studied], record: ResidualRecord, header: Callable[[Studied], str]
) -> tuple[Group, ...]:
    """Models by new tokens, those that differ in their seed alone together. Two of one seed stay apart, under their
    labels."""
    kinds: dict[tuple[Any, ...], list[Studied]] = {}
    for m in held:
        made = m.model
        kinds.setdefault(
            (made.start, made.residual, made.scale, made.budget, m.continued and made.budget is None), []
        ).append(m)
    groups = []
    for members in kinds.values():
        seeds = [m.model.seed for m in members]
        apart = len(set(seeds)) < len(seeds)
        for part in [[m] for m in members] if apart else [members]:
            name = (part[0].model.label or part[0].model.name) if apart else header(part[0])
            groups.append(Group(members=tuple(part), header=name, paper=paper_column(part[0], models)))
    order = {BASE: 0, INSTRUCT: 1}
    first = {id(m): place for place, m in enumerate(held)}
    groups.sort(
        key=lambda g: (
            g.model.residual is not None,
            order.get(g.model.start, 2) if g.members[0].given else 3,
            g.model.budget if g.model.budget is not None else g.model.tokens,
            first[id(g.members[0])],
        )
    )
    return tuple(groups)


def paper_column(m: Studied, models: Sequence[Studied]) -> PaperColumn | None:
    """What the paper prints of a model made like this one: same start (by name), new tokens and residual at scale 1;
    None where it has none."""
    start = _known(m.model.start, m.model.family, models, m)
    if start is None:
        return None
    residual = None
    if m.model.residual is not None:
        residual = _known(INSTRUCT, m.model.residual, models, None)
        # The difference is taken between a pair: both have to be the paper's.
        parent = _known(BASE, m.model.residual, models, None)
        if residual is None or parent is None or residual[:-1] != parent[:-1] or m.model.scale not in (None, 1):
            return None
    return paper_004.find_column(start, m.model.budget if m.model.budget is not None else m.model.tokens, residual)


def _known(start: str, family: str, models: Sequence[Studied], m: Studied | None) -> str | None:
    """The paper's name of a pair's base, instruct or derived model."""
    found = [o for o in models if o.model.start == start and o.model.family == family and o.given]
    if m is not None and m.given:
        found = [m]
    if len(found) != 1:
        return None
    names = [
        found[0].model.path,
        *(str(e.model.get("name") or "") for e in list(found[0].measured.evaluations.values())[:1]),
        found[0].model.label,
    ]
    return next((key for name in names if name and (key := paper_004.recognise(name))), None)


# ----------------------------------------------------------------------------------------------------------------- rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A row before it has columns."""

    title: str
    words: str
    pick: Callable[[Studied], Metric | None]
    paper: Callable[[PaperColumn], float | None] = lambda _: None
    average: bool = False
    leads: bool = True
    from_paper: bool = False


def in_papers_layout(models: Sequence[Studied]) -> bool:
    """Whether the models measured enough of the suite `instruction_residual` for its layout."""
    measured = {name for m in models for _, name in m.measured.evaluations}
    return len(measured & PAPER_ENTRIES) >= FEWEST_PAPER_ENTRIES or "sub_average_1" in measured


def _rows_wanted(models: Sequence[Studied]) -> list[_Wanted]:
    paper = in_papers_layout(models)
    wanted: list[_Wanted] = []
    if paper:
        for place, row in enumerate(paper_004.ROWS):
            wanted.append(_paper_row(place, row))
            for after, name in ((7, "sub_average_1"), (14, "sub_average_2"), (15, "average")):
                if place == after:
                    wanted.append(_paper_average(name))
    names = [name for _, name in entries_of(models)]
    for suite, name in entries_of(models):
        shown = name if names.count(name) == 1 else f"{suite}/{name}"
        for key, metric, leads in _metrics_of(models, (suite, name)):
            if paper and (_in_rows(name, key, models) or (suite == "average" and name in AVERAGES)):
                continue
            words = ", ".join(
                dict.fromkeys(
                    w for w in (group_title(suite), key, metric.unit if metric.unit != key.split(",")[0] else "") if w
                )
            )
            words += "" if metric.higher_is_better else ", lower is better"
            wanted.append(
                _Wanted(
                    title=shown, words=words, pick=picker(suite, name, key), leads=leads, average=suite == "average"
                )
            )
    return wanted


def picker(suite: str, name: str, key: str) -> Callable[[Studied], Metric | None]:
    """What gives a model's figure of one metric of one entry."""
    return lambda m: m.metric(name, key, suite=suite)


def _paper_row(place: int, row: PaperRow) -> _Wanted:
    return _Wanted(
        title=row.benchmark,
        words=f"{row.metric}: {row.words}",
        pick=lambda m: m.metric(row.entry, row.key),
        paper=lambda column: column.values[place],
        from_paper=True,
    )


def _paper_average(name: str) -> _Wanted:
    words = {
        "sub_average_1": "mean of the eight above",
        "sub_average_2": "mean of the seven above",
        "average": "mean of all sixteen",
    }[name]
    return _Wanted(
        title=AVERAGE_TITLES[name],
        words=words,
        pick=lambda m: paper_average(m, name),
        paper=lambda column: getattr(column, name),
        average=True,
        from_paper=True,
    )


def paper_average(m: Studied, name: str) -> Metric | None:
    """One of the paper's averages: as it was measured, else the mean of its members without an interval; None where a
    member is missing."""
    measured = m.metric(name, "", suite="average")
    if measured is not None:
        return measured
    part = PARTS[name]
    found = [metric for row in part if (metric := m.metric(row.entry, row.key)) is not None]
    if len(found) < len(part):
        return None
    return Metric(value=statistics.fmean(f.value for f in found), n=len(found), unit="share", higher_is_better=True)


def _in_rows(name: str, key: str, models: Sequence[Studied]) -> bool:
    """Whether one of the paper's rows shows this metric."""
    for row in paper_004.ROWS:
        if row.entry == name and (
            row.key == key
            or (row.key == key.split(",")[0] and any(m.metric(name, row.key) is not None for m in models))
        ):
            return True
    return False


def entries_of(models: Sequence[Studied]) -> list[Key]:
    """Every entry that a model measured: target, source, other suites, averages last; within a suite as they were
    met."""
    keys = [key for key in dict.fromkeys(key for m in models for key in m.measured.evaluations) if key != CHOICE]
    return sorted(keys, key=lambda key: (is_average(models, key), group_rank(key[0]), keys.index(key)))


def is_average(models: Sequence[Studied], key: Key) -> bool:
    """Whether an entry is a mean of others."""
    return any(m.measured.evaluations[key].kind == "average" for m in models if key in m.measured.evaluations)


def _metrics_of(models: Sequence[Studied], key: Key) -> list[tuple[str, Metric, bool]]:
    """(name, an example, whether it leads) of every metric of an entry, the one that leads first."""
    held = [m.measured.evaluations[key] for m in models if key in m.measured.evaluations]
    lead = held[0].primary
    found: dict[str, Metric] = {}
    for e in held:
        for name, metric in e.metrics.items():
            found.setdefault(name, metric)
    return [(name, found[name], name == lead) for name in sorted(found, key=lambda n: n != lead)]


def _table(kind: str, title: str, blocks: Sequence[Block], wanted: Sequence[_Wanted]) -> FigureTable:
    columns = [c for b in blocks for c in b.columns]
    rows = []
    for want in wanted:
        metrics = tuple(c.metric(want.pick) for c in columns)
        paper = tuple(want.paper(c.paper) if c.paper is not None else None for c in columns)
        if not want.from_paper and not any(m is not None for m in metrics):
            continue
        marks: list[str] = []
        for b in blocks:
            marks += marks_of(metrics[len(marks) : len(marks) + len(b.columns)])
        rows.append(
            TableRow(
                title=want.title,
                words=want.words,
                metrics=metrics,
                marks=tuple(marks),
                paper=paper,
                average=want.average,
                leads=want.leads,
            )
        )
    return FigureTable(
        kind=kind,
        title=title,
        blocks=tuple(blocks),
        rows=tuple(rows),
        in_paper=any(w.from_paper for w in wanted),
        has_paper=any(v is not None for r in rows for v in r.paper),
    )


def marks_of(metrics: Sequence[Metric | None]) -> list[str]:
    """ "best" and "second" of a block's figures; figures that read alike share a mark, and a figure alone has none."""
    shown = [
        None
        if m is None or not math.isfinite(m.value)
        else float(_value_text(m, 2).removesuffix(" %").replace("\u2212", "-"))
        for m in metrics
    ]
    known = sorted(
        {v for v in shown if v is not None}, reverse=next((m.higher_is_better for m in metrics if m is not None), True)
    )
    if sum(v is not None for v in shown) < 2 or len(known) < 2:
        return [""] * len(shown)
    return ["best" if v == known[0] else "second" if v == known[1] else "" for v in shown]


def _value_text(metric: Metric, digits: int) -> str:
    share = is_share(metric.unit, values=[metric.value])
    return number(100 * metric.value, digits) if share else metric_texts(metric)[0]


def cell_text(metric: Metric, *, paper: bool) -> tuple[str, str]:
    """A figure and its interval as text; in the paper's layout in percent with two decimals (intervals: one), else as
    every page shows them."""
    if paper and is_share(metric.unit, values=[metric.value]):
        return number(100 * metric.value, 2), interval_text(in_percent(metric.interval), 1)
    return metric_texts(metric)


def flops_text(value: float) -> str:
    """ "4.92e22 FLOPs"; "none" for 0."""
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e") + " FLOPs" if value else "none"
