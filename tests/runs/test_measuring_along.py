"""Measuring along training, as `evaluation: {along: ...}` asks for it: nothing of the run changes, no step is measured
twice, start and end belong to it, and what cannot be is said."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from checkpoint_folders import read_folder
from data_files import jsonl, text_rows
from holdfast.errors import ConfigError, Interrupted
from holdfast.evaluation.entries import Along
from holdfast.evaluation.suite import parse_evaluation
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.measuring import KeepAt, untouched
from holdfast.runs.run import train
from small_runs import killed_at, logged
from tiny import SENTENCES, build_model, build_tokenizer

STEPS = 6


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    place = tmp_path_factory.mktemp("along")
    build_model().save_pretrained(place / "base")
    build_tokenizer().save_pretrained(place / "base")
    text_rows(place / "rows.jsonl", SENTENCES * 3)
    questions = [{"prompt": s, "options": [" one", " two"], "answer": i % 2} for i, s in enumerate(SENTENCES)]
    jsonl(place / "questions.jsonl", questions)
    return {
        "model_name_or_path": str(place / "base"),
        "dataset_name": str(place / "rows.jsonl"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "learning_rate": 3e-3,
        "use_cpu": True,
        "save_steps": 2,
        "logging_steps": 1,
        "evaluation": {
            "keep": [
                {"multiple_choice_letters": str(place / "questions.jsonl")},
                {"perplexity": str(place / "rows.jsonl")},
            ],
            "learn": [{"memorisation": str(place / "rows.jsonl")}],
        },
    }


def run(asked, folder, along: Any = None, callbacks=(), **changes) -> tuple[RunFolder, str]:
    """The run and what it printed; `along`: the setting."""
    console = Console(file=io.StringIO(), width=200)
    evaluation = {**asked["evaluation"], **({} if along is None else {"along": along})}
    config = train_config({**asked, **changes, "evaluation": evaluation, "output_dir": str(folder)})
    return train(config, console=console, callbacks=callbacks), console.file.getvalue()


@pytest.fixture(scope="module")
def every_step(asked, tmp_path_factory) -> RunFolder:
    """A run that is measured at every step."""
    return run(asked, tmp_path_factory.mktemp("every") / "run", {"every": 1})[0]


# ----------------------------------------------------------------------------------------------------------------- laws

DROPOUT = {"use_peft": True, "lora_dropout": 0.3, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain", marks=pytest.mark.slow),
        pytest.param({"retention": ["sfa"]}, id="sfa", marks=pytest.mark.slow),
        pytest.param(DROPOUT, id="dropout"),
    ],
)
def test_weights_and_losses_are_those_of_a_run_without_it(asked, tmp_path, changes):
    measured, printed = run(asked, tmp_path / "with", {"steps": [1], "every": 2, "shares": [0.5]}, **changes)
    alone, _ = run(asked, tmp_path / "without", **changes)
    assert read_folder(measured.path) == read_folder(alone.path)
    assert logged(measured) == logged(alone) and len(logged(alone)) >= STEPS
    assert not alone.along.exists()
    assert [step for step, _ in measured.trajectory()] == [0, 1, 2, 3, 4, STEPS]
    for _, point in measured.trajectory():
        assert {(e.suite, e.name) for e in point.all()} == {
            ("keep", "questions"),
            ("keep", "rows"),
            ("learn", "rows-memorisation"),
        }
    assert printed.count(" measured: questions acc") == 4 and ", mass " in printed
    text = [point.find("keep", "rows").metrics["nats_per_token"].value for _, point in measured.trajectory()]
    assert text[-1] < text[0] and len(set(text)) == len(text), "every point is the model at its step"


def test_a_continued_run_measures_no_step_twice(asked, every_step, tmp_path, monkeypatch):
    from holdfast.evaluation import runner

    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(asked, folder, {"every": 1}, callbacks=[killed_at(3)])
    assert [step for step, _ in RunFolder(folder).trajectory()][:4] == [0, 1, 2, 3]
    assert (folder / "checkpoint-2").is_dir(), "step 3 is trained again"
    measured = []
    measure = runner.measure
    monkeypatch.setattr(runner, "measure", lambda entry, on: measured.append(on.folder.path.name) or measure(entry, on))
    continued, _ = run(asked, folder, {"every": 1})
    assert sorted(set(measured)) == ["result", "step-4", "step-5"]
    assert figures(continued) == figures(every_step)


def figures(run: RunFolder) -> list[list[tuple[str, Any]]]:
    """Every point's entries with what was measured."""
    return [[(e.name, e.metrics) for e in point.all()] for _, point in run.trajectory()]


