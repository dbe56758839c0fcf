"""Who computes the teacher's hidden states for label annealing.

| teacher | what it is | cost |
|---|---|---|
| `OnlineTeacher` | a second, frozen copy of the start model, any dtype | its weights and one forward pass a step |
| `AdapterOffTeacher` | a LoRA student's own base, adapters switched off for the pass | one forward pass a step, no memory |

Both see the very same inputs as the student (position ids, attention mask, packing fields), run without dropout and without a graph, and give
hidden states, never logits: the loss op multiplies by the teacher's head a few rows at a time.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.ops.heads import Head, causal_lm, describe_head, run_backbone


class Teacher(Protocol):
    """Gives the frozen start model's hidden states and head for a batch."""

    name: str

    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        """Hidden states `[B, T, K]` without graph, and the head that turns them into logits."""


class OnlineTeacher:
    """A frozen second copy of the start model.

    Args:
        model: the copy (see `freeze_copy`); put in evaluation mode and frozen here.
    """

    name = "online"

    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval().requires_grad_(False)
        self._head: Head | None = None

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        if self._head is None:
            self._head = describe_head(self.model).detached()
        return run_backbone(self.model, **inputs), self._head

    def to(self, device: torch.device) -> OnlineTeacher:
        """Moves the copy; returns itself."""
        self.model.to(device)
        self._head = None
        return self


class AdapterOffTeacher:
    """The student's own base model with its adapters disabled during the teacher's pass.

    Args:
        model: a PEFT model whose adapter is the identity at initialisation.

    Raises:
        ModelError: not a PEFT model, or an initialisation that changes the base weights (PiSSA, OLoRA, ...), whose base with
            adapters off is not the start model.
    """

    name = "adapter_off"

    def __init__(self, model: nn.Module) -> None:
        if not hasattr(model, "disable_adapter"):
            raise ModelError("label_annealing.teacher: adapter_off expects a LoRA model (use_peft: true), got full fine-tuning. Use teacher: online.")
        for peft_config in getattr(model, "peft_config", {}).values():
            init = getattr(peft_config, "init_lora_weights", True)
            if init not in (True, "gaussian", "orthogonal"):
                raise ModelError(
                    f"label_annealing.teacher: adapter_off expects an adapter that is the identity at the start, got init_lora_weights={init!r}, "
                    "which changes the base weights. Use teacher: online."
                )
        self.model = model

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        # Dropout of the base model has to be off too, and the student's mode has to come back exactly.
        training = [m for m in self.model.modules() if m.training]
        self.model.eval()
        try:
            with self.model.disable_adapter():  # type: ignore[operator]
                return run_backbone(self.model, **inputs), describe_head(self.model).detached()
        finally:
            for module in training:
                module.training = True


def freeze_copy(model: nn.Module, *, dtype: torch.dtype | None = None) -> nn.Module:
    """A deep copy of the causal LM for `OnlineTeacher`, optionally in another dtype.

    A trainer may have replaced `forward` on the instance; the copy gets its class's own again.
    """
    copied = copy.deepcopy(causal_lm(model))
    copied.__dict__.pop("forward", None)
    return copied.to(dtype) if dtype is not None else copied
