"""One page on two models that answered the same questions: what was kept, what was lost, and which questions those are.

Figures, intervals and tests come from the comparisons given; the page reads the two folders for what a figure cannot
say: the questions that flipped, the subjects of a group, calibration and entropies, the documents that moved most.
Nothing is drawn for kinds that are not there, and what could not be read or compared is said.

What it does not do: decide. Rules and their outcomes are given (`GateOutcome`); the page shows them first.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison, GateOutcome, StageMatrix
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.reports.calibration import calibration, calibration_change, calibration_interval, confidences
from holdfast.reports.evaluation_charts import (
    Series,
    gain_forest,
    point_digits,
    points,
    quantile_chart,
    reliability_chart,
    retention_bars,
    retention_radar,
    share_compared,
    short_names,
    stage_heat,
    subject_names,
)
from holdfast.reports.figures import (
    GROUPS,
    Row,
    group_rank,
    group_title,
    interval_text,
    number,
    plural,
    read_evaluation,
    row,
    setting,
)
from holdfast.reports.legacy_charts import Chart, shorten
from holdfast.reports.legacy_flips import (
    Flips,
    document_changes,
    documents_panel,
    flips_of,
    flips_panel,
    has_documents,
    joined,
)
from holdfast.reports.markup import Column, Html, join, table, tag
from holdfast.reports.page import Page, banner, bullets, facts, fold, header, tiles

CURVE_ENTRIES = 8
"""Entries whose calibration and entropies are drawn; all of them stand in the table."""

SUBJECT_RESAMPLES = 1000
"""Bootstrap draws for the difference on one subject of a group; a drawing needs fewer than a verdict."""


def write_comparison_report(
    path: str | os.PathLike[str],
    *,
    before: EvaluationFolder,
    after: EvaluationFolder,
    labels: tuple[str, str],
    comparisons: Sequence[Comparison],
    gates: Sequence[GateOutcome] = (),
    unmatched: Sequence[str] = (),
    matrix: StageMatrix | None = None,
) -> Path:
    """Writes the page and returns its path.

    Args:
        path: the HTML file.
        before: what was measured of the first model.
        after: what was measured of the second.
        labels: names of the two for readers.
        comparisons: what was compared, paired.
        gates: rules and what they say.
        unmatched: what was not compared, one sentence each.
        matrix: scores over the stages of sequential training.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    sides = (Measured(before, labels[0]), Measured(after, labels[1]))
    rows = [row(c) for c in sorted(comparisons, key=lambda c: (group_rank(c.suite), not c.primary))]
    primary = [r for r in rows if r.raw.primary] or rows
    pairs = _pairs(sides, primary)
    flips = _flips_of(pairs)
    page = Page(f"{labels[0]} → {labels[1]}: holdfast comparison")
    _head(page, sides, labels, primary, gates, flips, unmatched)
    _rules(page, gates)
    _differences(page, rows, primary)
    _retention(page, primary, labels, averages_of(sides))
    _stages(page, matrix)
    _subjects(page, pairs)
    _answers(page, pairs, labels)
    _flips(page, flips)
    _documents(page, pairs, labels)
    if unmatched:
        page.section("Not compared", tag("div", bullets(list(unmatched)), cls="card"))
    _small_print(page, sides, pairs)
    return page.write(Path(path))


# ------------------------------------------------------------------------------------------------------------- reading


