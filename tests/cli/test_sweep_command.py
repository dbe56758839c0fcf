"""`holdfast sweep` as typed: help, mistakes, the dry run, and what it says of studies that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from data_files import text_rows
from holdfast.cli.main import main
from holdfast.studies.engine.session import kind_name
from holdfast.studies.engine.storage import KIND, Storage
from holdfast.studies.sweep.session import SweepStudy
from holdfast.studies.sweep.study import load_study
from tiny import SENTENCES, build_model, build_tokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("place")
    build_model().save_pretrained(found / "base")
    build_tokenizer().save_pretrained(found / "base")
    for name in ("train", "prose", "code"):
        text_rows(found / f"{name}.jsonl", SENTENCES)
    return found


@pytest.fixture
def study(place, tmp_path, monkeypatch) -> Path:
    """A study file in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORAGE", raising=False)
    train = {
        "model_name_or_path": str(place / "base"),
        "dataset_name": str(place / "train.jsonl"),
        "max_steps": 2,
        "use_cpu": True,
        "evaluation": {"keep": [str(place / "prose.jsonl")], "learn": [str(place / "code.jsonl")]},
    }
    Path("study.yaml").write_text(
        yaml.safe_dump({"train": train, "arms": [{"l2": {"coefficient": [0.01, 0.1]}}], "seeds": [0, 1]})
    )
    return Path("study.yaml")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["wroker"], "unknown 'holdfast sweep wroker'. Did you mean 'worker'?"),
        (["--config", "nowhere.yaml"], "no such file"),
        (["--config", "study.yaml", "--worker", "2"], "unknown option '--worker'. Did you mean '--workers'?"),
        (["--config", "study.yaml", "--seeds", "1", "1"], "seeds: expected different whole numbers"),
        (
            ["--config", "study.yaml", "--storage", "postgresql://me:s3cr3t@127.0.0.1:9/db"],
            "The storage postgresql://127.0.0.1:9/db does not answer",
        ),
        (
            ["status", "--storage", "sqlite:///nowhere.db", "--study", "x"],
            "found no nowhere.db.",
        ),
        (["worker", "--grace", "0"], "--grace: expected a number above 0, got '0'"),
    ],
)
def test_mistakes(words, printed, study, capsys):
    assert main(["sweep", *words]) in (1, 2)
    shown = capsys.readouterr().err
    assert printed in shown
    assert "s3cr3t" not in shown
    assert not Path("runs/study/runs").exists()


def test_a_dry_run_lists_the_trials(study, capsys):
    assert main(["sweep", "--config", "study.yaml", "--dry_run"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "learn: code",
        "L2, coefficient 0.01",
        "6 fine-tuning runs in all",
        "runs/study",
    ):
        assert words in printed
    assert not Path("runs").exists()


def test_status_of_a_study_that_waits(study, capsys):
    config = load_study(study)
    storage = Storage(config.storage)
    storage.open_study(config).set_user_attr(KIND, kind_name(SweepStudy))
    assert main(["sweep", "status", "runs/study"]) == 0
    assert "3 waiting" in capsys.readouterr().out
    assert main(["sweep", "status", "runs/study", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [t["state"] for t in record["trials"]] == ["waiting"] * 3
    assert main(["sweep", "status", "--storage", config.storage]) == 0
    assert main(["sweep", "report", "runs/study"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main(["report", "runs/study"]) == 0
    assert main(["sweep", "report", "runs/study", "--rule", "kne"]) == 2
    assert "Did you mean 'knee'?" in capsys.readouterr().err
    storage.close()
