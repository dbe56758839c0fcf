"""Paired comparisons as every page and the terminal show them: rows, tables, forests of gains, and
what changed in one sentence.

A *gain* is a difference with its sign turned so that more is better. Tests, bootstraps and verdicts
lie in the records (`Comparison`); nothing is measured here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.records.comparison import (
    GAINED,
    LOST,
    NOT_FINITE,
    NOT_SHOWN,
    VERDICTS,
    Comparison,
    Decision,
)
from holdfast.records.figure import Figure, Interval
from holdfast.records.measure import Measure, decimals_for, number, point_digits
from holdfast.records.metrics import RESTATED, is_share
from holdfast.reports.blocks import Paragraph, Span, Table, Text, Tile, chip, figure, present, sub
from holdfast.reports.charts import (
    AS_IT_IS,
    Axis,
    Chart,
    Col,
    Mark,
    Note,
    Value,
    fold,
    heads,
    tabulate,
)
from holdfast.reports.decision_text import decision_in_words
from holdfast.reports.format import direction, p_value, tally
from holdfast.reports.measured import names_of

GROUPS = ("learn", "keep")
"""Suites in the order of reading: what was to be learnt, then what was to be kept. Suites of the
user's own follow."""
PURPOSE = dict(
    zip(GROUPS, ("what the model should learn", "what the model should keep"), strict=True)
)
TONES = {GAINED: "good", LOST: "bad", NOT_FINITE: "bad"}
_MOST_LISTED = 3
"""Entries that the summary names of a kind."""
MOST_NAMED = 2
"""Measures of a suite that a headline names one by one."""
COMPACT_FROM = 15
"""Comparisons from which on each takes one text line of a forest."""


def group_title(suite: str) -> str:
    return suite[:1].upper() + suite[1:] if suite in GROUPS else suite


def entry_title(suite: str, name: str) -> str:
    """`Target: answers`; a name that begins with the word of its suite stands alone."""
    repeats_suite = re.match(rf"{re.escape(suite)}(?![^\W_])", name, re.IGNORECASE)
    return name if repeats_suite else f"{group_title(suite)}: {name}"


def group_rank(suite: str) -> tuple[int, str]:
    return (GROUPS.index(suite) if suite in GROUPS else len(GROUPS), suite)


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """One comparison, every figure of it as text."""

    raw: Comparison

    @property
    def name(self) -> str:
        return self.raw.name

    @property
    def unit(self) -> str:
        return self.raw.unit

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return self.raw.verdict

    @property
    def tone(self) -> str:
        return TONES.get(self.verdict, "flat")

    @property
    def label(self) -> str:
        return entry_title(self.raw.suite, self.name)

    @property
    def share(self) -> bool:
        """True where both figures are shares, so that their difference is in points."""
        c = self.raw
        return c.higher_is_better and (
            c.flips_lost is not None or is_share(c.unit, c.metric, (c.before, c.after))
        )

    @property
    def measure(self) -> Measure:
        """How its figures read."""
        return Measure(unit=self.unit, share=self.share, higher_is_better=self.raw.higher_is_better)

    @property
    def before(self) -> str:
        return number(self.raw.before, decimals_for(self.raw.interval))

    @property
    def after(self) -> str:
        return number(self.raw.after, decimals_for(self.raw.interval))

    @property
    def paired_difference(self) -> Figure:
        """After minus before, with its interval."""
        return Figure(value=self.raw.difference, over_samples=self.raw.interval)

    @property
    def difference(self) -> str:
        """After minus before, signed, in the metric's own unit."""
        return AS_IT_IS.texts(self.paired_difference, sign=True)[0]

    @property
    def interval(self) -> str:
        return AS_IT_IS.texts(self.paired_difference, sign=True)[1]

    @property
    def p(self) -> str:
        return p_value(self.raw.p_value)

    @property
    def n(self) -> str:
        return f"{self.raw.n:,}"

    @property
    def adjusted(self) -> str:
        """The adjusted one-sided p-value of a loss; empty where there is none."""
        return "" if self.raw.p_adjusted is None else p_value(self.raw.p_adjusted)

    @property
    def power(self) -> str:
        """`a loss of 1.8 pt would have been seen with 80 %; about 2,400 samples would decide`,
        where nothing is shown; that both models guess, where they do; else empty."""
        is_changed = self.verdict in (LOST, GAINED)
        if len(self.raw.at_chance) == 2 and self.raw.chance is not None and not is_changed:
            chance = f"{100 * self.raw.chance:.3g} %"
            return f"both models are at chance level ({chance}): more samples do not help"
        if self.raw.detectable is None:
            return ""
        visible = (
            f"a loss of {self.in_unit(self.raw.detectable)} would have been detected with 80 % "
            "probability"
        )
        needed = self.raw.needed_about
        if needed is None:
            return visible
        return (
            f"{visible}; about {needed:,} samples would detect a loss of "
            f"{self.in_unit(self.raw.tolerated)}"
        )

    def in_unit(self, value: float) -> str:
        """A size of a change with two digits: in points for shares, else in the metric's unit."""
        size = self.measure.factor * value
        text = f"{size:.2g}" if size < 100 else f"{size:,.0f}"
        return f"{text} {'pt' if self.share else self.unit}".rstrip()

    @property
    def flips(self) -> str:
        """ "12 lost, 20 gained" for right / wrong metrics, else empty."""
        lost, gained = self.raw.flips_lost, self.raw.flips_gained
        return (
            "" if lost is None and gained is None else f"{lost or 0:,} lost, {gained or 0:,} gained"
        )

    @property
    def gain_interval(self) -> Interval:
        """The interval of the gain: the difference's, turned where lower is better."""
        low, high = self.raw.interval
        return (low, high) if self.raw.higher_is_better else (-high, -low)

    def change(self) -> tuple[str, str]:
        """(difference, its interval): in points for shares, else in the metric's unit."""
        return self.measure.texts(self.paired_difference, sign=True)

    def levels(self) -> str:
        """`41.8 → 40.9 %`, or in the metric's own unit."""
        interval, factor = self.raw.interval, self.measure.factor
        digits = point_digits(interval) if self.share else decimals_for(interval)
        before, after = (
            number(factor * value, digits) for value in (self.raw.before, self.raw.after)
        )
        return f"{before} → {after} {'%' if self.share else self.unit}".rstrip()


