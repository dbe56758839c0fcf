"""Measuring in the middle of a run: at given steps the model is evaluated as it is, and a function
sees the figures and may stop the run. The run itself does not change by it: its random states and
the modes of the model's modules are put back, so that weights and losses are those of a run without
it, bit for bit.

```python
def reached(point: Point) -> None:
    found = point.measure()
    if not good(found):
        raise Interrupted("it learns nothing")

when = Along(shares=(0.25, 0.5))
at = MeasureAt(along=when, plan=config.evaluation, folder=run / "rungs", key="my-run", reached=reached)
train(config, callbacks=[at])
```

What is there already is not measured again, so that a run that is continued measures no step twice.
For runs of one process. Of several each may hold a part of the model: they write it down at those
steps (`KeepAt`), and what was written is measured when the run has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from holdfast.errors import HoldfastError, RunFolderError
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.runs.stopping import Outcome, Rules, outcome

if TYPE_CHECKING:
    from holdfast.evaluation.entries import Along, EvaluationPlan


@dataclass(frozen=True, kw_only=True)
class Point:
    """A moment of a run."""

    share: float
    """Of the steps, between 0 and 1; as it was asked for, where it was."""
    step: int
    """Optimiser steps done."""
    measure: Callable[[], list[Evaluation]]
    """Evaluates the model as it is now, or finds it evaluated."""


class MeasureAt(TrainerCallback):
    """Calls `reached` at steps of a run.

    Args:
        along: says at which; the end is not among them.
        plan: what is measured.
        folder: gets `step-<n>/` with the evaluations.
        key: tells the weights of this run from those of others at the same step.
        reached: gets each point; what it raises ends the run. `Interrupted` leaves the run to be
            continued.
        start: what was measured of the model that the run starts from, for entries that the result
            is held against it in.
        tokenizer, processor: as of `models.Loaded`.
    """

    def __init__(
        self,
        *,
        along: Along,
        plan: EvaluationPlan,
        folder: Path,
        key: str,
        reached: Callable[[Point], None],
        start: EvaluationFolder | None = None,
        tokenizer: Any = None,
        processor: Callable[[], Any] | None = None,
    ) -> None:
        self.along, self.plan, self.folder, self.key, self.reached = (
            along,
            plan,
            folder,
            key,
            reached,
        )
        self.start, self.tokenizer, self.processor = start, tokenizer, processor

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step

        def measure() -> list[Evaluation]:
            return self._measure(
                step, kwargs["model"], self.tokenizer or kwargs["processing_class"]
            )

        for share in self.along.reached(step, state.max_steps):
            self.reached(Point(share=share, step=step, measure=measure))

    def _measure(self, step: int, model: Any, tokenizer: Any) -> list[Evaluation]:
        from holdfast.evaluation.runner import evaluate
        from holdfast.models import Loaded

        identity = {"name": f"step {step}", "hash": f"{self.key}-{step}"}
        loaded = Loaded(
            model=model, tokenizer=tokenizer, identity=identity, processor=self.processor
        )
        with untouched(model):
            return evaluate(
                loaded,
                self.plan,
                folder=EvaluationFolder(self.folder / f"step-{step}"),
                start=self.start,
            )


class KeepAt(TrainerCallback):
    """Writes the weights down at steps of a run, to be measured when it has ended.

    Args:
        along: says at which; the end is not among them.
        folder: gets `step-<n>/` with the weights.
        measured: with `step-<n>/` where a step was measured already.
        save: writes the model into a folder; called by every process.
    """

    def __init__(
        self, along: Along, folder: Path, measured: Path, save: Callable[[Path], None]
    ) -> None:
        self.along, self.folder, self.measured, self.save = along, folder, measured, save

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = f"step-{state.global_step}"
        is_there = (self.folder / name).is_dir() or (self.measured / name).is_dir()
        if self.along.reached(state.global_step, state.max_steps) and not is_there:
            self.save(self.folder / name)


class StopEarly(MeasureAt):
    """Ends training by what is measured (`runs.stopping`), and keeps the checkpoint that is the
    result: the trainer's best one, which it loads at its end. The last step is measured too.

    Nothing is remembered but the measurements on disk, so that a run that is continued ends where
    it would have ended.

    Args:
        rules: when to end.
        start: what was measured of the start.
        say: gets a line when training ends.
        more: as of `MeasureAt`; of the plan only the entries that the rules name are measured.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        start: EvaluationFolder,
        say: Callable[[str], None] = lambda line: None,
        **more: Any,
    ) -> None:
        super().__init__(start=start, **more)
        self.rules, self.say = rules, say
        watched = {rule.entry for rule in rules}
        entries = tuple(e for e in self.plan.entries if f"{e.suite}/{e.name}" in watched)
        self.plan = dataclasses.replace(self.plan, entries=entries, averages=(), along=None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if (
            state.global_step and self._outcome(state).ended is not None
        ):  # continued from the end that it had
            control.should_training_stop = True
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        step, last = state.global_step, state.global_step >= state.max_steps
        if not self._is_moment(step, state.max_steps):
            return control

        def measure() -> list[Evaluation]:
            return self._measure(
                step, kwargs["model"], self.tokenizer or kwargs["processing_class"]
            )

        self.reached(Point(share=step / state.max_steps, step=step, measure=measure))
        result = self._outcome(state)
        if result.kept is None:
            raise HoldfastError(
                f"Ended at step {step} of {state.max_steps}: {result.ended}, and no earlier "
                "measurement was within the limit. Measure earlier (evaluation.along), lower "
                "the learning rate, or use a retention method."
            )
        if result.kept == step:
            state.best_global_step = step
            state.best_model_checkpoint = os.path.join(args.output_dir, f"checkpoint-{step}")
            control.should_save = True
        if result.ended is not None:
            control.should_training_stop = True
            self.say(
                f"Ended at step {step} of {state.max_steps}: {result.ended}. The result is step "
                f"{result.kept}."
            )
        elif last and result.kept != step:
            self.say(f"The result is step {result.kept}, the best measured step, not the last.")
        return control

    def _is_moment(self, step: int, total: int) -> bool:
        return step >= total or bool(self.along.reached(step, total))

    def _outcome(self, state: Any) -> Outcome:
        moments = [
            step
            for step in range(1, state.global_step + 1)
            if self._is_moment(step, state.max_steps)
        ]
        start = (
            self._figures(self.start)
            if any(rule.max_loss is not None for rule in self.rules)
            else {}
        )
        return outcome(self.rules, start, [(step, self._measured_at(step)) for step in moments])

    def _measured_at(self, step: int) -> dict[str, Metric]:
        return self._figures(
            EvaluationFolder(self.folder / f"step-{step}"), hash=f"{self.key}-{step}"
        )

    def _figures(
        self, folder: EvaluationFolder | None, hash: str | None = None
    ) -> dict[str, Metric]:
        """The leading figures by suite/name.

        Raises:
            RunFolderError: one is not there, or of another model.
        """
        assert folder is not None
        figures = {}
        for entry in self.plan.entries:
            e = folder.find(entry.suite, entry.name)
            if e is None or (hash is not None and e.model.get("hash") != hash):
                raise RunFolderError(
                    f"early_stopping: found no results of {entry.suite}/{entry.name} in "
                    f"{folder.path}. They are needed to decide when to stop. Restore them, or "
                    "choose a new output_dir."
                )
            figures[f"{entry.suite}/{entry.name}"] = e.metrics[e.primary]
        return figures


@contextlib.contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Evaluation mode inside; the mode of every module and all random states are as before at the
    end."""
    import numpy as np
    import torch

    training = [module for module in model.modules() if module.training]
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    devices = [torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    try:
        model.eval()
        yield
    finally:
        for module in training:  # one by one: a frozen part in eval mode stays in it
            module.training = True
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for state in devices:
            torch.cuda.set_rng_state_all(state)
