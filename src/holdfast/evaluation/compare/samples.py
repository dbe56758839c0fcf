"""Two models on the same samples, paired: what changed, and whether it is more than chance.

Both models answered the same questions, so the question's difficulty cancels in the difference, sample by sample; an
unpaired test would count it as noise (a published example: p = .080 unpaired, p = .008 paired, on the same answers).
Samples are joined on the hash of the document and must have been asked with the same prompt.

One test gives interval, p and verdict (`holdfast.statistics.paired`): McNemar's exact test and its inversion for right
/ wrong metrics, Student's t of the samples' influences with its skewness removed for all others, a ratio of sums for
text. Where every score of a share came out the same, the two are counted as answers of which none flipped.

One sample of anything else says nothing: its interval is NaN and its p is 1. Copies of a sample count once, as their
mean (`statistics.estimates.clusters_of`): where some samples have more copies than others, before and after are not the
figures of all rows. Where a sample or a figure of either model
is NaN or infinite nothing is compared, and `Comparison.failed` says why. Does not correct for looking at many metrics
at once: see `compare.decision`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, why_not_finite
from holdfast.records.figure import CONFIDENCE
from holdfast.records.margins import Margins
from holdfast.records.metrics import is_share
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio, Rows, by_cluster, clusters_of, figure_for
from holdfast.statistics.paired import MCNEMAR, STUDENT, Flips, Moments, moments


def compare_samples(
    before_rows: Rows,
    after_rows: Rows,
    evaluation_before: Evaluation,
    evaluation_after: Evaluation,
    *,
    confidence: float = CONFIDENCE,
    margins: Margins | None = None,
) -> list[Comparison]:
    """Compares all metrics that both evaluations have and that their rows carry, the primary one first.

    Args:
        before_rows: per-sample rows of the starting model, see `holdfast.records.evaluation.Evaluation`.
        after_rows: those of the result; the order need not be the same.
        evaluation_before: what the rows belong to.
        evaluation_after: likewise.
        confidence: level of the intervals, in (0, 1).
        margins: losses that do not matter; None: the defaults.

    Raises:
        DataError: the two did not answer the same samples with the same prompts; the message counts them.
    """
    evaluations = (evaluation_before, evaluation_after)
    rows = join(before_rows, after_rows, what=f"{evaluation_before.suite}/{evaluation_before.name}")
    if reason := why_failed(evaluations, rows):
        return failed_comparisons(evaluations, reason, confidence=confidence)
    sheet = sheet_of(rows, evaluations, one_tokenizer=False)
    return compare_columns(sheet, evaluation_before, confidence=confidence, margins=margins)


def why_failed(evaluations: Sequence[Evaluation], rows: Sequence[Rows] = ()) -> str | None:
    """Which model a figure or a sample is not finite of, so that nothing follows from comparing it; None where all are.

    Args:
        evaluations: of the models, the one before first.
        rows: theirs, in the same order; without them only what the evaluations say counts.
    """
    names = ["before", "after"] if len(evaluations) == 2 else [f"model {n}" for n in range(1, len(evaluations) + 1)]
    found = [evaluation.failed for evaluation in evaluations]
    if rows:
        pairs = zip(evaluations, rows, strict=True)
        found = [evaluation.failed or why_not_finite(evaluation.metrics, part) for evaluation, part in pairs]
    return " ".join(f"{name}: {reason}" for name, reason in zip(names, found, strict=True) if reason) or None


def failed_comparisons(
    evaluations: tuple[Evaluation, Evaluation], reason: str, *, confidence: float = 0.95
) -> list[Comparison]:
    """A comparison that failed for every metric that both have, the primary one first.

    Args:
        evaluations: before and after.
        reason: see `why_failed`.
        confidence: level that the intervals would have had.

    Raises:
        DataError: they have no metric in common.
    """
    before, after = evaluations
    shared = sorted((name for name in before.metrics if name in after.metrics), key=lambda name: name != before.primary)
    if not shared:
        raise DataError(f"{before.suite}/{before.name}: no metric was measured for both, and {reason}")
    return [
        Comparison(
            suite=before.suite,
            name=before.name,
            metric=name,
            unit=before.metrics[name].unit,
            higher_is_better=before.metrics[name].higher_is_better,
            n=before.metrics[name].n,
            before=before.metrics[name].value,
            after=after.metrics[name].value,
            difference=math.nan,
            interval=(math.nan, math.nan),
            p_value=math.nan,
            test="none",
            primary=name == shared[0],
            confidence=confidence,
            failed=reason,
        )
        for name in shared
    ]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One entry as K models answered it, sample by sample in one order."""

    n: int
    """Distinct samples."""
    figures: dict[str, Ratio]
    """The metric that leads comes first."""
    columns: dict[str, np.ndarray]
    """`[n, 2K]` float64 a metric: numerator and denominator of model 0, of model 1, ..."""
    left_out: dict[str, str]
    """Metrics that cannot be paired: why."""

    def values(self, metric: str, sums: np.ndarray) -> np.ndarray:
        """Figures `[..., K]` of sums `[..., 2K]`."""
        return self.figures[metric].of_sums(sums.reshape(*sums.shape[:-1], -1, 2))

    def influence(self, metric: str) -> np.ndarray:
        """`[n]` float64: how much each sample moves the difference of the last model to the first."""
        figure, columns = self.figures[metric], self.columns[metric]
        if np.array_equal(columns[:, :2], columns[:, -2:]):
            return np.zeros(self.n)
        return figure.influence(columns[:, -2:]) - figure.influence(columns[:, :2])


