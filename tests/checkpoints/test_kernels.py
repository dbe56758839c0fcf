"""The elementwise passes: C and PyTorch against their definitions bit for bit, and what each promises about zeros, NaN
and overflow."""

from __future__ import annotations

import kernel_reference
import numpy as np
import pytest
from elements import FLOATS, empty, needs_compiler, numbers, same_bits, stored, wide

from holdfast.checkpoints import counter_torch, native
from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.kernels import Flags, Term, combine, delta_histogram, moments, perturb, ties
from holdfast.errors import ShapeError

# ------------------------------------------------------------------------------------------------------- combine


@pytest.mark.parametrize("name", FLOATS)
def test_a_plain_copy_keeps_every_bit(form, name):
    """Whatever the pattern, NaN too: of the anchor alone, at weight 1, and beside a term of weight 0."""
    d = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, 2603 * d.itemsize, dtype=np.uint8).view(d.storage)
    source, other = Operand(raw, d), stored(numbers(1, 2603, "weights"), name)
    for anchor, terms in (
        (source, []),
        (None, [Term(1.0, source)]),
        (source, [Term(0.0, other, source)]),
    ):
        out = empty(name, 2603)
        assert combine(anchor, terms, out).overflow == 0
        assert same_bits(out.raw, raw)


def test_a_difference_of_equal_things_is_zero_and_a_lone_negative_zero_survives(form):
    x, zeros = stored(numbers(0, 1500, "weights"), "BF16"), Operand(np.full(1500, 0x8000, np.uint16), DTYPES["BF16"])
    for terms, expected in (([Term(1.0, x, x)], 0), ([Term(0.5, zeros)], 0x8000), ([], 0), ([Term(0.0, x)], 0)):
        out = empty("BF16", 1500)
        combine(None, terms, out)
        assert np.all(out.raw == expected)


@pytest.mark.parametrize("name", ["BF16", "F32", "F16", "F64"])
def test_the_result_may_replace_an_operand(form, name):
    held = [stored(numbers(i, 2603, "mixed"), name) for i in range(3)]
    expected = empty(name, 2603)
    flags = combine(held[0], [Term(0.5, held[1], held[2])], expected)
    for i in range(3):
        copies = [Operand(h.raw.copy(), h.dtype) for h in held]
        assert combine(copies[0], [Term(0.5, copies[1], copies[2])], copies[i]) == flags
        assert same_bits(copies[i].raw, expected.raw)


@pytest.mark.parametrize("name", ["BF16", "F64"])
@pytest.mark.parametrize("position", [0, 1023, 2602])
def test_operands_that_are_not_finite_are_named(form, name, position):
    """Bit 0 the anchor, 1 + 2 i what is added, 2 + 2 i what is taken off; skipped terms too."""
    n = 2603
    for bad, bit in enumerate([0, 1, 2, 3, 5, 6]):
        for value in (np.nan, np.inf, -np.inf):
            held = [numbers(i, n, "weights") for i in range(6)]
            held[bad][position] = value
            a, b, c, d, e, f = (stored(h, name) for h in held)
            flags = combine(a, [Term(0.5, b, c), Term(1.0, d), Term(0.0, e, f)], empty(name, n))
            assert flags == Flags(1 << bit, 0)


def test_overflow_is_counted(form):
    """Finite operands whose result is too large: for float32 in between, or for the type of the result."""
    big = stored(np.array([60000.0, 1.0, -60000.0, 65519.0], np.float32), "F32")
    half = stored(np.ones(4, np.float32), "F32")
    assert combine(big, [Term(6000.0, half)], empty("F16", 4)) == Flags(0, 2)
    most = stored(np.array([3e38, 1.0, 3e38, 0.0], np.float32), "F32")
    assert combine(most, [Term(1.0, most)], empty("BF16", 4)) == Flags(0, 2)
    assert combine(most, [Term(1.0, most)], empty("F64", 4)) == Flags(0, 0), "float64 holds it"


def test_more_operands_than_the_mask_has_bits(form):
    held = [stored(numbers(i, 100, "weights"), "BF16") for i in range(70)]
    out = empty("F32", 100)
    held[69].raw[3] = 0x7F80
    flags = combine(None, [Term(1 / 70, h) for h in held], out)
    assert flags.nonfinite == 1 << 139
    assert np.allclose(wide(out)[4:], np.mean([wide(h) for h in held], axis=0)[4:], atol=1e-7)


