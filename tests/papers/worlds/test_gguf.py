"""GGUF files as folders: the numbers, the tokenizer, what is recorded, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from gguf_files import tiny_llama, tiny_tokenizer, write_gguf
from holdfast.checkpoints.manifest import damage, read_manifest
from holdfast.checkpoints.summary import inspect_checkpoint
from holdfast.errors import ModelError, StorageError
from holdfast.models import load
from holdfast.papers.worlds import gguf as importing
from holdfast.papers.worlds.gguf import import_gguf

IDS = torch.arange(2, 40)[None]
TEXT = "The quick fox: in 2023 it was 12.5 %, x1 = 10.\n\tdef add(a, b)  # two  spaces"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_llama(tokenizer)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Any) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny-F32.gguf", model, tokenizer)


def make(
    path: Path, folder: Path, *, name: str, dtype: str = "bfloat16", origin: dict[str, str] | None = None
) -> dict[str, Any]:
    return import_gguf(path, folder, name=name, dtype=dtype, license_file=None, origin=origin or {})


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("tie", [True, False])
def test_the_numbers_of_an_f32_file_come_back_bit_for_bit(tmp_path: Path, tokenizer: Any, tie: bool) -> None:
    source = tiny_llama(tokenizer, tie=tie)
    record = make(write_gguf(tmp_path / "m.gguf", source, tokenizer), tmp_path / "m", name="m", dtype="float32")
    loaded = load(str(tmp_path / "m"))
    assert torch.equal(logits(loaded.model), logits(source))
    assert loaded.model.config.tie_word_embeddings is tie
    assert record["parameters"] == sum(p.numel() for p in source.parameters())
    assert record["origin"]["note"] == "converted from GGUF (F32)" == loaded.identity["origin"]


TYPES = [("Q8_0", 8, 127), ("Q4_0", 4, 8), ("Q4_1", 4, 15), ("F16", 0, 1024)]


@pytest.mark.parametrize(("kind", "bits", "steps"), TYPES)
def test_quantised_numbers_come_back_within_a_step_of_their_block(
    tmp_path: Path, model: Any, tokenizer: Any, kind: str, bits: int, steps: int
) -> None:
    path = write_gguf(tmp_path / "m.gguf", model, tokenizer, kind=kind)
    record = make(path, tmp_path / "m", name="m", dtype="float32")
    loaded = dict(load(str(tmp_path / "m")).model.named_parameters())
    differ = 0
    for name, p in model.named_parameters():
        theirs, block = loaded[name], 32 if p.ndim == 2 else 1
        values = p.detach().reshape(-1, block)
        largest = values.abs().amax(1, keepdim=True)
        span = values.amax(1, keepdim=True) - values.amin(1, keepdim=True) if kind == "Q4_1" else largest
        # half a step of rounding (a whole one at an end of Q4_0), and what 16 bits do to a block's scale and offset
        bound = span * (1.01 if kind == "Q4_0" else 0.51) / steps + (largest * 2e-3 if bits else 1e-7)
        error = (theirs.detach() - p.detach()).reshape(-1, block).abs()
        assert bool((error <= bound).all()), name
        differ += int((error > 0).sum())
    assert differ > 0
    expected = f"dequantised from {bits} bits ({kind})" if bits else "converted from GGUF (F16)"
    assert record["origin"]["note"] == expected
    assert set(record["stored"]) == {kind, "F32"}


def test_the_tokenizer_and_the_chat_template_come_back(tmp_path: Path, file: Path, tokenizer: Any) -> None:
    make(file, tmp_path / "m", name="m")
    found = load(str(tmp_path / "m"), device="cpu").tokenizer
    assert found(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    chat = [{"role": "user", "content": "two plus two?"}]
    as_text = {"tokenize": False, "add_generation_prompt": True}
    assert found.apply_chat_template(chat, **as_text) == tokenizer.apply_chat_template(chat, **as_text)
    marked = found("<|im_start|>user")["input_ids"]
    assert marked == tokenizer("<|im_start|>user")["input_ids"]
    assert marked[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert (found.bos_token, found.eos_token, found.pad_token) == tuple(
        getattr(tokenizer, name) for name in ("bos_token", "eos_token", "pad_token")
    )
    assert found.model_max_length == 512


def test_digits_stand_alone_where_the_file_says_so(tmp_path: Path, model: Any) -> None:
    """`smollm`: with merges of digits in the vocabulary, GPT-2's rule would make one token of 2023."""
    from tokenizers import pre_tokenizers

    from holdfast.papers.worlds.embedded import train_tokenizer

    tokenizer = train_tokenizer(["in 2023 and 2023 and 12 12 12"] * 20, vocab_size=352)
    tokenizer.chat_template = "x"
    merged = tokenizer.tokenize("2023")
    rules = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rules)
    source = tiny_llama(tokenizer)
    make(write_gguf(tmp_path / "m.gguf", source, tokenizer, pre="smollm"), tmp_path / "m", name="m")
    found = load(str(tmp_path / "m"), device="cpu").tokenizer
    assert len(merged) < 4
    assert found.tokenize("2023") == ["2", "0", "2", "3"]
    assert found(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]


