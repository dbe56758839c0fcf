"""A model is whole or refused, by every command that loads or rewrites one: exit code 2, the tensors named, nothing
left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from data_files import jsonl
from holdfast.cli.main import main
from stand_ins import put_study

ROWS = [{"text": f"{n}. The quick brown fox jumps over the lazy dog."} for n in range(12)]
DOWN = "model.layers.1.mlp.down_proj.weight"
TRAIN = "train --model_name_or_path broken --dataset_name rows.jsonl --max_steps 2 --use_cpu --output_dir out"
COMMANDS = {
    "train": TRAIN,
    "train, a dry run": f"{TRAIN} --dry_run",
    "evaluate": "evaluate broken --perplexity rows.jsonl --output_dir out",
    "evaluate, a dry run": "evaluate broken --perplexity rows.jsonl --output_dir out --dry_run",
    "sweep": "sweep --config study.yaml --output_dir out",
    "sweep, a dry run": "sweep --config study.yaml --output_dir out --dry_run",
    "update": "update --base broken --instruct math --corpus dated.jsonl --tokens 50 --output_dir out",
    "update, the instruct model": "update --base base --instruct broken --corpus dated.jsonl --tokens 50 "
    "--output_dir out",
    "merge": "merge math broken --method linear --output_dir out",
    "merge, the base": "merge math code --base broken --method ties --output_dir out",
    "residual extract": "residual extract --instruct broken --base base --output_dir out",
    "probe, a copy": "probe broken --noise 0.1 --write out",
    "inspect, of two": "inspect base broken",
}


def damage(folder: Path, which: str) -> str:
    """Breaks a model and returns what has to be named."""
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    if which == "a tensor is missing":
        tensors.pop(DOWN)
        expected = DOWN
    elif which == "a tensor is renamed":
        tensors["model.embeddings.weight"] = tensors.pop("model.embed_tokens.weight")
        expected = "model.embed_tokens.weight"
    elif which == "fewer layers in config.json":
        config["num_hidden_layers"] = layers - 1
        expected = f"model.layers.{layers - 1}."
    else:
        config["hidden_size"] = -1 if which == "a negative width" else "many"
        expected = "hidden_size: -1" if which == "a negative width" else "hidden_size: 'many'"
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return expected


DAMAGE = (
    "a tensor is missing",
    "a tensor is renamed",
    "fewer layers in config.json",
    "a negative width",
    "a width in words",
)


@pytest.fixture
def desk(desk: Path) -> Path:
    shutil.copytree(desk / "base", desk / "broken")
    for name, rows in {
        "rows": ROWS,
        "dated": [{"text": row["text"], "date": "2024-02-01"} for row in ROWS],
    }.items():
        jsonl(desk / f"{name}.jsonl", rows)
    put_study(desk / "study.yaml", "broken")
    return desk


@pytest.mark.parametrize(
    ("command", "which"),
    [(command, which) for command in COMMANDS for which in (DAMAGE if command == "train" else DAMAGE[:4:3])],
)
def test_a_model_that_is_not_whole_is_refused(
    command: str,
    which: str,
    desk: Path,
    tree: Callable[[Path], list[tuple[str, int]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = damage(desk / "broken", which)
    before = tree(desk)
    assert main(COMMANDS[command].split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert expected in said.replace("│ ", "") and "Traceback" not in said
    assert tree(desk) == before


def test_the_whole_model_passes(desk: Path) -> None:
    assert main(["inspect", "base", "--verify"]) == 0
    assert main(TRAIN.replace("broken", "base").split()) == 0


def lora(desk: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("base")
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).save_pretrained("adapter")


@pytest.mark.parametrize(
    "words",
    [
        "evaluate adapter --perplexity rows.jsonl --output_dir out",
        "merge math adapter --method linear --output_dir out",
        "inspect adapter --verify",
    ],
)
def test_an_adapter_without_all_its_tensors(words: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lora(desk)
    file = desk / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    for part in "AB":
        tensors.pop(f"base_model.model.model.layers.1.self_attn.v_proj.lora_{part}.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    code = main(words.split())
    captured = capsys.readouterr()
    assert code == (1 if words.startswith("inspect") else 2)
    assert "model.layers.1.self_attn.v_proj" in " ".join((captured.out + captured.err).split())
