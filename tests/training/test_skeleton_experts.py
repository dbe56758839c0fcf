"""Adapters on a mixture of experts: what PEFT cannot put on experts is refused with the request, and an adapter that
names experts and holds none is whole."""

from __future__ import annotations

import pytest
from peft import LoraConfig

from holdfast.checkpoints.adapter_settings import lacking
from holdfast.errors import ConfigError, ModelError
from holdfast.training.skeleton import build_skeleton


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    from transformers import Qwen3MoeConfig

    folder = tmp_path_factory.mktemp("experts")
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 2, "num_experts_per_tok": 1}
    Qwen3MoeConfig(**sizes, **heads, moe_intermediate_size=16).save_pretrained(folder)
    return str(folder)


def adapter(targets, **changes):
    return LoraConfig(task_type="CAUSAL_LM", target_modules=targets, **changes)


EVERY = ["q_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"lora_dropout": 0.05}, "lora_dropout: expected 0"),
        ({"use_dora": True}, "use_dora: expected false"),
        ({"lora_bias": True}, "lora_bias: expected false"),
        ({"targets": "all-linear", "lora_dropout": 0.05}, "lora_dropout: expected 0"),
        ({"target_parameters": ["mlp.experts.down_proj"], "lora_dropout": 0.05}, "lora_dropout: expected 0"),
    ],
)
def test_settings_that_experts_do_not_take_are_refused_in_one_sentence(experts, changes, key):
    changes = dict(changes)
    targets = changes.pop("targets", ["q_proj"] if "target_parameters" in changes else EVERY)
    with pytest.raises(ConfigError) as refused:
        build_skeleton(experts, adapter=adapter(targets, **changes))
    [problem] = refused.value.problems
    assert problem.startswith(key) and "holdfast merge" in problem


def test_half_of_what_is_fused_is_refused(experts):
    with pytest.raises(ModelError, match="does not fit"):
        build_skeleton(experts, adapter=adapter(["gate_proj"], lora_dropout=0.0))


@pytest.mark.parametrize("targets", [EVERY, "all-linear", ["q_proj", "v_proj"]])
def test_what_experts_take_is_built(experts, targets):
    on_experts = targets != ["q_proj", "v_proj"]
    model = build_skeleton(experts, adapter=adapter(targets, lora_dropout=0.0 if on_experts else 0.05))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert any(".experts." in name for name in trained) == on_experts


def test_an_adapter_that_names_experts_and_holds_none_is_whole():
    base = [f"model.layers.0.mlp.experts.{n}.{part}.weight" for n in (0, 1) for part in ("gate_proj", "up_proj")]
    base += ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.shared_expert.gate_proj.weight"]
    settings = {"peft_type": "LORA", "target_modules": ["q_proj", "gate_proj"]}
    attention = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight" for part in "AB"]
    [shared] = lacking(settings, attention, base)
    assert shared.startswith("model.layers.0.mlp.shared_expert.gate_proj")
    assert lacking(settings, attention, [name for name in base if "shared" not in name]) == []
    missing = lacking(settings, [name.replace("self_attn.q", "mlp.experts.0.gate") for name in attention], base)
    assert any(problem.startswith("model.layers.0.self_attn.q_proj") for problem in missing)
