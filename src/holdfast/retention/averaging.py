"""Sequential fine-tuning with averaging, SFA (paper 002): every so often, go back part of the way.

After optimiser step t of T, if `t mod round(p T) == 0` or `t == T`:

    theta <- (1 - beta) theta + beta theta_o

and training goes on from the average. theta_o is the checkpoint at the end of the previous task: by default the start model, or a named
folder. beta is the weight on the OLD model (Eq. 5 and Fig. 1; the paper's algorithm box is garbled). There is at most one average a
step, also where the period divides T. p = 1 averages once, at the end, which is WiSE-FT with weight beta.

The optimiser's moments are kept by default, as the paper is silent; `reset_optimizer` clears them after each average.

Cost: one pass over the trainable parameters per average; no second model in the forward pass. The start is kept as a copy of the trainable
parameters. A named folder is read anew at each average, tensor by tensor, each rank its own part, and nothing is kept; unless its dtype holds digits
that the parameters' does not (float32 files, a bfloat16 run): then a rounded copy is, since unrounded values would average to other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from holdfast.retention.anchor import START, Anchors, aligned
from holdfast.retention.method import ActiveMethod, NamedParams, Passive, RetentionMethod, StepInfo
from holdfast.retention.paths import folder_problems

if TYPE_CHECKING:
    import torch

    from holdfast.checkpoints.reader import CheckpointReader


@dataclass(frozen=True, kw_only=True)
class SequentialAveraging(RetentionMethod):
    """Averages the weights with the old model's at a fixed period; memory kept in the weights.

    References: paper 002, Algorithm 1 and Eq. 5.
    """

    name: ClassVar[str] = "sfa"
    summary: ClassVar[str] = "average the weights with the start's every p of the run and train on from there"
    source: ClassVar[str] = "Soup to Go: Mitigating Forgetting During Continual Learning with Model Averaging, Algorithm 1 and Eq. 5"

    p: float | None = field(
        default=None, metadata={"help": "fraction of the run between averages, in (0, 1]; default 0.25 when `every` is not given"}
    )
    every: int | None = field(default=None, metadata={"help": "optimiser steps between averages, instead of p"})
    beta: float = field(default=0.5, metadata={"help": "weight on the OLD model in each average, in [0, 1]; 0 is direct fine-tuning"})
    previous: str = field(default=START, metadata={"help": "the old model: 'start', or the folder of the previous task's checkpoint"})
    reset_optimizer: bool = field(default=False, metadata={"help": "clear the optimiser's moments after each average"})

    @property
    def off(self) -> bool:
        return self.beta == 0

    def problems(self) -> list[str]:
        found = []
        if self.p is not None and self.every is not None:
            found.append(f"sfa: expected one of p and every, got p={self.p} and every={self.every}")
        if self.p is not None and not 0 < self.p <= 1:
            found.append(f"sfa.p: expected a fraction in (0, 1], got {self.p}")
        if self.every is not None and self.every < 1:
            found.append(f"sfa.every: expected 1 step or more, got {self.every}")
        if not 0 <= self.beta <= 1:
            found.append(f"sfa.beta: expected a weight in [0, 1], got {self.beta}")
        return found + folder_problems("sfa.previous", self.previous)

    def check_run(self, *, total_steps: int | None) -> list[str]:
        if self.every is not None and total_steps is not None and self.every > total_steps:
            return [f"sfa.every: expected at most the run's {total_steps} steps, got {self.every}"]
        return []

    def period(self, total_steps: int) -> int:
        """Steps between averages, at least 1."""
        if self.every is not None:
            return self.every
        return max(1, round((0.25 if self.p is None else self.p) * total_steps))

    def averages_at(self, step: int, total_steps: int) -> bool:
        """Whether optimiser step `step` (from 1) of `total_steps` is followed by an average."""
        return step % self.period(total_steps) == 0 or step == total_steps

    def start(self, anchors: Anchors) -> ActiveMethod:
        streamed = None if self.previous == START else _streamed(self.previous, anchors.named)
        return _Average(self, anchors.get(self.previous) if streamed is None else streamed)


class _Average(Passive):
    def __init__(self, method: SequentialAveraging, anchor: dict[str, torch.Tensor] | CheckpointReader) -> None:
        self.method = method
        self.anchor = anchor
        self.count = 0

    def after_step(self, named: NamedParams, step: StepInfo) -> None:
        from holdfast.checkpoints.live import lerp_

        if not self.method.averages_at(step.step, step.total_steps):
            return
        if isinstance(self.anchor, dict):
            self.anchor = aligned(self.anchor, named)
        lerp_(named, self.anchor, self.method.beta)
        self.count += 1
        if self.method.reset_optimizer and step.reset_optimizer is not None:
            step.reset_optimizer()

    def metrics(self, named: NamedParams) -> dict[str, float]:
        return {"sfa_averages": float(self.count)}

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = int(state["count"])


def _streamed(folder: str, named: NamedParams) -> CheckpointReader | None:
    """The open folder, if each of its tensors fits its parameter and is exact in the parameter's dtype."""
    import numpy as np

    from holdfast.checkpoints.dtypes import dtype
    from holdfast.checkpoints.live import counterparts
    from holdfast.checkpoints.reader import CheckpointReader

    reader = CheckpointReader(folder)
    fits = counterparts(named, reader, header=f"The anchor {folder} does not fit the model being trained")
    for target, key in fits:
        stored, held = reader.entries[key].dtype, dtype(str(target.parameter.dtype))
        if stored.exponent > held.exponent or stored.mantissa > held.mantissa:
            return None
        reader.read(key, 0, 0, np.empty(0, np.uint8))  # opens the file: removing the folder during the run does not matter then
    return reader
