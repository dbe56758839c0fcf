"""Conversions against PyTorch's, in C and in PyTorch: every pattern of the small types, every border between two of
their numbers."""

from __future__ import annotations

import kernel_reference
import numpy as np
import pytest
import torch
from elements import SPECIAL, numbers, same_bits

from holdfast.checkpoints.dtypes import count_nonfinite, decode, dtype, encode
from holdfast.checkpoints.element_types import DTYPES
from holdfast.errors import ConfigError

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def patterns(name: str) -> np.ndarray:
    """Every pattern of a type of at most two bytes."""
    d = DTYPES[name]
    return np.arange(1 << 8 * d.itemsize).astype(d.bits).view(d.storage)


def by_torch(raw: np.ndarray, name: str) -> np.ndarray:
    return torch.from_numpy(raw.view(f"i{raw.itemsize}").copy()).view(TORCH[name]).float().numpy()


def equal(x: np.ndarray, y: np.ndarray) -> bool:
    """Same numbers, same signs of zeros; one NaN is as good as another."""
    return np.array_equal(x, y, equal_nan=True) and np.array_equal(np.signbit(x[x == 0]), np.signbit(y[y == 0]))


@pytest.mark.parametrize("name", TORCH)
def test_every_pattern_is_decoded_as_pytorch_does(form, name):
    raw = patterns(name)
    expected = by_torch(raw, name)
    assert equal(decode(raw, DTYPES[name]), expected)
    assert count_nonfinite(raw, DTYPES[name]) == np.count_nonzero(~np.isfinite(expected))
    out = np.empty(len(raw))  # float64 receives them as well
    assert decode(raw, DTYPES[name], out) is out
    assert equal(out[np.isfinite(expected)], expected[np.isfinite(expected)].astype(np.float64))


@pytest.mark.parametrize("name", TORCH)
def test_encoding_rounds_as_pytorch_does(form, name):
    """Between all neighbours: the numbers, the middles, and the floats right beside these; and a great many others."""
    numbers_of_type = by_torch(patterns(name), name)
    finite = np.unique(numbers_of_type[np.isfinite(numbers_of_type)])
    middles = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    x = np.concatenate([finite, middles, *beside, SPECIAL, numbers(0, 300_000, "bits")])
    if name == "F8_E4M3":  # no infinity: NaN here; PyTorch gives 448
        x = x[~(np.abs(x) > 464)]
    expected = torch.from_numpy(x).to(TORCH[name]).float().numpy()
    out = np.empty(len(x), DTYPES[name].storage)
    lost = encode(x, DTYPES[name], out)
    assert same_bits(out, kernel_reference.encode(x, DTYPES[name]))
    assert equal(decode(out, DTYPES[name]), expected)
    assert lost == np.count_nonzero(np.isfinite(x) & ~np.isfinite(expected))
    assert lost > 0 or name == "F8_E4M3"


@pytest.mark.parametrize("name", ["F32", *TORCH])
def test_decoding_and_encoding_gives_the_pattern_back(form, name):
    d = DTYPES[name]
    raw = patterns(name) if name in TORCH else numbers(1, 5000, "bits")
    values = decode(raw, d)
    out = np.empty_like(raw)
    assert encode(values, d, out) == 0
    number = ~np.isnan(values)
    assert np.array_equal(out.view(d.bits)[number], raw.view(d.bits)[number])
    assert np.all(out.view(d.bits)[~number] == d.nan), "every NaN is stored as one"


def test_e4m3_has_no_infinity(form):
    out = np.empty(6, np.uint8)
    x = np.array([464.0, 465.0, -1e6, np.inf, np.nan, 448.0], np.float32)
    assert encode(x, DTYPES["F8_E4M3"], out) == 2
    assert out.tolist() == [0x7E, 0x7F, 0xFF, 0x7F, 0x7F, 0x7E]


@pytest.mark.parametrize("name", TORCH)
def test_float64_is_rounded_once(form, name):
    """Numbers a hair beside the middle of two neighbours, which a float32 in between would put exactly in the
    middle."""
    held = decode(patterns(name), DTYPES[name])
    held = np.unique(held[np.isfinite(held)].astype(np.float64))
    low, high = held[:-1], held[1:]
    middle, hair = (low + high) / 2, (high - low) * 2.0**-40
    assert np.array_equal((middle + hair).astype(np.float32), middle), "a float32 in between does not see the hair"
    for values, expected in ((middle + hair, high), (middle - hair, low)):
        out = np.empty(len(values), DTYPES[name].storage)
        assert encode(values, DTYPES[name], out) == 0
        assert np.array_equal(decode(out, DTYPES[name]).astype(np.float64), expected)


def test_float64_itself(form):
    d = DTYPES["F64"]
    x = np.array([0.1, -0.0, np.inf, np.nan, 1e300, 5e-324])
    out = np.empty(6)
    assert encode(x, d, out) == 0 and equal(out, x) and equal(decode(x, d), x)
    assert encode(x, DTYPES["F32"], np.empty(6, np.float32)) == 1, "1e300 fits no float32"
    assert count_nonfinite(x, d) == 2


def test_types_by_name():
    for name, expected in (("torch.bfloat16", "BF16"), ("fp32", "F32"), ("half", "F16"), ("double", "F64")):
        assert dtype(name) is DTYPES[expected]


def test_an_unknown_type_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"got 'bfloat61'\. Did you mean 'bfloat16'\?"):
        dtype("bfloat61")
