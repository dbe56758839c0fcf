"""Backbone and head together are the model's own logits, for the architectures users bring."""

from __future__ import annotations

import pytest
import torch

from holdfast.errors import ModelError
from holdfast.ops.heads import check_head, decoder_layers, describe_head, is_sharded, project, run_backbone, run_outside


def small(name: str):
    import transformers as t

    torch.manual_seed(0)
    common = dict(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    kv = dict(num_key_value_heads=2)
    models = {
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**common, **kv)),
        "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**common, **kv, tie_word_embeddings=True)),
        "gemma2 (soft-cap)": lambda: t.Gemma2ForCausalLM(
            t.Gemma2Config(**common, **kv, head_dim=16, final_logit_softcapping=3.0)
        ),
        "cohere (logit scale)": lambda: t.CohereForCausalLM(t.CohereConfig(**common, **kv, logit_scale=0.25)),
        "granite (divided logits)": lambda: t.GraniteForCausalLM(t.GraniteConfig(**common, **kv, logits_scaling=4.0)),
        "gpt_neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**common)),
        "gpt2 (tied)": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64)
        ),
        "phi (head bias)": lambda: t.PhiForCausalLM(t.PhiConfig(**common)),
        "olmo": lambda: t.OlmoForCausalLM(t.OlmoConfig(**common, **kv)),
    }
    return models[name]()


ARCHITECTURES = [
    "llama",
    "qwen2",
    "gemma2 (soft-cap)",
    "cohere (logit scale)",
    "granite (divided logits)",
    "gpt_neox",
    "gpt2 (tied)",
    "phi (head bias)",
    "olmo",
]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_backbone_and_head_are_the_models_logits(name):
    model = small(name).eval()
    ids = torch.randint(0, 64, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(
            project(run_backbone(model, input_ids=ids)[0], describe_head(model)),
            model(input_ids=ids).logits[0],
            atol=1e-5,
            rtol=1e-5,
        )
    assert check_head(model, ids) < 1e-4


def test_a_head_we_do_not_understand_is_refused():
    model = small("llama")

    class Shifted(type(model)):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits + torch.linspace(0, 5, out.logits.shape[-1])
            return out

    model.__class__ = Shifted
    with pytest.raises(ModelError, match="in an unknown way"):
        check_head(model, torch.randint(0, 64, (1, 8)))


def test_a_sure_model_in_half_precision_is_rounded_and_not_refused():
    """A head some hundred times as large has logits that bfloat16 rounds by whole nats."""
    model = small("llama").eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(300.0)
    ids = torch.randint(0, 64, (1, 8))

    class Halved(type(model)):
        def forward(self, *args, **kwargs):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(*args, **kwargs)

    whole = type(model)
    model.__class__ = Halved
    assert check_head(model, ids, half=True) > 0.25, "so a fixed tolerance would refuse it"
    model.config.logit_scale = 1.25  # a detail that this architecture does not have
    with pytest.raises(ModelError, match="in an unknown way"):
        check_head(model, ids, half=True)
    model.__class__ = whole


def test_a_model_without_a_head_is_refused():
    from transformers import LlamaConfig, LlamaModel

    model = LlamaModel(
        LlamaConfig(
            vocab_size=16,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    )
    with pytest.raises(ModelError, match="output head"):
        describe_head(model)


def test_states_from_outside_are_the_backbones_and_the_forward_stays():
    model = small("llama").eval()
    ids = torch.randint(0, 64, (2, 8))
    model.forward = model.forward  # as a trainer installs one
    installed = model.__dict__["forward"]
    assert not is_sharded(model)
    assert torch.equal(run_outside(model, input_ids=ids), run_backbone(model, input_ids=ids))
    assert model.__dict__["forward"] is installed


def test_the_layers_are_the_longest_list_that_lies_in_no_other():
    from tiny import build_model

    model = build_model()
    for layer in model.model.layers:
        layer.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(9))
    assert decoder_layers(model) == list(model.model.layers)
    model = build_model()
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(ModelError, match=r"nn\.ModuleList, got LlamaModel"):
        decoder_layers(model)