# ------------------------------------------------------------------------------------------------------- TIES


def ties_of_one(
    base: float,
    values: list[float],
    limits: list[float],
    weights: list[float],
    scale: float,
    original: bool,
    normalize: bool,
) -> float:
    """The definition, for one element."""
    kept = [w * (v - base) if abs(v - base) >= t else 0.0 for v, t, w in zip(values, limits, weights, strict=True)]
    total = sum(kept)
    sign = (total > 0) - (total < 0) if original else (1 if total >= 0 else -1)
    agreeing = [(k, w) for k, w in zip(kept, weights, strict=True) if k and (k > 0) - (k < 0) == sign]
    divisor = (len(agreeing) if original else sum(w for _, w in agreeing)) if normalize else 1
    return base + scale * sum(k for k, _ in agreeing) / (divisor or 1)


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weights", [None, [1.0, 0.25, 2.0], [1.0, -1.0, 0.5]])
def test_ties_is_its_definition(form, original, normalize, weights):
    """On multiples of 1/64, where float32 is exact until the division, so that signs cancel and thresholds are met
    exactly."""
    rng = np.random.default_rng(0)
    values = (rng.integers(-12, 13, (4, 1500)) / 64).astype(np.float32)
    base, *models = (stored(v, "F32") for v in values)
    limits, out = [0.0, 0.125, 3 / 64], empty("F32", 1500)
    assert ties(base, models, limits, weights, 0.5, original=original, normalize=normalize, out=out) == Flags(0, 0)
    expected = [
        ties_of_one(
            *map(float, v[:1]), [float(x) for x in v[1:]], limits, weights or [1.0] * 3, 0.5, original, normalize
        )
        for v in values.T
    ]
    np.testing.assert_allclose(wide(out), expected, rtol=0, atol=1e-7)


def test_ties_keeps_the_base_where_nothing_agrees(form):
    """What cancels elects nobody in the original and the positive in mergekit's."""
    base = stored(np.array([-0.0, 0.5, 1.0], np.float32), "BF16")
    models = [stored(np.array(v, np.float32), "BF16") for v in ([0.25, 0.75, 1.0], [-0.25, 0.25, 1.5])]
    out = empty("BF16", 3)
    for original, scale, expected in (
        (True, 1.0, [0.0, 0.5, 1.5]),
        (False, 1.0, [0.25, 0.75, 1.5]),
        (True, 0.0, [0.0, 0.5, 1.0]),
    ):
        ties(base, models, [0.0, 0.0], None, scale, original=original, normalize=True, out=out)
        assert wide(out).tolist() == expected
        assert np.signbit(wide(out)[0]) == original, "the base's own zero"


# ------------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 40_000])
def test_moments_are_the_sums(form, name, n):
    a, b = stored(numbers(0, n, "weights"), name), stored(numbers(1, n, "weights"), name)
    a.raw[::5], b.raw[::10] = 0, 0
    np.testing.assert_allclose(moments(a, b), kernel_reference.moments(a, b), rtol=1e-12, atol=0)


def test_moments_count_what_is_not_finite(form):
    x, y = numbers(0, 3000, "weights"), numbers(1, 3000, "weights")
    x[[5, 2999]], y[1024] = np.nan, -np.inf
    assert moments(stored(x, "BF16"), stored(y, "BF16"))[6:].tolist() == [2, 1]


# ------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("name", ["BF16", "F32", "F64"])
def test_perturb_adds_the_numbers_of_the_stream(form, name):
    x, out = stored(numbers(0, 3001, "weights"), name), empty(name, 3001)
    expected = empty(name, 3001)
    assert perturb(x, 99, 1000, 0.01, out) == kernel_reference.perturb(x, 99, 1000, 0.01, expected) == Flags(0, 0)
    assert same_bits(out.raw, expected.raw)
    rest = Operand(x.raw[1030:], x.dtype)
    perturb(rest, 99, 2030, 0.01, rest)
    assert same_bits(rest.raw, out.raw[1030:]), "a later stretch, in place"


