"""A rehearsal: the run itself, in a temporary folder, on a small copy of its model with random
weights.

The request's own settings train the copy (`runs.run.train`): the real trainer, methods, adapter,
loss, optimiser and data preparation take one optimiser step on the first rows, save a checkpoint,
resume from it, take another step, and measure one sample of each entry before and after. What a
library refuses late is refused now: a metric that no evaluation has, a reward that takes other
arguments, an attention without a backward pass.

What is smaller than in the run, and what is left out, is said (`runs.small_request`). Speed, memory
and what is learnt are not looked at.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from holdfast.errors import ConfigError, HoldfastError, Interrupted, StorageError
from holdfast.runs.small_request import SmallRequest
from holdfast.support.cache import cache_folder
from holdfast.support.environment import (
    environment_variable,
    forgotten_datasets,
    offline,
    quiet_datasets,
    quiet_libraries,
    quiet_transformers,
)
from holdfast.support.progress import CountReport, counted

if TYPE_CHECKING:
    from holdfast.runs.config import Machine, TrainConfig

STAGES = {
    "evaluate start": "measuring the initial model",
    "save": "saving the model",
    "evaluate along": "measuring steps of the training",
    "evaluate result": "measuring the result",
    "report": "comparing before and after",
    "done": "writing the report",
}
"""What a run does in the stages that `_Steps` does not see."""

VARIABLES = {"ACCELERATE_DYNAMO_BACKEND": "no", "ACCELERATE_USE_DEEPSPEED": "false"}
"""What transformers tells accelerate in the environment, where arguments ask for it."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was rehearsed."""

    smaller: tuple[str, ...]
    """What was smaller than it is in the run, in a few words each."""
    left_out: tuple[str, ...]
    """What was not rehearsed."""
    seconds: float


class _Saved(Interrupted):
    """The first session ends, with a checkpoint."""


class _Steps(TrainerCallback):
    """Interrupts a run behind its first checkpoint, and ends the resumed run after a step.

    Args:
        report: gets what is being done.
    """

    def __init__(self, report: CountReport) -> None:
        self.report, self.taken, self.saved = report, 0, False
        self.begin("preparing the run")

    def begin(self, doing: str) -> None:
        self.doing = doing
        self.report(self.taken, detail=doing)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin("taking the step after the checkpoint" if self.saved else "taking a step")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.taken += 1
        self.begin("evaluating held-out rows and saving a checkpoint")
        control.should_save = True
        control.should_training_stop = self.saved
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.saved:
            self.saved = True
            self.begin("resuming from the checkpoint")
            raise _Saved("The checkpoint is there.")


def rehearse(
    config: TrainConfig, tokenizer: Any, *, machine: Machine, steps: int | None = None
) -> Rehearsal:
    """Rehearses a run whose model and data are on this machine.

    Args:
        config: of the run.
        tokenizer: of its model, as `loading.load_tokenizer` gives it.
        machine: that the run is for.
        steps: optimiser steps of the run, which schedules and methods go by; None: counted by its
            rows.

    Raises:
        ConfigError: the run fails; what it was doing, and the library's message.
        NoCopy: there is nothing to rehearse on.
    """
    from rich.console import Console

    from holdfast.runs.run import train

    began = time.monotonic()
    with _quiet_folder() as folder, counted("Rehearsing on a small copy") as report:
        moment = _Steps(report)
        small = SmallRequest(config, folder, tokenizer, machine)
        request = small.made(steps)
        run = functools.partial(
            train, request, console=Console(quiet=True), callbacks=[moment], alone=False
        )
        try:
            with contextlib.suppress(_Saved):
                run()
            if moment.taken:
                run()
        except Interrupted:
            raise KeyboardInterrupt from None  # nothing is left that could continue
        except StorageError:  # of this machine, not of the request
            raise
        except Exception as error:  # what a request makes of libraries has no common base
            doing = STAGES.get(getattr(error, "stage", ""), moment.doing)
            text = f"{error}" if isinstance(error, HoldfastError) else _with_type(error)
            raise ConfigError(
                f"rehearsal, {doing}: {small.in_words_of_the_request(text)}"
            ) from error
    if not moment.taken:
        raise ConfigError(
            "rehearsal: no step was taken, because there are fewer rows than a batch. Give more "
            "rows, or lower per_device_train_batch_size."
        )
    return Rehearsal(
        smaller=tuple(small.smaller),
        left_out=tuple(small.left_out),
        seconds=time.monotonic() - began,
    )


def _with_type(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _quiet_folder() -> Iterator[Path]:
    """A temporary folder. Inside, nothing is fetched or shown, and what runs share is read from
    holdfast's cache and written to the folder."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as name,
        offline(),
        quiet_libraries(),
        quiet_transformers(),
        quiet_datasets(),
        forgotten_datasets(),
    ):
        cache = Path(name) / "cache"
        cache.mkdir()
        for shared in cache_folder().glob("*"):
            if shared.name not in ("self_replay", "teacher_states"):
                (cache / shared.name).symlink_to(shared.absolute())
        with contextlib.ExitStack() as stack:
            for variable, value in {**VARIABLES, "HOLDFAST_CACHE": str(cache)}.items():
                stack.enter_context(environment_variable(variable, value))
            yield Path(name)