class Measured:
    """What lies in one model's folder, read as far as it goes: `problems` names the files that could not be read.

    Args:
        folder: of one model.
        label: its name for readers.
    """

    def __init__(self, folder: EvaluationFolder, label: str) -> None:
        self.folder = folder
        self.label = label
        self.problems: list[str] = []
        self.evaluations: dict[tuple[str, str], Evaluation] = {}
        self._files: dict[tuple[str, str], Path] = {}
        for path in folder.files():
            try:
                found = read_evaluation(path)
                if not isinstance(found.name, str) or found.primary not in found.metrics:
                    raise KeyError(found.primary)
            except (DataError, KeyError, TypeError, ValueError, AttributeError, OSError, AssertionError) as error:
                reason = (
                    str(error)
                    if isinstance(error, DataError)
                    else f"unexpected content ({type(error).__name__}: {error})"
                )
                self.problems.append(
                    f"{label}: {path.name} could not be read and is left out here: "
                    f"{reason.replace(str(path), path.name)}"
                )
                continue
            self.evaluations[found.suite, found.name] = found
            self._files[found.suite, found.name] = path

    def find(self, suite: str, name: str) -> Evaluation | None:
        """The evaluation of an entry; by its name alone where no suite has both and one entry is called so."""
        found = self.evaluations.get((suite, name))
        if found is None:
            same = [e for (_, n), e in self.evaluations.items() if n == name]
            found = same[0] if len(same) == 1 else None
        return found

    def samples_file(self, evaluation: Evaluation) -> str:
        """Name of the file with the evaluation's rows."""
        return self._files[evaluation.suite, evaluation.name].name.removesuffix(".json") + ".samples.jsonl"

    def rows(self, evaluation: Evaluation) -> list[dict[str, Any]] | None:
        """The evaluation's rows; None, and a problem said, where they cannot be read."""
        name = self.samples_file(evaluation)
        try:
            rows = self.folder.samples(evaluation.suite, evaluation.name)
        except (DataError, OSError, ValueError) as error:
            reason = (
                str(error)
                if isinstance(error, DataError)
                else "there is no such file"
                if isinstance(error, FileNotFoundError)
                else f"{error}"
            )
            self.problems.append(
                f"{self.label}: {name} could not be read: {reason.replace(str(self.folder.path) + os.sep, '')}"
            )
            return None
        if not all(isinstance(r, dict) for r in rows):
            self.problems.append(f"{self.label}: {name} could not be used: expected an object a line.")
            return None
        return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
    """One entry of both models with its rows side by side."""

    name: str
    shown: Row
    before: Evaluation
    after: Evaluation
    before_rows: list[Mapping[str, Any]]
    after_rows: list[Mapping[str, Any]]
    file: str


def _pairs(sides: tuple[Measured, Measured], primary: Sequence[Row]) -> list[_Pair]:
    """Entries whose rows of both models are there and fit together."""
    pairs = []
    names = short_names([r.raw for r in primary])
    seen = set()
    for r, name in zip(primary, names, strict=True):
        key = (r.raw.suite, r.raw.name)
        found = [side.find(*key) for side in sides]
        if key in seen or found[0] is None or found[1] is None or "average" in (found[0].kind, found[1].kind):
            continue
        seen.add(key)
        rows = [side.rows(e) for side, e in zip(sides, found, strict=True) if e is not None]
        if rows[0] is None or rows[1] is None:
            continue
        try:
            left, right = joined(rows[0], rows[1], what=name)
        except DataError as error:
            sides[1].problems.append(f"{error} Its questions are not shown.")
            continue
        files = dict.fromkeys(side.samples_file(e) for side, e in zip(sides, found, strict=True) if e is not None)
        pairs.append(
            _Pair(
                name=name,
                shown=r,
                before=found[0],
                after=found[1],
                before_rows=left,
                after_rows=right,
                file=" / ".join(files),
            )
        )
    return pairs


# ---------------------------------------------------------------------------------------------------------------- head


def averages_of(sides: Sequence[Measured]) -> set[tuple[str, str]]:
    """Entries that are the mean of others, by (suite, name)."""
    return {key for side in sides for key, e in side.evaluations.items() if e.kind == "average"}


OUTCOMES = {"failed": "bad", "undecided": "warn", "passed": "good"}
"""Outcomes of rules, worst first, with their tones."""


def _outcome(gates: Sequence[GateOutcome]) -> str | None:
    return next((o for o in OUTCOMES if any(g.outcome == o for g in gates)), None)


