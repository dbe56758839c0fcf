"""What an update, or a study of the instruction residual, measured: one tidy table of figures (model, measure, value,
interval), from which tiles, tables, plots and sentences select.

A `Measure` is a figure that models have: a metric of an entry, or a mean of several. A `Group` is a column: models that
differ in their seed alone are one, with the mean over seeds and

    half^2 = (t_{n-1} * s / sqrt(n))^2 + mean(h)^2

n seeds of standard deviation s, and h the half-width of each model's own interval (seeds share their samples, so more
of them do not shrink it). Groups stand in blocks, blocks in tables:

- continued (the paper's table 2), one for each pair: base, instruct, and base + the pair's own residual, each by new
  tokens;
- siblings (table 3): base, instruct, and the base with another pair's residual, a block for each pair;
- derived (table 4): a derived model, and the same with residuals;
- widths: models of other sizes than the first, a block for each.

Measures are the paper's sixteen figures with its three averages, in its order, where the models measured the suite
`instruction_residual` or a part of it; what was measured besides follows. Otherwise a measure is a metric of an entry.

Two models are told apart by paired comparisons (`ResidualRecord.pairs`) and by nothing here: intervals of the table
are those of one model alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.records.metrics import is_share
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ModelPair, ResidualRecord, StudiedModel
from holdfast.reports import paper_004
from holdfast.reports.compared import GROUPS, group_rank, group_title
from holdfast.reports.format import count, last_part, significant
from holdfast.reports.measured import Measured, names_of
from holdfast.reports.paper_004 import AVERAGES, PaperColumn
from holdfast.statistics.intervals import t_half_width

FEWEST_PAPER_ENTRIES = 3
"""From so many entries of the paper's suite on the tables have its layout, with empty cells for what is missing."""
AVERAGE_WORDS = {
    "sub_average_1": ("Sub-average 1", "mean of the eight above", "Instruction following", "instruction"),
    "sub_average_2": ("Sub-average 2", "mean of the seven above", "Reasoning", "kept"),
    "average": ("Average", "mean of all sixteen", "Average", "kept"),
}
"""Title and words in a table, title of a plot (the panels of the paper's figure 1), role."""
SCORE_TITLES = {"truthfulqa_mc2": "Truthfulness", **{name: words[2] for name, words in AVERAGE_WORDS.items()}}
KINDS = ("continued", "siblings", "derived", "widths")
BOTH = ("exact_match,strict-match", "exact_match,flexible-extract")
"""GSM8K's two figures, which lead together: strict alone mixes the format of an answer with the ability to find it."""
CHOICE = ("average", "scale_choice")
"""The average that scales are chosen by: it is shown with the choice."""
MOST_SCORES = 9
"""Entries that are drawn one by one; with more of them a suite is one score."""
NEW_WORDS = {"new", "news", "fresh", "recent", "update", "updated"}
INSTRUCTION_WORDS = {"ifeval", "instruction", "instructions", "following"}
INSTRUCTION_METRICS = ("inst_level_", "prompt_level_")
"""How metrics of IFEval's kind begin."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure that models have."""

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
    role: str = "kept"
    """"new", "instruction" or "kept", see `role_of`."""
    leads: bool = True
    """False for metrics that an entry has besides the one it leads with."""
    place: int | str | None = None
    """In the paper's tables: of the sixteen figures, or the name of an average; None: not there."""

    @property
    def share(self) -> bool:
        return self.unit == "%"

    @property
    def average(self) -> bool:
        """Whether it is a mean of entries."""
        return self.suite == "average"

    def printed(self, column: PaperColumn | None, *, recomputed: bool = False) -> float | None:
        """What the paper prints of a column; `recomputed` takes the mean of its figures for an average left out."""
        if column is None or self.place is None:
            return None
        if isinstance(self.place, int):
            return column.values[self.place]
        return column.averages.get(self.place, column.mean(self.place) if recomputed else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Models made in the same way with different seeds: one column of a table, one point of a plot."""

    members: tuple[StudiedModel, ...]
    header: str
    """Within its block: "original", "+100 M", "+ llama-3.1 residual"."""
    paper: PaperColumn | None = None
    """What the paper prints of a model made like it."""

    @property
    def model(self) -> StudiedModel:
        """The first member."""
        return self.members[0]

    @property
    def tokens(self) -> int:
        """New tokens, mean over the members."""
        return round(statistics.fmean(max(0, m.tokens) for m in self.members))

    @property
    def flops(self) -> float:
        """Floating-point operations of one member, mean."""
        return statistics.fmean(m.flops for m in self.members)

    @property
    def state(self) -> str:
        """ "complete" where one member is, else the first one's state."""
        return "complete" if any(m.state == "complete" for m in self.members) else self.model.state

    def metric(self, measure: Measure) -> Metric | None:
        """One figure, over the members that have it."""
        return over_seeds([measure.values[m.name] for m in self.members if m.name in measure.values])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns that belong together, and are ranked against each other."""

    title: str
    kind: str
    """"base", "instruct", "residual", "derived" or "siblings": what a plot gives it a colour for."""
    family: str
    groups: tuple[Group, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureTable:
    """One table."""

    kind: str
    """One of `KINDS`."""
    title: str
    blocks: tuple[Columns, ...]

    @property
    def at_scale_1(self) -> list[Columns]:
        """Its blocks without those of the residual at other scales, where scale 1 is there as well."""
        ones = [b for b in self.blocks if b.kind == "residual" and b.groups[0].model.scale in (None, 1)]
        return [b for b in self.blocks if b.kind != "residual" or b in ones or not ones]

    @property
    def groups(self) -> list[Group]:
        """All of its columns."""
        return [g for block in self.blocks for g in block.groups]


class Results:
    """Everything that lies in the folder of an update or a study.

    Args:
        folder: the update's or study's; evaluation folders that are not there are empty ones.
        record: what lies in it.
    """

    def __init__(self, folder: Path, record: ResidualRecord) -> None:
        self.folder, self.record, self.models = folder, record, record.models
        self.measured = {
            m.name: Measured(EvaluationFolder(folder / (m.evaluations or ".no-evaluations")), m.label or m.name)
            for m in record.models
        }
        self.width = record.models[0].width if record.models else 0
        """Of the tables and plots; others have a table of their own."""
        self.problems = list(dict.fromkeys(p for m in self.measured.values() for p in m.problems))
        pairs = (m.family for m in record.models if m.start in (BASE, INSTRUCT))
        self.families = list(dict.fromkeys([*record.families, *pairs]))
        """The pairs of the record and those that its bases and instruct models are of; a derived model may go by a name
        of its own."""

    def label(self, name: str) -> str:
        """The label of a model by its name; the name where the record has none."""
        return next((m.label or m.name for m in self.models if m.name == name), name)

    # --------------------------------------------------------------------------------------------------------- measures

    @functools.cached_property
    def entries(self) -> list[Measure]:
        """Every metric of every entry that a model measured: target, source, other suites, averages last; within an
        entry the one that leads first."""
        held: dict[tuple[str, str], list[Evaluation]] = {}
        for key, found in ((k, e) for m in self.measured.values() for k, e in m.evaluations.items() if k != CHOICE):
            held.setdefault(key, []).append(found)
        keys = sorted(held, key=lambda k: (any(e.kind == "average" for e in held[k]), group_rank(k[0])))
        return [m for key, title in zip(keys, names_of(keys), strict=True) for m in self._entry(key, title, held[key])]

    def _entry(self, key: tuple[str, str], title: str, held: Sequence[Evaluation]) -> list[Measure]:
        suite, name = key
        lead = held[0].primary
        found: dict[str, Metric] = {}
        for metric, value in (item for e in held for item in e.metrics.items()):
            found.setdefault(metric, value)
        clear = "/" not in title and suite in (*GROUPS, "average")  # the user's suite says more than an entry's name
        score = SCORE_TITLES.get(name, name if clear else f"{suite}: {name}").replace("_", " ")
        measures = []
        for metric in sorted(found, key=lambda n: n != lead):
            first = found[metric]
            both = metric in BOTH and lead in BOTH
            words = (group_title(suite), metric, first.unit if first.unit != metric.split(",")[0] else "")
            values = self._values(suite, name, metric)
            share = all(is_share(v.unit, metric, [v.value]) for v in values.values())
            measures.append(
                Measure(
                    title=title,
                    words=", ".join(dict.fromkeys(w for w in words if w)) + lower(first),
                    values=values,
                    suite=suite,
                    name=name,
                    score=f"{score}, {metric.partition(',')[2].partition('-')[0]}" if both else score,
                    unit="%" if share else first.unit,
                    higher_is_better=first.higher_is_better,
                    role=role_of(suite, name, first.unit, metric),
                    leads=metric == lead or both,
                )
            )
        return measures

    def _values(self, suite: str, name: str, key: str) -> dict[str, Metric]:
        """A metric of an entry by model, in whichever suite where `suite` is empty; "exact_match" stands for
        "exact_match,custom-extract" where there is no other of that name."""
        values = {}
        for model, measured in self.measured.items():
            found = measured.evaluations.get((suite, name)) if suite else measured.find("", name)
            if found is not None:
                wanted = key or found.primary
                same = [n for n in found.metrics if n.split(",")[0] == wanted]
                fitting = [wanted] if wanted in found.metrics else same
                if len(fitting) == 1:
                    values[model] = found.metrics[fitting[0]]
        return values

    @functools.cached_property
    def in_paper(self) -> bool:
        """Whether the models measured enough of the suite `instruction_residual` for its layout."""
        measured = {m.name for m in self.entries}
        return (
            len(measured & {r.entry for r in paper_004.rows()}) >= FEWEST_PAPER_ENTRIES or "sub_average_1" in measured
        )

    @functools.cached_property
    def paper_rows(self) -> list[Measure]:
        """The paper's sixteen figures, each average after the last that it is over."""
        found: list[Measure] = []
        for place, row in enumerate(paper_004.rows()):
            values, words = self._values("", row.entry, row.key), f"{row.metric}: {row.words}"
            score = SCORE_TITLES.get(row.entry, "")
            found.append(
                Measure(title=row.benchmark, words=words, values=values, name=row.entry, score=score, place=place)
            )
            ended = [name for name, part in AVERAGES.items() if part.stop == place + 1]
            found += [self._average(name, [m for m in found if not m.average][AVERAGES[name]]) for name in ended]
        return found

    def _average(self, name: str, members: Sequence[Measure]) -> Measure:
        """One of the paper's averages: as it was measured, else the mean of its members without an interval; none where
        a member is missing."""
        values = {}
        for model in self.measured:
            found = [m.values[model].value for m in members if model in m.values]
            if len(found) == len(members):
                mean = statistics.fmean(found)
                values[model] = Metric(value=mean, n=len(found), unit="share", higher_is_better=True)
        title, words, score, role = AVERAGE_WORDS[name]
        values |= self._values("average", name, "")
        return Measure(
            title=title, words=words, values=values, suite="average", name=name, score=score, role=role, place=name
        )

    @functools.cached_property
    def rows(self) -> list[Measure]:
        """What tables have: the paper's rows where its suite was measured, then everything else."""
        if not self.in_paper:
            return self.entries
        shown = {id(v) for row in self.paper_rows for v in row.values.values()}
        return self.paper_rows + [m for m in self.entries if not any(id(v) in shown for v in m.values.values())]

    @functools.cached_property
    def scores(self) -> list[Measure]:
        """What plots show: the paper's groups and average where its suite was measured, else averages and entries, or
        suites where they are many."""
        leading = [m for m in self.entries if m.leads]
        if self.in_paper:
            kept = [m for m in self.paper_rows if m.score and m.values]
            names = {m.name for m in kept}
            of_groups = {r.entry for n, p in AVERAGES.items() if n in names - {"average"} for r in paper_004.rows()[p]}
            shown = of_groups | {"truthfulqa_mc2"}
            others = [m for m in leading if m.name not in shown and not (m.average and m.name in AVERAGES)]
            return kept + others[:MOST_SCORES]
        if len(leading) <= MOST_SCORES:
            return leading
        own = [m for m in leading if not m.average]
        suites = [
            self._suite(s, [m for m in own if m.suite == s and m.share]) for s in dict.fromkeys(m.suite for m in own)
        ]
        texts = [m for m in own if not m.share]
        return [*(m for m in leading if m.average), *(s for s in suites if s is not None), *texts[:MOST_SCORES]]

    def _suite(self, suite: str, members: Sequence[Measure]) -> Measure | None:
        """The mean of a suite's shares; its interval takes entries as independent, for their samples are not the
        same."""
        members = [m for m in members if m.higher_is_better]
        if not members:
            return None
        values = {}
        for model in self.measured:
            found = [m.values[model] for m in members if model in m.values]
            if len(found) == len(members):
                value = statistics.fmean(f.value for f in found)
                ends = [f.interval for f in found if f.interval is not None]
                half = math.hypot(*((high - low) / 2 for low, high in ends)) / len(found)
                interval = (value - half, value + half) if len(ends) == len(found) else None
                n = sum(f.n for f in found)
                values[model] = dataclasses.replace(found[0], value=value, n=n, unit="share", interval=interval)
        title = f"mean of {len(members)} entries" if len(members) > 1 else members[0].name
        score = f"{group_title(suite)}: {title}"
        return Measure(title=score, score=score, values=values, suite=suite, role=role_of(suite, "", "share"))

    # ----------------------------------------------------------------------------------------------------------- tables

    @functools.cached_property
    def tables(self) -> list[FigureTable]:
        """Every table that the models make: pairs by what they were continued on, siblings, derived models."""
        found: dict[tuple[str, str], dict[tuple[str, str, str], dict[object, tuple[str, list[StudiedModel]]]]] = {}
        for m in self.models:
            made = (m.start, m.residual, m.scale, m.budget, m.continued, m.restored, m.width)
            for table, block, header in self._places(m):
                found.setdefault(table, {}).setdefault(block, {}).setdefault(made, (header, []))[1].append(m)
        return [
            FigureTable(
                kind=kind,
                title=title,
                blocks=tuple(self._columns(*b, found[kind, title][b].values()) for b in found[kind, title]),
            )
            for kind, title in sorted(found, key=lambda table: KINDS.index(table[0]))
        ]

    def _places(self, model: StudiedModel) -> Iterator[tuple[tuple[str, str], tuple[str, str, str], str]]:
        """(table, block, header of the column) of every place where a model stands: tables by kind and title, blocks by
        kind, family and title."""
        start, family, residual, several = model.start, model.family, model.residual, len(self.families) > 1
        own = [m for m in self.models if m.family == family]
        given = next((start if m.width else shown_name(m) for m in own if m.given and m.start == start), "")
        amount = f"+{count(asked(model))}" if asked(model) > 0 else "+ new text"
        tokens = amount if model.continued else "original"
        added = f"+ {scaled(model)}{f'{residual} ' if several and residual else ''}residual"
        if model.width != self.width:
            yield ("widths", "Other widths"), ("width", str(model.width), f"Width {model.width}"), made_briefly(model)
            return
        continued = "continued", f"{family}: continued on new text" if several and family else "Continued on new text"
        foreign = [m for m in own if m.start == BASE and m.residual not in (None, family)]
        if model.tuned:
            yield continued, ("tuning", family, "Base + tuning"), tokens
        elif model.distilled or model.self_distilled:
            yield continued, (model.restored, family, f"Instruct + {model.restored}"), tokens
        elif start == DERIVED:
            yield ("derived", "Derived models"), (DERIVED, family, given), tokens if residual is None else added
        elif residual == family:
            yield continued, ("residual", family, f"Base + {scaled(model)}residual"), tokens
        elif residual is None and not (foreign and all(m.given or m in foreign for m in own)):
            name = f": {given}" if given.lower() not in ("", start) else ""
            yield continued, (start, family, f"{start.capitalize()}{name}"), tokens
        if model in foreign or (model.given and foreign and start != DERIVED):
            siblings = ("siblings", family, family or "Base")
            yield ("siblings", "Residuals of siblings"), siblings, added if model in foreign else start

    def _columns(self, kind: str, family: str, title: str, groups: Iterable[tuple[str, list[StudiedModel]]]) -> Columns:
        """Models by new tokens, those that differ in their seed alone together."""
        made = [Group(members=tuple(m), header=header, paper=self._paper_column(m[0])) for header, m in groups]
        made.sort(key=lambda g: (g.model.residual is not None, g.model.continued, asked(g.model)))
        return Columns(kind=kind, family=family, title=title, groups=tuple(made))

    def _paper_column(self, model: StudiedModel) -> PaperColumn | None:
        """What the paper prints of a model made like this one: same start (by name), new tokens and residual at scale
        1."""
        start, residual = self.paper_names.get((model.start, model.family), ""), None
        if model.residual is not None:
            # The difference is taken between a pair: both have to be the paper's.
            residual, parent = (self.paper_names.get((s, model.residual), "") for s in (INSTRUCT, BASE))
            if not residual or residual[:-1] != parent[:-1] or model.scale not in (None, 1):
                return None
        return paper_004.find_column(start, asked(model), residual) if start else None

    @functools.cached_property
    def paper_names(self) -> dict[tuple[str, str], str]:
        """The paper's names of bases, instruct and derived models, by start and pair."""
        found = {}
        for m in (m for m in self.models if m.given):
            measured = [str(e.model.get("name") or "") for e in self.measured[m.name].evaluations.values()][:1]
            names = (paper_004.recognise(name) for name in (m.path, *measured, m.label))
            found[m.start, m.family] = next((name for name in names if name), "")
        return found

    # -------------------------------------------------------------------------------------------------- costs and pairs

    def target_of(self, model: StudiedModel) -> StudiedModel:
        """What a model's residual was put on: the model of the same start, training and seed without one."""

        def key(m: StudiedModel) -> tuple[object, ...]:
            return m.start, m.family, m.budget, m.continued, m.seed, m.width

        return next(m for m in self.models if not m.restored and key(m) == key(model))

    def spent(self) -> tuple[float, float]:
        """FLOPs and seconds of all complete models, each training counted once: a model with a residual, or tuned once
        more, has those of what that was done to in its own."""
        flops = seconds = 0.0
        for m in (m for m in self.models if m.state == "complete"):
            flops, seconds = flops + m.flops, seconds + m.seconds
            below = self.target_of(m) if m.restored else m
            if below is not m and below.state == "complete":
                flops, seconds = flops - min(m.flops, below.flops), seconds - min(m.seconds, below.seconds)
        return flops, seconds

    def against_instruct(self, *, continued: bool) -> ModelPair | None:
        """The comparison of an update's result with its instruct model, as given or continued; None: none."""
        others = {m.name for m in self.models if (m.start, m.residual, m.continued) == (INSTRUCT, None, continued)}
        held = (p for p in self.record.pairs if p.after == self.record.result and p.before in others)
        return next(held, None)


# ------------------------------------------------------------------------------------------------------------ functions


def over_seeds(metrics: Sequence[Metric]) -> Metric | None:
    """The mean over seeds with the interval of the module's head; one alone as it is, None for none."""
    if len(metrics) < 2:
        return metrics[0] if metrics else None
    values = [m.value for m in metrics]
    mean = statistics.fmean(values)
    intervals = [m.interval for m in metrics if m.interval is not None]
    interval = None
    if len(intervals) == len(metrics) and all(math.isfinite(v) for v in values):
        samples = statistics.fmean((high - low) / 2 for low, high in intervals)
        half = math.hypot(t_half_width(values, confidence=metrics[0].confidence), samples)
        interval = (mean - half, mean + half)
    return dataclasses.replace(metrics[0], value=mean, interval=interval)


def role_of(suite: str, name: str, unit: str = "", metric: str = "") -> str:
    """What an entry says something about: "new" text, "instruction" following, or what is to be "kept". The record has
    no place for it.

    Words of suite and name decide, and metrics of IFEval's kind. Text in the suite "target", what is to be learnt, is
    new text. Of averages the paper's first is instruction following (its figure 1a).
    """
    if suite == "average":
        return "instruction" if name == "sub_average_1" else "kept"
    words = set(re.split(r"[^a-z0-9]+", f"{suite} {name}".lower()))
    if words & INSTRUCTION_WORDS or metric.startswith(INSTRUCTION_METRICS):
        return "instruction"
    return "new" if words & NEW_WORDS or (suite == "target" and "/" in unit) else "kept"


def by_role(pair: ModelPair, role: str) -> list[Comparison]:
    """The comparisons of one role that lead; an average in place of its members where it is there."""
    held = [
        c
        for c in pair.comparisons
        if (c.suite, c.name) != CHOICE and role_of(c.suite, c.name, c.unit, c.metric) == role
    ]
    averages = [c for c in held if c.suite == "average"]
    if role == "instruction" and averages:
        return averages
    entries = [c for c in held if c.suite != "average"]
    return [c for c in entries if c.primary] or entries


def asked(model: StudiedModel) -> int:
    """New tokens that were asked for, else those that were counted."""
    return model.tokens if model.budget is None else model.budget


def scaled(model: StudiedModel) -> str:
    """ "0.8 × " before a residual, "" for scale 1 or none."""
    return "" if model.scale in (None, 1) else f"{significant(model.scale)} × "


def made_briefly(model: StudiedModel) -> str:
    """A model among those of its width: "base", "instruct + 100 k", "base + 100 k + residual"."""
    amount = f" + {count(asked(model))}" if model.continued and asked(model) > 0 else ""
    return f"{model.start}{amount}" + (f" + {scaled(model)}{model.restored}" if model.restored else "")


def shown_name(model: StudiedModel) -> str:
    """What a given model is called by people: the last part of its folder, or its name on the hub."""
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)", model.path)
    return f"{cached[1]}/{cached[2]}" if cached else last_part(model.path) or model.label or model.name


def lower(of: Metric | Measure) -> str:
    """What is put behind a unit where less is better."""
    return "" if of.higher_is_better else ", lower is better"
