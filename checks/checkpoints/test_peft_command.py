"""The command in the message that refuses an adapter: run as it stands, offline, it writes PEFT's own merge bit for
bit, and holdfast reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from holdfast.checkpoints.locate import open_source
from holdfast.errors import ModelError
from tiny import build_model
from vision_models import build_vision_model

NOWHERE = "http://127.0.0.1:9"
"""A proxy that answers nothing: whatever asks a hub fails."""


def ia3(**settings: Any) -> Any:
    from peft import IA3Config

    return IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], **settings)


def of_kind(name: str, **settings: Any) -> Callable[[], Any]:
    import peft

    return lambda: getattr(peft, name)(r=4, **settings)


def build(*, tie: bool = False, vision: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    model = build_vision_model("llava") if vision else build_model(40, tie=tie, width=16)
    return model.to(dtype)


CASES: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "IA3 with trained modules": ({}, lambda: ia3(modules_to_save=["lm_head", "norm"], task_type="CAUSAL_LM")),
    "IA3 with more tokens": ({"rows": 44}, lambda: ia3(modules_to_save=["embed_tokens", "lm_head"])),
    "LoHa": ({}, of_kind("LoHaConfig", alpha=6, target_modules=["q_proj", "up_proj"])),
    "LoKr in bfloat16": (
        {"dtype": torch.bfloat16},
        of_kind("LoKrConfig", alpha=6, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM"),
    ),
    "LoRA on embeddings": ({}, of_kind("LoraConfig", target_modules=["embed_tokens", "q_proj"])),
    "a vision-language model": ({"vision": True}, lambda: ia3(modules_to_save=["linear_1"], task_type="CAUSAL_LM")),
    "PiSSA": ({}, of_kind("LoraConfig", target_modules=["q_proj"], init_lora_weights="pissa")),
}


def write_adapter(folder: Path, config: Any, *, rows: int | None = None, **options: Any) -> Any:
    """Writes a model to `a base` and an adapter with random weights to `an adapter`, which names another base; gives
    the adapted model."""
    from peft import get_peft_model

    model = build(**options)
    model.save_pretrained(folder / "a base")
    model.name_or_path = model.config._name_or_path = str(folder / "a base")
    if rows is not None:
        model.resize_token_embeddings(rows, mean_resizing=False)
    adapted = get_peft_model(model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    adapted.save_pretrained(folder / "an adapter")
    file = folder / "an adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "somebody/elsewhere"}))
    return adapted.eval()


def merge_by_command(folder: Path) -> dict[str, torch.Tensor]:
    """Runs the command of the message; gives the tensors that it wrote."""
    base, adapter, merged = folder / "a base", folder / "an adapter", folder / "an adapter-merged"
    with pytest.raises(ModelError, match="cannot be merged while reading") as refusal:
        open_source(adapter, base=base)
    _, _, command = str(refusal.value).splitlines()[-1].partition("Merge it once with: ")
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": binaries, "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tensors = load_file(merged / "model.safetensors")
    source = open_source(merged)
    shapes = {name: entry.shape for name, entry in source.entries.items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return tensors


@pytest.mark.parametrize("case", CASES)
def test_the_command_writes_what_peft_merges(case: str, tmp_path: Path) -> None:
    options, config = CASES[case]
    in_memory = write_adapter(tmp_path, config(), **options).merge_and_unload()
    tensors = merge_by_command(tmp_path)
    before = load_file(tmp_path / "a base" / "model.safetensors")
    assert any(not torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    # vision-language models have other names in memory than in their files
    written, loading = type(in_memory).from_pretrained(tmp_path / "an adapter-merged", output_loading_info=True)
    assert not any(loading.values()) and len(tensors) == len(in_memory.state_dict())
    for name, tensor in in_memory.state_dict().items():
        other = written.state_dict()[name]
        assert tensor.dtype == other.dtype and torch.equal(tensor, other), name


def test_a_tied_head_stays_what_it_was(tmp_path: Path) -> None:
    """PEFT's own merge of a base that ties its head would change the head with the embeddings."""
    adapted = write_adapter(tmp_path, of_kind("LoraConfig", target_modules=["embed_tokens", "q_proj"])(), tie=True)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        logits = adapted(ids).logits
    expected = adapted.merge_and_unload()
    tensors = merge_by_command(tmp_path)
    before = load_file(tmp_path / "a base" / "model.safetensors")
    assert torch.equal(tensors.pop("lm_head.weight"), before["model.embed_tokens.weight"])
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected.state_dict()[name]), name
    merged = type(expected).from_pretrained(tmp_path / "an adapter-merged").eval()
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, logits, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(expected(ids).logits, logits, rtol=0.1, atol=0.1)