def comparison_verdict(labels: tuple[str, str], rows: Sequence[Row], gates: Sequence[GateOutcome] = ()) -> str:
    """The comparison in one sentence.

    Args:
        labels: names of the two models.
        rows: the primary comparisons.
        gates: rules and what they say.
    """
    parts = []
    if gates:
        counted = {o: sum(g.outcome == o for g in gates) for o in OUTCOMES}
        if counted["passed"] == len(gates):
            parts.append(f"{'the rule' if len(gates) == 1 else f'all {len(gates)} rules'} passed")
        else:
            told = [f"{n} {o}" for o, n in counted.items() if n]
            parts.append(f"of {plural(len(gates), 'rule')} {', '.join(told)}")
    if not rows:
        parts.append(f"nothing was compared between {labels[0]} and {labels[1]}")
    else:
        verdicts = [r.verdict for r in rows]
        tally = [f"{verdicts.count(word)} {word}" for word in ("lost", "gained", "within noise") if word in verdicts]
        parts.append(f"from {labels[0]} to {labels[1]}, of {plural(len(rows), 'measure')}: {', '.join(tally)}")
        worst = _largest_loss(rows)
        if worst is not None:
            parts.append(f"the largest loss is {worst[0]}, {worst[1]}")
    text = "; ".join(parts) + "."
    return text[:1].upper() + text[1:]


def _largest_loss(rows: Sequence[Row]) -> tuple[str, str] | None:
    """Name and size of the largest loss beyond noise: shares in points first, since they are what the rest is compared
    with."""
    lost = [(r, name) for r, name in zip(rows, short_names([r.raw for r in rows]), strict=True) if r.verdict == "lost"]
    shares = [(r, name) for r, name in lost if share_compared(r.raw)]
    if shares:
        r, name = min(shares, key=lambda p: p[0].raw.gain)
        return name, points(r.raw.gain, point_digits(r.raw.interval))
    relative = [(value, r, name) for r, name in lost if (value := r.to_relative(r.raw.gain)) is not None]
    if not relative:
        return None
    _, r, name = min(relative, key=lambda p: p[0])
    return name, f"{r.difference} {r.unit}"


def _head(
    page: Page,
    sides: tuple[Measured, Measured],
    labels: tuple[str, str],
    rows: Sequence[Row],
    gates: Sequence[GateOutcome],
    flips: Sequence[Flips],
    unmatched: Sequence[str],
) -> None:
    outcome = _outcome(gates)
    samples = sum({(r.raw.suite, r.raw.name): r.raw.n for r in rows}.values())
    details = [f"{samples:,} paired samples" if rows else "", f"{len(unmatched):,} not compared" if unmatched else ""]
    page.add(
        header(
            eyebrow="holdfast comparison",
            title=f"{labels[0]} → {labels[1]}",
            status=(outcome, OUTCOMES[outcome]) if outcome else None,
            lead=comparison_verdict(labels, rows, gates),
            details=" · ".join(d for d in details if d),
        )
    )
    problems = [p for side in sides for p in side.problems]
    if problems:
        page.add(banner(join(tag("strong", "Some files could not be used."), bullets(problems)), "warn"))
    if rows:
        shown = _tiles(rows, flips, averages_of(sides))
        page.add(tag("div", tiles(shown), cls="five") if len(shown) == 5 else tiles(shown))


