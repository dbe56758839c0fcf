"""The pull back to an anchor that L2 and EWC share: `strength * F * (theta - theta_o)`, F all ones
for L2.

It acts once an optimiser step, outside autograd, either on the gradients (before clipping) or,
decoupled, on the weights (after the optimiser):

    gradient   g     <- g + strength F (theta - theta_o)
    decoupled  theta <- theta - min(1, eta strength F) (theta - theta_o)
               eta: the learning rate of the step just taken

Both go through the parameters in pieces that stay in the cache, so no temporary of a model's size
exists, and anchor and F may lie in memory, on another device, or in a file that is streamed.
DTensors are worked on where they lie: each rank reads and changes its own part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.retention.anchor import aligned
from holdfast.retention.protocol import NamedParams, Passive, StepInfo

if TYPE_CHECKING:
    import torch

    from holdfast.checkpoints.live import Pieces
    from holdfast.retention.anchor import Kept


class Pull(Passive):
    """An active method that pulls parameters back.

    Args:
        anchor: theta_o: tensors by name, or an open folder.
        importance: F, 0 or more, of the anchor's names and shapes; None: 1 everywhere.
        strength: the coefficient; may be changed between steps.
        decoupled: whether to act on the weights rather than the gradients.
        prefix: of the logged figures.
    """

    def __init__(
        self,
        anchor: Kept,
        *,
        importance: Kept | None = None,
        strength: float,
        decoupled: bool = False,
        prefix: str,
    ) -> None:
        self._held: list[Any] = [anchor] if importance is None else [anchor, importance]
        self.strength: float | None = strength
        self.decoupled, self.prefix = decoupled, prefix
        self._pieces: Pieces | None = None

    def gradient(self, named: NamedParams, step: StepInfo) -> None:
        if self.decoupled or not self.strength:
            return
        for _, weight, gradient, others in self._each(named):
            if gradient is not None:
                # The difference first: strength * theta - strength * theta_o would cancel away the
                # small moves that count.
                pull, factor = self._difference(weight, others), self.strength * step.grad_scale
                if gradient.dtype == pull.dtype:
                    gradient.add_(pull, alpha=factor)
                else:
                    gradient.copy_(_single(gradient).add_(pull, alpha=factor))  # rounded once

    def weights(self, named: NamedParams, step: StepInfo) -> None:
        if not self.decoupled or not self.strength:
            return
        for name, weight, _, others in self._each(named):
            share = self.strength * step.learning_rates[name]
            moved = _single(weight)
            anchor = others[0].to(moved.dtype)
            if len(others) == 1:
                weight.copy_(moved.lerp(anchor, min(1.0, share)))
            else:
                weight.copy_(
                    moved.lerp(anchor, (others[1].to(moved.dtype) * share).clamp_(max=1.0))
                )

    def metrics(self, named: NamedParams) -> dict[str, float]:
        pieces = self._each(named)
        squared = pieces.total(
            lambda piece: (_single(piece.weight) - _single(piece.others[0])).square().sum()
        )
        weighted = squared
        if len(self._held) > 1:
            weighted = pieces.total(
                lambda piece: (
                    (
                        (_single(piece.weight) - _single(piece.others[0])).square()
                        * _single(piece.others[1])
                    )
                    .double()
                    .sum()
                )
            )
        return {
            f"{self.prefix}_distance": math.sqrt(squared),
            f"{self.prefix}_penalty": (self.strength or 0.0) / 2 * weighted,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"strength": self.strength}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.strength = state.get("strength", self.strength)  # absent where it could not change yet

    @staticmethod
    def _difference(weight: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
        difference = _single(weight) - _single(others[0])
        return difference if len(others) == 1 else difference.mul_(_single(others[1]))

    def _each(self, named: NamedParams) -> Pieces:
        """Prepared once, when training has begun: parallel wrappers may replace parameters
        before."""
        from holdfast.checkpoints.live import Pieces

        if self._pieces is None:
            for number, tensors in enumerate(self._held):
                if isinstance(tensors, dict) and _same_device(tensors, named):
                    self._held[number] = aligned(tensors, named)
            self._pieces = Pieces(
                named,
                self._held,
                [f"The anchor of {self.prefix}", f"The Fisher information of {self.prefix}"][
                    : len(self._held)
                ],
            )
        return self._pieces


def _single(tensor: torch.Tensor) -> torch.Tensor:
    """In the type that the pull is computed in: float32, or float64 as it is."""
    import torch

    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _same_device(held: Mapping[str, torch.Tensor], named: NamedParams) -> bool:
    """Whether an anchor lies on the parameters' kind of device, so that it follows them; one in
    host memory stays there."""
    name = next(iter(named), None)
    return name is not None and held[name].device.type == named[name].device.type
