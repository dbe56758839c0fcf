"""Operations of a run: by the formulas by hand, by PyTorch's counter on a real step, and the plain figure of papers."""

from __future__ import annotations

import pytest
import torch
from small_configs import config_of

from holdfast.runs.cost.flops import count_flops, plain_flops
from holdfast.runs.cost.plan import Corpus, work_of

LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def test_the_papers_comparison(folder, estimate_of):
    """Instruction tuning on 204,800M tokens against continued pre-training on 100M, both 5 epochs, 8B: a ratio of
    2048."""
    model = folder("llama", **LLAMA_8B)
    tuning, continued = (
        estimate_of(
            model=model, tokens=millions * 1e6, num_train_epochs=5, max_length=4096, packing=True, mean_length=650
        )
        for millions in (204_800, 100)
    )
    assert tuning.flops.paper == plain_flops(8_030_261_248, 204_800e6, 5)
    assert tuning.flops.paper / continued.flops.paper == 2048
    assert tuning.flops.total / continued.flops.total == pytest.approx(2048, rel=1e-12)
    gpu_hours = [e.gpus[0].gpu_hours for e in (tuning, continued)]
    assert gpu_hours[0] / gpu_hours[1] == pytest.approx(2048, rel=1e-12)


def test_by_hand(estimate_of):
    """Every row fills the window, nothing is recomputed: 6 N D and attention, no more."""
    found = estimate_of(tokens=1e6, num_train_epochs=2, gradient_checkpointing=False)
    layers = 3 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 176)
    head = 1024 * 64
    tokens = 2e6
    assert found.work.tokens == found.work.computed == tokens and found.work.keys == (128 + 1) / 2
    assert found.flops.forward == 2 * layers * tokens and found.flops.backward == 4 * layers * tokens
    assert found.flops.head == 6 * head * tokens
    attention = 3 * 4 * (64.5 * 64) * tokens
    assert found.flops.attention == pytest.approx(attention * 3.5)
    assert found.flops.recomputed == found.flops.teacher == found.flops.adapters == found.flops.prepared == 0
    assert found.flops.total == pytest.approx(6 * (layers + head) * tokens + 3.5 * attention)
    assert found.flops.per_token == pytest.approx(found.flops.total / tokens)
    assert sum(found.flops.by_precision.values()) == pytest.approx(found.flops.total)


def test_teachers(estimate_of):
    plain = estimate_of(gradient_checkpointing=False, num_train_epochs=4)
    online = estimate_of(gradient_checkpointing=False, num_train_epochs=4, retention=[{"label_annealing": {}}])
    cached = estimate_of(
        gradient_checkpointing=False, num_train_epochs=4, retention=[{"label_annealing": {"teacher": "cached"}}]
    )
    a = plain.architecture
    forward = plain.flops.forward + plain.flops.attention / 3.5
    assert online.flops.teacher == pytest.approx(forward + 2 * a.head * 4e6)
    assert cached.flops.teacher == pytest.approx(forward / 4 + 2 * a.head * 4e6)  # computed in the first of four epochs
    masked = estimate_of(
        gradient_checkpointing=False, num_train_epochs=4, retention=[{"token_weighting": {"kind": "stm"}}]
    )
    assert masked.flops.prepared == pytest.approx(forward / 4 + 2 * a.head * 1e6)  # once, the head included
    assert any("start model's losses" in line for line in masked.assumptions)
    in_the_pass = estimate_of(
        gradient_checkpointing=False, num_train_epochs=4, retention=[{"token_weighting": {"kind": "eaft"}}]
    )
    assert in_the_pass.flops.prepared == 0
    assert online.flops.total - plain.flops.total == pytest.approx(online.flops.teacher)
    assert online.flops.total / plain.flops.total == pytest.approx(4 / 3, rel=0.02)


def test_adapters(estimate_of):
    full = estimate_of(gradient_checkpointing=False)
    lora = estimate_of(gradient_checkpointing=False, use_peft=True, lora_r=8, lora_target_modules=["all-linear"])
    assert lora.flops.backward == full.flops.backward / 2 and lora.flops.forward == full.flops.forward
    assert lora.flops.head == full.flops.head * 4 / 6
    assert lora.flops.adapters == 6 * lora.architecture.adapter * lora.work.computed
    annealed = estimate_of(gradient_checkpointing=False, use_peft=True, lora_r=8, retention=[{"label_annealing": {}}])
    assert annealed.plan.teacher.kind == "adapter_off" and annealed.flops.teacher > 0


def test_checkpointing_repeats_the_layers_but_for_their_last_product(estimate_of):
    on, off = estimate_of(gradient_checkpointing=True), estimate_of(gradient_checkpointing=False)
    whole = off.flops.forward + off.flops.attention / 3.5
    last = 2 * 3 * 64 * 176 * on.work.computed
    assert on.flops.recomputed == pytest.approx(whole - last) and on.flops.total == pytest.approx(
        off.flops.total + whole - last
    )
    again = estimate_of(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True})
    assert again.flops.recomputed == pytest.approx(whole)