def sheet_of(rows: Sequence[Rows], evaluations: Sequence[Evaluation], *, one_tokenizer: bool = True) -> Sheet:
    """Lines up what K models have in common.

    Args:
        rows: of every model, already joined: row i is the same sample in each.
        evaluations: what the rows belong to.
        one_tokenizer: leaves out metrics that are counted over other numbers of tokens.
    """
    figures: dict[str, Ratio] = {}
    columns: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    clusters = clusters_of(rows[0])
    first, *others = evaluations
    for name, metric in sorted(first.metrics.items(), key=lambda item: item[0] != first.primary):
        if not all(name in e.metrics for e in others):
            left_out[name] = "was not measured for both"
            continue
        mine = [figure_for(name, part, higher_is_better=metric.higher_is_better, unit=metric.unit) for part in rows]
        known = [figure for figure in mine if figure is not None]
        if len(known) < len(mine):
            column = TEXT_FIGURES[name].numerator if name in TEXT_FIGURES else name
            there = any(column in row for part in rows for row in part)
            left_out[name] = (
                "is not a number in every sample" if there else "is no mean over samples, so there is nothing to pair"
            )
            continue
        made = [figure.columns(part) for figure, part in zip(known, rows, strict=True)]
        if one_tokenizer and any(not np.array_equal(part[:, 1], made[0][:, 1]) for part in made):
            left_out[name] = f"counts other {known[0].denominator} in the same text (another tokenizer)"
            continue
        figures[name], columns[name] = known[0], by_cluster(np.hstack(made), clusters)
    n = len(rows[0]) if clusters is None else int(clusters.max()) + 1
    return Sheet(n=n, figures=figures, columns=columns, left_out=left_out)


