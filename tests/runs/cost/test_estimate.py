"""One estimate: bad requests in one message, GPUs, advice, real data, records."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import ConfigError, ModelError
from holdfast.runs.cost.estimate import estimate
from holdfast.runs.cost.hardware import GPUS
from holdfast.runs.cost.plan import AS_ON_A_GPU
from holdfast.runs.cost.request import planned_config
from holdfast.support.files import read_json, write_json

BIG = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}


def test_all_mistakes_in_one_message(estimate_of):
    with pytest.raises(ConfigError) as caught:
        estimate_of(tokens=0, mean_length=0, gpus=["H10", "A100"], utilisation=1.5)
    assert len(caught.value.problems) == 4
    said = str(caught.value)
    for word in (
        "Did you mean 'H100'?",
        "utilisation: expected a number above 0 and at most 1, got 1.5",
        "tokens: expected a number of tokens",
        "mean_length: expected a number of at least 1",
    ):
        assert word in said


def test_without_tokens_there_is_nothing_to_reckon(folder):
    planned = planned_config({"model_name_or_path": str(folder())}, data_needed=False)
    with pytest.raises(ConfigError, match=r"tokens: expected how much is trained on: --tokens N"):
        estimate(planned.config, model=planned.model)
    with pytest.raises(ConfigError) as caught:
        planned_config(
            {"model_name_or_path": str(folder()), "learning_rate": "fast", "dataset_name": "some/hub-data"},
            data_needed=True,
        )
    assert "tokens: expected" in str(caught.value) and "learning_rate" in str(caught.value)
    with pytest.raises(ConfigError, match="no such file"):
        planned_config({"model_name_or_path": str(folder()), "dataset_name": "missing.jsonl"}, data_needed=True)


def test_lengths_have_to_be_there(estimate_of):
    with pytest.raises(ConfigError, match="lengths: expected the tokens of at least one document"):
        estimate_of(lengths=[])


def test_osf_is_refused_with_the_reason(estimate_of):
    with pytest.raises(ConfigError, match="peft_method: expected lora, got osf"):
        estimate_of(use_peft=True, peft_method="osf")


def test_a_start_out_of_data_is_counted_with_both_halves(estimate_of, capsys):
    from rich.console import Console

    from holdfast.cli.cost import show

    lora = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj"]}
    plain, doubled = (
        estimate_of(**lora, **more) for more in ({}, {"lora_init": "lora_null", "lora_init_data": "owner/old"})
    )
    assert doubled.architecture.trainable == 2 * plain.architecture.trainable
    (said,) = (text for text in doubled.assumptions if text.startswith("lora_init"))
    assert "an adapter of rank 8, of which rank 4 is trained" in said
    show(doubled, Console())
    assert f"at most {plain.architecture.trainable:,} parameters trained" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        planned_config({"model_name_or_path": str(tmp_path / "nowhere")}, data_needed=False)
    planned = planned_config({"model_name_or_path": "nobody/nothing"}, data_needed=False)
    with pytest.raises(ModelError, match="config cannot be read"):
        estimate(planned.config, model=planned.model, tokens=1e6)


def test_gpu_hours(estimate_of):
    found = estimate_of(bf16=False, gpus=["A100", "H100"], utilisation=0.5)
    for on in found.gpus:
        assert on.gpu_hours == pytest.approx(found.flops.total / (on.gpu.single * 1e12 * 0.5) / 3600)
        assert on.fits and on.advice == () and on.hours == on.gpu_hours
    assert [on.gpu.name for on in found.gpus] == ["A100-80GB", "H100"]
    assert estimate_of(bf16=False, gpus=["A100"], utilisation=0.25).gpus[0].gpu_hours == pytest.approx(
        2 * found.gpus[0].gpu_hours
    )


def test_bfloat16_is_planned_where_only_this_machine_lacks_it(folder, monkeypatch):
    """The note that the plan reads is the one that the configuration writes."""
    from holdfast.runs import config as training

    monkeypatch.setattr(training, "has_accelerator", lambda: False)
    monkeypatch.setattr(training, "has_bf16", lambda: False)
    planned = planned_config({"model_name_or_path": str(folder())}, data_needed=False)
    assert not planned.config.training.bf16 and any(n.startswith(AS_ON_A_GPU) for n in planned.config.notes)
    assert estimate(planned.config, model=planned.model, tokens=1e6).plan.autocast == "bfloat16"
    for given, expected in (
        ({"bf16": False}, None),
        ({"bf16": True}, "bfloat16"),
        ({"fp16": True}, "float16"),
        ({"use_cpu": True}, None),
    ):
        planned = planned_config({"model_name_or_path": str(folder()), **given}, data_needed=False)
        assert (
            estimate(planned.config, model=planned.model, tokens=1e6, autocast=planned.autocast).plan.autocast
            == expected
        ), given
    with pytest.raises(ConfigError, match="bf16: expected one of bf16 and fp16"):
        planned_config({"model_name_or_path": str(folder()), "bf16": True, "fp16": True}, data_needed=False)
    with pytest.raises(ConfigError, match="bf16: expected true or false"):
        planned_config({"model_name_or_path": str(folder()), "bf16": "maybe"}, data_needed=False)


def test_advice_makes_it_fit(folder, estimate_of):
    """Of 7B parameters in float32 nothing fits in 80 GB; every piece of advice, followed, does."""
    model = folder("llama", **BIG)
    common = {"model": model, "max_length": 2048, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}
    found = estimate_of(gradient_checkpointing=False, gpus=["A100", "RTX-4090"], **common)
    big, small = found.gpus
    assert not big.fits and not small.fits
    assert big.advice and small.advice
    assert any("fsdp2" in line for line in big.advice) and any("LoRA" in line for line in big.advice + small.advice)
    processes = int(next(line for line in big.advice if "fsdp2" in line).split("num_processes: ")[1].split(":")[0])
    followed = {
        "gradient_checkpointing": "gradient_checkpointing: true" in next(line for line in big.advice if "fsdp2" in line)
    }
    if "per_device_train_batch_size: 1" in next(line for line in big.advice if "fsdp2" in line):
        followed["per_device_train_batch_size"] = 1
    again = estimate_of(gpus=["A100"], **{**common, **followed}, num_processes=processes, accelerate_config="fsdp2")
    assert again.gpus[0].fits
    lora = estimate_of(
        gpus=["RTX-4090"],
        **{**common, "per_device_train_batch_size": 1},
        use_peft=True,
        dtype="bfloat16",
        load_in_4bit=True,
    )
    assert lora.gpus[0].fits == (lora.memory.needed <= GPUS["RTX-4090"].memory * 1e9)


def test_a_single_change_is_enough_where_it_is(folder, estimate_of):
    model = folder("llama", **{**BIG, "num_hidden_layers": 8})
    tight = estimate_of(
        model=model, max_length=4096, per_device_train_batch_size=8, gradient_checkpointing=False, gpus=["A100"]
    )
    assert not tight.gpus[0].fits
    assert any(line.startswith("gradient_checkpointing: true") for line in tight.gpus[0].advice)
    assert (
        estimate_of(
            model=model, max_length=4096, per_device_train_batch_size=8, gradient_checkpointing=True, gpus=["A100"]
        )
        .gpus[0]
        .fits
    )


def test_assumptions_are_named(estimate_of):
    found = " ".join(estimate_of().assumptions)
    assert (
        "a utilisation of 0.4" in found and "documents fill the window of 128" in found and "context, kernels" in found
    )
    assert "the loss's products run in float32" in found
    assert "documents fill" not in " ".join(estimate_of(mean_length=60).assumptions)
    assert "beyond the window" in " ".join(estimate_of(mean_length=600).assumptions)
    unknown = estimate_of(optim="galore_adamw", optim_target_modules=["mlp"])
    assert "the states of optim: galore_adamw are not known" in " ".join(unknown.assumptions)
    assert unknown.memory.of("optimiser states") == 8 * unknown.architecture.parameters
    assert "multitask" not in found


def test_a_record_is_json_and_whole(estimate_of, tmp_path):
    found = estimate_of(retention=[{"label_annealing": {}}])
    write_json(tmp_path / "cost.json", found.record())
    read = read_json(tmp_path / "cost.json")
    assert read["flops"]["total"] == found.flops.total and read["memory"]["peak"] == found.memory.peak
    assert read["architecture"]["parameters"] == found.architecture.parameters
    assert [g["gpu"]["name"] for g in read["gpus"]] == [on.gpu.name for on in found.gpus]
    assert json.dumps(read)


@pytest.mark.parametrize("packing", [False, True])
def test_lengths_come_from_the_training_data(model_folder, tokenizer, tmp_path, packing):
    texts = ["The quick brown fox jumps over the lazy dog. " * n for n in (1, 2, 3)] * 4
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    settings = {
        "model_name_or_path": str(model_folder),
        "dataset_name": str(data),
        "max_length": 128,
        "packing": packing,
        "num_train_epochs": 1,
    }
    planned = planned_config(settings, data_needed=True)
    found = estimate(planned.config, model=planned.model)
    expected = [len(tokenizer(t)["input_ids"]) + 1 for t in texts]
    assert found.work.tokens == sum(min(n, 128) for n in expected)
    assert "12 rows, all tokenised" in found.data


def test_a_sample_stands_for_all_rows(model_folder, tokenizer, tmp_path):
    from holdfast.runs.cost.lengths import read_corpus

    data = tmp_path / "train.jsonl"
    data.write_text(
        "".join(
            json.dumps({"prompt": "Question: two?", "completion": " " + "four. " * (1 + i % 2)}) + "\n"
            for i in range(40)
        )
    )
    planned = planned_config({"model_name_or_path": str(model_folder), "dataset_name": str(data)}, data_needed=True)
    whole, part = read_corpus(planned.config), read_corpus(planned.config, sample=10)
    assert len(whole.lengths) == 40 and len(part.lengths) == 10
    assert part.tokens == pytest.approx(whole.tokens, rel=0.35) and "estimated from 10" in part.source
