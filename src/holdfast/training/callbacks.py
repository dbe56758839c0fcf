"""What a run shows and writes while it trains: metrics.jsonl, one progress bar, and a clean stop on Ctrl-C."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from holdfast.results import read_jsonl, to_jsonable, write_jsonl


class MetricsFile(TrainerCallback):
    """Appends one JSON line a logged step: step, epoch, loss, ce and kl (nats per token), learning rate, tokens, seconds.

    After a resume, lines of steps that will be trained again are dropped first, and the clock goes on from where it stood.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began = time.monotonic()
        self.before = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        held = [row for row in read_jsonl(self.path) if row.get("step", 0) <= state.global_step] if self.path.is_file() else []
        self.before = max((float(row.get("seconds", 0.0)) for row in held), default=0.0)
        write_jsonl(self.path, held)
        self.began = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        row = {"step": state.global_step, **logs, "seconds": round(self.before + time.monotonic() - self.began, 3)}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(to_jsonable(row), allow_nan=False) + "\n")


class Progress(TrainerCallback):
    """One bar with loss, KL, speed and time left; without a terminal a line at each tenth of the run."""

    def __init__(self, console: Any, label: str) -> None:
        self.console = console
        self.label = label
        self.bar: Any = None
        self.task: Any = None
        self.last_tenth = -1
        self.text = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or args.disable_tqdm:
            return
        if self.console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=self.console,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=state.max_steps, completed=state.global_step, figures="")
        elif state.global_step:
            self.console.print(f"{self.label}: continues from step {state.global_step} of {state.max_steps}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs or args.disable_tqdm:
            return
        names = {"ce": "CE", "kl": "KL", "eval_ce": "eval CE", "eval_kl": "eval KL"}
        parts = [f"{name} {logs[key]:.4g}" for key, name in names.items() if key in logs]
        self.text = ", ".join(parts)
        if self.bar is not None:
            self.bar.update(self.task, figures=self.text)
            return
        tenth = 10 * state.global_step // max(state.max_steps, 1)
        if tenth != self.last_tenth:
            self.last_tenth = tenth
            self.console.print(f"{self.label}: step {state.global_step}/{state.max_steps}  {self.text}")

    def close(self) -> None:
        """Leaves the terminal as it was, also after an error."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()


class StopOnSignal(TrainerCallback):
    """Ctrl-C or SIGTERM: finish the step, write a checkpoint, stop; a second one stops at once.

    Use as a context manager around `trainer.train`; `stopped` then says whether a signal came.
    """

    def __init__(self, console: Any) -> None:
        self.console = console
        self.stopped = False
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
            raise KeyboardInterrupt
        self.stopped = True
        self.console.print("Stopping after this step and writing a checkpoint. Press Ctrl-C again to stop at once.")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.stopped:
            control.should_save = state.global_step < state.max_steps
            control.should_training_stop = True
        return control
