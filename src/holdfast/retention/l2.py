"""L2 to the start (regenerative regularisation, Kumar 2023; baseline of papers 000 and 002).

    penalty = coefficient / 2 * ||theta - theta_o||^2         gradient added: coefficient * (theta - theta_o)

theta_o is the start model or a named earlier checkpoint. The gradient is added analytically, once an optimiser step, before clipping: no
autograd graph, no pass through the model, and no dependence on gradient accumulation. With Adam the added gradient is scaled by the
preconditioner like any other.

Cost: one copy of the trainable parameters, two element-wise passes over them a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from holdfast.retention.anchor import START, Anchors, aligned
from holdfast.retention.method import ActiveMethod, NamedParams, Passive, RetentionMethod, StepInfo
from holdfast.retention.paths import folder_problems

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class L2(RetentionMethod):
    """Penalty on the distance to the start; memory kept in the gradient.

    References: paper 000, section 3 (baseline); paper 002, section 4.
    """

    name: ClassVar[str] = "l2"
    summary: ClassVar[str] = "penalty on the squared distance of the weights to the start"
    source: ClassVar[str] = "Kumar et al. 2023, regenerative regularization; Soup to Go, section 4"

    coefficient: float = field(default=0.01, metadata={"help": "lambda of lambda/2 * ||theta - theta_o||^2; 0 is direct fine-tuning"})
    anchor: str = field(default=START, metadata={"help": "theta_o: 'start', or the folder of an earlier checkpoint"})

    @property
    def off(self) -> bool:
        return self.coefficient == 0

    def problems(self) -> list[str]:
        found = [] if 0 <= self.coefficient < math.inf else [f"l2.coefficient: expected 0 or more, got {self.coefficient}"]
        return found + folder_problems("l2.anchor", self.anchor)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Pull(self.coefficient, anchors.get(self.anchor))


class _Pull(Passive):
    def __init__(self, coefficient: float, anchor: dict[str, torch.Tensor]) -> None:
        self.coefficient = coefficient
        self.anchor = anchor

    def add_gradient(self, named: NamedParams, step: StepInfo) -> None:
        import torch

        self.anchor = aligned(self.anchor, named)
        with torch.no_grad():
            for name, parameter in named.items():
                if parameter.grad is not None:
                    # The difference first: coefficient * theta - coefficient * theta_o would cancel away the small moves that count.
                    parameter.grad.add_((parameter - self.anchor[name]).to(parameter.grad.dtype), alpha=self.coefficient * step.grad_scale)

    def metrics(self, named: NamedParams) -> dict[str, float]:
        distance = math.sqrt(sum(float((p.detach() - self.anchor[n]).float().square().sum()) for n, p in named.items()))
        return {"l2_distance": distance, "l2_penalty": self.coefficient / 2 * distance**2}
