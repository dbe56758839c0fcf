"""`holdfast diagnose` at the command line: what it takes, what it refuses, and that all mistakes come at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    Path("text.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    Path("q.jsonl").write_text(json.dumps({"prompt": "a", "options": [" b", " c"], "answer": 0}) + "\n")
    Path("base").mkdir()
    Path("base", "config.json").write_text("{}")
    Path("base", "model.safetensors").write_bytes(b"")


ASKED = ["diagnose", "--base", "base", "--corpus", "text.jsonl", "--keep", "{multiple_choice: q.jsonl}"]
ON_CPU = ["--restore", "{use_cpu: true}"]


@pytest.mark.parametrize("more", ["", ", packing: true"])
@pytest.mark.parametrize("remedy", ["label_annealing", "{label_annealing: {weight: 3}}"])
def test_raw_data_in_one_command(more: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    train = f"{{dataset_name: chats.jsonl, num_train_epochs: 2{more}}}"
    request = [*ASKED, *ON_CPU, "--train", train, "--with_retention", remedy, "--dry_run"]
    assert main(request) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(". ")[2] for line in lines[:-1]] == [
        "measuring the base",
        "fine-tuning: direct",
        "choosing the text to restore on",
        "restoring the base (control)",
        *(f"restoring direct, checkpoint {k}" for k in (1, 2)),
        "fine-tuning: remedy",
        *(f"restoring remedy, checkpoint {k}" for k in (1, 2)),
    ]
    assert lines[-1] == "Folder: runs/diagnosis" and not Path("runs").exists(), "a dry run leaves nothing"


def test_all_mistakes_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    request = ["--base", "", "--tolerance", "-1", "--margin", "much", "--seed", "x", "--curves", "3"]
    assert main(["diagnose", *request]) == 2
    shown = capsys.readouterr().err
    for part in ("--tolerance", "--margin", "--seed", "--curves"):
        assert part in shown
    assert "Did you mean '--curve'?" in shown
    assert main([*ASKED, "--train", "chats.jsonl", "--with_retention", "labl_annealing", *ON_CPU]) == 2
    assert "unknown method 'labl_annealing'" in capsys.readouterr().err
    assert main(["diagnose", "--base", "base", "--tuned", "one", "two", "--corpus", "no.txt", "--tokens", "9"]) == 2
    shown = capsys.readouterr().err
    assert "keep: is missing" in shown


def test_an_entry_at_the_command_line_is_what_it_would_be_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a task that has the mapping's text for a name, which would be missed hours later."""
    request = ["diagnose", "--base", "base", "--corpus", "text.jsonl", "--train", "chats.jsonl", *ON_CPU, "--dry_run"]
    assert main([*request, "--keep", "{multiple_choice: q.jsonl}", "arc_easy"]) == 0
    capsys.readouterr()
    assert main([*request, "--keep", "{perplexity: text.jsonl}"]) == 2
    assert "at least one entry with right and wrong answers" in capsys.readouterr().err
    assert main([*request, "--keep", "{multiple_choice: none.jsonl}"]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert main([*request, "--keep", "{multiple_choice: "]) == 2
    assert "--keep" in capsys.readouterr().err
