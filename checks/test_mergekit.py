"""Merges of the same request by mergekit and by `holdfast merge`, where mergekit is installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from holdfast.checkpoints.reader import CheckpointReader
from holdfast.cli.main import main
from tiny import build_model


@pytest.fixture
def desk(tmp_path: Path, tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a base and two models that were tuned from it."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("base", "math", "code")):
        model = build_model(tie=False)
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3 * (number > 0))
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
    return tmp_path


def weights(folder: str) -> dict[str, np.ndarray]:
    with CheckpointReader(folder) as reader:
        return {name: np.array(reader.mapped(name)) for name in reader.entries}


def models_of(**each: dict) -> list[dict]:
    return [{"model": name, "parameters": given} if given else {"model": name} for name, given in each.items()]


REQUESTS: dict[str, dict] = {
    **{
        method: {
            "merge_method": method,
            "base_model": "base",
            "models": models_of(math={"weight": 0.3, **each}, code={"weight": 0.9, **each}),
            "parameters": {"lambda": 0.8, "normalize": method != "task_arithmetic"},
        }
        for method, each in (("task_arithmetic", {}), ("ties", {"density": 0.6}))
    },
    "linear": {"merge_method": "linear", "models": models_of(math={"weight": 0.3}, code={"weight": 0.9})},
    "slerp": {
        "merge_method": "slerp",
        "base_model": "base",
        "models": models_of(math={}),
        "parameters": {"t": 0.3},
    },
    "ties with densities and weights of each model": {
        "merge_method": "ties",
        "base_model": "base",
        "models": models_of(math={"density": 0.7, "weight": 1.0}, code={"density": 0.33, "weight": 0.5}),
        "parameters": {"normalize": True, "int8_mask": True},
    },
    "weights that fall back to those of all": {
        "merge_method": "task_arithmetic",
        "base_model": "base",
        "models": models_of(math={"weight": 2.0}, code={}),
        "parameters": {"weight": 0.2},
    },
    "model_stock": {"merge_method": "model_stock", "base_model": "base", "models": models_of(math={}, code={})},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_result_is_mergekits(desk: Path, name: str) -> None:
    """The same request, given to both: float32 throughout, so that only rounding in another order differs."""
    request = {**REQUESTS[name], "dtype": "float32"}
    Path("mergekit.yml").write_text(yaml.safe_dump(request))
    assert main(["merge", "--config", "mergekit.yml", "--output_dir", "out"]) == 0
    ours = weights("out")
    layers = 1 + max(int(n.split(".")[2]) for n in ours if n.startswith("model.layers."))
    assert json.loads(Path("out", "config.json").read_text())["num_hidden_layers"] == layers
    from transformers import AutoModelForCausalLM

    _, told = AutoModelForCausalLM.from_pretrained("out", output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    pytest.importorskip("mergekit")
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    run_merge(
        MergeConfiguration.model_validate(request), "expected", options=MergeOptions(quiet=True, write_model_card=False)
    )
    theirs = weights("expected")
    assert ours.keys() == theirs.keys()
    for tensor, values in theirs.items():
        np.testing.assert_allclose(ours[tensor], values, rtol=1e-5, atol=1e-7, err_msg=tensor)
