"""L2 to the start (regenerative regularisation, Kumar 2023; baseline of "Memory Retaining
Finetuning" and "Soup to Go").

    penalty = coefficient / 2 * ||theta - theta_o||^2         gradient added: coefficient * (theta - theta_o)

theta_o is the start model or a named earlier checkpoint. The gradient is added analytically, once
an optimiser step, before clipping: no autograd graph, no pass through the model, and no dependence
on gradient accumulation. With Adam the added gradient is scaled by the preconditioner like any
other; `decoupled` moves the weights instead, after the optimiser, as AdamW's weight decay does
towards zero:

    theta <- theta - learning rate * coefficient * (theta - theta_o)

Cost: one copy of the trainable parameters (none on the device with `reference_device: cpu` or
`disk`), one element-wise pass over them a step (see `pull`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import Problem
from holdfast.retention.anchor import START, Anchors, Keep, anchor_problems, kept_anchor
from holdfast.retention.protocol import ActiveMethod, NamedParams, RetentionMethod, WeightCopy
from holdfast.retention.pull import Pull


@dataclass(frozen=True, kw_only=True)
class L2(RetentionMethod):
    """Penalty on the squared distance of the weights to the reference. This method works on the
    gradient.

    References: Memory Retaining Finetuning, section 3 (baseline); Soup to Go, section 4; decoupled
    as Loshchilov and Hutter 2019 (arXiv:1711.05101).
    """

    name: ClassVar[str] = "l2"
    title: ClassVar[str] = "L2"
    strength: ClassVar[tuple[str, ...]] = ("coefficient",)
    place: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "penalty on the squared distance to the initial weights"
    source: ClassVar[str] = "Kumar et al. 2023, regenerative regularization; Soup to Go, section 4"

    coefficient: Annotated[float, Meta(ge=0)] = 0.01
    """Lambda in lambda/2 * ||theta - theta_o||^2; 0 is direct fine-tuning."""
    reference: Annotated[str, Meta(former=("anchor",))] = START
    """Theta_o: 'start' (the initial model), or the folder of an earlier checkpoint."""
    decoupled: bool = False
    """Pull the weights toward theta_o by learning rate * lambda after the optimiser step, like
    AdamW's weight decay, instead of adding a gradient."""
    reference_device: Keep = "device"
    """Where to keep the old weights: device (the model's device), cpu (host memory), disk (a file
    that is read when needed)."""

    @property
    def off(self) -> bool:
        return self.coefficient == 0

    def problems(self) -> list[Problem]:
        return anchor_problems("reference", self.reference)

    def check_weights(self, named: NamedParams) -> list[Problem]:
        return anchor_problems("reference", self.reference, named)

    def copies(self) -> tuple[WeightCopy, ...]:
        return (kept_anchor(self.reference, self.reference_device),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return Pull(
            anchors.keep(self.reference, self.reference_device),
            strength=self.coefficient,
            decoupled=self.decoupled,
            prefix="l2",
        )
