"""What a notebook shows of a run, a comparison and a study."""

from __future__ import annotations

import html
import re
import subprocess
import sys

import pytest
from synthetic_runs import comparison

import holdfast
from holdfast.records.run import RunFolder
from holdfast.support import display


@pytest.fixture(autouse=True)
def at_home() -> None:
    """As after any use of a public name."""
    holdfast.train  # noqa: B018


def words_of(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text.replace("<wbr>", "")))).strip()


def test_a_run_shows_its_figures_and_its_folder(make_run) -> None:
    folder = make_run()
    shown = folder._repr_html_()
    assert "<table" in shown
    words = words_of(shown)
    assert "Qwen2.5-0.5B on medical answers (finished)" in words
    assert "−0.412 [−0.439, −0.386]" in words
    assert "lost" in words
    assert f"Folder {folder.path}" in words


def test_a_folder_without_a_run_says_so(tmp_path) -> None:
    assert words_of(RunFolder(tmp_path)._repr_html_()) == f"No run has begun in {tmp_path}."


def test_a_run_that_cannot_be_read_can_be_looked_at(tmp_path) -> None:
    (tmp_path / "run.json").write_text("{")
    assert RunFolder(tmp_path)._repr_html_() is None


def test_text_of_a_user_stays_text(make_run) -> None:
    shown = make_run(name="<img src=x>", comparisons=[comparison(name="<b>x</b>")])._repr_html_()
    assert "<img" not in shown
    assert "<b>x" not in shown
    assert "<b>x</b>" in words_of(shown)


def test_importing_holdfast_and_a_record_stays_light() -> None:
    script = (
        "import sys, holdfast; holdfast.RunFolder; "
        "print([m for m in ('torch', 'rich', 'holdfast.reports.displays') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_layer_of_reports_there_is_no_html(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(display, "_renderer", "")
    assert RunFolder(tmp_path)._repr_html_() is None
