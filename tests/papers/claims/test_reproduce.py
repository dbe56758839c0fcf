"""Reproducing a paper with studies that are only made up: what is run, what is not run again, what is said where
something is missing."""

from __future__ import annotations

import dataclasses
import math
import types
from pathlib import Path

import pytest

from claim_studies import paper_like
from holdfast.errors import ConfigError, HoldfastError, Interrupted
from holdfast.papers.claims import reproduction
from holdfast.papers.claims.claim import Claim
from holdfast.papers.claims.rules import UNKNOWN, ClaimFigure
from holdfast.papers.label_annealing.claims import RECIPES, STATEMENTS
from holdfast.papers.label_annealing.reproduction import TWINS
from holdfast.records.study import read_study
from holdfast.studies.engine.toy import name_of
from holdfast.studies.sweep.study import load_study
from holdfast.support.files import read_json

SESSION = types.SimpleNamespace(run_study=None)
"""What runs a study."""
RECIPE_FILES = Path(reproduction.__file__).parents[1] / "recipes"


def reproduce(*, check=TWINS.check, **options):
    run = dataclasses.replace(TWINS, check=check, run=lambda config, **how: SESSION.run_study(config, **how))
    return run.reproduce(**options)


def run_only(**options):
    """Where no claim is looked at none is judged, which takes seconds."""
    reproduce(check=lambda records: [], **options)


@pytest.fixture
def ran(monkeypatch):
    """The names of the studies that were run; each is made up, finished and written as a real one."""
    names: list[str] = []

    def run_study(config, *, console=None, workers=None):
        names.append(config.name)
        record = paper_like()
        record = dataclasses.replace(record, name=config.name, config=config.resolved)
        record.write(config.output_dir)
        (config.output_dir / "report.html").write_text("page")
        return record

    monkeypatch.setattr(SESSION, "run_study", run_study)
    return names


@pytest.fixture
def quiet():
    import io

    from rich.console import Console

    return Console(file=io.StringIO(), width=160)


def shown(console):
    return console.file.getvalue()


# ---------------------------------------------------------------------------------------------------------------- runs


def test_all_studies_and_their_claims(ran, tmp_path, quiet):
    claims = reproduce(size="medium", output_dir=tmp_path / "out", console=quiet)
    assert ran == [f"{recipe}-tiny" for recipe in RECIPES]
    assert [c.number for c in claims] == [s.number for s in STATEMENTS]
    found = read_json(tmp_path / "out" / "claims.json")
    variants = ["7a", "7b", "8a", "8b"]  # which `paper_like` has no arms for
    assert [c["number"] for c in found["claims"] if c["verdict"] != "holds"] == ["2d", *variants]
    assert found["studies"]["math"] == {
        "title": "mathematics",
        "status": "finished",
        "report": "math/report.html",
        "seeds": list(range(5, 15)),
        "trials": 26,
    }
    page = (tmp_path / "out" / "claims.html").read_text()
    assert 'href="math/report.html"' in page
    assert "Of 22 claims, 17 hold, 1 does not and 4 cannot be judged." in page
    text = shown(quiet)
    assert "1 of 6: math" in text and text.count("cannot tell") == len(variants)
    assert text.count("holds") >= 11


def test_a_look_is_smaller_than_the_whole_and_says_that_it_is_one(tmp_path, quiet, ran, monkeypatch):
    given = []
    whole = SESSION.run_study
    monkeypatch.setattr(SESSION, "run_study", lambda config, **how: given.append(config) or whole(config, **how))
    run_only(output_dir=tmp_path / "small", console=quiet)
    recipes = [recipe for recipe in RECIPES if not recipe.endswith("_variants")]
    begun, medium = given, [load_study(RECIPE_FILES / f"{recipe}-tiny.yaml") for recipe in recipes]
    assert [c.name for c in begun] == [c.name for c in medium]
    for small, large in zip(begun, medium, strict=True):
        assert len(small.request.seeds) < len(large.request.seeds) and len(small.trials()) <= len(large.trials())
        assert small.output_dir == tmp_path / "small" / name_of(large.request.toy)
    found = read_json(tmp_path / "small" / "claims.json")
    assert found["size"] == "small" and "This is the small size" in (tmp_path / "small" / "claims.html").read_text()


def test_changes_are_laid_over_settings_and_leave_them_as_they_are():
    values = {"train": {"max_steps": 400, "evaluation": {"keep": [1]}}, "seeds": [0, 1]}
    changes = {"train": {"max_steps": 100, "new": [2]}, "seeds": [0]}
    assert reproduction.changed(values, changes) == {
        "train": {"max_steps": 100, "evaluation": {"keep": [1]}, "new": [2]},
        "seeds": [0],
    }
    assert values["train"]["max_steps"] == 400 and reproduction.changed(values, {}) == values