def _tiles(
    rows: Sequence[Row], flips: Sequence[Flips], averages: Collection[tuple[str, str]]
) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    suites = sorted({r.raw.suite for r in rows}, key=group_rank)
    for suite in suites[: 4 if flips else 5]:
        held = [r for r in rows if r.raw.suite == suite]
        verdicts = [r.verdict for r in held]
        shares = [r for r in held if share_compared(r.raw) and (r.raw.suite, r.raw.name) not in averages]
        alone = [r for r in held if (r.raw.suite, r.raw.name) in averages and share_compared(r.raw)]
        words = ", ".join(f"{verdicts.count(v)} {v}" for v in ("lost", "gained", "within noise") if v in verdicts)
        if len(held) == 1 or len(alone) == 1:
            r = held[0] if len(held) == 1 else alone[0]
            figure = points(r.raw.difference, point_digits(r.raw.interval)) if share_compared(r.raw) else r.difference
            below = (
                f"{r.verdict} ({r.before} → {r.after} {r.unit})"
                if len(held) == 1
                else f"{r.before} → {r.after}; of {len(held)} measures {words}"
            )
            found.append((f"{group_title(suite)}: {r.name}", figure, below, _tone(r)))
        elif len(shares) > 1:
            mean = sum(r.raw.difference for r in shares) / len(shares)
            found.append((group_title(suite), points(mean, 2), f"mean of {len(shares)} accuracies; {words}", ""))
        else:
            wanted = "gained" if suite == "target" else "lost"
            tone = "" if wanted not in verdicts else "good" if wanted == "gained" else "bad"
            words = ", ".join(
                f"{verdicts.count(v)} {v}" for v in ("lost", "gained", "within noise") if v in verdicts and v != wanted
            )
            found.append(
                (
                    group_title(suite),
                    f"{verdicts.count(wanted)} of {len(held)} {wanted}",
                    words or PURPOSE.get(suite, ""),
                    tone,
                )
            )
    if flips:
        lost, gained = sum(f.lost for f in flips), sum(len(f.found) - f.lost for f in flips)
        found.append(
            (
                "Answers that flipped",
                f"{lost + gained:,}",
                f"{lost:,} right before and wrong after, {gained:,} the reverse",
                "",
            )
        )
    return found


def _tone(r: Row) -> str:
    return r.tone if r.tone != "flat" else ""


# ------------------------------------------------------------------------------------------------------------ sections


def _rules(page: Page, gates: Sequence[GateOutcome]) -> None:
    if not gates:
        return
    order = sorted(gates, key=lambda g: list(OUTCOMES).index(g.outcome) if g.outcome in OUTCOMES else 0)
    columns = [
        Column(title="Rule"),
        Column(title="Outcome"),
        *(Column(title=t, numeric=True) for t in ("Change", "Threshold")),
        Column(title="Why", wide=True),
    ]
    cells = []
    for g in order:
        half = (g.interval[1] - g.interval[0]) / 2
        digits = max(1, min(5, 1 - math.floor(math.log10(half)))) if math.isfinite(half) and half > 0 else 2
        what = f"{g.suite}/{g.name}, {g.metric}" if g.suite or g.name else g.metric
        cells.append(
            [
                join(g.rule, tag("span", what, cls="sub")),
                tag("span", g.outcome, cls=f"chip {OUTCOMES.get(g.outcome, 'flat')}"),
                tag(
                    "span",
                    f"{number(g.value, digits, sign=True)} {g.unit}",
                    tag("span", interval_text(g.interval, digits, sign=True), cls="sub"),
                ),
                f"{g.threshold:g} {g.unit}",
                g.reason,
            ]
        )
    words = (
        "A rule is judged on the interval of the change, signed as the rule words it: failed where the whole interval "
        "lies beyond the threshold,"
        " passed where all of it lies within, undecided where the threshold lies inside it."
    )
    many = (
        f" {len(gates)} rules were judged one by one; the more there are, the likelier one fails by chance."
        if len(gates) > 5
        else ""
    )
    page.section(
        "Rules", tag("div", table(columns, cells, cards=True), cls="panel"), tag("p", words + many, cls="note")
    )


MEASURES = [
    Column(title="Measure"),
    *(Column(title=t, numeric=True) for t in ("Before", "After", "Difference", "p", "n")),
    Column(title="Test"),
    Column(title="Flips"),
    Column(title="Verdict"),
]


