"""`holdfast study`: the kind of a study comes from its file, its folder or its storage."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

from holdfast.cli import diagnose, sequence, sweep
from holdfast.cli import study as command
from holdfast.cli.main import main
from holdfast.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", command.STUDIES)
def test_the_keys_of_a_file_say_which_study_it_is(kind: str) -> None:
    files = sorted((ROOT / "configs" / kind).glob("*.yaml"))
    assert files
    assert {command.kind_of_file(file) for file in files} == {kind}


def test_a_file_of_another_study_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("vary: {learning_rate: [1e-4]}\n")
    with pytest.raises(ConfigError, match=r"expected the file of a ladder .* got vary"):
        command.kind_of_file(file)
    file.write_text("sizes: {}\nladder: x\n")
    with pytest.raises(ConfigError, match="the keys of ladder and overtraining"):
        command.kind_of_file(file)


def test_a_dry_run_lists_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    file = ROOT / "configs" / "ladder" / "tiny.yaml"
    for words in ([str(file)], ["--config", str(file)], [f"--config={file}"]):
        assert main(["study", "run", *words, "--dry_run"]) == 0
        assert "1. tokenising the text" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "FILE is missing"),
        (["statsu", "."], "Did you mean 'status'"),
        (["status", "nowhere"], "expected a study in nowhere"),
        (["run", "nowhere.yaml"], "no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_study_names_is_there() -> None:
    for study in (sweep.STUDY, sequence.STUDY, diagnose.STUDY, *command.STUDIES.values()):
        assert pkgutil.resolve_name(study.kind).config_class


def test_a_switch_with_another_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """In place of a study that runs where its jobs were to be listed."""
    file = ROOT / "configs" / "ladder" / "tiny.yaml"
    assert main(["study", "run", str(file), "--dry_run", "perhaps"]) == 2
    assert "--dry_run: expected true or false, got 'perhaps'" in capsys.readouterr().err
