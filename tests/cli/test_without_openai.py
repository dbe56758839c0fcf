"""Without the package `openai` everything that asks a language model says so at once, with the line that installs it,
before a model is loaded or a file is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from tiny import build_model, build_tokenizer

LINE = "pip install 'holdfast[judge]'"
BASE_URL = "http://localhost:1/v1"


@pytest.fixture
def place(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the commands name; no model can be loaded, and there is no `openai`."""
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.chdir(tmp_path)

    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a model is loaded")

    for name in ("holdfast.models.from_pretrained", "holdfast.models.load", "holdfast.runs.loading.load_model"):
        monkeypatch.setattr(name, load)
    (tmp_path / "model").symlink_to(model_folder)
    build_model(seed=1).save_pretrained(tmp_path / "other")
    build_tokenizer().save_pretrained(tmp_path / "other")
    for name, row in {
        "train": {"text": "Rome is the capital of Italy."},
        "prompts": {"instruction": "Say something."},
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    evaluation = {"learn": [{"win_rate": "prompts.jsonl", "judge_model": "judge", "base_url": BASE_URL}]}
    train = {"model_name_or_path": "model", "dataset_name": "train.jsonl", "evaluation": evaluation, "use_cpu": True}
    files: dict[str, Any] = {
        "train": {**train, "output_dir": "out"},
        "suite": {"evaluation": evaluation},
        "update": {"base": "model", "instruct": "other", "corpus": ["train.jsonl"], "evaluation": evaluation},
        "sweep": {
            "train": {**train, "evaluation": {**evaluation, "keep": ["train.jsonl"]}},
            "vary": {"learning_rate": [1e-5]},
        },
    }
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--config", "train.yaml"],
        ["train", "--config", "train.yaml", "--dry_run", "--quick"],
        ["evaluate", "model", "--suite", "suite.yaml", "--output_dir", "out"],
        ["update", "--config", "update.yaml", "--output_dir", "out"],
        ["sweep", "--config", "sweep.yaml", "--output_dir", "out"],
    ],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_a_command_says_so_at_once(words: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert "needs the package openai, which is not installed" in " ".join(shown.err.split()), shown.err
    assert LINE in " ".join(shown.err.split()) and "Traceback" not in shown.err
    assert not (place / "out").exists()
