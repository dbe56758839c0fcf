"""Distances by layer against plain torch on the concatenated layer."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.checkpoints.distance import layer_distances, layer_of

NAMES = {
    "model.embed_tokens.weight": "embed",
    "model.layers.0.mlp.up_proj.weight": "0",
    "model.layers.0.input_layernorm.weight": "0",
    "model.layers.11.self_attn.q_proj.weight": "11",
    "model.layers.2.self_attn.q_proj.weight": "2",
    "model.norm.weight": "norm",
    "lm_head.weight": "head",
    "something.bias": "other",
}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        *NAMES.items(),
        ("transformer.h.7.attn.c_attn.weight", "7"),
        ("gpt_neox.layers.3.mlp.dense.bias", "3"),
        ("base_model.model.model.layers.4.mlp.up_proj.weight", "4"),
        ("transformer.wte.weight", "embed"),
        ("transformer.ln_f.weight", "norm"),
        ("embed_out.weight", "head"),
    ],
)
def test_layers_by_name(name: str, layer: str) -> None:
    assert layer_of(name) == layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_plain_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for number, name in enumerate(NAMES):
        start = torch.randn(5 + number, 3, generator=generator)
        pairs.append((name, start.to(dtype), (start + 0.1 * number * torch.randn(start.shape, generator=generator)).to(dtype)))
    found = {d.layer: d for d in layer_distances(iter(pairs))}
    assert list(found) == ["embed", "0", "2", "11", "norm", "head", "other", "total"]
    for layer, distance in found.items():
        mine = [(a.double().flatten(), b.double().flatten()) for n, a, b in pairs if layer in ("total", NAMES[n])]
        a, b = torch.cat([p[0] for p in mine]), torch.cat([p[1] for p in mine])
        assert distance.parameters == a.numel()
        assert distance.l2 == pytest.approx(float((b - a).norm()), rel=1e-5)
        assert distance.relative == pytest.approx(float((b - a).norm() / a.norm()), rel=1e-5)
        assert distance.cosine == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), rel=1e-5)


def test_a_start_of_zeros() -> None:
    zero, one = torch.zeros(3), torch.ones(3)
    moved, still = (layer_distances([("lm_head.weight", zero, b)])[0] for b in (one, zero))
    assert moved.relative == math.inf and moved.l2 == pytest.approx(math.sqrt(3)) and math.isnan(moved.cosine)
    assert still.relative == 0.0 and still.l2 == 0.0


def test_nothing_to_compare() -> None:
    assert layer_distances([]) == []
