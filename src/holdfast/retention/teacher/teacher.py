"""Who computes the teacher's hidden states for label annealing.

| teacher | what it is | cost |
|---|---|---|
| `OnlineTeacher` | a second, frozen copy of the start model, any dtype | its weights and one forward pass a step |
| ... `.shard(mesh)` | the same, sharded over the ranks (FSDP2) | its share of the weights, and their gathers |
| `AdapterOffTeacher` | a LoRA student's own base, adapters switched off for the pass | one forward pass a step, no
memory |

All see the very same inputs as the student (position ids, attention mask, packing fields), run
without dropout and without a graph, and give hidden states, never logits: the loss op multiplies by
the teacher's head a few rows at a time.

A sharded teacher's head is gathered once and kept, because the op multiplies by all of it in every
micro-batch: `[V, H]` in the teacher's dtype on each rank (1 GB for 128 k tokens, width 4096,
bfloat16), no more than the student's own head takes there during the op.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.ops.four_bits import keep_unpacked
from holdfast.ops.heads import (
    Head,
    causal_lm,
    decoder_layers,
    describe_head,
    is_distributed_tensor,
    run_outside,
)
from holdfast.retention.anchor import START, load_anchor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Teacher(Protocol):
    """Gives the frozen start model's hidden states and head for a batch."""

    name: str

    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        """Hidden states `[B, T, K]` without graph, and the head that turns them into logits."""


class OnlineTeacher:
    """A frozen second copy of the start model.

    Args:
        model: the copy (see `freeze_copy`); put in evaluation mode and frozen here. It may have
            been sharded by `fully_shard`.

    Raises:
        ModelError: 4-bit layers repacked for inference (see `keep_unpacked`).
    """

    name = "online"

    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval().requires_grad_(False)
        self._head = _FrozenHead(self.model)
        keep_unpacked(self.model)  # also a copy of a student in 4 bits: both compute alike

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        return run_outside(self.model, **inputs), self._head.get()

    def to(self, device: torch.device) -> OnlineTeacher:
        """Moves the copy; returns itself."""
        self.model.to(device)
        self._head = _FrozenHead(self.model)
        return self

    def shard(self, mesh: DeviceMesh, **options: Any) -> OnlineTeacher:
        """Shards the copy over a data-parallel mesh with FSDP2, layer by layer; returns itself.
        Call it instead of `to`.

        Args:
            mesh: one dimension (sharded), or two (replicated, sharded).
            **options: `fully_shard`'s, such as `mp_policy` and `offload_policy`.
        """
        from torch.distributed.fsdp import fully_shard

        for layer in decoder_layers(self.model):
            fully_shard(layer, mesh=mesh, **options)
        head, embeddings = self.model.get_output_embeddings(), self.model.get_input_embeddings()  # type: ignore[operator]
        tied = head.weight is embeddings.weight
        if not tied:
            # Apart from the root, so that the embeddings' gather before every pass does not bring
            # the head along.
            fully_shard(head, mesh=mesh, **options)
        # Tied, the root's weight stays whole after the first pass: the op needs it, and no copy has
        # to be kept beside it.
        fully_shard(self.model, mesh=mesh, **{"reshard_after_forward": not tied, **options})
        self._head = _FrozenHead(self.model)
        return self


class AdapterOffTeacher:
    """The student's own base model with its adapters disabled during the teacher's pass.

    Args:
        model: a PEFT model whose adapter is the identity at initialisation.

    Raises:
        ModelError: not a PEFT model, an adapter that is tuned already, or an initialisation that
            changes the base
            weights (PiSSA, OLoRA, ...): its base with adapters off is not the start model.
    """

    name = "adapter_off"

    def __init__(self, model: nn.Module) -> None:
        if not hasattr(model, "disable_adapter"):
            raise ModelError(
                "label_annealing.teacher: adapter_off expects a LoRA model (use_peft: true), got "
                "full fine-tuning. Use teacher: online."
            )
        init: Any = True
        for peft_config in getattr(model, "peft_config", {}).values():
            init = getattr(peft_config, "init_lora_weights", True)
            if init not in (True, "gaussian", "orthogonal"):
                raise ModelError(
                    "label_annealing.teacher: adapter_off expects a new adapter that changes "
                    f"nothing, got init_lora_weights={init!r}, which changes the base weights. "
                    "Use teacher: online."
                )
        parameters = dict(model.named_parameters())
        tuned = next(
            (n for n, p in parameters.items() if "lora_B" in n and bool(p.detach().any())), None
        )
        if tuned is not None and init != "orthogonal":
            raise ModelError(
                "label_annealing.teacher: adapter_off expects a new adapter that changes nothing, "
                f"got a tuned one ({tuned} is not 0). Switching it off would not give the initial "
                "model of this run. Merge the adapter into the model first (holdfast merge), and "
                "train a new one."
            )
        self.model = model
        self._head = _FrozenHead(model)

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        with without_dropout(self.model), self.model.disable_adapter():  # type: ignore[operator]
            return run_outside(self.model, **inputs), self._head.get()


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode comes back exactly."""
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _FrozenHead:
    """A teacher's head: the model's own tensors, or where they are sharded a whole copy, gathered
    once and kept."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._gathered: Head | None = None

    def get(self) -> Head:
        """Call it without grad, after the model's pass."""
        if self._gathered is not None:
            return self._gathered
        weight = causal_lm(self._model).get_output_embeddings().weight  # type: ignore[operator]
        head = describe_head(self._model).detached()
        # Only a copy of its own may be kept: FSDP frees the storage of a weight that is whole for
        # the moment when it shards it again.
        if is_distributed_tensor(weight) and not weight.requires_grad:
            self._gathered = head
        return head


def freeze_copy(
    model: nn.Module, *, dtype: torch.dtype | None = None, weights: str = START
) -> nn.Module:
    """A deep copy of the causal LM for `OnlineTeacher`.

    A trainer may have replaced `forward` on the instance; the copy gets its class's own again.

    Args:
        model: of which a copy is made.
        dtype: of the copy; None: the model's.
        weights: "start", the model's own, or the folder of a checkpoint of the same architecture.

    Raises:
        ModelError: the folder lacks parameters or has other shapes.
    """
    copied = copy.deepcopy(causal_lm(model))
    copied.__dict__.pop("forward", None)
    if weights != START:
        parameters = dict(copied.named_parameters())
        with torch.no_grad():
            for name, tensor in load_anchor(weights, parameters).items():
                parameters[name].copy_(tensor)
    return copied.to(dtype) if dtype is not None else copied
