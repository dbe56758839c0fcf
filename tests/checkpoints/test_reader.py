"""Checkpoint folders as data: one file, shards, adapters; and what is entry_of of broken ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from checkpoint_folders import random_model, stored, write_file, write_folder
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


@pytest.mark.parametrize("size", [0, 4, 60, -1])
def test_a_cut_file_is_refused_by_name(size: int, tmp_path: Path) -> None:
    file = single(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(
        ModelError, match=r"Expected a whole safetensors file at .*model\.safetensors.*Copy or download it again"
    ):
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


# -------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("shards", [1, 3])
def test_any_stretch_of_any_tensor(shards: int, tmp_path: Path) -> None:
    tensors = {
        "a": stored(np.arange(12.0).reshape(3, 4), "BF16"),
        "b": stored(np.array(True), "BOOL"),
        "c": stored(np.zeros((0, 5)), "F16"),
        "d": stored(np.arange(5), "I64"),
    }
    reader = CheckpointReader(write_folder(tmp_path / "model", tensors, shards=shards))
    assert list(reader.entries) == list(tensors)
    buffer = np.empty(1000, np.uint8)
    for name, tensor in tensors.items():
        entry = reader.entries[name]
        assert (entry.dtype.name, entry.shape, entry.nbytes) == (tensor.dtype, tensor.shape, len(tensor.content))
        size = entry.dtype.itemsize
        for start in range(entry.size + 1):
            for stop in range(start, entry.size + 1):
                operand = reader.read(name, start, stop, buffer)
                assert operand.raw.tobytes() == tensor.content[start * size : stop * size]


# -------------------------------------------------------------------------------------------------------------- headers


def header_file(folder: Path, header: Any, data: bytes = b"", *, size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        (len(text) if size is None else size).to_bytes(8, "little") + text + data
    )
    return folder / "model.safetensors"


def entry_of(dtype: Any = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "its header cannot be read"),
        (b"[1, 2]", "expected a JSON object, got list"),
        (b"[" * 100_000, "its header cannot be read"),
        ({"__metadata__": [1], "a": entry_of()}, r"expected __metadata__ to be a JSON object of texts, got \[1\]"),
        ({"a": 3}, "invalid entry for a: 3"),
        ({"a": entry_of(shape=(2.5,))}, "invalid entry for a"),
        ({"a": entry_of(end=None)}, "invalid entry for a"),
        ({"a": entry_of(shape=(-2,), end=-8)}, r"a \(F32 \[-2\]\) needs -8 bytes"),
        ({"a": entry_of(shape=(3,))}, r"a \(F32 \[3\]\) needs 12 bytes, but the header gives 8"),
        ({"a": entry_of(), "b": entry_of(begin=4, end=12)}, "b begins at byte .* expected"),
        ({"a": entry_of(begin=4, end=12)}, "a begins at byte .* expected"),
        ({"a": entry_of(shape=(1,), end=4)}, "its tensors take [0-9,]+ bytes, but the file has"),
        ({"a": entry_of(), "b": entry_of(begin=8, end=16)}, "the file has [0-9,]+; cut off: b"),
    ],
)
def test_a_wrong_header_is_refused_with_the_reason(header: Any, reason: str, tmp_path: Path) -> None:
    file = header_file(tmp_path, header, bytes(8))
    with pytest.raises(
        ModelError, match=r"Expected a whole safetensors file at .*model\.safetensors, but .*Copy or download it again"
    ) as caught:
        CheckpointReader(tmp_path)
    caught.match(reason)
    assert file.name in str(caught.value)


@pytest.mark.parametrize("size", [2**63, 101_000_000, 200])
def test_a_wrong_header_length(size: int, tmp_path: Path) -> None:
    header_file(tmp_path, {"a": entry_of()}, bytes(8), size=size)
    with pytest.raises(ModelError, match=r"its header should take [0-9,]+ bytes, but the whole file has"):
        CheckpointReader(tmp_path)


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "C64", "bogus"])
def test_an_unknown_dtype_is_named_with_its_tensor(dtype: str, tmp_path: Path) -> None:
    header_file(tmp_path, {"blocks.scale": entry_of(dtype=dtype)}, bytes(8))
    with pytest.raises(ModelError, match=rf"blocks\.scale has dtype {dtype}, which is not supported\. Known: F64"):
        CheckpointReader(tmp_path)


# -------------------------------------------------------------------------------------------------------------- folders


def index(folder: Path, change: dict[str, str | None]) -> None:
    path = folder / "model.safetensors.index.json"
    held = json.loads(path.read_text())
    held["weight_map"] = {n: f for n, f in (held["weight_map"] | change).items() if f is not None}
    path.write_text(json.dumps(held))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../x.safetensors"}}',
    ],
)
def test_an_index_that_is_none(text: str, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(
        ModelError, match=r"Expected an index of shards in .*model\.safetensors\.index\.json, but it cannot be read"
    ):
        CheckpointReader(folder)


def shard(number: int) -> str:
    return f"model-{number:05}-of-00003.safetensors"


DAMAGES = {
    r"Expected a checkpoint folder at .*, found none": lambda folder: shutil.rmtree(folder),
    r"Expected model\.safetensors .* found neither": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    r"lists 3 shards, 1 missing: model-00002-of-00003\.safetensors": lambda folder: (folder / shard(2)).unlink(),
    r"2 of 4 tensors are not in .*model\.norm\.w \(in model-00001.*lm_head\.w \(in model-00003": lambda folder: index(
        folder, {"model.norm.w": shard(1), "lm_head.w": shard(3)}
    ),
    r"holds 3 shards .* but no model\.safetensors\.index\.json": lambda folder: (
        folder / "model.safetensors.index.json"
    ).unlink(),
    r"has model-00003-of-00003\.safetensors, but model\.safetensors\.index\.json does not list them": lambda folder: (
        index(folder, {"model.norm.w": None})
    ),
    r"has model\.safetensors, but .* does not list them. The folder mixes two saves": lambda folder: save_file(
        TENSORS, folder / "model.safetensors"
    ),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_broken_folders_are_refused_by_name(message: str, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "model")
    DAMAGES[message](folder)
    with pytest.raises(ModelError, match=message):
        CheckpointReader(folder)


def test_a_tensor_that_two_shards_hold(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "model")
    write_file(folder / shard(1), {n: stored(np.zeros(3), "F32") for n in ("model.layers.0.w", "model.norm.w")})
    index(folder, {"model.norm.w": None, "x": shard(3)})
    with pytest.raises(ModelError, match=r"model\.norm\.w is in model-00001-of-00003\.safetensors and in model-00003"):
        CheckpointReader(folder)


# ---------------------------------------------------------------------------------------------------- files that change


def test_a_file_that_was_cut_after_it_was_opened(tmp_path: Path) -> None:
    reader = CheckpointReader(
        write_folder(tmp_path / "model", {"first": stored(np.ones(50), "F32"), "last": stored(np.ones(50), "F32")})
    )
    file = tmp_path / "model" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 4)
    buffer = np.empty(400, np.uint8)
    reader.read("first", 0, 50, buffer)
    reader.read("last", 0, 49, buffer)
    with pytest.raises(ModelError, match=r"model\.safetensors ends within last, because it became shorter"):
        reader.read("last", 0, 50, buffer)


def test_a_file_that_was_written_replaced_or_removed_after_it_was_opened(tmp_path: Path) -> None:
    model = random_model(0)
    for change in (
        lambda file: os.utime(file, (1, 1)),
        lambda file: (shutil.copy2(file, file.with_suffix(".new")), os.rename(file.with_suffix(".new"), file)),
        lambda file: file.unlink(),
    ):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        reader = CheckpointReader(write_folder(tmp_path / "model", model, shards=2))
        reader.check_unchanged()
        change(tmp_path / "model" / "model-00002-of-00002.safetensors")
        with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors was changed after it was opened"):
            reader.check_unchanged()
