"""A forecast of losses from early signs: ridge regression with intervals that were seen to hold on runs left out.

With z the standardised features of a run and t = asinh(loss / resolution), which is linear near 0 and logarithmic in
large losses of either sign,

    t = intercept + z . weights + error       weights by ridge regression, its penalty by the errors on groups left out
    t +- half                                 half: the level's quantile of |error| over groups left out

The interval is the split-free conformal one of cross-validation ("CV+" with its centre at the full fit: Barber, Candès,
Ramdas and Tibshirani 2021, Predictive inference with the jackknife+). A group is all runs that differ by nothing but
their seed: the errors of its members are alike, and it is left out whole. Such an interval says nothing of runs unlike
those that were fitted on, so a feature beyond their range is refused, and `held_out` measures on purpose what happens
to runs with data, models, rates or methods that the fit has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.errors import DataError
from holdfast.records.forecast import HeldOut, Linear, Predicted

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Of the ridge, times the number of rows over 100."""
MARGIN, SLACK = 0.1, 0.15
"""How far beyond the range of a feature a forecast goes: a share of the range, and at least so much (of a logarithm to
the base of 10: 40 %)."""
FEWEST_GROUPS = 12
"""For a fit."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One entry of one run whose end is known."""

    run: str
    entry: str
    unit: str
    features: Mapping[str, float]
    loss: float
    axes: Mapping[str, str]
    """What the run was made of, by axis; equal axes are one group."""
    parameters: int = 0
    signs: str = ""
    """Fingerprint of the run's early signs."""

    @property
    def group(self) -> tuple[str, ...]:
        """Runs that differ by their seed alone."""
        return tuple(self.axes.values())


def fit(examples: Sequence[Example], *, resolution: float, level: float) -> Linear:
    """The regression of examples of one unit.

    Args:
        examples: with the same features, all finite.
        resolution: below it losses count linearly, above it logarithmically; in the unit.
        level: of the intervals.

    Raises:
        DataError: fewer than `FEWEST_GROUPS` groups of runs, or too few rows for the level.
    """
    groups = {example.group for example in examples}
    if len(groups) < FEWEST_GROUPS:
        raise DataError(
            f"Expected at least {FEWEST_GROUPS} runs that differ by more than their seed, got {len(groups)}. Fit on "
            f"more: other data, learning rates and methods."
        )
    names = list(examples[0].features)
    x = np.array([[e.features[n] for n in names] for e in examples])
    t = np.arcsinh(np.array([e.loss for e in examples]) / resolution)
    of = np.array([sorted(groups).index(e.group) for e in examples])
    penalty, errors = min(((p, _errors_left_out(x, t, of, p)) for p in PENALTIES), key=lambda one: _mean_square(one[1]))
    centre, scale, weights, intercept = _ridge(x, t, penalty)
    rank = math.ceil((len(errors) + 1) * level)
    if rank > len(errors):
        raise DataError(
            f"Expected at least {math.ceil(level / (1 - level))} measures for intervals of {100 * level:g} %, got "
            f"{len(errors)}. Fit on more runs, or lower the level."
        )
    return Linear(
        unit=examples[0].unit,
        features=names,
        resolution=resolution,
        centre=centre.tolist(),
        scale=scale.tolist(),
        weights=weights.tolist(),
        intercept=intercept,
        penalty=penalty,
        half=float(np.sort(np.abs(errors))[rank - 1]),
        low=x.min(0).tolist(),
        high=x.max(0).tolist(),
        rows=len(examples),
        groups=len(groups),
    )


def outside(linear: Linear, features: Mapping[str, float]) -> str:
    """The feature that is beyond what was fitted on, with its range, in words; "" where none is."""
    for name, low, high in zip(linear.features, linear.low, linear.high, strict=True):
        value, reach = features[name], max(SLACK, MARGIN * (high - low))
        if not math.isfinite(value):
            return f"{name} is not finite"
        if not low - reach <= value <= high + reach:
            return f"{name} {value:.3g} (fitted on {low:.3g} to {high:.3g})"
    return ""


