"""Tiny checkpoints for the checkpoint commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny import build_model


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """Folders base, math, code (fine-tunes of it), stranger (another seed), wide (another width) and adapter (LoRA
    on base)."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("checkpoints")
    base = build_model(tie=False)
    base.save_pretrained(folder / "base")
    for number, name in enumerate(("math", "code"), 1):
        torch.manual_seed(number)
        tuned = build_model(tie=False)
        with torch.no_grad():
            for parameter in tuned.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        tuned.save_pretrained(folder / name)
    build_model(tie=False, seed=5).save_pretrained(folder / "stranger")
    build_model(tie=False, width=16).save_pretrained(folder / "wide")
    for name in ("base", "math", "code", "stranger", "wide"):
        tokenizer.save_pretrained(folder / name)
    (folder / "adapter").mkdir()
    tensors = {}
    for layer in range(base.config.num_hidden_layers):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(4, 32) / 10
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(32, 4) / 10
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    stated = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "base",
        "bias": "none",
    }
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(stated))
    return folder


@pytest.fixture
def desk(checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with copies of them."""
    for source in checkpoints.iterdir():
        shutil.copytree(source, tmp_path / source.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return tmp_path


@pytest.fixture
def tree() -> Callable[[Path], list[tuple[str, int]]]:
    """Lists everything in a folder with its time of change: what a command that writes nothing leaves as it is."""
    return lambda folder: sorted((str(p.relative_to(folder)), p.stat().st_mtime_ns) for p in folder.rglob("*"))
