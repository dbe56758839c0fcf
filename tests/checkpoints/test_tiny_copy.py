"""Copies of a model with few layers: small whatever the model's size, and as wide as they may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from holdfast.checkpoints.tiny_copy import shallow_copy, tiny_copy

WIDE = {
    "vocab_size": 4000,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


def config_of(kind: str, **changes: Any) -> Any:
    return AutoConfig.for_model(kind, **{**WIDE, **changes})


@pytest.mark.parametrize(
    "kind", ["llama", "gemma2", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen2", "qwen3", "olmo2"))]
)
@pytest.mark.parametrize(("most", "narrowed"), [(60_000_000, False), (700_000, True)])
def test_a_shallow_copy_keeps_the_vocabulary_and_what_width_it_can(kind: str, most: int, narrowed: bool) -> None:
    model = shallow_copy(config_of(kind), AutoModelForCausalLM.from_config, most=most)
    assert sum(parameter.numel() for parameter in model.parameters()) <= most
    assert model.get_input_embeddings().weight.shape[0] == WIDE["vocab_size"]
    assert model.config.num_hidden_layers == 2
    assert (model.config.hidden_size < WIDE["hidden_size"]) == narrowed
    ids = torch.tensor([[3, WIDE["vocab_size"] - 1]])
    assert model(input_ids=ids).logits.shape == (1, 2, WIDE["vocab_size"])


def test_layers_of_every_kind_are_kept() -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    config = config_of("qwen2", layer_types=kinds * 3, use_sliding_window=True, sliding_window=64)
    model = shallow_copy(config, AutoModelForCausalLM.from_config, most=60_000_000)
    assert model.config.layer_types == kinds


def test_what_cannot_be_small_is_an_error_with_its_cause() -> None:
    for copy in (lambda c, make: shallow_copy(c, make, most=1000), tiny_copy):
        with pytest.raises(ValueError, match="llama cannot be made small") as caught:
            copy(config_of("llama"), lambda config: torch.nn.Linear(10_000, 10_000, bias=False))
        assert "100,000,000 parameters are not tiny" in str(caught.value.__cause__)
