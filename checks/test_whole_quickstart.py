"""The quickstart as it is started: stopped with all its workers and continued, and its form on a real model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli import quickstart
from holdfast.records.study import read_study


def test_the_real_models_sweep_on_a_tiny_model(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "tiny"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(quickstart, "REAL_MODEL", str(folder))
    monkeypatch.setattr("holdfast.worlds.real_model.get_model", lambda name, console: None)
    out = tmp_path / "out"
    assert quickstart.run(["--real", "--quick", "--output_dir", str(out)]) == 0
    record = read_study(out)
    assert record.status == "finished" and len(record.trials) == 4
    names = {(c.suite, c.name) for trial in record.trials for c in trial.runs[0].comparisons}
    assert names == {("source", "prose"), ("target", "replies")}


def test_ctrl_c_stops_all_workers_and_the_same_command_continues(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "quickstart", "--quick", "--output_dir", str(tmp_path / "run")]
    environment = {**os.environ, "HOLDFAST_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    began = time.monotonic()
    while not list((tmp_path / "run").glob("runs/*/*/metrics.jsonl")):
        assert process.poll() is None
        assert time.monotonic() - began < 120
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the parent and all workers get it
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors[-2000:]
    assert "The same command continues" in errors
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert again.returncode == 0, again.stderr[-2000:]
    record = read_study(tmp_path / "run")
    assert len(record.trials) == 7 and record.status == "finished"
