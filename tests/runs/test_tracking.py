"""holdfast's figures in trackers: what TensorBoard, MLflow, W&B (offline) and trackio wrote is read back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console
from transformers import TrainerCallback

from holdfast.errors import Interrupted
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.run import train
from tiny import SENTENCES

SECRET = "hf_thisIsASecretOfTheTest"


@pytest.fixture
def settings(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    for name, texts in (("train", SENTENCES), ("prose", SENTENCES[:4]), ("answers", SENTENCES[4:8])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return {
        "model_name_or_path": str(model_folder),
        "dataset_name": "train.jsonl",
        "max_steps": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "use_cpu": True,
        "hub_token": SECRET,
        "env": {"HF_SECRET_TOKEN": SECRET},
        "retention": [{"label_annealing": {"weight": 0.5}}],
        "evaluation": {"source": ["prose.jsonl"], "target": ["answers.jsonl"], "along": {"steps": [2]}},
        "output_dir": "run",
    }


def run_of(settings: dict[str, Any], callbacks: Any = ()) -> RunFolder:
    return train(train_config(settings), console=Console(file=io.StringIO()), callbacks=callbacks)


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
    name = f"{prefix}source/prose/nats_per_token"
    points = {step: folder.find("source", "prose") for step, folder in run.trajectory()}
    wanted = [(step, e.metrics["nats_per_token"].value) for step, e in points.items() if e is not None]
    assert [step for step, _ in wanted] == [0, 2, 4]
    assert found[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]
    for suite, entry in (("source", "prose"), ("target", "answers")):
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


@pytest.mark.slow
def test_mlflow(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra 'track'")
    store = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    run = run_of({**settings, "report_to": "mlflow"})
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with contextlib.closing(sqlite3.connect(store)) as base:
        for key, step, value in base.execute("select key, step, value from metrics order by step"):
            found[key].append((step, value))
    check(found, run, "eval_")
    assert [step for step, _ in found["kl"]] == [1, 2, 3, 4]
    assert SECRET.encode() not in store.read_bytes()


def offline_history(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name: (step, value) of what W&B keeps of a run in its offline mode: records in the layout of LevelDB's log
    (blocks of 32 KiB behind a header of 7 bytes; checksum, length and kind before each part of a record)."""
    from wandb.proto import wandb_internal_pb2

    [file] = folder.rglob("*.wandb")
    content, place, parts = file.read_bytes(), 7, b""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # no room for another part in this block
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind not in (1, 4):  # whole, or the last part
            continue
        record = wandb_internal_pb2.Record()
        record.ParseFromString(parts)
        parts = b""
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            for name, value in items.items():
                if isinstance(value, (int, float)):
                    found[name].append((int(items["train/global_step"]), value))
    return found


@pytest.mark.slow
def test_wandb(settings: dict[str, Any], tmp_path: Path) -> None:
    """In a process of its own, which W&B gives threads and a service; offline, nothing is sent."""
    pytest.importorskip("wandb", reason="the extra 'track'")
    Path("run.yaml").write_text(json.dumps({**settings, "report_to": "wandb"}))
    where = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path / "wandb"), "WANDB_SILENT": "true"}
    (tmp_path / "wandb").mkdir()
    words = [sys.executable, "-m", "holdfast", "train", "--config", "run.yaml"]
    done = subprocess.run(words, env={**os.environ, **where}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = offline_history(tmp_path / "wandb")
    check(found, RunFolder("run"), "eval/")
    assert [step for step, _ in found["train/kl"]] == [1, 2, 3, 4]
    assert not any(SECRET.encode() in f.read_bytes() for f in (tmp_path / "wandb").rglob("*") if f.is_file())


@pytest.mark.slow
def test_trackio(settings: dict[str, Any], tmp_path: Path) -> None:
    """In a process of its own: trackio looks at its folder's variable when it is imported."""
    pytest.importorskip("trackio", reason="the extra 'track'")
    Path("run.yaml").write_text(json.dumps({**settings, "report_to": "trackio", "project": "of-a-test"}))
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    words = [sys.executable, "-m", "holdfast", "train", "--config", "run.yaml"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "of-a-test.db")) as base:
        for (row,) in base.execute("select metrics from metrics order by rowid"):
            held = json.loads(row)
            for name, value in held.items():
                found[name].append((int(held["train/global_step"]), value))
    check(found, RunFolder("run"), "eval/")
    assert [step for step, _ in found["train/kl"]] == [1, 2, 3, 4]
    assert not any(SECRET.encode() in f.read_bytes() for f in (tmp_path / "trackio").rglob("*") if f.is_file())


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
    class Crash(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise Interrupted("killed")

    asked = {**settings, "report_to": "wandb", "save_steps": 1}
    with pytest.raises(Interrupted):
        run_of(asked, [Crash()])
    assert own.told[-1][0] == "end"
    run = run_of(asked)
    assert [what for what, _, _ in own.told].count("end") == 2
    check(figures(own), run, "eval_")


def test_what_is_measured_in_a_later_session_comes_too(
    settings: dict[str, Any], own: type[Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runs.run import _Run

    asked = {**settings, "report_to": "wandb"}
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "note_unmeasured", lambda self: (_ for _ in ()).throw(Interrupted("killed")))
        with pytest.raises(Interrupted):
            run_of(asked)
    assert not any("_difference" in name for name in figures(own))
    run = run_of(asked)
    check(figures(own), run, "eval_")
    assert [what for what, _, _ in own.told if what != "log"] == ["begin", "end", "begin", "end"]
