"""Do two checkpoints look like a model and its base? Distances on a sample of every tensor, before
a long job begins.

A fine-tune stays near its base: over all weights the relative norm of the difference is a few per
cent and the cosine close to 1. Two models that were trained apart have a cosine near 0 and a
relative norm near 1.4, layer by layer, and their difference is no residual of anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.checkpoints.distance import by_layer, comparable
from holdfast.checkpoints.kernels import moments
from holdfast.checkpoints.sources import Source, listing
from holdfast.records.run import LayerDistance

STRETCHES, LENGTH = 4, 16_384
"""Of each tensor, so many stretches of so many elements are looked at, evenly spread."""
LARGEST_RELATIVE, SMALLEST_COSINE = 0.5, 0.9
"""Beyond these two models are not called relatives. Continued pre-training on a billion tokens
stays well within them."""


def ancestry(base: Source, tuned: Source) -> tuple[LayerDistance, ...]:
    """Distances per layer and, last, "total", of `tuned` to `base`, from a sample of the tensors
    that both have.

    Returns:
        One `LayerDistance` a layer; `parameters` counts what was looked at. Empty where no tensor
        is in both.
    """
    buffers = [np.empty(LENGTH * 8, np.uint8) for _ in range(2)]

    def sample() -> Iterator[tuple[str, np.ndarray]]:
        for entry in comparable(base, tuned):
            for start in range(0, entry.size, max(LENGTH, -(-entry.size // STRETCHES))):
                stop = min(start + LENGTH, entry.size)
                before = base.read(entry.name, start, stop, buffers[0])
                yield entry.name, moments(before, tuned.read(entry.name, start, stop, buffers[1]))

    return by_layer(sample())


def warnings_of(found: Sequence[LayerDistance], tuned: str, base: str) -> list[str]:
    """Sentences where two checkpoints do not look like a model and its base; empty where they do.

    Args:
        found: from `ancestry`.
        tuned, base: what messages call the two.
    """
    total = next((d for d in found if d.layer == "total"), None)
    if total is None:
        return []
    if total.l2 == 0:
        return [
            f"{tuned} and {base} have the same weights (on a sample of {total.parameters:,}): the "
            "residual is 0."
        ]
    strange = []
    for distance in found:
        is_far = distance.relative > LARGEST_RELATIVE or distance.cosine < SMALLEST_COSINE
        if is_far and distance.layer not in ("total", "norm"):
            strange.append(distance)
    if not strange:
        return []
    worst = max(strange, key=lambda distance: distance.relative)
    layers = listing([distance.layer for distance in strange], 12)
    where = "everywhere" if len(strange) >= len(found) - 2 else f"in layers {layers}"
    over_all = (
        f"over all weights, the relative norm of the difference is {total.relative:.3g} and the "
        f"cosine {total.cosine:.3f}"
    )
    at_worst = f"worst in {worst.layer}: {worst.relative:.3g} and {worst.cosine:.3f}"
    limits = f"fine-tunes have norms below {LARGEST_RELATIVE} and cosines above {SMALLEST_COSINE}"
    return [
        f"WARNING: {tuned} does not look like a fine-tune of {base} {where}: {over_all}; "
        f"{at_worst} ({limits}). Check that {base} is its base."
    ]
