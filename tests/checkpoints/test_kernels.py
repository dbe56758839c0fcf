"""The elementwise passes: C against NumPy bit for bit, both against plain float64 references, and what each promises
about zeros, NaN and overflow."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from elements import FLOATS, SIZES, empty, needs_compiler, numbers, same_bits, stored, wide
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints import kernels, kernels_numpy, native
from holdfast.checkpoints.counter import normal
from holdfast.checkpoints.dtypes import DTYPES, Operand, decode, encode
from holdfast.checkpoints.kernels import Flags, Term, combine, delta_histogram, moments, perturb, ties
from holdfast.errors import ShapeError

examples = settings(max_examples=120, deadline=None, derandomize=True, database=None)
NAMES = st.sampled_from(FLOATS)
WEIGHTS = st.sampled_from([0.0, 1.0, 0.5, -0.3, 1e-3, 2.0, 1e-60, 3e38])
KIND = st.sampled_from(["weights", "weights", "tiny", "mixed", "bits", "special"])
SEEDS = st.integers(0, 10_000)


@pytest.fixture(params=[pytest.param("C", marks=needs_compiler), "NumPy"])
def form(request, monkeypatch):
    """Runs a test in both forms."""
    monkeypatch.setenv("HOLDFAST_NATIVE", "1" if request.param == "C" else "0")
    assert kernels.describe().startswith(request.param)
    return request.param


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


# ------------------------------------------------------------------------------------------------------ C against NumPy


@needs_compiler
@examples
@given(held=operands(1, 9), data=st.data())
def test_combine_has_the_bits_of_numpy(held, data):
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
def test_ties_has_the_bits_of_numpy(held, weights, original, normalize, data):
    base, *models = held
    limits = [data.draw(st.sampled_from([0.0, 0.01, 0.03, 1e-7, 1.0, 3e38])) for _ in models]
    given_weights = weights[: len(models)] if data.draw(st.booleans()) else None
    scale = data.draw(st.sampled_from([1.0, 0.7, 0.0, -2.0]))
    out = data.draw(st.sampled_from([base.dtype.name, *FLOATS]))
    x, y = empty(out, len(base.raw)), empty(out, len(base.raw))
    flags = ties(base, models, limits, given_weights, scale, original=original, normalize=normalize, out=x)
    expected = kernels_numpy.ties(
        base, models, limits, given_weights, scale, by_count=original, normalize=normalize, out=y
    )
    assert flags == expected
    assert same_bits(x.raw, y.raw)


@needs_compiler
@examples
@given(held=operands(2, 2), choice=st.integers(0, 1 << 30))
def test_delta_histogram_has_the_counts_of_numpy(held, choice):
    base, model = held
    counts = np.zeros((2, 65536), np.int64)
    assert delta_histogram(base, model, counts[0], level=0) == kernels_numpy.delta_histogram(
        base, model, counts[1], level=0, prefix=0
    )
    assert np.array_equal(*counts)
    assert counts[0].sum() == len(base.raw)
    filled = np.flatnonzero(counts[0])
    prefix = int(filled[choice % len(filled)]) if len(filled) else 5
    fine = np.zeros((2, 32768), np.int64)
    assert delta_histogram(base, model, fine[0], level=1, prefix=prefix) == kernels_numpy.delta_histogram(
        base, model, fine[1], level=1, prefix=prefix
    )
    assert np.array_equal(*fine)
    assert fine[0].sum() == counts[0][prefix]


@needs_compiler
@examples
@given(held=operands(2, 2))
def test_moments_are_those_of_numpy(held):
    np.testing.assert_allclose(moments(*held), kernels_numpy.moments(*held), rtol=1e-12, atol=0)


@needs_compiler
@examples
@given(
    held=operands(1, 1),
    key=st.integers(0, 2**64 - 1),
    start=st.integers(0, 2**40),
    sigma=st.sampled_from([0.0, 1e-3, 1.0, 1e38]),
    out=NAMES,
)
def test_perturb_has_the_bits_of_numpy(held, key, start, sigma, out):
    x, y = empty(out, len(held[0].raw)), empty(out, len(held[0].raw))
    assert perturb(held[0], key, start, sigma, x) == kernels_numpy.perturb(held[0], key, start, sigma, y)
    assert same_bits(x.raw, y.raw)


# ------------------------------------------------------------------------------------------------------- combine


@pytest.mark.parametrize("name", FLOATS)
def test_combine_is_the_formula(form, name):
    """Against float64, within the float32 roundings of the sum and the one of the result."""
    n = 2500
    a, b, m, o = (stored(numbers(i, n, "weights"), name) for i in range(4))
    out = empty(name, n)
    assert combine(a, [Term(0.4, b, a), Term(-0.7, m, o), Term(1.0, o)], out) == Flags(0, 0)
    exact = wide(a) + 0.4 * (wide(b) - wide(a)) - 0.7 * (wide(m) - wide(o)) + wide(o)
    within = {"F64": 1e-16, "F32": 3e-8, "BF16": 2.0**-11, "F16": 2.0**-14, "F8_E4M3": 2.0**-7, "F8_E5M2": 2.0**-6}[
        name
    ]
    assert np.abs(exact).max() < 0.25
    assert np.abs(wide(out) - exact).max() < 1.001 * within
    nearest = stored(exact, name)
    assert name in ("F64", "F32") or np.mean(out.raw == nearest.raw) > 0.99, "one rounding"


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("how", ["anchor only", "weight 1", "weight 0 beside"])
def test_a_plain_copy_keeps_every_bit(form, name, how):
    d = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, 2603 * d.itemsize, dtype=np.uint8).view(d.storage)
    source, other = Operand(raw, d), stored(numbers(1, 2603, "weights"), name)
    out = empty(name, 2603)
    flags = {
        "anchor only": lambda: combine(source, [], out),
        "weight 1": lambda: combine(None, [Term(1.0, source)], out),
        "weight 0 beside": lambda: combine(source, [Term(0.0, other, source)], out),
    }[how]()
    assert same_bits(out.raw, raw)
    bits = 0b101 if how == "weight 0 beside" else 0b1 if how == "anchor only" else 0b10
    assert flags == Flags(bits if name != "F64" or np.any(~np.isfinite(wide(source))) else 0, 0)


def test_a_difference_of_equal_things_is_zero_and_a_lone_negative_zero_survives(form):
    x, zeros = stored(numbers(0, 1500, "weights"), "BF16"), Operand(np.full(1500, 0x8000, np.uint16), DTYPES["BF16"])
    out = empty("BF16", 1500)
    combine(None, [Term(1.0, x, x)], out)
    assert not out.raw.any()
    combine(None, [Term(0.5, zeros)], out)
    assert np.all(out.raw == 0x8000)
    combine(None, [], out)
    assert not out.raw.any(), "nothing to add up is 0"
    combine(None, [Term(0.0, x)], out)
    assert not out.raw.any()


@pytest.mark.parametrize("name", ["BF16", "F32", "F16", "F64"])
def test_the_result_may_replace_an_operand(form, name):
    held = [stored(numbers(i, 2603, "mixed"), name) for i in range(3)]
    expected = empty(name, 2603)
    flags = combine(held[0], [Term(0.5, held[1], held[2])], expected)
    for i in range(3):
        copies = [Operand(h.raw.copy(), h.dtype) for h in held]
        assert combine(copies[0], [Term(0.5, copies[1], copies[2])], copies[i]) == flags
        assert same_bits(copies[i].raw, expected.raw)


@pytest.mark.parametrize("name", ["BF16", "F32", "F16", "F64"])
@pytest.mark.parametrize("position", [0, 1023, 1024, 2602])
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
    assert combine(big, [], empty("F16", 4)) == Flags(0, 0)
    most = stored(np.array([3e38, 1.0, 3e38, 0.0], np.float32), "F32")
    assert combine(most, [Term(1.0, most)], empty("F32", 4)) == Flags(0, 2)
    assert combine(most, [Term(1.0, most)], empty("BF16", 4)) == Flags(0, 2)
    assert combine(most, [Term(1.0, most)], empty("F64", 4)) == Flags(0, 0), "float64 holds it"
    broken = stored(np.array([3e38, 1.0, np.nan, 0.0], np.float32), "F32")
    assert combine(broken, [Term(1.0, most)], empty("F32", 4)).nonfinite == 1


def test_float64_weights_are_not_rounded(form):
    """1 + 1e-12 is 1 in float32, and 1e-60 is 0."""
    x, y = (stored(np.array([v, 3.0]), "F64") for v in (1.0, 1e50))
    out = empty("F64", 2)
    combine(None, [Term(1 + 1e-12, x)], out)
    assert out.raw.tolist() == [1 + 1e-12, 3 * (1 + 1e-12)]
    combine(x, [Term(1e-60, y)], out)
    assert out.raw[0] == 1 + 1e-10
    assert combine(None, [Term(1e-60, stored(np.ones(2), "BF16"))], empty("F32", 2)) == Flags(0, 0)


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
    """Bit for bit: -0.0 too, and everywhere with scale 0."""
    base = stored(np.array([-0.0, 0.5, -0.0, 1.0], np.float32), "BF16")
    models = [stored(np.array(v, np.float32), "BF16") for v in ([0.25, 0.75, -0.0, 1.0], [-0.25, 0.25, -0.0, 1.5])]
    out = empty("BF16", 4)
    ties(base, models, [0.0, 1.0], None, 1.0, original=True, normalize=True, out=out)
    assert wide(out).tolist() == [0.25, 0.75, 0.0, 1.0] and np.signbit(wide(out)[2])
    ties(base, models, [0.0, 0.0], None, 1.0, original=True, normalize=True, out=out)
    assert wide(out).tolist() == [0.0, 0.5, 0.0, 1.5] and np.signbit(wide(out)[0]), "what cancels elects nobody"
    ties(base, models, [0.0, 0.0], None, 1.0, original=False, normalize=True, out=out)
    assert wide(out).tolist() == [0.25, 0.75, 0.0, 1.5], "mergekit elects the positive"
    ties(base, models, [0.0, 0.0], None, 0.0, original=True, normalize=True, out=out)
    assert same_bits(out.raw, base.raw)


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_ties_names_what_is_not_finite(form, bad, value):
    """Also where the trim or the election leaves it out."""
    held = [numbers(i, 1300, "weights") for i in range(3)]
    held[bad][1100] = value
    base, *models = (stored(h, "BF16") for h in held)
    flags = ties(base, models, [0.01, 0.01], None, 1.0, original=True, normalize=True, out=empty("BF16", 1300))
    assert flags.nonfinite == 1 << bad


# ------------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("name", ["BF16", "F32", "F16", "F64"])
def test_two_histograms_find_any_magnitude_exactly(form, name):
    base, model = stored(numbers(0, 5000, "weights"), name), stored(numbers(1, 5000, "weights"), name)
    magnitudes = np.sort(np.abs((wide(model) - wide(base)).astype(np.float32)))
    for k in (0, 1234, 4999):
        counts, fine = np.zeros(65536, np.int64), np.zeros(32768, np.int64)
        for cut in (slice(0, 2000), slice(2000, 5000)):
            delta_histogram(Operand(base.raw[cut], base.dtype), Operand(model.raw[cut], model.dtype), counts, level=0)
        prefix = int(np.searchsorted(np.cumsum(counts), k, side="right"))
        delta_histogram(base, model, fine, level=1, prefix=prefix)
        rest = k - int(counts[:prefix].sum())
        bits = prefix << 15 | int(np.searchsorted(np.cumsum(fine), rest, side="right"))
        assert np.uint32(bits).view(np.float32) == magnitudes[k]


def test_histogram_flags(form):
    x, y = numbers(0, 1500, "weights"), numbers(1, 1500, "weights")
    y[7], y[1400] = np.nan, np.inf
    counts = np.zeros(65536, np.int64)
    assert delta_histogram(stored(x, "F32"), stored(y, "F32"), counts, level=0) == Flags(0b10, 0)
    assert counts[0x7FC00000 >> 15] == 1 and counts[0x7F800000 >> 15] == 1
    x[:], y[:] = 3e38, -3e38
    assert delta_histogram(stored(x, "F32"), stored(y, "F32"), counts, level=0) == Flags(0, 1500)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 1027, 9000])
def test_moments_are_the_sums(form, name, n):
    a, b = stored(numbers(0, n, "weights"), name), stored(numbers(1, n, "weights"), name)
    a.raw[::5], b.raw[::10] = 0, 0
    x, y = wide(a), wide(b)
    if n > 1:
        a.raw.view(a.dtype.bits)[0] = b.raw.view(b.dtype.bits)[0] | 1 << (8 * a.dtype.itemsize - 1)  # -0.0 beside 0.0
        assert x[0] == y[0] == 0
    expected = [
        n,
        ((y - x) ** 2).sum(),
        (x**2).sum(),
        (y**2).sum(),
        (x * y).sum(),
        np.count_nonzero(np.sign(x) == np.sign(y)),
        0,
        0,
    ]
    np.testing.assert_allclose(moments(a, b), expected, rtol=1e-12, atol=0)


def test_moments_count_what_is_not_finite(form):
    x, y = numbers(0, 3000, "weights"), numbers(1, 3000, "weights")
    x[[5, 2999]], y[1024] = np.nan, -np.inf
    found = moments(stored(x, "BF16"), stored(y, "BF16"))
    assert found[6:].tolist() == [2, 1]
    signs = np.count_nonzero(np.sign(wide(stored(x, "BF16"))) == np.sign(wide(stored(y, "BF16"))))
    assert found[5] == signs


# ------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("name", ["BF16", "F32", "F64"])
def test_perturb_adds_the_numbers_of_the_stream(form, name):
    x, out = stored(numbers(0, 3001, "weights"), name), empty(name, 3001)
    assert perturb(x, 99, 1000, 0.01, out) == Flags(0, 0)
    z = normal(99, 1000, 3001)
    expected = stored(
        wide(x) + 0.01 * z.astype(np.float64) if name == "F64" else (wide(x).astype(np.float32) + np.float32(0.01) * z),
        name,
    )
    assert same_bits(out.raw, expected.raw)
    pieces = empty(name, 3001)
    for cut in (slice(0, 1), slice(1, 1030), slice(1030, 3001)):
        perturb(Operand(x.raw[cut], x.dtype), 99, 1000 + cut.start, 0.01, Operand(pieces.raw[cut], x.dtype))
    assert same_bits(pieces.raw, out.raw)
    perturb(x, 99, 1000, 0.01, x)
    assert same_bits(x.raw, out.raw), "in place"


def test_perturb_flags(form):
    x = stored(np.array([1.0, np.nan, 2.0], np.float32), "F16")
    assert perturb(x, 1, 0, 0.1, empty("F16", 3)).nonfinite == 1
    assert perturb(stored(np.ones(1000, np.float32), "F16"), 1, 0, 1e6, empty("F16", 1000)).overflow > 900


# ------------------------------------------------------------------------------------------------------- the rest


def test_threads_side_by_side_give_the_same(form):
    n = 40_000
    a, b = stored(numbers(0, n, "weights"), "BF16"), stored(numbers(1, n, "weights"), "BF16")
    outs = [empty("BF16", n) for _ in range(8)]
    threads = [
        threading.Thread(target=lambda o=o: [combine(a, [Term(0.5, b, a)], o), perturb(o, 3, 0, 0.1, o)]) for o in outs
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(same_bits(o.raw, outs[0].raw) for o in outs)


def test_operands_that_do_not_fit_are_refused(form):
    x, y, out = stored(numbers(0, 8, "weights"), "BF16"), stored(numbers(0, 9, "weights"), "BF16"), empty("BF16", 8)
    with pytest.raises(
        ShapeError,
        match=r"combine: expected contiguous float elements of one length, got BF16 \[8\], BF16 \[9\], BF16 \[8\]",
    ):
        combine(x, [Term(1.0, y)], out)
    with pytest.raises(ShapeError, match=r"moments.*strides"):
        moments(x, Operand(np.zeros(16, np.uint16)[::2], DTYPES["BF16"]))
    with pytest.raises(ShapeError, match=r"perturb.*stored as float32"):
        perturb(Operand(np.zeros(8, np.float32), DTYPES["BF16"]), 0, 0, 1.0, out)
    with pytest.raises(ShapeError, match="Integers and booleans can be copied"):
        combine(Operand(np.zeros(8, np.int64), DTYPES["I64"]), [], out)
    with pytest.raises(ShapeError, match="threshold and a weight for each of 1 models, got 2 thresholds"):
        ties(x, [x], [0.1, 0.2], None, 1.0, original=True, normalize=True, out=out)
    with pytest.raises(ShapeError, match=r"int64 counts \[65536\] at level 0, got float64 \[65536\]"):
        delta_histogram(x, x, np.zeros(65536), level=0)
    with pytest.raises(ShapeError, match=r"\[32768\] at level 1"):
        delta_histogram(x, x, np.zeros(65536, np.int64), level=1)


def test_read_only_operands_are_read(form):
    x, out = stored(numbers(0, 2000, "weights"), "BF16"), empty("BF16", 2000)
    x.raw.flags.writeable = False
    combine(None, [Term(2.0, x)], out)
    assert np.array_equal(wide(out), 2 * wide(x))


@pytest.mark.parametrize("name", ["BF16", "F32"])
def test_operands_may_lie_anywhere_in_memory(form, name):
    """As views into a file do whose header has an odd length."""
    x, z = stored(numbers(0, 2000, "mixed"), name), stored(numbers(1, 2000, "weights"), name)
    memory = np.zeros(x.raw.nbytes + 1, np.uint8)[1:]
    memory[:] = x.raw.view(np.uint8)
    moved = Operand(memory.view(x.dtype.storage), x.dtype)
    assert not moved.raw.flags.aligned
    outs = [empty("F16", 2000) for _ in range(2)]
    assert combine(x, [Term(0.5, z)], outs[0]) == combine(moved, [Term(0.5, z)], outs[1])
    assert same_bits(outs[0].raw, outs[1].raw)
    assert same_bits(np.nan_to_num(decode(*x)), np.nan_to_num(decode(*moved)))


def test_what_runs_is_described(monkeypatch):
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    assert kernels.describe() == "NumPy (it is switched off (HOLDFAST_NATIVE=0))"
    monkeypatch.setenv("HOLDFAST_NATIVE", "1")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert kernels.describe() == "NumPy (no C compiler was found (no-such-compiler))"


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("(u >> 16 & 1)) >> 16", "0) >> 16", "encode"),
        ("0xCD9E8D57u", "0xCD9E8D59u", "perturb"),
        ("", "", None),
    ],
)
def test_a_library_with_other_numbers_is_not_used(monkeypatch, tmp_path, right, wrong, named):
    text = native.SOURCE.read_text(encoding="utf-8")
    assert right in text or named is None
    source = tmp_path / "kernels.c"
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setattr(native, "FLAGS", tuple("-O0" if f == "-O3" else f for f in native.FLAGS))
    native._load.cache_clear()
    try:
        if named is None:
            assert native.load() is not None, "the source as it is, without optimisation, gives the same bits"
        else:
            assert native.load() is None
            assert native.why_not().endswith(f"does not reproduce NumPy's {named}")
            out = np.empty(3, np.uint16)
            assert encode(np.float32([1, 2, 3]), DTYPES["BF16"], out) == 0 and out.tolist() == [0x3F80, 0x4000, 0x4040]
    finally:
        native._load.cache_clear()
