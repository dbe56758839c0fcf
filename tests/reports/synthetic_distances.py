"""Distances between checkpoints, as `holdfast inspect A B` would find them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoints.distance import CheckpointDistance, TensorDistance
from holdfast.checkpoints.layers import layer_of
from holdfast.records.run import LayerDistance

LLAMA = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
LLAMA += ("input_layernorm", "post_attention_layernorm")


def tensor(name: str, move: float = 0.01, **changes: Any) -> TensorDistance:
    """A 4 x 8 tensor of norm 2 that moved by `move` of it."""
    fields: dict[str, Any] = {
        "name": name,
        "layer": layer_of(name),
        "shape": (4, 8),
        "dtypes": ("BF16", "BF16"),
        "l2": 2 * move,
        "relative": move,
    }
    return TensorDistance(**{**fields, "cosine": 1 - move**2 / 2, "sign_agreement": 1 - move / 3, **changes})


def checkpoint(tensors: Sequence[TensorDistance], **changes: Any) -> CheckpointDistance:
    """The record with its layers; all norms are 2."""
    groups: dict[str, list[TensorDistance]] = {}
    for t in tensors:
        for layer in (t.layer, "total"):
            groups.setdefault(layer, []).append(t)
    rank = {"embed": -1, "norm": 1000, "head": 1001, "other": 1002, "total": 1003}
    layers = []
    for layer in sorted(groups, key=lambda n: rank[n] if n in rank else int(n)):
        held = groups[layer]
        l2 = math.sqrt(sum(t.l2**2 for t in held))
        relative = l2 / (2 * math.sqrt(len(held)))
        layers.append(
            LayerDistance(
                layer=layer,
                parameters=32 * len(held),
                l2=l2,
                relative=relative,
                cosine=1 - relative**2 / 2,
                sign_agreement=0.99,
            )
        )
    fields: dict[str, Any] = {"start": "/data/base", "result": "/data/tuned", "notes": (), "seconds": 1.5}
    return CheckpointDistance(**{**fields, "tensors": tuple(tensors), "layers": tuple(layers), **changes})


def llama(layers: int = 3) -> list[TensorDistance]:
    """Tensors in the order of the alphabet, as files have them."""
    inside = [f"model.layers.{n}.{kind}.weight" for n in range(layers) for kind in sorted(LLAMA)]
    names = ["lm_head.weight", "model.embed_tokens.weight", *inside, "model.norm.weight"]
    return [tensor(name, 0.004 + 0.0001 * n) for n, name in enumerate(names)]
