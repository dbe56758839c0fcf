"""Two models on the same samples, paired: what changed, and whether it is more than chance.

Both models answered the same questions, so the question's difficulty cancels in the difference, sample by sample; an
unpaired test would count it as noise (a published example: p = .080 unpaired, p = .008 paired, on the same answers).
Samples are joined on the hash of the document and must have been asked with the same prompt.

Right / wrong metrics are tested with McNemar's exact test, all others with the paired bootstrap
(`holdfast.statistics.paired`), a ratio of sums for text.

The interval is the paired bootstrap's for every metric. One sample says nothing: its interval is NaN and its p is 1.
Does not correct for looking at many metrics at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation
from holdfast.statistics.estimates import Ratio, Rows, entry_seed, figure_for, joint_sums
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
    before_rows, after_rows = join(before_rows, after_rows, what=f"{evaluation_before.suite}/{evaluation_before.name}")
    names = [name for name in evaluation_before.metrics if name in evaluation_after.metrics]
    names.sort(key=lambda name: name != evaluation_before.primary)
    figures: dict[str, tuple[Ratio, Ratio]] = {}
    for name in names:
        metric = evaluation_before.metrics[name]
        pair = [
            figure_for(name, rows, higher_is_better=metric.higher_is_better, unit=metric.unit)
            for rows in (before_rows, after_rows)
        ]
        if pair[0] is not None and pair[1] is not None:
            figures[name] = (pair[0], pair[1])
    if not figures:
        return []
    columns = {
        name: np.hstack([before.columns(before_rows), after.columns(after_rows)])
        for name, (before, after) in figures.items()
    }
    key = (evaluation_before.suite, evaluation_before.name)
    return compare_columns(
        {name: figure for name, (figure, _) in figures.items()},
        columns,
        joint_sums(columns, resamples=resamples, seed=entry_seed(seed, key)),
        evaluation_before,
        confidence=confidence,
    )


def compare_columns(
    figures: Mapping[str, Ratio],
    columns: Mapping[str, np.ndarray],
    sums: Mapping[str, np.ndarray],
    entry: Evaluation,
    *,
    confidence: float = 0.95,
) -> list[Comparison]:
    """Compares metrics of two models whose samples lie side by side already.

    Args:
        figures: the metrics in order, and how each comes out of sums.
        columns: `[n, 4]` float64 a metric: numerator and denominator before, and after.
        sums: `[B, 4]` float64 a metric: those of joint bootstrap samples (`estimates.joint_sums`).
        entry: the side before: names the entry and the metric that leads.
        confidence: level of the intervals, in (0, 1).
    """
    comparisons = []
    for name, figure in figures.items():
        column, drawn = columns[name], sums[name]
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
