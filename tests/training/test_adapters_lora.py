"""DoRA and rank-stabilised LoRA: teachers, pulls, averages and distances against PEFT's own merge; Unsloth's models."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import largest_difference, make_trainer, weights
from safetensors.torch import load_file

from data_files import text_rows
from holdfast.checkpoints.distance import layer_distances
from holdfast.errors import ConfigError, ModelError
from holdfast.records.run import RunFolder
from small_runs import run_of
from tiny import SENTENCES, build_model, build_tokenizer

VARIANTS = {"dora": {"use_dora": True}, "rslora": {"use_rslora": True}, "both": {"use_dora": True, "use_rslora": True}}
FAST_AND_SLOW = [pytest.param(name, marks=[pytest.mark.slow] if name != "both" else []) for name in VARIANTS]


def config(**changes: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", **changes)


def trainer_of(folder: Path, spec: dict[str, Any], **changes: Any) -> Any:
    return make_trainer(folder, spec, peft=config(**changes), max_steps=6, learning_rate=3e-2, logging_steps=1)


def merged(trainer: Any) -> dict[str, torch.Tensor]:
    """The weights by PEFT's merge, with the base's names."""
    model = trainer.model.merge_and_unload(safe_merge=True)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def start() -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in build_model().named_parameters()}


@pytest.mark.parametrize("variant", FAST_AND_SLOW)
def test_the_teacher_stays_the_start(variant: str, tmp_path: Path) -> None:
    from holdfast.ops.heads import run_outside

    trainer = trainer_of(tmp_path, {"label_annealing": {"weight": 1.0}}, **VARIANTS[variant])
    batch = {k: v for k, v in next(iter(trainer.get_train_dataloader())).items() if k != "labels"}
    bare = build_model().eval()
    with torch.no_grad():
        wanted = run_outside(bare, **batch)
    assert torch.equal(trainer._teacher.hidden(batch)[0], wanted)
    trainer.train()
    assert torch.equal(trainer._teacher.hidden(batch)[0], wanted), "after training too"
    first = next(row for row in trainer.state.log_history if "kl" in row)
    last = [row for row in trainer.state.log_history if "kl" in row][-1]
    assert abs(first["kl"]) < 1e-6 < 1e-4 < last["kl"]


def trained(folder: Path, spec: dict[str, Any], variant: str) -> Any:
    trainer = trainer_of(folder, spec, **VARIANTS[variant])
    trainer.train()
    return trainer


def test_wise_ft_averages_the_merged_weights_of_rslora(tmp_path: Path) -> None:
    direct = merged(trained(tmp_path / "direct", {}, "rslora"))
    averaged = merged(trained(tmp_path / "averaged", {"wise_ft": {"alpha": 0.25}}, "rslora"))
    wanted = {name: 0.75 * w + 0.25 * direct[name] for name, w in start().items()}
    assert largest_difference(start(), direct) > 1e-2
    assert largest_difference(wanted, averaged) < 1e-6


@pytest.mark.parametrize("method", ["sfa", "wise_ft"])
def test_averages_of_dora_are_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{method}: the average of a DoRA adapter's .* 'holdfast merge'"):
        trainer_of(tmp_path, {method: {}}, use_dora=True)
    trainer_of(tmp_path, {method: {}}, use_rslora=True)


def test_a_continued_dora_run_is_the_same(tmp_path: Path) -> None:
    spec = {"label_annealing": {"weight": 1.0}, "l2": {"coefficient": 0.5}, "ema": {"decay": 0.5}}
    saves = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = make_trainer(tmp_path / "a", spec, peft=config(use_dora=True), **saves)
    whole.train()
    resumed = make_trainer(tmp_path / "b", spec, peft=config(use_dora=True), **saves)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "run" / "checkpoint-2"))
    assert largest_difference(weights(whole), weights(resumed)) == 0.0


@pytest.mark.parametrize("changes", [{"use_rslora": True}, {"lora_alpha": 24}, {"use_dora": True}])
@pytest.mark.parametrize("keep", ["device", "disk"])
def test_an_anchor_of_another_scaling_is_refused(changes: dict[str, Any], keep: str, tmp_path: Path) -> None:
    """Its factors would fit, and mean other weights."""
    trainer_of(tmp_path, {}).model.save_pretrained(tmp_path / "anchor")
    spec = {"l2": {"coefficient": 1.0, "reference": str(tmp_path / "anchor"), "reference_device": keep}}
    trainer_of(tmp_path, spec)
    other = config()
    for key, value in changes.items():
        setattr(other, key, value)
    with pytest.raises((ModelError, ConfigError), match=r"settings that differ from this run's|does not fit"):
        make_trainer(tmp_path, spec, peft=other, max_steps=1)


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("variants")
    build_model().save_pretrained(place / "base")
    build_tokenizer().save_pretrained(place / "base")
    text_rows(place / "rows.jsonl", SENTENCES * 2)
    return place


def settings(place: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model_name_or_path": str(place / "base"), "dataset_name": str(place / "rows.jsonl"), "max_steps": 4,
        "learning_rate": 3e-2, "use_cpu": True, "report_to": "none", "use_peft": True, "lora_r": 4, "lora_alpha": 12,
        "lora_target_modules": ["q_proj", "down_proj"], "output_dir": str(folder), **changes,
    }  # fmt: skip


@pytest.mark.parametrize("variant", FAST_AND_SLOW)
def test_a_run_its_distance_and_its_merge_are_pefts(variant: str, place: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from holdfast.cli.main import main

    run = run_of(settings(place, tmp_path / "run", **VARIANTS[variant]))
    base = AutoModelForCausalLM.from_pretrained(place / "base")
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    by_peft = PeftModel.from_pretrained(base, str(run.path)).merge_and_unload()
    after = {name: p.detach() for name, p in by_peft.named_parameters()}
    changed = [name for name in before if "q_proj" in name or "down_proj" in name]
    wanted = {d.layer: d.l2 for d in layer_distances((n, before[n], after[n]) for n in changed)}
    found = {d.layer: d.l2 for d in RunFolder(run.path).read().distance}
    assert found.keys() == wanted.keys() and all(found[k] == pytest.approx(wanted[k], rel=1e-4) for k in wanted)
    out = tmp_path / "merged"
    words = ["merge", str(run.path), "--adapter_base", str(place / "base"), "--output_dir", str(out)]
    assert main(words) == 0
    by_us = load_file(out / "model.safetensors")
    assert max(float((by_us[n] - after[n]).abs().max()) for n in by_us) < 1e-6


# -------------------------------------------------------------------------------------------------------------- Unsloth


@pytest.fixture
def unsloth(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for what `FastLanguageModel` does to the classes of a loaded model."""
    module = types.ModuleType("unsloth.models.llama")
    exec(
        "def LlamaAttention_fast_forward(self, *args, **kwargs):\n    return self._slow(*args, **kwargs)", vars(module)
    )
    monkeypatch.setitem(sys.modules, "unsloth.models.llama", module)
    return module


def test_a_model_that_unsloth_loaded_is_refused(unsloth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model()
    attention = type(model.model.layers[0].self_attn)
    monkeypatch.setattr(attention, "_slow", attention.forward, raising=False)
    monkeypatch.setattr(attention, "forward", unsloth.LlamaAttention_fast_forward)
    with pytest.raises(ModelError, match="the forward pass of LlamaAttention is Unsloth's"):
        make_trainer(tmp_path, {}, model=model)
