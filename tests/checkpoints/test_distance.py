"""Distances against plain NumPy and PyTorch on the concatenated layer: of folders in one pass, of tensors in memory."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint_folders import Model, llama_shapes, random_model, stored, write_folder
from holdfast.checkpoints.distance import CheckpointDistance, distance, layer_distances, layer_of
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
        pairs.append(
            (name, start.to(dtype), (start + 0.1 * number * torch.randn(start.shape, generator=generator)).to(dtype))
        )
    found = {d.layer: d for d in layer_distances(iter(pairs))}
    assert list(found) == ["embed", "0", "2", "11", "norm", "head", "other", "total"]
    for layer, moved in found.items():
        mine = [(a.double().flatten(), b.double().flatten()) for n, a, b in pairs if layer in ("total", NAMES[n])]
        a, b = torch.cat([p[0] for p in mine]), torch.cat([p[1] for p in mine])
        assert moved.parameters == a.numel()
        assert moved.l2 == pytest.approx(float((b - a).norm()), rel=1e-5)
        assert moved.relative == pytest.approx(float((b - a).norm() / a.norm()), rel=1e-5)
        assert moved.cosine == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), rel=1e-5)


def test_a_start_of_zeros() -> None:
    zero, one = torch.zeros(3), torch.ones(3)
    moved, still = (layer_distances([("lm_head.weight", zero, b)])[0] for b in (one, zero))
    assert moved.relative == math.inf and moved.l2 == pytest.approx(math.sqrt(3)) and math.isnan(moved.cosine)
    assert still.relative == 0.0 and still.l2 == 0.0


def test_nothing_to_compare() -> None:
    assert layer_distances([]) == []


# -------------------------------------------------------------------------------------------------------------- folders


def figures(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float, float]:
    a, b = (np.concatenate([p[i].ravel() for p in pairs]) for i in range(2))
    norms = np.linalg.norm(a), np.linalg.norm(b)
    moved = np.linalg.norm(b - a)
    return moved, moved / norms[0], float(a @ b) / (norms[0] * norms[1]), float(np.mean(np.sign(a) == np.sign(b)))


def stated(found: Any) -> tuple[float, float, float, float]:
    return found.l2, found.relative, found.cosine, found.sign_agreement


@pytest.mark.parametrize("dtypes", [("F32", "F32"), ("BF16", "BF16"), ("F64", "F16"), ("F8_E4M3", "BF16")])
def test_folders_against_float64(dtypes: tuple[str, str], small_units: int, tmp_path: Path) -> None:
    shapes = llama_shapes(head=True) | {"model.scalar": ()}
    start = random_model(0, dtypes[0], shapes)
    result = random_model(1, dtypes[1], shapes, near=start, spread=0.2)
    found = distance(write_folder(tmp_path / "a", start, shards=7), write_folder(tmp_path / "b", result, shards=2))
    pairs = {n: (start[n].values, result[n].values) for n in start}
    assert [t.name for t in found.tensors] == list(start) and found.notes == ()
    for tensor in found.tensors:
        assert stated(tensor) == pytest.approx(figures([pairs[tensor.name]]), rel=1e-9)
        assert tensor.dtypes == dtypes and tensor.shape == shapes[tensor.name]
    assert [layer.layer for layer in found.layers] == ["embed", "0", "1", "norm", "head", "other", "total"]
    for layer in found.layers:
        mine = [p for n, p in pairs.items() if layer.layer in ("total", layer_of(n))]
        assert stated(layer) == pytest.approx(figures(mine), rel=1e-9) and layer.parameters == sum(
            a.size for a, _ in mine
        )
    assert found.total.parameters == sum(t.values.size for t in start.values())


def plain(found: CheckpointDistance) -> CheckpointDistance:
    return dataclasses.replace(found, seconds=0.0, start="", result="")


def test_threads_and_shards_change_no_figure(small_units: int, tmp_path: Path) -> None:
    models = [random_model(i) for i in range(2)]
    found = [
        plain(
            distance(
                *(write_folder(tmp_path / f"{shards}-{i}", m, shards=shards) for i, m in enumerate(models)),
                workers=workers,
            )
        )
        for shards, workers in ((1, 1), (8, 1), (3, 5), (6, 2))
    ]
    by_name = [sorted(f.tensors, key=lambda t: t.name) for f in found]
    assert all(f == by_name[0] for f in by_name)
    assert all(f.total.l2 == pytest.approx(found[0].total.l2, rel=1e-14) for f in found)


def test_a_checkpoint_is_at_no_distance_from_itself(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", random_model(0))
    total = distance(folder, folder).total
    assert (total.l2, total.relative, total.sign_agreement) == (0.0, 0.0, 1.0) and total.cosine == pytest.approx(
        1.0, abs=1e-12
    )


def test_zeros_and_empty_tensors_have_no_angle(tmp_path: Path) -> None:
    start: Model = {
        "zero": stored(np.zeros(4), "F32"),
        "empty": stored(np.zeros((0, 3)), "F32"),
        "negative": stored(np.array([-0.0, 1.0]), "F32"),
    }
    result: Model = {
        "zero": stored(np.ones(4), "F32"),
        "empty": start["empty"],
        "negative": stored(np.array([0.0, 1.0]), "F32"),
    }
    zero, empty, negative = distance(write_folder(tmp_path / "a", start), write_folder(tmp_path / "b", result)).tensors
    assert zero.relative == math.inf and math.isnan(zero.cosine) and zero.sign_agreement == 0.0
    assert empty.l2 == 0.0 and math.isnan(empty.sign_agreement)
    assert stated(negative) == (0.0, 0.0, 1.0, 1.0)


def test_what_cannot_be_compared_is_in_the_notes(tmp_path: Path) -> None:
    start = random_model(0, shapes=llama_shapes() | {"gone": (2,), "reshaped": (2, 3)}) | {
        "ids": stored(np.arange(3), "I64")
    }
    result = random_model(0, shapes=llama_shapes() | {"new": (2,), "reshaped": (3, 2)}) | {
        "ids": stored(np.arange(3), "I64")
    }
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    found = distance(write_folder(tmp_path / "a", start), write_folder(tmp_path / "b", result, config=quantised))
    assert len(found.tensors) == len(llama_shapes())
    notes = " | ".join(found.notes)
    for wanted in (
        "only in the start: gone",
        "only in the result: new",
        "of different shapes: reshaped",
        "not of floating-point numbers: ids",
    ):
        assert f"1 tensors {wanted}" in notes
    assert "is quantised (fp8)" in notes
    with pytest.raises(ModelError, match=r"have no tensor in common(?s:.*)only in the start: x"):
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


@pytest.mark.parametrize("spoilt", [0, 1])
def test_nan_is_named_in_a_comparison(spoilt: int, small_units: int, tmp_path: Path) -> None:
    models = [random_model(i) for i in range(2)]
    values = np.array(models[spoilt]["model.layers.1.mlp.up_proj.weight"].values)
    values[24, 11] = np.nan
    models[spoilt]["model.layers.1.mlp.up_proj.weight"] = stored(values, "BF16")
    folders = [write_folder(tmp_path / f"m{i}", m, shards=2) for i, m in enumerate(models)]
    with pytest.raises(
        ModelError,
        match=rf"model\.layers\.1\.mlp\.up_proj\.weight in .*m{spoilt}/model-0000\d.* holds 1 NaN of "
        rf"300 values, the first at \[24, 11\]",
    ):
        distance(*folders)
