"""holdfast's figures in trackers of others: what MLflow, W&B (offline) and trackio wrote is read back."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.records.run import RunFolder
from runs import conftest, test_tracking
from runs.test_tracking import SECRET, check
from small_runs import run_of

least, settings = conftest.least, test_tracking.settings


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
