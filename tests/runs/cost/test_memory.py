"""Memory by part: against what PyTorch allocates in real steps, and what changes it."""

from __future__ import annotations

import gc

import pytest
import torch
from small_configs import config_of

MEASURED = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}


def test_what_stays(estimate_of):
    found = estimate_of(bf16=False, gradient_checkpointing=False)
    parameters = found.architecture.parameters
    assert found.memory.of("weights") == 4 * parameters == found.memory.of("gradients")
    assert found.memory.of("optimiser states") == 8 * parameters
    assert estimate_of(optim="adamw_bnb_8bit", bf16=False).memory.of("optimiser states") == pytest.approx(
        2.06 * parameters
    )
    assert estimate_of(optim="sgd", bf16=False).memory.of("optimiser states") == 0
    half = estimate_of(dtype="bfloat16").memory
    assert half.of("weights") == 2 * parameters and half.of("optimiser states") == 4 * parameters


def test_methods(estimate_of, tmp_path):
    parameters = estimate_of().architecture.parameters

    def of(retention, **more):
        return estimate_of(retention=retention, bf16=False, **more).memory

    assert of([{"label_annealing": {}}]).of("teacher") == 4 * parameters
    assert of([{"label_annealing": {"teacher_dtype": "bfloat16", "teacher": "online"}}]).of("teacher") == 2 * parameters
    bits = of([{"label_annealing": {"teacher_bits": 4, "teacher": "online"}}]).of("teacher")
    assert 0.5 * parameters < bits < 4 * parameters
    cached = of([{"label_annealing": {"teacher": "cached"}}])
    parts = {p.name: p for p in cached.parts}
    assert parts["teacher cache"].where == "disk" and parts["teacher cache"].bytes == 1e6 * 64 * 4
    host = of([{"label_annealing": {"teacher": "online", "teacher_on_cpu": True}}])
    assert {p.where for p in host.parts if p.name == "teacher"} == {"device", "host"}
    assert of([{"sfa": {}}, {"l2": {}}]).of("kept by methods") == 4 * parameters  # one copy of the start for both
    assert of([{"ema": {}}]).of("kept by methods") == 4 * parameters
    assert of([{"l2": {"keep": "cpu"}}]).peak == of(None).peak
    kept = [p for p in of([{"l2": {"keep": "disk"}}]).parts if p.name == "kept by methods"]
    assert [p.where for p in kept] == ["disk"]
    lora = of([{"label_annealing": {}}], use_peft=True)
    assert lora.of("teacher") == 0 and lora.of("optimiser states") < parameters


def test_what_saves_memory_saves_it(folder, estimate_of):
    model = folder("llama", num_hidden_layers=8, hidden_size=128, intermediate_size=352)

    def peak(**more):
        return estimate_of(
            model=model, **{"per_device_train_batch_size": 8, "gradient_checkpointing": False, **more}
        ).memory.peak

    base = peak()
    assert peak(gradient_checkpointing=True) < base
    assert peak(per_device_train_batch_size=4) < base
    assert peak(max_length=64) < base
    assert peak(use_peft=True) < base
    assert peak(use_peft=True, load_in_4bit=True) < peak(use_peft=True)
    assert peak(dtype="bfloat16") < base
    assert peak(gradient_accumulation_steps=2) > base
    assert peak(attn_implementation="eager") > base
    assert peak(retention=[{"label_annealing": {}}]) > base


def test_sharding(estimate_of):
    alone = estimate_of(gradient_checkpointing=True)
    parameters = alone.architecture.parameters
    eight = estimate_of(gradient_checkpointing=True, num_processes=8, accelerate_config="fsdp2")
    assert eight.plan.sharding == "fsdp" and eight.plan.processes == 8
    for part in ("weights", "gradients", "optimiser states"):
        assert eight.memory.of(part) == pytest.approx(alone.memory.of(part) / 8), part
    methods = {"retention": [{"label_annealing": {}}, {"sfa": {}}], "dtype": "bfloat16"}
    loaded = estimate_of(
        num_processes=8, accelerate_config="fsdp2", **methods
    )  # trained in float32, the start kept as it was loaded
    assert (
        loaded.memory.of("weights") == pytest.approx(4 * parameters / 8)
        and loaded.memory.of("teacher") == 2 * parameters
    )
    assert loaded.memory.of("kept by methods") == pytest.approx(2 * parameters / 8)
    ddp = estimate_of(gradient_checkpointing=True, num_processes=8)
    assert ddp.plan.sharding == "ddp" and ddp.memory.of("gradient buckets") == 4 * parameters
    for stage, weights, gradients in ((1, 1, 1), (2, 1, 8), (3, 8, 8)):
        found = estimate_of(num_processes=8, accelerate_config=f"zero{stage}")
        assert found.plan.sharding == f"zero{stage}" and found.plan.weights == "bfloat16"
        assert found.memory.of("weights") == pytest.approx(2 * parameters / weights)
        assert found.memory.of("gradients") == pytest.approx(2 * parameters / gradients)
        assert found.memory.of("optimiser states") == pytest.approx(8 * parameters / 8)
        assert found.memory.of("float32 weights") == pytest.approx(4 * parameters / 8)
    assert ddp.gpus[0].hours == pytest.approx(ddp.gpus[0].gpu_hours / 8)


