"""MoFO: of an optimiser step only the parameters with the largest momenta keep their update (Chen
et al. 2024).

    m, v, update u as Adam has them;  in each matrix, S = the places where |m| is among the largest `fraction`
    theta <- (1 - learning rate * decay) theta - learning rate * u    on S
    theta <- (1 - learning rate * decay) theta                        elsewhere

m and v are updated everywhere, so a parameter that is left out now may be in at the next step.
Vectors (norms, biases) and weight decay are not filtered, as in the authors' code; ties at the
smallest of S are all in S, and S is never empty (there `int(n * fraction) = 0` ends in an error).

S is that of the whole matrix: over all shards of a DTensor (FSDP2), as one process has it. The
optimiser steps on all of the matrix first, then what is not in S goes back: the values before the
step are kept until after it, so what is taken back is what the optimiser did, whatever it rounds.
Tensors that the optimiser left out (without a gradient, or in a step that the loss scaling of fp16
skipped) are left out here.

Cost: a copy of the trained matrices; a step, the search for S and two element-wise passes over
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta
from holdfast.errors import ConfigError
from holdfast.retention.protocol import (
    ADAMW,
    OPTIMIZER_STATE,
    ActiveMethod,
    NamedParams,
    Passive,
    RetentionMethod,
    StepInfo,
    WeightCopy,
)

if TYPE_CHECKING:
    import torch

    from holdfast.checkpoints.live_tensors import LiveTensor
    from holdfast.retention.anchor import Anchors


@dataclass(frozen=True, kw_only=True)
class MoFO(RetentionMethod):
    """Updates only the parameters with the largest momenta. This method works on the weights.

    References: Chen et al. 2024, MoFO: Momentum-Filtered Optimizer for Mitigating Forgetting in LLM
    Fine-Tuning (arXiv:2407.20999), Algorithm 1.
    """

    name: ClassVar[str] = "mofo"
    title: ClassVar[str] = "MoFO"
    strength: ClassVar[tuple[str, ...]] = ("fraction",)
    place: ClassVar[str] = "weights"
    hook_order: ClassVar[
        int
    ] = -1  # it takes back parts of the optimiser's update, and nothing else
    summary: ClassVar[str] = "updates only the parameters with the largest momenta"
    source: ClassVar[str] = (
        "MoFO: Momentum-Filtered Optimizer for Mitigating Forgetting in LLM Fine-Tuning, "
        "Algorithm 1"
    )
    needs: ClassVar[frozenset[str]] = frozenset({OPTIMIZER_STATE, ADAMW})

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.15
    """Share of each matrix's parameters to update: those with the largest momenta. 1 is direct
    fine-tuning."""

    @property
    def off(self) -> bool:
        return self.fraction == 1

    def copies(self) -> tuple[WeightCopy, ...]:
        return (WeightCopy(what="weights before the step"),)

    def start(self, anchors: Anchors) -> ActiveMethod:
        return _Filter(self.fraction)


class _Filter(Passive):
    """Keeps what the matrices were before the step, from one hook to the other."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self._before: dict[str, torch.Tensor] = {}
        self._counts: dict[str, float] = {}

    def gradient(self, named: NamedParams, step: StepInfo) -> None:
        import torch

        targets = _matrices(named)
        for target in targets:
            flat, _ = target.flat()
            self._before.setdefault(target.name, torch.empty_like(flat)).copy_(flat)
        self._counts = _steps_taken(targets, step)

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        from holdfast.checkpoints.live_thresholds import thresholds

        targets = _matrices(named)
        counts = _steps_taken(targets, step)
        moved = [t for t in targets if counts[t.name] != self._counts[t.name]]
        momenta = [_of_adam(t.name, step)["exp_avg"] for t in moved]
        for target, momentum, limit in zip(
            moved, momenta, thresholds(momenta, self.fraction), strict=True
        ):
            decay = float(_of_adam(target.name, step)["weight_decay"])
            _take_back(
                target,
                target.part_of(momentum),
                self._before[target.name],
                limit=limit,
                shrink=1 - step.learning_rates[target.name] * decay,
            )


def _matrices(named: NamedParams) -> list[LiveTensor]:
    from holdfast.checkpoints.live_tensors import live_tensors

    return [target for target in live_tensors(named)[0] if len(target.shape) > 1]


def _of_adam(name: str, step: StepInfo) -> Mapping[str, Any]:
    """What the optimiser keeps of a parameter; "weight_decay" is the decoupled one, 0 where it is
    in the gradient.

    Raises:
        ConfigError: the optimiser is not one of PyTorch's that keep a first moment.
    """
    state = {} if step.optimizer_state is None else step.optimizer_state(name)
    if "decoupled_weight_decay" not in state:  # which PyTorch's Adam and its like have
        raise ConfigError(
            "mofo: expected PyTorch's Adam or AdamW, which keep a momentum for each parameter "
            "(optim: adamw_torch or adamw_torch_fused), got "
            f"{state.get('optimizer', 'an unknown optimiser')}. Change optim, or leave "
            "mofo out."
        )
    return state if state["decoupled_weight_decay"] else {**state, "weight_decay": 0.0}


def _steps_taken(targets: Sequence[LiveTensor], step: StepInfo) -> dict[str, float]:
    """How often the optimiser has stepped on each parameter; in one transfer from the device."""
    import torch

    counts = [_of_adam(t.name, step).get("step", torch.zeros(())) for t in targets]
    read = (
        torch.stack([torch.as_tensor(c, dtype=torch.float64).reshape(()) for c in counts]).tolist()
        if counts
        else []
    )
    return dict(zip((t.name for t in targets), read, strict=True))


def _take_back(
    target: LiveTensor,
    momentum: torch.Tensor,
    before: torch.Tensor,
    *,
    limit: torch.Tensor,
    shrink: float,
) -> None:
    """Gives this rank's part back what it was, times `shrink`, where the momentum is below the
    limit."""
    import torch

    flat, copied = target.flat()
    # what stays in a core's cache, or keeps a device busy
    size = 1 << 18 if flat.device.type == "cpu" else 1 << 24
    for start in range(0, len(flat), size):
        block = slice(start, start + size)
        old = before[block] if shrink == 1 else before[block] * shrink
        flat[block] = torch.where(momentum[block].abs() >= limit, flat[block], old)
    if copied:
        target.write_back(flat)
