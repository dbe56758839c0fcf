"""What an entry costs models of a study, with what is needed to hold one cost against another: seeds and samples are
paired, the latter by the correlations in the record (`statistics.samples_part`)."""

from __future__ import annotations

import math

from holdfast.records.overtraining import OvertrainingRecord, TunedModel
from holdfast.records.probe import Sensitivity
from holdfast.statistics.gains import OverSeeds
from holdfast.statistics.samples_part import part_of


def tuning_cost(record: OvertrainingRecord, model: TunedModel, entry: str) -> OverSeeds | None:
    """What fine-tuning cost a checkpoint on an entry ("suite/name"); None where it was not measured, or a seed has
    diverged."""
    f = model.figures.get(entry)
    if f is None or not f.cost_by_seed or not math.isfinite(f.cost):
        return None
    named = (model.task, model.arm, model.rate, model.checkpoint)
    place = next(n for n, m in enumerate(record.models) if (m.task, m.arm, m.rate, m.checkpoint) == named)
    own = next((c.entry for c in record.correlations if place in c.places and "/".join(c.entry[:2]) == entry), None)
    return OverSeeds(
        value=f.cost,
        by_seed={int(seed): v for seed, v in f.cost_by_seed.items()},
        samples_half=f.samples_half,
        samples_part=None if own is None else part_of(place, {own: f.samples_half}, record.correlations),
    )


def change_cost(record: OvertrainingRecord, change: Sensitivity) -> OverSeeds:
    """What a change without training costs a checkpoint, over the seeds of noise."""
    place = record.sensitivities.index(change)
    return OverSeeds(
        value=change.harm,
        by_seed={n: (-v if change.higher_is_better else v) for n, v in enumerate(change.by_seed)},
        samples_half=change.samples_half,
        samples_part=part_of(place, {change.key: change.samples_half}, record.probed_correlations),
    )
