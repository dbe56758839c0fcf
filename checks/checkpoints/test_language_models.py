"""The language model of a vision-language model, as input of everything else that works on checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_language import logits

from holdfast.checkpoints.distance import distance
from holdfast.checkpoints.language import extract_language
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.perturb import perturb
from holdfast.checkpoints.residual import extract_residual
from vision_models import ARCHITECTURES, build_vision_model, write_vision_model


def test_an_adapter_is_merged_on_the_way(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    whole = write_vision_model(tmp_path / "whole")
    torch.manual_seed(1)
    model = get_peft_model(build_vision_model("llava"), LoraConfig(target_modules="all-linear", r=2))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.peft_config["default"].base_model_name_or_path = str(whole)
    model.save_pretrained(tmp_path / "adapter")
    extract_language(tmp_path / "adapter", tmp_path / "language")
    merged = model.merge_and_unload().eval()
    ids = torch.randint(2, 290, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = merged(input_ids=ids).logits
    assert not torch.equal(expected, logits(whole))
    torch.testing.assert_close(logits(tmp_path / "language"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_distance_residual_perturbation_and_merge(architecture: str, tmp_path: Path) -> None:
    for name, seed in (("base", 0), ("tuned", 1)):
        whole = write_vision_model(tmp_path / f"{name}-whole", architecture, seed=seed)
        extract_language(whole, tmp_path / name)
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    layers = distance(base, tuned).layers
    assert {"embed", "0", "1", "total"} <= {row.layer for row in layers} and layers[-1].l2 > 0
    extract_residual(tuned, base, output_dir=tmp_path / "residual")
    perturb(base, tmp_path / "noisy", scale=0.1, seed=1)
    merge([tuned], tmp_path / "between", method="wise_ft", base=base, alpha=0.5)
    between = load_file(tmp_path / "between" / "model.safetensors")
    both = [load_file(folder / "model.safetensors") for folder in (base, tuned)]
    for name, tensor in between.items():
        torch.testing.assert_close(tensor, (both[0][name] + both[1][name]) / 2, rtol=0, atol=1e-6)
    assert not torch.equal(logits(tmp_path / "noisy"), logits(base))
