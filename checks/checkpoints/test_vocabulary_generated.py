"""Any stretch of a view of rows matched by token."""

from __future__ import annotations

import numpy as np
from elements import whole
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vocabulary import Memory

from holdfast.checkpoints.dtypes import decode
from holdfast.checkpoints.vocabulary import RowMappedSource


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_view_reads_any_stretch(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 5)))
    source_rows, rows, columns = (
        data.draw(st.integers(1, 9)),
        data.draw(st.integers(0, 11)),
        data.draw(st.integers(1, 5)),
    )
    order = np.array(data.draw(st.lists(st.integers(-1, source_rows - 1), min_size=rows, max_size=rows)), np.int64)
    kinds = st.sampled_from(["F32", "BF16", "F16", "F64"])
    values, others = rng.standard_normal((source_rows, columns)), rng.standard_normal((rows, columns))
    source = Memory(data.draw(kinds), data.draw(st.booleans()), emb=values)
    fallback = Memory(data.draw(kinds), data.draw(st.booleans()), emb=others) if data.draw(st.booleans()) else None
    view = RowMappedSource(source, order, ["emb"], fallback=fallback)
    assert view.entries["emb"].shape == (rows, columns) and view.entries["emb"].dtype is source.kind
    stored, other = whole(source, "emb"), whole(fallback, "emb") if fallback else np.zeros((rows, columns))
    expected = np.array([other[i] if row < 0 else stored[row] for i, row in enumerate(order)]).reshape(rows, columns)
    start = data.draw(st.integers(0, rows * columns))
    stop = data.draw(st.integers(start, rows * columns))
    got = view.read("emb", start, stop, np.empty((stop - start) * source.kind.itemsize, np.uint8))
    assert len(got.raw) == stop - start
    np.testing.assert_array_equal(decode(*got), expected.reshape(-1)[start:stop])
    if fallback is None and not source.computed:
        assert got.dtype is source.kind
