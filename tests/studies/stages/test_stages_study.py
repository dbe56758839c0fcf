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


def corpus_of(*names: str, **more: Any) -> dict[str, Any]:
    """A study's text in place of what was chosen already."""
    return {"restoring": None, "probing": None, "corpus": list(names), **more}


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
        (corpus_of("questions.jsonl", tokens=9, select={"minimum_token": 3}), "select: unknown key 'minimum_token'"),
        (
            corpus_of("questions.jsonl", tokens=9, select={"minimum_tokens": 600}),
            "select.minimum_tokens: expected at most max_length (512), got 600",
        ),
        (corpus_of("questions.jsonl", tokens=9, select={"tokens": 3}), "select.tokens: is set by the study: `tokens`."),
        (corpus_of("no.txt", tokens=9), "corpus: expected a file or folder at no.txt, found nothing"),
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


def test_an_adapter_is_restored_merged_into_the_base_that_is_named(
    files: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from holdfast.errors import HoldfastError
    from holdfast.studies.stages.study import StagesStudy, _check_same_architecture

    torch.manual_seed(0)
    settings = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), settings)
    model.save_pretrained(tmp_path / "adapter")  # names the folder that it was trained on, wherever that was
    merged = model.merge_and_unload()
    named = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    named["base_model_name_or_path"] = "/a/machine/of/somebody/else"
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(named))

    given = {**files, "base": str(model_folder), "tuned": ["adapter"], "output_dir": "study"}
    study = StagesStudy(stages_config(given))
    whole = Path(study._whole("tuned-1-restored", "adapter"))
    assert whole == Path("study/merged/tuned-1-restored") and study._whole("x", str(model_folder)) == str(model_folder)
    found, wanted = load_file(whole / "model.safetensors"), merged.state_dict()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name])
    _check_same_architecture(str(model_folder), ["adapter"])
    Path("one", "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(HoldfastError, match="one is of another architecture"):
        _check_same_architecture(str(model_folder), ["adapter", "one"])
    named["target_modules"] = ["elsewhere"]
    weights = {k.replace("q_proj", "elsewhere"): v for k, v in load_file("adapter/adapter_model.safetensors").items()}
    from safetensors.torch import save_file

    save_file(weights, "adapter/adapter_model.safetensors")
    with pytest.raises(HoldfastError, match="elsewhere"):
        _check_same_architecture(str(model_folder), ["adapter"])


@pytest.mark.parametrize("given", ["chats.jsonl", {"dataset_name": "chats.jsonl"}])
def test_raw_data_and_epochs_are_enough(files: dict[str, Any], given: Any) -> None:
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    del files["tuned"]
    config = stages_config({**files, "train": given, "epochs": 3, "restore": {"use_cpu": True}})
    assert config.arms == {"direct": 3} and len(config.steps) == 6
    assert config.tuning("direct")["num_train_epochs"] == 3 and config.tuning("direct")["save_strategy"] == "epoch"
    with pytest.raises(ConfigError, match="epochs: stands in `train`"):
        stages_config({**files, "train": {"dataset_name": "chats.jsonl", "num_train_epochs": 2}, "epochs": 3})


def test_a_remedy_may_be_added_to_a_study_and_not_be_changed(files: dict[str, Any]) -> None:
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    del files["tuned"]
    without = stages_config({**files, "train": "chats.jsonl", "epochs": 2})
    later = stages_config({**files, "train": "chats.jsonl", "epochs": 2, "remedy": "label_annealing"})
    assert later.differences(without.resolved) == []
    budget = {**corpus_of("questions.jsonl"), "tokens": 9}
    given = {k: v for k, v in {**files, "train": "chats.jsonl", "epochs": 2, **budget}.items() if v is not None}
    assert list(stages_config(given).steps)[0] == "texts", "what may fail comes before hours of fine-tuning"
    steps = list(later.steps)
    assert steps[: len(without.steps)] == list(without.steps), "what was done keeps its place"
    assert [job.after for job in later.jobs()][: len(without.steps)] == [job.after for job in without.jobs()]
    assert steps[len(without.steps) :] == ["tune-remedy", "remedy-1-restored", "remedy-2-restored"]
    for other in (without, stages_config({**files, "train": "chats.jsonl", "epochs": 2, "remedy": "l2"})):
        (difference,) = other.differences(later.resolved)
        assert difference.startswith("remedy: was {'label_annealing'")


def test_a_fine_tuning_is_measured_on_the_way_where_that_is_asked(files: dict[str, Any]) -> None:
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    del files["tuned"]
    asked = {**files, "train": "chats.jsonl", "epochs": 1}
    assert "evaluation" not in stages_config(asked).tuning("direct")
    found = stages_config({**asked, "along": {"steps": [1, 2]}}).tuning("direct")["evaluation"]
    assert found["along"] == {"steps": [1, 2]} and "probing" not in found
    with pytest.raises(ConfigError, match=r"train: .*along"):
        stages_config({**asked, "along": {"step": [1]}})
    with pytest.raises(ConfigError, match="along: is of a fine-tuning"):
        stages_config({**files, "tuned": ["one"], "along": {"steps": [1]}})


@pytest.mark.slow
def test_questions_are_read_before_the_fine_tuning(files: dict[str, Any], model_folder: Path) -> None:
    from holdfast.studies.stages.study import StagesStudy

    Path("q.jsonl").write_text('{"prompt": "a", "options": [" b", " c"], "answer": 2}\n')
    given = {**files, "base": str(model_folder), "tuned": None, "train": "chats.jsonl", "epochs": 1}
    given |= {"restoring": None, "probing": None, "corpus": ["chats.jsonl"]}  # nothing is chosen yet
    Path("chats.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    asked = {k: v for k, v in given.items() if v is not None}
    StagesStudy(stages_config(asked)).open_folder(None)
    questions = [{"task": "arc_eazy"}, {"choices": "q.jsonl", "name": "facts"}]
    with pytest.raises(ConfigError) as error:
        StagesStudy(stages_config({**asked, "evaluation": questions})).open_folder(None)
    assert "knowledge/arc_eazy: " in str(error.value) and "knowledge/facts: " in str(error.value)


def test_what_could_not_be_looked_for_in_the_corpus_is_named(files: dict[str, Any]) -> None:
    from holdfast.studies.engine.study import StudyState
    from holdfast.studies.stages.outcome import stages_record

    Path("text.jsonl").write_text('{"text": "a"}\n')
    corpus = {"restoring": None, "probing": None, "corpus": ["text.jsonl"], "tokens": 9, "output_dir": "study"}
    asked = {**files, **corpus, "evaluation": [*files["evaluation"], {"task": "arc_easy"}]}
    config = stages_config({k: v for k, v in asked.items() if v is not None})
    assert config.question_files == [Path("questions.jsonl").resolve()]
    Path("study/texts").mkdir(parents=True)
    state = StudyState(name="a", status="running", created="", jobs=[], storage="", attributes={})
    assert not stages_record(state, config, {}).notes, "before anything is chosen"
    Path("study/texts/selection.json").write_text('{"counts": {}}')
    (note,) = stages_record(state, config, {}).notes
    assert "holds questions of knowledge/arc_easy was not looked at" in note


def quick_values(place: Path, **changes: Any) -> dict[str, Any]:
    """A study of seconds, as its YAML has it."""
    from holdfast.papers.worlds.small_settings import make_setting
    from holdfast.studies.engine.small import fill

    recipe = Path(__file__).parents[3] / "src/holdfast/papers/recipes/stages/tiny.yaml"
    values = yaml.safe_load(recipe.read_text())
    values.pop("small")
    values = fill(values, make_setting("stages", place / "data", quick=True))
    values["train"]["num_train_epochs"] = 1
    values |= {"probing_passages": 8, "output_dir": "study", "curve": 2, "tokens": 4000}
    values["along"] = {"steps": [1, 2], "entries": ["old_lettered"]}
    return {**values, **changes}


@pytest.mark.slow
def test_a_whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuned, restored, judged; a second call does nothing."""
    from holdfast.studies.stages.study import run_stages

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    config = stages_config(quick_values(tmp_path, remedy="label_annealing"))
    record = run_stages(config, workers=1)
    assert record.status == "finished" and record == read_stages("study")
    assert [v.arm for v in record.verdicts] == ["direct", "direct", "remedy", "remedy"], "facts and letters of each"
    assert all(v.verdict in VERDICTS and v.reason for v in record.verdicts)
    for role, arm, place in ((CONTROL, "", 0), (TUNED, "direct", 1), (RESTORED, "direct", 1)):
        model = record.model(role, arm, place)
        entries = {
            "probing/probing",
            "knowledge/old_facts",
            "knowledge/old_lettered",
            "knowledge/learnt",
        }
        assert model is not None and entries == set(model.figures)
    restored = record.model(RESTORED, "direct", 1)
    assert restored is not None and len(restored.curve) == 3 and restored.tokens > 1000
    assert (restored.curve[0][0], restored.curve[-1][0]) == (0.0, 1.0)
    assert set(record.along) == {"direct", "remedy"}
    assert [p.step for p in record.along["direct"]][:3] == [0, 1, 2]
    assert all("mass" in e.metrics for p in record.along["direct"][1:3] for e in p.evaluations)
    assert not list(Path("study").rglob("*.safetensors")), "nothing is kept"
    page = Path("study/report.html").read_text()
    assert "Plain text along restoring" in page and record.verdicts[0].verdict in page
    assert "Along fine-tuning: direct" in page
    before = {p: p.stat().st_mtime_ns for p in Path("study/runs").rglob("*") if p.is_file()}
    assert run_stages(config, workers=1).verdicts == record.verdicts
    assert {p: p.stat().st_mtime_ns for p in Path("study/runs").rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_a_restoring_that_is_killed_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal
    import subprocess
    import sys
    import time

    from holdfast.studies.stages.study import run_stages

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    values = quick_values(tmp_path, keep="all", curve=0, along={})
    values["restore"] |= {"save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 2}
    run_stages(stages_config({**values, "output_dir": "whole"}), workers=1)

    Path("killed.yaml").write_text(yaml.safe_dump({**values, "output_dir": "killed"}))
    command = [sys.executable, "-m", "holdfast", "diagnose", "--config", "killed.yaml", "--workers", "1"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    run = Path("killed/runs/direct-1-restored")
    while started.poll() is None and not list(run.glob("checkpoint-*/manifest.json")):
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (run / "model.safetensors").is_file(), "killed in the middle"
    run_stages(stages_config({**values, "output_dir": "killed"}), workers=1, grace=0.5)
    for name in ("base-restored", "direct-1-restored"):
        whole, killed = (Path(study, "runs", name, "model.safetensors").read_bytes() for study in ("whole", "killed"))
        assert whole == killed, name


@pytest.mark.slow
def test_a_quick_reproduction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from holdfast.papers.stages.claims import STATEMENTS
    from holdfast.papers.stages.reproduction import reproduce

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    console = Console(file=io.StringIO(), width=200)
    claims = reproduce(size="quick", workers=1, output_dir=tmp_path / "out", console=console)
    assert [c.number for c in claims] == [s.number for s in STATEMENTS]
    assert not [c.number for c in claims if "was not measured" in c.reason], "every rule finds its figures"
    assert all(p.value is not None for c in claims for p in c.preconditions)
    page = (tmp_path / "out" / "claims.html").read_text()
    assert "a quick check" in page and "narrow-0/report.html" in page
    with pytest.raises(ConfigError, match="a size of look has world-0"):
        reproduce(recipes=["world-1"], output_dir=tmp_path / "out", console=console)
    with pytest.raises(ConfigError, match="Did you mean 'world-1'"):
        reproduce(recipes=["world1"], output_dir=tmp_path / "out", console=console)
