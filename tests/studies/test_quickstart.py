"""The quickstart from end to end, in its quick form: every arm is a finished run, the page and the table agree with
them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import commandline
from holdfast.cli.main import main
from holdfast.errors import ConfigError, RunFolderError
from holdfast.records.run import RunFolder
from holdfast.studies.quickstart import SOURCE, TARGET, QuickSettings, Quickstart, arms, quickstart

ARMS = ("direct", "label-annealing-1")


def run(out, *words):
    """In one process, because to import the libraries once more takes longer than both arms."""

    def work():
        Quickstart.one_in_process = True
        return main(["quickstart", "--quick", "--workers", "1", "--output_dir", str(out / "run"), *words])

    commandline.preload()
    done = commandline.in_process(work, out)
    assert done.code == 0, done.err[-3000:] + done.out[-1000:]
    (out / "stdout.txt").write_text(done.out)
    return out


def chosen():
    return [arm for arm in arms("replay.jsonl") if arm.name in ARMS]


@pytest.fixture(scope="module")
def root(once):
    """A quick quickstart of two arms by its command, with a cache of its own."""
    return once("quickstart", lambda folder: run(folder, *(word for arm in ARMS for word in ("--only", arm))))


def finished(root, wanted):
    for arm in wanted:
        folder = RunFolder(root / "run" / arm.name)
        record = folder.read()
        assert record.status == "finished", arm.name
        assert record.training["steps"] == 10
        assert {(c.suite, c.name) for c in folder.comparisons()} == {SOURCE, TARGET}
        assert folder.report_file.is_file()


def test_every_arm_is_a_finished_run(root):
    finished(root, chosen())
    assert sorted(p.name for p in (root / "run").iterdir() if (p / "run.json").is_file()) == sorted(ARMS)


def test_the_folder_is_reported_as_a_folder_of_runs(root, capsys):
    assert main(["report", str(root / "run")]) == 2
    assert "found 2 run folders inside it" in capsys.readouterr().err
    assert not list((root / "run").glob("study.*"))


@pytest.mark.parametrize("name", ["study.db", "study.json"])
def test_a_study_in_the_folder_is_not_touched(name, tmp_path):
    (tmp_path / name).write_text("{}")
    settings = QuickSettings(
        output_dir=tmp_path, arms=(), base="base", files={}, seed=0, quick=True, workers=1, storage="unused"
    )
    study = Quickstart(settings)
    if name == "study.json":
        with pytest.raises(RunFolderError, match=r"holds a study. Choose another output_dir"):
            study.open_folder(None)
    else:
        study.open_folder(None)
    assert (tmp_path / name).read_text() == "{}"


@pytest.mark.slow
def test_all_seven_arms(tmp_path):
    run(tmp_path)
    finished(tmp_path, arms("replay.jsonl"))


def test_an_unknown_arm_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--only: expected names of arms \(.*\), got drect\. Did you mean 'direct'\?"
    ):
        quickstart(output_dir=tmp_path / "out", only=["drect"])
    assert not (tmp_path / "out").exists()


def test_all_arms_share_one_start(root):
    starts = {RunFolder(root / "run" / arm.name).read().model["hash"] for arm in chosen()}
    assert len(starts) == 1
    values = {
        RunFolder(root / "run" / arm.name).evaluated("start").find(*SOURCE).metrics["nats_per_token"].value
        for arm in chosen()
    }
    assert len(values) == 1


def test_page_and_terminal_tell_the_same(root):
    page = (root / "run" / "report.html").read_text()
    shown = (root / "stdout.txt").read_text()
    direct = RunFolder(root / "run" / "direct")
    after = next(c.after for c in direct.comparisons() if c.suite == "target" and c.metric == "nats_per_token")
    assert f"{after:.3f}" in shown
    assert f"{after:.3f}" in page
    for arm in chosen():
        assert arm.label in page
    assert "holdfast train --model_name_or_path" in shown


@pytest.mark.slow
def test_the_base_is_cached_and_a_second_call_computes_nothing(root, monkeypatch, capsys):
    stamps = {path: path.stat().st_mtime_ns for path in (root / "run").glob("*/model.safetensors")}
    assert len(stamps) == len(ARMS)
    monkeypatch.setenv("HOLDFAST_CACHE", str(root / "cache"))
    words = [word for arm in ARMS for word in ("--only", arm)]
    assert main(["quickstart", "--quick", "--output_dir", str(root / "run"), *words]) == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert "Pre-training" not in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_stops_all_workers_and_the_same_command_continues(tmp_path):
    command = [sys.executable, "-m", "holdfast", "quickstart", "--quick", "--output_dir", str(tmp_path / "run")]
    environment = {**os.environ, "HOLDFAST_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    began = time.monotonic()
    while not list((tmp_path / "run").glob("*/metrics.jsonl")):
        assert process.poll() is None
        assert time.monotonic() - began < 120
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the parent and all workers get it
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors[-2000:]
    assert "The same command continues" in errors
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / "report.html").is_file()
