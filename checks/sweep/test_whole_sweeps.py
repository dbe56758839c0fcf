"""Real workers: processes of their own, one killed in the middle, on PostgreSQL; a study by the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import postgresql
from holdfast.cli.main import main
from holdfast.records.study import read_study
from holdfast.studies.engine.session import STORAGE_VARIABLE, kind_name, open_existing
from holdfast.studies.engine.storage import KIND, Storage
from holdfast.studies.engine.worker import work
from holdfast.studies.sweep.record import study_record
from holdfast.studies.sweep.session import SweepStudy, run_study
from holdfast.studies.sweep.study import StudyConfig

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words) -> list[str]:
    return [sys.executable, "-m", "holdfast", "sweep", *map(str, words)]


def start_worker(config, out: Path, log) -> subprocess.Popen:
    words = command("worker", "--study", config.name, "--output_dir", out, "--grace", 3)
    return subprocess.Popen(words, env={**ENVIRONMENT, STORAGE_VARIABLE: config.storage}, stdout=log, stderr=log)


@contextlib.contextmanager
def ran(asked):
    """A study worked to its end in this process: its configuration, record, storage's study, and what was printed."""
    config = StudyConfig.read(asked)
    storage = Storage(config.storage)
    study = storage.open_study(config)
    text = io.StringIO()
    work(storage, study, SweepStudy(config), console=Console(file=text, width=200))
    yield config, study_record(storage.state(study), config), study, text.getvalue()
    storage.close()


def wait_for(condition, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


@pytest.mark.parametrize("shared_disk", [True, False])
def test_two_workers_on_postgresql_one_is_killed(asked, postgres, tmp_path, shared_disk):
    """The killed worker's trial is taken over (from its checkpoint, on a shared disk), none is lost, none is finished
    twice."""
    asked["train"] |= {"max_steps": 60, "save_steps": 3}
    config = StudyConfig.read({**asked, "name": f"killed-{shared_disk}", "storage": postgres, "seeds": [0, 1]})
    storage = Storage(postgres)
    study = storage.open_study(config)
    study.set_user_attr(KIND, kind_name(SweepStudy))  # which the command records
    places = [tmp_path / "a", tmp_path / ("a" if shared_disk else "b")]
    with open(tmp_path / "log.txt", "wb") as log:
        first, second = (start_worker(config, place, log) for place in places)

        def mine() -> set[int]:
            trials = study_record(storage.state(study), config).trials
            return {t.number for t in trials if t.worker.endswith(f":{first.pid}") and t.state == "running"}

        wait_for(lambda: mine() and list(places[0].glob("runs/*/*/checkpoint-*")))
        held = mine()
        first.kill()
        first.wait()
        assert second.wait(400) == 0, (tmp_path / "log.txt").read_text()[-3000:]
    record = study_record(storage.state(study), config)
    assert record.status == "finished"
    assert [t.state for t in record.trials] == ["complete"] * 5
    assert [[r.seed for r in t.runs] for t in record.trials] == [[0, 1]] * 5
    with storage.backend.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            f"select trial_id, attempt from holdfast_leases where study_id = {study._study_id} order by trial_id"
        ).all()
    assert [attempt for _, attempt in rows] == [2 if t.number in held else 1 for t in record.trials]
    assert len(held) == 1
    if shared_disk:
        runs = [json.loads(p.read_text()) for p in places[0].glob("runs/*/*/run.json")]
        assert len(runs) == 10
        assert sorted(r["training"]["sessions"] for r in runs) == [1] * 9 + [2]
    storage.close()


def test_a_database_that_is_away_for_a_minute_costs_nothing_but_the_minute(asked, tmp_path):
    """PostgreSQL ends in the middle of the first trial and comes back: every trial is finished once, with the figures
    that it has without."""
    asked["train"] |= {"max_steps": 20}
    out = Path(asked["output_dir"])
    with postgresql.server() as server:
        if server is None:
            pytest.skip("needs PostgreSQL's server")
        gone = []

        def away() -> None:
            wait_for(lambda: list(out.glob("runs/*/*/metrics.jsonl")))
            server.stop()
            gone.append(time.monotonic())
            time.sleep(60)
            server.start()
            gone.append(time.monotonic())

        thread = threading.Thread(target=away)
        thread.start()
        with ran({**asked, "storage": server.address}) as (_, record, _, text):
            ended = time.monotonic()
        thread.join()
    assert len(gone) == 2 and ended > gone[1], "the study waited for it"
    assert [t.state for t in record.trials] == ["complete"] * 5, text
    with ran({**asked, "output_dir": str(tmp_path / "again")}) as (_, whole, _, _):
        pass
    figures = [[[r.comparisons for r in t.runs] for t in found.trials] for found in (record, whole)]
    assert figures[0] == figures[1]


def test_a_study_from_its_file_to_its_page(asked, tmp_path, capsys):
    """By the command line, interrupted with Ctrl-C and continued; then status, report with another rule, and the chosen
    configuration again."""
    asked["train"] |= {"max_steps": 40, "save_steps": 2}
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in asked.items() if k != "name"}))
    out = Path(asked["output_dir"])
    words = command("--config", file, "--workers", 2)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for(lambda: list(out.glob("runs/*/*/checkpoint-*")))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "Run the same command to continue" in error
    record = read_study(out)
    assert record.status == "interrupted"
    assert "running" not in [t.state for t in record.trials]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=400)
    assert done.returncode == 0, done.stderr
    record = read_study(out)
    assert record.status == "finished"
    sessions = [json.loads(p.read_text())["training"]["sessions"] for p in out.glob("runs/*/*/run.json")]
    assert max(sessions) >= 2
    assert (out / "report.html").stat().st_size > 10_000
    assert "direct fine-tuning" in done.stdout
    assert main(["sweep", "status", str(out)]) == 0
    assert "5" in capsys.readouterr().out
    assert main(["sweep", "report", str(out), "--rule", "knee"]) == 0
    chosen = yaml.safe_load((out / "chosen.yaml").read_text())
    assert chosen["max_steps"] == 40
    again = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert again.returncode == 0
    file.write_text(yaml.safe_dump({**asked, "seeds": [0, 1]}))
    changed = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert changed.returncode == 2
    assert "seeds: [0] before, [0, 1] now" in changed.stderr


