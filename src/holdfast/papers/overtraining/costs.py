"""What an entry costs models of a study and what they score, with what is needed to hold one
against another: seeds and samples are paired, the latter by the correlations in the record
(`statistics.samples_part`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from holdfast.papers.overtraining.record import OvertrainingRecord, TunedModel
from holdfast.records.figure import Figure
from holdfast.records.probe import Sensitivity
from holdfast.records.study import SampleCorrelation
from holdfast.statistics.samples_part import part_of


def tuning_cost(record: OvertrainingRecord, model: TunedModel, entry: str) -> Figure | None:
    """What fine-tuning cost a checkpoint on an entry ("suite/name"); None where it was not
    measured, or a seed has diverged."""
    return _paired(record, model, entry, model.costs, record.correlations)


def tuned_score(record: OvertrainingRecord, model: TunedModel, entry: str) -> Figure | None:
    """The figure of a fine-tuned model on an entry ("suite/name"), whatever its checkpoint scores;
    None as of `tuning_cost`."""
    return _paired(record, model, entry, model.scores_alone, record.score_correlations)


def _paired(
    record: OvertrainingRecord,
    model: TunedModel,
    entry: str,
    figures: Mapping[str, Figure],
    correlations: Sequence[SampleCorrelation],
) -> Figure | None:
    """A model's figure with what is known of how far others go along with it over the samples."""
    figure = figures.get(entry)
    if figure is None or not figure.by_seed:
        return None
    number = record.models.index(model)
    for correlation in correlations:
        suite, name, _ = correlation.entry
        if number in correlation.places and f"{suite}/{name}" == entry:
            samples = part_of(number, {correlation.entry: figure.samples_half}, correlations)
            return dataclasses.replace(figure, samples_part=samples)
    return figure


def change_cost(record: OvertrainingRecord, change: Sensitivity) -> Figure:
    """What a change without training costs a checkpoint, over the seeds of noise."""
    number = record.sensitivities.index(change)
    sign = -1 if change.higher_is_better else 1
    by_seed = {seed: sign * difference for seed, difference in enumerate(change.by_seed)}
    samples = part_of(number, {change.key: change.samples_half}, record.probed_correlations)
    return Figure(
        value=change.harm, by_seed=by_seed, samples_half=change.samples_half, samples_part=samples
    )
