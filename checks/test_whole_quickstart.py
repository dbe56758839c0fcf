"""The quickstart as it is started: stopped with all its workers and continued, and its form on a real model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commandline
from holdfast.cli import quickstart
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from holdfast.records.study import read_study
from holdfast.studies.sweep.session import SweepStudy


@pytest.fixture(scope="module")
def done(once: Callable[..., Path]) -> Path:
    """A quick quickstart with one method beside direct fine-tuning, in one process."""

    def two_ways(*args: Any, **kwargs: Any) -> dict[str, Any]:
        values = all_ways(*args, **kwargs)
        values["arms"] = [{"label_annealing": {"weight": 1}}]
        return values

    all_ways = quickstart.sweep_of

    def make(folder: Path) -> Path:
        def work() -> int:
            SweepStudy.one_in_process = True
            quickstart.sweep_of = two_ways
            return main(["quickstart", "--quick", "--workers", "1", "--output_dir", str(folder / "run")])

        commandline.preload()
        ended = commandline.in_process(work, folder)
        assert ended.code == 0, ended.err[-3000:] + ended.out[-1000:]
        (folder / "stdout.txt").write_text(ended.out)
        return folder

    return once("quickstart", make)


def test_every_way_is_a_finished_run_from_one_start(done: Path) -> None:
    record = read_study(done / "run")
    starts = set()
    for trial in record.trials:
        folder = RunFolder(done / "run" / trial.runs[0].folder)
        run = folder.read()
        assert (run.status, run.training["steps"]) == ("finished", 10) and folder.report_file.is_file()
        assert {(c.suite, c.name) for c in folder.comparisons()} == {("keep", "prose"), ("learn", "code")}
        starts.add(run.model["hash"])
    assert [t.label for t in record.trials] == ["direct fine-tuning", "label annealing"]
    assert (record.status, len(starts)) == ("finished", 1)


def test_page_and_terminal_name_every_way(done: Path) -> None:
    page = (done / "run" / "report.html").read_text()
    shown = (done / "stdout.txt").read_text()
    for trial in read_study(done / "run").trials:
        assert trial.label in page and trial.label in shown
    assert "holdfast train --model_name_or_path" in shown


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
    monkeypatch.setattr("holdfast.papers.worlds.real_model.get_model", lambda name, console: None)
    out = tmp_path / "out"
    assert quickstart.run(["--real", "--quick", "--output_dir", str(out)]) == 0
    record = read_study(out)
    assert record.status == "finished" and len(record.trials) == 4
    names = {(c.suite, c.name) for trial in record.trials for c in trial.runs[0].comparisons}
    assert names == {("keep", "prose"), ("learn", "replies")}


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
    assert "Run the same command to continue" in errors
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert again.returncode == 0, again.stderr[-2000:]
    record = read_study(tmp_path / "run")
    assert len(record.trials) == 4 and record.status == "finished"