def measures_table(rows: Sequence[Row]) -> Html:
    """Comparisons as a table: before, after, difference with its interval, p, n, test, flips and verdict; metrics that
    do not lead are greyed."""
    cells = []
    for r in rows:
        flips = f"{r.raw.flips_lost:,} lost, {r.raw.flips_gained or 0:,} gained" if r.raw.flips_lost is not None else ""
        cells.append(
            [
                join(r.name, tag("span", f"{r.metric}, {r.unit}; {r.direction}", cls="sub")),
                r.before,
                r.after,
                tag("span", r.difference, tag("span", r.interval, cls="sub")),
                r.p,
                r.n,
                r.test,
                flips,
                tag("span", r.verdict, cls=f"chip {r.tone}"),
            ]
        )
    return table(MEASURES, cells, cards=True, classes=["" if r.raw.primary else "minor" for r in rows])


def gains_panels(page: Page, rows: Sequence[Row]) -> list[Html]:
    """Forests of the primary comparisons: shares in points on one axis, everything else on a second."""
    shares, others = [r for r in rows if share_compared(r.raw)], [r for r in rows if not share_compared(r.raw)]
    both = bool(shares and others)
    charts = [
        gain_forest(shares, title="Accuracies: gains in points" if both else "Gains in points") if shares else None,
        gain_forest(others, title="Other measures: gains" if both else "Gains") if others else None,
    ]
    return [page.chart(c) for c in charts if c is not None]


def difference_note(rows: Sequence[Row]) -> Html:
    """What difference, interval and verdict mean, said once below them."""
    many = (
        f" {len(rows)} measures were tested; at this level about {0.05 * len(rows):.0f} would show a change by chance "
        f"alone."
        if len(rows) >= 20
        else ""
    )
    return tag(
        "p",
        f"Difference: after \u2212 before, with its paired {100 * rows[0].raw.confidence:g} % interval over the "
        f"evaluated samples. Gained or lost:"
        " the interval excludes zero. Flips: samples right before and wrong after, and the reverse. How far another "
        "training run would move the"
        " figures is not in the intervals." + many,
        cls="note",
    )


def _differences(page: Page, rows: Sequence[Row], primary: Sequence[Row]) -> None:
    if not rows:
        page.section(
            "Before and after",
            tag("p", "No entry of the one model could be compared with one of the other.", cls="note"),
        )
        return
    panels = gains_panels(page, primary)
    for suite in dict.fromkeys(r.raw.suite for r in rows):
        held = [r for r in rows if r.raw.suite == suite]
        title = f"{group_title(suite)}: {PURPOSE[suite]}" if suite in PURPOSE else group_title(suite)
        panels.append(tag("div", tag("h3", title), measures_table(held), cls="panel dense compared"))
    page.section(
        "Before and after", tag("div", tag("div", *panels, cls="panels"), difference_note(primary), cls="stacked")
    )


PURPOSE = dict(zip(GROUPS, ("what was to be learnt", "what was to be kept"), strict=True))


def _retention(page: Page, rows: Sequence[Row], labels: tuple[str, str], averages: Collection[tuple[str, str]]) -> None:
    bars = retention_bars(rows)
    if bars is None:
        return
    radar = retention_radar([r for r in rows if (r.raw.suite, r.raw.name) not in averages], labels)
    charts: list[tuple[Chart, str]] = [
        (bars, "full" if radar is None else "half"),
        *([(radar, "half")] if radar is not None else []),
    ]
    page.section("Retention", tag("div", *(page.chart(c, width=width) for c, width in charts), cls="panels"))


STAGE_MEASURES = {
    "average_accuracy": ("Average accuracy", "mean over tasks after the last stage"),
    "backward_transfer": (
        "Backward transfer",
        "mean over earlier tasks of last score \u2212 score just after its own stage; below 0: later training cost it",
    ),
    "forgetting": ("Forgetting", "mean over earlier tasks of the best score before the last stage \u2212 last score"),
    "forward_transfer": (
        "Forward transfer",
        "mean over later tasks of the score before its own stage \u2212 score at the start",
    ),
}
"""Measures of sequential training: title and definition (Lopez-Paz and Ranzato 2017; Chaudhry et al. 2018)."""


