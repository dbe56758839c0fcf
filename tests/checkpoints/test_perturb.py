"""Noise on a checkpoint: the right numbers in the right tensors, the same however it is stored or cut, and as on a
live model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checkpoint_folders import assert_rounded, llama_shapes, random_model, read_folder, stored, write_folder
from holdfast.checkpoints.counter import normal, stream_key
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.perturb import own_stds, perturb, prepare_perturb
from holdfast.errors import ConfigError

MATRICES = [n for n, shape in llama_shapes().items() if len(shape) == 2]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "F64", "F8_E5M2"])
def test_against_the_formula(dtype: str, small_units: int, tmp_path: Path) -> None:
    model = random_model(0, dtype) | {"ids": stored(np.arange(70), "I64")}
    folder = write_folder(tmp_path / "model", model, shards=3)
    stds = {name: 0.1 + 0.01 * i for i, name in enumerate(MATRICES)}
    built = perturb(folder, tmp_path / "out", scale=0.5, seed=11, stds=stds, sync=False)
    found = read_folder(tmp_path / "out")
    for name, tensor in model.items():
        if name not in stds:
            assert found[name] == tensor
            continue
        noise = normal(stream_key(11, name), 0, tensor.values.size).reshape(tensor.shape).astype(np.float64)
        assert_rounded(found[name], tensor.values + 0.5 * stds[name] * noise, terms=np.abs(tensor.values) + 1, steps=3)
        assert found[name].dtype == dtype
    assert built.record["method"]["seed"] == 11 and built.record["request"]["stds"] == stds


def test_seeds_differ_and_scale_zero_is_a_copy(tmp_path: Path) -> None:
    model = random_model(0) | {"model.norm.weight": stored(np.array([-0.0, 0.0] * 6), "BF16")}
    folder = write_folder(tmp_path / "model", model)
    stds = dict.fromkeys(MATRICES, 0.02)
    results = []
    for number, seed in enumerate((0, 1, -5, 2**70)):
        perturb(folder, tmp_path / f"out{number}", scale=1.0, seed=seed, stds=stds, sync=False)
        assert read_folder(tmp_path / f"out{number}") not in results
        results.append(read_folder(tmp_path / f"out{number}"))
    perturb(folder, tmp_path / "copy", scale=0.0, seed=0, stds=stds, sync=False)
    assert read_folder(tmp_path / "copy") == model


# ----------------------------------------------------------------------------------------------------------- own spread


def test_a_tensors_own_spread(small_units: int, tmp_path: Path) -> None:
    model = random_model(0, "F32", spread=0.3)
    model["constant"] = stored(np.full(1000, 0.1), "F32")
    model["far"] = stored(1e6 + np.random.default_rng(0).normal(size=1000), "F64")
    model["empty"], model["one"] = stored(np.zeros((0, 3)), "F16"), stored(np.array(3.0), "F16")
    model["ids"] = stored(np.arange(9), "I64")
    folder = write_folder(tmp_path / "model", model, shards=2)
    found = own_stds(open_source(folder), workers=3)
    assert found.keys() == model.keys() - {"ids"}
    for name in found:
        values = model[name].values
        assert found[name] == pytest.approx(float(values.std()) if values.size else 0.0, rel=1e-9, abs=1e-15), name
    assert found["constant"] < 1e-15
    built = perturb(folder, tmp_path / "out", scale=0.1, seed=1, sync=False)
    assert built.record["request"]["stds"] == found


# ------------------------------------------------------------------------------------------------------------- requests


def test_all_problems_at_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_model(0))
    with pytest.raises(ConfigError) as caught:
        prepare_perturb(folder, scale=-1.0, seed=0, stds={"model.norm.weight": -1.0, MATRICES[0]: float("nan")})
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match=r"stds: none of the 1 names is a tensor of .*model: lm\.a"):
        prepare_perturb(folder, scale=1.0, seed=0, stds={"lm.a": 1.0})
