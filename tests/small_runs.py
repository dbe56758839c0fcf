"""Runs of a tiny model on a few sentences, from Python and as a command, and what two of them are compared by."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console
from transformers import TrainerCallback

from holdfast.errors import Interrupted
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.run import train

FEW_STEPS = "--save_steps 2 --logging_steps 1 --per_device_train_batch_size 4 --learning_rate 1e-2 --max_length 64"


def run_of(settings: dict[str, Any], callbacks: Sequence[TrainerCallback] = ()) -> RunFolder:
    return train(train_config(settings), console=Console(file=io.StringIO()), callbacks=callbacks)


def train_words(*more: str, model: str = "tiny", data: str = "train.jsonl", out: str = "out") -> list[str]:
    """A command of four steps; what follows wins."""
    files = ["--model_name_or_path", model, "--dataset_name", data, "--output_dir", out]
    return ["train", *files, "--max_steps", "4", *FEW_STEPS.split(), *more]


def killed_at(step: int, event: str = "on_step_begin") -> TrainerCallback:
    """A callback that ends a run at an event of the step after this one, as a kill would."""
    callback = TrainerCallback()

    def kill(args, state, control, **kwargs):
        if state.global_step == step:
            raise Interrupted("killed")

    setattr(callback, event, kill)
    return callback


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs save and stop at the end of a step, as by a signal."""
    from holdfast.training.callbacks import StopOnSignal

    def stop(self, args, state, control, **kwargs):
        if state.global_step == step:
            self.stopped = True
            control.should_save = control.should_training_stop = True

    monkeypatch.setattr(StopOnSignal, "on_step_end", stop)


def logged(run: RunFolder) -> list[dict[str, Any]]:
    """The rows of a run's metrics but for the time that they took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]
