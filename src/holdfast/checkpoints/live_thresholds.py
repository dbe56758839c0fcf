"""The largest elements of weights in memory: thresholds on magnitudes, exact, over all shards of a tensor.

A sharded tensor is gathered for it, one at a time. On a CPU a float without its sign is read as an integer, which keeps
the order of magnitudes, and partitioned; on an accelerator the largest are selected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoints.live import INTEGER
from holdfast.checkpoints.live_tensors import LiveTensor, as_part, gathered, is_sharded, part_in


def thresholds(targets: Sequence[LiveTensor], values: Sequence[Tensor], fraction: float) -> list[Tensor]:
    """Of each tensor the smallest magnitude among the largest `fraction` of its elements, of one element at least.

    Args:
        targets: where the tensors lie; all ranks have to call it where they are sharded, and get the same.
        values: one a target, of its whole shape, in any float dtype; laid out like it or whole.
        fraction: above 0 and at most 1.

    Returns:
        Scalars of the values' dtypes, on the targets' devices.
    """
    found = []
    for target, value in zip(targets, values, strict=True):
        magnitudes = _whole(target, value).abs().flatten()
        count = max(1, round(fraction * len(magnitudes)))
        if magnitudes.device.type == "cpu":
            found.append(_by_partition(magnitudes, count))
        else:
            found.append(magnitudes.topk(count, sorted=False).values.min())
    return found


def _whole(target: LiveTensor, value: Tensor) -> Tensor:
    part = part_in(target.parameter)
    if part is not None:
        return gathered(as_part(target.part_of(value).clone(), part))
    return gathered(value) if is_sharded(value) else value


def _by_partition(magnitudes: Tensor, count: int) -> Tensor:
    bits = magnitudes.view(INTEGER[magnitudes.itemsize]).numpy()
    place = len(bits) - count
    return torch.from_numpy(np.partition(bits, place)[place : place + 1].copy()).view(magnitudes.dtype)[0]
