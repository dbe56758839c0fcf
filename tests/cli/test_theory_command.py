"""`holdfast theory`: subjects, the tables, the files, exit codes, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from holdfast.cli import theory
from holdfast.cli.main import main
from holdfast.support.files import read_json
from holdfast.theory import averaging_study, overtraining_study, regression_study
from holdfast.theory.averaging_settings import AveragingSettings
from holdfast.theory.averaging_study import AveragingStudy, run_averaging
from holdfast.theory.overtraining_settings import OvertrainingSettings
from holdfast.theory.overtraining_study import OvertrainingStudy, run_overtraining
from holdfast.theory.regression_study import RegressionSettings, RegressionStudy, run_regression

SMALL = ["--dimension", "12", "--pretrain_rows", "7", "--finetune_rows", "4", "--seeds", "3", "--lambdas", "0.1", "1"]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and the command where `holdfast` looks for it."""
    from holdfast.cli import main as main_module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    monkeypatch.setitem(main_module.COMMANDS, "theory", ("holdfast.cli.theory", "the papers' theories"))
    return tmp_path


def test_subjects_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory"]) == 2
    listed = capsys.readouterr().out
    assert main(["theory", "--help"]) == 0
    assert capsys.readouterr().out == listed
    assert all(f"  {name} " in listed for name in theory.SUBJECTS)


def test_a_subject_with_a_typo_gets_its_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "regresion"]) == 2
    assert "unknown subject 'regresion'. Did you mean 'regression'? Known: regression" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "regression", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        option in shown
        for option in (
            "--overlap",
            "--decay",
            "--lambdas",
            "--seeds",
            "--json",
            "examples",
            "exit code",
            "Memory Retaining Finetuning, section 4",
        )
    )


