"""The spread of freshly initialised tensors, found tensor by tensor, against models that are really initialised."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
)

from holdfast.checkpoints.reader import CheckpointReader
from holdfast.errors import ModelError
from holdfast.training.fresh_init import init_stds

SIZES = dict(
    hidden_size=64,
    num_hidden_layers=3,
    vocab_size=200,
    intermediate_size=128,
    num_attention_heads=4,
    initializer_range=0.03,
)
GROUPED = dict(SIZES, num_key_value_heads=2)

CONFIGS = {
    "llama": LlamaConfig(**GROUPED, pad_token_id=1),
    "llama, tied": LlamaConfig(**GROUPED, tie_word_embeddings=True, attention_bias=True),
    "qwen2": Qwen2Config(**GROUPED),
    "gpt2": GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=200),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "mistral": MistralConfig(**GROUPED),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_stds_are_those_of_a_fresh_model(name):
    config = CONFIGS[name]
    state = torch.get_rng_state()
    stds = init_stds(config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(11)
    fresh = AutoModelForCausalLM.from_config(config)
    weights = dict(fresh.named_parameters(remove_duplicate=False))
    assert list(stds) == list(weights)
    for parameter, weight in weights.items():
        wanted = float(weight.detach().double().std(correction=0))
        assert stds[parameter] == pytest.approx(wanted, rel=5 / math.sqrt(weight.numel()), abs=1e-12), parameter
        if "norm" in parameter or ".ln_" in parameter or parameter.endswith("bias"):
            assert stds[parameter] == 0
    assert sum(std > 0 for std in stds.values()) >= 10


def test_models_configs_and_folders_say_the_same(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = LlamaForCausalLM(CONFIGS["llama, tied"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    config = model.config.to_dict()
    wanted = init_stds(CONFIGS["llama, tied"])
    assert init_stds(model) == wanted == init_stds(tmp_path) == init_stds(str(tmp_path))
    assert wanted["lm_head.weight"] == wanted["model.embed_tokens.weight"]
    assert model.config.to_dict() == config
    assert init_stds(get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))) == wanted


def test_names_as_folders_have_them(tmp_path):
    """Experts lie in one tensor in memory and in many on disk."""
    AutoModelForCausalLM.from_config(CONFIGS["mixtral"]).save_pretrained(tmp_path)
    stored, held = init_stds(tmp_path, stored=True), init_stds(tmp_path)
    assert sorted(stored) == CheckpointReader(tmp_path).names()
    assert sorted(stored) != sorted(held)
    assert stored["model.layers.1.block_sparse_moe.experts.2.w2.weight"] == held["model.layers.1.mlp.experts.down_proj"]


class _Partly(LlamaForCausalLM):
    def _init_weights(self, module: nn.Module) -> None:
        if module is self.lm_head:
            with torch.no_grad():
                module.weight[1:].normal_()
        else:
            super()._init_weights(module)


def test_a_tensor_left_half_initialised_is_named():
    with pytest.raises(ModelError, match=r"does not initialise all of lm_head\.weight"):
        init_stds(_Partly(CONFIGS["llama"]))


def test_what_is_no_language_model_is_refused(tmp_path):
    from transformers import BertConfig, ViTConfig

    with pytest.raises(ModelError, match="Expected a transformers model"):
        init_stds(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="can be built from its config"):
        init_stds(ViTConfig())
    BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="causal language model"):
        init_stds(tmp_path)