def test_a_checkpoint_measured_afterwards_says_the_same(asked, every_step, tmp_path):
    from holdfast.evaluation.session import ModelRequest, evaluate_models

    plan, _ = parse_evaluation(asked["evaluation"])
    steps = (4, 6)
    models = [ModelRequest(name=str(every_step.path / f"checkpoint-{step}"), label=f"step-{step}") for step in steps]
    evaluate_models(models, plan, tmp_path / "measured")
    points = dict(every_step.trajectory())
    for step in steps:
        later, point = EvaluationFolder(tmp_path / "measured" / f"step-{step}"), points[step]
        assert point.all()
        for e in point.all():
            again = later.find(e.suite, e.name)
            assert again.metrics == e.metrics
            assert later.samples(e.suite, e.name) == point.samples(e.suite, e.name)


def test_time_for_measuring_is_no_training_time(asked, tmp_path, monkeypatch):
    from holdfast.runs import measuring

    clock = [0.0]
    monkeypatch.setattr("holdfast.training.callbacks.time.monotonic", lambda: clock[0])
    evaluate = measuring.MeasureAt._measure

    def slow(*args):
        clock[0] += 1000.0
        return evaluate(*args)

    monkeypatch.setattr(measuring.MeasureAt, "_measure", slow)
    found, _ = run(asked, tmp_path / "run", {"steps": [1, 2]}, max_steps=3, save_strategy="no")
    assert clock[0] == 2000.0 and found.metrics()[-1]["seconds"] < 1000.0


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("along", "words"),
    [
        ({}, r"evaluation.along: expected steps, every or shares \(when to measure\), got none"),
        ({"every": 0}, "evaluation.along.every: expected a whole number of at least 1, got 0"),
        ({"every": 1, "entries": ["questons"]}, r"along.entries\[0\]: expected an entry .* Did you mean 'questions'"),
    ],
)
def test_settings_that_cannot_be(asked, tmp_path, along, words):
    with pytest.raises(ConfigError, match=words):
        run(asked, tmp_path / "run", along)


def test_mode_and_random_states_are_put_back():
    model = build_model().train()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with untouched(model):
        assert not model.training
        torch.rand(100)
    assert model.training and torch.equal(torch.rand(4), expected)


def test_moments():
    when = Along(steps=(1, 4), every=3, shares=(0.3, 0.31))
    reached = {step: when.reached(step, 10) for step in range(1, 11)}
    assert {step: found for step, found in reached.items() if found} == {
        1: [0.1],
        3: [0.3, 0.31],
        4: [0.4],
        6: [0.6],
        9: [0.9],
    }
    assert Along(shares=(0.001,)).reached(1, 10) == [0.001], "the first step at least"


def test_several_processes_keep_weights_at_the_steps_that_are_measured_later(tmp_path: Path) -> None:
    saved: list[str] = []
    keep = KeepAt(
        Along(steps=(1, 3, 4, 6)), tmp_path / "kept", tmp_path / "along", lambda path: saved.append(path.name)
    )
    (tmp_path / "along" / "step-3").mkdir(parents=True)
    (tmp_path / "kept" / "step-4").mkdir(parents=True)
    for step in range(1, 7):
        keep.on_step_end(None, SimpleNamespace(global_step=step, max_steps=6), None)
    assert saved == ["step-1"], "3 is measured and 4 kept already; 6 is the end"
