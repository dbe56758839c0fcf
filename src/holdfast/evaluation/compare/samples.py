"""Two models on the same samples, paired: what changed, and whether it is more than chance.

Both models answered the same questions, so the question's difficulty cancels in the difference, sample by sample; an
unpaired test would count it as noise (a published example: p = .080 unpaired, p = .008 paired, on the same answers).
Samples are joined on the hash of the document and must have been asked with the same prompt.

Right / wrong metrics are tested with McNemar's exact test, all others with the paired bootstrap
(`holdfast.statistics.paired`), a ratio of sums for text.

The interval is the paired bootstrap's for every metric. One sample says nothing: its interval is NaN and its p is 1.
Where a sample or a figure of either model is NaN or infinite nothing is compared, and `Comparison.failed` says why.
Does not correct for looking at many metrics at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, why_not_finite
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio, Rows, entry_seed, figure_for, joint_sums
from holdfast.statistics.paired import BOOTSTRAP, MCNEMAR, mcnemar_exact, paired_bootstrap


def compare_samples(
    before_rows: Rows,
    after_rows: Rows,
    evaluation_before: Evaluation,
    evaluation_after: Evaluation,
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> list[Comparison]:
    """Compares all metrics that both evaluations have and that their rows carry, the primary one first.

    Args:
        before_rows: per-sample rows of the starting model, see `holdfast.records.evaluation.Evaluation`.
        after_rows: those of the result; the order need not be the same.
        evaluation_before: what the rows belong to.
        evaluation_after: likewise.
        confidence: level of the intervals, in (0, 1).
        resamples: bootstrap draws B.
        seed: of the draws, together with the entry's suite and name; all metrics share them.

    Raises:
        DataError: the two did not answer the same samples with the same prompts; the message counts them.
    """
    evaluations = (evaluation_before, evaluation_after)
    rows = join(before_rows, after_rows, what=f"{evaluation_before.suite}/{evaluation_before.name}")
    if reason := why_failed(evaluations, rows):
        return failed_comparisons(evaluations, reason, confidence=confidence)
    sheet = sheet_of(rows, evaluations, one_tokenizer=False)
    if not sheet.figures:
        return []
    seed = entry_seed(seed, (evaluation_before.suite, evaluation_before.name))
    sums = joint_sums(sheet.columns, resamples=resamples, seed=seed)
    return compare_columns(sheet, sums, evaluation_before, confidence=confidence)


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
    figures: dict[str, Ratio]
    """The metric that leads comes first."""
    columns: dict[str, np.ndarray]
    """`[n, 2K]` float64 a metric: numerator and denominator of model 0, of model 1, ..."""
    left_out: dict[str, str]
    """Metrics that cannot be paired: why."""

    def values(self, metric: str, sums: np.ndarray) -> np.ndarray:
        """Figures `[..., K]` of sums `[..., 2K]`."""
        return self.figures[metric].of_sums(sums.reshape(*sums.shape[:-1], -1, 2))


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
        figures[name], columns[name] = known[0], np.hstack(made)
    return Sheet(n=len(rows[0]), figures=figures, columns=columns, left_out=left_out)


def compare_columns(
    sheet: Sheet, sums: Mapping[str, np.ndarray], entry: Evaluation, *, confidence: float = 0.95
) -> list[Comparison]:
    """Compares the metrics of two models whose samples lie side by side, the one that leads first.

    Args:
        sheet: of the two.
        sums: `[B, 4]` float64 a metric: those of joint bootstrap samples (`estimates.joint_sums`).
        entry: the side before: names the entry and the metric that leads.
        confidence: level of the intervals, in (0, 1).
    """
    comparisons = []
    for name, figure in sorted(sheet.figures.items(), key=lambda item: item[0] != entry.primary):
        column, drawn = sheet.columns[name], sums[name]
        n = len(column)
        before, after = (float(figure.of_sums(column[:, i : i + 2].sum(0))) for i in (0, 2))
        draws = figure.of_sums(drawn[:, 2:]) - figure.of_sums(drawn[:, :2])
        same = np.array_equal(column[:, :2], column[:, 2:])
        difference = 0.0 if same else after - before
        interval, p_value = paired_bootstrap(draws, n=n, same=same, confidence=confidence)
        test = BOOTSTRAP
        lost = gained = None
        if figure.denominator is None and _right_or_wrong(column[:, [0, 2]]):
            lost, gained = (int(((column[:, 2] - column[:, 0]) == sign).sum()) for sign in (-1.0, 1.0))
            test, p_value = MCNEMAR, mcnemar_exact(lost, gained)
        comparisons.append(
            Comparison(
                suite=entry.suite,
                name=entry.name,
                metric=name,
                unit=figure.unit,
                higher_is_better=figure.higher_is_better,
                n=n,
                before=before,
                after=after,
                difference=difference,
                interval=interval,
                p_value=p_value,
                test=test,
                primary=name == entry.primary,
                confidence=confidence,
                flips_lost=lost,
                flips_gained=gained,
            )
        )
    return comparisons


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
