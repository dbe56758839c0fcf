"""`holdfast quickstart` and `holdfast report`: their options and what they hand over."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.quickstart import default_workers
from holdfast.cli.report import find_run
from holdfast.errors import RunFolderError
from holdfast.records.run import RunFolder, RunRecord


@pytest.fixture(autouse=True)
def no_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What `quickstart` was called with."""
    calls: list[dict] = []
    monkeypatch.setitem(
        sys.modules,
        "holdfast.studies.quickstart",
        types.SimpleNamespace(quickstart=lambda **options: calls.append(options)),
    )
    return calls


def test_quickstart_defaults_and_options(started: list[dict]) -> None:
    assert main(["quickstart"]) == 0
    assert main(["quickstart", "--output-dir", "here", "--seed=3", "--workers", "1", "--quick", "--only", "sfa"]) == 0
    assert [{k: v for k, v in call.items() if k != "console"} for call in started] == [
        {
            "output_dir": Path("holdfast-quickstart"),
            "seed": 0,
            "workers": default_workers(),
            "quick": False,
            "only": [],
            "real": False,
        },
        {"output_dir": Path("here"), "seed": 3, "workers": 1, "quick": True, "only": ["sfa"], "real": False},
    ]
    assert main(["quickstart", "--real"]) == 0
    assert (started[2]["output_dir"], started[2]["workers"], started[2]["real"]) == (
        Path("holdfast-quickstart-real"),
        1,
        True,
    )


def test_workers_follow_the_cores_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, workers in ((1, 1), (2, 2), (16, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        assert default_workers() == workers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workres", "2"], "unknown option '--workres'. Did you mean '--workers'?"),
        (["--workers", "0"], "expected a whole number of at least 1, got '0'"),
        (["--seed", "x"], "--seed: expected a whole number, got 'x'"),
        (["--output_dir"], "--output_dir: expected a path, got nothing"),
        (["--out", "x"], "unknown option '--out'"),
    ],
)
def test_quickstart_mistakes(
    started: list[dict], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["quickstart", *words]) == 2
    assert message in capsys.readouterr().err
    assert started == []


def run_folder(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.write(RunRecord(name=path.name, status="finished", stage="done", model={"name": "tiny"}))
    return folder


def test_report_writes_the_page_and_prints_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "first")
    assert main(["report", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert "first" in shown
    assert "report.html" in shown.replace("\n", "")
    assert "<html" in folder.report_file.read_text()[:500]


def test_report_takes_the_file_too(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "first")
    assert find_run(folder.run_file).path == folder.path


def test_report_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(tmp_path / "first")
    run_folder(tmp_path / "second")
    with pytest.raises(RunFolderError, match=r"no such folder: .*frist\. Did you mean .*first"):
        find_run(tmp_path / "frist")
    with pytest.raises(RunFolderError, match=r"found 2 run folders inside it(.|\n)*holdfast report .*first\n") as error:
        find_run(tmp_path)
    assert error.value.exit_code == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match=r"has no run\.json"):
        find_run(tmp_path / "empty")
    assert main(["report"]) == 2
    assert "folder: is missing" in capsys.readouterr().err
