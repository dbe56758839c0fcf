"""Anchors: the parameters that a method pulls back to.

The anchor of a run is by default its start model; SFA and L2 may name an earlier checkpoint instead (a safetensors
folder). Methods that share an anchor share one copy. Anchors are kept by parameter name, so full fine-tuning (all
weights) and LoRA (the adapter's weights) are the same code, and in their own dtype: the start's is the parameters', a
file's is the file's, so that a half-precision run does not round a float32 anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.config.declare import Meta
from holdfast.errors import ModelError

if TYPE_CHECKING:
    import torch

    from holdfast.checkpoints.reader import CheckpointReader

    Kept = Mapping[str, torch.Tensor] | CheckpointReader

START = "start"
"""The name of the start model as an anchor."""
Keep = Annotated[Literal["device", "cpu", "disk"], Meta(decides=False)]
"""Where an anchor may be kept between steps: beside the parameters, in host memory, or in a file that is streamed."""
KeepAuto = Annotated[Literal["auto", "device", "cpu", "disk"], Meta(decides=False)]
"""The same, or "auto": on the disk for a folder, which lies there anyway, and on the device for the start."""


class Anchors:
    """Copies of parameters to pull back to, made when first asked for.

    Args:
        named: the trainable parameters of the start model by name. Must still hold the start's values when `get` is
            first called, so create it before a training checkpoint is loaded.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named = named
        self._copies: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def named(self) -> Mapping[str, torch.Tensor]:
        """The trainable parameters that the anchors belong to, by name."""
        return self._named

    def get(self, anchor: str = START) -> dict[str, torch.Tensor]:
        """Parameters by name, `[same shape, device]` as the run's, in the anchor's own dtype.

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

    def keep(self, anchor: str, where: str) -> Kept:
        """The anchor where it is to be kept; what is not on the device is not shared between methods.

        Args:
            anchor: as of `get`.
            where: one of `KeepAuto`. "disk" streams a named folder as it is, and writes the start's parameters to a file without a
                name, which is gone when the process ends.

        Raises:
            ModelError: as `get`.
            StorageError: the disk has no room for the file.
        """
        if where == "auto":
            where = "device" if anchor == START else "disk"
        if where == "device":
            return self.get(anchor)
        if anchor != START:
            return (
                streamed(anchor, self._named)
                if where == "disk"
                else {n: t.cpu() for n, t in load_anchor(anchor, self._named).items()}
            )
        if where == "cpu":
            return {name: p.detach().to("cpu", copy=True) for name, p in self._named.items()}
        return unnamed_file(self._named)


def streamed(folder: str, named: Mapping[str, torch.Tensor]) -> CheckpointReader:
    """An open folder whose tensors fit the parameters; removing it during the run does not matter then.

    Raises:
        ModelError: the folder lacks parameters or has other shapes; all of them are named.
    """
    import numpy as np

    from holdfast.checkpoints.live import counterparts
    from holdfast.checkpoints.reader import CheckpointReader

    reader = CheckpointReader(folder)
    for _, key in counterparts(named, reader, header=f"The anchor {folder} does not fit the model being trained"):
        reader.read(key, 0, 0, np.empty(0, np.uint8))  # opens the file
    return reader


def anchor_problems(key: str, folder: str, named: Mapping[str, torch.Tensor]) -> list[str]:
    """A sentence where a folder's tensors do not fit the parameters; "start" always does.

    Args:
        key: the parameter, for example "l2.anchor".
        folder: its value.
        named: parameters by name.
    """
    if folder == START:
        return []
    try:
        streamed(folder, named).close()
    except ModelError as error:
        return [f"{key}: {error}"]
    return []


def unnamed_file(tensors: Mapping[str, torch.Tensor]) -> CheckpointReader:
    """Tensors in a file that has no name any more once it is open, so nothing is left behind however the process ends.

    Raises:
        StorageError: the disk has no room for them.
    """
    import tempfile

    from safetensors.torch import save_file

    from holdfast.checkpoints.writer import disk_errors
    from holdfast.support.cache import cache_folder

    with disk_errors(cache_folder()):
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="anchor-", dir=cache_folder()) as place:
            save_file(
                {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
                f"{place}/model.safetensors",
            )
            return streamed(place, tensors)


def load_anchor(folder: str | Path, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reads the parameters `named` from a checkpoint folder (`model*.safetensors`, or `adapter_model.safetensors` for
    LoRA).

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
        shown = "\n".join(f"  - {p}" for p in problems[:20]) + (
            f"\n  - ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        )
        raise ModelError(
            f"The anchor {folder} does not fit the model being trained ({len(problems)} of {len(named)} "
            f"parameters):\n{shown}\n"
            "Expected a checkpoint of the same architecture and vocabulary (for LoRA: of the same adapter shape)."
        )
    return found


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` with the device and (for DTensors and parts) the sharding of `parameter`."""
    import torch

    from holdfast.checkpoints.live_tensors import as_part, part_in

    part = part_in(parameter)
    if part is not None:
        mine = tensor.detach().reshape(-1)[part.start : part.start + parameter.numel()]
        return as_part(mine.to(parameter.device, copy=True), part)
    tensor = tensor.to(device=parameter.device)
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor.clone(memory_format=torch.contiguous_format)


def aligned(anchor: dict[str, torch.Tensor], named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The anchor as the parameters are now: the same object where nothing changed, sharded and moved where a parallel
    wrapper did so to them.

    Anchors are taken before training begins, and FSDP2 turns parameters into DTensors after that, DeepSpeed into parts.
    """
    from holdfast.checkpoints.live_tensors import part_in

    first = next(iter(named.values()), None)
    if first is None:
        return anchor
    held = anchor[next(iter(named))]
    if type(held) is type(first.data) and held.device == first.device and part_in(held) == part_in(first):
        return anchor
    return {
        name: like(anchor[name], parameter if part_in(parameter) else parameter.data)
        for name, parameter in named.items()
    }


def _plain(name: str) -> str:
    """Parameter names as checkpoints write them: PEFT leaves the adapter's name out."""
    return name.replace(".default.", ".").replace(".modules_to_save.", ".")
