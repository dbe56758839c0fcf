"""Paired comparisons as every page shows them: a row of text, the table, the forest of gains, and the verdict in one
sentence.

A *gain* is a difference with its sign turned so that more is better; a *relative* gain is `100 · gain / |before|` in
percent, which is what puts nats, accuracies and bits on one axis. It does not exist where `before` is 0. Tests,
bootstraps and verdicts lie in the records (`Comparison`); nothing is measured here.
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
    VERDICTS,
    Comparison,
    Decision,
)
from holdfast.records.measure import decimals_for, interval_text, number, with_interval
from holdfast.records.metrics import RESTATED, is_share
from holdfast.reports.blocks import Paragraph, Span, Table, Text, Tile, chip, figure, sub
from holdfast.reports.charts import (
    COMPACT_FROM,
    Axis,
    Chart,
    Col,
    Mark,
    Value,
    figures_at_right,
    fold,
    tabulate,
)
from holdfast.reports.format import direction, p_value, percent, plural, tally

GROUPS = ("target", "source")
"""Suites in the order of reading: what was to be learnt, then what was to be kept. Suites of the user's own follow."""
PURPOSE = dict(zip(GROUPS, ("what was to be learnt", "what was to be kept"), strict=True))
TONES = {GAINED: "good", LOST: "bad", NOT_FINITE: "bad"}


def group_title(suite: str) -> str:
    return suite[:1].upper() + suite[1:] if suite in GROUPS else suite


def entry_title(suite: str, name: str) -> str:
    """`Target: answers`; a name that begins with the word of its suite stands alone."""
    repeats_suite = re.match(rf"{re.escape(suite)}(?![^\W_])", name, re.IGNORECASE)
    return name if repeats_suite else f"{group_title(suite)}: {name}"


def group_rank(suite: str) -> tuple[int, str]:
    return (GROUPS.index(suite) if suite in GROUPS else len(GROUPS), suite)


def section_title(suite: str) -> str:
    """`Target: what was to be learnt`."""
    return f"{group_title(suite)}: {PURPOSE[suite]}" if suite in PURPOSE else group_title(suite)


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
    def digits(self) -> int:
        return decimals_for(self.raw.interval)

    @property
    def label(self) -> str:
        return entry_title(self.raw.suite, self.name)

    @property
    def before(self) -> str:
        return number(self.raw.before, self.digits)

    @property
    def after(self) -> str:
        return number(self.raw.after, self.digits)

    @property
    def difference(self) -> str:
        """After minus before, signed, in the metric's own unit."""
        return number(self.raw.difference, self.digits, sign=True)

    @property
    def interval(self) -> str:
        return interval_text(self.raw.interval, self.digits, sign=True)

    @property
    def p(self) -> str:
        return p_value(self.raw.p_value)

    @property
    def n(self) -> str:
        return f"{self.raw.n:,}"

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return self.raw.verdict

    @property
    def adjusted(self) -> str:
        """The adjusted one-sided p-value of a loss; empty where there is none."""
        return "" if self.raw.p_adjusted is None else p_value(self.raw.p_adjusted)

    @property
    def power(self) -> str:
        """`a loss of 1.8 pt would have been seen with 80 %; about 2,400 samples would decide`, where nothing is shown;
        else empty."""
        if self.raw.detectable is None:
            return ""
        seen = f"a loss of {self.in_unit(self.raw.detectable)} would have been seen with 80 %"
        if self.raw.needed is None:
            return seen
        size = 10 ** max(0, len(str(self.raw.needed)) - 2)
        needed = math.ceil(self.raw.needed / size) * size
        return f"{seen}; about {needed:,} samples would decide on {self.in_unit(self.raw.tolerated)}"

    def in_unit(self, value: float) -> str:
        """A size of a change with two digits: in points for shares, else in the metric's unit."""
        size = 100 * value if self.share else value
        text = f"{size:.2g}" if size < 100 else f"{size:,.0f}"
        return f"{text} {'pt' if self.share else self.unit}".rstrip()

    @property
    def tone(self) -> str:
        return TONES.get(self.verdict, "flat")

    @property
    def flips(self) -> str:
        """ "12 lost, 20 gained" for right / wrong metrics, else empty."""
        lost, gained = self.raw.flips_lost, self.raw.flips_gained
        return "" if lost is None and gained is None else f"{lost or 0:,} lost, {gained or 0:,} gained"

    @property
    def share(self) -> bool:
        """True where both figures are shares, so that their difference is in points."""
        c = self.raw
        return c.higher_is_better and (
            c.flips_lost is not None or is_share(c.unit, c.metric, (v for v in (c.before, c.after) if math.isfinite(v)))
        )

    @property
    def gain_interval(self) -> tuple[float, float]:
        """The interval of the gain: the difference's, turned where lower is better."""
        low, high = self.raw.interval
        return (low, high) if self.raw.higher_is_better else (-high, -low)

    def to_relative(self, value: float) -> float | None:
        """`value`, in the metric's unit, as percent of `before`; None where `before` is 0 or not finite."""
        before = abs(self.raw.before)
        return 100.0 * value / before if before > 0 and math.isfinite(before) else None

    @property
    def relative(self) -> str:
        """Gain in percent of `before`: positive is better whatever the metric's direction."""
        return percent(self.to_relative(self.raw.gain))

    def change(self) -> tuple[str, str]:
        """(difference, its interval): in points for shares, else in the metric's unit."""
        return with_interval(self.raw.difference, self.raw.interval, share=self.share, sign=True, unit=self.unit)

    def levels(self) -> str:
        """`41.8 → 40.9 %`, or in the metric's own unit."""
        before, after = (
            with_interval(v, self.raw.interval, share=self.share, unit=self.unit)[0]
            for v in (self.raw.before, self.raw.after)
        )
        return f"{before.partition(' ')[0]} → {after}"


