"""RMSNorm and SwiGLU in one pass against float64, forward and backward."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from torch.nn import functional

from holdfast.ops import layers

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


def drawn(*shape, seed=0, scale=1.0):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).requires_grad_()


def against(ours, reference, inputs, *, atol=2e-6):
    exact = [t.detach().double().requires_grad_() for t in inputs]
    out, expected = ours(*inputs), reference(*exact)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=atol, rtol=1e-5)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    got = torch.autograd.grad(out, inputs, grad)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(
            one.double(), other, atol=atol * max(1.0, float(other.abs().max()) if other.numel() else 0.0), rtol=1e-5
        )


def norm(x, w):
    return w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (3, 83), (2, 70, 128), (5, 130, 96), (2048, 128), (0, 16)])
@pytest.mark.parametrize("threads", [1, 3])
def test_rms_norm_is_the_formula(shape, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, w = drawn(*shape, scale=2.0), drawn(shape[-1], seed=1)
    try:
        # the gradient of a row of one is a difference of what is alike
        against(lambda x, w: layers.rms_norm(x, w, 1e-6), norm, [x, w], atol=1e-5 if shape[-1] == 1 else 2e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(1,), (3, 83), (2, 200, 512)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_swiglu_is_the_formula(shape, scale):
    against(layers.swiglu, lambda a, b: functional.silu(a) * b, [drawn(*shape, scale=scale), drawn(*shape, seed=1)])


def test_what_is_not_contiguous_is_read_right():
    x, w = drawn(64, 5, 40), drawn(40, seed=1)
    against(lambda x, w: layers.rms_norm(x.transpose(0, 1), w, 1e-6), lambda x, w: norm(x.transpose(0, 1), w), [x, w])
    ours, reference = (
        lambda x, w, f=f: f(x, w).transpose(0, 1) ** 2 for f in (lambda x, w: layers.rms_norm(x, w, 1e-6), norm)
    )
    against(ours, reference, [drawn(300, 40, seed=2), w], atol=1e-5)  # a gradient that is a copy's
    a, b = drawn(7, 30), drawn(30, 7, seed=1)
    against(lambda a, b: layers.swiglu(a, b.T), lambda a, b: functional.silu(a) * b.T, [a, b])


def test_the_same_bits_at_every_call():
    x, w, g = drawn(2048, 128), drawn(128, seed=1), torch.randn(2048, 128)

    def gradients():
        return torch.autograd.grad(layers.rms_norm(x, w, 1e-6), [x, w], g)

    first = gradients()
    assert all(torch.equal(a, b) for _ in range(5) for a, b in zip(first, gradients(), strict=True))


def test_what_is_not_finite_stays_so():
    x = torch.ones(3, 20)
    x[1, 4] = math.nan
    out = layers.rms_norm(x, torch.ones(20), 1e-6)
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()
    gate = torch.tensor([math.nan, math.inf, 1e30, -1e30, 200.0, -200.0])
    expected = torch.tensor([math.nan, math.inf, 1e30, 0.0, 200.0, 0.0])
    torch.testing.assert_close(layers.swiglu(gate, torch.ones(6)), expected, equal_nan=True)


def test_what_c_would_misread_is_refused():
    x, w = torch.ones(3, 8), torch.ones(8)
    for call, words in (
        (lambda: layers.rms_norm(x.bfloat16(), w, 1e-6), "x: expected float32 on the CPU, got torch.bfloat16"),
        (lambda: layers.rms_norm(x, w.double(), 1e-6), "weight_N: expected float32"),
        (lambda: layers.rms_norm(x, torch.ones(9), 1e-6), r"weight_N: expected as many .* \[3, 8\], got \[9\]"),
        (lambda: layers.swiglu(x, torch.ones(3, 9)), r"up: expected the shape of gate \[3, 8\], got \[3, 9\]"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_switched_off_it_says_so(monkeypatch):
    monkeypatch.setenv("HOLDFAST_NATIVE", "0")
    assert layers.load() is None and "HOLDFAST_NATIVE=0" in layers.why_not()
    with pytest.raises(RuntimeError, match="not available: it is switched off"):
        layers.swiglu(torch.ones(2), torch.ones(2))
