"""Sequential fine-tuning with averaging, SFA (Soup to Go).

Every so often, go back part of the way. After optimiser step t of T, if `t mod round(p T) == 0` or
`t == T`:

    theta <- (1 - beta) theta + beta theta_o

and training goes on from the average. theta_o is the checkpoint at the end of the previous task: by
default the start model, or a named folder. beta is the weight on the OLD model (Eq. 5 and Fig. 1;
the paper's algorithm box is garbled). There is at most one average a step, also where the period
divides T. p = 1 averages once, at the end, which is WiSE-FT with weight beta on the old model.

The optimiser's moments are kept by default, as the paper is silent; `reset_optimizer` clears them
after each average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.anchor import START, Anchors, KeepAuto, anchor_problems, kept_anchor
from holdfast.retention.averages import Average, factored_problems
from holdfast.retention.protocol import (
    LAST_STEP,
    ActiveMethod,
    NamedParams,
    RetentionMethod,
    WeightCopy,
)


@dataclass(frozen=True, kw_only=True)
class SequentialAveraging(RetentionMethod):
    """Averages the weights with the old model's at a fixed period. This method works on the
    weights.

    References: Soup to Go, Algorithm 1 and Eq. 5.
    """

    name: ClassVar[str] = "sfa"
    title: ClassVar[str] = "SFA"
    needs: ClassVar[frozenset[str]] = frozenset({LAST_STEP})
    strength: ClassVar[tuple[str, ...]] = ("beta", "p")
    place: ClassVar[str] = "weights"
    hook_order: ClassVar[int] = 1
    summary: ClassVar[str] = "averages the weights with the initial ones several times"
    source: ClassVar[str] = (
        "Soup to Go: Mitigating Forgetting During Continual Learning with Model Averaging, "
        "Algorithm 1 and Eq. 5"
    )

    p: Annotated[float | None, Meta(gt=0, le=1)] = None
    """Fraction of the run between two averages. Default: 0.25 if `every` is not given. With 1, the
    weights are averaged once, at the end, which is WiSE-FT."""
    every: Annotated[int | None, Meta(ge=1)] = None
    """Optimiser steps between two averages. Give every or p, not both."""
    beta: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Weight of the old model in each average; 0 is direct fine-tuning."""
    reference: Annotated[str, Meta(former=("previous",))] = START
    """The old model: 'start' (the initial model), or the folder of the previous task's
    checkpoint."""
    reset_optimizer: bool = False
    """Reset the optimiser's moments after each average."""
    reference_device: KeepAuto = "auto"
    """Where to keep the old weights: device (the model's device), cpu (host memory), disk (a file
    that is read when needed). auto: disk for a folder, device for the initial model."""

    @property
    def off(self) -> bool:
        return self.beta == 0

    def problems(self) -> list[Problem]:
        problems = []
        if self.p is not None and self.every is not None:
            problems.append(
                Problem(
                    (),
                    f"expected either p or every, got both (p={self.p}, every={self.every})",
                )
            )
        return problems + anchor_problems("reference", self.reference)

    def check_run(self, *, total_steps: int | None) -> list[Problem]:
        if self.every is not None and total_steps is not None and self.every > total_steps:
            return [
                Problem(
                    "every", f"expected at most the run's {total_steps} steps, got {self.every}"
                )
            ]
        return []

    def period(self, total_steps: int) -> int:
        """Optimiser steps between two averages, at least 1."""
        if self.every is not None:
            return self.every
        return max(1, round((0.25 if self.p is None else self.p) * total_steps))

    def averages_at(self, step: int, total_steps: int) -> bool:
        """Whether an average follows optimiser step `step` (from 1) of `total_steps`."""
        return step % self.period(total_steps) == 0 or step == total_steps

    def check_weights(self, named: NamedParams) -> list[Problem]:
        return factored_problems("sfa", named) + anchor_problems("reference", self.reference, named)

    def copies(self) -> tuple[WeightCopy, ...]:
        return (kept_anchor(self.reference, self.reference_device),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return Average(
            anchors.keep(self.reference, self.reference_device),
            self.beta,
            self.averages_at,
            reset_optimizer=self.reset_optimizer,
        )