def compare_columns(
    sheet: Sheet, entry: Evaluation, *, confidence: float = CONFIDENCE, margins: Margins | None = None
) -> list[Comparison]:
    """Compares the metrics of two models whose samples lie side by side, the one that leads first.

    Args:
        sheet: of the two.
        entry: the side before: names the entry and the metric that leads.
        confidence: level of the intervals, in (0, 1).
        margins: losses that do not matter; None: the defaults.
    """
    comparisons = []
    for name, figure in sorted(sheet.figures.items(), key=lambda item: item[0] != entry.primary):
        column = sheet.columns[name]
        before, after = (float(figure.of_sums(column[:, i : i + 2].sum(0))) for i in (0, 2))
        values = column[:, [0, 2]]
        share = figure.denominator is None and is_share(figure.unit, name, (values.min(), values.max()))
        test: Flips | Moments
        if figure.denominator is None and (
            _right_or_wrong(values) or (share and np.array_equal(values[:, 0], values[:, 1]))
        ):
            lost, gained = (int((np.sign(values[:, 1] - values[:, 0]) == sign).sum()) for sign in (-1.0, 1.0))
            test = Flips(lost=lost, gained=gained, n=sheet.n)
        else:
            difference = 0.0 if np.array_equal(column[:, :2], column[:, 2:]) else after - before
            test = moments(
                difference, {(entry.suite, entry.name): sheet.influence(name)}, scale=abs(before) + abs(after)
            )
        comparisons.append(
            compared(
                test,
                entry,
                name,
                values=(before, after),
                n=sheet.n,
                unit=figure.unit,
                higher_is_better=figure.higher_is_better,
                confidence=confidence,
                margins=margins,
            )
        )
    return comparisons


def compared(
    test: Flips | Moments,
    entry: Evaluation,
    metric: str,
    *,
    values: tuple[float, float],
    n: int,
    unit: str,
    higher_is_better: bool,
    confidence: float,
    margins: Margins | None = None,
) -> Comparison:
    """The record of a test.

    Args:
        test: of the difference.
        entry: the side before.
        metric: name of what was compared.
        values: before and after.
        n: samples.
        unit, higher_is_better: of the metric.
        confidence: level of the interval, in (0, 1).
        margins: losses that do not matter; None: the defaults.
    """
    known: dict[str, Any] = {"test": STUDENT}
    if isinstance(test, Flips):
        known = {"test": MCNEMAR, "flips_lost": test.lost, "flips_gained": test.gained}
    else:
        known |= {"standard_error": test.error, "skewness": test.skewness, "df": test.df}
    known |= {"smallest": test.n} if test.n != n else {}
    before, after = values
    return Comparison(
        suite=entry.suite,
        name=entry.name,
        metric=metric,
        unit=unit,
        higher_is_better=higher_is_better,
        n=n,
        before=before,
        after=after,
        difference=0.0 if test.estimate == 0.0 else after - before,
        interval=test.interval(confidence),
        p_value=test.p_value(),
        primary=metric == entry.primary,
        confidence=confidence,
        margin=(margins or Margins()).of(unit, metric, before, after),
        **known,
    )


def join(before: Rows, after: Rows, *, what: str = "the evaluation") -> tuple[list[Any], list[Any]]:
    """Rows of the same samples side by side, in the order of `before`.

    Joined on the document's hash (and the subtask's name); documents that occur more than once are joined in the order
    of their occurrence.

    Raises:
        DataError: one side has samples that the other lacks, or prompts differ.
    """
    asked, answered = (([row["doc"] for row in rows], [row.get("task") for row in rows]) for rows in (before, after))
    advice = "Evaluate both with the same data, limit and settings; delete the older evaluation to have it made again."
    if asked == answered:  # as a rule: the same samples in the same order
        matched = list(after)
    else:
        keys = _numbered(zip(*asked, strict=True))
        places = {key: index for index, key in enumerate(_numbered(zip(*answered, strict=True)))}
        only_before = sum(key not in places for key in keys)
        only_after = len(places) - (len(keys) - only_before)
        if only_before or only_after:
            raise DataError(
                f"{what}: the two evaluations did not answer the same samples: {only_before} of {len(keys)} occur "
                f"only before, "
                f"{only_after} of {len(places)} only after. {advice}"
            )
        matched = [after[places[key]] for key in keys]
    changed = sum(a.get("prompt") != b.get("prompt") for a, b in zip(before, matched, strict=True))
    if changed:
        raise DataError(
            f"{what}: {changed} of {len(matched)} samples were asked with another prompt before than after. {advice}"
        )
    return list(before), matched


def _numbered(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Keys with how often each occurred before."""
    seen: dict[tuple[Any, ...], int] = {}
    numbered = []
    for key in keys:
        seen[key] = seen.get(key, -1) + 1
        numbered.append((*key, seen[key]))
    return numbered


def _right_or_wrong(values: np.ndarray) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