# ------------------------------------------------------------------------------------------------------- the rest


def test_operands_that_do_not_fit_are_refused(form):
    x, y, out = stored(numbers(0, 8, "weights"), "BF16"), stored(numbers(0, 9, "weights"), "BF16"), empty("BF16", 8)
    with pytest.raises(ShapeError, match="combine: expected 8 contiguous elements"):
        combine(x, [Term(1.0, y)], out)
    with pytest.raises(ShapeError, match=r"moments.*strides"):
        moments(x, Operand(np.zeros(16, np.uint16)[::2], DTYPES["BF16"]))
    with pytest.raises(ShapeError, match="Integers and booleans can only be copied"):
        combine(Operand(np.zeros(8, np.int64), DTYPES["I64"]), [], out)
    with pytest.raises(ShapeError, match="threshold and a weight for each of 1 models, got 2 thresholds"):
        ties(x, [x], [0.1, 0.2], None, 1.0, original=True, normalize=True, out=out)


@pytest.mark.parametrize("name", ["BF16", "F32"])
def test_operands_may_lie_anywhere_in_memory(form, name):
    """As views into a file do whose header has an odd length."""
    x, z = stored(numbers(0, 2000, "mixed"), name), stored(numbers(1, 2000, "weights"), name)
    memory = np.zeros(x.raw.nbytes + 1, np.uint8)[1:]
    memory[:] = x.raw.view(np.uint8)
    moved = Operand(memory.view(x.dtype.storage), x.dtype)
    outs = [empty("F16", 2000) for _ in range(2)]
    assert combine(x, [Term(0.5, z)], outs[0]) == combine(moved, [Term(0.5, z)], outs[1])
    assert same_bits(outs[0].raw, outs[1].raw)


class Plain:
    """The part of `native.Kernels` that the check of a new library uses, by the definitions."""

    def normal(self, key, start, out):
        out[:] = counter_torch.normal(key, start, len(out), "cpu").numpy()
        return out

    def encode(self, values, name, out):
        out[:] = kernel_reference.encode(values, DTYPES[name])

    combine = staticmethod(kernel_reference.combine)
    perturb = staticmethod(kernel_reference.perturb)


def test_the_check_of_a_library_expects_what_the_definitions_give():
    assert native._sample_digest(Plain()) == native._SAMPLE_DIGEST


@needs_compiler
def test_a_library_with_other_numbers_is_not_used(monkeypatch, tmp_path):
    text = native.SOURCE.read_text(encoding="utf-8")
    assert "0xCD9E8D57u" in text
    source = tmp_path / "kernels.c"
    source.write_text(text.replace("0xCD9E8D57u", "0xCD9E8D59u"), encoding="utf-8")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "SOURCE", source)
    native._load.cache_clear()
    try:
        assert native.load() is None
        assert native.why_not().endswith("does not give bit-exact results")
    finally:
        native._load.cache_clear()


@pytest.mark.parametrize("kind", ["weights", "tiny", "mixed", "bits"])
@pytest.mark.parametrize("name", FLOATS)
def test_every_bit_is_that_of_the_definition(form, name, kind):
    base, first, second = (stored(numbers(seed, 2603, kind), name) for seed in range(3))
    operands = [base, first, base, second, base]
    results, expected = ([empty(name, 2603) for _ in range(3)] for _ in range(2))
    counts = np.zeros((2, 65536), np.int64)
    flags = [
        combine(base, [Term(0.5, first, base), Term(-0.3, second, base)], results[0]),
        ties(base, [first, second], [0.01, 0.03], None, 0.7, original=True, normalize=True, out=results[1]),
        perturb(base, 99, 7, 0.1, results[2]),
        delta_histogram(base, first, counts[0], level=0),
    ]
    assert flags == [
        kernel_reference.combine(operands, [0.5, -0.3], expected[0]),
        kernel_reference.ties([base, first, second], [0.01, 0.03], None, 0.7, True, True, expected[1]),
        kernel_reference.perturb(base, 99, 7, 0.1, expected[2]),
        kernel_reference.delta_histogram(base, first, counts[1], 0, 0),
    ]
    assert all(same_bits(result.raw, other.raw) for result, other in zip(results, expected, strict=True))
    assert np.array_equal(*counts)
