"""The largest elements of weights in memory: thresholds on magnitudes, exact, over all shards of a tensor.

A float without its sign, read as an integer, keeps the order of magnitudes. So the threshold is found digit by digit
from the top: count how many elements have each value of the next `DIGIT` bits (a histogram, which is summed over ranks,
all tensors of a layout at once), take the bin in which the wanted rank falls, go on within it. Three rounds decide a
float32. A whole tensor on a CPU is partitioned instead, which is quicker there; both give the same element.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoints.live import summed
from holdfast.checkpoints.live_tensors import LiveTensor, is_sharded, part_in

DIGIT = 11
"""Bits that one round decides: 2048 bins a tensor."""
_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def thresholds(targets: Sequence[LiveTensor], values: Sequence[Tensor], fraction: float) -> list[Tensor]:
    """Of each tensor the smallest magnitude among the largest `fraction` of its elements, of one element at least.

    Args:
        targets: where the tensors lie; all ranks have to call it where they are sharded, and get the same.
        values: one a target, of its whole shape, in any float dtype; laid out like it or whole.
        fraction: above 0 and at most 1.

    Returns:
        Scalars of the values' dtypes, on the targets' devices.
    """
    found: dict[int, Tensor] = {}
    counted: list[tuple[int, Tensor, int]] = []
    for number, (target, value) in enumerate(zip(targets, values, strict=True)):
        part, count = target.part_of(value), max(1, round(fraction * math.prod(target.shape)))
        if part.device.type == "cpu" and not is_sharded(target.parameter) and part_in(target.parameter) is None:
            found[number] = _by_partition(part, count)
        else:
            counted.append((number, part, count))
    if counted:
        numbers, parts, counts = zip(*counted, strict=True)
        found |= dict(zip(numbers, by_digits([targets[i] for i in numbers], parts, counts), strict=True))
    return [found[number] for number in range(len(targets))]


def _by_partition(part: Tensor, count: int) -> Tensor:
    magnitudes = _magnitudes(part).numpy()
    place = len(magnitudes) - count
    return torch.from_numpy(np.partition(magnitudes, place)[place : place + 1].copy()).view(part.dtype)[0]


def by_digits(targets: Sequence[LiveTensor], parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """The magnitude that `counts[i]` elements of tensor i reach, by its ranks' parts `[elements]`; see `thresholds`."""
    left, found = list(counts), [0] * len(parts)
    shifts = [8 * p.itemsize - 1 for p in parts]
    while any(shifts):
        lower = [max(0, shift - DIGIT) for shift in shifts]
        rows = [_histogram(p, found[i], shifts[i], lower[i]) for i, p in enumerate(parts)]
        for i, row in enumerate(_summed_together(targets, rows)):
            above = row.flip(0).cumsum(0)
            bin_ = len(row) - 1 - int((above < left[i]).sum())
            left[i] -= int(row[bin_ + 1 :].sum())
            found[i] = found[i] << (shifts[i] - lower[i]) | bin_
        shifts = lower
    return [
        torch.tensor([bits], dtype=_INTEGER[p.itemsize]).view(p.dtype)[0].to(p.device)
        for bits, p in zip(found, parts, strict=True)
    ]


def _magnitudes(part: Tensor) -> Tensor:
    """Bits of the absolute values, as integers in the order of the values."""
    return part.abs().view(_INTEGER[part.itemsize])


def _histogram(part: Tensor, found: int, shift: int, lower: int) -> Tensor:
    """How often each value of bits [lower, shift) comes among the elements whose bits from `shift` on are `found`."""
    bits = _magnitudes(part)
    if shift < 8 * part.itemsize - 1:
        bits = bits[(bits >> shift) == found]
    return torch.bincount((bits >> lower) & ((1 << (shift - lower)) - 1), minlength=1 << DIGIT)


def _summed_together(targets: Sequence[LiveTensor], rows: Sequence[Tensor]) -> list[Tensor]:
    """Each row summed over the ranks of its tensor, in one collective for all tensors of a layout; in host memory."""
    groups: dict[object, list[int]] = defaultdict(list)
    for i, target in enumerate(targets):
        p, part = target.parameter, part_in(target.parameter)
        layout = (p.device_mesh, p.placements) if is_sharded(p) else None  # type: ignore[attr-defined]
        groups[layout if part is None else id(part.group)].append(i)
    result = list(rows)
    for members in groups.values():
        whole = summed(targets[members[0]], torch.stack([rows[i] for i in members])).cpu()
        for i, row in zip(members, whole, strict=True):
            result[i] = row
    return result
