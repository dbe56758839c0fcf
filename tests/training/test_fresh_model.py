"""Fresh decoders: of the asked sizes, the same for a seed, and loaded as any other model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from holdfast.errors import ConfigError
from holdfast.training.fresh_init import init_stds
from holdfast.training.fresh_model import Decoder, decoder_config, write_fresh
from holdfast.training.tiny import build_tokenizer

SMALL = Decoder(architecture="olmo2", layers=2, width=32, heads=2, mlp=128, context=64, more={})


@pytest.mark.parametrize("architecture", ["olmo2", "olmo", "llama", "qwen3"])
def test_sizes_are_the_asked_ones(tmp_path: Path, architecture: str) -> None:
    decoder = dataclasses.replace(SMALL, architecture=architecture)
    assert write_fresh(decoder, build_tokenizer(), tmp_path / "m", seed=0) == {}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert model.config.model_type == architecture and len(model.model.layers) == 2
    assert model.get_input_embeddings().weight.shape == (320, 32)
    assert model.lm_head.weight is not model.get_input_embeddings().weight
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (32, 32), "heads of width / heads"
    assert model.model.layers[0].mlp.gate_proj.weight.shape == (128, 32)
    assert model.config.eos_token_id == build_tokenizer().eos_token_id
    logits = model(torch.zeros(1, 64, dtype=torch.long)).logits
    assert logits.shape == (1, 64, 320) and torch.isfinite(logits).all()


def test_a_seed_decides_the_weights_and_nothing_else_does(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> torch.Tensor:
        torch.randn(3)
        write_fresh(SMALL, build_tokenizer(), tmp_path / name, seed=seed)
        return AutoModelForCausalLM.from_pretrained(tmp_path / name).lm_head.weight.detach()

    one, same, other = weights("a", 0), weights("b", 0), weights("c", 1)
    assert torch.equal(one, same) and not torch.equal(one, other)
    torch.manual_seed(5)
    before = torch.randn(2)
    torch.manual_seed(5)
    weights("d", 0)
    torch.manual_seed(5)
    assert torch.equal(before, torch.randn(2))


def test_mup_scales_a_wider_model(tmp_path: Path) -> None:
    wide = dataclasses.replace(SMALL, width=64, mlp=256, heads=4)
    multipliers = write_fresh(wide, build_tokenizer(), tmp_path / "m", seed=0, base_width=32)
    assert list(multipliers.values()) == [0.5]
    assert write_fresh(wide, build_tokenizer(), tmp_path / "m", seed=0, base_width=32) == multipliers
    head = AutoModelForCausalLM.from_pretrained(tmp_path / "m").lm_head.weight
    assert float(head.detach().std()) == pytest.approx(0.02 / 2, rel=0.05)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    for stds in (init_stds(tmp_path / "m"), init_stds(model)):
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                assert stds[name] == pytest.approx(float(parameter.detach().std()), rel=0.05), name


def test_what_cannot_be_built() -> None:
    for changes, said in (
        ({"architecture": "bert-base"}, "architecture: expected a causal language model"),
        ({"architecture": "gpt2"}, "architecture: the configuration of gpt2 lacks"),
        ({"more": {"rope": 1}}, "model.rope: the configuration of olmo2 has no such key"),
    ):
        with pytest.raises(ConfigError, match=said):
            decoder_config(dataclasses.replace(SMALL, **changes))
