"""What is said of an adapter that is not merged while it is read; that the command does what it says is shown by
checks/checkpoints/test_peft_command.py."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from holdfast.checkpoints.peft_command import merge_advice
from holdfast.checkpoints.reader import CheckpointReader

COMMAND = "Merge it once with: "
Q = "model.layers.0.q.ia3_l"


def advice(folder: Path, settings: dict | None = None, *, tied: bool = False, config: dict | None = None, **adapter):
    """Of an adapter with these tensors on a base with 5 rows of embeddings."""
    for name in ("base", "adapter"):
        (folder / name).mkdir(parents=True)
    embedding = {"model.embed_tokens.weight": np.zeros((5, 4), np.float32)}
    save_file(embedding, folder / "base" / "model.safetensors")
    (folder / "base" / "config.json").write_text(json.dumps(config or {}))
    tensors = {f"base_model.model.{n}": np.zeros(shape, np.float32) for n, shape in (adapter or {Q: (4,)}).items()}
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    readers = CheckpointReader(folder / "adapter"), CheckpointReader(folder / "base")
    return merge_advice(readers[0], settings or {"peft_type": "IA3"}, readers[1], tied=tied)


def program(text: str) -> str:
    """The Python in the command, as a shell would give it to Python."""
    python, option, code = shlex.split(text.removeprefix(COMMAND))
    assert (python, option) == ("python", "-c") and text.startswith(COMMAND) and "\n" not in text
    ast.parse(code)
    return code


@pytest.mark.parametrize("name", ["plain", "two words", "it's", 'a "quote"', "back\\slash", "$HOME"])
def test_folders_of_any_name_reach_python(name: str, tmp_path: Path) -> None:
    tree = ast.parse(program(advice(tmp_path / name)))
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    adapter = str(tmp_path / name / "adapter")
    assert strings == {str(tmp_path / name / "base"), adapter, f"{adapter}-merged"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["LlavaForConditionalGeneration"]}, "LlavaForConditionalGeneration"),
        ({"architectures": ["OwnModel"], "auto_map": {"AutoModel": "own.OwnModel"}}, "AutoModelForCausalLM"),
        ({}, "AutoModelForCausalLM"),
    ],
    ids=["its own class", "code of the model's own", "not stated"],
)
def test_the_base_is_loaded_by_its_class(config: dict, expected: str, tmp_path: Path) -> None:
    assert program(advice(tmp_path, config=config)).startswith(f"from transformers import {expected} as M;")


@pytest.mark.parametrize("rows", [5, 7])
@pytest.mark.parametrize("tied", [False, True])
def test_rows_and_a_tied_head_are_set_before_the_adapter_is_loaded(rows: int, tied: bool, tmp_path: Path) -> None:
    name = "model.embed_tokens.modules_to_save.weight"
    code = program(advice(tmp_path, tied=tied, **{name: (rows, 4)}))
    assert ("m.resize_token_embeddings(7, mean_resizing=False); " in code) is (rows == 7)
    assert ("set_output_embeddings(deepcopy(" in code) is tied
    assert code.split("; ")[-1].startswith("P.from_pretrained(m, ")


def test_a_tied_head_stays_tied_beside_other_modules(tmp_path: Path) -> None:
    assert "deepcopy" not in program(advice(tmp_path, tied=True))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "PEFT cannot merge this adapter either"),
        ({"peft_type": "LORA", "alora_invocation_tokens": [3]}, "PEFT cannot merge this adapter either"),
        ({"peft_type": "LORA", "layer_replication": [[0, 2]]}, "PEFT cannot merge this adapter either"),
        ({"peft_type": "LORA", "init_lora_weights": "pissa_niter_4"}, "Merge the adapter in the training script"),
        ({"peft_type": "LORA", "init_lora_weights": "lora_ga"}, "Merge the adapter in the training script"),
        ({"peft_type": "LORA", "init_lora_weights": "corda"}, "Merge the adapter in the training script"),
    ],
    ids=str,
)
def test_no_command_where_peft_would_write_another_model_or_none(settings: dict, expected: str, tmp_path: Path) -> None:
    text = advice(tmp_path, settings)
    assert expected in text and "python" not in text


@pytest.mark.parametrize("start", ["pissa", "olora", True, None])
def test_starts_that_peft_repeats_have_the_command(start: object, tmp_path: Path) -> None:
    assert program(advice(tmp_path, {"peft_type": "LORA", "init_lora_weights": start}))


def test_a_base_that_is_an_adapter_is_to_be_merged_first(tmp_path: Path) -> None:
    advice(tmp_path)
    (tmp_path / "base" / "model.safetensors").rename(tmp_path / "base" / "adapter_model.safetensors")
    (tmp_path / "base" / "adapter_config.json").write_text("{}")
    base, adapter = CheckpointReader(tmp_path / "base"), CheckpointReader(tmp_path / "adapter")
    text = merge_advice(adapter, {"peft_type": "IA3"}, base, tied=False)
    assert f"{tmp_path / 'base'} is an adapter, too" in text and "python" not in text
