"""Checkpoint folders as data: one file, shards, adapters; and what is said of broken ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdfast.checkpoints.reader import CheckpointReader, checkpoint_hash, weight_files
from holdfast.errors import ModelError

TENSORS = {
    "model.layers.0.w": torch.arange(6.0).reshape(2, 3),
    "model.embed.w": torch.ones(4, 2, dtype=torch.bfloat16),
    "model.norm.w": torch.tensor([1, 2, 3]),
}


def single(folder: Path, name: str = "model.safetensors") -> Path:
    folder.mkdir()
    save_file(TENSORS, folder / name)
    return folder


def sharded(folder: Path) -> Path:
    folder.mkdir()
    weight_map = {}
    for number, (name, tensor) in enumerate(TENSORS.items(), 1):
        file = f"model-{number:05}-of-00003.safetensors"
        save_file({name: tensor}, folder / file)
        weight_map[name] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("make", [single, sharded, lambda folder: single(folder, "adapter_model.safetensors")])
def test_reads_by_name_whatever_the_layout(make, tmp_path: Path) -> None:
    reader = CheckpointReader(make(tmp_path / "model"))
    assert reader.names() == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert reader.shape(name) == tuple(tensor.shape)
        assert reader.tensor(name).dtype == tensor.dtype and torch.equal(reader.tensor(name), tensor)
    with pytest.raises(KeyError):
        reader.tensor("model.layers.1.w")


def test_reads_what_transformers_writes_in_shards(tmp_path: Path) -> None:
    from tiny import build_model

    model = build_model()
    model.save_pretrained(tmp_path / "model", max_shard_size="40KB")
    assert len(weight_files(tmp_path / "model")) > 2
    reader = CheckpointReader(tmp_path / "model")
    state = model.state_dict()
    assert set(reader.names()) == set(state) - {"lm_head.weight"}  # tied to the embeddings, stored once
    assert all(torch.equal(reader.tensor(n), state[n]) for n in reader.names())


def test_broken_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Expected a checkpoint folder at .*nowhere, found none"):
        CheckpointReader(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"Expected model\.safetensors .* found neither"):
        CheckpointReader(tmp_path / "empty")
    folder = sharded(tmp_path / "shards")
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lists 3 shards, 1 missing: model-00002-of-00003\.safetensors"):
        CheckpointReader(folder)


@pytest.mark.parametrize("size", [0, 4, 60, -1])
def test_a_cut_file_is_refused_by_name(size: int, tmp_path: Path) -> None:
    file = single(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"Expected a whole safetensors file at .*model\.safetensors.*Copy or download it again"):
        CheckpointReader(tmp_path / "model")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(ModelError, match=r"only pickled weights \(pytorch_model.bin\).*save_pretrained"):
        CheckpointReader(tmp_path / "model")
    shutil.copy(single(tmp_path / "other") / "model.safetensors", tmp_path / "model")
    assert CheckpointReader(tmp_path / "model").names() == sorted(TENSORS)  # beside safetensors they are ignored


@pytest.mark.parametrize("make", [single, sharded])
def test_the_hash_is_of_the_content(make, tmp_path: Path) -> None:
    folder = make(tmp_path / "model")
    before = checkpoint_hash(folder)
    assert len(before) == 64
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = weight_files(copy)[-1]
    os.utime(file, (1, 1))
    (copy / "README.md").write_text("not a weight")
    assert checkpoint_hash(copy) == before
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # one bit of one weight
    file.write_bytes(content)
    assert checkpoint_hash(copy) != before
