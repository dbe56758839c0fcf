"""The stages study: its plan, what it refuses before anything runs, and a whole one of seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import ConfigError
from holdfast.records.stages import CONTROL, RESTORED, TUNED, VERDICTS, read_stages
from holdfast.studies.stages.plan import stages_config

QUESTIONS = {"prompt": "a", "options": [" b", " c"], "answer": 0}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study of two checkpoints, by the names of files that are there."""
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text(json.dumps(QUESTIONS) + "\n")
    for name in ("restoring", "probing"):
        Path(f"{name}.jsonl").write_text('{"text": "a"}\n')
    for name in ("base", "one", "two"):
        Path(name).mkdir()
        Path(name, "config.json").write_text("{}")
        Path(name, "model.safetensors").write_bytes(b"")
    return {
        "base": "base",
        "tuned": ["one", "two"],
        "restoring": "restoring.jsonl",
        "probing": "probing.jsonl",
        "evaluation": [{"choices": "questions.jsonl", "name": "facts"}],
        "restore": {"use_cpu": True},
    }


def test_every_checkpoint_is_restored_and_the_base_too(files: dict[str, Any]) -> None:
    config = stages_config(files)
    assert [job.attributes["label"] for job in config.jobs()] == [
        "choosing the text to restore on",
        "restoring the base (control)",
        "restoring tuned, checkpoint 1",
        "restoring tuned, checkpoint 2",
    ]
    settings = config.restoring("tuned-1-restored", "one")
    assert (settings["learning_rate"], settings["num_train_epochs"], settings["retention"]) == (3e-5, 1, "none")
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tuned": []}, "tuned: expected the checkpoints of a fine-tuning, or `train`"),
        ({"tuned": ["one", "one"]}, "expected each checkpoint once"),
        ({"tuned": ["one", "three"]}, "tuned: expected the folder of a checkpoint at three, found none."),
        ({"restoring": None, "probing": None}, "corpus: expected text to choose from"),
        ({"restoring": None, "probing": None, "corpus": ["x.txt"]}, "tokens: is missing"),
        ({"probing": None}, "probing: goes together with `restoring`"),
        ({"evaluation": [{"perplexity": "probing.jsonl"}]}, "expected at least one entry whose questions are right or"),
        ({"evaluation": []}, "evaluation: is missing"),
        ({"remedy": "label_annealing"}, "remedy: fine-tunes once more, so it needs `train`"),
        ({"restore": {"seed": 1}}, "restore.seed: is set by the study"),
        ({"restore": {"learning_rat": 1}}, "learning_rate"),
        ({"margin": "much"}, "margin"),
        ({"base": ""}, "base: is missing"),
    ],
)
def test_mistakes_are_named_before_anything_runs(files: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        stages_config({k: v for k, v in {**files, **change}.items() if v is not None})
    assert said in str(error.value)


def test_another_architecture_is_refused(files: dict[str, Any]) -> None:
    from holdfast.errors import ModelError
    from holdfast.studies.stages.study import _check_same_architecture

    Path("two", "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ModelError, match="two is of another architecture than the base base: hidden_size None and 8"):
        _check_same_architecture("base", ["one", "two"])


@pytest.mark.slow
def test_a_whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuned, restored, judged; a second call does nothing."""
    from holdfast.studies.engine.small import fill
    from holdfast.studies.stages.study import run_stages
    from holdfast.worlds.small_settings import make_setting

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    recipe = Path(__file__).parents[3] / "src/holdfast/studies/recipes/stages/tiny.yaml"
    values = yaml.safe_load(recipe.read_text())
    values.pop("small")
    values = fill(values, make_setting("stages", tmp_path / "data", quick=True))
    values["train"]["num_train_epochs"] = 1
    values |= {"probing_passages": 8, "output_dir": "study", "curve": 2, "remedy": "label_annealing"}
    values["tokens"] = 4000
    config = stages_config(values)
    record = run_stages(config, workers=1)
    assert record.status == "finished" and record == read_stages("study")
    assert [v.arm for v in record.verdicts] == ["direct", "remedy"]
    assert all(v.verdict in VERDICTS and v.reason for v in record.verdicts)
    for role, arm, place in ((CONTROL, "", 0), (TUNED, "direct", 1), (RESTORED, "direct", 1)):
        model = record.model(role, arm, place)
        assert model is not None and {"probing/probing", "knowledge/old_facts"} == set(model.figures)
    restored = record.model(RESTORED, "direct", 1)
    assert restored is not None and len(restored.curve) == 3 and restored.tokens > 1000
    assert (restored.curve[0][0], restored.curve[-1][0]) == (0.0, 1.0)
    assert not list(Path("study").rglob("*.safetensors")), "nothing is kept"
    page = Path("study/report.html").read_text()
    assert "Plain text along restoring" in page and record.verdicts[0].verdict in page
    before = {p: p.stat().st_mtime_ns for p in Path("study/runs").rglob("*") if p.is_file()}
    assert run_stages(config, workers=1).verdicts == record.verdicts
    assert {p: p.stat().st_mtime_ns for p in Path("study/runs").rglob("*") if p.is_file()} == before
