"""Measuring in the middle of a run: at given steps the model is evaluated as it is, and a function sees the figures and
may stop the run. The run itself does not change by it: its random states and the modes of the model's modules are put
back, so that weights and losses are those of a run without it, bit for bit.

```python
def reached(point: Point) -> None:
    found = point.measure()
    if not good(found):
        raise Interrupted("it learns nothing")

when = Along(shares=(0.25, 0.5))
at = MeasureAt(along=when, plan=config.evaluation, folder=run / "rungs", key="my-run", reached=reached)
train(config, callbacks=[at])
```

What is there already is not measured again, so that a run that is continued measures no step twice. For runs of one
process: others hold parts of the model.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from holdfast.records.evaluation import Evaluation, EvaluationFolder

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
        reached: gets each point; what it raises ends the run. `Interrupted` leaves the run to be continued.
        start: what was measured of the model that the run starts from, for entries that the result is held against it
            in.
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
    ) -> None:
        self.along, self.plan, self.folder, self.key, self.reached = along, plan, folder, key, reached
        self.start, self.tokenizer = start, tokenizer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step

        def measure() -> list[Evaluation]:
            return self._measure(step, kwargs["model"], self.tokenizer or kwargs["processing_class"])

        for share in self.along.reached(step, state.max_steps):
            self.reached(Point(share=share, step=step, measure=measure))

    def _measure(self, step: int, model: Any, tokenizer: Any) -> list[Evaluation]:
        from holdfast.evaluation.runner import evaluate

        with untouched(model):
            return evaluate(
                model,
                tokenizer,
                self.plan,
                folder=EvaluationFolder(self.folder / f"step-{step}"),
                model_identity={"name": f"step {step}", "hash": f"{self.key}-{step}"},
                start=self.start,
            )


@contextlib.contextmanager
def untouched(model: Any) -> Iterator[None]:
    """Evaluation mode inside; the mode of every module and all random states are as before at the end."""
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
