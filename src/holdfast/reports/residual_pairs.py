"""The pairs of a study of the residual, by what they answer: a row a pair of models, a column a measure, the mean over
training seeds in each cell.

A study has a pair for every budget, seed and question, easily hundreds; which of them belong together is what a reader
wants to see first. What each seed showed is folded below.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from holdfast.records.comparison import Comparison
from holdfast.records.residual import Pair, ResidualRecord
from holdfast.records.study import Objective
from holdfast.reports.evaluation_charts import point_digits, points, share_compared
from holdfast.reports.figures import Row, decimals_for, group_rank, interval_text, number, plural, row
from holdfast.reports.legacy_comparison import difference_note, measures_table
from holdfast.reports.markup import Html, join, tag
from holdfast.reports.page import Page, bullets, fold
from holdfast.reports.residual_figures import label_of
from holdfast.statistics.gains import Gain, gain_over_seeds

_SEED = re.compile(r", seed \d+")
Entry = tuple[str, str, str]
"""(suite, name, metric)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairGroup:
    """The same two models over training seeds."""

    question: str
    before: str
    """Label without the seed."""
    after: str
    pairs: dict[int, Pair]
    """By the seed of the later model."""

    def gain(self, entry: Entry) -> Gain | None:
        """The mean over seeds with its interval; None where a seed has no such figure."""
        first = next((c for p in self.pairs.values() for c in p.comparisons if _entry(c) == entry), None)
        if first is None:
            return None
        objective = Objective(
            side="target", entries=[entry], label=entry[1], unit=first.unit, higher_is_better=first.higher_is_better
        )
        return gain_over_seeds({seed: pair.comparisons for seed, pair in self.pairs.items()}, objective)


def pair_rows(pair: Pair) -> list[Row]:
    """What was compared, as text: by suite, leading metrics first."""
    return [row(c) for c in sorted(pair.comparisons, key=lambda c: (group_rank(c.suite), not c.primary))]


def pair_groups(record: ResidualRecord) -> list[PairGroup]:
    """The pairs of a study, those that differ in the training seed alone together, in the order of the record."""
    seeds = {m.name: m.seed for m in record.models}
    found: dict[tuple[str, str, str], dict[int, Pair]] = {}
    for pair in record.pairs:
        before, after = (_SEED.sub("", label_of(record, name)) for name in (pair.before, pair.after))
        found.setdefault((pair.question, before, after), {})[seeds.get(pair.after, 0)] = pair
    return [
        PairGroup(question=q, before=before, after=after, pairs=pairs) for (q, before, after), pairs in found.items()
    ]


def study_pairs(page: Page, record: ResidualRecord) -> None:
    """The section of a study's pairs: a table a question."""
    groups = pair_groups(record)
    known = [g for g in groups if any(p.comparisons for p in g.pairs.values())]
    empty = [f"{g.question} ({g.before} \u2192 {g.after}): nothing was compared." for g in groups if g not in known]
    if not groups:
        return
    parts: list[Html] = []
    for question in dict.fromkeys(g.question for g in known):
        asked = [g for g in known if g.question == question]
        each = [
            tag("div", tag("h4", _title(record, p)), tag("div", measures_table(pair_rows(p)), cls="dense compared"))
            for p in _pairs(asked)
        ]
        parts += [
            tag("h3", question),
            tag("div", _table(asked), cls="panel figures"),
            fold(f"{plural(len(each), 'pair')} one by one, with all metrics", tag("div", *each, cls="stacked")),
        ]
    if empty:
        parts.append(tag("div", bullets(empty), cls="card"))
    rows = [r for g in known for p in g.pairs.values() for r in pair_rows(p)]
    notes = [tag("p", _NOTE, cls="note"), difference_note(rows)] if rows else []
    page.section("Compared pairs", tag("div", *parts, *notes, cls="stacked pairs"), anchor="pairs")


_NOTE = (
    "In the tables: after \u2212 before of the metric that leads an entry, the mean over training seeds, with its 95 "
    "% interval over seeds and"
    " evaluated samples (over samples alone where there is one seed). Green: better, red: worse, with the whole "
    "interval."
)


def _pairs(groups: Sequence[PairGroup]) -> list[Pair]:
    return [p for g in groups for p in g.pairs.values() if p.comparisons]


def _title(record: ResidualRecord, pair: Pair) -> str:
    return f"{label_of(record, pair.before)} \u2192 {label_of(record, pair.after)}"


def _table(groups: Sequence[PairGroup]) -> Html:
    leading: dict[Entry, Comparison] = {}
    for c in (c for p in _pairs(groups) for c in p.comparisons if c.primary):
        leading.setdefault(_entry(c), c)
    entries = sorted(leading, key=lambda e: group_rank(e[0]))
    heads = []
    for entry in entries:
        c = leading[entry]
        unit = "points" if share_compared(c) else c.unit
        arrow = "higher is better" if c.higher_is_better else "lower is better"
        heads.append(
            tag(
                "th",
                entry[1].replace("_", "_\u200b"),
                tag("span", f"{unit}; {arrow}", cls="sub"),
                scope="col",
                cls="num",
            )
        )
    body = []
    for g in groups:
        seeds = f"{plural(len(g.pairs), 'seed')}; " if len(g.pairs) > 1 else ""
        name = tag("th", g.after, tag("span", f"{seeds}against {g.before}", cls="sub"), scope="row")
        body.append(tag("tr", name, *(_cell(g.gain(e), leading[e]) for e in entries)))
    table = tag("table", tag("thead", tag("tr", tag("th", "Model", scope="col"), *heads)), tag("tbody", *body))
    return tag("div", table, cls="scroll", tabindex="0")


def _cell(gain: Gain | None, like: Comparison) -> Html:
    if gain is None:
        return tag("td", "", cls="num")
    sign = 1.0 if gain.higher_is_better else -1.0
    low, high = sorted(sign * v for v in gain.interval) if gain.interval is not None else (float("nan"), float("nan"))
    tone = "" if gain.interval is None else "good" if gain.interval[0] > 0 else "bad" if gain.interval[1] < 0 else ""
    if share_compared(like):
        digits = point_digits((low, high))
        value, interval = points(sign * gain.value, digits), interval_text((100 * low, 100 * high), digits, sign=True)
    else:
        digits = decimals_for((low, high))
        value, interval = number(sign * gain.value, digits, sign=True), interval_text((low, high), digits, sign=True)
    return tag("td", join(tag("span", value, cls=f"tone {tone}".rstrip()), tag("span", interval, cls="sub")), cls="num")


def _entry(c: Comparison) -> Entry:
    return c.suite, c.name, c.metric
