"""Two models on the same samples, paired: what changed, and whether it is more than chance.

Both models answered the same questions, so the question's difficulty cancels in the difference,
sample by sample; an unpaired test would count it as noise (a published example: p = .080 unpaired,
p = .008 paired, on the same answers). Samples are joined on the hash of the document and must have
been asked with the same prompt.

One test gives interval, p and verdict (`holdfast.statistics.paired`): McNemar's exact test and its
inversion for right / wrong metrics, Student's t of the samples' influences with its skewness
removed for all others, a ratio of sums for text. Where every score of a share came out the same,
the two are counted as answers of which none flipped.

One sample of anything else says nothing: its interval is NaN and its p is 1. Copies of a sample
count once, as their mean (`statistics.estimates.clusters_of`): where some samples have more copies
than others, before and after are not the figures of all rows. Clusters that rows name count once
too, with the weight of their rows. Where a sample or a figure of either
model is NaN or infinite nothing is compared, and `Comparison.failed` says why. Does not correct for
looking at many metrics at once: see `compare.decision`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison, FamilyWise
from holdfast.records.evaluation import Evaluation, why_not_finite
from holdfast.records.figure import CONFIDENCE
from holdfast.records.margins import Margins
from holdfast.records.metrics import is_share
from holdfast.statistics.estimates import (
    TEXT_FIGURES,
    Ratio,
    Rows,
    by_cluster,
    cluster_weights,
    clusters_of,
    figure_for,
)
from holdfast.statistics.paired import MCNEMAR, STUDENT, Flips, Influence, Moments, moments


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """How two models are compared."""

    confidence: float = CONFIDENCE
    """Confidence level of the intervals, in (0, 1)."""
    margins: Margins = field(default_factory=Margins)
    """Margins: the largest losses that do not matter."""
    family_wise: FamilyWise = "holm"
    """How p-values of many entries are adjusted (`statistics.family_wise`)."""
    allow_unpaired: float = 0.0
    """Largest share of an entry's samples, in [0, 1], that may be unpaired (measured on one model
    only). Unpaired samples are left out. A larger share is an error."""
    resamples: int = 4000
    """Number of resampling draws if `family_wise` is max_t."""
    seed: int = 0
    """Random seed of the draws."""


def compare_samples(
    before_rows: Rows,
    after_rows: Rows,
    evaluation_before: Evaluation,
    evaluation_after: Evaluation,
    options: ComparisonOptions = ComparisonOptions(),
) -> list[Comparison]:
    """Compares two evaluations in every metric that both of them and their rows have. The primary
    metric comes first.

    Args:
        before_rows: per-sample rows of the initial model, see
            `holdfast.records.evaluation.Evaluation`.
        after_rows: per-sample rows of the result; their order may differ.
        evaluation_before: the evaluation that `before_rows` belong to.
        evaluation_after: the evaluation that `after_rows` belong to.
        options: level of the intervals, margins and adjustment of p-values.

    Raises:
        DataError: the two models did not answer the same samples with the same prompts; the message
            says how many differ.
    """
    evaluations = (evaluation_before, evaluation_after)
    joined = join_allowing(
        before_rows,
        after_rows,
        what=f"{evaluation_before.suite}/{evaluation_before.name}",
        allow_unpaired=options.allow_unpaired,
    )
    rows = joined.before, joined.after
    if reason := why_failed(evaluations, rows):
        return failed_comparisons(evaluations, reason, confidence=options.confidence)
    sheet = sheet_of(rows, evaluations, one_tokenizer=False)
    return compare_columns(sheet, evaluation_before, options)


def why_failed(evaluations: Sequence[Evaluation], rows: Sequence[Rows] = ()) -> str | None:
    """Which model a figure or a sample is not finite of, so that nothing follows from comparing it;
    None where all are.

    Args:
        evaluations: of the models, the one before first.
        rows: theirs, in the same order; without them only what the evaluations say counts.
    """
    names = ["before", "after"]
    if len(evaluations) != 2:
        names = [f"model {number}" for number in range(1, len(evaluations) + 1)]
    failures = []
    for number, evaluation in enumerate(evaluations):
        reason = evaluation.failed
        if rows and not reason:
            reason = why_not_finite(evaluation.metrics, rows[number])
        if reason:
            failures.append(f"{names[number]}: {reason}")
    return " ".join(failures) or None


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
    shared = [name for name in before.metrics if name in after.metrics]
    if not shared:
        raise DataError(
            f"{before.suite}/{before.name}: no metric was measured for both models, and {reason}"
        )
    shared.sort(key=lambda name: name != before.primary)
    comparisons = []
    for name in shared:
        metric = before.metrics[name]
        comparisons.append(
            Comparison(
                suite=before.suite,
                name=before.name,
                metric=name,
                unit=metric.unit,
                higher_is_better=metric.higher_is_better,
                n=metric.n,
                before=metric.value,
                after=after.metrics[name].value,
                difference=math.nan,
                interval=(math.nan, math.nan),
                p_value=math.nan,
                test="none",
                primary=name == shared[0],
                confidence=confidence,
                failed=reason,
            )
        )
    return comparisons


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
        """`[n]` float64: how much each sample moves the difference of the last model to the
        first."""
        figure, columns = self.figures[metric], self.columns[metric]
        if np.array_equal(columns[:, :2], columns[:, -2:]):
            return np.zeros(self.n)
        return figure.influence(columns[:, -2:]) - figure.influence(columns[:, :2])


def sheet_of(
    rows: Sequence[Rows], evaluations: Sequence[Evaluation], *, one_tokenizer: bool = True
) -> Sheet:
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
    weights = cluster_weights(rows[0], clusters)
    first, *others = evaluations
    for name, metric in sorted(first.metrics.items(), key=lambda item: item[0] != first.primary):
        if not all(name in evaluation.metrics for evaluation in others):
            left_out[name] = "was not measured for every model"
            continue
        ratios, parts = [], []
        for rows_of_model in rows:
            ratio = figure_for(
                name, rows_of_model, higher_is_better=metric.higher_is_better, unit=metric.unit
            )
            if ratio is not None:
                ratios.append(ratio)
                parts.append(ratio.columns(rows_of_model))
        if len(ratios) < len(rows):
            left_out[name] = _why_no_pairs(name, rows)
            continue
        denominators = [columns_of_model[:, 1] for columns_of_model in parts]
        if one_tokenizer and not all(
            np.array_equal(denominators[0], other) for other in denominators
        ):
            left_out[name] = (
                f"divides by {ratios[0].denominator}, which the two tokenizers count differently"
            )
            continue
        are_shares = [is_share(e.metrics[name].unit, name) for e in evaluations]
        if _on_other_scales(parts, are_shares):
            left_out[name] = (
                "is a share in [0, 1] for one model, and below 0 or above 1 for the other"
            )
            continue
        figures[name] = ratios[0]
        columns[name] = by_cluster(np.hstack(parts), clusters) * weights
    n = len(rows[0]) if clusters is None else int(clusters.max()) + 1
    return Sheet(n=n, figures=figures, columns=columns, left_out=left_out)


def _on_other_scales(parts: Sequence[np.ndarray], are_shares: Sequence[bool]) -> bool:
    """Whether one model's scores are shares and another's cannot be: percentages, or sums.

    Args:
        parts: `[n, 2]` a model: numerator and denominator of each sample.
        are_shares: of each model, whether the metric's name or unit is that of a share. Scores that
            are all 0 have no scale.
    """
    one_is_share = False
    one_is_beyond = False
    for columns, is_share_by_name in zip(parts, are_shares, strict=True):
        numerators, denominators = columns.T
        if (numerators < 0).any() or (numerators > denominators).any():
            one_is_beyond = True
        elif is_share_by_name and numerators.any():
            one_is_share = True
    return one_is_share and one_is_beyond


def _why_no_pairs(metric: str, rows: Sequence[Rows]) -> str:
    """Why a metric is no ratio of sums over samples."""
    column = TEXT_FIGURES[metric].numerator if metric in TEXT_FIGURES else metric
    for rows_of_model in rows:
        if any(column in row for row in rows_of_model):
            return "has no number for some samples"
    return "is not a mean over samples, so it cannot be paired"


def compare_columns(
    sheet: Sheet, entry: Evaluation, options: ComparisonOptions
) -> list[Comparison]:
    """Compares the metrics of two models whose samples lie side by side, the one that leads first.

    Args:
        sheet: of the two.
        entry: the side before: names the entry and the metric that leads.
        options: level of the intervals, and losses that do not matter.
    """
    comparisons = []
    for name, figure in sorted(sheet.figures.items(), key=lambda item: item[0] != entry.primary):
        columns = sheet.columns[name]
        before, after = (
            float(figure.of_sums(columns[:, :2].sum(0))),
            float(figure.of_sums(columns[:, 2:].sum(0))),
        )
        comparisons.append(
            compared(
                _test(sheet, entry, name, (before, after)),
                entry,
                name,
                values=(before, after),
                n=int(_applies(columns).sum()),
                unit=figure.unit,
                higher_is_better=figure.higher_is_better,
                options=options,
            )
        )
    return comparisons


def _test(
    sheet: Sheet, entry: Evaluation, metric: str, values: tuple[float, float]
) -> Flips | Moments:
    """The test of one metric's difference: of answers that flipped, or of what each sample
    contributes."""
    figure, columns = sheet.figures[metric], sheet.columns[metric]
    applies = _applies(columns)
    columns = columns[applies]
    is_mean = figure.denominator in (None, f"{metric}#")
    if is_mean and bool((columns[:, [1, 3]] == 1).all()):
        scores = columns[:, [0, 2]]
        changes = scores[:, 1] - scores[:, 0]
        is_unchanged_share = not changes.any() and is_share(
            figure.unit, metric, (scores.min(), scores.max())
        )
        if is_unchanged_share or bool(np.isin(scores, (0.0, 1.0)).all()):
            return Flips(
                lost=int((changes < 0).sum()), gained=int((changes > 0).sum()), n=len(columns)
            )
    before, after = values
    difference = 0.0 if np.array_equal(columns[:, :2], columns[:, 2:]) else after - before
    influence: Influence = {(entry.suite, entry.name): sheet.influence(metric)[applies]}
    return moments(difference, influence, scale=abs(before) + abs(after))


def _applies(columns: np.ndarray) -> np.ndarray:
    """`[n]` bool: the samples that a figure applies to, of its columns `[n, 4]`; the others count 0
    parts on both sides."""
    return np.asarray((columns[:, [1, 3]] > 0).any(axis=1))


def compared(
    test: Flips | Moments,
    entry: Evaluation,
    metric: str,
    *,
    values: tuple[float, float],
    n: int,
    unit: str,
    higher_is_better: bool,
    options: ComparisonOptions,
) -> Comparison:
    """The record of a test.

    Args:
        test: of the difference.
        entry: the side before.
        metric: name of what was compared.
        values: before and after.
        n: samples.
        unit, higher_is_better: of the metric.
        options: level of the interval, and losses that do not matter.
    """
    about_test: dict[str, Any] = {"test": STUDENT}
    if isinstance(test, Flips):
        about_test = {"test": MCNEMAR, "flips_lost": test.lost, "flips_gained": test.gained}
    else:
        about_test |= {"standard_error": test.error, "skewness": test.skewness, "df": test.df}
    if test.n != n:
        about_test["smallest"] = test.n
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
        interval=test.interval(options.confidence),
        p_value=test.p_value(),
        primary=metric == entry.primary,
        confidence=options.confidence,
        margin=options.margins.of(unit, metric, before, after),
        **about_test,
    )


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Rows of the same samples side by side, and how many have no partner."""

    before: list[Any]
    after: list[Any]
    only_before: int = 0
    only_after: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    """By a column of `ASKED` how many samples of both sides differ in it."""

    @property
    def unpaired(self) -> int:
        """Samples that are left out."""
        return self.only_before + self.only_after + sum(self.changed.values())

    @property
    def n(self) -> int:
        """Distinct samples of both sides."""
        return len(self.before) + self.unpaired

    def remark(self) -> str | None:
        """What a reader should know of samples that are left out; None where there are none."""
        if not self.unpaired:
            return None
        parts = []
        for count, meaning in (
            (self.only_before, "only before"),
            (self.only_after, "only after"),
            *((count, ASKED[column]) for column, count in self.changed.items()),
        ):
            if count:
                parts.append(f"{count:,} {meaning}")
        return (
            f"{self.unpaired:,} of {self.n:,} samples ({self.unpaired / self.n:.2%}) were "
            f"measured on one model only and are left out: {', '.join(parts)}."
        )


