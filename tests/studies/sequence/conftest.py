"""A base and three tasks of a few sentences each, small enough for every test."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import text_rows
from tiny import build_model

TASKS = {
    "rivers": [f"The river number {i} runs to the sea and stone {i % 7} lies in it." for i in range(40)],
    "letters": [f"Letter {i}: dear reader, the market opens at {i % 12} and closes late." for i in range(40)],
    "music": [f"Play note {i % 9} and then note {i % 5}, softly, {i} times over." for i in range(40)],
}


@pytest.fixture(scope="session")
def base(tmp_path_factory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("sequence") / "base"
    build_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def asked(base, tmp_path):
    """The keys of a small study; `changes` over them."""
    tasks = {}
    for name, texts in TASKS.items():
        for part, rows in (("train", texts[:30]), ("heldout", texts[30:])):
            file = tmp_path / f"{name}_{part}.jsonl"
            text_rows(file, rows)
        tasks[name] = {
            "train": {"dataset_name": str(tmp_path / f"{name}_train.jsonl")},
            "learn": [{"perplexity": str(tmp_path / f"{name}_heldout.jsonl"), "name": f"{name}_text", "window": 64}],
        }

    def make(*, names=("rivers", "letters"), **changes):
        return {
            "name": "two",
            "train": {
                "model_name_or_path": str(base),
                "max_steps": 4,
                "learning_rate": 3e-3,
                "per_device_train_batch_size": 4,
                "max_length": 64,
                "use_cpu": True,
                "save_strategy": "no",
                "gradient_checkpointing": False,
                "logging_steps": 1,
            },
            "tasks": {name: tasks[name] for name in names},
            "arms": ["sequential", "single"],
            "curve": 2,
            "output_dir": str(tmp_path / "out"),
            **changes,
        }

    return make
