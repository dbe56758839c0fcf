"""How far several changes gain on the same samples, read from what was measured before and after
each; and how far several models score on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.samples import join, why_failed
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.study import Entry, SampleCorrelation
from holdfast.statistics.estimates import Rows, by_cluster, clusters_of, figure_for, sample_of
from holdfast.statistics.samples_part import Contributions, correlation

Pair = tuple[EvaluationFolder, EvaluationFolder]
"""Before and after."""
Measured = tuple[EvaluationFolder, ...]
"""A `Pair`, for a change; one folder, for a model's own figure."""


def contributions(
    seeds: Sequence[Measured], entry: Entry, starts: dict[str, list[dict[str, Any]]] | None = None
) -> Contributions:
    """What each sample of an entry contributes to a change, or to a figure; mean over the seeds, of
    the same samples.

    Args:
        seeds: what was measured with each; at least one, all changes or all figures.
        entry: (suite, name, metric).
        starts: by digest, the rows of what changes begin from: read once for all of a study's.
            Filled in.

    Raises:
        DataError: it was not measured of one, its samples are not there or are others, one of them
            is not finite, or the metric is no ratio of sums over samples.
    """
    suite, name, metric = entry
    first_samples: tuple[str, ...] = ()
    values = []
    for sides in seeds:
        evaluations = []
        for side in sides:
            evaluation = side.find(suite, name)
            if evaluation is None or metric not in evaluation.metrics:
                raise DataError(f"{suite}/{name}: {metric} was not measured")
            evaluations.append(evaluation)
        rows: Sequence[Rows] = [sides[-1].samples(suite, name)]
        if len(sides) > 1:
            rows = join(_of_start(sides[0], suite, name, starts), rows[0], what=f"{suite}/{name}")
        if (reason := why_failed(evaluations, rows)) is not None:
            raise DataError(f"{suite}/{name}: {reason}")
        about = evaluations[0].metrics[metric]
        influences = []
        for rows_of_side in rows:
            figure = figure_for(
                metric, rows_of_side, higher_is_better=about.higher_is_better, unit=about.unit
            )
            if figure is None:
                raise DataError(f"{suite}/{name}: {metric} is not a mean over samples")
            influences.append(
                figure.influence(by_cluster(figure.columns(rows_of_side), clusters_of(rows[0])))
            )
        samples = tuple(dict.fromkeys(map(sample_of, rows[0])))
        if first_samples not in ((), samples):
            raise DataError(f"{suite}/{name}: seeds were measured on different samples")
        first_samples = samples
        values.append(influences[-1] - (influences[0] if len(sides) > 1 else 0.0))
    return Contributions(samples=first_samples, values=np.mean(values, axis=0))


def _of_start(
    side: EvaluationFolder, suite: str, name: str, known: dict[str, list[dict[str, Any]]] | None
) -> list[dict[str, Any]]:
    digest = None if known is None else side.digest(suite, name)
    if known is None or digest is None:
        return side.samples(suite, name)
    if digest not in known:
        known[digest] = side.samples(suite, name)
    return known[digest]


def sample_correlation(
    entry: Entry,
    changes: Mapping[int, Sequence[Measured]],
    advance: Callable[[float], None] = lambda done: None,
) -> tuple[SampleCorrelation | None, dict[int, str]]:
    """The correlations of changes, or of figures, over the samples of an entry.

    Args:
        entry: (suite, name, metric).
        changes: by number, what `contributions` takes.
        advance: called with 1 for each.

    Returns:
        The correlations, None where no change has any, and for each change that is left out of them
        why.
    """
    known: dict[int, Contributions] = {}
    left_out: dict[int, str] = {}
    starts: dict[str, list[dict[str, Any]]] = {}
    for number, seeds in changes.items():
        try:
            known[number] = contributions(seeds, entry, starts)
        except (DataError, OSError) as error:
            left_out[number] = str(error)
        advance(1)
    correlations = correlation(entry, known)
    missing = set(known) - set(correlations.trials if correlations is not None else ())
    return correlations, left_out | dict.fromkeys(
        missing, "it has fewer than two samples, or other samples than the first measurement"
    )


def independent(entry: Entry, left_out: Mapping[int, str], of: int, what: str) -> str:
    """A note on changes that cannot be paired over samples, so that theirs are taken as
    independent.

    Args:
        entry: (suite, name, metric).
        left_out: why each is, see `sample_correlation`; at least one.
        of: how many changes there are.
        what: what they are called, plural.
    """
    return (
        f"{entry[0]}/{entry[1]}: {len(left_out)} of {of} {what} cannot be paired with the others "
        "sample by sample. They count as independent, so the intervals of their differences and "
        f"shares are usually too wide. The first reason: {next(iter(left_out.values()))}"
    )