def _stages(page: Page, matrix: StageMatrix | None) -> None:
    if matrix is None or not matrix.tasks:
        return
    columns = [Column(title="Measure"), *(Column(title=t, numeric=True) for t in ("Value", "Interval", "n"))]
    cells = []
    for key, m in matrix.measures.items():
        title, words = STAGE_MEASURES.get(key, (key.replace("_", " "), ""))
        digits = 4 if m.interval is None else max(3, point_digits(m.interval) + 2)
        cells.append(
            [
                join(title, tag("span", words, cls="sub") if words else None),
                number(m.value, digits),
                interval_text(m.interval, digits),
                f"{m.n:,}",
            ]
        )
    measures = (
        tag("div", tag("h3", "What the stages did to each other"), table(columns, cells, cards=True), cls="panel")
        if cells
        else None
    )
    page.section("Stages of training", tag("div", page.chart(stage_heat(matrix)), measures, cls="panels"))


def _subjects(page: Page, pairs: Sequence[_Pair]) -> None:
    from holdfast.evaluation.compare.samples import compare_samples

    panels = []
    for pair in pairs:
        places: dict[str, list[int]] = {}
        for place, r in enumerate(pair.before_rows):
            if r.get("task"):
                places.setdefault(str(r["task"]), []).append(place)
        metric = pair.shown.metric
        if len(places) < 2 or not all(metric in r for r in (*pair.before_rows, *pair.after_rows)):
            continue
        rows = []
        alone = [
            dataclasses.replace(e, primary=metric, metrics={metric: e.metrics[metric]})
            for e in (pair.before, pair.after)
        ]
        for task, held in sorted(places.items()):
            found = compare_samples(
                [pair.before_rows[i] for i in held],
                [pair.after_rows[i] for i in held],
                *alone,
                confidence=pair.shown.raw.confidence,
                resamples=SUBJECT_RESAMPLES,
            )
            rows += [row(dataclasses.replace(c, name=task)) for c in found]
        outside = sum(r.verdict != "within noise" for r in rows)
        chance = (1 - pair.shown.raw.confidence) * len(rows)
        caption = (
            f"{plural(len(rows), 'subject')}, {outside} outside the noise; about {chance:.1f} would be by chance alone."
        )
        chart = gain_forest(
            rows, title=f"{pair.name}, by subject", names=subject_names([r.name for r in rows]), caption=caption
        )
        if chart is not None:
            panels.append(page.chart(_with_counts(chart, rows)))
    if panels:
        page.section("Subjects", tag("div", *panels, cls="panels"))


def _with_counts(chart: Chart, rows: Sequence[Row]) -> Chart:
    """The table of a subjects' forest with before, after and n beside the difference."""
    held = dict(zip(subject_names([r.name for r in rows]), rows, strict=True))
    more = [Column(title=t, numeric=True) for t in ("Before", "After", "p", "n")]
    return dataclasses.replace(
        chart,
        columns=[*chart.columns, *more],
        rows=[
            [*cells, held[cells[0]].before, held[cells[0]].after, held[cells[0]].p, held[cells[0]].n]
            for cells in chart.rows
        ],
    )


ANSWER_FIGURES = (
    (
        "entropy",
        "Entropy over the vocabulary",
        "nats",
        "At the place of the answer, over all tokens. Lower: fewer tokens share the probability.",
    ),
    (
        "mass",
        "Probability mass on the options",
        "share",
        "How much of the probability at the place of the answer falls on the options at all.",
    ),
    ("option_entropy", "Entropy over the options", "nats", "Over the options alone. 0: one option has everything."),
)
"""Columns of rows about answers that are drawn as sorted curves: (key, title, unit, caption)."""


