"""Distances against plain NumPy and PyTorch on the concatenated layer: of folders in one pass, of tensors in memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint_folders import llama_shapes, random_model, stored, write_folder
from holdfast.checkpoints.distance import distance, layer_distances
from holdfast.checkpoints.layers import layer_of
from holdfast.errors import ModelError

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
        change = 0.1 * number * torch.randn(start.shape, generator=generator)
        pairs.append((name, start.to(dtype), (start + change).to(dtype)))
    layers = {d.layer: d for d in layer_distances(iter(pairs))}
    assert list(layers) == ["embed", "0", "2", "11", "norm", "head", "other", "total"]
    for layer, moved in layers.items():
        inside = [(a.double().flatten(), b.double().flatten()) for n, a, b in pairs if layer in ("total", NAMES[n])]
        a, b = torch.cat([p[0] for p in inside]), torch.cat([p[1] for p in inside])
        assert moved.l2 == pytest.approx(float((b - a).norm()), rel=1e-5)
        assert moved.relative == pytest.approx(float((b - a).norm() / a.norm()), rel=1e-5)
        assert moved.cosine == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), rel=1e-5)


# -------------------------------------------------------------------------------------------------------------- folders


def figures(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float, float]:
    a, b = (np.concatenate([p[i].ravel() for p in pairs]) for i in range(2))
    norms = np.linalg.norm(a), np.linalg.norm(b)
    moved = np.linalg.norm(b - a)
    return moved, moved / norms[0], float(a @ b) / (norms[0] * norms[1]), float(np.mean(np.sign(a) == np.sign(b)))


def stated(found: Any) -> tuple[float, float, float, float]:
    return found.l2, found.relative, found.cosine, found.sign_agreement


@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F64", "F16"), ("F8_E4M3", "BF16")])
def test_folders_against_float64(dtypes: tuple[str, str], small_units: int, tmp_path: Path) -> None:
    shapes = llama_shapes(head=True) | {"model.scalar": ()}
    start = random_model(0, dtypes[0], shapes)
    result = random_model(1, dtypes[1], shapes, near=start, spread=0.2)
    measured = distance(write_folder(tmp_path / "a", start, shards=7), write_folder(tmp_path / "b", result, shards=2))
    pairs = {n: (start[n].values, result[n].values) for n in start}
    assert [t.name for t in measured.tensors] == list(start) and measured.notes == ()
    for tensor in measured.tensors:
        assert stated(tensor) == pytest.approx(figures([pairs[tensor.name]]), rel=1e-9)
    assert [layer.layer for layer in measured.layers] == ["embed", "0", "1", "norm", "head", "other", "total"]
    for layer in measured.layers:
        inside = [p for n, p in pairs.items() if layer.layer in ("total", layer_of(n))]
        assert stated(layer) == pytest.approx(figures(inside), rel=1e-9)


def test_zeros_and_empty_tensors_have_no_angle(tmp_path: Path) -> None:
    start = {"zero": stored(np.zeros(4), "F32"), "empty": stored(np.zeros((0, 3)), "F32")}
    result = {"zero": stored(np.ones(4), "F32"), "empty": start["empty"]}
    zero, empty = distance(write_folder(tmp_path / "a", start), write_folder(tmp_path / "b", result)).tensors
    assert zero.relative == math.inf and math.isnan(zero.cosine) and zero.sign_agreement == 0.0
    assert empty.l2 == 0.0 and math.isnan(empty.sign_agreement)


def test_what_cannot_be_compared_is_in_the_notes(tmp_path: Path) -> None:
    ids = {"ids": stored(np.arange(3), "I64")}
    start = random_model(0, shapes=llama_shapes() | {"gone": (2,), "reshaped": (2, 3)}) | ids
    result = random_model(0, shapes=llama_shapes() | {"new": (2,), "reshaped": (3, 2)}) | ids
    measured = distance(write_folder(tmp_path / "a", start), write_folder(tmp_path / "b", result))
    assert len(measured.tensors) == len(llama_shapes())
    notes = " | ".join(measured.notes)
    for words in (
        "only in the start: gone",
        "only in the result: new",
        "of different shapes: reshaped",
        "not of floating-point numbers: ids",
    ):
        assert f"1 tensors {words}" in notes
    with pytest.raises(ModelError, match="have no tensor in common"):
        distance(write_folder(tmp_path / "c", {"x": stored(np.ones(2), "F32")}), tmp_path / "a")


def test_rows_are_matched_by_token(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(40)
    tokens = [f"t{i}" for i in range(40)]
    start = random_model(0, "F32")
    result = dict(start) | {
        "model.embed_tokens.weight": stored(start["model.embed_tokens.weight"].values[order], "F32")
    }
    found = distance(
        write_folder(tmp_path / "a", start, tokens=tokens),
        write_folder(tmp_path / "b", result, tokens=[tokens[i] for i in order]),
    )
    assert found.total.l2 == 0.0 and len(found.notes) == 1