def ordered(comparisons: Iterable[Comparison]) -> list[ComparisonRow]:
    """Target, source, then other suites; within a suite primary metrics first, otherwise as recorded."""
    return [ComparisonRow(c) for c in sorted(comparisons, key=lambda c: (group_rank(c.suite), not c.primary))]


def primary_of(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows that lead; all where none does."""
    return [r for r in rows if r.raw.primary] or list(rows)


def without_means(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows that a sentence counts: without means of entries, since their entries are counted themselves; all where
    there is nothing else."""
    return [r for r in rows if r.raw.suite != "average"] or list(rows)


def short_names(rows: Sequence[ComparisonRow]) -> list[str]:
    """A name a row: the entry's, with its suite where two entries share it and its metric where one entry has
    several."""
    names = [r.name for r in rows]
    chosen = [n if names.count(n) == 1 else f"{r.raw.suite}/{n}" for n, r in zip(names, rows, strict=True)]
    return [n if chosen.count(n) == 1 else f"{n} {r.raw.metric}" for n, r in zip(chosen, rows, strict=True)]


# ------------------------------------------------------------------------------------------------------------ sentences


def headline(comparisons: Sequence[Comparison]) -> str:
    """What changed, suite by suite, in one sentence with its sizes: `Target: code −0.56 nats/token [−0.60, −0.52]
    (gained); source: prose +0.27 [+0.22, +0.31] (lost).` Of a suite of many measures the verdicts are counted, and the
    largest change of the kind that matters is named. A unit stands where it changes."""
    primary = primary_of([ComparisonRow(c) for c in comparisons])
    parts: list[str] = []
    unit = ""
    for suite in sorted({r.raw.suite for r in primary}, key=group_rank):
        held = [r for r in primary if r.raw.suite == suite]
        rows = list(zip(held, short_names(held), strict=True))
        many, sizes = len(rows) > MOST_NAMED, []
        for r, name in _largest(rows, GAINED if suite == "target" else LOST) if many else rows:
            sizes.append(_size(name, r, unit) + ("" if many else f" ({r.verdict})"))
            unit = unit if r.verdict == NOT_FINITE else "pt" if r.share else r.unit
        text = ", ".join(sizes)
        if many:
            text = f"{tally([r.verdict for r in held])} of {len(rows)} measures{f' (most: {text})' if text else ''}"
        title = group_title(suite)
        parts.append(f"{title.lower() if parts and suite in GROUPS else title}: {text}")
    return "; ".join(parts) + "." if parts else "Nothing was compared."


MOST_NAMED = 2
"""Measures of a suite that a headline names one by one."""


def _size(name: str, row: ComparisonRow, unit: str) -> str:
    """`prose +0.27 nats/token [+0.22, +0.31]`, without a unit that was said just before."""
    if row.verdict == NOT_FINITE:
        return name
    known = row.share or row.unit == unit
    text, interval = with_interval(
        row.raw.difference, row.raw.interval, share=row.share, sign=True, unit="" if known else row.unit
    )
    return f"{name} {text} {interval}"


def _largest(rows: Sequence[tuple[ComparisonRow, str]], verdict: str) -> list[tuple[ComparisonRow, str]]:
    """Of rows with their names the one with the largest change of those with a verdict: shares before others, since
    they are what the rest is compared with. Nothing where none has it."""
    held = [p for p in rows if p[0].verdict == verdict]
    shares = [p for p in held if p[0].share]
    known = shares or [p for p in held if p[0].to_relative(1.0) is not None]
    size = {True: lambda r: abs(r.raw.gain), False: lambda r: abs(r.to_relative(r.raw.gain) or 0.0)}[bool(shares)]
    return sorted(known, key=lambda p: -size(p[0]))[:1]


def largest_loss(rows: Sequence[ComparisonRow]) -> str:
    """`the largest loss is arc −5.0 pt [−6.1, −3.9]`, of what was lost; empty where nothing was lost."""
    found = _largest(list(zip(rows, short_names(rows), strict=True)), LOST)
    return f"the largest loss is {_size(found[0][1], found[0][0], '')}" if found else ""


def pair_sentence(labels: tuple[str, str], rows: Sequence[ComparisonRow], before: Sequence[str] = ()) -> str:
    """What became of the rows that lead from one model to the other, in one sentence; `before` comes first in it. Means
    of entries are not counted beside their entries."""
    rows = without_means(rows)
    if rows:
        found = (
            f"from {labels[0]} to {labels[1]}, of {plural(len(rows), 'measure')}: {tally([r.verdict for r in rows])}"
        )
    else:
        found = f"nothing was compared between {labels[0]} and {labels[1]}"
    text = "; ".join(p for p in (*before, found, largest_loss(rows)) if p) + "."
    return text[:1].upper() + text[1:]


def difference_note(rows: Sequence[ComparisonRow]) -> Paragraph:
    """What difference, interval and verdict mean, below the tables."""
    text = (
        f"Difference: after \u2212 before, with its paired {100 * rows[0].raw.confidence:g} % interval over the "
        f"evaluated samples. {VERDICT_WORDS} Flips: samples right before and wrong after, "
        "and the reverse. How far another training run would move the figures is not in the intervals."
    )
    return Paragraph(text, "note")


VERDICT_WORDS = (
    "Gained or lost: the interval excludes zero, and p of the same test is below its level; within the margin: all of "
    "it is too small to matter. Kept: the interval leaves no room for a loss beyond the margin. Not shown: none of "
    "these."
)
"""What verdicts mean."""


def decision_note(decision: Decision | None) -> Paragraph | None:
    """What all tests say together."""
    if decision is None:
        return None
    return Paragraph(Span(decision.sentence, "strong"), "bad" if decision.shown else "")


def count_tile(suite: str, verdicts: Sequence[str]) -> Tile:
    """How many measures of a suite went the way that matters for it."""
    wanted = GAINED if suite == "target" else LOST
    tone = "bad" if NOT_FINITE in verdicts else "" if wanted not in verdicts else TONES[wanted]
    rest = tally(verdicts, [v for v in VERDICTS if v != wanted])
    figure_ = f"{verdicts.count(wanted)} of {len(verdicts)} {wanted}"
    return Tile(group_title(suite), figure_, rest or PURPOSE.get(suite, ""), tone)


# --------------------------------------------------------------------------------------------------------------- tables

BEFORE, AFTER, RELATIVE = Col("Before", "before"), Col("After", "after"), Col("Relative gain", "relative")
ADJUSTED = Col("p, loss, adjusted", "adjusted")
P, N, TEST = Col("p", "p"), Col("n", "n"), Col("Test", lambda r: r.raw.test, numeric=False)
DIFFERENCE = Col("Difference", lambda r: figure(r.difference, r.interval))
"""Columns of tables whose items are rows."""


def arrow(row: ComparisonRow) -> str:
    """Which way is better."""
    return "↑" if row.raw.higher_is_better else "↓"


def measure_table(rows: Sequence[ComparisonRow], columns: Sequence[Col], **options: Any) -> Table:
    """A line a comparison; metrics that do not lead are greyed."""
    return tabulate(rows, columns, tones=["" if r.raw.primary else "minor" for r in rows], **options)


def _what_and_direction(r: ComparisonRow) -> Text:
    return r.name, sub(f"{r.raw.metric}, {r.unit}; {direction(r.raw.higher_is_better)}")


def measures(rows: Sequence[ComparisonRow], title: Text = "", *, relative: bool = False) -> Table:
    """Comparisons as a page shows them, the verdict beside the name and statistics folded away; `relative` adds the
    gain in percent of before."""
    what = Col("Measure", _what_and_direction, numeric=False)
    verdict = Col("Verdict", lambda r: (chip(r.verdict, r.tone), sub(r.power) if r.power else None), numeric=False)
    adjusted = [ADJUSTED] if any(r.adjusted for r in rows) else []
    flips = [Col("Flips", "flips", numeric=False)] if any(r.flips for r in rows) else []
    shown = [what, verdict, BEFORE, AFTER, DIFFERENCE, *([RELATIVE] if relative else [])]
    columns = [*shown, *fold(P, *adjusted, N, *flips, TEST)]
    return measure_table(rows, columns, title=title, kind="dense compared")


def by_suite(rows: Sequence[ComparisonRow]) -> list[list[ComparisonRow]]:
    """The rows of each suite, in the order of the rows."""
    return [[r for r in rows if r.raw.suite == s] for s in dict.fromkeys(r.raw.suite for r in rows)]


def one_unit(rows: Sequence[ComparisonRow]) -> tuple[list[ComparisonRow], list[ComparisonRow]]:
    """(rows of one unit an entry, those that say the same in another unit)."""
    there = {(r.raw.suite, r.name, r.raw.metric) for r in rows}
    again = [r for r in rows if (r.raw.suite, r.name, RESTATED.get(r.raw.metric)) in there]
    return [r for r in rows if r not in again], again


def measures_by_suite(rows: Sequence[ComparisonRow], **options: Any) -> list[Table]:
    """A table a suite, titled."""
    return [measures(held, section_title(held[0].raw.suite), **options) for held in by_suite(rows)]


# ---------------------------------------------------------------------------------------------------------------- gains


def gains(rows: Sequence[ComparisonRow]) -> list[Chart]:
    """Forests of comparisons: shares in points on one axis, everything else on a second."""
    shares, others = [r for r in rows if r.share], [r for r in rows if not r.share]
    both = bool(shares and others)
    found = [
        gain_forest(shares, title="Accuracies: gains in points" if both else "Gains in points"),
        gain_forest(others, title="Other measures: gains" if both else "Gains"),
    ]
    return [c for c in found if c is not None]


def gain_forest(
    rows: Sequence[ComparisonRow], *, title: str, names: Sequence[str] | None = None, caption: str = ""
) -> Chart | None:
    """Gains with their paired intervals, one line a comparison, the largest loss first; right of zero is better.

    Shares are drawn in points. Other figures are drawn in their unit where they share one, otherwise in percent of the
    value before; those without such a percentage (a start of 0) are named in the caption.

    Args:
        rows: what was compared.
        title: of the chart.
        names: how each row is called; None: `short_names`.
        caption: the first sentence below the figure.

    Returns:
        None where nothing can be drawn.
    """
    share = all(r.share for r in rows)
    relative = not share and len({r.unit for r in rows}) > 1
    unit = "points" if share else "% of the value before" if relative else rows[0].unit if rows else ""

    def scaled(r: ComparisonRow, value: float) -> float:
        return 100 * value if share else (r.to_relative(value) or 0.0) if relative else value

    def gain(r: ComparisonRow) -> Value:
        low, high = r.gain_interval
        text, interval = with_interval(r.raw.gain, (low, high), share=share, sign=True)
        if relative:
            text = r.relative
            if math.isfinite(low):
                interval = f"[{percent(r.to_relative(low))}, {percent(r.to_relative(high))}]"
        return Value(
            value=scaled(r, r.raw.gain), low=scaled(r, low), high=scaled(r, high), text=text, interval=interval
        )

    named = list(zip(rows, short_names(rows) if names is None else names, strict=True))
    fit = [r.raw.failed is None and (not relative or r.to_relative(1.0) is not None) for r in rows]
    values = [(gain(r), name, r) for (r, name), fits in zip(named, fit, strict=True) if fits]
    if not values:
        return None
    found: list[dict[str, Any]] = [
        {"place": place, "name": name, "value": value, "tone": r.tone, "verdict": r.verdict}
        | {"before": r.before, "after": r.after, "p": r.p, "n": r.n}
        for place, (value, name, r) in enumerate(sorted(values, key=lambda drawn: drawn[0].value))
    ]
    compact = len(found) >= COMPACT_FROM
    called = [f["name"] for f in found]
    notes = [caption] if caption else []
    notes.append(
        f"Right of zero is better whatever the metric's direction. Bars: paired {100 * rows[0].raw.confidence:g} % "
        "intervals over the evaluated samples. Filled: the interval excludes zero."
    )
    if not all(fit):
        left_out = ", ".join(name for (_, name), fits in zip(named, fit, strict=True) if not fits)
        reason = "a start of 0 has no relative change" if relative else "the difference is not a number"
        if relative and any(r.raw.failed is not None for r in rows):
            reason += ", or the difference is not a number"
        notes.append(f"Not drawn, because {reason}: {left_out}.")
    end = (len(found) - 0.4, -0.7)
    return Chart(
        title=title,
        rows=found,
        columns=[
            Col("Measure", "name", numeric=False),
            Col("Verdict", "verdict", numeric=False),
            Col(f"Gain, {unit}", "value"),
            BEFORE,
            AFTER,
            P,
            N,
        ],
        marks=[
            Mark(x="value", y="place", where={"tone": t}, colour=t, hollow=t == "flat", size=8 if compact else 11)
            for t in ("flat", "bad", "good")
        ],
        x=Axis(title=f"gain, {unit} → better", zero=True, from_zero=True, more={"nticks": 7}),
        y=Axis(names=called, length=26, range=end),
        notes=[] if compact else figures_at_right([f["value"].text for f in found], [f["tone"] for f in found]),
        caption=" ".join(notes),
        height=66 + (19 if compact else 30) * max(len(found), 2),
    )
