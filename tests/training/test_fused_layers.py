"""`fused_layers`: a model's small layers in one pass each, the same function, and only where it is the same."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from data_files import rows_of, text_rows
from holdfast.cli.main import main
from holdfast.training.fused_layers import use_fused_layers
from tiny import build_decoder, build_model

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


def loss_and_gradients(model):
    ids = torch.randint(5, 320, (2, 40), generator=torch.Generator().manual_seed(1))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), gradients


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("llama", 2 * 3 + 1),
        ("olmo2", 2 * 5 + 1),
        ("qwen3", 2 * 5 + 1),
        ("gemma", 0),  # norms of 1 + weight, and GELU
        ("gpt_neox", 0),
    ],
)
def test_a_model_computes_what_it_did(kind, changed):
    model = build_decoder(kind, head_dim=8, pad_token_id=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    loss, gradients = loss_and_gradients(model)
    assert use_fused_layers(model) == changed
    assert use_fused_layers(model) == 0  # once
    again, found = loss_and_gradients(model)
    torch.testing.assert_close(again, loss, atol=1e-5, rtol=1e-6)
    assert changed == 0 or any(not torch.equal(found[n], gradients[n]) for n in gradients)  # it is ours that ran
    for name, expected in gradients.items():
        torch.testing.assert_close(found[name], expected, atol=1e-6 + 1e-4 * float(expected.abs().max()), rtol=1e-4)


def test_the_gate_has_to_be_silu():
    changed = use_fused_layers(build_model(hidden_act="gelu"))
    assert changed == 2 * 2 + 1  # the norms


def test_half_precision_is_computed_as_before():
    model, fused = build_model().bfloat16(), build_model().bfloat16()
    assert use_fused_layers(fused) == 0
    ids = torch.arange(5, 15)[None]
    assert torch.equal(model(input_ids=ids).logits, fused(input_ids=ids).logits)


def test_an_adapter_on_the_gate_is_heard():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(build_model(), LoraConfig(r=2, target_modules=["gate_proj"], init_lora_weights=False))
    ids = torch.arange(5, 15)[None]
    before = model(input_ids=ids).logits
    assert use_fused_layers(model) == 7
    torch.testing.assert_close(model(input_ids=ids).logits, before, atol=1e-5, rtol=1e-5)
    with model.disable_adapter():
        assert not torch.allclose(model(input_ids=ids).logits, before, atol=1e-3)


TRAIN = [
    *("--model_name_or_path", "model", "--dataset_name", "data.jsonl", "--max_steps", "3", "--use_cpu"),
    *("--learning_rate", "1e-3", "--logging_steps", "1", "--retention", "label_annealing:weight=1"),
]


def test_a_run_begins_at_no_divergence_and_ends_where_it_would_have(desk, tokenizer):
    build_model().save_pretrained(desk / "model")
    tokenizer.save_pretrained(desk / "model")
    text_rows("data.jsonl", [f"Names refer to objects; {i} binds a name." for i in range(40)])
    assert main(["train", *TRAIN, "--output_dir", "plain"]) == 0
    assert main(["train", *TRAIN, "--output_dir", "fused", "--fused_layers"]) == 0
    plain, fused = rows_of("plain/metrics.jsonl"), rows_of("fused/metrics.jsonl")
    assert fused[0]["kl"] == 0  # the teacher is computed alike
    assert [r["loss"] for r in fused] == pytest.approx([r["loss"] for r in plain], rel=1e-4)
    record = json.loads((desk / "fused" / "run.json").read_text())
    assert record["training"]["fused_layers"] == 7
    assert "fused_layers" not in json.loads((desk / "plain" / "run.json").read_text())["training"]
