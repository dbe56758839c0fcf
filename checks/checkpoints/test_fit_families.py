"""Families of models whose checkpoints hold more than the model, on purpose or from older versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_fit import SMALL, reshape

from holdfast.checkpoints.fit import Fit, fit_of, looks_whole, refuse_suspicious
from holdfast.checkpoints.reader import CheckpointReader
from tiny import build_decoder


def test_what_layers_lack_on_purpose_is_left_to_transformers(tmp_path: Path) -> None:
    """Suspicious and yet whole: a layer beyond those of the configuration, which this architecture ignores."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        **SMALL,
        n_routed_experts=2,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        kv_lora_rank=4,
        q_lora_rank=4,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=1,
    )
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    ignored = DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected
    assert ignored == [r"model\.layers\.61.*"]
    reshape(tmp_path, lambda t: t.update({"model.layers.61.eh_proj.weight": torch.ones(2, 2)}))
    reader = CheckpointReader(tmp_path)
    assert not looks_whole(json.loads((tmp_path / "config.json").read_text()), reader.entries)
    assert fit_of(tmp_path) == Fit()
    refuse_suspicious(reader)


@pytest.mark.parametrize("family", ["gpt2", "gpt-neo", "gptj", "gpt-neox", "llama"])
def test_what_older_versions_stored_of_what_a_model_computes_is_no_fault(family: str, tmp_path: Path) -> None:
    """The masks, positions and frequencies that lie in well-known checkpoints of these families."""
    from transformers import GPTJConfig, GPTJForCausalLM, GPTNeoConfig, GPTNeoForCausalLM

    neo = GPTNeoConfig(
        vocab_size=48, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global"], 2]], window_size=8
    )
    others = {
        "gpt-neo": lambda: GPTNeoForCausalLM(neo),
        "gptj": lambda: GPTJForCausalLM(GPTJConfig(vocab_size=48, n_embd=16, n_layer=2, n_head=2, rotary_dim=4)),
    }
    leftovers = {
        "gpt2": ["transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"],
        "gpt-neo": ["transformer.h.{}.attn.attention.bias", "transformer.h.{}.attn.attention.masked_bias"],
        "gptj": ["transformer.h.{}.attn.bias", "transformer.h.{}.attn.masked_bias"],
        "gpt-neox": ["gpt_neox.layers.{}.attention.bias", "gpt_neox.layers.{}.attention.rotary_emb.inv_freq"],
        "llama": ["model.layers.{}.self_attn.rotary_emb.inv_freq"],
    }
    model = others[family]() if family in others else build_decoder(family.replace("-", "_"), **SMALL)
    model.save_pretrained(tmp_path)
    names = [name.format(layer) for name in leftovers[family] for layer in range(2)]
    reshape(tmp_path, lambda t: t.update({name: torch.ones(1) for name in names}))
    assert fit_of(tmp_path) == Fit()
    reshape(tmp_path, lambda t: t.update({"transformer.h.0.attn.extra.bias": torch.ones(1)}))
    assert "attn.extra.bias" in fit_of(tmp_path).problem
