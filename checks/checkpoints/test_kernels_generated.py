"""The elementwise passes on generated operands: C and PyTorch against their definitions, bit for bit."""

from __future__ import annotations

import kernel_reference
import numpy as np
import pytest
from elements import FLOATS, SIZES, empty, needs_compiler, numbers, same_bits, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints import native
from holdfast.checkpoints.kernels import Term, combine, delta_histogram, moments, perturb, ties

examples = settings(max_examples=120, deadline=None, derandomize=True, database=None)
NAMES = st.sampled_from(FLOATS)
WEIGHTS = st.sampled_from([0.0, 1.0, 0.5, -0.3, 1e-3, 2.0, 1e-60, 3e38])
KIND = st.sampled_from(["weights", "weights", "tiny", "mixed", "bits", "special"])
SEEDS = st.integers(0, 10_000)


@st.composite
def operands(draw, least: int, most: int, names=NAMES):
    """Operands of one length; half the time all of one type, as checkpoints are."""
    n, kind, count = draw(st.sampled_from(SIZES)), draw(KIND), draw(st.integers(least, most))
    types = [draw(names)] * count if draw(st.booleans()) else [draw(names) for _ in range(count)]
    seed = draw(SEEDS)
    held = [stored(numbers(seed + i, n, kind), name) for i, name in enumerate(types)]
    if count > 1 and draw(st.booleans()):  # equal stretches, as of models that share a base
        for other in held[1:]:
            if other.dtype == held[0].dtype:
                other.raw[::2] = held[0].raw[::2]
    return held


@needs_compiler
@examples
@given(held=operands(1, 9), data=st.data())
def test_combine_has_the_bits_of_the_definition(held, data):
    assert native.load() is not None, native.why_not()
    anchor = held[0] if data.draw(st.booleans()) else None
    rest = held[anchor is not None :]
    subtract = data.draw(st.sampled_from(["all", "anchor", "none", "some"]))
    terms = []
    while rest:
        minus = {
            "all": rest[1] if len(rest) > 1 else None,
            "anchor": anchor,
            "none": None,
            "some": rest[-1] if data.draw(st.booleans()) else None,
        }
        terms.append(Term(data.draw(WEIGHTS), rest[0], minus[subtract]))
        rest = rest[2 if subtract == "all" else 1 :]
    out = data.draw(st.sampled_from([held[0].dtype.name, *FLOATS]))
    x, y = empty(out, len(held[0].raw)), empty(out, len(held[0].raw))
    flags = combine(anchor, terms, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_NATIVE", "0")
        assert combine(anchor, terms, y) == flags
    assert same_bits(x.raw, y.raw)


@needs_compiler
@examples
@given(
    held=operands(2, 5),
    weights=st.lists(WEIGHTS, min_size=4, max_size=4),
    original=st.booleans(),
    normalize=st.booleans(),
    data=st.data(),
)
def test_ties_has_the_bits_of_the_definition(held, weights, original, normalize, data):
    base, *models = held
    limits = [data.draw(st.sampled_from([0.0, 0.01, 0.03, 1e-7, 1.0, 3e38])) for _ in models]
    given_weights = weights[: len(models)] if data.draw(st.booleans()) else None
    scale = data.draw(st.sampled_from([1.0, 0.7, 0.0, -2.0]))
    out = data.draw(st.sampled_from([base.dtype.name, *FLOATS]))
    x, y = empty(out, len(base.raw)), empty(out, len(base.raw))
    flags = ties(base, models, limits, given_weights, scale, original=original, normalize=normalize, out=x)
    expected = kernel_reference.ties([base, *models], limits, given_weights, scale, original, normalize, y)
    assert flags == expected
    assert same_bits(x.raw, y.raw)


@needs_compiler
@examples
@given(held=operands(2, 2), choice=st.integers(0, 1 << 30))
def test_delta_histogram_has_the_counts_of_the_definition(held, choice):
    base, model = held
    counts = np.zeros((2, 65536), np.int64)
    assert delta_histogram(base, model, counts[0], level=0) == kernel_reference.delta_histogram(
        base, model, counts[1], 0, 0
    )
    assert np.array_equal(*counts)
    assert counts[0].sum() == len(base.raw)
    filled = np.flatnonzero(counts[0])
    prefix = int(filled[choice % len(filled)]) if len(filled) else 5
    fine = np.zeros((2, 32768), np.int64)
    assert delta_histogram(base, model, fine[0], level=1, prefix=prefix) == kernel_reference.delta_histogram(
        base, model, fine[1], 1, prefix
    )
    assert np.array_equal(*fine)
    assert fine[0].sum() == counts[0][prefix]


@needs_compiler
@examples
@given(held=operands(2, 2))
def test_moments_are_those_of_the_definition(held):
    np.testing.assert_allclose(moments(*held), kernel_reference.moments(*held), rtol=1e-12, atol=0)


@needs_compiler
@examples
@given(
    held=operands(1, 1),
    key=st.integers(0, 2**64 - 1),
    start=st.integers(0, 2**40),
    sigma=st.sampled_from([0.0, 1e-3, 1.0, 1e38]),
    out=NAMES,
)
def test_perturb_has_the_bits_of_the_definition(held, key, start, sigma, out):
    x, y = empty(out, len(held[0].raw)), empty(out, len(held[0].raw))
    assert perturb(held[0], key, start, sigma, x) == kernel_reference.perturb(held[0], key, start, sigma, y)
    assert same_bits(x.raw, y.raw)