Rows = Sequence[ComparisonRow]


def ordered(comparisons: Iterable[Comparison]) -> list[ComparisonRow]:
    """Learn, keep, then other suites; within a suite primary metrics first, otherwise as
    recorded."""
    return list(
        map(ComparisonRow, sorted(comparisons, key=lambda c: (group_rank(c.suite), not c.primary)))
    )


def primary_of(rows: Rows) -> list[ComparisonRow]:
    """The rows that lead; all where none does."""
    return [r for r in rows if r.raw.primary] or list(rows)


def without_means(rows: Rows) -> list[ComparisonRow]:
    """The rows that a sentence counts: without means of entries, since their entries are counted
    themselves; all where there is nothing else."""
    return [r for r in rows if r.raw.suite != "average"] or list(rows)


def by_suite(rows: Rows) -> dict[str, list[ComparisonRow]]:
    """The rows of each suite, in the order of the rows."""
    suites: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        suites.setdefault(row.raw.suite, []).append(row)
    return suites


def one_unit(rows: Rows) -> tuple[list[ComparisonRow], list[ComparisonRow]]:
    """(rows of one unit an entry, those that say the same in another unit)."""
    keys = {(r.raw.suite, r.name, r.raw.metric) for r in rows}
    again = [r for r in rows if (r.raw.suite, r.name, RESTATED.get(r.raw.metric)) in keys]
    return [r for r in rows if r not in again], again


def short_names(rows: Rows) -> list[str]:
    """A name a row: the entry's, with its suite where two entries share it and its metric where one
    entry has several."""
    names = names_of([(row.raw.suite, row.name) for row in rows])
    short = []
    for row, name in zip(rows, names, strict=True):
        short.append(name if names.count(name) == 1 else f"{name} {row.raw.metric}")
    return short


# ---------------------------------------------------------------------------------------- sentences


