"""A frozen model whose layers wait in host memory and visit the compute device one after another.

A teacher is read once a step and never written, so its weights need not live on the accelerator. Embeddings, final norm
and head do (they are shared with the loss op or small); the decoder layers stay in host memory, each packed into one
flat (on CUDA machines page-locked) block, and are copied into one of two device buffers just before they run:

    while layer i computes from one buffer, layer i + 1 is copied into the other on a stream of its own

so the device holds two layers instead of all of them, and a layer takes max(compute, copy) instead of their sum. With N
tokens a step, a layer of P weights of b bytes computes 2 N P operations and copies b P bytes: at 50 GB/s and 400
TFLOP/s the copy hides behind the computation from 8000 tokens on (bfloat16). After the last layer the first is fetched
again for the next step.

Layers are the entries of the backbone's longest outermost `nn.ModuleList` and are expected to run in its order; another
order is right too, only without overlap. A parameter also used outside the layers stays on the device; one shared
between layers travels with each of them. Buffers (masks, tables) stay on the device. When the compute device is the CPU
the copies are made all the same, which serves tests, nothing else.

Not here: training (the weights are frozen), weights on disk, quantised or sharded weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ModelError
from holdfast.ops.heads import backbone_of

ALIGNMENT = 64
"""Bytes; every tensor in a block starts at a multiple, as the allocators' own do, so that kernels choose the same code
for both."""


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of the backbone's longest `nn.ModuleList` that lies in no other (a layer's experts are no layers),
    each once.

    Raises:
        ModelError: there is none.
    """
    backbone = backbone_of(model)
    lists = list(_outermost_lists(backbone))
    if not lists:
        raise ModelError(
            f"Expected a model whose layers lie in an nn.ModuleList, got {type(backbone).__name__}, which has none. "
            f"Keep the teacher on the device."
        )
    longest: nn.ModuleList = max(lists, key=len)
    return list(dict.fromkeys(longest))


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            if len(child):
                yield child
        else:
            yield from _outermost_lists(child)


class HostLayers:
    """Streams the decoder layers of a frozen model from host memory to `device`, by hooks around each layer's forward.

    The model's results are those of the model on the device, to the last bit. Its parameters outside the layers are
    moved to the device for good. PyTorch rounds a page-locked block up to a power of two, so on CUDA machines the host
    memory can be up to twice the weights.

    Args:
        model: a causal LM on the CPU, without trainable parameters; changed in place (its layers' parameters become
            views of the packed blocks).
        device: where it computes.

    Raises:
        ModelError: no list of layers, trainable parameters, or layers that are not in host memory.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.device = torch.device(device)
        self.layers = decoder_layers(model)
        trainable = [n for n, p in model.named_parameters() if p.requires_grad]
        if trainable:
            raise ModelError(
                f"Expected a frozen model to stream from host memory, got trainable parameters "
                f"({', '.join(trainable[:3])}). Freeze it first."
            )
        resident = _move_the_rest(model, set(self.layers), self.device)
        pin = self.device.type == "cuda"
        homes: dict[int, Tensor] = {}
        self._packed = [_Packed.of(layer, resident, homes, pin=pin) for layer in self.layers]
        size = max(p.host.numel() for p in self._packed)
        self._slots = [
            _Slot(torch.empty(size, dtype=torch.uint8, device=self.device)) for _ in range(min(2, len(self.layers)))
        ]
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._clock = 0
        self._hooks = []
        for number, layer in enumerate(self.layers):
            self._hooks.append(layer.register_forward_pre_hook(self._before(number)))
            # Also after an exception: the parameters have to be at home again.
            self._hooks.append(layer.register_forward_hook(self._after(number), always_call=True))

    @property
    def buffer_bytes(self) -> int:
        """Device memory of the two buffers."""
        return sum(slot.buffer.numel() for slot in self._slots)

    @property
    def host_bytes(self) -> int:
        """Host memory of the packed layers."""
        return sum(packed.host.numel() for packed in self._packed)

    def close(self) -> None:
        """Takes the hooks off and frees the buffers; the layers stay in host memory."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._stream is not None:
            self._stream.synchronize()
        for packed in self._packed:
            packed.at_home()
        self._slots = []

    # ---------------------------------------------------------------------------------------------------- the hooks

    def _before(self, number: int) -> Any:
        def hook(layer: nn.Module, args: Any) -> None:
            slot = self._holding(number) or self._fetch(number)
            slot.in_use = True
            self._clock += 1
            slot.used = self._clock
            if slot.ready is not None:
                torch.cuda.current_stream(self.device).wait_event(slot.ready)
            self._packed[number].in_buffer(slot.buffer)
            following = (number + 1) % len(self.layers)
            if self._holding(following) is None:
                self._fetch(following)

        return hook

    def _after(self, number: int) -> Any:
        def hook(layer: nn.Module, args: Any, output: Any) -> None:
            self._packed[number].at_home()
            slot = self._holding(number)
            if slot is not None:
                slot.in_use = False
                if self._stream is not None:
                    # The next copy into this buffer waits until the layer's kernels have read it.
                    slot.released = torch.cuda.current_stream(self.device).record_event()

        return hook

    def _holding(self, number: int) -> _Slot | None:
        return next((slot for slot in self._slots if slot.layer == number), None)

    def _fetch(self, number: int) -> _Slot:
        """Starts the copy of a layer into the buffer that was not used for longest."""
        free = [slot for slot in self._slots if not slot.in_use]
        if not free:
            raise ModelError(
                f"Expected the layers of {type(self.layers[number]).__name__} to run one after another, got one that "
                f"runs inside another. "
                "Keep the teacher on the device."
            )
        slot = min(free, key=lambda s: s.used)
        slot.layer = None
        host = self._packed[number].host
        target = slot.buffer[: host.numel()]
        if self._stream is None:
            target.copy_(host)
        else:
            if slot.released is not None:
                self._stream.wait_event(slot.released)
            else:
                self._stream.wait_stream(torch.cuda.current_stream(self.device))  # the buffer's allocation
            with torch.cuda.stream(self._stream):
                target.copy_(host, non_blocking=True)
                slot.ready = self._stream.record_event()
            # Should the buffer be freed while a copy is under way, its memory is not given to others before the copy
            # has ended.
            slot.buffer.record_stream(self._stream)
        slot.layer = number
        return slot