def test_packed_documents_cost_what_they_attend_to(estimate_of):
    lengths = [100, 20, 8]
    packed = estimate_of(packing=True, lengths=lengths, attn_implementation="sdpa")
    assert packed.work.keys == pytest.approx(sum(n * (n + 1) / 2 for n in lengths) / 128)
    flash = estimate_of(packing=True, lengths=lengths, attn_implementation="flash_attention_2")
    assert flash.work == packed.work and flash.flops == packed.flops
    whole = estimate_of(packing=True, packing_strategy="wrapped", lengths=lengths)
    assert whole.work.keys == 64.5
    eager = estimate_of(packing=True, lengths=lengths, attn_implementation="eager", per_device_train_batch_size=4)
    assert eager.work.keys == eager.work.row == 4 * 128 and eager.work.masked


def test_sliding_windows_bound_the_keys_where_the_kernel_knows_them(folder, estimate_of):
    near, far = folder("mistral", sliding_window=16), folder("mistral", sliding_window=None)
    flash = {"attn_implementation": "flash_attention_2"}
    whole = estimate_of(model=far).flops.attention
    assert estimate_of(model=near, **flash).flops.attention / whole == pytest.approx(16 / 64.5)
    assert estimate_of(model=near).flops.attention / whole == pytest.approx(128 / 64.5)  # by a mask, over whole rows
    assert (
        estimate_of(model=near, max_length=16).flops.attention == estimate_of(model=far, max_length=16).flops.attention
    )
    assert estimate_of(model=near).memory.peak > estimate_of(model=near, **flash).memory.peak


def test_eager_attention_computes_whole_rows(estimate_of):
    eager, sdpa = estimate_of(attn_implementation="eager"), estimate_of()
    assert eager.work.keys == 128 and sdpa.work.keys == 64.5
    assert eager.flops.attention / 3 == pytest.approx(sdpa.flops.attention / 3.5 * 128 / 64.5)


def test_padding_and_cutting(estimate_of):
    padded = estimate_of(lengths=[128, 64], per_device_train_batch_size=2)
    assert padded.work.tokens == 3 * 192 and padded.work.computed == 3 * 256
    assert padded.work.padding == 0.25 and padded.work.masked and padded.work.keys == 128
    alone = estimate_of(lengths=[128, 64], per_device_train_batch_size=1)
    assert alone.work.padding == 0 and not alone.work.masked and alone.work.computed == alone.work.tokens
    cut = estimate_of(lengths=[256], per_device_train_batch_size=1)
    assert cut.work.cut == 0.5 and cut.work.epoch_tokens == 128
    split = estimate_of(lengths=[256], packing=True, packing_strategy="bfd_split")
    assert split.work.cut == 0 and split.work.epoch_tokens == 256


def test_steps(estimate_of):
    common = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 2,
        "packing": True,
    }
    assert estimate_of(tokens=128 * 60, **common).work.steps == 2 * 10
    assert estimate_of(tokens=128 * 61, **common).work.steps == 2 * 11
    given = estimate_of(max_steps=7, **common)
    assert given.work.steps == 7 and given.work.tokens == 7 * 6 * 128


def test_replayed_tokens_are_trained_too(estimate_of, tmp_path):
    (tmp_path / "old.jsonl").write_text('{"text": "a"}\n')
    plain, replayed = (
        estimate_of(),
        estimate_of(retention=[{"replay": {"data": str(tmp_path / "old.jsonl"), "fraction": 0.2}}]),
    )
    assert replayed.flops.total / plain.flops.total == pytest.approx(1.25)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mixtral", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_counter_of_pytorch_agrees(folder, estimate_of, family, checkpointing):
    """A real forward and backward under math attention, whose products PyTorch's counter sees: whole squares, two
    products forward and four back."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config_of(family), attn_implementation="eager")
    if family == "mixtral":
        model.set_experts_implementation("eager")
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = torch.randint(0, 1024, (2, 128))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    found = estimate_of(
        family,
        max_steps=1,
        lengths=[128],
        per_device_train_batch_size=2,
        gradient_checkpointing=checkpointing,
        attn_implementation="eager",
    )
    expected = count_flops(found.architecture, found.plan, found.work, causal=False)
    assert expected.total == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_more_of_anything_costs_more(estimate_of):
    base = estimate_of().flops.total
    assert estimate_of(tokens=2e6).flops.total == pytest.approx(2 * base)
    assert estimate_of(num_train_epochs=6).flops.total == pytest.approx(2 * base)
    assert estimate_of(max_length=256).flops.total > base
    assert estimate_of(retention=[{"label_annealing": {}}]).flops.total > base
    assert estimate_of(use_peft=True).flops.total < base


def test_precisions(estimate_of):
    """TRL's default, float32 weights under bfloat16 autocast: the loss leaves autocast."""
    default = estimate_of(gradient_checkpointing=False)
    assert default.plan.autocast == "bfloat16" and set(default.flops.by_precision) == {"half", "single"}
    assert default.flops.by_precision["single"] == pytest.approx(default.flops.head)
    half = estimate_of(dtype="bfloat16")
    assert half.plan.autocast is None and set(half.flops.by_precision) == {"half"}
    assert set(estimate_of(bf16=False).flops.by_precision) == {"single"}
    assert set(estimate_of(bf16=False, tf32=True).flops.by_precision) == {"tf32"}
    assert half.gpus[0].gpu_hours < default.gpus[0].gpu_hours < estimate_of(bf16=False).gpus[0].gpu_hours


def test_work_needs_lengths(estimate_of):
    plan = estimate_of().plan
    with pytest.raises(Exception, match="lengths"):
        work_of(plan, Corpus(lengths=(), tokens=1.0, source=""))
    with pytest.raises(Exception, match="tokens"):
        work_of(plan, Corpus(lengths=(5,), tokens=None, source=""))
