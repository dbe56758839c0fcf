"""`early_stopping_patience` and `eval_dataset_name`: the best checkpoint by held-out rows of one's own is the end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import read_folder
from holdfast.errors import ConfigError, Interrupted
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from small_runs import run_of


@pytest.fixture
def settings(by_heart: dict[str, Any]) -> dict[str, Any]:
    return {
        **by_heart,
        "eval_dataset_name": "held.jsonl",
        "num_train_epochs": 8,
        "learning_rate": 2e-2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "early_stopping_patience": 1,
        "metric_for_best_model": "ce",
        "greater_is_better": False,
    }


def held_out(run: RunFolder) -> list[float]:
    return [row["eval_ce"] for row in run.metrics() if "eval_ce" in row]


def test_it_ends_with_the_best_checkpoint(settings: dict[str, Any]) -> None:
    run = run_of(settings)
    figures, record = held_out(run), run.read()
    best = figures.index(min(figures))
    assert 1 < len(figures) < 8 and best == len(figures) - 2, figures
    assert record.training["steps"] == 3 * len(figures)
    assert any(f"Ended at step {3 * len(figures)} of 24" in note for note in record.notes)
    assert read_folder(run.path) == read_folder(run.path / f"checkpoint-{3 * (best + 1)}")


def test_what_it_needs(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="early_stopping_patience: expected load_best_model_at_end: true, and"):
        train_config({**settings, "load_best_model_at_end": False})
    with pytest.raises(ConfigError, match=r"eval_dataset_name: no such file or folder: .*held_.jsonl.*held\.jsonl"):
        train_config({**settings, "eval_dataset_name": "held_.jsonl"})
    none = {"eval_strategy": "no", "load_best_model_at_end": False, "early_stopping_patience": None}
    with pytest.raises(ConfigError, match="eval_dataset_name: has no effect"):
        train_config({**settings, **none})


def test_held_out_rows_decide_only_where_they_choose(settings: dict[str, Any]) -> None:
    shutil.copy("held.jsonl", "others.jsonl")
    others = {**settings, "eval_dataset_name": "others.jsonl"}
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
    from holdfast.training.trainers import SFTRetentionTrainer

    def killed(self: Any) -> None:
        raise Interrupted("killed")

    monkeypatch.setattr(SFTRetentionTrainer, "_load_best_model", killed)
    with pytest.raises(Interrupted):
        run_of(settings)
    Path("held.jsonl").write_text('{"text": "Something else."}\n')
    with pytest.raises(RunFolderError, match="changed since the run"):
        run_of(settings)