def headline(comparisons: Sequence[Comparison]) -> str:
    """What changed, suite by suite, in one sentence with its sizes: `Target: code −0.56 nats/token
    [−0.60, −0.52] (gained); keep: prose +0.27 [+0.22, +0.31] (lost).` Of a suite of many measures
    the verdicts are counted, and the largest change of the kind that matters is named. A unit
    stands where it changes."""
    suites = by_suite(primary_of(list(map(ComparisonRow, comparisons))))
    parts: list[str] = []
    unit = ""
    for suite in sorted(suites, key=group_rank):
        rows = suites[suite]
        many = len(rows) > MOST_NAMED
        sizes = []
        for row, name in (
            _largest(rows, GAINED if suite == "learn" else LOST) if many else _named(rows)
        ):
            sizes.append(_size(name, row, unit) + ("" if many else f" ({row.verdict})"))
            unit = unit if row.verdict == NOT_FINITE else "pt" if row.share else row.unit
        text = ", ".join(sizes)
        if many:
            most = f" (most: {text})" if text else ""
            text = f"{verdicts_of(rows)} of {len(rows)} measures{most}"
        title = group_title(suite)
        parts.append(f"{title.lower() if parts and suite in GROUPS else title}: {text}")
    return f"{'; '.join(parts)}." if parts else "Nothing was compared."


def summary(comparisons: Sequence[Comparison]) -> str:
    """What became of everything, for who reads one line: `Worse on 1 of 3: prose, by 9 %. Better on
    1: code, by 12 %. arc: both models answer by chance.`"""
    rows = without_means(primary_of(list(map(ComparisonRow, comparisons))))
    if not rows:
        return "Nothing was compared."
    names = dict(zip(map(id, rows), short_names(rows), strict=True))
    guessed, lost, gained, failed, open_ = [], [], [], [], []
    for row in rows:
        name = names[id(row)]
        if row.verdict == NOT_FINITE:
            failed.append(name)
        elif row.verdict == LOST:
            lost.append(f"{name}, by {_by(row)}")
        elif row.verdict == GAINED:
            gained.append(f"{name}, by {_by(row)}")
        elif len(row.raw.at_chance) == 2:
            guessed.append(name)
        elif row.verdict == NOT_SHOWN:
            open_.append(name)
    sentences = [f"Worse on {len(lost) or 'none'} of {len(rows)}{_listed(lost, '; ')}."]
    if gained:
        sentences.append(f"Better on {len(gained)}{_listed(gained, '; ')}.")
    if failed:
        sentences.append(f"NaN or infinity in {len(failed)}{_listed(failed)}.")
    if guessed:
        sentences.append(f"Both models are at chance level on {len(guessed)}{_listed(guessed)}.")
    if open_:
        sentences.append(f"Undecided on {len(open_)}{_listed(open_)}.")
    return " ".join(sentences)


def _listed(names: Sequence[str], between: str = ", ") -> str:
    """`: a, b and 3 more`."""
    if not names:
        return ""
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f": {between.join(names[:_MOST_LISTED])}{more}"


def _by(row: ComparisonRow) -> str:
    """The size of a change: in points of a share, else in percent of the value before."""
    gain, before = abs(row.raw.gain), abs(row.raw.before)
    if row.share:
        return row.in_unit(gain)
    if not before:
        return row.in_unit(gain)
    percent = 100 * gain / before
    return f"{percent:.2g} %" if percent < 100 else f"{percent:,.0f} %"


def verdicts_of(rows: Rows) -> str:
    """`2 lost, 1 not shown`."""
    return tally([row.verdict for row in rows])


def _named(rows: Rows) -> list[tuple[ComparisonRow, str]]:
    return list(zip(rows, short_names(rows), strict=True))


def _size(name: str, row: ComparisonRow, unit: str) -> str:
    """`prose +0.27 nats/token [+0.22, +0.31]`, without a unit that was said just before."""
    if row.verdict == NOT_FINITE:
        return name
    measure = row.measure if row.unit != unit else Measure(share=row.share)
    return f"{name} {measure.text(row.paired_difference, sign=True)}"


def _largest(rows: Rows, verdict: str) -> list[tuple[ComparisonRow, str]]:
    """Of rows with their names the one with the largest change of those with a verdict: shares
    before others, since they are what the rest is compared with. Nothing where none has it."""
    candidates = [pair for pair in _named(rows) if pair[0].verdict == verdict]
    return sorted(candidates, key=_weight, reverse=True)[:1]


def _weight(pair: tuple[ComparisonRow, str]) -> tuple[bool, float]:
    """Of a change among others: of a share its size, else its size in parts of the value before."""
    comparison, share = pair[0].raw, pair[0].share
    return share, abs(
        comparison.gain if share else comparison.gain / (comparison.before or math.inf)
    )


