"""Shares of what direct fine-tuning did: how much of its gain was kept, how much of its loss
avoided.

    kept = gain on what is learnt / direct's gain        avoided = 1 - gain on what is kept / direct's gain

A share is a ratio a / b of two noisy figures of the same seeds and samples, and there is one kind
of interval for it, Fieller's (1954, "Some problems in interval estimation"): all r for which a - r
b cannot be told from zero,

    (a - r b)^2 <= V_aa - 2 r V_ab + r^2 V_bb

with (co)variances that include the squared critical value. There is none where direct's own change
cannot be told from zero (b^2 <= V_bb): the set is then unbounded.

V is t_{n-1}^2 times the (co)variance of the mean over the n seeds, plus the squared half-widths of
the samples' parts and their covariance. Where a record does not have that (one of an earlier
version, a run whose samples are on another machine), the parts are taken as independent, and the
interval is as a rule too wide, up to three times.

Why not the percentile bootstrap of the ratio: with few samples it covers the true share in 90 to 91
% of cases instead of 95 (Fieller: 93 to 96 %; simulated, docs/log of 2026-11-22).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from holdfast.records.figure import CONFIDENCE, Figure, rescaled
from holdfast.records.study import StudyRecord, TrialRecord
from holdfast.statistics.gains import incomplete, mean_gain
from holdfast.support.quantiles import t_quantile

UNTOLD = "is not significantly different from zero"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """A share of what direct fine-tuning gained or lost, 1 is all of it."""

    value: float | None
    """None where there is nothing to take a share of."""
    interval: tuple[float, float] | None
    """Fieller's at `CONFIDENCE`."""
    reason: str | None
    """Why there is no value, or no interval."""

    @property
    def open(self) -> bool:
        """Whether it is a share of what cannot be told from zero: it might be any number, its value
        says nothing."""
        return self.interval is None and UNTOLD in (self.reason or "")

    def taken_from(self, whole: float) -> Share:
        """`whole` - share, with its interval: the share avoided (1), or the opposite sign (0)."""
        value = None if self.value is None else whole - self.value
        interval = None
        if self.interval is not None:
            low, high = self.interval
            interval = whole - high, whole - low
        return Share(value=value, interval=interval, reason=self.reason)


def fieller(
    a: float, b: float, *, v_aa: float, v_ab: float, v_bb: float
) -> tuple[float, float] | None:
    """Fieller's interval of a / b (module docstring); None where it is not bounded, or a figure is
    not finite.

    Args:
        a: numerator.
        b: denominator.
        v_aa: variance of a times the squared critical value.
        v_ab: their covariance times the same.
        v_bb: variance of b times the same.
    """
    leading = b * b - v_bb
    if leading <= 0 or not math.isfinite(a + b + v_aa + v_ab + v_bb):
        return None
    middle = a * b - v_ab
    root = math.sqrt(max(0.0, middle * middle - leading * (a * a - v_aa)))
    return ((middle - root) / leading, (middle + root) / leading)


def share_over_seeds(
    ours: Figure, direct: Figure, *, confidence: float = CONFIDENCE, what: str = "change"
) -> Share:
    """ours / direct with Fieller's interval over seeds and samples.

    Args:
        ours: a figure with the seeds of `direct`.
        direct: what direct fine-tuning did.
        confidence: level of the interval; other ones than `CONFIDENCE` are for several looks at
            once.
        what: what direct did, in a word, for the reason why there is no interval.
    """
    a, b, n = ours.value, direct.value, len(ours.by_seed)
    widen = rescaled(confidence)
    v_aa, v_bb = (widen * ours.samples_half) ** 2, (widen * direct.samples_half) ** 2
    v_ab = widen**2 * ours.samples_covariance(direct)
    if n > 1:
        seeds = np.array([list(ours.by_seed.values()), [direct.by_seed[s] for s in ours.by_seed]])
        spread = t_quantile(n - 1, 0.5 + confidence / 2) ** 2 * np.cov(seeds) / n
        v_aa += float(spread[0, 0])
        v_ab += float(spread[0, 1])
        v_bb += float(spread[1, 1])
    if not math.isfinite(a + b + v_aa + v_ab + v_bb):
        return _nothing("a figure or its variance is not finite")
    value = a / b if b else None
    if n == 1 and 0 in (ours.samples_half, direct.samples_half):
        return Share(
            value=value, interval=None, reason="neither seeds nor samples give an interval"
        )
    interval = fieller(a, b, v_aa=v_aa, v_ab=v_ab, v_bb=v_bb)
    open_gain = f"direct fine-tuning's own {what} {UNTOLD}"
    return Share(value=value, interval=interval, reason=open_gain if interval is None else None)


def kept_share(ours: Figure, direct: Figure, *, confidence: float = CONFIDENCE) -> Share:
    """How much of direct fine-tuning's gain on what is learnt was kept; no value where it gained
    nothing."""
    if direct.value <= 0:
        return _nothing("direct fine-tuning gained nothing on learn")
    return share_over_seeds(ours, direct, confidence=confidence, what="gain")


def avoided_share(ours: Figure, direct: Figure, *, confidence: float = CONFIDENCE) -> Share:
    """How much of direct fine-tuning's loss on what is kept was avoided; no value where it lost
    nothing."""
    if direct.value >= 0:
        return _nothing("direct fine-tuning lost nothing on keep")
    return share_over_seeds(ours, direct, confidence=confidence, what="loss").taken_from(1.0)


def shares(trial: TrialRecord, record: StudyRecord) -> tuple[Share, Share]:
    """(share of direct fine-tuning's learn gain kept, share of its keep loss avoided), over seeds
    and samples.

    A share above 1 kept more than direct gained; below 0 it lost. Values are None where direct
    gained (or lost) nothing, or either trial is incomplete.
    """
    direct = record.direct
    if trial is direct:
        nothing = _nothing("the trial is direct fine-tuning, which all shares are relative to")
        return nothing, nothing
    if direct is None or incomplete(direct, record):
        nothing = _nothing("direct fine-tuning is not finished")
        return nothing, nothing
    gain_of = functools.partial(mean_gain, seeds=record.seeds, correlations=record.correlations)
    learn, direct_learn = gain_of(trial, record.learn), gain_of(direct, record.learn)
    keep, direct_keep = gain_of(trial, record.keep), gain_of(direct, record.keep)
    if learn is None or keep is None or direct_learn is None or direct_keep is None:
        nothing = _nothing("the trial lacks seeds or measurements")
        return nothing, nothing
    return kept_share(learn, direct_learn), avoided_share(keep, direct_keep)


def _nothing(reason: str) -> Share:
    return Share(value=None, interval=None, reason=reason)
