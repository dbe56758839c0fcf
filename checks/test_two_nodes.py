"""Training over several nodes: two torchrun agents on this machine's loopback stand for two of them, and train what one
process trains; scripts for clusters hold commands that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_files import text_rows
from holdfast.runs.config import given_words
from tiny import SENTENCES

CLUSTER = Path(__file__).resolve().parents[1] / "configs" / "cluster"


@pytest.fixture
def place(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model_folder)
    text_rows("train.jsonl", [f"{number}. {sentence}" for number in range(8) for sentence in SENTENCES])
    settings = {
        "model_name_or_path": "model", "dataset_name": "train.jsonl", "max_steps": 6, "optim": "sgd",
        "learning_rate": 0.1, "lr_scheduler_type": "constant", "logging_steps": 2, "save_steps": 3, "max_length": 64,
        "retention": [{"label_annealing": {"weight": 1.0}}, {"l2": {"coefficient": 0.1}}], "report_to": "none",
        "evaluation": {"keep": ["train.jsonl"]}, "use_cpu": True,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    return tmp_path


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def agents(place: Path, *words: str, folders: tuple[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """Two nodes: an agent each with one process, that meet at a port of the first; `folders`: their output folders."""
    port = free_port()
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"),
                *("--rdzv_id", "test", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}"),
                *("-m", "holdfast", "train", "--config", "run.yaml", "--output_dir", folder, *words),
            ],
            cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for folder in folders
    ]  # fmt: skip
    found = []
    for process in started:
        out, err = process.communicate(timeout=280)
        found.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return found


@pytest.mark.distributed
@pytest.mark.timeout(400)
def test_two_nodes_end_with_the_weights_of_one_process(place: Path) -> None:
    from safetensors.torch import load_file

    from holdfast.cli.main import main

    batch = "--per_device_train_batch_size"
    assert main(["train", "--config", "run.yaml", "--output_dir", "one", batch, "4"]) == 0
    for done in agents(place, batch, "2", folders=("two", "two")):
        assert done.returncode == 0, done.stderr[-3000:]
    a, b = (load_file(place / name / "model.safetensors") for name in ("one", "two"))
    assert a.keys() == b.keys()
    assert max(float((a[n] - b[n]).abs().max()) for n in a) < 5e-6
    figures = [
        [json.loads(line) for line in (place / n / "metrics.jsonl").read_text().splitlines()] for n in ("one", "two")
    ]
    for single, double in zip(*figures, strict=True):
        assert (double["step"], double["tokens"]) == (single["step"], single["tokens"])
        assert double["ce"] == pytest.approx(single["ce"], abs=1e-5)
    assert (place / "two" / "report.html").is_file()
    assert not list((place / "two").glob(".seen-*"))


@pytest.mark.distributed
@pytest.mark.timeout(400)
def test_folders_of_their_own_are_refused(place: Path) -> None:
    first, second = agents(place, folders=("here", "there"))
    assert first.returncode != 0 and second.returncode != 0
    assert "one output_dir shared by all nodes" in first.stderr + second.stderr, (first.stderr + second.stderr)[-3000:]
    assert not (place / "there").exists() and not (place / "here").exists()


def check_torchrun(script: str) -> None:
    """The script's torchrun command has torchrun's options, and what it starts is a sound `holdfast train`."""
    from torch.distributed.run import get_args_parser

    text = re.sub(r"\$\(.*\)|\$\w+", "1", script.replace("\\\n", " "))
    [line] = [line for line in text.splitlines() if "torchrun" in line and not line.lstrip().startswith("#")]
    words = shlex.split(line)
    words = words[words.index("torchrun") + 1 :]
    asked = get_args_parser().parse_args(words)
    assert asked.module and (asked.training_script, asked.training_script_args[0]) == ("holdfast", "train")
    assert asked.nnodes == "1" and (asked.rdzv_endpoint or asked.master_addr)
    given = given_words(asked.training_script_args[1:])
    assert not given.problems and find(asked.training_script_args, "--config")


def find(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_slurm_script() -> None:
    script = (CLUSTER / "slurm.sh").read_text()
    assert subprocess.run(["bash", "-n", str(CLUSTER / "slurm.sh")]).returncode == 0
    assert os.access(CLUSTER / "slurm.sh", os.X_OK) and script.startswith("#!/bin/bash\n")
    options = dict(
        line.split()[1].removeprefix("--").partition("=")[::2] for line in script.splitlines() if "#SBATCH" in line
    )
    assert options["ntasks-per-node"] == "1" and options["gpus-per-node"] == "8"
    check_torchrun(script)
    assert "--nproc_per_node 8" in script


def test_the_task_for_skypilot() -> None:
    task: dict[str, Any] = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())
    assert set(task) <= {"name", "num_nodes", "resources", "workdir", "volumes", "setup", "run"}
    assert task["num_nodes"] == 2 and task["resources"]["accelerators"] == "H100:8"
    known = {"SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NODE_IPS"}
    assert set(re.findall(r"\$(SKYPILOT_\w+)", task["run"])) == known
    assert find(shlex.split(task["run"].replace("\\\n", " ")), "--output_dir").startswith(next(iter(task["volumes"])))
    for script in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    check_torchrun(task["run"])
