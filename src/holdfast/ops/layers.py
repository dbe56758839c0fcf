"""RMSNorm and SwiGLU of a decoder in one pass each, float32 on CPUs: what stands between the
products of a small model.

PyTorch takes RMSNorm as transformers writes it in six passes over memory and its gradient in ten;
at a million parameters one pass each saves an eighth of a training step. `native/layers.c` takes
them so, built like the annealing op's loops (`holdfast.ops.native`). Where it cannot be had,
`load()` gives None and `why_not()` the reason.

    rms_norm(x, w) = w x / sqrt(mean(x^2) + epsilon)      (Zhang and Sennrich, 2019, equation 4)
    swiglu(a, b) = a b / (1 + exp(-a))                    (Shazeer, 2020, equation 5, without the products)

Shapes: `...` any, N the width. Results differ from PyTorch's by rounding; with as many threads they
are the same at every call.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.support.native import Settings, build, settings

SOURCE = Path(__file__).parent / "native" / "layers.c"
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
)


def load() -> Any | None:
    """The library, built if need be; None where it cannot be had (see `why_not`)."""
    return _load(settings())[0]


def why_not() -> str | None:
    """Why `load()` gives None, as half a sentence; None when it does not."""
    return _load(settings())[1]


def rms_norm(x: Tensor, weight_N: Tensor, epsilon: float) -> Tensor:
    """`weight x / sqrt(mean(x^2) + epsilon)`, means over the last dimension; differentiable once.

    Args:
        x: `[..., N]` float32 on the CPU.
        weight_N: `[N]` float32.
        epsilon: added to the mean.

    Raises:
        ValueError: another shape or dtype, or another device.
        RuntimeError: the library cannot be had.
        MemoryError: there is none left for the gradient.
    """
    _check(x=x, weight_N=weight_N)
    if weight_N.shape != x.shape[-1:]:
        raise ValueError(
            f"weight_N: expected as many as the last dimension of x {list(x.shape)}, got "
            f"{list(weight_N.shape)}."
        )
    return _RMSNorm.apply(x, weight_N, epsilon)  # type: ignore[no-any-return,no-untyped-call]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) up`; differentiable once.

    Args:
        gate, up: `[...]` of the same shape, float32 on the CPU.

    Raises:
        ValueError: another shape or dtype, or another device.
        RuntimeError: the library cannot be had.
    """
    _check(gate=gate, up=up)
    if gate.shape != up.shape:
        raise ValueError(
            f"up: expected the shape of gate {list(gate.shape)}, got {list(up.shape)}."
        )
    return _SwiGLU.apply(gate, up)  # type: ignore[no-any-return,no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_N: Tensor, epsilon: float) -> Tensor:
        x, weight_N = x.contiguous(), weight_N.contiguous()
        width = x.shape[-1]
        rows = x.numel() // max(width, 1)
        out, scale = torch.empty_like(x), torch.empty(rows)
        _library().holdfast_rms_norm(rows, width, *_at(x, weight_N), epsilon, *_at(out, scale))
        ctx.save_for_backward(x, weight_N, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight_N, scale = ctx.saved_tensors
        gradient = gradient.contiguous()  # has a name, so that its memory outlives the call
        grad_x, grad_weight = (
            torch.empty_like(x),
            torch.empty_like(weight_N) if ctx.needs_input_grad[1] else None,
        )
        failed = _library().holdfast_rms_norm_backward(
            scale.numel(), x.shape[-1], *_at(x, weight_N, scale, gradient, grad_x, grad_weight)
        )
        if failed:
            raise MemoryError(
                f"RMSNorm: not enough memory for {12 * x.shape[-1]} bytes per thread."
            )
        return grad_x, grad_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _library().holdfast_swiglu(gate.numel(), *_at(gate, up, out))
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gradient = gradient.contiguous()
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        _library().holdfast_swiglu_backward(
            gate.numel(), *_at(gate, up, gradient, grad_gate, grad_up)
        )
        return grad_gate, grad_up


def _check(**tensors: Tensor) -> None:
    """C reads what it is given as float32 in memory."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(
                f"{name}: expected float32 on the CPU, got {tensor.dtype} on {tensor.device}."
            )


def _library() -> Any:
    library = load()
    if library is None:
        raise RuntimeError(f"The native layers are not available: {why_not()}.")
    return library


def _at(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


@functools.lru_cache(maxsize=4)
def _load(wanted: Settings) -> tuple[Any | None, str | None]:
    built = build(SOURCE, flags=FLAGS, wanted=wanted)
    if isinstance(built, str):
        return None, built
    library, pointer, integer = built.library, ctypes.c_void_p, ctypes.c_int64
    library.holdfast_rms_norm.argtypes = [
        integer,
        integer,
        pointer,
        pointer,
        ctypes.c_double,
        pointer,
        pointer,
    ]
    library.holdfast_rms_norm_backward.argtypes = [integer, integer, *6 * [pointer]]
    library.holdfast_swiglu.argtypes = [integer, *3 * [pointer]]
    library.holdfast_swiglu_backward.argtypes = [integer, *5 * [pointer]]
    for name in ("rms_norm", "swiglu", "swiglu_backward"):
        getattr(library, f"holdfast_{name}").restype = None
    if not _is_right(library):
        return None, f"the library built by {built.compiler} does not reproduce PyTorch's numbers"
    return library, None


def _is_right(library: Any) -> bool:
    """Both layers' values and one gradient each of a few rows, against float64."""
    g = torch.Generator().manual_seed(0)
    x, b, gradient = (3 * torch.randn(5, 83, generator=g) for _ in range(3))
    w = torch.randn(83, generator=g)
    norm, gated, grad_w, grad_a, grad_x, grad_b = (
        torch.full_like(t, torch.nan) for t in (x, x, w, x, x, x)
    )
    scale = torch.empty(5)
    library.holdfast_rms_norm(5, 83, *_at(x, w), 1e-3, *_at(norm, scale))
    library.holdfast_rms_norm_backward(5, 83, *_at(x, w, scale, gradient, grad_x, grad_w))
    library.holdfast_swiglu(x.numel(), *_at(x, b, gated))
    library.holdfast_swiglu_backward(x.numel(), *_at(x, b, gradient, grad_a, grad_b))
    with torch.enable_grad():
        a, v, c = (t.double().requires_grad_() for t in (x, w, b))
        normed = v * a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-3)
        expected = (normed, *torch.autograd.grad(normed, (a, v), gradient.double()))
        product = torch.nn.functional.silu(a) * c
        expected += (product, *torch.autograd.grad(product, (a, c), gradient.double()))
    computed = (norm, grad_x, grad_w, gated, grad_a, grad_b)
    return all(
        bool(((f - e).abs() <= 1e-5 * (1 + e.abs())).all())
        for f, e in zip(computed, expected, strict=True)
    )