def test_the_folder_is_an_ordinary_one_with_digests_and_provenance(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    path = write_gguf(tmp_path / "Tiny.Q4_1.gguf", model, tokenizer, kind="Q4_1")
    make(path, tmp_path / "deep" / "m", name="m", origin={"license": "apache-2.0", "package": "p 1"})
    folder = tmp_path / "deep" / "m"
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["architectures"] == ["LlamaForCausalLM"]
    assert not {"quantization_config", "_model_name_or_path", "_name_or_path"} & set(config)
    assert str(tmp_path) not in "".join(p.read_text() for p in folder.glob("*.json"))
    listed = read_manifest(folder)
    assert listed is not None and {"model.safetensors", "tokenizer.json", "provenance.json"} <= set(listed)
    assert damage(folder, listed) == []
    found = inspect_checkpoint(folder, verify=True)
    assert found.sound, found.checks
    origin = found.provenance["origin"]
    assert origin["note"] == "dequantised from 4 bits (Q4_1)" and origin["license"] == "apache-2.0"
    assert origin["file"] == "Tiny.Q4_1.gguf" and len(origin["sha256"]) == 64 and origin["package"] == "p 1"
    assert {"gguf", "transformers", "torch", "holdfast"} <= set(found.provenance["versions"])
    assert os.listdir(tmp_path / "deep") == ["m"]
    assert (folder / "model.safetensors").stat().st_mode & 0o077 == 0o044


# ------------------------------------------------------------------------------------------------------------- refused


def refusal(path: Path, tmp_path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        make(path, tmp_path / "out", name="out")
    assert not (tmp_path / "out").exists()
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    return str(caught.value)


def test_a_tensor_without_a_place_is_not_left_out(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))

    text = refusal(write_gguf(tmp_path / "m.gguf", model, tokenizer, change=add), tmp_path)
    assert "Use another version of transformers" in text


def test_a_missing_tensor_is_not_made_up(tmp_path: Path, tokenizer: Any) -> None:
    source = tiny_llama(tokenizer)
    kept = source.state_dict()
    kept.pop("model.layers.1.mlp.up_proj.weight")
    source.state_dict = lambda: kept  # type: ignore[method-assign]
    text = refusal(write_gguf(tmp_path / "m.gguf", source, tokenizer), tmp_path)
    assert "model.layers.1.mlp.up_proj.weight" in text


def test_a_folder_that_cannot_be_written(tmp_path: Path, file: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Could not write"):
        make(file, tmp_path / "file" / "out", name="out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="Could not write"):
        make(file, tmp_path / "taken", name="out")
    assert (tmp_path / "taken" / "notes.txt").read_text() == "mine"


def test_an_interruption_leaves_nothing(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importing.manifest, "write_manifest", stop)
    with pytest.raises(KeyboardInterrupt):
        make(file, tmp_path / "out", name="out")
    assert os.listdir(tmp_path) == []