ASKED = {
    "prompt": "with another prompt",
    "target": "with another right answer or other options",
    "cluster": "in another cluster",
}
"""Columns that decide what a sample asks, and what differs where they do."""


def join(before: Rows, after: Rows, *, what: str = "the evaluation") -> tuple[list[Any], list[Any]]:
    """`join_allowing` where every sample must have its partner."""
    joined = join_allowing(before, after, what=what)
    return joined.before, joined.after


def join_allowing(
    before: Rows, after: Rows, *, what: str = "the evaluation", allow_unpaired: float = 0.0
) -> Joined:
    """Rows of the same samples side by side, in the order of `before`.

    Joined on the document's hash (and the subtask's name); documents that occur more than once are
    joined in the order of their occurrence.

    Args:
        before, after: rows of two models.
        what: the entry's name.
        allow_unpaired: as of `ComparisonOptions`.

    Raises:
        DataError: more samples than allowed occur on one side only, or with other prompts or right
            answers.
    """
    samples_before, samples_after = _samples(before), _samples(after)
    earlier, later, only_before, only_after = before, after, 0, 0
    if samples_before != samples_after:  # as a rule: the same samples in the same order
        keys = _numbered(samples_before)
        numbers = {key: number for number, key in enumerate(_numbered(samples_after))}
        earlier, later = [], []
        for row, key in zip(before, keys, strict=True):
            if key in numbers:
                earlier.append(row)
                later.append(after[numbers[key]])
        only_before, only_after = len(keys) - len(earlier), len(numbers) - len(earlier)
    joined = _without_changed(earlier, later, only_before, only_after)
    if joined.unpaired > allow_unpaired * joined.n:
        limit = (
            f" At most {100 * allow_unpaired:.3g} % of samples may be unpaired (--allow_unpaired)."
            if allow_unpaired
            else ""
        )
        raise DataError(f"{what}: {_why_not_joined(joined, len(before), len(after))}{limit}")
    return joined