def test_tables_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "regression", *SMALL]) == 0
    shown = capsys.readouterr().out
    expected = run_regression(
        RegressionSettings(dimension=12, pretrain_rows=7, finetune_rows=4, seeds=3, weights=(0.1, 1.0))
    )
    for check in expected.checks:
        assert check.name in shown
    assert "All 14 statements of the theory hold." in shown
    assert f"{expected.middle.ratio.value:.3f} [" in shown and expected.middle.verdict in shown
    assert "theory/regression.json" in shown and "theory/regression.html" in shown
    record = read_json("theory/regression.json")
    found = RegressionStudy.from_json(record)
    assert dataclasses.replace(found, seconds=0.0) == dataclasses.replace(expected, seconds=0.0)
    assert (
        set(record["versions"]) == {"python", "holdfast", "numpy", "scipy"}
        and record["created"]
        and record["hardware"]["cores"]
    )
    assert Path("theory/regression.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_on_stdout_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "regression", *SMALL, "--json", "--output_dir", "deep/here"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(Path("deep/here/regression.json").read_text())
    assert "deep/here/regression.html" in captured.err


def test_options_from_a_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text(
        "dimension: 12\npretrain_rows: 7\nfinetune_rows: 4\nlambdas: [0.5, 2]\nseeds: 2\ndecay: 1.5\njson: true\n"
    )
    assert main(["theory", "regression", "--config", "a.yaml", "--seeds", "3"]) == 0
    setting = json.loads(capsys.readouterr().out)["setting"]
    assert (setting["weights"], setting["seeds"], setting["decay"]) == ([0.5, 2.0], 3, 1.5)


def test_a_failed_statement_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sound = regression_study.checks

    def one_fails(*arguments):
        first, *rest = sound(*arguments)
        return [dataclasses.replace(first, passed=False, value=0.5, note="[red]a note[/red]"), *rest]

    monkeypatch.setattr(regression_study, "checks", one_fails)
    assert main(["theory", "regression", *SMALL]) == 1
    shown = capsys.readouterr().out
    assert "13 of 14 statements" in shown and "fails" in shown and "[red]a note[/red]" in shown and "5.0e-1" in shown
    assert Path("theory/regression.html").is_file()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            [
                "--dimension",
                "x",
                "--pretrain_rows",
                "500",
                "--overlap",
                "2",
                "--noise",
                "-1",
                "--lambdas",
                "0",
                "--seeds",
                "0",
                "--sedes",
                "3",
            ],
            [
                "--dimension: expected a whole number of at least 2, got 'x'",
                "--overlap: expected a number of at least 0 and at most 1, got '2'",
                "--noise: expected",
                "--lambdas[0]: expected",
                "--seeds: expected a whole number of at least 1, got '0'",
                "Did you mean '--seeds'?",
                "7 problems",
            ],
        ),
        (
            ["--dimension", "10", "--pretrain_rows", "10", "--finetune_rows", "11"],
            [
                "--pretrain_rows: expected 1 to 9, fewer than the dimension (10), got 10",
                "--finetune_rows: expected 1 to 9",
            ],
        ),
        (
            ["--overlap", "0", "--finetune_rows", "90"],
            ["--overlap: 0 puts all fine-tuning rows outside", "Give at most 80 rows"],
        ),
        (["--lambdas", "1", "two"], ["--lambdas[1]: expected a number above 0, got 'two'"]),
        (["--output_dir", "taken"], ["--output_dir: expected a folder, got the file taken"]),
        (
            ["--tolerance", "2", "--most_steps", "0"],
            [
                "--tolerance: expected a number above 0 and below 1",
                "--most_steps: expected a whole number of at least 1",
            ],
        ),
        (["--config", "none.yaml"], ["none.yaml: no such file"]),
        (["--overlap", "1", "--shift", "0", "--noise", "0"], ["Expected something to learn"]),
    ],
    ids=lambda v: " ".join(v)[:50] if isinstance(v, list) else "",
)
def test_mistakes(words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("")
    assert main(["theory", "regression", *words]) == 2
    captured = capsys.readouterr()
    for part in parts:
        assert part in captured.err, captured.err
    assert captured.out == "" and not Path("theory").exists()


# ------------------------------------------------------------------------------------------------------------ averaging

LITTLE = ["--dimension", "8", "--steps", "60", "--seeds", "3", "--p", "0.5", "0.1", "--lambdas", "0.1", "1"]


def test_averaging_writes_tables_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "averaging", *LITTLE]) == 0
    shown = capsys.readouterr().out
    expected = run_averaging(AveragingSettings(dimension=8, steps=60, seeds=3, p=(0.5, 0.1), lambdas=(0.1, 1.0)))
    for part in (*expected.checks, *expected.statements):
        assert part.name in shown
    for statement in expected.statements:
        assert statement.verdict in shown and f"{statement.ratio.value:.3f} [" in shown
    assert "All 10 identities hold." in shown
    record = read_json("theory/averaging.json")
    assert record["command"] == "theory averaging" and "theory/averaging.html" in shown
    found = AveragingStudy.from_json(record)
    assert dataclasses.replace(found, seconds=0.0) == dataclasses.replace(expected, seconds=0.0)
    assert Path("theory/averaging.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not Path("theory/regression.json").exists()


def test_averaging_as_json_with_options_from_a_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text("dimension: 6\np: [0.2]\nbeta: 0.3\nseeds: 2\nsteps: 50\njson: true\n")
    assert main(["theory", "averaging", "--config", "a.yaml", "--rotation", "0.5"]) == 0
    captured = capsys.readouterr()
    setting = json.loads(captured.out)["setting"]
    assert (setting["p"], setting["beta"], setting["rotation"], setting["steps"]) == ([0.2], 0.3, 0.5, 50)
    assert "theory/averaging.html" in captured.err


def test_a_failed_identity_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(averaging_study, "averaging_of", lambda rate, coefficient: (rate, rate * coefficient))
    assert main(["theory", "averaging", *LITTLE]) == 1
    shown = capsys.readouterr().out
    assert "7 of 10 identities hold." in shown and "fails" in shown
    assert Path("theory/averaging.html").is_file()


def test_a_statement_that_does_not_hold_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "averaging", "--dimension", "16", "--steps", "100", "--alignment", "0", "--seeds", "8"]) == 0
    assert "does not hold" in capsys.readouterr().out


