"""Whether weights are those of their config.json: what transformers would make up or leave out is found before, and
what it does on purpose (tied heads, stacked experts, renamed keys) is no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.checkpoints.fit import Fit, fit_of, looks_whole
from holdfast.checkpoints.locate import open_source
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.summary import inspect_checkpoint
from holdfast.errors import ModelError
from tiny import build_decoder

SMALL: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
DOWN = "model.layers.1.mlp.down_proj.weight"
EMBED = "model.embed_tokens.weight"


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "qwen3": {"head_dim": 8},
    "mixtral": {"num_local_experts": 3},
}


def save_model(folder: Path, kind: str = "llama", **more: Any) -> Path:
    build_decoder(kind, **SMALL, **more).save_pretrained(folder)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A whole model."""
    return save_model(tmp_path / "model")


def reshape(folder: Path, change: Any) -> None:
    """Rewrites the tensors as `change` leaves them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(("kind", "more"), [*MODELS.items(), ("llama", {"tie_word_embeddings": True})], ids=str)
def test_whole_models_fit(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    save_model(tmp_path, kind, **more)
    reader = CheckpointReader(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert fit_of(tmp_path) == Fit()
    assert looks_whole(config, reader.entries)


def test_a_stored_head_beside_tied_embeddings_fits(tmp_path: Path) -> None:
    save_model(tmp_path, tie_word_embeddings=True)
    reshape(tmp_path, lambda t: t.update({"lm_head.weight": t[EMBED].clone()}))
    assert fit_of(tmp_path) == Fit()


MISSING = {
    "a projection": lambda t: t.pop(DOWN),
    "the embeddings, renamed": lambda t: t.update({"model.embeddings.weight": t.pop(EMBED)}),
    "the head": lambda t: t.pop("lm_head.weight"),
    "a layer": lambda t: [t.pop(n) for n in list(t) if n.startswith("model.layers.2.")],
    "one too many": lambda t: t.update({"model.layers.0.mlp.extra_proj.weight": torch.ones(2, 2)}),
    "another shape": lambda t: t.update({DOWN: torch.ones(16, 20)}),
}
NAMED = {
    "a projection": f"1 tensor is missing: {DOWN}",
    "the embeddings, renamed": f"1 tensor is missing: {EMBED}; 1 tensor is not part of the model: model.embeddings",
    "the head": "1 tensor is missing: lm_head.weight",
    "a layer": "9 tensors are missing: model.layers.2.input_layernorm.weight, ",
    "one too many": "1 tensor is not part of the model: model.layers.0.mlp.extra_proj.weight",
    "another shape": f"1 tensor is of another shape: {DOWN} is [16, 20] and should be [16, 24]",
}


@pytest.mark.parametrize("damage", MISSING)
def test_what_does_not_fit_is_named_at_either_depth(damage: str, llama: Path) -> None:
    reshape(llama, MISSING[damage])
    assert fit_of(llama).problem.startswith(NAMED[damage])
    with pytest.raises(ModelError, match=r"do not match its config\.json: .* Copy or download") as refused:
        open_source(llama)
    assert NAMED[damage] in str(refused.value)
    for verify in (False, True):
        failed = [
            c.detail for c in inspect_checkpoint(llama, verify=verify).checks if c.name == "weights fit config.json"
        ]
        assert failed[0].startswith(NAMED[damage])


@pytest.mark.parametrize(
    ("part", "changed"),
    [("model.", "module.model."), ("model.", "_orig_mod.model."), (".self_attn.", "._orig_mod.self_attn.")],
    ids=["DistributedDataParallel", "torch.compile", "torch.compile, layer by layer"],
)
def test_names_that_a_wrapper_changed_are_said_to_be_so(part: str, changed: str, llama: Path) -> None:
    reshape(llama, lambda t: [t.update({n.replace(part, changed, 1): t.pop(n)}) for n in list(t)])
    with pytest.raises(ModelError, match=r"names that a wrapper changed .*_orig_mod|wrapper changed .* module\.model"):
        open_source(llama)


CONFIGS: dict[str, dict[str, Any]] = {
    "fewer layers": {"num_hidden_layers": 2},
    "more layers": {"num_hidden_layers": 4},
    "a billion layers": {"num_hidden_layers": 10**9},
    "layers in words": {"num_hidden_layers": "three"},
    "a width below zero": {"hidden_size": -1},
    "another width": {"hidden_size": 32},
    "a fraction": {"hidden_size": 16.5},
    "other tokens": {"vocab_size": 50},
    "an unknown activation": {"hidden_act": "loud"},
    "another architecture": {"model_type": "gpt2"},
}


@pytest.mark.parametrize("change", CONFIGS)
def test_a_configuration_that_disagrees(change: str, llama: Path) -> None:
    set_config(llama, **CONFIGS[change])
    assert fit_of(llama).problem
    checks = [c for c in inspect_checkpoint(llama, verify=True).checks if c.name == "weights fit config.json"]
    assert checks[0].passed is False
    if change not in ("an unknown activation", "another architecture"):  # of which names and shapes tell nothing
        with pytest.raises(ModelError, match=r"do not match its config\.json"):
            open_source(llama)


def test_what_cannot_be_told_says_why(llama: Path) -> None:
    set_config(llama, model_type="unheard_of")
    assert "knows no causal language model of type 'unheard_of'" in fit_of(llama).unknown
    check = next(c for c in inspect_checkpoint(llama, verify=True).checks if c.name == "weights fit config.json")
    assert check.passed is None and check.detail.startswith("cannot tell: transformers knows no")
    set_config(llama, model_type="llama", quantization_config={"quant_method": "bitsandbytes"})
    assert "quantised" in fit_of(llama).unknown
    (llama / "config.json").unlink()
    assert "no config.json" in fit_of(llama).unknown
