"""What the tests of runs share: a working directory with a tiny model and rows, and the least request for a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cases
import pytest

from data_files import jsonl, text_rows


@pytest.fixture
def place(desk: Path, model_folder: Path) -> Path:
    """A working directory with a model and training text."""
    shutil.copytree(model_folder, desk / "tiny")
    jsonl("train.jsonl", cases.rows())
    return desk


@pytest.fixture
def least(desk: Path, model_folder: Path) -> dict[str, Any]:
    """What the requests of a working directory state alike."""
    return {
        "model_name_or_path": str(model_folder),
        "dataset_name": "train.jsonl",
        "use_cpu": True,
        "report_to": "none",
        "output_dir": "run",
    }


@pytest.fixture
def by_heart(least: dict[str, Any]) -> dict[str, Any]:
    """Three rows are learnt by heart, so that others are predicted better for a while, and then worse and worse."""
    text_rows(
        "train.jsonl", ["Rome is the capital of Italy.", "Paris is the capital of France.", "Bern lies in Switzerland."]
    )
    text_rows("held.jsonl", ["Water boils when it is hot.", "The cat sat there."])
    return {**least, "per_device_train_batch_size": 1, "lr_scheduler_type": "constant"}
