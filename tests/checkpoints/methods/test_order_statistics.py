"""Thresholds from histograms are the very elements a sort would give, whatever the blocks, and as many stay as
should."""

from __future__ import annotations

import numpy as np
from elements import stored
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.methods.order_statistics import Found, measure, settle
from holdfast.checkpoints.methods.protocol import Block


def search(
    base: np.ndarray, models: list[np.ndarray], ranks, *, block: int, dtype: str = "F32", has: tuple[bool, ...] = ()
) -> list[float | None]:
    state = None
    size = base.size
    for _ in range(2):
        total = None
        for start in range(0, max(size, 1), block):
            cut = slice(start, min(start + block, size))
            parts = [stored(v[cut], dtype) for v in (base, *models)]
            piece = Block(
                name="w",
                start=start,
                count=cut.stop - start,
                size=size,
                shape=(size,),
                base=parts[0],
                models=parts[1:],
                has=has,
            )
            value = measure(piece, state, ranks, by_tensor=True)
            total = value if total is None else total + value
        state = settle(total, state, ranks)
    assert isinstance(state, Found)
    return state.magnitudes


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=60),
    data=st.data(),
    block=st.integers(1, 70),
)
def test_the_same_element_as_by_sorting(values: list[float], data: st.DataObject, block: int) -> None:
    delta = np.array(values, np.float32)
    rank = data.draw(st.none() | st.integers(0, delta.size - 1))
    found = search(np.zeros(delta.size), [delta, -delta[::-1]], lambda _, n: rank, block=block)
    expected = None if rank is None else float(np.sort(np.abs(delta))[rank])
    assert found == [expected, expected]


def test_empty_tensors_and_models_without_the_tensor() -> None:
    def last(_: int, n: int) -> int | None:
        return n - 1 if n else None

    assert search(np.zeros(0), [np.zeros(0)], last, block=10) == [None]
    models = [np.arange(10.0), np.arange(10.0)]
    assert search(np.zeros(10), models, last, block=3, has=(False, True)) == [None, 9.0]
