"""What an entry costs models of a study and what they score, with what is needed to hold one against another: seeds and
samples are paired, the latter by the correlations in the record (`statistics.samples_part`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from holdfast.papers.overtraining.record import OvertrainingRecord, TunedModel
from holdfast.records.figure import Figure, SamplesPart
from holdfast.records.probe import Sensitivity
from holdfast.records.study import SampleCorrelation
from holdfast.statistics.samples_part import part_of


def tuning_cost(record: OvertrainingRecord, model: TunedModel, entry: str) -> Figure | None:
    """What fine-tuning cost a checkpoint on an entry ("suite/name"); None where it was not measured, or a seed has
    diverged."""
    f = model.figures.get(entry)
    if f is None or not f.cost_by_seed or not math.isfinite(f.cost):
        return None
    part = _part(record, model, entry, f.samples_half, record.correlations)
    return _over(f.cost, f.cost_by_seed, f.samples_half, part)


def tuned_score(record: OvertrainingRecord, model: TunedModel, entry: str) -> Figure | None:
    """The figure of a fine-tuned model on an entry ("suite/name"), whatever its checkpoint scores; None as of
    `tuning_cost`."""
    f = model.figures.get(entry)
    if f is None or not f.value_by_seed or not math.isfinite(f.value):
        return None
    part = _part(record, model, entry, f.value_half, record.score_correlations)
    return _over(f.value, f.value_by_seed, f.value_half, part)


def _over(value: float, by_seed: Mapping[str, float], half: float, part: SamplesPart | None) -> Figure:
    found = {int(seed): v for seed, v in by_seed.items()}
    return Figure(value=value, by_seed=found, samples_half=half, samples_part=part)


def _part(
    record: OvertrainingRecord, model: TunedModel, entry: str, half: float, known: Sequence[SampleCorrelation]
) -> SamplesPart | None:
    """The samples' part of a model's figure; None where it is not known how far others go along with it."""
    named = (model.task, model.arm, model.rate, model.checkpoint)
    place = next(n for n, m in enumerate(record.models) if (m.task, m.arm, m.rate, m.checkpoint) == named)
    own = next((c.entry for c in known if place in c.places and "/".join(c.entry[:2]) == entry), None)
    return None if own is None else part_of(place, {own: half}, known)


def change_cost(record: OvertrainingRecord, change: Sensitivity) -> Figure:
    """What a change without training costs a checkpoint, over the seeds of noise."""
    place = record.sensitivities.index(change)
    return Figure(
        value=change.harm,
        by_seed={n: (-v if change.higher_is_better else v) for n, v in enumerate(change.by_seed)},
        samples_half=change.samples_half,
        samples_part=part_of(place, {change.key: change.samples_half}, record.probed_correlations),
    )
