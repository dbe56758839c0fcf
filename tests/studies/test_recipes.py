"""The studies that ship with a small setting are sound as they stand: nobody has to bring a file to run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
# overtraining studies stand on a ladder that another command makes
COMMANDS = {
    "ladder": ["ladder", "train"],
    "leaderboard": ["leaderboard", "run"],
    "sequence": ["sequence"],
    "stages": ["diagnose"],
    "study": ["residual", "study"],
    "sweep": ["sweep"],
}


def _recipes() -> list[tuple[str, str]]:
    found = []
    for file in sorted(ROOT.glob("configs/**/*.yaml")):
        text = file.read_text(encoding="utf-8")
        kind = re.search(r"schemas/(\w+)\.schema\.json", text)
        if kind and kind[1] in COMMANDS and re.search(r"^\s*small: \w", text, re.MULTILINE):
            found.append((kind[1], file.relative_to(ROOT).as_posix()))
    return found


@pytest.mark.parametrize(("kind", "file"), _recipes())
def test_a_recipe_that_needs_no_files_is_sound(kind, file, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main([*COMMANDS[kind], "--config", file, "--dry_run"]) == 0, capsys.readouterr().err
