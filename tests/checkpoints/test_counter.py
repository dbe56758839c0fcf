"""Random numbers by position: the published test vectors of Philox, the normal distribution, one set of bits in C and
PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from counter_reference import philox, words
from elements import needs_compiler, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtri

from holdfast.checkpoints import counter_torch, native
from holdfast.checkpoints.counter import normal, stream_key, uniform

KEYS = st.integers(0, 2**64 - 1)
STARTS = st.one_of(st.integers(0, 40), st.integers(0, 2**62))


def hexadecimal(text: str) -> np.ndarray:
    return np.array([[int(word, 16) for word in text.split()]], np.uint32)


@pytest.mark.parametrize(
    ("counters", "key", "expected"),
    [
        ("0 0 0 0", 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_vectors(counters, key, expected):
    """The authors' kat_vectors of Random123."""
    assert np.array_equal(philox(hexadecimal(counters), key), hexadecimal(expected))


@needs_compiler
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(key=KEYS, start=STARTS, n=st.sampled_from([0, 1, 3, 4, 5, 1021, 1023, 1024, 1025, 3001]))
def test_c_and_pytorch_give_the_same_bits(key, start, n):
    assert native.load() is not None, native.why_not()
    expected = (words(key, start, n) + 0.5) * 2.0**-32
    assert same_bits(uniform(key, start, n), expected)
    assert same_bits(counter_torch.uniform(key, start, n, "cpu").numpy(), expected)
    assert same_bits(normal(key, start, n), counter_torch.normal(key, start, n, "cpu").numpy())


def test_without_a_compiler_the_numbers_are_the_same(monkeypatch):
    key, start, n = 5, 1021, 3001
    before = uniform(key, start, n), normal(key, start, n)
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    out = np.empty(n, np.float32)
    assert normal(key, start, n, out) is out
    assert same_bits(out, before[1]) and same_bits(uniform(key, start, n), before[0])


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(key=KEYS, start=STARTS, n=st.integers(0, 3000), cut=st.integers(0, 3000))
def test_any_stretch_can_be_made_alone(key, start, n, cut):
    cut = min(cut, n)
    whole = normal(key, start, n)
    assert same_bits(np.concatenate([normal(key, start, cut), normal(key, start + cut, n - cut)]), whole)
    out = np.empty(n, np.float32)
    assert normal(key, start, n, out) is out and same_bits(out, whole)


def test_keys_depend_on_seed_and_names():
    """Pinned: a key that changed would change the masks and the noise of earlier results."""
    assert stream_key(0, "model.layers.0.mlp.up_proj.weight", "dare", "0") == 0x980E63DC59110703
    streams = [(0,), (1,), (0, ""), (0, "a", "b"), (0, "ab"), (0, 'a", "b')]
    assert len({stream_key(*stream) for stream in streams}) == len(streams)


def test_numbers_are_pinned():
    """As above: bits that perturbed checkpoints were made of."""
    assert words(1, 0, 5).tolist() == [0xE3E80670, 0xE50A0EBC, 0x95F222C0, 0xB615AA27, 0xAC08141B]
    assert normal(1, 0, 3).tobytes().hex() == "142c9d3f143ca03ff8c25d3e"


def test_the_inverse_is_accurate_everywhere():
    """The ends of the range, both sides of where the approximations change, and a fine grid, against SciPy."""
    w = np.concatenate(
        [
            np.arange(5000.0),
            2.0**32 - 1 - np.arange(5000.0),
            np.linspace(0, 2.0**32 - 1, 400_001).round(),
            0.075 * 2.0**32 + np.arange(-9.0, 9),
        ]
    )
    u = (w + 0.5) * 2.0**-32
    z, expected = counter_torch.inverse_normal(torch.from_numpy(u)).numpy(), ndtri(u)
    assert np.abs(z - expected).max() < 1e-14
    assert np.abs(z.astype(np.float32) - expected).max() < 2.5e-7, "half a unit in the last place of 6.34"
    assert np.all(np.diff(z[np.argsort(u)]) >= 0)


def test_the_distribution():
    n = 1 << 18
    u, z = uniform(stream_key(0, "u"), 0, n), normal(stream_key(0, "z"), 5, n).astype(np.float64)
    assert stats.kstest(u, "uniform").pvalue > 0.001
    assert stats.kstest(z, "norm").pvalue > 0.001
    for other in (z[1:], normal(stream_key(1, "z"), 5, n), normal(stream_key(0, "z2"), 5, n)):
        assert abs(np.corrcoef(z[: len(other)], other)[0, 1]) < 4 / n**0.5