def difference_note(rows: Rows) -> Paragraph:
    """What difference, interval and verdict mean, below the tables."""
    return Paragraph(
        f"{difference_words(rows)} Flips: samples that were right before and wrong after, and the "
        "reverse. The intervals do not cover variation between training runs.",
        "note",
    )


def difference_words(rows: Rows) -> str:
    """What differences and verdicts are."""
    return (
        f"Difference: after − before, with its paired {100 * rows[0].raw.confidence:g} % interval "
        "over the evaluated samples. Gained or lost: the interval excludes zero, and the p value "
        "of the same test is below the significance level. Within the margin: every change in the "
        "interval is too small to matter. Kept: the interval rules out a loss larger than the "
        "margin. Not shown: none of these."
    )


def decision_note(decision: Decision | None) -> Paragraph | None:
    """What all tests say together."""
    if decision is None:
        return None
    return Paragraph(Span(decision_in_words(decision), "strong"), "bad" if decision.shown else "")


def suite_tile(rows: Rows) -> Tile:
    """What became of the only measure of a suite, or how many of its measures went the way that
    matters for it."""
    if len(rows) == 1:
        [row] = rows
        change = row.change()[0] if row.share else row.difference
        return Tile(row.label, change, f"{row.verdict} ({row.levels()})", row.tone)
    suite, verdicts = rows[0].raw.suite, [row.verdict for row in rows]
    looked_for = GAINED if suite == "learn" else LOST
    tone = "bad" if NOT_FINITE in verdicts else TONES[looked_for] if looked_for in verdicts else ""
    rest = tally(verdicts, [verdict for verdict in VERDICTS if verdict != looked_for])
    return Tile(
        group_title(suite),
        f"{verdicts.count(looked_for)} of {len(verdicts)} {looked_for}",
        rest,
        tone,
    )


# ------------------------------------------------------------------------------------------- tables

BEFORE, AFTER = heads({"Before": "before", "After": "after"}, words=0)
P, ADJUSTED, N = heads({"p": "p", "p, loss, adjusted": "adjusted", "n": "n"}, words=0)
FLIPS, TEST = heads({"Flips": "flips", "Test": lambda r: r.raw.test}, words=2)
DIFFERENCE = Col("Difference", lambda r: figure(r.difference, r.interval))
"""Columns of tables whose items are rows."""


def arrow(row: ComparisonRow) -> str:
    """Which way is better."""
    return "↑" if row.raw.higher_is_better else "↓"


def measure_table(rows: Rows, columns: Sequence[Col], **options: Any) -> Table:
    """A line a comparison; metrics that do not lead are greyed."""
    return tabulate(
        rows, columns, tones=["" if row.raw.primary else "minor" for row in rows], **options
    )


def _what_and_direction(r: ComparisonRow) -> Text:
    return r.name, sub(f"{r.raw.metric}, {r.unit}; {direction(r.raw.higher_is_better)}")


def _verdict_and_power(r: ComparisonRow) -> Text:
    return chip(r.verdict, r.tone), sub(r.power) if r.power else None


def measures(rows: Rows, title: Text = "") -> Table:
    """Comparisons as a page shows them, the verdict beside the name and statistics folded away."""
    columns = heads({"Measure": _what_and_direction, "Verdict": _verdict_and_power}, words=2)
    columns += [BEFORE, AFTER, DIFFERENCE]
    statistics = [P, ADJUSTED, N, FLIPS, TEST]
    if not any(row.adjusted for row in rows):
        statistics.remove(ADJUSTED)
    if not any(row.flips for row in rows):
        statistics.remove(FLIPS)
    return measure_table(rows, [*columns, *fold(statistics)], title=title, kind="dense compared")


def measures_by_suite(rows: Rows) -> list[Table]:
    """A table a suite, titled `Target: what was to be learnt`."""
    tables = []
    for suite, members in by_suite(rows).items():
        purpose = f": {PURPOSE[suite]}" if suite in PURPOSE else ""
        tables.append(measures(members, f"{group_title(suite)}{purpose}"))
    return tables


def brief_tables(rows: Rows) -> list[Table]:
    """A table a suite with two lines a comparison, so that sixty of them can be read through in a
    terminal."""
    return [_brief(members) for members in by_suite(rows).values()]


