"""The samples' part of a figure's noise, kept apart by trial, so that figures of the same samples
compare as pairs.

All trials of a study answer the same samples. What makes one of them gain much on a sample makes
the others gain much on it as well, so most of the noise that the choice of samples brings cancels
in a difference or a ratio of two trials. How much is measured: the correlation, over the samples of
an entry, of what each sample contributes to two trials' gains (its influence, mean over the seeds).
With half-widths h of the gains on entry e, a figure that is linear in gains, sum of w_i times the
gain of trial i on entry e, has

    half^2 = sum_e sum_ij w_ei w_ej h_ei h_ej rho_e(i, j)

and two such figures have the covariance that the same sum gives across. Entries are other samples,
so nothing is shared between them. In the searches without old data (docs/log of 2026-11-27) rho is
0.95 on the entry learnt, and the interval of the share of direct fine-tuning's gain that is kept is
a third as wide as with the parts taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from holdfast.records.figure import SamplesPart
from holdfast.records.study import Entry, SampleCorrelation


def part_of(
    trial: int, halves: Mapping[Entry, float], correlations: Iterable[SampleCorrelation]
) -> SamplesPart | None:
    """The samples' part of a sum of a trial's gains on entries.

    Args:
        trial: its number.
        halves: half-width of each, times its weight.
        correlations: of the study's record; of an entry that has several, that of the trial.

    Returns:
        None where it is not known how far the trial goes along with the others, or a half-width is
        not finite.
    """
    known = {
        correlation.entry: correlation
        for correlation in correlations
        if trial in correlation.places
    }
    parts = {}
    for entry, half in halves.items():
        if entry not in known or not math.isfinite(half):
            return None
        parts[entry, trial] = half
    return SamplesPart(parts=parts, known=known)


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """What the samples of an entry contribute to one change."""

    samples: tuple[str, ...]
    """Hashes of the documents, in the order of `values`."""
    values: np.ndarray
    """`[n]` float64, in the unit of the metric: the influence of each sample on the change, with
    the sum 0."""


def correlation(entry: Entry, changes: Mapping[int, Contributions]) -> SampleCorrelation | None:
    """The correlations of changes over the samples of an entry. A change without any spread has
    none with any other.

    Args:
        entry: (suite, name, metric).
        changes: by number; those of other samples than the first are left out.

    Returns:
        None where there are fewer than two samples.
    """
    samples = next((change.samples for change in changes.values()), ())
    same = {
        number: change.values for number, change in changes.items() if change.samples == samples
    }
    if len(samples) < 2:
        return None
    stacked = np.stack(list(same.values())).astype(np.float64)
    stacked -= stacked.mean(1, keepdims=True)
    size = np.sqrt((stacked**2).sum(1, keepdims=True))
    scaled = np.divide(stacked, size, out=np.zeros_like(stacked), where=size > 0)
    cosines = np.clip(scaled @ scaled.T, -1.0, 1.0)
    rows = []
    for number in range(len(same)):
        rows.append([round(float(cosine), DIGITS) for cosine in cosines[number, :number]])
    return SampleCorrelation(entry=entry, trials=list(same), rows=rows)


DIGITS = 6
"""Of a correlation in the record."""
