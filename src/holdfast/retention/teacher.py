"""Who computes the teacher's hidden states for label annealing.

| teacher | what it is | cost |
|---|---|---|
| `OnlineTeacher` | a second, frozen copy of the start model, any dtype | its weights and one forward pass a step |
| ... `bits=8`, `bits=4` | the same, its linear maps quantised (`retention.quantize`) | half or a quarter of its
weights; not quite the start model |
| ... `on_cpu=True` | the same, its layers in host memory (`retention.offload`) | two layers, embeddings, head on the
device; the copies |
| ... `.shard(mesh)` | the same, sharded over the ranks (FSDP2) | its share of the weights, and their gathers |
| `AdapterOffTeacher` | a LoRA student's own base, adapters switched off for the pass | one forward pass a step, no
memory |

All see the very same inputs as the student (position ids, attention mask, packing fields), run without dropout and
without a graph, and give hidden states, never logits: the loss op multiplies by the teacher's head a few rows at a
time.

A sharded teacher's head is gathered once and kept, because the op multiplies by all of it in every micro-batch: `[V,
H]` in the teacher's dtype on each rank (1 GB for 128 k tokens, width 4096, bfloat16), no more than the student's own
head takes there during the op.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.ops.four_bits import keep_unpacked
from holdfast.ops.heads import Head, causal_lm, describe_head, is_distributed_tensor, is_sharded, run_outside
from holdfast.retention.anchor import START, load_anchor
from holdfast.retention.offload import HostLayers, decoder_layers
from holdfast.retention.quantize import quantize_linears

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
        model: the copy (see `freeze_copy`); put in evaluation mode and frozen here. It may have been sharded by
            `fully_shard`.
        bits: 8 or 4: quantise its linear maps with bitsandbytes when it moves to its device. The KL then does not start
            at 0 (see `retention.quantize`).
        on_cpu: keep its layers in host memory and stream them to the device (see `retention.offload`).

    Raises:
        ModelError: bits other than 8 or 4, no bitsandbytes, nothing to quantise, no list of layers to stream, 4-bit
            layers repacked for inference (see `keep_unpacked`), or options that exclude each other.
    """

    name = "online"

    def __init__(self, model: nn.Module, *, bits: int | None = None, on_cpu: bool = False) -> None:
        if bits is not None and on_cpu:
            raise ModelError(
                f"teacher: expected either {bits} bits or the weights in host memory, got both; the scales of "
                f"quantised weights are not streamed. "
                "Choose one."
            )
        if (bits is not None or on_cpu) and is_sharded(model):
            raise ModelError(
                "teacher: expected a whole model to quantise or to keep in host memory, got one sharded by FSDP. "
                "Choose one."
            )
        self.model = model.eval().requires_grad_(False)
        self.bits, self.on_cpu = bits, on_cpu
        self._waiting = bits is not None
        self._stream: HostLayers | None = None
        self._head = _FrozenHead(self.model)
        if bits is not None:
            quantize_linears(self.model, bits)
        keep_unpacked(self.model)  # also a copy of a student in 4 bits: both compute alike
        if on_cpu:
            decoder_layers(self.model)  # an error now rather than at the first step

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        if self._waiting:
            self.to(describe_head(self.model).weight_VH.device)
        return run_outside(self.model, **inputs), self._head.get()

    def to(self, device: torch.device) -> OnlineTeacher:
        """Moves the copy (with `on_cpu`: what does not stay in host memory) and quantises it where asked; returns
        itself."""
        if not self.on_cpu:
            self.model.to(device)
        else:
            if self._stream is not None:
                self._stream.close()
            self._stream = HostLayers(self.model, torch.device(device))
        self._waiting = False
        self._head = _FrozenHead(self.model)
        return self

    def shard(self, mesh: DeviceMesh, **options: Any) -> OnlineTeacher:
        """Shards the copy over a data-parallel mesh with FSDP2, layer by layer; returns itself. Call it instead of
        `to`.

        Args:
            mesh: one dimension (sharded), or two (replicated, sharded).
            **options: `fully_shard`'s, such as `mp_policy` and `offload_policy`.

        Raises:
            ModelError: with `bits` or `on_cpu`.
        """
        from torch.distributed.fsdp import fully_shard

        if self.bits is not None or self.on_cpu:
            raise ModelError(
                "teacher: expected a whole teacher in its own dtype to shard, got one in 8 or 4 bits or in host "
                "memory. Choose one."
            )
        for layer in decoder_layers(self.model):
            fully_shard(layer, mesh=mesh, **options)
        head, embeddings = self.model.get_output_embeddings(), self.model.get_input_embeddings()  # type: ignore[operator]
        tied = head.weight is embeddings.weight
        if not tied:
            # Apart from the root, so that the embeddings' gather before every pass does not bring the head along.
            fully_shard(head, mesh=mesh, **options)
        # Tied, the root's weight stays whole after the first pass: the op needs it, and no copy has to be kept beside
        # it.
        fully_shard(self.model, mesh=mesh, **{"reshard_after_forward": not tied, **options})
        self._head = _FrozenHead(self.model)
        return self


