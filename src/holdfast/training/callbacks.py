"""What a run shows and writes while it trains: metrics.jsonl, one progress bar, and a clean stop on
Ctrl-C."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from holdfast.support.environment import say
from holdfast.support.files import read_jsonl, to_jsonable, write_jsonl
from holdfast.support.progress import ProgressLines

SAME_SIGNAL_SECONDS = 1.0
"""Signals closer together than this are one press of Ctrl-C."""


class MetricsFile(TrainerCallback):
    """Appends one JSON line a logged step: step, epoch, loss, ce and kl (nats per token), learning
    rate, tokens, seconds. The last step is logged.

    After a resume, lines of steps that will be trained again are dropped first, and the clock goes
    on from where it stood.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began = time.monotonic()
        self.before = 0.0

    def leave_out(self, seconds: float) -> None:
        """Takes time that was no training, such as measuring, out of the clock."""
        self.began += seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        rows = read_jsonl(self.path) if self.path.is_file() else ()
        done = [row for row in rows if row.get("step", 0) <= state.global_step]
        self.before = max((float(row.get("seconds", 0.0)) for row in done), default=0.0)
        write_jsonl(self.path, done)
        self.began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step >= state.max_steps:
            # a run shorter than logging_steps has a curve too, and every run its last figures
            control.should_log = True
        return control

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        row = {
            "step": state.global_step,
            **logs,
            "seconds": round(self.before + time.monotonic() - self.began, 3),
        }
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(to_jsonable(row), allow_nan=False) + "\n")


class Progress(TrainerCallback):
    """One bar with loss, KL and time left; without a terminal a line at most every half a minute,
    and one at the end.

    Args:
        console: a `rich.console.Console`.
        label: what is being trained with what, for the line above.
    """

    def __init__(self, console: Any, label: str) -> None:
        self.console = console
        self.label = label
        self.bar: Any = None
        self.task: Any = None
        self.figures = ""
        self.lines = ProgressLines(self._line)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or args.disable_tqdm:
            return
        self.lines = ProgressLines(self._line, done=state.global_step)
        continues = f"continues from step {state.global_step} of " if state.global_step else ""
        self._line(f"{self.label}: {continues}{state.max_steps} steps")
        if not self.console.is_terminal:
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        # Short enough that a terminal of 80 columns cuts nothing.
        columns = (
            TextColumn("Training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self.bar = Progress(*columns, console=self.console, expand=True)
        self.bar.start()
        self.task = self.bar.add_task(
            "Training", total=state.max_steps, completed=state.global_step, figures=""
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step)
        elif state.is_world_process_zero and not args.disable_tqdm:
            step = f"  step {state.global_step}/{state.max_steps}"
            self.lines.update(
                step, state.global_step, state.max_steps, unit="steps", detail=self.figures
            )

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if (
            not state.is_world_process_zero
            or not logs
            or "train_runtime" in logs
            or args.disable_tqdm
        ):
            return
        names = {"ce": "CE", "kl": "KL", "eval_ce": "eval CE", "eval_kl": "eval KL"}
        parts = []
        for key, name in names.items():
            if key in logs:
                parts.append(f"{name} {logs[key]:.4g}")
        figures = ", ".join(parts)
        if self.bar is not None:
            self.bar.update(self.task, figures=figures)
            return
        self.figures = figures or self.figures
        if state.global_step == state.max_steps and figures:
            self._line(f"  step {state.global_step}/{state.max_steps}: {figures}")

    def _line(self, text: str) -> None:
        say(self.console, text)

    def close(self) -> None:
        """Leaves the terminal as it was, also after an error."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()


class EarlyStopping(TrainerCallback):
    """Ends training after `patience` evaluations in a row without a better one.

    It counts in the log of the trainer's state, which checkpoints carry: a run that is continued
    stops where it would have stopped. With `load_best_model_at_end` the result is the best
    checkpoint.

    Args:
        patience: evaluations, at least 1.
        say: gets a line when training ends.
    """

    def __init__(self, patience: int, *, say: Callable[[str], None] = lambda line: None) -> None:
        self.patience = patience
        self.say = say

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if (
            self._without_better(args, state) >= self.patience
        ):  # continued from the checkpoint that it stopped with
            control.should_training_stop = True
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        without = self._without_better(args, state)
        if without >= self.patience and state.global_step < state.max_steps:
            control.should_training_stop = True
            times = "evaluation" if without == 1 else f"{without} evaluations"
            self.say(
                f"Ended at step {state.global_step} of {state.max_steps}: no improvement in the "
                f"last {times}. The result is the best checkpoint."
            )
        return control

    def _without_better(self, args: Any, state: Any) -> int:
        """Evaluations since the best one; of equal ones the first is the best, as it is for the
        trainer."""
        name = str(args.metric_for_best_model or "loss")
        name = name if name.startswith("eval_") else f"eval_{name}"
        values = [float(row[name]) for row in state.log_history if name in row]
        if not values:
            return 0
        best = max(values) if args.greater_is_better else min(values)
        return len(values) - 1 - values.index(best)


class StopOnSignal(TrainerCallback):
    """Ctrl-C or SIGTERM: finish the step, write a checkpoint, stop; a second one stops at once.

    Use as a context manager around `trainer.train`; `stopped` then says whether a signal came.
    """

    def __init__(self, console: Any) -> None:
        self.console = console
        self.stopped = False
        self._first = 0.0
        self._held: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._held[number] = signal.signal(number, self._handle)
            except ValueError:  # not in the main thread: the host program keeps its own handling
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._held.items():
            signal.signal(number, handler)
        self._held.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            # One Ctrl-C can arrive twice: from the terminal and through the launcher that passes it
            # on.
            if time.monotonic() - self._first < SAME_SIGNAL_SECONDS:
                return
            raise KeyboardInterrupt
        self.stopped = True
        self._first = time.monotonic()
        say(
            self.console,
            "Stopping after this step to write a checkpoint. Press Ctrl-C again to stop at once.",
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.stopped:
            if (
                state.global_step < state.max_steps
            ):  # at the last step the run's own settings decide
                control.should_save = True
            control.should_training_stop = True
        return control
