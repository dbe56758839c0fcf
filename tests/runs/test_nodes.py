"""Training over several nodes: two torchrun agents on this machine's loopback stand for two of them, and train what one
process trains; scripts for clusters hold commands that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from holdfast.errors import ConfigError
from holdfast.runs import launch, nodes
from holdfast.runs.config import train_config
from tiny import SENTENCES


@pytest.fixture
def place(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model_folder)
    rows = [{"text": f"{number}. {sentence}"} for number in range(8) for sentence in SENTENCES]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "model_name_or_path": "model", "dataset_name": "train.jsonl", "max_steps": 6, "optim": "sgd",
        "learning_rate": 0.1, "lr_scheduler_type": "constant", "logging_steps": 2, "save_steps": 3, "max_length": 64,
        "retention": [{"label_annealing": {"weight": 1.0}}, {"l2": {"coefficient": 0.1}}], "report_to": "none",
        "evaluation": {"keep": ["train.jsonl"]}, "use_cpu": True,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    return tmp_path


def test_what_a_launcher_says_of_nodes() -> None:
    assert nodes.nodes({}) == 1
    assert nodes.nodes({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}) == 1
    assert nodes.nodes({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}) == 2


def test_other_data_on_another_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate.utils

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    theirs = {"the training data": "other", "model_name_or_path": "m"}
    monkeypatch.setattr(accelerate.utils, "gather_object", lambda mine: [*mine, theirs])
    with pytest.raises(ConfigError, match="the training data differs between nodes: process 1 reads other files"):
        nodes.check_same({"model_name_or_path": "m", "the training data": "mine"}, None)
    nodes.check_same(theirs, None)


def test_tasks_of_slurm_that_do_not_know_of_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"srun started 16 tasks.*--ntasks-per-node 1.*configs/cluster/slurm\.sh"):
        launch.check_world({"SLURM_STEP_NUM_TASKS": "16"})
    launch.check_world({"SLURM_STEP_NUM_TASKS": "2", "WORLD_SIZE": "16"})
    launch.check_world({"SLURM_NTASKS": "2"})  # a batch script before srun


def test_each_node_with_a_folder_of_its_own_cannot_be_asked_for(place: Path) -> None:
    settings = yaml.safe_load((place / "run.yaml").read_text())
    with pytest.raises(ConfigError, match="save_on_each_node: checkpoints and records are those of one folder"):
        train_config({**settings, "save_on_each_node": True})


# ------------------------------------------------------------------------------------------------------------- scripts
