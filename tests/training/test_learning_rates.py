"""Learning rates by parameter: what a factor does to the weights, and what is no factor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import largest_difference, make_trainer, weights

from holdfast.errors import ConfigError
from holdfast.runs.config import train_config
from holdfast.training.learning_rates import factors_of
from tiny import build_model

NAMES = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight"]


def trained(folder: Path, multipliers: dict[str, float], **settings: Any) -> dict[str, torch.Tensor]:
    trainer = make_trainer(folder, (), multipliers=multipliers, **settings)
    trainer.train()
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def test_factors_by_pattern() -> None:
    assert factors_of(NAMES, {r"embed|lm_head": 0.1, r"layers\.0\.": 2.0}) == dict(
        zip(NAMES, (0.1, 2.0, 1.0, 0.1), strict=True)
    )
    assert set(factors_of(NAMES, {}).values()) == {1.0}


def test_what_is_no_factor() -> None:
    with pytest.raises(ConfigError) as caught:
        factors_of(NAMES, {"embd": 1.0, "layers": 2.0, "q_proj": 3.0})
    first, second = caught.value.problems
    assert "'embd' matches no trained parameter" in first and NAMES[0] in first
    assert "got 'layers' and 'q_proj' for model.layers.0.self_attn.q_proj.weight" in second


def test_factor_0_leaves_parameters_as_they_are(tmp_path: Path) -> None:
    start = dict(build_model().named_parameters())
    found = trained(tmp_path, {"mlp": 0.0}, weight_decay=0.1)
    assert all(torch.equal(found[n], start[n]) == ("mlp" in n) for n in start)


def test_sgd_moves_by_the_factor(tmp_path: Path) -> None:
    """One step of SGD from the same start: the change of each parameter is its factor times that of plain training."""
    start = dict(build_model().named_parameters())
    settings = {"optim": "sgd", "max_steps": 1, "learning_rate": 0.1, "lr_scheduler_type": "constant"}
    plain = trained(tmp_path / "a", {}, **settings)
    found = trained(tmp_path / "b", {"q_proj": 3.0, "norm": 0.5}, **settings)
    for name, first in start.items():
        factor = 3.0 if "q_proj" in name else 0.5 if "norm" in name else 1.0
        assert torch.allclose(found[name] - first, factor * (plain[name] - first), atol=1e-6, rtol=1e-4)


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = make_trainer(tmp_path / "a", (), multipliers={"norm": 5.0, "embed": 0.1}, **settings)
    whole.train()
    again = make_trainer(tmp_path / "b", (), multipliers={"norm": 5.0, "embed": 0.1}, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "run" / "checkpoint-3"))
    assert largest_difference(weights(whole), weights(again)) == 0.0


def test_the_setting(desk: Path) -> None:
    from stand_ins import put_data, put_model

    put_model("model")
    put_data("train.jsonl")
    base = {"model_name_or_path": "model", "dataset_name": "train.jsonl"}
    config = train_config(base, learning_rate_multipliers={"embed": 0.1})
    assert config.holdfast.learning_rate_multipliers == {"embed": 0.1}
    assert json.loads(json.dumps(config.resolved))["learning_rate_multipliers"] == {"embed": 0.1}
    assert config.key != train_config(base).key and "learning_rate_multipliers" not in train_config(base).resolved
    assert train_config(config.resolved).key == config.key
    with pytest.raises(ConfigError) as caught:
        train_config(base, learning_rate_multipliers={"embed": -1, "(": 1, "x": True})
    told = "\n".join(caught.value.problems)
    assert "a number of at least 0, got -1" in told and "a regular expression: missing )" in told and "got True" in told
