"""What a run takes: shapes and formulas by hand, operations against PyTorch's counter, what changes memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.config.raw_request import RawRequest
from holdfast.runs.config import GPU, checked
from holdfast.runs.cost import RESERVE, estimate, keeps_float32, shapes_of, sharding_of

SMALL = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LAYER = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 176
HEAD = 1024 * 64
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def config_of(family: str, **changes: Any) -> Any:
    more = EXPERTS if family == "Mixtral" else {}
    return getattr(transformers, f"{family}Config")(**{**SMALL, **more, **changes})


@pytest.fixture
def cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The estimate of a run on a GPU: of rows that fill a window of 128 tokens, a million tokens an epoch."""
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"text": "a"}\n')

    def run(family: str = "Llama", *, lengths: list[int] | None = None, **settings: Any) -> Any:
        folder = tmp_path / family
        config_of(family, architectures=[f"{family}ForCausalLM"]).save_pretrained(folder)
        (folder / "model.safetensors").touch()
        values = {"model_name_or_path": str(folder), "dataset_name": "train.jsonl", "max_length": 128, **settings}
        values = {"gradient_checkpointing": False, "bf16": False, "num_train_epochs": 1, **values}
        config = checked(RawRequest(values=values), GPU)
        return estimate(config, tokens=1e6, lengths=lengths or [128])

    return run


def tensors(found: Any) -> float:
    """Bytes of tensors, what a GPU needs beside them taken off."""
    return float((found.memory - RESERVE[0]) / (1 + RESERVE[1]))


