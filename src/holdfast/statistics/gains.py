"""What a trial changed: its gain over the start on one side, mean over seeds and entries, with an
interval.

A trial changes two sides: `learn` (what is learnt) and `keep` (what must be kept). On each side a
seed's *gain* is the mean over the side's entries of `Comparison.gain`: against the start, more is
better, in the metric's own unit. A trial's gain is the mean over its seeds.

Intervals (95 %) of a gain cover training seeds and evaluated samples:

    half^2 = (t_{n-1} * s / sqrt(n))^2 + sum_e(h_e^2) / E^2

with n seeds of standard deviation s, and h_e the half-width of the paired interval of entry e, mean
over the seeds. Seeds share their samples, so more seeds do not shrink the second part. One seed
leaves the samples alone; `Gain.covers` says what an interval holds. Trials share their samples as
well: where the study's record says how far they go together, differences and shares of two trials
are of pairs (`statistics.samples_part`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from holdfast.records.comparison import Comparison
from holdfast.records.figure import CONFIDENCE, Figure, rescaled
from holdfast.records.metrics import is_share
from holdfast.records.study import (
    FINISHED,
    Entry,
    Objective,
    SampleCorrelation,
    StudyRecord,
    TrialRecord,
)
from holdfast.statistics.samples_part import part_of

BOTH, SAMPLES, SEEDS, NOTHING = "seeds and samples", "samples only", "seeds only", "nothing"


def interval_sources(seeds: int, samples_half: float) -> str:
    """What an interval covers, given its seeds and the half-width of the samples' part."""
    parts = {
        (True, True): BOTH,
        (False, True): SAMPLES,
        (True, False): SEEDS,
        (False, False): NOTHING,
    }
    return parts[seeds > 1, samples_half > 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain(Figure):
    """What one trial changed on one side: mean over seeds and entries, against the start, more is
    better."""

    before: float
    """The start's figure, mean over entries, in the metric's own direction."""
    after: float
    """The trial's, mean over entries and seeds."""
    unit: str
    """Of `value`."""
    higher_is_better: bool
    samples: int
    """Evaluated samples of all entries together; the same ones for every seed."""

    @property
    def figure(self) -> Figure:
        """The change alone, as records keep it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Figure)}
        return Figure(**fields)

    @property
    def covers(self) -> str:
        """ "seeds and samples", "samples only", "seeds only" or "nothing": the parts of the
        interval."""
        return interval_sources(len(self.by_seed), self.samples_half)

    @property
    def half(self) -> float:
        """Half-width of the interval; NaN without one."""
        return math.nan if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    @property
    def interval_after(self) -> tuple[float, float] | None:
        """The interval around `after`: that of the paired change, so the start counts as known. Of
        a share it ends at 0 and 1."""
        if self.interval is None:
            return None
        low, high = self.after - self.half, self.after + self.half
        share = is_share(self.unit, values=[self.before, self.after])
        return (max(0.0, low), min(1.0, high)) if share else (low, high)


def mean_gain(
    trial: TrialRecord,
    objective: Objective,
    *,
    seeds: Iterable[int] | None = None,
    correlations: Sequence[SampleCorrelation] = (),
) -> Gain | None:
    """A trial's gain on one side with its interval (see the module docstring).

    Args:
        trial: any state.
        objective: a side, or one entry of it.
        seeds: those that must be there; those of the trial's runs by default.
        correlations: of the study's trials over samples, for differences and shares of several.

    Returns:
        None where a seed is not finished, or one of its measures is missing or not finite.
    """
    runs = {run.seed: run.comparisons for run in trial.runs}
    seeds = list(runs) if seeds is None else list(seeds)
    if not set(seeds) <= set(runs):
        return None
    compared = {seed: runs[seed] for seed in seeds}
    return gain_over_seeds(
        compared, objective.entries, trial=trial.number, correlations=correlations
    )


def gain_over_seeds(
    comparisons: Mapping[int, Sequence[Comparison]],
    entries: Sequence[Entry],
    *,
    trial: int = 0,
    correlations: Sequence[SampleCorrelation] = (),
) -> Gain | None:
    """`mean_gain` of comparisons of one pair of models by the training seed of the pair.

    Args:
        comparisons: seed -> what was compared.
        entries: (suite, name, metric) of the measures, of one unit, that are averaged.
        trial: number by which the correlations know the pair.
        correlations: as of `mean_gain`.
    """
    measured: list[list[Comparison]] = []
    for compared in comparisons.values():
        of_entries = measures(compared, entries)
        if of_entries is None:
            return None
        measured.append(of_entries)
    if not measured:
        return None
    first, everything = measured[0], list(itertools.chain(*measured))
    by_seed = [statistics.fmean(c.gain for c in of_seed) for of_seed in measured]
    halves = [[half_width(c) for c in of_seed] for of_seed in measured]
    means = [statistics.fmean(column) / len(entries) for column in zip(*halves, strict=True)]
    samples_half = math.sqrt(sum(half**2 for half in means))
    if not math.isfinite(samples_half):
        samples_half = 0.0
    return Gain(
        value=statistics.fmean(by_seed),
        by_seed=dict(zip(comparisons, by_seed, strict=True)),
        before=statistics.fmean(c.before for c in everything),
        after=statistics.fmean(c.after for c in everything),
        unit=first[0].unit,
        higher_is_better=first[0].higher_is_better,
        samples=sum(c.n for c in first),
        samples_half=samples_half,
        samples_part=part_of(trial, dict(zip(entries, means, strict=True)), correlations),
    )


def measures(
    comparisons: Iterable[Comparison], entries: Sequence[Entry]
) -> list[Comparison] | None:
    """The comparisons of entries, in order; None where one is missing or not finite."""
    by_key = _by_entry(comparisons)
    finite = []
    for entry in entries:
        comparison = by_key.get(entry)
        if comparison is None or comparison.failed is not None:
            return None
        finite.append(comparison)
    return finite or None


def _by_entry(comparisons: Iterable[Comparison]) -> dict[Entry, Comparison]:
    return {(c.suite, c.name, c.metric): c for c in comparisons}


def half_width(comparison: Comparison) -> float:
    """At `CONFIDENCE`, whatever the comparison's own; NaN without an interval."""
    low, high = comparison.interval
    return rescaled(CONFIDENCE, known=comparison.confidence) * (high - low) / 2


def incomplete(trial: TrialRecord, record: StudyRecord) -> str | None:
    """Why a trial cannot be chosen: not complete, a seed or a measure missing; None where it
    can."""
    if trial.state == "lost":
        return "its worker died" + (
            f"; continued as trial {trial.continued_by}" if trial.continued_by is not None else ""
        )
    if trial.state != FINISHED:
        words = {"waiting": "has not begun", "running": "is still running"}.get(
            trial.state, trial.state
        )
        again = (
            f"; continued as trial {trial.continued_by}" if trial.continued_by is not None else ""
        )
        return (f"{words}: {trial.reason}" if trial.reason else words) + again
    trained = {run.seed for run in trial.runs}
    lacking = [seed for seed in record.seeds if seed not in trained]
    if lacking:
        return (
            f"{'seeds' if len(lacking) > 1 else 'seed'} {', '.join(map(str, lacking))} not finished"
        )
    for run in trial.runs:
        by_key = _by_entry(run.comparisons)
        for objective in (record.learn, record.keep, record.chooses_by):
            for entry in objective.entries if run.seed in record.seeds else ():
                if entry not in by_key:
                    return f"seed {run.seed} has no {'/'.join(entry)}"
                if by_key[entry].failed is not None:
                    return f"seed {run.seed}: {'/'.join(entry)} is not finite"
    return None
