"""What the plots and the first lines of an update's page lead with: scores, what an entry says something about, and the
pairs of an update.

A score is one figure of every model. Where the models measured the suite `instruction_residual`, scores are the paper's
(004) three groups, the panels of its figure 1, and its average; otherwise every entry is one, or every suite where
there are many entries.

What an entry says something about, its role, is read off its suite's, its own and its metric's name (`role_of`): the
record has no place for it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Sequence

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Metric
from holdfast.records.metrics import is_share
from holdfast.records.residual import Pair, ResidualRecord, StudiedModel
from holdfast.reports.compared import GROUPS, group_title
from holdfast.reports.format import with_interval
from holdfast.reports.paper_004 import PaperColumn
from holdfast.reports.residual_figures import (
    AVERAGES,
    CHOICE,
    PARTS,
    Key,
    Studied,
    entries_of,
    in_papers_layout,
    is_average,
    paper_average,
    picker,
    trained,
)

SCORE_TITLES = {
    "sub_average_1": "Instruction following",
    "sub_average_2": "Reasoning",
    "truthfulqa_mc2": "Truthfulness",
    "average": "Average",
}
"""What figure 1 of the paper calls its panels, and the average."""

MOST_SCORES = 9
"""Entries that are drawn one by one; with more of them a suite is one score."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """One figure that plots lead with: an entry's, an average, or the mean of a suite's shares."""

    title: str
    unit: str
    """"%" for shares, which are drawn in percent."""
    higher_is_better: bool
    pick: Callable[[Studied], Metric | None]
    role: str = "kept"
    """"new", "instruction" or "kept", see `role_of`."""
    paper: Callable[[PaperColumn], float | None] = lambda _: None

    @property
    def share(self) -> bool:
        return self.unit == "%"


def figure_text(metric: Metric, score: Score) -> tuple[str, str]:
    """A score's value with its unit, and its interval."""
    return with_interval(metric.value, metric.interval, share=score.share, unit=score.unit)


def scores_of(models: Sequence[Studied]) -> list[Score]:
    """What plots show: the paper's groups and average where its suite was measured, else averages and entries, or
    suites where they are many."""
    if in_papers_layout(models):
        found = [
            Score(
                title=SCORE_TITLES[name],
                unit="%",
                higher_is_better=True,
                pick=_averager(name),
                paper=_printed(name),
                role="instruction" if name == "sub_average_1" else "kept",
            )
            for name in ("sub_average_1", "sub_average_2")
        ]
        found.append(
            Score(
                title=SCORE_TITLES["truthfulqa_mc2"],
                unit="%",
                higher_is_better=True,
                pick=lambda m: m.metric("truthfulqa_mc2", "acc"),
                paper=lambda column: column.values[-1],
            )
        )
        found.append(
            Score(
                title="Average", unit="%", higher_is_better=True, pick=_averager("average"), paper=_printed("average")
            )
        )
        kept = [s for s in found if any(s.pick(m) is not None for m in models)]
        parts = {name: PARTS[name] for name in ("sub_average_1", "sub_average_2")}
        shown = {
            row.entry for name, rows in parts.items() for row in rows if SCORE_TITLES[name] in {s.title for s in kept}
        } | {"truthfulqa_mc2"}
        others = [
            key
            for key in entries_of(models)
            if key[1] not in shown and not (key[0] == "average" and key[1] in AVERAGES)
        ]
        return kept + [s for key in others[:MOST_SCORES] if (s := _entry_score(models, key)) is not None]
    keys = entries_of(models)
    if len(keys) <= MOST_SCORES:
        return [s for key in keys if (s := _entry_score(models, key)) is not None]
    averages = [s for key in keys if is_average(models, key) and (s := _entry_score(models, key)) is not None]
    suites = [
        s
        for suite in dict.fromkeys(s for s, _ in keys)
        if suite != "average" and (s := _suite_score(models, suite, keys)) is not None
    ]
    texts = [
        s
        for key in keys
        if not is_average(models, key) and (s := _entry_score(models, key)) is not None and not s.share
    ]
    return [*averages, *suites, *texts[:MOST_SCORES]]


def _averager(name: str) -> Callable[[Studied], Metric | None]:
    return lambda m: paper_average(m, name)


def _printed(name: str) -> Callable[[PaperColumn], float | None]:
    return lambda column: getattr(column, name) if getattr(column, name) is not None else _recomputed(column, name)


def _recomputed(column: PaperColumn, name: str) -> float:
    return column.recomputed()[AVERAGES.index(name)]


