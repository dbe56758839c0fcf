"""The command that starts several processes, and when it is used. Nothing is launched."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import ConfigError, HoldfastError
from holdfast.runs import launch


def test_torchrun_on_a_machine_without_accelerator() -> None:
    words = launch.command(
        {"num_processes": 2, "mixed_precision": "bf16"}, ["--config", "run.yaml"], has_accelerator=False
    )
    assert words == [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"),
        *("-m", "holdfast", "train", "--config", "run.yaml"),
    ]


def test_accelerate_accepts_the_command() -> None:
    from accelerate.commands.launch import launch_command_parser

    asked = {
        "accelerate_config": "fsdp2",
        "num_processes": 4,
        "use_fsdp": True,
        "multi_gpu": False,
        "mixed_precision": "bf16",
    }
    words = launch.command(asked, ["--config", "run.yaml"], has_accelerator=True)
    assert words[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    parsed = launch_command_parser().parse_args(words[3:])
    assert Path(parsed.config_file).name == "fsdp2.yaml"
    assert Path(parsed.config_file).is_file()
    assert (parsed.num_processes, parsed.use_fsdp, parsed.multi_gpu, parsed.mixed_precision) == (4, True, False, "bf16")
    assert (parsed.module, parsed.training_script, parsed.training_script_args) == (
        True,
        "holdfast",
        ["train", "--config", "run.yaml"],
    )


@pytest.mark.parametrize(
    ("asked", "has_accelerator", "environ", "expected"),
    [
        ({}, True, {}, False),
        ({"num_processes": 2}, True, {}, True),
        ({"accelerate_config": "single_gpu"}, True, {}, True),
        ({"accelerate_config": "fsdp2"}, False, {}, False),
        ({"num_processes": 2}, False, {launch.LAUNCHED: "2"}, False),
    ],
)
def test_when_it_is_needed(asked: dict, has_accelerator: bool, environ: dict, expected: bool) -> None:
    assert launch.is_needed(asked, has_accelerator=has_accelerator, environ=environ) is expected


def test_processes() -> None:
    assert launch.processes({}, {}) == 1
    assert launch.processes({"num_processes": 4}, {}) == 4
    assert launch.processes({"num_processes": 4}, {"WORLD_SIZE": "2"}) == 2
    assert launch.processes({"accelerate_config": "multi_gpu"}, {}) == 8


def test_a_launcher_that_did_not_distribute_is_found_out() -> None:
    launch.check_world({})
    launch.check_world({launch.LAUNCHED: "2", "WORLD_SIZE": "2"})
    with pytest.raises(HoldfastError, match="Expected 2 processes, but the launcher started 1"):
        launch.check_world({launch.LAUNCHED: "2"})


def test_a_run_for_several_processes_is_not_trained_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.runs.run import train

    config: Any = SimpleNamespace(launch={"num_processes": 4})
    monkeypatch.setattr("holdfast.runs.config.has_accelerator", lambda: False)
    with pytest.raises(ConfigError, match=r"expected 4 processes, got one.*holdfast train --config.*torchrun"):
        train(config)
    for asked, there, environ in (
        ({"num_processes": 4}, False, {"WORLD_SIZE": "4"}),
        ({"num_processes": 1}, True, {}),
        ({"accelerate_config": "multi_gpu"}, False, {}),  # which has no effect there, as a note says
    ):
        launch.check_started(asked, has_accelerator=there, environ=environ)


def test_start_replaces_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr("os.execv", lambda path, words: started.append((path, words)))
    launch.start({"num_processes": 2}, ["--seed", "1"], has_accelerator=False)
    ((path, words),) = started
    assert path == words[0] == sys.executable
    assert words[-4:] == ["holdfast", "train", "--seed", "1"]
    assert os.environ[launch.LAUNCHED] == "2"