def test_finished_studies_are_not_run_again(ran, tmp_path, quiet):
    reproduce(recipes=["code"], output_dir=tmp_path / "out", console=quiet)
    reproduce(recipes=["code", "math"], output_dir=tmp_path / "out", console=quiet)
    assert ran == ["code-tiny", "math-tiny"]
    assert "1 of 2: code is finished; nothing is run again." in shown(quiet)
    assert {c["recipe"] for c in read_json(tmp_path / "out" / "claims.json")["claims"]} == {"code", "math"}


def test_studies_that_are_unfinished_or_have_other_settings_are_run(ran, tmp_path, quiet):
    run_only(recipes=["code"], output_dir=tmp_path / "out", console=quiet)
    record = read_study(tmp_path / "out" / "code")
    for times, changes in ((2, {"status": "running"}), (3, {"config": {**record.config, "seeds": [7]}})):
        dataclasses.replace(record, **changes).write(tmp_path / "out" / "code")
        run_only(recipes=["code"], output_dir=tmp_path / "out", console=quiet)
        assert ran == ["code-tiny"] * times


@pytest.fixture
def whole_but(ran, monkeypatch):
    """Makes one study raise an error in place of running."""
    whole = SESSION.run_study

    def breaks(name: str, error: Exception) -> None:
        def run_study(config, **words):
            if config.name == name:
                raise error
            return whole(config, **words)

        monkeypatch.setattr(SESSION, "run_study", run_study)

    return breaks


def test_a_failed_study_does_not_stop_the_others(whole_but, tmp_path, quiet):
    whole_but("math-tiny", HoldfastError("2 trials of 12 failed"))
    with pytest.raises(
        HoldfastError, match=r"1 of 2 studies failed:\nmath: 2 trials of 12 failed\nRun the same command"
    ):
        reproduce(recipes=["math", "code"], output_dir=tmp_path / "out", console=quiet)
    verdicts = {c["number"]: c["verdict"] for c in read_json(tmp_path / "out" / "claims.json")["claims"]}
    assert verdicts["1b"] == "holds"
    assert verdicts["1a"] == "cannot tell"
    assert "Not finished: mathematics" in (tmp_path / "out" / "claims.html").read_text()


def test_ctrl_c_keeps_what_can_be_told(whole_but, ran, tmp_path, quiet):
    whole_but("code-tiny", Interrupted("stopped"))
    with pytest.raises(Interrupted):
        run_only(recipes=["math", "code"], output_dir=tmp_path / "out", console=quiet)
    assert read_json(tmp_path / "out" / "claims.json")["studies"]["code"]["status"] == "not run"
    whole_but("", Interrupted())
    run_only(recipes=["math", "code"], output_dir=tmp_path / "out", console=quiet)
    assert ran == ["math-tiny", "code-tiny"]


def test_wrong_requests(tmp_path, ran):
    with pytest.raises(ConfigError, match=r"got 'maths'\. Did you mean 'math'\?"):
        reproduce(recipes=["maths", "code"], output_dir=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"size: expected one of quick, small, medium, got 'mediun'"):
        reproduce(size="mediun", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists() and not ran


def test_an_unreadable_record_is_made_anew(ran, tmp_path, quiet):
    (tmp_path / "out" / "code").mkdir(parents=True)
    (tmp_path / "out" / "code" / "study.json").write_text('{"half": ')
    run_only(recipes=["code"], output_dir=tmp_path / "out", console=quiet)
    assert ran == ["code-tiny"]


# ----------------------------------------------------------------------------------------------------------- in earnest


def test_figures_that_are_no_numbers_are_written_and_shown(tmp_path):
    """As where a tiny start gains nothing that a share could be taken of."""
    figure = ClaimFigure(
        what="weight 1: share", value=math.nan, interval=(math.nan, math.inf), n="1 seed", unit="share"
    )
    claim = Claim(
        number="1",
        text="It gains.",
        recipe="x",
        paper="",
        verdict=UNKNOWN,
        by_rule=UNKNOWN,
        parts=["no gain"],
        figures=[figure],
    )
    claims = dataclasses.replace(TWINS, check=lambda records: [claim])
    claims.run_and_judge([], size="quick", output_dir=tmp_path, workers=1, console=None)
    [found] = read_json(tmp_path / "claims.json")["claims"][0]["figures"]
    assert math.isnan(found["value"]) and "weight 1: share: not available" in (tmp_path / "claims.html").read_text()