def answer_charts(name: str, models: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]) -> list[Chart]:
    """Reliability diagram and sorted curves of one entry.

    Args:
        name: of the entry.
        models: (label, colour, rows) of each model.
    """
    charts: list[Chart] = []
    sure = [
        (label, colour, found) for label, colour, rows in models if (found := confidences(rows)) is not None and rows
    ]
    if sure:
        charts.append(
            reliability_chart(
                [(label, colour, calibration(*found)) for label, colour, found in sure], title=f"{name}: calibration"
            )
        )
    for key, title, unit, caption in ANSWER_FIGURES:
        held = [
            (label, colour, rows)
            for label, colour, rows in models
            if rows and all(isinstance(r.get(key), (int, float)) for r in rows)
        ]
        drawn = quantile_chart(
            [Series(label=label, colour=colour, values=[float(r[key]) for r in rows]) for label, colour, rows in held],
            title=f"{name}: {title[:1].lower()}{title[1:]}",
            unit=unit,
            caption=caption,
        )
        if drawn is not None:
            charts.append(drawn)
    return charts


def _answers(page: Page, pairs: Sequence[_Pair], labels: tuple[str, str]) -> None:
    held = [
        p
        for p in pairs
        if p.before.kind in ("answers", "classes", "choices")
        and confidences(p.before_rows)
        and confidences(p.after_rows)
        and p.before_rows
    ]
    if not held:
        return
    panels = []
    for pair in held[:CURVE_ENTRIES]:
        charts = answer_charts(
            pair.name, [(labels[0], "flat", pair.before_rows), (labels[1], "accent", pair.after_rows)]
        )
        panels += [page.chart(c, width="half" if len(charts) > 1 else "full") for c in charts]
    columns = [
        Column(title="Entry"),
        *(Column(title=t, numeric=True) for t in ("ECE before", "ECE after", "Change", "Confidence", "Right", "n")),
    ]
    cells = []
    for pair in held:
        sides = [confidences(pair.before_rows), confidences(pair.after_rows)]
        assert sides[0] is not None
        assert sides[1] is not None
        level = pair.shown.raw.confidence
        change, interval = calibration_change(sides[0], sides[1], level=level)
        means = [[sum(v) / len(v) for v in side] for side in sides if side is not None]
        cells.append(
            [
                pair.name,
                *(ece_cell(side, level) for side in sides if side is not None),
                tag(
                    "span",
                    points(change, 1),
                    tag("span", interval_text((100 * interval[0], 100 * interval[1]), 1, sign=True), cls="sub"),
                ),
                f"{100 * means[0][0]:.1f} → {100 * means[1][0]:.1f} %",
                f"{100 * means[0][1]:.1f} → {100 * means[1][1]:.1f} %",
                f"{len(pair.before_rows):,}",
            ]
        )
    left_out = (
        f" Curves are drawn for the first {CURVE_ENTRIES} of {len(held)} entries." if len(held) > CURVE_ENTRIES else ""
    )
    page.section(
        "Confidence and entropy",
        tag(
            "div",
            tag("div", tag("div", table(columns, cells, cards=True), cls="panel dense"), *panels, cls="panels"),
            tag("p", ECE_NOTE + left_out, cls="note"),
            cls="stacked",
        ),
    )


ECE_NOTE = (
    "ECE: expected calibration error, the mean distance between confidence and accuracy over ten bins of equal size "
    "(Guo et al. 2017); confidence is"
    " the probability of the given answer among the options. Intervals: basic bootstrap over questions, paired for "
    "the change. Chance: what a"
    " perfectly calibrated model would show on so many questions."
)


def ece_cell(side: tuple[Sequence[float], Sequence[float]], level: float) -> Html:
    """The calibration error of one model with its interval, in percent."""
    low, high = calibration_interval(*side, level=level)
    found = calibration(*side)
    below = f"{interval_text((100 * low, 100 * high), 1)}; chance {100 * found.chance:.1f}"
    return tag("span", f"{100 * found.error:.1f} %", tag("span", below, cls="sub"))


