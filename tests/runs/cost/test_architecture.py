"""What is read off a skeleton: parameters as PyTorch counts them, what multiplies a token, adapters, experts,
windows."""

from __future__ import annotations

import json

import pytest
import torch
from small_configs import config_of

from holdfast.errors import ModelError
from holdfast.runs.cost.architecture import describe
from holdfast.training.skeleton import build_skeleton


def built(family, **changes):
    """A model on the meta device, apart from the code under test."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config_of(family, **changes))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mixtral", "gemma2", "gpt2"])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_those_of_the_model(folder, family, tied):
    place = folder(family, tie_word_embeddings=tied)
    found = describe(build_skeleton(str(place)), name="model")
    model = built(family, tie_word_embeddings=tied)
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert found.parameters == found.trainable == sum(p.numel() for p in model.parameters())
    assert found.tied == (head is table) == tied
    assert found.head == head.numel() and found.vocabulary == head.shape[0] and found.width == head.shape[1]
    positions = 512 * 64 if family == "gpt2" else 0
    assert found.embedding == table.numel() + positions
    assert found.depth == 3 and found.notes == ()
    assert sum(layer.parameters * layer.count for layer in found.layers) == sum(
        p.numel() for n, p in model.named_parameters() if ".layers." in n or ".h." in n
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gpt2"])
def test_what_multiplies_a_token_are_the_matrices_of_the_layers(folder, family):
    found = describe(build_skeleton(str(folder(family))), name="model")
    model = built(family)
    matrices = [p.numel() for n, p in model.named_parameters() if p.dim() == 2 and (".layers." in n or ".h." in n)]
    assert found.active == sum(matrices) > 0
    assert found.multiplied == found.active + found.head
    assert {p.place for layer in found.layers for p in layer.products} == {"attention", "mlp"}


def test_of_experts_those_that_a_token_visits(folder):
    found = describe(build_skeleton(str(folder("mixtral"))), name="model")
    assert (found.experts, found.experts_used) == (4, 2)
    experts, router, attention = 2 * (3 * 64 * 176), 4 * 64, 64 * (64 + 32 + 32) + 64 * 64
    assert found.active == 3 * (experts + router + attention)
    assert {p.place for layer in found.layers for p in layer.products} == {"attention", "expert", "router"}
    sides = {p.name: (p.inputs, p.outputs, p.copies) for p in found.layers[0].products if p.place == "expert"}
    assert sorted(sides.values()) == [(64, 352, 4), (176, 64, 4)]


def test_an_adapter_is_counted_and_its_base_frozen(folder):
    from peft import LoraConfig

    adapter = LoraConfig(r=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = build_skeleton(str(folder()), adapter=adapter)
    found = describe(model, name="model")
    bare = describe(build_skeleton(str(folder())), name="model")
    assert found.trainable == found.adapter == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert (
        found.adapter == 3 * 8 * ((64 + 64) + (176 + 64)) == sum(layer.adapters * layer.count for layer in found.layers)
    )
    assert found.parameters == bare.parameters and found.active == bare.active and found.depth == 3
    assert sum(layer.active_trained for layer in found.layers) == 0 and not found.head_trained
    assert {p.name for p in found.layers[0].products if p.rank} == {"self_attn.q_proj", "mlp.down_proj"}


def test_sliding_windows_are_layers_of_another_kind(folder):
    found = describe(build_skeleton(str(folder("gemma2", sliding_window=64))), name="model")
    assert sorted((layer.window, layer.count) for layer in found.layers if layer.window) == [(64, 2)]
    assert sum(layer.count for layer in found.layers if layer.window is None) == 1
    everywhere = describe(build_skeleton(str(folder("mistral", sliding_window=32))), name="model")
    assert [(layer.window, layer.count) for layer in everywhere.layers] == [(32, 3)]


def test_a_large_model_takes_no_memory(folder):
    """Llama 3 8B, as its config.json says."""
    place = folder(
        "llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    model = build_skeleton(str(place))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    found = describe(model, name="model")
    assert found.parameters == 8_030_261_248 and found.embedding == found.head == 128256 * 4096
    assert found.multiplied == found.parameters - found.embedding - 65 * 4096  # all but the table and the norms


def test_what_is_no_model_is_said(folder, tmp_path):
    with pytest.raises(ModelError, match="config cannot be read"):
        build_skeleton(str(tmp_path))
    place = folder()
    said = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**said, "num_attention_heads": 7, "head_dim": None}))
    with pytest.raises(ModelError):
        describe(build_skeleton(str(place)), name="model")
    (place / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ModelError, match="causal language model"):
        build_skeleton(str(place))
