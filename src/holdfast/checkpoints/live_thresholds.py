"""The largest elements of weights in memory: thresholds on magnitudes, exact, over all shards of a
tensor.

A sharded tensor is gathered for it, one at a time. On a CPU a float without its sign is read as an
integer, which keeps the order of magnitudes, and partitioned; on an accelerator the largest are
selected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoints.kernels_torch import INTEGERS
from holdfast.checkpoints.live_tensors import gathered


def thresholds(values: Sequence[Tensor], fraction: float) -> list[Tensor]:
    """Of each tensor the smallest magnitude among the largest `fraction` of its elements, of one
    element at least.

    Args:
        values: in any float dtype, plain or DTensors, of which all ranks have to call it, and get
            the same.
        fraction: above 0 and at most 1.

    Returns:
        Scalars of the values' dtypes, on their devices.
    """
    smallest = []
    for value in values:
        magnitudes = gathered(value).abs().flatten()
        count = max(1, round(fraction * len(magnitudes)))
        if magnitudes.device.type == "cpu":
            smallest.append(_by_partition(magnitudes, count))
        else:
            smallest.append(magnitudes.topk(count, sorted=False).values.min())
    return smallest


def _by_partition(magnitudes: Tensor, count: int) -> Tensor:
    bits = magnitudes.view(INTEGERS[magnitudes.itemsize]).numpy()
    rank = len(bits) - count
    return torch.from_numpy(np.partition(bits, rank)[rank : rank + 1].copy()).view(
        magnitudes.dtype
    )[0]
