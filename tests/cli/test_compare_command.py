"""`holdfast compare`: what names a model, what is written, how the gate ends, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from evaluation.test_compare_folders import TEXT, answers, texts, write, write_average
from holdfast.cli.main import main
from holdfast.records.comparison import Comparison, Decision, Shown
from holdfast.records.evaluation import EvaluationRecord
from holdfast.records.run import RunFolder, RunRecord
from holdfast.reports.decision_text import decision_in_words
from holdfast.support.files import read_json, write_json


def measure(folder: Path, shift: float) -> None:
    """A quiz whose answers follow one difficulty, prose, and an average of the quiz and a second one."""
    hard = np.random.default_rng(0).random((2, 300))
    for number, name in enumerate(("quiz", "riddles")):
        write(folder, "keep", name, answers((hard[number] < 0.6 + shift).astype(float)), batch_size=8)
    nats = 30 - 10 * shift + np.random.default_rng(1).normal(0, 1, 40)
    write(folder, "learn", "prose", texts(nats), metrics=TEXT, kind="perplexity")
    write_average(folder, [("keep", "quiz", "acc"), ("keep", "riddles", "acc")], name="average")


def measured_output(path: Path, shifts: dict[str, float], status: str = "finished") -> None:
    for label, shift in shifts.items():
        measure(path / label, shift)
    write_json(path / "evaluate.json", EvaluationRecord(models=[{"label": label} for label in shifts], status=status))


def measured_run(path: Path, name: str, shift: float, *, start: bool = True, status: str = "finished") -> None:
    folder = RunFolder(path)
    folder.write(RunRecord(name=name, status=status))
    if start:
        measure(folder.evaluated("start").path, 0.0)
    measure(folder.evaluated("result").path, shift)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    measured_output(folder / "two", {"base": 0.0, "tuned": -0.2})
    measured_output(folder / "three", {"base": 0.0, "math": 0.1, "law": -0.1})
    measured_output(folder / "one", {"only": 0.0}, status="interrupted")
    measured_run(folder / "runs" / "direct", "direct", -0.2)
    measured_run(folder / "runs" / "kept", "kept", 0.0, status="interrupted")
    measured_run(folder / "runs" / "late", "late", 0.0, start=False)
    return folder


@pytest.fixture
def here(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(measured)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return measured


FEW = ("--resamples", "200")


def call(*words: str) -> int:
    return main(["compare", *words, *FEW])


# ----------------------------------------------------------------------------------------------- what names a model


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["three", "two:base"], ["three has 3 models. Name the one to compare: three:base, three:math, three:law"]),
        (["two:bse", "two:tuned"], ["two has no model 'bse'. Did you mean 'base'? It has: two:base, two:tuned"]),
        (
            ["runs/dircet", "twoo:base"],
            [
                "no such file or folder: runs/dircet. Did you mean 'direct'",
                "no such file or folder: twoo:base. Did you mean 'two'",
            ],
        ),
        (["runs", "two:base"], ["found neither. Inside are: runs/direct, runs/kept, runs/late"]),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_words_that_name_no_two_models(here, words, parts, capsys):
    assert call(*words) == 2
    shown = capsys.readouterr().err
    for part in parts:
        assert part in shown, shown


def test_models_that_were_not_measured_say_what_to_do(here, tmp_path, capsys):
    for name in ("base", "tuned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    base, tuned = str(tmp_path / "base"), str(tmp_path / "tuned")
    assert call(base, tuned) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert f"add a suite (shipped or your own): 'holdfast compare {base} {tuned} --suite knowledge'" in shown
    assert call("two:base", tuned) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "is a model that was not measured" in shown and f"'holdfast compare two:base {tuned} --suite" in shown
    assert call(tuned) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert f"'holdfast compare BASE {tuned} --suite" in shown
    assert call("Qwen/Qwen3-0.6B", "two:base") == 2
    assert "measure it first: 'holdfast evaluate Qwen/Qwen3-0.6B'" in " ".join(capsys.readouterr().err.split())


# --------------------------------------------------------------------------------------------------------------- output


def test_all_files_are_there_though_the_gate_fails(here, tmp_path, capsys):
    out, comment = tmp_path / "deep" / "out", tmp_path / "comment.md"
    rules = ("--fail-if", "quiz drop > 50pt", "--fail-if", "quiz drop > 1pt")
    assert call("two", "--output-dir", str(out), "--markdown", str(comment), *rules) == 3
    found = read_json(out / "comparison.json")
    names = [("keep", "average"), ("keep", "quiz"), ("keep", "riddles"), ("learn", "prose")]
    assert sorted((c["suite"], c["name"]) for c in found["comparisons"]) == names
    assert all(Comparison.from_json(c).confidence == 0.95 for c in found["comparisons"])
    assert found["rules"] == [
        {"rule": "quiz drop > 50pt", "outcome": "passed", "failed": False},
        {"rule": "quiz drop > 1pt", "outcome": "failed", "failed": True},
    ]
    suite = ET.parse(out / "comparison.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "1")
    decision = {**found["decision"], "shown": [Shown(**shown) for shown in found["decision"]["shown"]]}
    assert suite.find("system-out").text == decision_in_words(Decision(**decision)), "words and numbers of one decision"
    assert not (out / "comparison.md").exists()


# ----------------------------------------------------------------------------------------------------------------- gate


@pytest.mark.parametrize(
    ("options", "code", "parts"),
    [
        (["--fail-if", "quiz drop > 1pt"], 3, ["FAIL       quiz drop > 1pt"]),
        (["--fail-if", "quiz drop > 50pt", "--strict"], 0, ["PASS       quiz drop > 50pt"]),
        (["--fail-if", "quiz drop > 20pt"], 0, ["UNDECIDED  quiz drop > 20pt"]),
        (["--fail-if", "quiz drop > 20pt", "--strict"], 3, ["UNDECIDED  quiz drop > 20pt, which counts as failed"]),
        (
            ["--fail-if", "any drop > 2%"],
            3,
            ["FAIL       any drop > 2% (4 of 4)", "smallest adjusted p of 4 tests: below 0.001; Holm, one-sided"],
        ),
        (["--fail-if", "prose perplexity rise > 3%"], 3, ["learn/prose perplexity: rise 22"]),
    ],
)
def test_the_gate(here, options, code, parts, capsys):
    assert call("two", *options) == code
    shown = " ".join(capsys.readouterr().out.split("\n"))
    assert all(part in shown for part in parts), shown


def test_a_folder_with_the_weights_of_two_models_is_refused(here, tmp_path, capsys):
    for label in ("a", "b"):
        for entry in ("quiz", "riddles"):
            write(tmp_path / label, "keep", entry, answers([1, 0]), model=label)
    write(tmp_path / "a", "keep", "riddles", answers([1, 1]), model="other")
    for words in ([tmp_path / "a", tmp_path / "b"], [tmp_path / "b", tmp_path / "a"]):
        assert call(*map(str, words)) == 2
        shown = capsys.readouterr().err
        assert f"expected evaluations of one model in {tmp_path / 'a'}, got evaluations of different weights" in shown
        assert "keep/quiz of a; keep/riddles of other" in shown


def test_a_margin_in_a_unit_that_no_metric_has(here, capsys):
    assert call("two", "--margin", "1 nats/tokn", "--fail-if", "qiuz drop > 1pt") == 2
    shown = capsys.readouterr().err
    assert "2 problems" in shown
    assert "--margin: no compared metric has the unit 'nats/tokn'. Did you mean 'nats/token'? Known: accuracy," in shown
    assert call("two", "--margin", "0.02 nats/token", "--margin", "0.02 accuracy", "--margin", "1%") == 0
    assert call("two/base", "three/math", "--margin", "0.01 bits/byte") == 0


def test_mistakes_show_at_once_and_before_the_work(here, monkeypatch, capsys):
    from holdfast.evaluation.compare import folders as compare_folders

    monkeypatch.setattr(compare_folders, "compare_entries", lambda *a, **k: pytest.fail("the work began"))
    assert main(["compare", "two", "--fail-if", "quiz drop", "--html", "a.png", "--junit", "-"]) == 2
    shown = capsys.readouterr().err
    for part in ("rule 'quiz drop'", "ends with .html, got a.png", "expected a file, got -"):
        assert part in shown, shown
    assert (
        call("two", "--fail-if", "qiuz drop > 1pt", "--fail-if", "prose drop > 1pt", "--fail-if", "quiz drop > 1pt")
        == 2
    )
    shown = capsys.readouterr().err
    assert "2 problems" in shown and "Did you mean 'quiz'?" in shown and "points (pt) apply to shares" in shown
    assert call("two", "--strict") == 2
    assert "so it needs a rule: add one" in capsys.readouterr().err
    assert main(["compare", "two", "--json", "-", "--markdown", "-"]) == 2
    assert "only one of" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ the rest


def test_it_does_without_torch(here, tmp_path):
    """In a fresh process, without a page."""
    code = (
        "import sys\nfrom holdfast.cli import compare\n"
        "words = ['two', '--resamples', '100', '--fail_if', 'any drop > 1%', '--markdown']\n"
        f"code = compare.run([*words, {str(tmp_path / 'a.md')!r}])\n"
        "print('code', code, *({'torch', 'transformers', 'lm_eval', 'plotly', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=here)
    assert done.stdout.splitlines()[-1] == "code 3"


# --------------------------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("entries: {quiz: 50pt}", 0, "SHIP"),
        ("entries: {quiz: 1pt}", 3, "HOLD"),
        ("entries: {quiz: 20pt}", 5, "CANNOT TELL"),
        ("entries: {quiz: 50pt, keep/mmlu: 1pt}", 3, "HOLD"),
        ("entries: {quiz: {margin: 1pt, tier: supporting}}\nsupporting_losses: 2", 0, "SHIP"),
        ("entries: {quiz: {teir: critical}}", 2, ""),
    ],
)
def test_a_policy_decides_how_it_ends(here: Path, tmp_path: Path, capsys, text: str, code: int, word: str):
    policy = tmp_path / "gate.yaml"
    policy.write_text(text)
    out = tmp_path / "out"
    assert call("two", "--policy", str(policy), "--output-dir", str(out)) == code
    if code == 2:
        assert "unknown key 'teir'. Did you mean 'tier'?" in capsys.readouterr().err
        return
    assert read_json(out / "comparison.json")["verdict"]["word"] == word
    assert f"**{word}**" in (out / "comparison.md").read_text()
    assert f">{word}</span>" in (out / "comparison.html").read_text()
    suite = ET.parse(out / "comparison.xml").getroot()[0]
    assert (int(suite.get("failures")) > 0) == (code != 0)
    assert f"{word}: " in " ".join(capsys.readouterr().out.split())


def test_accepting_asks_who_and_why_and_ends_as_accepted(here: Path, tmp_path: Path, capsys):
    policy = tmp_path / "gate.yaml"
    policy.write_text("entries: {quiz: 1pt}")
    words = ("two", "--policy", str(policy), "--accept", "quiz")
    assert call(*words) == 2
    assert "--accept: needs --by as well: who accepts the loss." in capsys.readouterr().err
    assert call("two", "--accept", "quiz", "--by", "Ada", "--because", "so") == 2
    assert "needs --policy" in capsys.readouterr().err
    assert call(*words, "--by", "Ada", "--because", "a smaller model") == 0
    assert "ACCEPTED" in capsys.readouterr().out
    assert call("two", "--policy", str(policy)) == 0