@pytest.mark.parametrize(("keep", "kept"), [("all", 5), ("none", 0), ("frontier", None)])
def test_weights_that_are_not_kept_are_deleted(asked, keep, kept):
    asked["keep"] = keep
    with ran(asked) as (config, record, study, _):
        values = [t.values for t in study.get_trials()]
    weights = {p.parent.parent.name for p in config.output_dir.glob("runs/*/seed-0/model.safetensors")}
    if kept is None:
        best = [
            i for i, (a, b) in enumerate(values) if not any(c >= a and d >= b and (c, d) != (a, b) for c, d in values)
        ]
        assert weights == {record.trials[i].runs[0].folder.split("/")[1] for i in best}
        assert 0 < len(weights) < 5
    else:
        assert len(weights) == kept
    assert not list(config.output_dir.glob("runs/*/*/checkpoint-*"))
    assert len(list(config.output_dir.glob("runs/*/seed-0/report.html"))) == 5


def test_what_a_stopped_worker_left_of_a_checkpoint_goes_at_the_next_opening(material, asked):
    """A session ends its workers with the last job, which may be while one of them deletes a checkpoint."""
    asked["arms"] = ["l2"]
    out = Path(asked["output_dir"])
    run_study(StudyConfig.read(asked), console=Console(file=io.StringIO()), workers=1)
    folder = next(out.glob("runs/*/seed-0"))
    shutil.copytree(Path(material["model_name_or_path"]), folder / ".deleting-checkpoint-4")
    shutil.copytree(Path(material["model_name_or_path"]), folder / "checkpoint-2")
    record = run_study(StudyConfig.read(asked), console=Console(file=io.StringIO()), workers=1)
    assert record.status == "finished"
    assert not list(folder.glob(".deleting-*")) + list(folder.glob("checkpoint-*"))
    assert (folder / "model.safetensors").is_file()


def test_trials_of_another_trainer(material, asked, tmp_path):
    """A sweep over the beta of DPO."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": "Is it? ", "chosen": f"Yes, {number}.", "rejected": "No."} for number in range(8)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked["train"] = {**material, "trainer": "dpo", "dataset_name": str(pairs)}
    asked["arms"], asked["vary"] = ["none"], {"beta": [0.05, 2.0]}
    with ran(asked) as (_, record, _, text):
        assert [trial.state for trial in record.trials] == ["complete"] * 2, text
    assert len({trial.runs[0].comparisons[0].after for trial in record.trials}) == 2


@pytest.mark.distributed
def test_trials_over_two_processes(asked):
    """A trial that trains over two processes goes through the launcher, and finds the start measured."""
    asked["train"] |= {"num_processes": 2}
    asked["arms"] = [{"l2": {"coefficient": 0.1}}]
    with ran(asked) as (config, record, _, _):
        pass
    assert [t.state for t in record.trials] == ["complete"] * 2
    runs = [json.loads(p.read_text()) for p in config.output_dir.glob("runs/*/*/run.json")]
    assert [r["status"] for r in runs] == ["finished"] * 2
    assert len(list((config.output_dir / "evaluations").glob("*/evaluation.json"))) == 2 + 2 * 2


def test_workers_end_with_the_command_that_started_them(asked):
    asked["train"] |= {"max_steps": 4000, "save_steps": 2}
    file = Path(asked["output_dir"]).parent / "tiny.yaml"
    file.write_text(yaml.safe_dump(asked))
    out = Path(asked["output_dir"])
    words = command("--config", file, "--workers", 1)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    wait_for(lambda: list(out.glob("runs/*/*/checkpoint-*")))
    process.kill()
    process.wait()
    with open_existing(out) as opened:
        wait_for(lambda: opened.record().status == "interrupted", 60)
        wait_for(lambda: re.search("error|stopped", (out / "logs" / "worker-0.log").read_text()), 60)
        assert opened.queue.get_trials()[0].state.name == "WAITING"


def test_the_start_and_the_teacher_are_shared(asked, tmp_path, monkeypatch):
    """The start is measured in the first run alone, and the second label annealing trial finds the teacher's states."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    with ran(asked) as (config, record, _, _):
        pass
    runs = [json.loads((config.output_dir / t.runs[0].folder / "run.json").read_text()) for t in record.trials]
    keys = [
        sorted(p.name for p in (config.output_dir / t.runs[0].folder / "evaluations" / "start").glob("*.json"))
        for t in record.trials
    ]
    assert keys == [["keep.prose.json", "learn.code.json"]] * 5
    assert len(list((config.output_dir / "evaluations").glob("*/evaluation.json"))) == 2 + 2 * 5
    teachers = [r["training"].get("teacher") for r in runs]
    assert [bool(t) for t in teachers] == [False, True, True, False, False]
    assert teachers[2]["computed"] == 0 < teachers[1]["computed"]
    with sqlite3.connect(config.output_dir / "study.db") as database:
        assert database.execute("select count(*) from holdfast_leases where owner is not null").fetchone() == (0,)
