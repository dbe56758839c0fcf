"""`holdfast reproduce`: its words, and what it hands on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import reproduce as command
from holdfast.errors import ConfigError, DataError, RunFolderError
from holdfast.papers.claims.registry import papers
from holdfast.papers.label_annealing import claims
from holdfast.papers.label_annealing import reproduction as study
from holdfast.papers.theory import overtraining
from holdfast.papers.theory.results import check
from holdfast.support.files import read_json


@pytest.fixture
def asked(monkeypatch):
    """What was handed on."""
    found: list[dict] = []
    monkeypatch.setattr(study, "reproduce", lambda **words: found.append(words) or [])
    return found


def test_everything_by_default(asked):
    assert command.run(["label-annealing"]) == 0
    words = {k: v for k, v in asked[0].items() if k != "console"}
    assert words == {
        "recipes": list(claims.RECIPES),
        "size": "small",
        "workers": None,
        "output_dir": Path("reproduce-label-annealing"),
    }


def test_options_are_handed_on(asked, tmp_path):
    assert (
        command.run(
            ["label_annealing", "--recipes", "math", "code", "--workers", "1", "--output-dir", str(tmp_path), "--quick"]
        )
        == 0
    )
    words = asked[0]
    assert (words["recipes"], words["workers"], words["output_dir"], words["size"]) == (
        ["math", "code"],
        1,
        tmp_path,
        "quick",
    )


def test_all_mistakes_at_once(asked):
    with pytest.raises(ConfigError) as caught:
        command.run(
            ["label-anealing", "--recipes", "maths", "--workers", "0", "--medium", "--quick", "--outputdir", "x"]
        )
    text = str(caught.value)
    recipes = [recipe for paper in papers().values() for recipe in paper.recipes]
    assert {"math", "budgets", "olmo_1b", "tasks", "world-0"} <= set(recipes)
    for expected in (
        "paper: expected one of label-annealing, overtraining, residual, sfa, stages, got 'label-anealing' (text). Did "
        "you mean 'label-annealing'?",
        f"--recipes: expected some of {', '.join(recipes)}, got 'maths' (text). Did you mean 'math'?",
        "at least 1, got '0'",
        "--quick: expected one size, got --quick and --medium",
        "--outputdir",
    ):
        assert expected in text
    assert not asked


def test_a_theory_is_computed_in_place_of_studies(asked, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.run(["overtraining", "--theory", "--quick"]) == 0
    assert "15 of 15 checks hold" in capsys.readouterr().out and not asked
    record = read_json("reproduce-overtraining-theory/theory.json")
    assert len(record["checks"]) == 15 and record["seeds"] == 4 and record["versions"]["holdfast"]
    assert Path("reproduce-overtraining-theory/theory.html").is_file()
    monkeypatch.setattr(overtraining, "checks", lambda models: [check("a", "b", (0, 1, 1))])
    assert command.run(["overtraining", "--theory", "--quick", "--output_dir", "elsewhere"]) == 1
    assert read_json("elsewhere/theory.json")["checks"][0]["passed"] is False


def test_a_world_is_not_written_into_a_folder_of_other_files(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="files that do not belong to a world"):
        command.run(["--world", "--quick", "--output_dir", str(tmp_path / "mine")])
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_claims_of_a_study_of_ones_own(tmp_path, capsys):
    """Any record of the paper's kind, by whatever names; a record of another kind is refused."""
    study_folder = Path(__file__).parents[2] / "docs" / "examples" / "real_stages"
    assert command.run(["stages", "--on", str(study_folder), "--output_dir", str(tmp_path)]) == 0
    record = read_json(tmp_path / "claims.json")
    by_number = {claim["number"]: claim for claim in record["claims"]}
    assert record["size"] == "study" and list(record["studies"]) == ["world-0"]
    assert by_number["2d"]["figures"][0]["n"] == "one world"
    assert "was not measured" not in " ".join(by_number["2d"]["parts"])
    assert "your own study" in (tmp_path / "claims.html").read_text(encoding="utf-8").replace("&#x27;", "'")
    with pytest.raises(DataError):
        command.run(["sfa", "--on", str(study_folder), "--output_dir", str(tmp_path)])
    with pytest.raises(DataError, match="none"):
        command.run(["sfa", "--on", str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="which runs nothing"):
        command.run(["sfa", "--on", str(study_folder), "--quick"])


def test_one_study_stands_for_several(tmp_path):
    study_folder = Path(__file__).parents[2] / "docs" / "examples" / "real_sequence"
    command.run(["sfa", "--recipes", "tasks", "three_tasks", "--on", str(study_folder), "--output_dir", str(tmp_path)])
    assert {claim["recipe"] for claim in read_json(tmp_path / "claims.json")["claims"]} == {"tasks", "three_tasks"}
    two = [str(study_folder), str(study_folder)]
    with pytest.raises(ConfigError, match="expected 1 study"):
        command.run(["sfa", "--recipes", "tasks", "--on", *two, "--output_dir", str(tmp_path)])
