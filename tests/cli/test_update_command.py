"""`holdfast update` and `holdfast study` of the residual at the command line: help, a dry run, and mistakes."""

from __future__ import annotations

import pytest
import yaml

from data_files import jsonl
from holdfast.cli.main import main
from tiny import SENTENCES, build_model


@pytest.fixture(scope="module")
def models(tmp_path_factory, tokenizer):
    root = tmp_path_factory.mktemp("models")
    for name in ("base", "instruct"):
        model = build_model()
        if name == "instruct":
            for p in model.parameters():
                p.data.mul_(1.001)
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    jsonl(root / "news.jsonl", [{"text": f"{s} {i}", "date": "2024-02-01"} for i, s in enumerate(SENTENCES * 4)])
    return root


def test_a_dry_run_checks_and_makes_nothing(models, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "--base",
        str(models / "base"),
        "--instruct",
        str(models / "instruct"),
        "--corpus",
        str(models / "news.jsonl"),
        "--tokens",
        "1k",
    ]
    assert (
        main(["update", *words, "--continued_instruct", "--train", "learning_rate=1e-5", "use_peft=true", "--dry_run"])
        == 0
    )
    out = capsys.readouterr().out
    assert "base + 1k tokens + residual" in out and "instruct + 1k tokens" in out and "1k tokens" in out
    assert "To see what was kept, add evaluation:" in out
    assert list(tmp_path.iterdir()) == []


def test_mistakes_of_the_command_line_come_together(models, tmp_path, capsys):
    words = [
        "--base",
        str(models / "base"),
        "--instruct",
        str(models / "instrut"),
        "--corpus",
        str(models / "nws.jsonl"),
        "--tokens",
        "some",
        "--train",
        "oops",
        "--evaluation",
        "instruction_residul",
        "--kepp",
        "all",
    ]
    assert main(["update", *words]) == 2
    err = capsys.readouterr().err
    for expected in (
        "instrut",
        "Did you mean",
        "nws.jsonl",
        "tokens: expected a number of tokens",
        "--train: 'oops': expected KEY=VALUE, a mapping or a YAML file",
        "unknown suite 'instruction_residul'",
        "unknown option '--kepp'",
    ):
        assert expected in err, expected


def test_a_yaml_and_the_command_line_which_wins(models, tmp_path, capsys):
    request = {
        "base": str(models / "base"),
        "instruct": str(models / "instruct"),
        "corpus": [str(models / "news.jsonl")],
        "tokens": "1k",
        "train": {"learning_rate": 1e-4},
        "output_dir": str(tmp_path / "out"),
    }
    (tmp_path / "update.yaml").write_text(yaml.safe_dump(request))
    assert main(["update", "--config", str(tmp_path / "update.yaml"), "--tokens", "2k", "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "base + 2k tokens" in out and str(tmp_path / "out") in out
    (tmp_path / "update.yaml").write_text(yaml.safe_dump({**request, "tokns": "1k"}))
    assert main(["update", "--config", str(tmp_path / "update.yaml"), "--dry_run"]) == 2
    assert "unknown key 'tokns'. Did you mean 'tokens'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("after", "yesterday", "after: expected a date such as 2024-01-15, got 'yesterday'"),
        ("undated", "drp", "undated: expected one of auto, keep, drop, got 'drp' (text). Did you mean 'drop'?"),
    ],
)
def test_bounds_of_what_is_read_and_tried(models, tmp_path, capsys, key, value, problem):
    """An update and a study refuse alike, before a document is read."""
    pair = {"base": str(models / "base"), "instruct": str(models / "instruct")}
    for command, request in ((["update"], pair), (["study", "run"], {"families": {"a": pair}})):
        (tmp_path / "r.yaml").write_text(yaml.safe_dump({**request, "corpus": str(models / "news.jsonl"), key: value}))
        assert main([*command, "--config", str(tmp_path / "r.yaml"), "--dry_run"]) == 2
        assert problem in capsys.readouterr().err


def test_a_study_lists_its_models(models, tmp_path, capsys):
    study = {
        "families": {n: {"base": str(models / "base"), "instruct": str(models / "instruct")} for n in ("a", "b")},
        "output_dir": str(tmp_path),
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    assert main(["study", "run", str(tmp_path / "s.yaml"), "--dry_run"]) == 0
    assert "a base + b residual" in capsys.readouterr().out