@dataclass
class _Slot:
    """One device buffer and what is in it."""

    buffer: Tensor
    """`[bytes]` uint8."""
    layer: int | None = None
    in_use: bool = False
    used: int = 0
    ready: Any = None
    """CUDA event: the copy has arrived."""
    released: Any = None
    """CUDA event: the layer's kernels have read it."""


@dataclass
class _Packed:
    """One layer's parameters in one flat block of host memory."""

    host: Tensor
    """`[bytes]` uint8."""
    places: list[tuple[nn.Parameter, int]]
    """Each parameter and the byte where it begins."""
    homes: list[Tensor] = field(default_factory=list)
    """What the parameters are while the layer does not run; a parameter shared between layers lives in the first one's
    block."""

    @classmethod
    def of(cls, layer: nn.Module, resident: set[int], homes: dict[int, Tensor], *, pin: bool) -> _Packed:
        """Packs a layer's parameters but the resident ones; `homes` remembers, by id, those that an earlier layer has
        packed."""
        parameters = [p for p in dict.fromkeys(layer.parameters()) if id(p) not in resident]
        wrong = sorted({str(p.device) for p in parameters if p.device.type != "cpu"})
        if wrong:
            raise ModelError(
                f"Expected layers in host memory, got parameters on {', '.join(wrong)}. Load the teacher on the CPU."
            )
        places, end = [], 0
        for parameter in parameters:
            places.append((parameter, end))
            end += -(-parameter.numel() * parameter.element_size() // ALIGNMENT) * ALIGNMENT
        host = torch.empty(end, dtype=torch.uint8, pin_memory=pin)
        packed = cls(host=host, places=places)
        for parameter, view in zip(parameters, packed._views(host), strict=True):
            view.copy_(parameter.detach())
            parameter.data = homes.setdefault(id(parameter), view)
            packed.homes.append(parameter.data)
        return packed

    def _views(self, block: Tensor) -> list[Tensor]:
        views = []
        for parameter, start in self.places:
            bytes_ = parameter.numel() * parameter.element_size()
            views.append(block[start : start + bytes_].view(parameter.dtype).view(parameter.shape))
        return views

    def in_buffer(self, buffer: Tensor) -> None:
        for (parameter, _), view in zip(self.places, self._views(buffer), strict=True):
            parameter.data = view

    def at_home(self) -> None:
        for (parameter, _), home in zip(self.places, self.homes, strict=True):
            parameter.data = home


def _move_the_rest(module: nn.Module, layers: set[nn.Module], device: torch.device) -> set[int]:
    """Moves parameters outside the layers, and every buffer, to the device; returns the ids of those parameters."""
    moved: set[int] = set()

    def walk(part: nn.Module, inside: bool) -> None:
        inside = inside or part in layers
        for parameter in [] if inside else part.parameters(recurse=False):
            if id(parameter) not in moved:
                moved.add(id(parameter))
                parameter.data = parameter.data.to(device)
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.to(device)
        for child in part.children():
            walk(child, inside)

    walk(module, False)
    return moved