class AdapterOffTeacher:
    """The student's own base model with its adapters disabled during the teacher's pass.

    Args:
        model: a PEFT model whose adapter is the identity at initialisation.

    Raises:
        ModelError: not a PEFT model, an adapter that is tuned already, or an initialisation that changes the base
            weights (PiSSA, OLoRA, ...): its base with adapters off is not the start model.
    """

    name = "adapter_off"

    def __init__(self, model: nn.Module) -> None:
        if not hasattr(model, "disable_adapter"):
            raise ModelError(
                "label_annealing.teacher: adapter_off expects a LoRA model (use_peft: true), got full fine-tuning. "
                "Use teacher: online."
            )
        init: Any = True
        for peft_config in getattr(model, "peft_config", {}).values():
            init = getattr(peft_config, "init_lora_weights", True)
            if init not in (True, "gaussian", "orthogonal"):
                raise ModelError(
                    f"label_annealing.teacher: adapter_off expects an adapter that is the identity at the start, got "
                    f"init_lora_weights={init!r}, "
                    "which changes the base weights. Use teacher: online."
                )
        named = dict(model.named_parameters())
        tuned = next((n for n, p in named.items() if "lora_B" in n and bool(p.detach().any())), None)
        if tuned is not None and init != "orthogonal":
            raise ModelError(
                f"label_annealing.teacher: adapter_off expects an adapter that is the identity at the start, got one "
                f"that is tuned ({tuned} is not 0): without it the model is not the start. Merge the adapter into the "
                f"model first (holdfast merge), and tune a new one."
            )
        self.model = model
        self._head = _FrozenHead(model)

    @torch.no_grad()
    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, Head]:
        # Dropout of the base model has to be off too, and the student's mode has to come back exactly.
        training = [m for m in self.model.modules() if m.training]
        self.model.eval()
        try:
            with self.model.disable_adapter():  # type: ignore[operator]
                return run_outside(self.model, **inputs), self._head.get()
        finally:
            for module in training:
                module.training = True


class _FrozenHead:
    """A teacher's head: the model's own tensors, or where they are sharded a whole copy, gathered once and kept."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._gathered: Head | None = None

    def get(self) -> Head:
        """Call it without grad, after the model's pass."""
        if self._gathered is not None:
            return self._gathered
        weight = causal_lm(self._model).get_output_embeddings().weight  # type: ignore[operator]
        head = describe_head(self._model).detached()
        # Only a copy of its own may be kept: FSDP frees the storage of a weight that is whole for the moment when it
        # shards it again.
        if is_distributed_tensor(weight) and not weight.requires_grad:
            self._gathered = head
        return head


def freeze_copy(model: nn.Module, *, dtype: torch.dtype | None = None, weights: str = START) -> nn.Module:
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
        named = dict(copied.named_parameters())
        with torch.no_grad():
            for name, tensor in load_anchor(weights, named).items():
                named[name].copy_(tensor)
    return copied.to(dtype) if dtype is not None else copied