def _brief(rows: Rows) -> Table:
    p = P
    if any(row.adjusted for row in rows):
        p = Col(("p", sub("of a loss, adjusted")), lambda row: (row.p, sub(row.adjusted)))
    words = heads({"Measure": _brief_measure, "Verdict": _brief_verdict}, words=2)
    return measure_table(
        rows, [*words, BEFORE, AFTER, DIFFERENCE, p], title=group_title(rows[0].raw.suite)
    )


def _brief_measure(row: ComparisonRow) -> Text:
    return row.name, sub(f"{row.raw.metric} {arrow(row)}")


def _brief_verdict(row: ComparisonRow) -> Text:
    samples = f"{lost_and_gained(row)} of {row.n}" if row.flips else f"n {row.n}"
    return Span((row.verdict, sub(samples)), tone=row.tone)


def lost_and_gained(row: ComparisonRow) -> str:
    """`12 / 20`: samples right before and wrong after, and the reverse; empty where the metric is
    not right / wrong."""
    return f"{row.raw.flips_lost or 0:,} / {row.raw.flips_gained or 0:,}" if row.flips else ""


# -------------------------------------------------------------------------------------------- gains

RIGHT_OF_PLOT = {"xref": "paper", "xanchor": "left", "xshift": 8}
"""Where no bar can lie on a figure."""


def gains(rows: Rows) -> list[Chart]:
    """Forests of comparisons, one a unit; shares in points."""
    units: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        units.setdefault("points" if row.share else row.unit, []).append(row)
    return present(
        gain_forest(members, f"Gains in {unit}" if unit else "Gains")
        for unit, members in units.items()
    )


def gain_forest(
    rows: Rows, title: str, *, names: Sequence[str] | None = None, caption: str = ""
) -> Chart | None:
    """Gains with their paired intervals, one line a comparison, the largest loss first; right of
    zero is better.

    Args:
        rows: what was compared, all of it shares (drawn in points), or in one unit.
        title: of the chart.
        names: how each row is called; None: `short_names`.
        caption: the first sentence below the figure.

    Returns:
        None where nothing can be drawn.
    """
    share = rows[0].share
    lines: list[dict[str, Any]] = []
    left_out = []
    for row, name in zip(rows, short_names(rows) if names is None else names, strict=True):
        if row.raw.failed is not None:
            left_out.append(name)
            continue
        gain = Figure(value=row.raw.gain, over_samples=row.gain_interval)
        texts = {key: getattr(row, key) for key in ("tone", "verdict", "before", "after", "p", "n")}
        lines.append(
            {"name": name, "value": Value.of(gain, Measure(share=share), sign=True)} | texts
        )
    if not lines:
        return None
    lines.sort(key=lambda line: line["value"].value)
    compact = len(lines) >= COMPACT_FROM
    notes = []
    for height, line in enumerate(lines):
        line["place"] = height
        colour = "ink" if line["tone"] == "flat" else line["tone"]
        notes.append(
            Note(text=line["value"].text, x=1.0, y=height, colour=colour, more=RIGHT_OF_PLOT)
        )
    caption += (
        " Right of zero is better, whatever the metric's direction. Bars: paired "
        f"{100 * rows[0].raw.confidence:g} % intervals over the evaluated samples. Filled "
        "points: the interval excludes zero."
    )
    if left_out:
        caption += f" Not drawn, because the difference is not a number: {', '.join(left_out)}."
    unit = "points" if share else rows[0].unit
    size = 8 if compact else 11
    words = heads({"Measure": "name", "Verdict": "verdict"}, words=2)
    return Chart(
        title=title,
        rows=lines,
        columns=[*words, Col(f"Gain, {unit}", "value"), BEFORE, AFTER, P, N],
        marks=[_tone_mark(tone, size) for tone in ("flat", "bad", "good")],
        x=Axis(title=f"gain, {unit} → better", zero=True, from_zero=True, more={"nticks": 7}),
        y=Axis(names=[line["name"] for line in lines], length=26, range=(len(lines) - 0.4, -0.7)),
        notes=() if compact else notes,
        caption=caption.strip(),
        height=66 + (19 if compact else 30) * max(len(lines), 2),
    )


def _tone_mark(tone: str, size: float) -> Mark:
    return Mark(
        x="value", y="place", where={"tone": tone}, colour=tone, hollow=tone == "flat", size=size
    )
