"""holdfast's figures in trackers: what TensorBoard, MLflow, W&B (offline) and trackio wrote is read back."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import TrainerCallback

from data_files import text_rows
from holdfast.errors import Interrupted
from holdfast.records.run import RunFolder
from small_runs import killed_at, run_of
from tiny import SENTENCES

SECRET = "hf_thisIsASecretOfTheTest"


@pytest.fixture
def settings(least: dict[str, Any]) -> dict[str, Any]:
    for name, texts in (("train", SENTENCES), ("prose", SENTENCES[:4]), ("answers", SENTENCES[4:8])):
        text_rows(f"{name}.jsonl", texts)
    return {
        **least,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "hub_token": SECRET,
        "env": {"HF_SECRET_TOKEN": SECRET},
        "retention": [{"label_annealing": {"weight": 0.5}}],
        "evaluation": {"keep": ["prose.jsonl"], "learn": ["answers.jsonl"], "along": {"steps": [2]}},
    }


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag: (step, value) of all event files below a folder, in order."""
    pytest.importorskip("tensorboard", reason="the extra 'track'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for file in sorted(folder.rglob("events.out.tfevents*")):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found[tag] += [(event.step, event.value) for event in events.Scalars(tag)]
    return found


def check(found: dict[str, list[tuple[int, float]]], run: RunFolder, prefix: str = "") -> None:
    """The figures are those of the run's records, each at its step, once."""
    name = f"{prefix}keep/prose/nats_per_token"
    points = {step: folder.find("keep", "prose") for step, folder in run.trajectory()}
    wanted = [(step, e.metrics["nats_per_token"].value) for step, e in points.items() if e is not None]
    assert [step for step, _ in wanted] == [0, 2, 4]
    assert found[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]
    for suite, entry in (("keep", "prose"), ("learn", "answers")):
        [c] = [c for c in run.comparisons() if (c.suite, c.name) == (suite, entry) and c.primary]
        for end, value in (("", c.difference), ("_low", c.interval[0]), ("_high", c.interval[1])):
            tag = f"{prefix}{suite}/{entry}/{c.metric}_difference{end}"
            assert found[tag] == [(4, pytest.approx(value, rel=1e-5, abs=1e-7))]


def test_tensorboard(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    run = run_of({**settings, "report_to": "tensorboard"})
    found = scalars(tmp_path / "board")
    check(found, run, "eval/")
    assert [step for step, _ in found["train/kl"]] == [1, 2, 3, 4] == [step for step, _ in found["train/ce"]]
    assert [value for _, value in found["train/kl"]] == [pytest.approx(r["kl"], rel=1e-5) for r in run.metrics()]
    for file in (tmp_path / "board").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


class Own(TrainerCallback):
    """A tracker that writes down what it is told, and refuses what comes after its end."""

    told: ClassVar[list[tuple[str, int, dict[str, float]]]] = []

    def __init__(self) -> None:
        self.open = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.open = True
        self.told.append(("begin", state.global_step, {}))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        assert self.open, "figures for a closed tracker"
        self.told.append(("log", state.global_step, dict(logs)))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.open = False
        self.told.append(("end", state.global_step, {}))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> type[Own]:
    from transformers.integrations import integration_utils

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", Own)
    monkeypatch.setattr("holdfast.runs.config.check_packages", lambda *args, **kwargs: [])
    monkeypatch.setattr(Own, "told", [])
    return Own


def figures(own: type[Own]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for what, step, logs in own.told:
        for name, value in logs.items() if what == "log" else ():
            found[name].append((step, value))
    return found


def test_it_is_closed_once_after_the_last_figure(settings: dict[str, Any], own: type[Own]) -> None:
    run = run_of({**settings, "report_to": "wandb"})
    assert [what for what, _, _ in own.told if what != "log"] == ["begin", "end"] and own.told[-1][0] == "end"
    check(figures(own), run, "eval_")


def test_an_interrupted_run_is_closed_and_goes_on(settings: dict[str, Any], own: type[Own]) -> None:
    asked = {**settings, "report_to": "wandb", "save_steps": 1}
    with pytest.raises(Interrupted):
        run_of(asked, [killed_at(3)])
    assert own.told[-1][0] == "end"
    run = run_of(asked)
    assert [what for what, _, _ in own.told].count("end") == 2
    check(figures(own), run, "eval_")
