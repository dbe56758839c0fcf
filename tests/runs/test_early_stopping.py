"""`early_stopping_patience` and `eval_dataset_name`: the best checkpoint by held-out rows of one's own is the end."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from holdfast.errors import ConfigError, Interrupted
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.run import train


@pytest.fixture
def settings(tmp_path: Path, model_folder: Path) -> dict[str, Any]:
    """Three rows are learnt by heart, so that others are predicted worse and worse."""
    learnt = ["Rome is the capital of Italy.", "Paris is the capital of France.", "Bern lies in Switzerland."]
    for name, texts in (("train", learnt), ("held", ["Water boils when it is hot.", "The cat sat there."])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return {
        "model_name_or_path": str(model_folder),
        "dataset_name": str(tmp_path / "train.jsonl"),
        "eval_dataset_name": str(tmp_path / "held.jsonl"),
        "per_device_train_batch_size": 1,
        "num_train_epochs": 8,
        "learning_rate": 2e-2,
        "lr_scheduler_type": "constant",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "early_stopping_patience": 1,
        "metric_for_best_model": "ce",
        "greater_is_better": False,
        "use_cpu": True,
        "report_to": "none",
        "output_dir": str(tmp_path / "run"),
    }


def run_of(settings: dict[str, Any]) -> RunFolder:
    return train(train_config(settings), console=Console(file=io.StringIO()))


def held_out(run: RunFolder) -> list[float]:
    return [row["eval_ce"] for row in run.metrics() if "eval_ce" in row]


def test_it_ends_with_the_best_checkpoint(settings: dict[str, Any]) -> None:
    run = run_of(settings)
    figures, record = held_out(run), run.read()
    best = figures.index(min(figures))
    assert 1 < len(figures) < 8 and best == len(figures) - 2, figures
    assert record.training["steps"] == 3 * len(figures)
    assert any(f"Ended at step {3 * len(figures)} of 24" in note for note in record.notes)
    best_one = load_file(run.path / f"checkpoint-{3 * (best + 1)}" / "model.safetensors")
    result = load_file(run.path / "model.safetensors")
    assert all(torch.equal(result[name], best_one[name]) for name in result)


def test_what_it_needs(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="early_stopping_patience: expected load_best_model_at_end: true with it"):
        train_config({**settings, "load_best_model_at_end": False})
    with pytest.raises(ConfigError, match=r"eval_dataset_name: no such file or folder: .*held_.jsonl.*held\.jsonl"):
        train_config({**settings, "eval_dataset_name": settings["eval_dataset_name"].replace("held", "held_")})
    none = {"eval_strategy": "no", "load_best_model_at_end": False, "early_stopping_patience": None}
    with pytest.raises(ConfigError, match="eval_dataset_name: nothing reads it"):
        train_config({**settings, **none})


def test_held_out_rows_decide_only_where_they_choose(settings: dict[str, Any], tmp_path: Path) -> None:
    shutil.copy(settings["eval_dataset_name"], tmp_path / "others.jsonl")
    others = {**settings, "eval_dataset_name": str(tmp_path / "others.jsonl")}
    assert train_config(settings).key != train_config(others).key
    off = {"load_best_model_at_end": False, "early_stopping_patience": None}
    assert train_config({**settings, **off}).key == train_config({**others, **off}).key


@pytest.mark.parametrize("method", ["sfa", "wise_ft", "ema"])
def test_a_method_that_ends_training_cannot_take_an_earlier_checkpoint(settings: dict[str, Any], method: str) -> None:
    """The best checkpoint is from before its average: it would be direct fine-tuning under another name."""
    with pytest.raises(ConfigError, match=rf"retention\.{method}: changes the weights after the last step"):
        train_config({**settings, "retention": [method]})
    train_config({**settings, "retention": [method], "load_best_model_at_end": False, "early_stopping_patience": None})
    train_config({**settings, "retention": ["label_annealing"]})


def test_held_out_rows_that_changed_are_refused(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They choose the result, as the training data makes it."""
    from holdfast.errors import RunFolderError
    from holdfast.training.hosts import SFTRetentionTrainer

    def killed(self: Any) -> None:
        raise Interrupted("killed")

    monkeypatch.setattr(SFTRetentionTrainer, "_load_best_model", killed)
    with pytest.raises(Interrupted):
        run_of(settings)
    Path(settings["eval_dataset_name"]).write_text('{"text": "Something else."}\n')
    with pytest.raises(RunFolderError, match="changed since the run"):
        run_of(settings)
