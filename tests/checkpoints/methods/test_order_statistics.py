"""Thresholds from histograms are the very elements a sort would give, whatever the blocks, and as many stay as
should."""

from __future__ import annotations

import numpy as np
from elements import stored
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_driver import blocks_of, measured

from holdfast.checkpoints.methods.order_statistics import search


def magnitudes(
    base: np.ndarray, models: list[np.ndarray], ranks, *, block: int, lacking: tuple[int, ...] = ()
) -> list[float | None]:
    base_model, *others = ({"w": stored(values, "F32")} for values in (base, *models))
    blocks = blocks_of("w", base_model, others, [], block=block, lacking=[(number, "w") for number in lacking])
    return measured(search(ranks, by_tensor=True), blocks)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=60),
    data=st.data(),
    block=st.integers(1, 70),
)
def test_the_same_element_as_by_sorting(values: list[float], data: st.DataObject, block: int) -> None:
    delta = np.array(values, np.float32)
    rank = data.draw(st.none() | st.integers(0, delta.size - 1))
    found = magnitudes(np.zeros(delta.size), [delta, -delta[::-1]], lambda _, n: rank, block=block)
    expected = None if rank is None else float(np.sort(np.abs(delta))[rank])
    assert found == [expected, expected]


def test_empty_tensors_and_models_without_the_tensor() -> None:
    def last(_: int, n: int) -> int | None:
        return n - 1 if n else None

    assert magnitudes(np.zeros(0), [np.zeros(0)], last, block=10) == [None]
    models = [np.arange(10.0), np.arange(10.0)]
    assert magnitudes(np.zeros(10), models, last, block=3, lacking=(0,)) == [None, 9.0]
