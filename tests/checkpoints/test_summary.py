"""Inspection of checkpoint folders: what they hold, and that every kind of damage is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoint_folders import random_model, write_folder
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.residual import extract_residual
from holdfast.checkpoints.summary import Inspection, inspect_checkpoint
from holdfast.errors import ModelError
from holdfast.support.files import write_json

SHAPES = {
    "model.embed_tokens.weight": (12, 4),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.mlp.up_proj.weight": (8, 4),
    "model.layers.0.input_layernorm.weight": (4,),
    "model.layers.1.self_attn.q_norm.weight": (4,),
    "model.norm.weight": (4,),
    "lm_head.weight": (12, 4),
}
FILES = "files, headers and index are valid"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def model(folder: Path, *, seed: int = 0, shards: int = 1) -> Path:
    """A checkpoint of random numbers in one file or several, float16 but for the norms."""
    dtypes = {name: "F32" if "norm" in name else "F16" for name in SHAPES}
    return write_folder(folder, random_model(seed, dtypes, SHAPES), shards=shards)


def failed(found: Inspection) -> dict[str, str]:
    """What went wrong, by check."""
    return {check.name: check.detail for check in found.checks if check.passed is False}


def passed(found: Inspection) -> set[str]:
    return {check.name for check in found.checks if check.passed}


def test_contents_of_a_model(tmp_path: Path) -> None:
    contents = inspect_checkpoint(model(tmp_path / "m", shards=2))
    assert contents.sound and not contents.verified and contents.files == SHARDS
    assert (contents.kind, contents.architecture) == ("model", "LlamaForCausalLM")
    assert (contents.tensors, contents.layers) == (7, 2)
    assert contents.parameters == sum(int(np.prod(s)) for s in SHAPES.values())
    assert list(contents.dtypes.items()) == [("F16", 144), ("F32", 12)]
    assert contents.bytes == 2 * 144 + 4 * 12
    assert passed(contents) == {FILES, "configuration can be read", "vocabulary fits", "weights fit config.json"}


def test_verified_fingerprints_and_finite_values(tmp_path: Path) -> None:
    for name in "ab":
        model(tmp_path / name, seed=ord(name), shards=2)
    built = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", sync=False)
    found = inspect_checkpoint(tmp_path / "out", verify=True)
    assert found.sound and found.verified
    assert found.fingerprint == built.record["fingerprint"] == found.provenance["fingerprint"]
    assert {"values are finite", "content matches the record"} <= passed(found)
    assert [p["role"] for p in found.provenance["parents"]] == ["model 1", "model 2"]
    assert "tensors" not in found.provenance
    assert inspect_checkpoint(tmp_path / "a", verify=True).fingerprint == found.provenance["parents"][0]["fingerprint"]


@pytest.mark.parametrize("name", SHAPES)
def test_a_single_changed_bit_is_found_in_its_tensor(tmp_path: Path, name: str) -> None:
    model(tmp_path / "a")
    merge([tmp_path / "a"], tmp_path / "out", sync=False)
    entry = CheckpointReader(tmp_path / "out").entries[name]
    with open(entry.file, "r+b") as file:
        file.seek(entry.offset + entry.nbytes - 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert inspect_checkpoint(tmp_path / "out").sound, "headers do not show it"
    found = inspect_checkpoint(tmp_path / "out", verify=True)
    assert failed(found) == {"content matches the record": f"1 tensors were changed after they were written: {name}"}


def test_renamed_and_recast_content_is_found(tmp_path: Path) -> None:
    model(tmp_path / "a")
    merge([tmp_path / "a"], tmp_path / "out", sync=False)
    file = tmp_path / "out" / "model.safetensors"
    content = file.read_bytes()
    recast = content.replace(b'"dtype":"F16","shape":[8,4]', b'"dtype":"I16","shape":[8,4]')
    renamed = content.replace(b"up_proj", b"uq_proj")
    for changed in (recast, renamed):
        file.write_bytes(changed)
        detail = failed(inspect_checkpoint(tmp_path / "out", verify=True))["content matches the record"]
        assert "but other names, dtypes or shapes" in detail


def test_a_damaged_record_is_a_failed_check(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "provenance.json").write_text("{")
    assert list(failed(inspect_checkpoint(folder))) == ["provenance.json can be read"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted_and_named(tmp_path: Path, bad: float) -> None:
    model(tmp_path / "a")
    entry = CheckpointReader(tmp_path / "a").entries["lm_head.weight"]
    np.memmap(entry.file, np.float16, "r+", entry.offset, (entry.size,))[[0, 5]] = bad
    found = inspect_checkpoint(tmp_path / "a", verify=True)
    assert failed(found) == {"values are finite": "NaN or infinities in 1 tensors: lm_head.weight (2 of 48)"}


def truncated(folder: Path) -> None:
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[1]).read_bytes()[:-2])


def wrong_header(folder: Path) -> None:
    (folder / SHARDS[0]).write_bytes(b"\x10\0\0\0\0\0\0\0not a JSON header")


def missing_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()


def misplaced(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace(f'"lm_head.weight": "{SHARDS[1]}"', f'"lm_head.weight": "{SHARDS[0]}"'))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def other_vocabulary(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"vocab_size": 12', '"vocab_size": 13'))


def large_tokenizer(folder: Path) -> None:
    write_json(folder / "vocab.json", {f"t{i}": i for i in range(14)})


@pytest.mark.parametrize(
    ("damage", "check", "part"),
    [
        (truncated, FILES, f"{SHARDS[1]}, but it cannot be read: its tensors take "),
        (wrong_header, FILES, "its header cannot be read"),
        (missing_index, FILES, "holds 2 shards"),
        (
            misplaced,
            FILES,
            "1 of 7 tensors are not in the shard that the index names: lm_head.weight",
        ),
        (no_config, "configuration can be read", "there is no config.json"),
        (other_vocabulary, "vocabulary fits", "config.json says 13 rows, the embeddings have 12"),
        (large_tokenizer, "vocabulary fits", "the tokenizer has 2 tokens beyond the 12 rows: t12, t13"),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
@pytest.mark.parametrize("verify", [False, True])
def test_damage_is_found_and_named(tmp_path: Path, damage, check: str, part: str, verify: bool) -> None:
    folder = model(tmp_path / "m", shards=2)
    assert inspect_checkpoint(folder, verify=verify).sound
    damage(folder)
    found = inspect_checkpoint(folder, verify=verify)
    assert not found.sound
    assert part in failed(found)[check]
    assert len(failed(found)) == 1


def test_a_residual_and_an_adapter(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        model(tmp_path / name, seed=i, shards=2)
    extract_residual(tmp_path / "b", tmp_path / "a", tmp_path / "r", sync=False)
    residual = inspect_checkpoint(tmp_path / "r", verify=True)
    assert residual.sound and residual.kind == "residual"
    assert residual.provenance["method"] == {"method": "residual", "step": "extract"}
    folder = tmp_path / "adapter"
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({name: np.zeros((2, 4), np.float32)}, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 16, "base_model_name_or_path": "owner/base"}
    write_json(folder / "adapter_config.json", settings)
    adapter = inspect_checkpoint(folder, verify=True)
    assert adapter.sound and adapter.kind == "adapter"
    assert adapter.architecture == "LORA r=2 alpha=16 of owner/base"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found none"):
        inspect_checkpoint(tmp_path / "nowhere" / "at" / "all")
    (tmp_path / "run").mkdir()
    model(tmp_path / "run" / "checkpoint-10")
    shutil.copytree(tmp_path / "run" / "checkpoint-10", tmp_path / "run" / "checkpoint-20")
    with pytest.raises(ModelError, match=r"found 2 in its subfolders. Choose one:\n .*checkpoint-10\n"):
        inspect_checkpoint(tmp_path / "run")


def test_without_verify_no_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m")
    monkeypatch.setattr(CheckpointReader, "read", lambda *a: pytest.fail("read"))
    assert inspect_checkpoint(folder).sound
