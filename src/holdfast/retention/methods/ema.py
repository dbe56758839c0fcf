"""EMA: the result of a run is an exponential moving average of its weights.

The average m begins at the start and follows the weights every `every` steps, and at the last step
whether or not it is one of these: m <- decay m + (1 - decay) theta. Then the weights become m.
Training itself is not changed. The average is of the trained parameters, whatever they are.

Cost: a float32 copy of the trained parameters, and a pass over them a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.anchor import Anchors, aligned
from holdfast.retention.protocol import (
    LAST_STEP,
    ActiveMethod,
    NamedParams,
    Passive,
    RetentionMethod,
    StepInfo,
    WeightCopy,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage(RetentionMethod):
    """Takes an exponential moving average of the weights as the result of the run. The average
    begins at the initial model. This method works on the weights.

    References: Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging (its
    exponential form, as usual in deep learning).
    """

    name: ClassVar[str] = "ema"
    title: ClassVar[str] = "EMA"
    needs: ClassVar[frozenset[str]] = frozenset({LAST_STEP})
    strength: ClassVar[tuple[str, ...]] = ("decay",)
    place: ClassVar[str] = "weights"
    hook_order: ClassVar[int] = 2
    summary: ClassVar[str] = "returns an exponential moving average of the weights"
    source: ClassVar[str] = (
        "Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging"
    )

    decay: Annotated[float, Meta(ge=0, le=1)] = 0.999
    """Decay: weight of the old average in each update; 0 is direct fine-tuning."""
    every: Annotated[int, Meta(ge=1)] = 1
    """Optimiser steps between updates of the average. The last step always updates it."""

    @property
    def off(self) -> bool:
        return self.decay == 0

    def check_run(self, *, total_steps: int | None) -> list[Problem]:
        if total_steps is not None and self.every > total_steps:
            return [
                Problem(
                    "every", f"expected at most the run's {total_steps} steps, got {self.every}"
                )
            ]
        return []

    def copies(self) -> tuple[WeightCopy, ...]:
        return (WeightCopy(what="average", dtype="float32"),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Shadow(
            self,
            {
                name: p.detach().to(_at_least_single(p.dtype), copy=True)
                for name, p in anchors.named.items()
            },
        )


class _Shadow(Passive):
    """The average is kept in float32 at least: at decay 0.999 an update is smaller than half a unit
    in the last place of a bfloat16 weight."""

    def __init__(self, method: ExponentialAverage, shadow: dict[str, torch.Tensor]) -> None:
        self.method, self.shadow = method, shadow

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        from holdfast.checkpoints.live import lerp_

        self.shadow = aligned(self.shadow, named)
        last = step.step == step.total_steps
        if step.step % self.method.every == 0 or last:
            lerp_(self.shadow, named, 1 - self.method.decay)
        if last:
            lerp_(named, self.shadow, 1.0)

    def metrics(self, named: NamedParams) -> dict[str, float]:
        from holdfast.checkpoints.live import Pieces

        self.shadow = aligned(self.shadow, named)
        pieces = Pieces(named, [self.shadow], ["The average"])
        return {
            "ema_distance": math.sqrt(
                pieces.total(
                    lambda piece: (piece.weight.double() - piece.others[0].double()).square().sum()
                )
            )
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from holdfast.retention.anchor import like

        missing = sorted(self.shadow.keys() - state.keys())
        if missing:
            raise ValueError(
                f"ema: the checkpoint lacks the average of {len(missing)} parameters: "
                f"{', '.join(missing[:5])}"
            )
        self.shadow = {name: like(state[name], tensor) for name, tensor in self.shadow.items()}


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    import torch

    return dtype if dtype == torch.float64 else torch.float32