def test_shapes_by_hand() -> None:
    llama = shapes_of(transformers.AutoModelForCausalLM.from_config(config_of("Llama")))
    assert llama.matrices == llama.trained_matrices == 3 * LAYER and llama.head == HEAD
    assert llama.parameters == llama.trainable == 3 * (LAYER + 2 * 64) + 64 + 2 * HEAD
    assert llama.activations == 3 * (11 * 64 + 2 * 32 - 2 * 64 + 3 * 176)
    assert (llama.depth, llama.width, llama.attention_width, llama.vocabulary) == (3, 64, 64, 1024)
    tied = shapes_of(transformers.AutoModelForCausalLM.from_config(config_of("Llama", tie_word_embeddings=True)))
    assert tied.parameters == llama.parameters - HEAD and (tied.matrices, tied.head) == (llama.matrices, HEAD)
    experts = shapes_of(transformers.AutoModelForCausalLM.from_config(config_of("Mixtral")))
    attention, router = LAYER - 3 * 64 * 176, 4 * 64
    assert experts.matrices == 3 * (attention + router + 2 * 3 * 64 * 176), "two of four experts a token"


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_operations_are_those_that_pytorch_counts(cost: Callable[..., Any], family: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = transformers.AutoModelForCausalLM.from_config(config_of(family), attn_implementation="eager")
    ids = torch.randint(0, 1024, (8, 16))
    with FlopCounterMode(display=False) as counter:
        model(ids, labels=ids).loss.backward()
    ours = cost(family, max_steps=1, per_device_train_batch_size=8, lengths=[16]).operations
    assert counter.get_total_flops() == pytest.approx(ours, rel=0.15), "half of the attention is masked"


def test_operations_by_hand(cost: Callable[..., Any]) -> None:
    attention = 2 * 3 * 64 * 128
    forward = 2 * (3 * LAYER + HEAD) + attention
    plain = cost(num_train_epochs=2)
    assert plain.work.tokens == plain.work.computed == 2e6 and plain.operations == pytest.approx(3 * forward * 2e6)
    again = cost(gradient_checkpointing=True).operations
    assert again == pytest.approx((3 * forward + 2 * 3 * LAYER + attention) * 1e6)
    online = cost(retention=[{"label_annealing": {}}]).operations
    assert online == pytest.approx(4 * forward * 1e6)
    cached = cost(retention=[{"label_annealing": {"teacher": "cached"}}]).operations
    assert cached == pytest.approx((3 * forward + 2 * HEAD) * 1e6)
    lora = cost(use_peft=True, lora_r=4, lora_target_modules=["q_proj"]).operations
    adapter = 3 * 4 * (64 + 64)
    assert lora == pytest.approx((2 * forward + attention + 4 * adapter + 2 * adapter) * 1e6)
    replayed = cost(retention=[{"replay": {"data": "train.jsonl", "fraction": 0.2}}])
    assert replayed.work.tokens == pytest.approx(1e6 / 0.8)


def test_steps_and_tokens(cost: Callable[..., Any]) -> None:
    lengths = [100, 300, 40, 128]
    padded = cost(lengths=lengths, per_device_train_batch_size=2).work
    kept = (100 + 128 + 40 + 128) / sum(lengths)
    assert padded.tokens == pytest.approx(1e6 * kept)
    assert padded.computed / padded.tokens == pytest.approx(4 * 128 / (100 + 128 + 40 + 128))
    split = cost(lengths=lengths, packing=True, packing_strategy="bfd_split").work
    assert split.tokens == split.computed == 1e6 and split.steps == -(-1_000_000 // (128 * 8))
    assert split.attending == pytest.approx((100**2 + 2 * 128**2 + 44**2 + 40**2 + 128**2) / sum(lengths))
    assert cost(lengths=lengths, packing=True, packing_strategy="wrapped").work.attending == 128
    assert cost(max_steps=7).work.steps == 7


def test_what_stays_in_memory(cost: Callable[..., Any]) -> None:
    parameters = 3 * (LAYER + 2 * 64) + 64 + 2 * HEAD

    def more(**settings: Any) -> float:
        return (tensors(cost(**settings)) - tensors(cost())) / parameters

    assert more(optim="sgd") == pytest.approx(-8), "Adam's two states"
    assert more(optim="adamw_bnb_8bit") == pytest.approx(-6)
    assert more(gradient_accumulation_steps=2) == pytest.approx(4), "gradients while the loss is computed"
    assert more(retention=[{"ema": {}}]) == more(retention=[{"sfa": {}}, {"l2": {}}]) == pytest.approx(4)
    assert more(retention=[{"l2": {"reference_device": "cpu"}}]) == 0
    assert more(retention=[{"label_annealing": {}}]) > 4


def test_what_saves_memory(cost: Callable[..., Any]) -> None:
    plain = tensors(cost())
    assert tensors(cost(gradient_checkpointing=True)) < plain
    assert tensors(cost(per_device_train_batch_size=4)) < plain
    assert tensors(cost(max_length=64, lengths=[64])) < plain
    assert tensors(cost(dtype="bfloat16")) < plain
    assert tensors(cost(use_peft=True, load_in_4bit=True)) < tensors(cost(use_peft=True)) < plain
    alone = tensors(cost(gradient_checkpointing=True))
    for preset in ("fsdp2", "zero3"):
        assert tensors(cost(gradient_checkpointing=True, num_processes=8, accelerate_config=preset)) < alone


def test_what_fsdp2_trains_is_float32_whatever_is_loaded(cost: Callable[..., Any]) -> None:
    """As accelerate has it under autocast; else the estimate of a bfloat16 model would be half of what it takes."""
    sharded = {"num_processes": 8, "accelerate_config": "fsdp2", "bf16": True, "use_cpu": False}
    loaded = {dtype: tensors(cost(dtype=dtype, **sharded)) for dtype in ("float32", "bfloat16")}
    assert loaded["bfloat16"] == pytest.approx(loaded["float32"], rel=0.02)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"accelerate_config": "fsdp2", "bf16": True}, True),
        ({"accelerate_config": "fsdp2", "bf16": False}, False),  # pure bfloat16
        ({"accelerate_config": "zero2", "bf16": True}, True),
        ({"bf16": True}, False),  # DDP keeps what was loaded
    ],
)
def test_where_steps_are_rounded_away(cost: Callable[..., Any], settings: dict[str, Any], kept: bool) -> None:
    cost()  # which makes the model
    values = {"model_name_or_path": "Llama", "dataset_name": "train.jsonl", "dtype": "bfloat16", "num_processes": 8}
    assert keeps_float32(checked(RawRequest(values={**values, **settings}), GPU)) == kept


def test_how_parameters_are_shared_out() -> None:
    assert sharding_of({}, 1) == ("none", False) and sharding_of({}, 4) == ("ddp", False)
    assert sharding_of({"accelerate_config": "fsdp2"}, 8) == ("fsdp", False)
    assert sharding_of({"accelerate_config": "zero3"}, 8)[0] == "zero3"
    assert sharding_of({"use_deepspeed": True}, 8)[0] == "zero2"