def predict(linear: Linear, features: Mapping[str, float]) -> tuple[float, tuple[float, float]]:
    """(loss, interval) in the unit."""
    x = np.array([features[name] for name in linear.features])
    z = (x - np.array(linear.centre)) / np.array(linear.scale)
    t = float(z @ np.array(linear.weights)) + linear.intercept
    low, middle, high = (linear.resolution * math.sinh(v) for v in (t - linear.half, t, t + linear.half))
    return middle, (low, high)


def held_out(
    examples: Sequence[Example], axis: str, *, resolution: float, level: float
) -> tuple[HeldOut, list[Predicted]] | None:
    """What becomes of runs of each value of an axis, predicted by a fit on the runs with other values.

    Args:
        examples: of one unit.
        axis: of `Example.axes`.
        resolution: see `fit`.
        level: of the intervals.

    Returns:
        None where the axis has one value, or no value leaves enough runs to fit on.
    """
    found, refused, values = list[Predicted](), 0, 0
    for value in sorted({e.axes[axis] for e in examples}):
        apart = [e for e in examples if e.axes[axis] == value]
        rest = [e for e in examples if e.axes[axis] != value]
        if len({e.group for e in rest}) < FEWEST_GROUPS:
            continue
        linear, values = fit(rest, resolution=resolution, level=level), values + 1
        for example in apart:
            if outside(linear, example.features):
                refused += 1
                continue
            loss, interval = predict(linear, example.features)
            found.append(
                Predicted(
                    axis=axis, unit=example.unit, value=value, run=example.run, entry=example.entry, came=example.loss,
                    loss=loss, interval=interval,
                )
            )  # fmt: skip
    if not values:
        return None
    unit = examples[0].unit
    return figures(found, axis=axis, unit=unit, values=values, refused=refused, resolution=resolution), found


def figures(
    found: Sequence[Predicted], *, axis: str, unit: str, values: int, refused: int, resolution: float
) -> HeldOut:
    """How near predictions came.

    Args:
        found: of one unit, with what came.
        axis, values: what was held out, and how many of it.
        refused: how many were not predicted.
        resolution: see `fit`.
    """
    came, expected = np.array([p.came for p in found]), np.array([p.loss for p in found])
    inside = [p.interval[0] <= p.came <= p.interval[1] for p in found]
    return HeldOut(
        axis=axis,
        unit=unit,
        values=values,
        rows=len(found),
        refused=refused,
        r2=_r2(came, expected),
        r2_scaled=_r2(np.arcsinh(came / resolution), np.arcsinh(expected / resolution)),
        coverage=float(np.mean(inside)) if found else math.nan,
        width=float(np.median([p.interval[1] - p.interval[0] for p in found])) if found else math.nan,
        error=float(np.median(np.abs(came - expected))) if found else math.nan,
    )


def _ridge(x: np.ndarray, t: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(centre, scale, weights of the standardised features, intercept)."""
    centre, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    z, mean = (x - centre) / scale, float(t.mean())
    penalised = z.T @ z + penalty * len(x) / 100 * np.eye(x.shape[1])
    return centre, scale, np.linalg.solve(penalised, z.T @ (t - mean)), mean


def _errors_left_out(x: np.ndarray, t: np.ndarray, of: np.ndarray, penalty: float) -> np.ndarray:
    """What each row misses by where its group was left out of the fit."""
    errors = np.empty_like(t)
    for group in range(int(of.max()) + 1):
        apart = of == group
        centre, scale, weights, intercept = _ridge(x[~apart], t[~apart], penalty)
        errors[apart] = t[apart] - ((x[apart] - centre) / scale @ weights + intercept)
    return errors


def _mean_square(values: np.ndarray) -> float:
    return float(np.mean(values**2))


def _r2(came: np.ndarray, expected: np.ndarray) -> float:
    spread = float(np.sum((came - came.mean()) ** 2)) if len(came) > 1 else 0.0
    return 1 - float(np.sum((came - expected) ** 2)) / spread if spread > 0 else math.nan