def test_mistakes_in_averaging(capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("")
    words = ["--beta", "1", "--p", "1", "--alignment", "2", "--steps", "0", "--output_dir", "taken", "--roation", "1"]
    assert main(["theory", "averaging", *words]) == 2
    shown = capsys.readouterr().err
    for part in (
        "--beta: expected a number above 0 and below 1, got '1'",
        "--p[0]: expected a number above 0 and below 1, got '1'",
        "--alignment: expected",
        "--steps: expected a whole number of at least 1 and at most 10000, got '0'",
        "Did you mean '--rotation'?",
    ):
        assert part in shown, shown
    assert main(["theory", "averaging", "--output_dir", "taken"]) == 2
    assert "--output_dir: expected a folder, got the file taken" in capsys.readouterr().err
    assert main(["theory", "averaging", "--steps", "1"]) == 2
    assert "direct fine-tuning leaves" in capsys.readouterr().err
    assert not Path("theory").exists()


# --------------------------------------------------------------------------------------------------------- overtraining

FEW = ["--dimension", "3", "--tau", "60", "--seeds", "3", "--gammas", "0.1", "0.3", "--lambdas", "1"]


def test_overtraining_writes_tables_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "overtraining", *FEW]) == 0
    shown = capsys.readouterr().out
    expected = run_overtraining(OvertrainingSettings(dimension=3, tau=60, seeds=3, gammas=(0.1, 0.3), lambdas=(1.0,)))
    for part in (*expected.checks, *expected.statements):
        assert part.name in shown
    for statement in expected.statements:
        assert statement.verdict in shown and f"{statement.ratio.value:.3f} [" in shown
    assert "All 13 closed forms hold." in shown
    record = read_json("theory/overtraining.json")
    assert record["command"] == "theory overtraining" and "theory/overtraining.html" in shown
    found = OvertrainingStudy.from_json(record)
    assert dataclasses.replace(found, seconds=0.0) == dataclasses.replace(expected, seconds=0.0)
    assert Path("theory/overtraining.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_overtraining_as_json_with_options_from_a_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text("dimension: 2\ntau: 30\nseeds: 2\ngammas: [0.2]\njson: true\n")
    assert main(["theory", "overtraining", "--config", "a.yaml", "--spread", "0.5"]) == 0
    captured = capsys.readouterr()
    setting = json.loads(captured.out)["setting"]
    assert (setting["gammas"], setting["tau"], setting["spread"]) == ([0.2], 30.0, 0.5)
    assert "theory/overtraining.html" in captured.err


def test_a_failed_closed_form_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overtraining_study, "minimiser", lambda tasks, weight: tasks.finetuning + 0 * weight[:, None])
    assert main(["theory", "overtraining", *FEW]) == 1
    assert "fails" in capsys.readouterr().out
    assert Path("theory/overtraining.html").is_file()


def test_mistakes_in_overtraining(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ratio", "1", "--tau", "nan", "--lambdas", "0", "--gammas", "x", "--flatnes", "1", "--dimension", "99"]
    assert main(["theory", "overtraining", *words]) == 2
    shown = capsys.readouterr().err
    for part in (
        "--ratio: expected a number above 0 and below 1, got '1'",
        "--tau: expected a number above 0 and at most 300, got 'nan'",
        "--lambdas[0]: expected a number above 0 and at most 100, got '0'",
        "--gammas[0]: expected a number above 0 and at most 10, got 'x'",
        "--dimension: expected a whole number of at least 2 and at most 32",
        "Did you mean '--flatness'?",
    ):
        assert part in shown, shown
    Path("taken").write_text("")
    assert main(["theory", "overtraining", "--output_dir", "taken", "--tau", "2"]) == 2
    shown = capsys.readouterr().err
    assert "--output_dir: expected a folder, got the file taken" in shown and "--tau: expected at least" in shown
    assert not Path("theory").exists()
