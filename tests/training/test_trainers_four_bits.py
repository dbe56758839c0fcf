"""QLoRA where bitsandbytes repacks 4-bit weights for inference: CPUs with AVX-512 BF16, simulated on others."""

from __future__ import annotations

import pytest
import torch
from cases import largest_difference, lora, make_trainer, rows, weights
from datasets import Dataset
from peft import get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from holdfast.errors import ModelError
from holdfast.ops.four_bits import keep_unpacked
from tiny import build_model, build_tokenizer

pytest.importorskip("bitsandbytes")

IDS = torch.randint(0, 320, (4, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def cpu_that_repacks(monkeypatch):
    """Layers believe in the instructions on any CPU, and are repacked wherever nothing forbids it."""
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)


@pytest.fixture
def folder(tmp_path):
    build_model(width=64).save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder, *, double: bool = False) -> nn.Module:
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=double)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)


def repack(model: nn.Module) -> None:
    """What the first forward in evaluation mode does to a layer, on any CPU."""
    from bitsandbytes.functional import _convert_weight_packed_for_cpu

    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data, weight.quant_state = _convert_weight_packed_for_cpu(weight.data, weight.quant_state)


def shapes(model: nn.Module) -> set[int]:
    """Columns of the 4-bit weights: 1 as loaded, half the layer's inputs once repacked."""
    return {p.shape[1] for p in model.parameters() if hasattr(p, "quant_state")}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """LoRA's, at an adapter that is not the identity, so that none of them is zero."""
    torch.manual_seed(0)
    model = get_peft_model(model, lora(lora_dropout=0.0)).train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


def trainer_of(model: nn.Module, folder, spec, *, evaluate: str = "no"):
    held = Dataset.from_list(rows()[:4])
    settings = {"eval_steps": 1, "logging_steps": 1, "eval_strategy": evaluate}
    return make_trainer(folder, spec, model=model, evaluated=held, peft=lora(lora_dropout=0.0), **settings)


@pytest.mark.parametrize("double", [False, True])
def test_gradients_after_a_forward_without_gradients_are_those_of_a_model_never_evaluated(double, folder):
    wanted = gradients(load(folder, double=double))
    model = load(folder, double=double)
    keep_unpacked(model)
    with torch.no_grad():
        model.eval()(input_ids=IDS)
    assert shapes(model) == {1}
    found = gradients(model)
    assert min(float(g.norm()) for g in wanted.values()) > 0
    assert largest_difference(wanted, found) == 0.0


def test_a_run_with_evaluations_is_the_run_of_a_cpu_that_repacks_nothing(folder, tmp_path, monkeypatch):
    """Without evaluations, too: the trainer computes the first batch's logits before it trains."""
    with monkeypatch.context() as other_cpu:
        other_cpu.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
        wanted = trainer_of(load(folder), tmp_path, {})
    wanted.train()
    for evaluate in ("no", "steps"):
        trainer = trainer_of(load(folder), tmp_path, {}, evaluate=evaluate)
        trainer.train()
        assert any("eval_loss" in r for r in trainer.state.log_history) == (evaluate == "steps")
        assert largest_difference(weights(wanted), weights(trainer)) == 0.0


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_a_model_evaluated_before_it_is_handed_over_is_refused(double, unpacked, folder, tmp_path):
    """Unpacked again, too (as saving it does): its scales are not those that were loaded."""
    model = load(folder, double=double)
    repack(model)
    if unpacked:
        model.state_dict()
        assert shapes(model) == {1}
    with pytest.raises(ModelError, match=r"got 1 layers .* repacked .*layers\.0\.mlp\.up_proj.* Load the model again"):
        trainer_of(model, tmp_path, {})