def _entry_score(models: Sequence[Studied], key: Key) -> Score | None:
    suite, name = key
    names = [n for _, n in entries_of(models)]
    held = [m.measured.evaluations[key] for m in models if key in m.measured.evaluations]
    lead = held[0].primary
    metrics = [e.metrics[lead] for e in held if lead in e.metrics]
    share = all(is_share(metric.unit, lead, [metric.value]) for metric in metrics)
    own = suite not in (*GROUPS, "average")  # a suite of the user's says more than the name of one of its entries
    title = SCORE_TITLES.get(name, name if names.count(name) == 1 and not own else f"{suite}: {name}")
    return Score(
        title=title.replace("_", " "),
        unit="%" if share else metrics[0].unit,
        higher_is_better=metrics[0].higher_is_better,
        pick=picker(suite, name, lead),
        role=role_of(suite, name, metrics[0].unit, lead),
    )


def score_named(models: Sequence[Studied], entry: str) -> Score | None:
    """The score of one entry by its name, in whichever suite; None where no model measured it."""
    return next((_entry_score(models, key) for key in entries_of(models) if key[1] == entry), None)


def _suite_score(models: Sequence[Studied], suite: str, keys: Sequence[Key]) -> Score | None:
    """The mean of a suite's shares; its interval takes entries as independent, for their samples are not the same."""
    leads = []
    for key in keys:
        held = [m.measured.evaluations[key] for m in models if key in m.measured.evaluations]
        share = all(
            is_share(metric.unit, e.primary, [metric.value]) and metric.higher_is_better
            for e in held
            for metric in [e.metrics[e.primary]]
        )
        if key[0] == suite and not is_average(models, key) and share:
            leads.append((key[1], held[0].primary))
    if not leads:
        return None

    def pick(m: Studied) -> Metric | None:
        found = [metric for name, lead in leads if (metric := m.metric(name, lead, suite=suite)) is not None]
        if len(found) < len(leads):
            return None
        value, intervals = (
            statistics.fmean(f.value for f in found),
            [f.interval for f in found if f.interval is not None],
        )
        half = math.sqrt(sum(((high - low) / 2) ** 2 for low, high in intervals)) / len(found)
        interval = (value - half, value + half) if len(intervals) == len(found) else None
        return dataclasses.replace(found[0], value=value, n=sum(f.n for f in found), unit="share", interval=interval)

    title = (
        f"{group_title(suite)}: mean of {len(leads)} entries"
        if len(leads) > 1
        else f"{group_title(suite)}: {leads[0][0]}"
    )
    return Score(title=title, unit="%", higher_is_better=True, pick=pick, role=role_of(suite, "", "share"))


NEW_WORDS = {"new", "news", "fresh", "recent", "update", "updated"}
INSTRUCTION_WORDS = {"ifeval", "instruction", "instructions", "following"}
INSTRUCTION_METRICS = ("inst_level_", "prompt_level_")
"""How metrics of IFEval's kind begin."""


def role_of(suite: str, name: str, unit: str = "", metric: str = "") -> str:
    """What an entry says something about: "new" text, "instruction" following, or what is to be "kept".

    Words of suite and name decide, and metrics of IFEval's kind. Text in the suite "target", what is to be learnt, is
    new text. Of averages the paper's first is instruction following (its figure 1a).
    """
    if suite == "average":
        return "instruction" if name == "sub_average_1" else "kept"
    words = set(re.split(r"[^a-z0-9]+", f"{suite} {name}".lower()))
    if words & INSTRUCTION_WORDS or metric.startswith(INSTRUCTION_METRICS):
        return "instruction"
    if words & NEW_WORDS:
        return "new"
    return "new" if suite == "target" and "/" in unit else "kept"


# ---------------------------------------------------------------------------------------------------------------- pairs


def pair_of(record: ResidualRecord, start: str, *, continued: bool) -> tuple[Pair, StudiedModel] | None:
    """The comparison of an update's result with the model that it is held against: its pair's base or instruct, as
    given or continued; None: none."""
    result = next((m for m in record.models if m.name == record.result), None)
    if result is None:
        return None
    by_name = {m.name: m for m in record.models}
    for pair in record.pairs:
        other = by_name.get(pair.before)
        if pair.after != record.result or other is None or not pair.comparisons:
            continue
        if (
            other.start == start
            and other.family == result.family
            and other.residual is None
            and trained(other) == continued
        ):
            return pair, other
    return None


def by_role(pair: Pair, role: str) -> list[Comparison]:
    """The comparisons of one role that lead; an average in place of its members where it is there."""
    held = [
        c
        for c in pair.comparisons
        if (c.suite, c.name) != CHOICE and role_of(c.suite, c.name, c.unit, c.metric) == role
    ]
    averages = [c for c in held if c.suite == "average" and (role != "instruction" or c.name == "sub_average_1")]
    if role == "instruction" and averages:
        return averages
    return [c for c in held if c.primary and c.suite != "average"] or [c for c in held if c.suite != "average"]
