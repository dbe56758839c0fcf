"""The merge methods as plain functions on arrays, in the arithmetic of the engine: what the tests compare its blocks
with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast.checkpoints.methods.linear import mean_shares
from holdfast.checkpoints.methods.model_stock import stock_ratio
from holdfast.checkpoints.methods.slerp import slerp_weights
from holdfast.checkpoints.methods.ties import elect, kept


def linear(
    models: Sequence[np.ndarray], weights: Sequence[float] | None = None, *, normalize: bool = True
) -> np.ndarray:
    """Weighted mean of models, or their weighted sum.

    Args:
        models: float32 or float64 arrays of one shape and dtype, one or more.
        weights: one a model; None: 1 each.
        normalize: divide by the sum of the weights.

    References: Wortsman et al., Model soups, ICML 2022 (arXiv:2203.05482).
    """
    weights = [1.0] * len(models) if weights is None else weights
    if not normalize:
        return accumulated(None, [(w, model, None) for w, model in zip(weights, models, strict=True)])
    heaviest, shares = mean_shares(weights)
    anchor = models[heaviest]
    return accumulated(
        anchor, [(s, m, anchor) for i, (s, m) in enumerate(zip(shares, models, strict=True)) if i != heaviest]
    )


def wise_ft(base: np.ndarray, model: np.ndarray, alpha: float) -> np.ndarray:
    """`(1 - alpha) base + alpha model`; float32 or float64 arrays of one shape and dtype, alpha in [0, 1].

    References: Wortsman et al., Robust fine-tuning of zero-shot models (arXiv:2109.01903), Eq. 1.
    """
    return linear([base, model], [1.0 - alpha, alpha])


def task_arithmetic(
    base: np.ndarray, models: Sequence[np.ndarray], weights: Sequence[float] | None = None, scale: float = 1.0
) -> np.ndarray:
    """`base + scale * sum_i weights_i * (models_i - base)`.

    Args:
        base: float32 or float64 array.
        models: arrays of the base's shape and dtype.
        weights: one a model; None: 1 each.
        scale: the paper's lambda; negative values take a task away.

    References: Ilharco et al., Editing models with task arithmetic, ICLR 2023 (arXiv:2212.04089), Section 2.
    """
    weights = [1.0] * len(models) if weights is None else weights
    return accumulated(base, [(scale * w, model, base) for w, model in zip(weights, models, strict=True)])


def accumulated(anchor: np.ndarray | None, terms: Sequence[tuple[float, np.ndarray, np.ndarray | None]]) -> np.ndarray:
    total = anchor
    for weight, plus, minus in terms:
        if weight == 0:
            continue
        difference = plus if minus is None else plus - minus
        product = difference if weight == 1 else difference * difference.dtype.type(weight)
        total = product if total is None else total + product
    return np.zeros_like(terms[0][1]) if total is None else total


def threshold(delta: np.ndarray, density: float) -> float:
    """The k-th largest |delta|, k = `kept(density, n)`; 0 for an empty array. |delta| in float32."""
    magnitude = np.abs(delta.ravel().astype(np.float32))
    k = kept(density, magnitude.size)
    return float(np.partition(magnitude, magnitude.size - k)[magnitude.size - k]) if k else 0.0


def ties(
    base: np.ndarray,
    models: Sequence[np.ndarray],
    thresholds: Sequence[float],
    weights: Sequence[float] | None = None,
    scale: float = 1.0,
    *,
    semantics: str = "original",
    normalize: bool = True,
) -> np.ndarray:
    """Merges arrays with TIES, given the thresholds.

    Args:
        base: float32 or float64 array.
        models: arrays of the base's shape and dtype.
        thresholds: one a model: changes below it in magnitude (in float32) are left out.
        weights: one a model; None: 1 each.
        scale: the paper's lambda.
        semantics: "original" or "mergekit".
        normalize: mean over the agreeing, or their sum.

    References: Yadav et al., TIES-Merging: Resolving Interference When Merging Models, NeurIPS 2023 (arXiv:2306.01708),
    Algorithm 1.
    """
    trimmed = []
    for model, least in zip(models, thresholds, strict=True):
        delta = model - base
        trimmed.append(np.where(np.abs(delta.astype(np.float32)) >= np.float32(least), delta, base.dtype.type(0)))
    merged = elect(trimmed, weights, semantics=semantics, normalize=normalize)
    return base + (merged if scale == 1 else merged * base.dtype.type(scale))


def slerp(a: np.ndarray, b: np.ndarray, t: float) -> np.ndarray:
    """Spherical interpolation from a (t = 0) to b (t = 1); float32 or float64 arrays of one shape and dtype.

    References: Shoemake, Animating rotation with quaternion curves, SIGGRAPH 1985.
    """
    x, y = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    weights = slerp_weights(t, float(x @ y), math.sqrt(float(x @ x)), math.sqrt(float(y @ y))) or (1 - t, t)
    return a * a.dtype.type(weights[0]) + b * a.dtype.type(weights[1])


def model_stock(base: np.ndarray, models: Sequence[np.ndarray]) -> np.ndarray:
    """Model Stock of one tensor.

    Args:
        base: float32 or float64 array.
        models: arrays of the base's shape and dtype, two or more.

    References: Jang et al., Model Stock: All we need is just a few fine-tuned models, ECCV 2024 (arXiv:2403.19522).
    """
    changes_NC = np.stack([(m - base).reshape(-1).astype(np.float64) for m in models])
    ratio = base.dtype.type(stock_ratio(changes_NC @ changes_NC.T))
    change = models[0] - base
    for model in models[1:]:
        change = change + (model - base)
    return base + ratio * (change / base.dtype.type(len(models)))
