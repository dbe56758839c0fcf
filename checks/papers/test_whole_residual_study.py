"""The study through its storage: every model once, whoever makes it; failures and interruptions; the small world."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from data_files import jsonl
from holdfast.errors import HoldfastError
from holdfast.papers.residual.claims import STATEMENTS
from holdfast.papers.residual.plan import StudyConfig
from holdfast.papers.residual.study import ResidualStudy
from holdfast.records.residual import read_update
from holdfast.records.run import RunFolder
from holdfast.studies.engine.session import execute_study
from holdfast.studies.update.model_builder import ModelBuilder
from holdfast.studies.update.outcome import SIBLINGS


@pytest.fixture
def study(request_of, pair, tmp_path):
    def make(**changes):
        keys = request_of()
        for name in ("base", "instruct"):
            keys.pop(name)
        families = {"a": {"base": str(pair[0]), "instruct": str(pair[1])}}
        return StudyConfig.read({**keys, "name": "grid", "families": families, "budgets": [300], **changes})

    return make


def quiet():
    return Console(file=io.StringIO(), width=120)


def test_every_model_is_made_measured_and_compared_once(study, tmp_path, monkeypatch):
    fitted = []
    real = ModelBuilder.continued

    def counted(self, model, task):
        fitted.append(model.name)
        return real(self, model, task)

    monkeypatch.setattr(ModelBuilder, "continued", counted)
    record = execute_study(ResidualStudy(study()), console=quiet(), workers=1)
    assert record.status == "finished" and record.kind == "study"
    assert [m.state for m in record.models] == ["complete"] * 5
    assert {(p.before, p.after) for p in record.pairs} >= {
        ("a-instruct", "a-instruct-300"),
        ("a-instruct-300", "a-base-300-residual"),
    }
    runs = [p.name for p in (tmp_path / "out" / "runs").iterdir() if not p.name.startswith(".")]
    assert sorted(runs) == ["a-base-300", "a-instruct-300"], "the residual's base is the run that is there"
    assert not list((tmp_path / "out" / "runs").rglob("*.safetensors")), "keep_weights: none"
    assert (tmp_path / "out" / "report.html").is_file()
    fitted.clear()
    again = execute_study(ResidualStudy(study()), console=quiet(), workers=1)
    assert fitted == [] and again.models == record.models


def test_the_continued_base_is_tuned_once_more_on_conversations_of_the_user(study, tmp_path):
    """Setting S2 on given models: an ordinary run in the instruct model's template, measured as all others."""
    turns = [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "I say river."}]
    talk = jsonl(tmp_path / "talk.jsonl", [{"messages": turns}] * 8)
    tuning = {"dataset_name": str(talk), "max_steps": 3, "learning_rate": 1e-3}
    record = execute_study(ResidualStudy(study(retuned=tuning)), console=quiet(), workers=1)
    models = {m.name: m for m in record.models}
    tuned, base = models["a-base-300-tuned"], models["a-base-300"]
    assert tuned.state == "complete" and tuned.restored == "tuning" and tuned.hash != base.hash
    assert tuned.flops > base.flops > 0 and tuned.seconds > base.seconds
    run = RunFolder(tmp_path / "out" / tuned.path).read()
    assert run.training["steps"] == 3
    assert {p.before for p in record.pairs if p.after == tuned.name} >= {"a-instruct", "a-instruct-300", "a-base-300"}
    assert ("a-base-300-tuned", "a-base-300-residual") in {(p.before, p.after) for p in record.pairs}


def test_a_model_that_fails_does_not_stop_the_others_and_is_tried_again(study, tmp_path, monkeypatch):
    real = ModelBuilder.measure

    def broken(self, model, task):
        if model.name == "a-instruct-300":
            raise HoldfastError("no memory for this one")
        return real(self, model, task)

    monkeypatch.setattr(ModelBuilder, "measure", broken)
    with pytest.raises(HoldfastError, match=r"1 of 5 models failed[^$]*no memory for this one"):
        execute_study(ResidualStudy(study(keep_weights="all")), console=quiet(), workers=1)
    states = {m.name: m.state for m in read_update(tmp_path / "out").models}
    assert states["a-instruct-300"] == "failed" and list(states.values()).count("complete") == 4
    monkeypatch.setattr(ModelBuilder, "measure", real)
    assert [
        m.state for m in execute_study(ResidualStudy(study(keep_weights="all")), console=quiet(), workers=1).models
    ] == ["complete"] * 5


def test_the_small_study_and_its_claims(tmp_path):
    from holdfast.papers.residual.reproduction import reproduce

    claims = reproduce(size="quick", workers=1, output_dir=tmp_path / "again", console=quiet())
    assert [c.number for c in claims] == [s.number for s in STATEMENTS]
    record = read_update(tmp_path / "again" / "residual")
    models = {m.name: m for m in record.models}
    assert all(models[p.before].place == models[p.after].place for p in record.pairs), "worlds do not mix"
    assert {m.place for m in record.models} == {(32, 0), (32, 1), (16, 0), (16, 1)}
    assert all((m.added is None) == (m.residual is None) for m in record.models)
    tuned = {p.before for p in record.pairs if models[p.after].tuned and models[p.after].seed == 0}
    assert tuned == {f"first-{what}-32-world0" for what in ("base", "instruct", "base-600", "instruct-600")}
    asked = {p.question for p in record.pairs if models[p.after].given}
    assert asked == {"What did instruction tuning change?", SIBLINGS}
    assert (tmp_path / "again" / "claims.html").is_file() and (
        tmp_path / "again" / "residual" / "report.html"
    ).is_file()
    console = quiet()
    reproduce(size="quick", workers=1, output_dir=tmp_path / "again", console=console)
    assert "nothing is run again" in console.file.getvalue()
