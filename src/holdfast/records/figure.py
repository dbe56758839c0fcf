"""A figure: a number with what is known of its noise, and how it reads.

Intervals of a figure cover training seeds and evaluated samples:

    half^2 = (t_{n-1} * s / sqrt(n))^2 + h^2

with n seeds of standard deviation s, and h the half-width of the samples' part. Seeds share their
samples, so more seeds do not shrink the second part. All arms of a study answer the same samples,
too: where it is known how far two figures go together over them (`SamplesPart`), their difference
is one of pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.records.study import Entry, SampleCorrelation
from holdfast.support.quantiles import normal_quantile, t_quantile

CONFIDENCE = 0.95
"""The level of intervals where nothing else is asked for."""
Interval = tuple[float, float]


class NotMeasured(HoldfastError):
    """A required figure was not measured. The message names the figure, so that "... was not
    measured" completes it to a sentence."""


def rescaled(confidence: float, *, known: float = CONFIDENCE) -> float:
    """By how much a normal interval at the level `known` grows when it is wanted at
    `confidence`."""
    if confidence == known:
        return 1.0
    return normal_quantile(0.5 + confidence / 2) / normal_quantile(0.5 + known / 2)


def t_half_width(values: Sequence[float], *, confidence: float = CONFIDENCE) -> float:
    """Half-width of the t-interval of the mean of independent values; 0 for a single one, which
    shows no spread, NaN where one is not finite."""
    n = len(values)
    if n < 2:
        return 0.0
    if not all(map(math.isfinite, values)):
        return math.nan
    return t_quantile(n - 1, 0.5 + confidence / 2) * statistics.stdev(values) / math.sqrt(n)


def seeds_and_samples(
    by_seed: Sequence[float], samples_half: float, *, confidence: float = CONFIDENCE
) -> Interval | None:
    """Interval of the mean over seeds that covers training seeds and evaluated samples (module
    docstring).

    Args:
        by_seed: the figure of each seed, at least one.
        samples_half: half-width of the samples' part at `CONFIDENCE`; 0 where it could not be had.
        confidence: level of the interval.

    Returns:
        None for one seed without a samples' part: nothing is known of its noise.
    """
    if len(by_seed) < 2 and samples_half == 0:
        return None
    mean = statistics.fmean(by_seed)
    half = math.hypot(
        t_half_width(by_seed, confidence=confidence), rescaled(confidence) * samples_half
    )
    return (mean - half, mean + half)


