"""Noise on generated weights in memory comes off again, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_live import FLOATS, bits

from holdfast.checkpoints import live


@st.composite
def tensors(draw_from):
    """Ragged shapes, every float type, weights of an ordinary scale mixed with arbitrary bit patterns (NaN,
    infinities, subnormals, -0.0)."""
    dtype = draw_from(st.sampled_from([*FLOATS, torch.float8_e5m2]))
    shape = draw_from(st.lists(st.integers(0, 9), max_size=3))
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    values = (
        torch.from_numpy(np.asarray(rng.standard_normal(shape))).mul(10.0 ** draw_from(st.integers(-4, 2))).to(dtype)
    )
    wild = (
        torch.from_numpy(np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize + 8), np.uint8).copy())
        .view(-1)[:-8]
        .view(dtype)
        .reshape(shape)
    )
    chosen = torch.from_numpy(np.asarray(rng.random(shape) < draw_from(st.sampled_from([0.0, 0.1, 1.0]))))
    return torch.where(chosen, bits(wild), bits(values)).view(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(tensors(), min_size=1, max_size=3),
    st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 30.0, 1e30]),
    st.integers(0, 9),
    st.booleans(),
    st.sampled_from([5, 1 << 18]),
)
def test_undo_gives_the_same_bits(held, scale, seed, transposed, block):
    named = {f"w{i}": t.clone().t() if transposed and t.dim() == 2 else t.clone() for i, t in enumerate(held)}
    before = {n: bits(t) for n, t in named.items()}
    original, live._block_elements = live._block_elements, lambda device: block
    try:
        handle = live.perturb_(named, seed=seed, scale=scale, stds={n: 0.02 * (i != 2) for i, n in enumerate(named)})
        assert handle.bytes_kept <= sum(t.nbytes + 8 * -(-t.numel() // block) for t in named.values())
        handle.undo()
    finally:
        live._block_elements = original
    assert all(torch.equal(bits(t), before[n]) for n, t in named.items())
    assert handle.undone and handle.bytes_kept == 0