def peak_of_steps(family, *, rows, window, checkpointing=False, lora=None, changes=None):
    """Largest sum of PyTorch's allocations in two steps of training, with the project's loss; bytes."""
    from transformers import AutoModelForCausalLM

    from holdfast.ops.annealing import annealed_loss
    from holdfast.ops.annealing_chunked import _Scratch
    from holdfast.ops.heads import describe_head, run_backbone

    _Scratch._kept.clear()
    gc.collect()
    ids = torch.randint(0, 512, (rows, window))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config_of(family, **{**MEASURED, **(changes or {})})).train()
        if lora is not None:
            from peft import get_peft_model

            model = get_peft_model(model, lora)
            if checkpointing:
                model.enable_input_require_grads()
        if checkpointing:
            model.gradient_checkpointing_enable()
        optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
        for _ in range(2):
            hidden = run_backbone(model, input_ids=ids)
            result = annealed_loss(
                hidden[:, :-1].flatten(0, 1), describe_head(model), ids[:, 1:].flatten(), ce_scale=1 / ids.numel()
            )
            result.loss.backward()
            del hidden, result
            optimiser.step()
            optimiser.zero_grad()
    _Scratch._kept.clear()
    events = sorted(
        (e.start_ns(), e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"
    )
    now = peak = 0
    for _, change in events:
        now += change
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(
    ("family", "settings"),
    [("llama", {}), ("llama", {"gradient_checkpointing": True}), ("qwen2", {}), ("qwen3", {}), ("mixtral", {})],
    ids=["llama", "checkpointing", "qwen2", "qwen3", "experts"],
)
def test_within_a_tenth_of_what_pytorch_allocates(folder, estimate_of, family, settings):
    rows, window = 4, 256
    on = {"gradient_checkpointing": False, **settings}
    expected = estimate_of(
        model=folder(family, **MEASURED),
        max_steps=1,
        lengths=[window],
        max_length=window,
        per_device_train_batch_size=rows,
        bf16=False,
        device="cpu",
        **on,
    )
    measured = peak_of_steps(family, rows=rows, window=window, checkpointing=on["gradient_checkpointing"])
    assert expected.memory.peak == pytest.approx(measured, rel=0.1), (expected.memory, measured)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_within_a_tenth_on_a_gpu(folder, estimate_of, checkpointing):
    from transformers import AutoModelForCausalLM

    from holdfast.ops.annealing import annealed_loss
    from holdfast.ops.heads import describe_head, run_backbone

    shape = {
        **MEASURED,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    }
    rows, window = 4, 1024
    expected = estimate_of(
        model=folder("llama", **shape),
        max_steps=1,
        lengths=[window],
        max_length=window,
        per_device_train_batch_size=rows,
        dtype="bfloat16",
        gradient_checkpointing=checkpointing,
        device="cuda",
    )
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = AutoModelForCausalLM.from_config(config_of("llama", **shape), dtype=torch.bfloat16).cuda().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 32000, (rows, window), device="cuda")
    for _ in range(2):
        hidden = run_backbone(model, input_ids=ids)
        result = annealed_loss(
            hidden[:, :-1].flatten(0, 1), describe_head(model), ids[:, 1:].flatten(), ce_scale=1 / ids.numel()
        )
        result.loss.backward()
        del hidden, result
        optimiser.step()
        optimiser.zero_grad()
    measured = torch.cuda.max_memory_allocated() - before
    assert expected.memory.peak == pytest.approx(measured, rel=0.1), expected.memory
