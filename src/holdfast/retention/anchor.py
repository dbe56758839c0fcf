"""Anchors: the parameters that a method pulls back to.

The anchor of a run is by default its start model; SFA and L2 may name an earlier checkpoint instead (a safetensors folder). Methods that
share an anchor share one copy. Anchors are kept in the dtype and on the device of the parameters they belong to, and by parameter
name, so full fine-tuning (all weights) and LoRA (the adapter's weights) are the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ModelError

if TYPE_CHECKING:
    import torch

START = "start"
"""The name of the start model as an anchor."""


class Anchors:
    """Copies of parameters to pull back to, made when first asked for.

    Args:
        named: the trainable parameters of the start model by name. Must still hold the start's values when `get` is first
            called, so create it before a training checkpoint is loaded.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named = named
        self._copies: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def named(self) -> Mapping[str, torch.Tensor]:
        """The trainable parameters that the anchors belong to, by name."""
        return self._named

    def get(self, anchor: str = START) -> dict[str, torch.Tensor]:
        """Parameters by name, `[same shape, dtype, device]` as the run's.

        Args:
            anchor: "start" or the folder of a safetensors checkpoint of the same architecture.

        Raises:
            ModelError: the folder lacks parameters or has other shapes; all of them are named.
        """
        if anchor not in self._copies:
            if anchor == START:
                self._copies[anchor] = {name: p.detach().clone() for name, p in self._named.items()}
            else:
                self._copies[anchor] = load_anchor(anchor, self._named)
        return self._copies[anchor]


def load_anchor(folder: str | Path, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reads the parameters `named` from a checkpoint folder (`model*.safetensors`, or `adapter_model.safetensors` for LoRA).

    Raises:
        ModelError: no safetensors in the folder, parameters missing, shapes that differ.
    """
    from holdfast.checkpoints.reader import CheckpointReader

    reader = CheckpointReader(folder)
    stored = {_plain(name): name for name in reader.names()}
    problems: list[str] = []
    found: dict[str, torch.Tensor] = {}
    for name, parameter in named.items():
        # Tied heads are stored once; the reader knows the parameter under its first name only.
        key = stored.get(_plain(name))
        if key is None:
            problems.append(f"{name}: not in the checkpoint")
            continue
        tensor = reader.tensor(key)
        if tensor.shape != parameter.shape:
            problems.append(f"{name}: expected {tuple(parameter.shape)}, the checkpoint has {tuple(tensor.shape)}")
            continue
        found[name] = like(tensor, parameter)
    if problems:
        shown = "\n".join(f"  - {p}" for p in problems[:20]) + (f"\n  - ... and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise ModelError(
            f"The anchor {folder} does not fit the model being trained ({len(problems)} of {len(named)} parameters):\n{shown}\n"
            "Expected a checkpoint of the same architecture and vocabulary (for LoRA: of the same adapter shape)."
        )
    return found


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """`tensor` with the dtype, device and (for DTensors) sharding of `parameter`."""
    import torch

    tensor = tensor.to(device=parameter.device, dtype=parameter.dtype)
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor.clone(memory_format=torch.contiguous_format)


def aligned(anchor: dict[str, torch.Tensor], named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The anchor as the parameters are now: the same object where nothing changed, sharded and moved where a parallel wrapper did so to them.

    Anchors are taken before training begins, and FSDP2 turns parameters into DTensors after that.
    """
    first = next(iter(named.values()), None)
    if first is None:
        return anchor
    held = anchor[next(iter(named))]
    if type(held) is type(first.data) and held.device == first.device:
        return anchor
    return {name: like(anchor[name], parameter.data) for name, parameter in named.items()}


def _plain(name: str) -> str:
    """Parameter names as checkpoints write them: PEFT leaves the adapter's name out."""
    return name.replace(".default.", ".").replace(".modules_to_save.", ".")
