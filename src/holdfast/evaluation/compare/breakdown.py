"""Where a difference lies: an entry's comparison again on each group of its samples.

Groups are the values of a column (a group's subtask, a subject, a category, a source), and four
lengths of the question, cut at the quartiles. Both models answered the same samples, so both sides
of a group are the same samples too. Each group has the entry's own test; p-values are adjusted for
the number of groups (Holm), two-sided: whoever looks at 57 subjects finds one that moved.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.folders import EntryPair, match_entries, read_evaluations
from holdfast.evaluation.compare.samples import (
    ComparisonOptions,
    Joined,
    compare_samples,
    join_allowing,
)
from holdfast.evaluation.groups import COLUMNS
from holdfast.records.comparison import Breakdown, Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.statistics.estimates import Rows
from holdfast.statistics.family_wise import adjust

LENGTH = "length"
NOT_SAID = "not stated"
"""The group of samples whose column is empty."""
_MOST_GROUPS = 200
"""A column of more values is no category."""
_FEWEST = 10
"""Samples of a length, at least."""

Groups = dict[str, list[int]]
"""Places of the samples by the name of their group."""


def breakdowns(
    before: EvaluationFolder,
    after: EvaluationFolder,
    comparisons: Sequence[Comparison],
    *,
    allow_unpaired: float = 0.0,
) -> list[Breakdown]:
    """The metrics that lead, on each group of the samples.

    Args:
        before, after: folders of the two models.
        comparisons: of them. Those of averages, those that failed and those whose samples are not
            there any more have no groups.
        allow_unpaired: as of `ComparisonOptions`.
    """
    pairs: dict[tuple[str, str], EntryPair] = {}
    with contextlib.suppress(DataError):
        matching = match_entries(read_evaluations(before), read_evaluations(after))
        pairs = {pair.key: pair for pair in matching.pairs}
    results = []
    for c in comparisons:
        pair = pairs.get((c.suite, c.name))
        if pair is None or not c.primary or c.failed is not None or pair.before.kind == "average":
            continue
        try:
            joined = join_allowing(
                before.samples(pair.before.suite, pair.before.name),
                after.samples(pair.after.suite, pair.after.name),
                allow_unpaired=allow_unpaired,
            )
        except (DataError, KeyError):  # the page names what cannot be read
            continue
        for by, groups in _groupings(joined.before):
            breakdown = _breakdown(c, pair, joined, by, groups)
            if len(breakdown.groups) > 1:
                results.append(breakdown)
    return results


def _groupings(rows: Rows) -> Iterator[tuple[str, Groups]]:
    """By what samples are sorted, with their groups."""
    kinds = set()
    for column, by in COLUMNS.items():
        groups = _by_column(rows, column)
        if groups and by not in kinds:
            kinds.add(by)
            yield by, groups
    if groups := _by_length(rows):
        yield LENGTH, groups


def _by_column(rows: Rows, column: str) -> Groups:
    """The samples by a column; empty where that sorts nothing."""
    groups: Groups = {}
    for position, row in enumerate(rows):
        name = str(row.get(column) or NOT_SAID)
        groups.setdefault(name, []).append(position)
    is_category = 1 < len(groups) <= min(_MOST_GROUPS, len(rows) // 2)
    return dict(sorted(groups.items())) if is_category else {}


def _by_length(rows: Rows) -> Groups:
    """The samples by the characters of their question, shortest first; empty where a question was
    not recorded, or where lengths are too few."""
    lengths = [len(str(row.get("question") or "")) for row in rows]
    if not lengths or min(lengths) == 0:
        return {}
    quartiles = np.quantile(lengths, (0.25, 0.5, 0.75), method="lower").tolist()
    cuts = sorted(set(quartiles) - {max(lengths)})
    names = [f"up to {cuts[0]:,} characters"] if cuts else []
    for low, high in itertools.pairwise(cuts):
        names.append(f"{low + 1:,} to {high:,}")
    names += [f"{cut + 1:,} and more" for cut in cuts[-1:]]
    groups: Groups = {name: [] for name in names}
    for position, length in enumerate(lengths if cuts else ()):
        groups[names[bisect.bisect_left(cuts, length)]].append(position)
    are_large = all(len(places) >= _FEWEST for places in groups.values())
    return groups if are_large else {}


def _breakdown(
    c: Comparison, pair: EntryPair, joined: Joined, by: str, groups: Groups
) -> Breakdown:
    """A comparison on each group of its samples."""
    options = ComparisonOptions(confidence=c.confidence)
    before, after = _of_metric(pair.before, c.metric), _of_metric(pair.after, c.metric)
    compared: list[Comparison] = []
    for name, places in groups.items():
        rows_before = [joined.before[position] for position in places]
        rows_after = [joined.after[position] for position in places]
        for group in compare_samples(rows_before, rows_after, before, after, options):
            compared.append(dataclasses.replace(group, name=name, margin=c.margin))
    p_values = [1.0 if math.isnan(group.p_value) else group.p_value for group in compared]
    return Breakdown(
        suite=c.suite,
        name=c.name,
        metric=c.metric,
        by=by,
        groups=compared,
        p_adjusted=adjust(p_values, "holm"),
    )


def _of_metric(e: Evaluation, metric: str) -> Evaluation:
    return dataclasses.replace(e, primary=metric, metrics={metric: e.metrics[metric]})
