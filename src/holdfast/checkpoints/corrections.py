"""A small record of the elements that a subtraction does not bring back.

Of one block: the places of such elements and, for each, by how many representable numbers the
subtraction misses (its step, -127 ... 127; what lies further is kept as it is, an escape). Places
are a byte each (the distance to the place before; a longer way takes stops of step 0), or a bit for
every element of the block where that is less. A record that would be larger than the block is not
made: the caller keeps the block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.checkpoints.element_types import Array

ESCAPE = -128
"""The step that stands for an escape."""
_REACH = 255


class Corrections(NamedTuple):
    """Of one block."""

    places: Array
    """uint8: distances, or the packed bits of a mask."""
    steps: Array
    """`[places]` int8, in order."""
    escapes: Array
    """`[escapes]` signed integers of the elements' size, the bits of what is kept as it is, in
    order."""
    masked: bool
    """Whether `places` is a mask."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.places.nbytes + self.steps.nbytes + self.escapes.nbytes


def pack(places: Array, steps: Array, bits: Array, size: int) -> Corrections:
    """The record of one block.

    Args:
        places: `[N]` int64, rising, below `size`.
        steps: `[N]` int64.
        bits: `[N]` signed integers, the elements that are wanted back.
        size: elements of the block.
    """
    far = (steps > 127) | (steps < -127)
    short = np.where(far, ESCAPE, steps).astype(np.int8)
    distances = np.diff(places, prepend=-1)
    stops = (distances - 1) // _REACH
    total = len(places) + int(stops.sum())
    if 2 * total > len(places) + -(-size // 8):
        mask = np.zeros(size, bool)
        mask[places] = True
        return Corrections(np.packbits(mask), short, bits[far], True)
    ends = np.cumsum(stops + 1) - 1
    distance_bytes, padded = np.full(total, _REACH, np.uint8), np.zeros(total, np.int8)
    distance_bytes[ends] = distances - stops * _REACH
    padded[ends] = short
    return Corrections(distance_bytes, padded, bits[far], False)


def unpack(record: Corrections, size: int) -> tuple[Array, Array]:
    """`[N]` int64 places and `[N]` int8 steps (stops of step 0 among them)."""
    if record.masked:
        return np.flatnonzero(np.unpackbits(record.places, count=size)), record.steps
    return np.cumsum(record.places, dtype=np.int64) - 1, record.steps
