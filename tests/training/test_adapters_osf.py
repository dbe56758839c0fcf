"""What other libraries offer against forgetting, run by their code: OSF and LoRA with every method, and `dft`."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, KINDS, OFF, largest_difference, make_trainer, rows, spec, weights
from safetensors.torch import load_file

from data_files import jsonl, text_rows
from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from small_runs import train_words
from tiny import SENTENCES, build_model, build_tokenizer

OSF = {"use_peft": True, "peft_method": "osf"}


def osf_trainer(
    folder: Path, spec: dict[str, dict[str, Any]], *, rank: float | int | None = 0.5, dtype: Any = None, **settings: Any
) -> Any:
    from trl import ModelConfig

    from holdfast.training.adapters import AdapterArguments, adapter_config

    adapter = adapter_config(ModelConfig(use_peft=True), AdapterArguments(peft_method="osf", osf_effective_rank=rank))
    model = build_model().to(dtype or torch.float32)
    return make_trainer(folder, spec, model=model, peft=adapter, **{"max_steps": 4, **settings})


# ------------------------------------------------------------------------------------------------- orthogonal subspaces


def leaks(model: Any) -> dict[str, float]:
    """By matrix how much of its change lies within the kept directions of the base, left and right."""
    found = {}
    for name, module in model.named_modules():
        if not hasattr(module, "osf_svd_params"):
            continue
        weight = module.base_layer.weight.detach().float()
        change = module.get_delta_weight("default").detach().float()
        u, _, vt = torch.linalg.svd(weight, full_matrices=False)
        kept = module.effective_rank["default"]
        assert kept == min(weight.shape) // 2
        if (size := change.norm()) > 1e-5:
            found[name] = float(max((u[:, :kept].T @ change).norm(), (change @ vt[:kept].T).norm()) / size)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("optim", "rate"), [("sgd", 0.3), ("adamw_torch", 1e-2)], ids=["as the gradient", "element by element"]
)
def test_osf_leaves_the_large_directions_alone(dtype, optim, rate, tmp_path):
    """The change of every matrix is orthogonal to the kept directions on both sides, also under AdamW, whose scaling
    leaves them; the bfloat16 base's own directions are known as far as its digits go."""
    trainer = osf_trainer(tmp_path, {}, dtype=dtype, optim=optim, learning_rate=rate, weight_decay=0.1)
    trainer.train()
    found = leaks(trainer.model)
    assert len(found) == 14  # 7 matrices in 2 layers
    assert max(found.values()) < (2e-5 if dtype == torch.float32 else 0.02)


def test_osf_keeps_no_more_directions_than_a_matrix_has(tmp_path):
    with pytest.raises(
        ConfigError, match=r"osf_effective_rank: larger than the smaller side of .*\(32 x 32, 40 kept\)"
    ):
        osf_trainer(tmp_path, {}, rank=40)


def test_osf_resumes_to_the_weights_of_no_interruption(tmp_path):
    spec = {"label_annealing": {"weight": 2.0}, "l2": {"coefficient": 0.5}, "ema": {"decay": 0.8}}
    whole = osf_trainer(tmp_path / "a", spec, save_strategy="steps", save_steps=2)
    whole.train()
    resumed = osf_trainer(tmp_path / "b", spec, save_strategy="steps", save_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "run" / "checkpoint-2"))
    assert largest_difference(weights(whole), weights(resumed)) == 0.0


def test_osf_says_what_it_cannot_train(tmp_path):
    with pytest.raises(ConfigError, match="osf_effective_rank keeps every direction"):
        osf_trainer(tmp_path, {}, rank=32)
    from holdfast.training.adapters import complete_osf

    with pytest.raises(ConfigError, match="cannot be sharded"):
        complete_osf(osf_trainer(tmp_path, {}).model, sharded=True)
    complete_osf(make_trainer(tmp_path, {}, peft=True).model, sharded=True)  # LoRA is none of its business


def trained(folder: Path, how: str, methods: dict[str, dict[str, Any]]) -> dict[str, torch.Tensor]:
    trainer = osf_trainer(folder, methods) if how == "osf" else make_trainer(folder, methods, peft=True, max_steps=4)
    trainer.train()
    return weights(trainer)


@functools.cache
def direct(how: str) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        return trained(Path(folder), how, {})


APART = [("osf", "sfa"), ("osf", "wise_ft")]
"""Refused together."""


@pytest.mark.parametrize("method", [name for _, name in APART])
def test_averages_of_osfs_factors_are_refused(method, tmp_path):
    with pytest.raises(ConfigError, match=f"{method}: the average of OSF's factors is not the average of the weights"):
        osf_trainer(tmp_path, {method: {}})


@pytest.mark.parametrize("method", ["mofo", "ema"])
def test_osf_holds_whatever_methods_do_to_the_weights(method, tmp_path):
    """Updates of single elements, taken back, are no directions; what is left of them is projected again."""
    given = {"mofo": {"fraction": 0.15}, "ema": {"decay": 0.5}}[method]
    trainer = osf_trainer(tmp_path, {method: given}, optim="adamw_torch", learning_rate=1e-2, weight_decay=0.1)
    trainer.train()
    assert max(leaks(trainer.model).values()) < 2e-5


@pytest.mark.parametrize(
    ("how", "name"),
    [
        pytest.param(how, name, marks=[] if how == "osf" and name in KINDS else pytest.mark.slow)
        for how in ("lora", "osf")
        for name in CASES
        if (how, name) not in APART
    ],
)
def test_every_method_acts_under_adapters(how, name, tmp_path):
    held = trained(tmp_path, how, spec(name, next(iter(CASES[name]))))
    assert largest_difference(direct(how), held) > 1e-6
    assert all(bool(torch.isfinite(t).all()) for t in held.values())


