"""The win rate at equal lengths of the answers: preferences with the part that the difference in
length explains taken out.

Judges like long answers. The length-controlled win rate fits, over the pairs i,

    P(candidate wins pair i) = sigma(t0 + t1 tanh(d_i / s)),    d_i = characters of the candidate's answer - characters
                                                                of the reference's,

with s the standard deviation of d, and reports sigma(t0): what the win rate would be were the
answers of equal length. The form is that of "Length-Controlled AlpacaEval" (Dubois et al. 2024,
arXiv 2404.04475) without its term for the prompt's difficulty, which needs a leaderboard of models;
so the figure is NOT AlpacaEval's own and must not be compared with theirs. Fitted by maximum
likelihood of the soft preferences,

    sum_i [ y_i log p_i + (1 - y_i) log(1 - p_i) ] - t1^2 / (2 * 2.5^2),

where the penalty, a normal prior of scale 2.5 on t1 (the scale of Gelman et al. 2008 for logistic
coefficients), keeps t1 finite where length tells winners and losers apart without error. t0 is
free, so that equal lengths give the raw win rate exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PRIOR_SCALE = 2.5
"""Standard deviation of the normal prior on t1."""
_LARGEST = 30.0
"""|t0| at most: sigma(30) is 1 to 13 digits, which is what a model that wins every pair gets."""


@dataclass(frozen=True, kw_only=True)
class LengthControlled:
    """The win rate at equal lengths."""

    value: float
    """sigma(t0), in [0, 1]."""
    t0: float
    t1: float
    """Positive: the judge's preferences rise with the length of the candidate's answer."""
    scale: float
    """s, characters; 0 where all pairs are of equal length, and the win rate is the raw one."""


def length_controlled(
    preferences: Sequence[float] | np.ndarray, differences: Sequence[float] | np.ndarray
) -> LengthControlled:
    """The win rate at equal lengths (module docstring).

    Args:
        preferences: `[n]` P(candidate wins), n >= 1.
        differences: `[n]` characters of the candidate's answer minus those of the reference's.
    """
    y, d = np.asarray(preferences, dtype=np.float64), np.asarray(differences, dtype=np.float64)
    n, scale = len(y), float(d.std())
    x = np.tanh(d / scale) if scale > 0 else np.zeros(n)
    t0, t1 = fit(x, y, np.ones((1, n)))[0]
    return LengthControlled(
        value=float(
            _sigmoid(t0) if scale > 0 else y.mean()
        ),  # equal lengths: what the fit gives, without its rounding
        t0=float(t0),
        t1=float(t1),
        scale=scale,
    )


def samplewise(
    preferences: Sequence[float] | np.ndarray,
    differences: Sequence[float] | np.ndarray,
    found: LengthControlled,
) -> np.ndarray:
    """The win rate at equal lengths as a mean over pairs, so that it can be compared like any mean:
    `[n]` values whose mean is `found.value`, and whose spread is that of the infinitesimal
    jackknife (the influence of each pair on the fit, t1 and its prior included). They may lie
    outside of [0, 1].

    Args:
        preferences, differences: as of `length_controlled`.
        found: what it gave of them.
    """
    y, d = np.asarray(preferences, dtype=np.float64), np.asarray(differences, dtype=np.float64)
    if found.scale <= 0:
        return y
    x = np.tanh(d / found.scale)
    p = _sigmoid(found.t0 + found.t1 * x)
    w = p * (1 - p)
    h00, h01, h11 = w.sum() + 1e-12, w @ x, w @ (x * x) + 1 / PRIOR_SCALE**2
    moved = (h11 - h01 * x) * (y - p) / (h00 * h11 - h01 * h01)
    at_equal = found.value * (1 - found.value)
    return np.asarray(found.value + at_equal * len(y) * (moved - moved.mean()))


def fit(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Penalised maximum-likelihood (t0, t1) of weighted pairs, for many weightings at once, by
    Newton's method.

    Args:
        x: `[n]` tanh of the scaled difference of lengths.
        y: `[n]` preferences, in [0, 1].
        counts: `[B, n]` how often each pair occurs.

    Returns:
        `[B, 2]`.
    """
    mean = np.clip((counts @ y) / counts.sum(1), 1e-13, 1 - 1e-13)
    t = np.stack([np.log(mean / (1 - mean)), np.zeros(len(mean))], axis=1)  # exact where x is 0
    penalty = 1 / PRIOR_SCALE**2
    for _ in range(100):
        p = _sigmoid(t[:, :1] + t[:, 1:] * x)
        residual, weight = counts * (y - p), counts * p * (1 - p)
        g0, g1 = residual.sum(1), residual @ x - penalty * t[:, 1]
        h00, h01, h11 = weight.sum(1) + 1e-12, weight @ x, weight @ (x * x) + penalty
        determinant = h00 * h11 - h01 * h01
        step = np.stack([h11 * g0 - h01 * g1, h00 * g1 - h01 * g0], axis=1) / determinant[:, None]
        largest = np.abs(step).max(1, keepdims=True)
        # far from the maximum the curvature is too flat to be believed
        step /= np.maximum(largest, 1.0)
        t = t + step
        t[:, 0] = np.clip(t[:, 0], -_LARGEST, _LARGEST)
        if largest.max() < 1e-11 or (np.abs(t[:, 0]) >= _LARGEST).all():
            break
    return t


def _sigmoid(t: Any) -> Any:
    return 0.5 * (1 + np.tanh(np.asarray(t) / 2))