def _flips_of(pairs: Sequence[_Pair]) -> list[Flips]:
    found = [
        flips_of(p.name, p.file, p.shown.metric, p.before_rows, p.after_rows)
        for p in pairs
        if p.shown.raw.flips_lost is not None
    ]
    return [f for f in found if f.found]


def _flips(page: Page, found: Sequence[Flips]) -> None:
    panel = flips_panel(found)
    if panel is not None:
        lost = sum(f.lost for f in found)
        gained = sum(len(f.found) for f in found) - lost
        intro = f"{plural(lost, 'question')} right before and wrong after, {gained:,} the reverse."
        page.section("Questions whose answers flipped", panel, intro=intro)


def _documents(page: Page, pairs: Sequence[_Pair], labels: tuple[str, str]) -> None:
    parts: list[Html] = []
    for pair in pairs:
        if not (has_documents(pair.before, pair.before_rows) and has_documents(pair.after, pair.after_rows)):
            continue
        chart = quantile_chart(
            [
                Series(
                    label=f"{labels[1]} \u2212 {labels[0]}",
                    colour="accent",
                    values=document_changes(pair.before_rows, pair.after_rows),
                )
            ],
            title=f"{pair.name}: change of each document",
            unit="nats/token",
            caption="Documents sorted by their change. Above zero the text became less likely.",
            height=240,
            zero=True,
        )
        panel = documents_panel(pair.before_rows, pair.after_rows)
        parts.append(tag("div", page.chart(chart) if chart is not None else None, panel, cls="panels"))
    if parts:
        page.section("Documents that changed most", tag("div", *parts, cls="stacked"))


def _small_print(page: Page, sides: tuple[Measured, Measured], pairs: Sequence[_Pair]) -> None:
    models = []
    for side in sides:
        known = next(iter(side.evaluations.values()), None)
        model = dict(known.model) if known is not None else {}
        models.append(
            (
                side.label,
                " · ".join(
                    str(v)[:64] for v in (model_name(model.get("name")), shorten(str(model.get("hash") or ""), 17)) if v
                )
                or "not recorded",
            )
        )
    settings = [(f"{p.before.suite}/{p.before.name}", settings_text(p.before.settings)) for p in pairs]
    versions: dict[str, str] = {}
    for side in sides:
        for e in side.evaluations.values():
            versions |= {k: str(v) for k, v in e.versions.items()}
    page.section(
        "What was compared",
        tag("div", facts(models), cls="card"),
        fold("Settings of the entries", facts(settings)) if settings else None,
        fold("Versions", facts(sorted(versions.items()))) if versions else None,
    )
    page.add(tag("footer", "Written by holdfast from the files of the two evaluations. This page needs no network."))


def model_name(name: Any) -> str:
    """A model's name, of a folder its last part: a page is shown to others, and whose folder it was says nothing."""
    text = str(name or "")
    return text.rstrip("/").rsplit("/", 1)[-1] if text.startswith(("/", "~", ".")) else text


def settings_text(settings: Mapping[str, Any]) -> str:
    """An entry's settings in one line; files by their last part, long lists by their length."""
    parts = []
    for key, value in settings.items():
        if value in (None, "", [], {}):
            continue
        if isinstance(value, str) and value.startswith(("/", "~", ".")):
            value = value.rstrip("/").rsplit("/", 1)[-1]
        text = (
            f"{len(value)} of them"
            if isinstance(value, (list, tuple)) and len(value) > 6
            else shorten(setting(value), 120)
        )
        parts.append(f"{key.replace('_', ' ')}: {text}")
    return "; ".join(parts) or "none"


__all__ = ["Measured", "comparison_verdict", "gains_panels", "measures_table", "write_comparison_report"]
