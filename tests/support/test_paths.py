"""Paths that pathlib answers with a RuntimeError are paths at which nothing is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.support.paths import expanded, real

NOBODY = "~nobody-here/a.jsonl"


def test_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert expanded("~/a") == Path("/somewhere/a")
    assert expanded("a~") == Path("a~")
    assert expanded(Path(NOBODY)) == Path(NOBODY)


def test_links(tmp_path: Path) -> None:
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    assert real(tmp_path / "itself") == tmp_path / "itself"
    assert real(tmp_path / "link" / "new") == tmp_path / "folder" / "new"


@pytest.mark.parametrize(
    "words",
    [
        f"evaluate {NOBODY} --perplexity {NOBODY}",
        f"data prepare --input {NOBODY} --output out.jsonl",
        f"merge {NOBODY} {NOBODY} --output_dir out",
        f"update --base {NOBODY} --instruct {NOBODY} --corpus {NOBODY}",
    ],
)
def test_a_home_that_is_not_there_is_named(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert "~nobody-here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_itself_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").symlink_to("a.jsonl")
    assert main(["data", "prepare", "--input", "a.jsonl", "--output", "out.jsonl"]) == 2
    assert capsys.readouterr().err == "error: --input: expected a file or folder at a.jsonl, found nothing.\n"
