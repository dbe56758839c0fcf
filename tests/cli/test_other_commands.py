"""`holdfast report`: its options and what it hands over."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.report import find_run
from holdfast.errors import RunFolderError
from holdfast.records.run import RunFolder, RunRecord


@pytest.fixture(autouse=True)
def no_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "")


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
