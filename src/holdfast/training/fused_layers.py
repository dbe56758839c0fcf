"""`fused_layers`: the RMSNorms and gated feed-forward layers of a decoder by `holdfast.ops.layers`,
where they are those of any Llama.

transformers writes both anew for each architecture, and some differ (Gemma's norm has 1 + weight).
So a class is tried first: its own `forward` has to give what ours gives for random weights, or its
layers stay as they are.
"""

from __future__ import annotations

import functools
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.ops import layers


def use_fused_layers(model: nn.Module) -> int:
    """Lets a model compute its RMSNorms and gated feed-forward layers in one pass each.

    Layers of another dtype, and on other devices, are left as they are, and inputs of another dtype
    (autocast) are computed as before. A copy of the model keeps it.

    Args:
        model: any, also with an adapter, on the device that it is trained on.

    Returns:
        Layers that were changed; 0 where the library cannot be had (`layers.why_not`) or nothing is
        like Llama's.
    """
    if layers.load() is None:
        return 0
    changed = 0
    for module in model.modules():
        ours = _ours(type(module))  # type: ignore[arg-type]
        if (
            ours is None
            or "forward" in vars(module)
            or not all(_in_float32(p) for p in module.parameters())
        ):
            continue
        if ours is _gated and not _is_silu(module.act_fn):
            continue
        module.forward = MethodType(ours, module)  # a method, so that a copy's is bound to the copy
        changed += 1
    return changed


@functools.cache
def _ours(kind: type[nn.Module]) -> Any | None:
    """What computes a class's `forward`; None where that is something else."""
    g = torch.Generator().manual_seed(0)
    x, w, up = (
        torch.randn(3, 32, generator=g),
        torch.randn(32, generator=g),
        torch.randn(32, generator=g),
    )
    norm = SimpleNamespace(weight=w, variance_epsilon=0.1, eps=0.1)
    gated = SimpleNamespace(
        gate_proj=lambda t: 2 * t,
        up_proj=lambda t: t * up,
        down_proj=lambda t: t * w,
        act_fn=nn.functional.silu,
    )
    for ours, stand_in in ((_norm, norm), (_gated, gated)):
        try:
            with torch.no_grad():
                expected = kind.forward(stand_in, x)  # type: ignore[arg-type]
                output = ours(stand_in, x)
        except Exception:  # another layer altogether, which knows nothing of these names
            continue
        if (
            isinstance(expected, Tensor)
            and expected.shape == x.shape
            and torch.allclose(expected, output, atol=1e-5)
        ):
            return ours
    return None


def _is_silu(function: Any) -> bool:
    x = torch.linspace(-8, 8, 65)
    return torch.allclose(function(x), nn.functional.silu(x), atol=1e-6)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    if not _plain(hidden_states, self.weight):
        return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]
    epsilon = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
    return layers.rms_norm(hidden_states, self.weight, epsilon)


def _gated(self: Any, x: Tensor) -> Tensor:
    gate, up = self.gate_proj(x), self.up_proj(x)
    one_pass = _plain(gate, up) and gate.shape == up.shape
    return self.down_proj(layers.swiglu(gate, up) if one_pass else self.act_fn(gate) * up)  # type: ignore[no-any-return]


def _plain(*tensors: Tensor) -> bool:
    """Whether C can read them: no quantised weights, shards or fakes."""
    return all(_in_float32(t) and type(t) in (Tensor, nn.Parameter) for t in tensors)


def _in_float32(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"
