"""holdfast's own figures in the trackers of `report_to` (TensorBoard, Weights & Biases, MLflow,
trackio, ...).

Trainer hands its logs to transformers' integrations, among them the retention terms (`kl`, `ce`, a
method's figures), and closes them when training ends. What was measured of start and result, and
the differences, come before and after: so the trackers are held open until the run is done, and get
these figures at the step whose model they are of.

| figure | name | at step |
|---|---|---|
| an evaluation of start, result, or on the way | `eval_SUITE/ENTRY/METRIC` | 0, the result's, each that was measured |
| a difference to the start | the same with `_difference`, `_difference_low`, `_difference_high` | the result's |

transformers shows `eval_` as `eval/` where a tracker has sections. Nothing else is handed on: no
rows, no texts, no settings beside those that transformers itself writes down, which leaves tokens
out.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import get_reporting_integration_callbacks

if TYPE_CHECKING:
    from holdfast.records.comparison import Comparison
    from holdfast.records.evaluation import Evaluation

PREFIX = "eval_"
"""What transformers puts into a section of its own."""


class Trackers:
    """The trackers of a run, from its first step until its last figure.

    Args:
        args: the run's `TrainingArguments`.
    """

    def __init__(self, args: Any) -> None:
        self.args = args
        self._kinds = tuple(get_reporting_integration_callbacks(args.report_to))
        self._open: list[tuple[Any, Any]] = []
        self._trainer: Any = None
        self._state: Any = TrainerState()
        self._more: dict[str, Any] = {}
        self._sent: set[tuple[int, str]] = set()

    def hold(self, trainer: Any) -> None:
        """Takes over when a trainer's trackers are closed: by `close`, not at the end of
        training."""
        self._trainer = trainer

        def kept_open(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pass

        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, self._kinds):
                self._open.append((callback, callback.on_train_end))
                callback.on_train_end = kept_open
        self._more = {"model": trainer.model, "processing_class": trainer.processing_class}

    def begin(self, model: Any, step: int) -> None:
        """Opens the trackers of a run whose training is over, for what is still to come."""
        self._state, self._more = TrainerState(global_step=step, max_steps=step), {"model": model}
        for kind in self._kinds:
            callback = kind()
            callback.on_train_begin(self.args, self._state, TrainerControl(), **self._more)
            self._open.append((callback, callback.on_train_end))

    def add(self, figures: Mapping[str, float], step: int) -> None:
        """Hands figures on, each once a step; those that are no finite numbers are left out.

        Args:
            figures: by name.
            step: optimiser steps done by the model that they are of.
        """
        new = {}
        for name, value in figures.items():
            if math.isfinite(value) and (step, name) not in self._sent:
                new[name] = value
        if not self._open or not new:
            return
        self._sent |= {(step, name) for name in new}
        state = copy.copy(self._state if self._trainer is None else self._trainer.state)
        state.global_step = step
        for callback, _ in self._open:
            callback.on_log(self.args, state, TrainerControl(), logs=dict(new), **self._more)

    def close(self) -> None:
        """Closes what is open; a second time does nothing."""
        while self._open:
            callback, end = self._open.pop()
            with contextlib.suppress(AttributeError):
                del callback.on_train_end  # the one in its place; the class's own is there again
            state = self._state if self._trainer is None else self._trainer.state
            end(self.args, state, TrainerControl(), **self._more)


class AtStart(TrainerCallback):
    """Hands on what was measured of the start, once the trackers are open.

    Args:
        trackers: a run's; put this callback behind theirs.
        evaluations: what was measured of the start.
    """

    def __init__(self, trackers: Trackers, evaluations: Sequence[Evaluation]) -> None:
        self.trackers, self.evaluations = trackers, evaluations

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:  # a run that is continued has handed it on
            self.trackers.add(evaluation_figures(self.evaluations), 0)


def evaluation_figures(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Every metric of every entry."""
    figures = {}
    for evaluation in evaluations:
        for name, metric in evaluation.metrics.items():
            figures[f"{PREFIX}{evaluation.suite}/{evaluation.name}/{name}"] = metric.value
    return figures


def comparison_figures(found: Iterable[Comparison]) -> dict[str, float]:
    """Of every leading metric the difference to the start, in its unit, with its interval."""
    figures: dict[str, float] = {}
    for c in found:
        if c.primary:
            name = f"{PREFIX}{c.suite}/{c.name}/{c.metric}_difference"
            figures |= {
                name: c.difference,
                f"{name}_low": c.interval[0],
                f"{name}_high": c.interval[1],
            }
    return figures
