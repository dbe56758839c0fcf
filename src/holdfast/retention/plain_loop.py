"""Retention methods in a training loop of your own, on any `torch.nn.Module`.

```python
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
retention = attach_retention([SequentialAveraging(p=0.25)], model, optimizer, total_steps=steps)
for inputs, labels in batches:                                 # `steps` of them
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    retention.add_gradients()                                  # before clipping
    optimizer.step()
    retention.after_step()
```

The hooks run at the same moments as in `holdfast train`. Methods that act on the gradient or on the
weights work: L2, EWC, SFA, WiSE-FT, EMA and your own. Methods of the data and of the loss are
refused, and so are methods that look at the optimiser's state. Replay needs no hook: mix old
samples into the batches. EWC takes the Fisher information as a folder (`fisher`); it cannot compute
it here.

The loop runs in one process. Nothing is saved, so an interrupted training starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import ConfigError
from holdfast.retention.anchor import Anchors
from holdfast.retention.protocol import (
    OPTIMIZER_STATE,
    ActiveMethod,
    RetentionMethod,
    StepInfo,
    check_declared,
    in_turn,
    problems_below,
)
from holdfast.retention.services import rates_by_name, trainable_parameters

if TYPE_CHECKING:
    import torch

    from holdfast.retention.services import Services

PLACES = ("gradient", "weights")
"""Where methods of a plain loop may keep memory."""


def attach_retention(
    methods: Sequence[RetentionMethod],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    total_steps: int,
) -> AttachedRetention:
    """Starts retention methods on a model in your own training loop. The model's present weights
    are the reference.

    Args:
        methods: the methods; those that are off are left out.
        model: the model; its parameters that require gradients are trained.
        optimizer: the optimiser of these parameters.
        total_steps: optimiser steps of the training.

    Returns:
        The hooks `add_gradients` and `after_step`. Call each once an optimiser step.

    Raises:
        ConfigError: methods cannot work in a plain loop or do not fit the training; the message
            lists all of them.
        ModelError: a reference or Fisher information belongs to another model.
    """
    parameters = trainable_parameters(model)
    active_methods = [method for method in methods if not method.off]
    problems: list[str] = []
    for method in active_methods:
        if method.place not in PLACES or OPTIMIZER_STATE in method.needs:
            problems.append(
                f"{method.name}: expected a method that acts on gradients or weights only, such "
                f"as l2, ewc, sfa, wise_ft or ema, got {method.name}, which needs a trainer. Use "
                "'holdfast train'."
            )
            continue
        of_method = [
            *method.problems(),
            *method.check_run(total_steps=total_steps),
            *method.check_weights(parameters),
        ]
        problems += problems_below(method, of_method)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    anchors = Anchors(parameters)
    started = [method.start(anchors) for method in active_methods]
    for method, active in zip(active_methods, started, strict=True):
        check_declared(method, active)
        active.prepare(cast("Services", _NoServices()))
    return AttachedRetention(in_turn(active_methods, started), parameters, optimizer, total_steps)


class AttachedRetention:
    """Retention methods in a running training loop. `attach_retention` returns it."""

    def __init__(
        self,
        active: Sequence[ActiveMethod],
        named: dict[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        total_steps: int,
    ) -> None:
        self._active, self._named, self._optimizer = active, named, optimizer
        self._total_steps, self._step = total_steps, 0

    def add_gradients(self) -> None:
        """Adds the gradients of the methods. Call it once an optimiser step, after backward and
        before gradient clipping."""
        self._step += 1
        info = self._info()
        for method in self._active:
            method.gradient(self._named, info)

    def after_step(self) -> None:
        """Applies the methods' changes to the weights. Call it once after each optimiser step."""
        info = self._info()
        for method in self._active:
            method.weights(self._named, info)

    def _info(self) -> StepInfo:
        return StepInfo(
            step=self._step,
            total_steps=self._total_steps,
            reset_optimizer=self._optimizer.state.clear,
            learning_rates=rates_by_name(self._optimizer.param_groups, self._named),
        )


class _NoServices:
    """What a plain loop offers to methods that ask for data or for the model's losses: nothing."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            "retention: expected methods that need no data in a plain loop, got one that needs "
            f"{name}. For ewc give Fisher information (fisher: FOLDER) instead of data."
        )