def test_all_methods_off_are_direct_under_osf_bit_for_bit(tmp_path):
    assert largest_difference(direct("osf"), trained(tmp_path, "osf", OFF)) == 0.0


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture
def place(desk: Path, model_folder: Path) -> Path:
    """A working directory with a model, training text and held-out text."""
    shutil.copytree(model_folder, desk / "tiny")
    jsonl("train.jsonl", rows())
    text_rows("prose.jsonl", [f"{s} So it is said." for s in SENTENCES])
    return desk


def test_osf_from_the_command_line_to_a_measured_adapter(place):
    from transformers import AutoModelForCausalLM

    osf = "--use_peft --peft_method osf --osf_effective_rank 0.75 --retention label_annealing:weight=0.5"
    assert main(train_words(*osf.split(), "--keep", "prose.jsonl")) == 0
    record = RunFolder("out").read()
    assert record.status == "finished"
    assert record.training["teacher"]["name"] == "adapter_off"
    assert 0 < record.model["trainable"] < 0.6 * record.model["parameters"]
    assert record.config["peft_method"] == "osf" and record.config["osf_effective_rank"] == 0.75
    assert [d.layer for d in record.distance][:2] == ["0", "1"] and all(d.l2 > 0 for d in record.distance)
    settings = json.loads(Path("out/adapter_config.json").read_text())
    assert settings["peft_type"] == "OSF" and settings["effective_rank"] == 0.75
    assert load_file("out/adapter_model.safetensors")

    # What was measured is what the saved folder gives to whoever loads it, and what merging it into the base gives.
    folder = RunFolder("out")
    after = next(c.after for c in folder.comparisons() if c.metric == "nats_per_token")
    before = next(c.before for c in folder.comparisons() if c.metric == "nats_per_token")
    assert after != before
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("tiny"), "out").eval()
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        told = adapted(ids).logits
        assert (told - AutoModelForCausalLM.from_pretrained("tiny")(ids).logits).abs().max() > 1e-3
        assert torch.allclose(adapted.merge_and_unload()(ids).logits, told, atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- settings


def found_wrong(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        train_config(model_name_or_path="tiny", dataset_name="train.jsonl", **settings)
    return caught.value.problems


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_method": "osf"}, "peft_method: osf needs 'use_peft: true'"),
        (
            {"use_peft": True, "peft_method": "ofs"},
            "peft_method: expected one of lora, osf, got 'ofs' (text). Did you mean 'osf'?",
        ),
        (
            {"use_peft": True, "osf_effective_rank": 0.5},
            "osf_effective_rank: applies only to orthogonal subspace fine-tuning",
        ),
        ({**OSF, "lora_r": 8}, "lora_r: applies only to LoRA, but peft_method is osf"),
        ({**OSF, "load_in_4bit": True}, "load_in_4bit: osf decomposes whole weight matrices"),
        (
            {**OSF, "osf_effective_rank": 0},
            "osf_effective_rank: expected a whole number of at least 1, or a share above 0 and below 1, got 0.",
        ),
    ],
)
def test_mistakes_are_said_once(settings, said, place):
    (problem,) = found_wrong(**settings)
    assert said in problem


def test_osf_settings_reach_peft(place):
    from holdfast.training.adapters import adapter_config

    def peft_of(**more: Any) -> Any:
        config = train_config(model_name_or_path="tiny", dataset_name="train.jsonl", **more)
        return adapter_config(config.model, config.adapter)

    given = peft_of(**OSF, osf_effective_rank="12", osf_target_modules="all-linear")
    assert (given.effective_rank, given.target_modules, given.task_type) == (12, "all-linear", "CAUSAL_LM")
    named = peft_of(**OSF, osf_target_modules=["q_proj", "v_proj"])
    assert named.effective_rank is None and set(named.target_modules) == {"q_proj", "v_proj"}
    for of in ({**OSF, "osf_target_modules": ["q_proj"]}, {"use_peft": True, "lora_target_modules": ["q_proj"]}):
        assert set(peft_of(**of).target_modules) == {"q_proj"}, "a name, not a pattern for whole names"
    assert peft_of(use_peft=True, lora_target_modules=["all-linear"]).target_modules == "all-linear"
    assert peft_of(use_peft=True, lora_target_modules=[".*q_proj"]).target_modules == ".*q_proj"
    lora = peft_of(use_peft=True, lora_r=7)
    assert type(lora).__name__ == "LoraConfig" and lora.r == 7
    assert peft_of() is None


# -------------------------------------------------------------------------------------------------- dynamic fine-tuning


def test_dft_is_trls_own(tmp_path):
    """Three steps with accumulation and padding end with the weights of TRL's own trainer. Under SGD: where gradients
    are this small, Adam would blow rounding up."""
    from datasets import Dataset
    from trl import SFTTrainer

    settings = dict(loss_type="dft", max_steps=3, gradient_accumulation_steps=2, optim="sgd", learning_rate=1.0)
    ours = make_trainer(tmp_path / "ours", {}, **settings)
    theirs = SFTTrainer(
        model=build_model(),
        args=make_trainer(tmp_path / "theirs", {}, **settings).args,
        train_dataset=Dataset.from_list(rows()),
        processing_class=build_tokenizer(),
    )
    nll = make_trainer(tmp_path / "nll", {}, **{**settings, "loss_type": "nll"})
    for trainer in (ours, theirs, nll):
        trainer.train()
    start = dict(build_model().named_parameters())
    assert largest_difference(weights(ours), weights(theirs)) < 2e-7 < 1e-4 < largest_difference(weights(ours), start)
    assert largest_difference(weights(ours), weights(nll)) > 1e-3
