"""Training over several nodes: two torchrun agents on this machine's loopback stand for two of them, and train what one
process trains; scripts for clusters hold commands that exist."""

from __future__ import annotations

from typing import Any

import pytest

from data_files import text_rows
from holdfast.errors import ConfigError
from holdfast.runs import launch, nodes
from holdfast.runs.config import train_config


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
    with pytest.raises(
        ConfigError, match=r"srun started 16 independent tasks.*--ntasks-per-node 1.*configs/cluster/slurm\.sh"
    ):
        launch.check_world({"SLURM_STEP_NUM_TASKS": "16"})
    launch.check_world({"SLURM_STEP_NUM_TASKS": "2", "WORLD_SIZE": "16"})
    launch.check_world({"SLURM_NTASKS": "2"})  # a batch script before srun


def test_each_node_with_a_folder_of_its_own_cannot_be_asked_for(least: dict[str, Any]) -> None:
    text_rows("train.jsonl", ["a"])
    with pytest.raises(ConfigError, match="save_on_each_node: has no effect: all nodes share one folder"):
        train_config({**least, "save_on_each_node": True})
