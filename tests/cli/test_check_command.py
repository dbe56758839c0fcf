"""`holdfast check`: the words that it takes, what it prints, and its exit codes."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from data_files import jsonl
from holdfast.cli.main import main
from tiny import SENTENCES, build_model, build_tokenizer


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, rows and a request."""
    monkeypatch.chdir(tmp_path)
    build_model().save_pretrained("start")
    build_tokenizer().save_pretrained("start")
    jsonl("rows.jsonl", [{"text": text, "id": number} for number, text in enumerate(SENTENCES)])
    Path("run.yaml").write_text(
        "model_name_or_path: start\ndataset_name: rows.jsonl\nmax_length: 64\nuse_cpu: true\nreport_to: none\n"
    )
    return tmp_path


def test_a_check_is_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (["check", "run.yaml"], ["train", "--config", "run.yaml", "--dry_run"]):
        assert main([*words, "--learning_rate", "1e-5", "--quick"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "learning rate 1e-05" in texts[0] and "Not read: id (6 rows)." in texts[0]
    assert main(["check", "run.yaml", "--flops_per_second", "1e9"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith("The request is sound; nothing was trained.")
        and "if each process does 1e+09 operations per second" in said
    )
    assert not Path("runs").exists()


def test_a_check_leaves_the_heap_that_its_caller_froze() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert main(["check", "run.yaml", "--quick"]) == 0
    assert gc.get_freeze_count() > frozen / 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to check: expected a training configuration"),
        (["absent.yaml"], "absent.yaml: no such file"),
        (["run.yaml", "--model_name_or_path", "absent"], "model_name_or_path: no such folder: absent"),
        (["run.yaml", "--model_name_or_path", "owner/absent"], "no such model in the hub's cache"),
        (["run.yaml", "--quick", "maybe"], "quick: expected true or false"),
        (["run.yaml", "--dry_run"], "unknown option '--dry_run'"),
    ],
)
def test_bad_words_are_exit_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_model_without_weights_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("start/model.safetensors").unlink()
    assert main(["check", "run.yaml"]) == 2
    assert "start" in capsys.readouterr().err


def test_options_of_the_check_go_with_a_dry_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "run.yaml", "--quick"]) == 2
    assert "--quick: has an effect only with --dry_run" in capsys.readouterr().err
    assert main(["check", "--help"]) == 0
    text = capsys.readouterr().out
    assert "holdfast check run.yaml --for gpu" in text and "--quick" in text
