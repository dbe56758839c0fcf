"""From the evaluations of a probe to what each change costs, with intervals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.contributions import Pair, sample_correlation
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.compare.samples import ComparisonOptions
from holdfast.evaluation.probe.changes import Change
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.figure import Figure, SamplesPart, seeds_and_samples
from holdfast.records.probe import (
    AS_IT_IS,
    NOISE,
    TOWARD,
    Inflection,
    ProbedModel,
    Sensitivity,
    Trend,
)
from holdfast.records.study import Entry, SampleCorrelation
from holdfast.statistics.estimates import Ratio, by_cluster, clusters_of, figure_for
from holdfast.statistics.gains import NOTHING, half_width, interval_sources
from holdfast.statistics.inflection import Turn, turn
from holdfast.statistics.samples_part import part_of

Along = TypeVar("Along", Trend, Inflection)
Size = tuple[str, str, float]
"""Kind, label and size of a change."""


def sensitivities(
    out: Path, label: str, changes: Sequence[Change], *, confidence: float, seed: int = 0
) -> list[Sensitivity]:
    """What every change costs one model in the metric that leads each entry, paired sample by
    sample with the model as it is.

    Args:
        out: the probe's folder.
        label: the model's.
        changes: all of them.
        confidence: level of the intervals, which cover the samples and, of noise, its seeds.
        seed: of the comparisons.

    Raises:
        DataError: evaluations that cannot be read, or that are not of the same samples.
    """
    start, options = (
        EvaluationFolder(out / label / AS_IT_IS),
        ComparisonOptions(confidence=confidence, seed=seed),
    )
    costs = []
    for alike in _by_size(changes).values():
        comparisons = []
        for change in alike:
            folder = EvaluationFolder(out / label / change.name)
            comparisons.append(compare_folders(start, folder, options)[0])
        for entry in zip(*comparisons, strict=True):
            costs.append(_over_seeds(label, alike[0], entry, confidence))
    return costs


def _by_size(changes: Sequence[Change]) -> dict[Size, list[Change]]:
    """Changes that differ in their seed alone."""
    by_size: dict[Size, list[Change]] = {}
    for change in changes:
        by_size.setdefault((change.kind, change.label, change.size), []).append(change)
    return by_size


def _over_seeds(
    label: str, change: Change, entry: Sequence[Comparison], confidence: float
) -> Sensitivity:
    """One entry under one change, over the seeds of its noise."""
    first = entry[0]
    broken = [c for c in entry if c.failed is not None]
    # a figure that overflows is as bad as can be: it is not left out of a mean
    worst = -math.inf if first.higher_is_better else math.inf
    by_seed = [worst if c.failed is not None else c.difference for c in entry]
    interval, samples, covers = None, 0.0, NOTHING
    if not broken:
        samples = max(filter(math.isfinite, map(half_width, entry)), default=0.0)
        interval = seeds_and_samples(by_seed, samples, confidence=confidence)
        covers = interval_sources(len(entry), samples)
    failed = "not finite" if broken else ""
    if broken and change.kind == NOISE:
        failed = f"not finite with {len(broken)} of {len(entry)} seeds"
    difference = sum(by_seed) / len(by_seed)
    return Sensitivity(
        model=label,
        kind=change.kind,
        label=change.label,
        size=change.size,
        entry=f"{first.suite}/{first.name}",
        metric=first.metric,
        unit=first.unit,
        higher_is_better=first.higher_is_better,
        before=first.before,
        after=first.before + difference,
        difference=difference,
        interval=interval,
        covers=covers,
        by_seed=by_seed,
        samples_half=samples,
        failed=failed,
    )


def trends(
    costs: Sequence[Sensitivity],
    first: str,
    last: str,
    *,
    confidence: float,
    correlations: Sequence[SampleCorrelation] = (),
) -> list[Trend]:
    """How each cost moves between two checkpoints of a ladder.

    Args:
        costs: what changes cost, of both among others.
        first: label of the smallest budget.
        last: of the largest.
        confidence: level of the intervals.
        correlations: see `sample_correlations`; without them samples count as independent.

    Returns:
        One a change and entry. Where one end overflows the difference is infinite; those that
        overflow at both have none and are left out.
    """
    numbers = {}
    for number, cost in enumerate(costs):
        numbers[cost.model, cost.kind, cost.label, cost.size, cost.entry] = number
    trends = []
    for key in dict.fromkeys(key[1:] for key in numbers):
        if (first, *key) not in numbers or (last, *key) not in numbers:
            continue
        pair = [numbers[first, *key], numbers[last, *key]]
        before, after = costs[pair[0]], costs[pair[1]]
        if before.failed and after.failed:
            continue
        parts = []
        for number in pair:
            halves = {costs[number].key: costs[number].samples_half}
            parts.append(part_of(number, halves, correlations))
        difference = SamplesPart.total(zip((-1.0, 1.0), parts, strict=True))
        interval = None
        if not before.failed and not after.failed:
            sign = -1 if before.higher_is_better else 1
            by_seed = [sign * (b - a) for a, b in zip(before.by_seed, after.by_seed, strict=True)]
            half = (
                math.hypot(before.samples_half, after.samples_half)
                if difference is None
                else difference.half
            )
            interval = seeds_and_samples(by_seed, half, confidence=confidence)
        trends.append(
            Trend(
                kind=before.kind,
                label=before.label,
                size=before.size,
                entry=before.entry,
                unit=before.unit,
                first=before.harm,
                last=after.harm,
                difference=Figure(value=after.harm - before.harm, over_samples=interval),
            )
        )
    return trends


def comparable_over_rungs(
    along: Sequence[Along], models: Sequence[ProbedModel]
) -> tuple[list[Along], list[str]]:
    """Those of a ladder's trends or turns whose change is the same at every rung, and a note where
    some are left out.

    Args:
        along: of all changes.
        models: the rungs.
    """
    labels = [model.label for model in models if model.stds == "tensor"]
    others = [trend for trend in along if trend.kind != NOISE]
    if not labels or len(others) == len(along):
        return list(along), []
    note = (
        f"Noise was scaled by the current standard deviations of {', '.join(labels)}. These grow "
        "during training, so the same γ adds more noise at a larger budget, and budgets cannot be "
        "compared. No trend and no inflection point is reported."
    )
    return others, [note]


def sample_correlations(
    out: Path, costs: Sequence[Sensitivity], changes: Sequence[Change]
) -> list[SampleCorrelation]:
    """The correlations of what a change costs the models over the samples of an entry, mean over
    the seeds of noise, for each change and entry. Costs are named by their places in `costs`; those
    that are not finite, or whose metric is no ratio of sums, are left out.

    Args:
        out: the probe's folder.
        costs: what changes cost.
        changes: all of them.
    """
    by_size = _by_size(changes)
    by_entry: dict[tuple[Size, Entry], dict[int, list[Pair]]] = {}
    for number, cost in enumerate(costs):
        folder, size = out / cost.model, (cost.kind, cost.label, cost.size)
        pairs = []
        for change in by_size.get(size, ()):
            pairs.append(
                (EvaluationFolder(folder / AS_IT_IS), EvaluationFolder(folder / change.name))
            )
        by_entry.setdefault((size, cost.key), {})[number] = pairs
    correlations = []
    for (_, entry), pairs_of_costs in by_entry.items():
        correlation, _ = sample_correlation(entry, pairs_of_costs)
        if correlation is not None:
            correlations.append(correlation)
    return correlations


def inflections(
    out: Path, budgets: Mapping[str, float], changes: Sequence[Change], *, confidence: float
) -> list[Inflection]:
    """At which budget the models of a ladder are at their best, as they are and under every change.

    Args:
        out: the probe's folder.
        budgets: tokens by label, rising.
        changes: all of them.
        confidence: level of the intervals.

    Returns:
        One a change and entry; none of an entry whose figure is no ratio of sums (BLEU), and none
        of a change under which every model overflows.

    Raises:
        DataError: evaluations that cannot be read, or that are not of the same samples.
    """
    names = {(AS_IT_IS, "", 0.0): [AS_IT_IS]}
    for size_of_change, alike in _by_size(changes).items():
        names[size_of_change] = [change.name for change in alike]
    tokens, turns = list(budgets.values()), []
    for (kind, label, size), folders in names.items():
        for entry in EvaluationFolder(out / next(iter(budgets)) / AS_IT_IS).all():
            columns = []
            for budget in budgets:
                columns.append(
                    [columns_of(EvaluationFolder(out / budget / name), entry) for name in folders]
                )
            best = turn_of(columns, confidence=confidence)
            if best is None:
                continue
            turns.append(
                Inflection(
                    kind=kind,
                    label=label,
                    size=size,
                    entry=f"{entry.suite}/{entry.name}",
                    unit=entry.metrics[entry.primary].unit,
                    **turning_point(best, tokens),
                )
            )
    return turns


def turning_point(best: Turn, tokens: Sequence[float]) -> dict[str, Any]:
    """Fields of `records.probe.TurningPoint` that a turn on a ladder gives.

    Args:
        best: where the model is at its best.
        tokens: the budgets, rising.
    """
    low, high = best.interval
    return {
        "tokens": tokens[best.place],
        "interval": (tokens[low], tokens[high]),
        "after": best.losses[-1] - best.losses[best.place],
        "verdict": best.verdict,
        "budgets": list(tokens),
        "chances": list(best.chances),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """One entry of one model: its samples and what its leading figure is made of."""

    figure: Ratio | None
    """None of a figure that is no ratio of sums (BLEU)."""
    documents: list[Any]
    sums: np.ndarray | None
    """`[N, 2]` float64, in the order of `documents`."""


def columns_of(folder: EvaluationFolder, entry: Evaluation) -> Columns | None:
    """What was measured; None where the figure is not finite.

    Args:
        folder: the model's.
        entry: which entry, as it was measured of any model.

    Raises:
        DataError: it was not measured, or cannot be read.
    """
    first, measured = entry.metrics[entry.primary], folder.find(entry.suite, entry.name)
    if measured is None:
        raise DataError(f"Expected {entry.suite}/{entry.name} in {folder.path}, found none.")
    if measured.failed is not None:
        return None
    rows = sorted(folder.samples(entry.suite, entry.name), key=lambda row: str(row["doc"]))
    figure = figure_for(
        entry.primary, rows, higher_is_better=first.higher_is_better, unit=first.unit
    )
    sums = None if figure is None else by_cluster(figure.columns(rows), clusters_of(rows))
    return Columns(figure=figure, documents=[row["doc"] for row in rows], sums=sums)


def turn_of(columns: Sequence[Sequence[Columns | None]], *, confidence: float) -> Turn | None:
    """Where one entry turns along a ladder, or along anything else that has an order.

    Args:
        columns: by budget and seed, see `columns_of`.
        confidence: level of the interval.

    Returns:
        None where no model has a finite figure, or the figure is no ratio of sums.

    Raises:
        DataError: models that were measured on different samples.
    """
    known = [of_model for of_model in itertools.chain(*columns) if of_model is not None]
    if not known or known[0].figure is None:
        return None
    if any(of_model.documents != known[0].documents for of_model in known):
        raise DataError(
            "Expected all models to be measured on the same samples, but their samples differ."
        )
    sums = []
    for models in columns:
        sums.append([None if of_model is None else of_model.sums for of_model in models])
    return turn(known[0].figure, sums, confidence=confidence)


def line_of(
    folder: Path, label: str, changes: Sequence[Change], entry: Any, documents: Sequence[str]
) -> list[tuple[float, float]]:
    """The loss along a line through a model, on some documents of a text entry.

    Args:
        folder: the model's in a probe.
        label: as `Line.label`.
        changes: all of the probe.
        entry: the text entry.
        documents: hashes of its documents.

    Returns:
        (size of the change, nats a token), ascending, 0 among them; infinite where figures are not
        finite. Sizes that were not measured are left out.
    """
    losses = {0.0: _loss(EvaluationFolder(folder / AS_IT_IS), entry, documents)}
    first_seed = next((change.seed for change in changes if change.kind == NOISE), None)
    for change in changes:
        is_of_line = change.kind == TOWARD or (change.kind == NOISE and change.seed == first_seed)
        if is_of_line and label == (change.label or f"noise, seed {change.seed}"):
            losses[change.size] = _loss(EvaluationFolder(folder / change.name), entry, documents)
    return [(size, loss) for size, loss in sorted(losses.items()) if loss is not None]


def _loss(folder: EvaluationFolder, entry: Any, documents: Sequence[str]) -> float | None:
    """Nats a token over some documents; infinite where the evaluation failed, None where there is
    none."""
    evaluation: Evaluation | None = folder.find(entry.suite, entry.name)
    if evaluation is None:
        return None
    if evaluation.failed is not None:
        return math.inf
    rows = {row["doc"]: row for row in folder.samples(entry.suite, entry.name)}
    chosen = [rows[name] for name in documents]
    return math.fsum(row["nats"] for row in chosen) / sum(row["tokens"] for row in chosen)