def _without_changed(
    before: Rows, after: Rows, only_before: int = 0, only_after: int = 0
) -> Joined:
    """Pairs that were asked alike."""
    changed = dict.fromkeys(ASKED, 0)
    alike: tuple[list[Any], list[Any]] = ([], [])
    for earlier, later in zip(before, after, strict=True):
        for column in ASKED:
            if earlier.get(column) != later.get(column):
                changed[column] += 1
                break
        else:
            alike[0].append(earlier)
            alike[1].append(later)
    return Joined(
        before=alike[0],
        after=alike[1],
        only_before=only_before,
        only_after=only_after,
        changed=changed,
    )


def _why_not_joined(joined: Joined, before: int, after: int) -> str:
    """Why two models with so many samples cannot be compared, and what to do."""
    advice = (
        "Evaluate both with the same data, limit and settings. 'holdfast evaluate' measures an "
        "entry again after its files are deleted."
    )
    if joined.only_before or joined.only_after:
        return (
            f"the two evaluations did not answer the same samples: {joined.only_before} of "
            f"{before} occur only before, and {joined.only_after} of {after} only after. {advice}"
        )
    for column, count in joined.changed.items():
        if count:
            return (
                f"{count} of {before} samples changed between the evaluations (now "
                f"{ASKED[column]}). {advice}"
            )
    raise AssertionError("this is only called if some samples of the two evaluations are unpaired")


def _samples(rows: Rows) -> list[tuple[Any, ...]]:
    return [(row["doc"], row.get("task")) for row in rows]


def _numbered(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Keys with how often each occurred before."""
    counts: dict[tuple[Any, ...], int] = {}
    numbered = []
    for key in keys:
        counts[key] = counts.get(key, -1) + 1
        numbered.append((*key, counts[key]))
    return numbered
