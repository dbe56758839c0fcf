"""`holdfast watch`: what it takes, what it refuses, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.watch import COMMAND, Watched
from holdfast.records.run import RunFolder, RunRecord
from holdfast.reports.live import LivePage
from holdfast.reports.live_server import serving


@pytest.fixture(autouse=True)
def no_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.write(RunRecord(name="first", stage="train", config={"max_steps": 40}))
    folder.metrics_file.write_text('{"step": 10, "loss": 2.5, "seconds": 5.0}\n')
    return folder.path


@pytest.mark.parametrize("ending", [signal.SIGINT])
def test_it_says_where_the_page_is_and_ctrl_c_ends_it_quietly(run_folder: Path, ending: int) -> None:
    words = [sys.executable, "-m", "holdfast", "watch", str(run_folder), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = process.stdout.readline()
    found = re.fullmatch(
        rf"Watching {re.escape(str(run_folder))} at (http://127\.0\.0\.1:\d+/)  \(Ctrl-C ends\)\n", said
    )
    assert found is not None, said
    with urllib.request.urlopen(f"{found[1]}changes", timeout=30) as answer:
        assert "Training: step 10 of 40" in answer.read().decode()
    process.send_signal(ending)
    rest, trouble = process.communicate(timeout=30)
    assert (process.returncode, rest, trouble) == (0, "", "")


def test_nothing_heavy_is_imported_for_a_run(run_folder: Path) -> None:
    script = (
        "import sys; from holdfast.cli.watch import COMMAND, Watched; from pathlib import Path\n"
        f"Watched(COMMAND.read([{str(run_folder)!r}]), Path({str(run_folder)!r}))()\n"
        "print([m for m in ('torch', 'transformers', 'optuna', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_folder_that_is_not_there_is_named_with_its_neighbour(run_folder: Path, capsys) -> None:
    assert main(["watch", str(run_folder.with_name("frist"))]) == 2
    assert re.search(r"no such folder: .*frist\. Did you mean 'first'\?.*--wait", capsys.readouterr().err)


def test_a_folder_that_is_neither_run_nor_study_is_refused(run_folder: Path, tmp_path: Path, capsys) -> None:
    assert main(["watch", str(run_folder.parent)]) == 2
    said = capsys.readouterr().err
    assert "expected a run or a study in" in said
    assert f"holdfast watch {run_folder}" in said
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("hello")
    assert main(["watch", str(other)]) == 2
    assert (
        "Give the output folder of 'holdfast train' or of a study such as 'holdfast sweep'." in capsys.readouterr().err
    )
    (other / "evaluate.json").write_text("{}")
    assert main(["watch", str(other)]) == 2
    assert f"'holdfast report {other}' shows what it holds" in capsys.readouterr().err


def test_a_record_that_cannot_be_read_is_said_before_anything_is_served(run_folder: Path, capsys) -> None:
    (run_folder / "run.json").write_text("{")
    assert main(["watch", str(run_folder)]) == 2
    assert "run.json" in capsys.readouterr().err


def test_a_port_in_use_is_said(run_folder: Path, capsys) -> None:
    from holdfast.reports.live_run import opening_page

    with serving(LivePage(lambda: 1 / 0, waiting=opening_page(run_folder)), port=0) as server:
        port = server.server_address[1]
        assert main(["watch", str(run_folder), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is in use" in said
    assert "--port 0" in said


@pytest.mark.parametrize("option", [["--port", "65536"], ["--port", "-1"], ["--port", "http"], ["--prot", "1"]])
def test_bad_options_are_refused(run_folder: Path, option: list[str], capsys) -> None:
    assert main(["watch", str(run_folder), *option]) == 2
    assert "--p" in capsys.readouterr().err


def test_a_folder_may_be_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "next"
    watched = Watched(COMMAND.read([str(folder), "--wait"]), folder)
    assert "has begun in this folder yet" in watched().page.lead
    RunFolder(folder).write(RunRecord(name="next", stage="evaluate start"))
    assert watched().page.lead == "Measuring the start model."


def test_an_empty_folder_is_one_that_has_not_begun(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "next")
    (tmp_path / "next" / ".lock").touch()
    watched = Watched(COMMAND.read([str(tmp_path / "next")]), tmp_path / "next")
    watched.check()
    assert "has begun in this folder yet" in watched().page.lead
