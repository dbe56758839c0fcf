"""Callbacks of a run that is the job of a study. Imports transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class CheckEveryStep(TrainerCallback):
    """Before the first step and after each: has this worker to stop?

    Args:
        check: `Task.check`, which raises where it has.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self.check = check

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.check()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.check()
