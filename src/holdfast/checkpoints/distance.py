"""How far weights moved, layer by layer, from pairs of tensors that are looked at one at a time.

For each layer: L2 norm of the difference, relative to the start's norm, and cosine between the two, all accumulated in float64 over
float32 tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.results import LayerDistance

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")


def layer_of(name: str) -> str:
    """The layer a parameter belongs to: its number, or "embed", "head", "norm", "other"."""
    match = _LAYER.search(name)
    if match:
        return match.group(1)
    lowered = name.lower()
    if "lm_head" in lowered or "embed_out" in lowered:
        return "head"
    if "embed" in lowered or "wte" in lowered or "wpe" in lowered:
        return "embed"
    if "norm" in lowered or "ln_f" in lowered:
        return "norm"
    return "other"


def layer_distances(pairs: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> list[LayerDistance]:
    """Distances per layer and, last, "total".

    Args:
        pairs: `(parameter name, start, result)`, tensors of one shape, any floating dtype.
    """
    sums: dict[str, list[float]] = {}
    for name, start, result in pairs:
        a, b = start.detach().float(), result.detach().to(start.device).float()
        values = (a.numel(), float((b - a).square().sum()), float(a.square().sum()), float(b.square().sum()), float((a * b).sum()))
        for layer in (layer_of(name), "total"):
            held = sums.setdefault(layer, [0.0] * 5)
            for i, value in enumerate(values):
                held[i] += value
    return [_distance(layer, *values) for layer, values in sorted(sums.items(), key=lambda item: _order(item[0]))]


def _distance(layer: str, count: float, moved: float, start: float, result: float, product: float) -> LayerDistance:
    l2 = math.sqrt(moved)
    relative = l2 / math.sqrt(start) if start > 0 else (math.inf if l2 > 0 else 0.0)
    cosine = product / math.sqrt(start * result) if start > 0 and result > 0 else math.nan
    return LayerDistance(layer=layer, parameters=int(count), l2=l2, relative=relative, cosine=cosine)


def _order(layer: str) -> tuple[int, int]:
    if layer.isdigit():
        return (1, int(layer))
    return ({"embed": 0, "norm": 2, "head": 3, "other": 4, "total": 5}[layer], 0)