@dataclass(frozen=True, kw_only=True)
class SamplesPart:
    """The samples' part of the noise of a figure that is linear in gains of trials
    (`statistics.samples_part`)."""

    parts: Mapping[tuple[Entry, int], float]
    """(entry, trial) -> half-width of that gain at the level of the study, times its weight in the
    figure."""
    known: Mapping[Entry, SampleCorrelation] = field(repr=False, compare=False)

    @property
    def half(self) -> float:
        """Half-width of the samples' part."""
        return math.sqrt(max(0.0, self.covariance(self)))

    def covariance(self, other: SamplesPart) -> float:
        """Covariance with another figure's part, times the squared critical value, in the scale of
        squared half-widths. Entries whose correlations the two figures do not share count as
        independent."""
        covariance = 0.0
        for (entry, number), mine in self.parts.items():
            for (other_entry, two), theirs in other.parts.items():
                if entry == other_entry and self.known[entry] is other.known[entry]:
                    covariance += mine * theirs * self.known[entry].between(number, two)
        return covariance

    def times(self, factor: float) -> SamplesPart:
        """The samples' part of the figure times a known number."""
        return SamplesPart(
            parts={key: factor * half for key, half in self.parts.items()}, known=self.known
        )

    @staticmethod
    def total(parts: Iterable[tuple[float, SamplesPart | None]]) -> SamplesPart | None:
        """The samples' part of a weighted sum of figures. The weights are known numbers. None if
        the part of one figure is unknown, or if two figures have different correlations for an
        entry."""
        halves: dict[tuple[Entry, int], float] = {}
        known: dict[Entry, SampleCorrelation] = {}
        for factor, part in parts:
            if part is None or any(
                known.setdefault(entry, c) is not c for entry, c in part.known.items()
            ):
                return None
            for key, half in part.parts.items():
                halves[key] = halves.get(key, 0.0) + factor * half
        return SamplesPart(parts=halves, known=known)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number with its uncertainty. Figures of the same seeds add and subtract as pairs. So do
    samples, if the correlation of the two figures over samples is known. Otherwise the samples'
    parts count as independent; for figures of the same samples that interval is usually too
    wide."""

    value: float
    """The value; the mean over the seeds, if there are seeds."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """The figure of each training seed."""
    samples_half: float = 0.0
    """Half-width of the samples' part at `CONFIDENCE`; 0 if it is unknown."""
    samples_part: SamplesPart | None = field(default=None, repr=False, compare=False)
    """The components of the samples' part; None if its correlation with other figures is unknown.
    It is not stored with the figure."""
    over_samples: Interval | None = None
    """For one model without seeds: the interval over its samples at `CONFIDENCE`, such as a
    bootstrap interval."""

    @classmethod
    def over_seeds(
        cls,
        by_seed: Mapping[int, float],
        samples_half: float = 0.0,
        samples_part: SamplesPart | None = None,
    ) -> Figure:
        """The mean over seeds. There must be at least one seed."""
        value = statistics.fmean(by_seed.values())
        return Figure(
            value=value, by_seed=by_seed, samples_half=samples_half, samples_part=samples_part
        )

    @property
    def interval(self) -> Interval | None:
        """The interval at `CONFIDENCE`; None if nothing is known of the noise."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> Interval | None:
        """The interval over seeds and samples together; None if the noise of neither is known.

        Args:
            confidence: level of the interval, in (0, 1).
        """
        if self.over_samples is not None:
            if confidence == CONFIDENCE:
                return self.over_samples
            widen = rescaled(confidence)
            low, high = self.over_samples
            return (
                self.value - widen * (self.value - low),
                self.value + widen * (high - self.value),
            )
        if len(self.by_seed) == 1 and self.samples_part is not None and self.samples_half == 0:
            return (self.value, self.value)  # known: no sample tells the two figures apart
        return seeds_and_samples(
            list(self.by_seed.values()) or [self.value], self.samples_half, confidence=confidence
        )

    def samples_covariance(self, other: Figure) -> float:
        """Covariance of the samples' parts of two figures at `CONFIDENCE`, in the scale of squared
        half-widths; 0 if it is unknown."""
        if self.samples_part is None or other.samples_part is None:
            return 0.0
        return self.samples_part.covariance(other.samples_part)

    @property
    def half_over_samples(self) -> float:
        """Half-width of the samples' part, from `over_samples` or `samples_half`; 0 if it is
        unknown."""
        if self.over_samples is None:
            return self.samples_half
        return (self.over_samples[1] - self.over_samples[0]) / 2

    def __sub__(self, other: Figure) -> Figure:
        """The difference, seed by seed of this figure's seeds.

        Raises:
            NotMeasured: the other figure lacks one of the seeds, or only one of the two has seeds.
        """
        if other.by_seed and not self.by_seed:
            raise NotMeasured("a figure of each training seed")
        for seed in self.by_seed:
            if seed not in other.by_seed:
                raise NotMeasured(f"a figure of training seed {seed}")
        samples_part = SamplesPart.total([(1.0, self.samples_part), (-1.0, other.samples_part)])
        half = (
            math.hypot(self.half_over_samples, other.half_over_samples)
            if samples_part is None
            else samples_part.half
        )
        if not self.by_seed:
            return Figure(
                value=self.value - other.value, samples_half=half, samples_part=samples_part
            )
        differences = {seed: value - other.by_seed[seed] for seed, value in self.by_seed.items()}
        return Figure.over_seeds(differences, half, samples_part)

    def __add__(self, other: Figure) -> Figure:
        return self - other * -1.0

    def __mul__(self, factor: float) -> Figure:
        return Figure(
            value=factor * self.value,
            by_seed={seed: factor * value for seed, value in self.by_seed.items()},
            samples_half=abs(factor) * self.half_over_samples,
            samples_part=None if self.samples_part is None else self.samples_part.times(factor),
        )

    __rmul__ = __mul__

    def to_json(self) -> dict[str, Any]:
        """The figure as records store it: the interval for readers, and the fields that it is
        computed from."""
        stored: dict[str, Any] = {"value": self.value, "interval": self.interval}
        if self.by_seed:
            stored |= {"by_seed": dict(self.by_seed), "samples_half": self.samples_half}
        return stored

    @classmethod
    def fields_from_json(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a stored figure. Its interval is read only if there are no seeds to compute
        it from."""
        if value.get("by_seed"):
            return {key: item for key, item in value.items() if key != "interval"}
        return {**value, "over_samples": value.get("interval")}
