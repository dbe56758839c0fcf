"""Anchors: the parameters that a method pulls back to.

The anchor of a run is by default its start model; methods may name an earlier checkpoint instead.
`anchor_folder` alone says what a name means, before anything is loaded and when it is: a folder
with safetensors, which may be a model's, a finished run's, or under LoRA an adapter's. References
are read from the disk; a model of the hub is downloaded first. `open_anchor` alone says whether its
tensors fit, whether they are then kept in memory or streamed.

Methods that share an anchor share one copy. Anchors are kept by parameter name, so full fine-tuning
(all weights) and LoRA (the adapter's weights) are the same code, and in their own dtype: the
start's is the parameters', a file's is the file's, so that a half-precision run does not round a
float32 anchor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.checkpoints.named import located
from holdfast.config.declare import Meta
from holdfast.errors import ModelError, Problem, did_you_mean
from holdfast.retention.protocol import WeightCopy
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    import torch

    from holdfast.checkpoints.live_tensors import LiveTensor
    from holdfast.checkpoints.reader import CheckpointReader
    from holdfast.retention.protocol import RetentionMethod

    Kept = Mapping[str, torch.Tensor] | CheckpointReader

START = "start"
"""The name of the start model as an anchor."""
Keep = Annotated[Literal["device", "cpu", "disk"], Meta(decides=False, former=("keep",))]
"""Where an anchor may be kept between steps: beside the parameters, in host memory, or in a file
that is streamed."""
KeepAuto = Annotated[
    Literal["auto", "device", "cpu", "disk"], Meta(decides=False, former=("keep",))
]
"""The same, or "auto": on the disk for a folder, which lies there anyway, and on the device for the
start."""


class Anchors:
    """Copies of parameters to pull back to, made when first asked for.

    Args:
        named: the trainable parameters of the start model by name. Must still hold the start's
            values when `get` is first called, so create it before a training checkpoint is loaded.
        adapter: the configuration of the LoRA adapter that they are of, as PEFT writes it; None:
            they are of none.
    """

    def __init__(
        self, named: Mapping[str, torch.Tensor], adapter: Mapping[str, Any] | None = None
    ) -> None:
        self._named = named
        self._adapter = adapter
        self._copies: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def named(self) -> Mapping[str, torch.Tensor]:
        """The trainable parameters that the anchors belong to, by name."""
        return self._named

    def get(self, anchor: str = START) -> dict[str, torch.Tensor]:
        """Parameters by name, `[same shape, device]` as the run's, in the anchor's own dtype.

        Args:
            anchor: "start" or what `anchor_folder` takes, of the same architecture.

        Raises:
            ModelError: the folder lacks parameters or has other shapes, all of them are named; or
                it is an adapter whose factors are multiplied by another number than the run's.
        """
        if anchor not in self._copies:
            self._check_scale(anchor)
            if anchor == START:
                self._copies[anchor] = {name: p.detach().clone() for name, p in self._named.items()}
            else:
                self._copies[anchor] = load_anchor(anchor, self._named)
        return self._copies[anchor]

    def keep(self, anchor: str, where: str) -> Kept:
        """The anchor where it is to be kept; what is not on the device is not shared between
        methods.

        Args:
            anchor: as of `get`.
            where: one of `KeepAuto`. "disk" streams a named folder as it is, and writes the start's
                parameters to a file without a name, which is gone when the process ends.

        Raises:
            ModelError: as `get`.
            StorageError: the disk has no room for the file.
        """
        where = _place(anchor, where)
        if where == "device":
            return self.get(anchor)
        self._check_scale(anchor)
        if anchor != START:
            return (
                open_anchor(anchor, self._named)
                if where == "disk"
                else {n: t.cpu() for n, t in load_anchor(anchor, self._named).items()}
            )
        if where == "cpu":
            return {name: p.detach().to("cpu", copy=True) for name, p in self._named.items()}
        return unnamed_file(self._named)

    def _check_scale(self, anchor: str) -> None:
        from holdfast.checkpoints.adapter_settings import adapter_config, is_adapter, scale_of

        if (
            anchor == START
            or self._adapter is None
            or not is_adapter(folder := anchor_folder(anchor))
        ):
            return
        theirs, ours = scale_of(adapter_config(folder)), scale_of(self._adapter)
        differing = []
        for name in ours:
            if theirs[name] != ours[name]:
                differing.append(
                    f"{name} is {theirs[name]} in the reference and {ours[name]} in this run"
                )
        if differing:
            raise ModelError(
                f"The reference {anchor} is an adapter with settings that differ from this run's: "
                f"{'; '.join(differing)}. Train with the lora_r, lora_alpha, use_rslora and "
                "use_dora of the reference."
            )


def anchor_folder(name: str) -> Path:
    """The folder that an anchor other than "start" names.

    Raises:
        ModelError: no such folder, or none with whole safetensors in it.
    """
    from holdfast.checkpoints.reader import weight_files

    path = expanded(located(name))
    if not path.is_dir():
        parent = path.parent
        if not parent.is_dir():
            raise ModelError(
                f"no such folder: {name}. The folder {parent} does not exist either. References "
                "are read from disk: first download a model of the hub, and give its folder."
            )
        raise ModelError(
            "no such folder: "
            f"{name}.{did_you_mean(path.name, [p.name for p in parent.iterdir() if p.is_dir()])}"
        )
    try:
        weight_files(path)
    except ModelError as error:
        inside = [p for p in path.iterdir() if p.is_dir() and any(p.glob("*.safetensors"))]
        # checkpoint-9 before checkpoint-10
        latest = max(inside, key=lambda p: (len(p.name), p.name), default=None)
        raise ModelError(
            f"{error}{f' Its folder {latest.name} has weights: use {latest}.' if latest else ''}"
        ) from None
    return path


def open_anchor(name: str, named: Mapping[str, torch.Tensor]) -> CheckpointReader:
    """The anchor's folder, open, whose tensors fit the parameters.

    Raises:
        ModelError: see `anchor_folder` and `streamed`.
    """
    return streamed(anchor_folder(name), named)


def load_anchor(name: str, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The anchor's tensors in memory, by the parameters' names, with their device and sharding and
    the file's dtype.

    Raises:
        ModelError: as `open_anchor`.
    """
    reader, pairs = _fitting(anchor_folder(name), named)
    keys = {id(target.parameter): key for target, key in pairs}
    return {n: like(reader.tensor(keys[id(p)]), p) for n, p in named.items() if id(p) in keys}


def streamed(folder: str | Path, named: Mapping[str, torch.Tensor]) -> CheckpointReader:
    """An open folder whose tensors fit the parameters; removing it during the run does not matter
    then.

    Raises:
        ModelError: the folder lacks parameters or has other shapes; all of them are named.
    """
    return _fitting(folder, named)[0]


def _fitting(
    folder: str | Path, named: Mapping[str, torch.Tensor]
) -> tuple[CheckpointReader, list[tuple[LiveTensor, str]]]:
    """The open folder, and each parameter (tied ones once) with its name there."""
    import numpy as np

    from holdfast.checkpoints.live import counterparts
    from holdfast.checkpoints.reader import CheckpointReader

    reader = CheckpointReader(folder)
    pairs = counterparts(
        named, reader, header=f"The reference {folder} does not fit the model being trained"
    )
    for _, key in pairs:
        reader.read(key, 0, 0, np.empty(0, np.uint8))  # opens the file
    return reader, pairs


def anchor_problems(
    key: str, name: str, named: Mapping[str, torch.Tensor] | None = None
) -> list[Problem]:
    """A problem where an anchor is not there or does not fit; "start" always does.

    Args:
        key: the parameter, for example "reference".
        name: its value.
        named: parameters by name, once there is a model; None: only whether there is such a folder.
    """
    if name == START:
        return []
    try:
        if named is None:
            anchor_folder(name)
        else:
            open_anchor(name, named).close()
    except ModelError as error:
        return [Problem(key, f"{error}")]
    return []


def meaning_problems(
    methods: Sequence[RetentionMethod], config: Mapping[str, Any]
) -> list[Problem]:
    """A sentence for each anchor whose configuration says that its weights mean something else than
    those of the model that is trained: their average is neither's.

    Args:
        methods: their parameter `reference` names a folder of weights, where they have it.
        config: of the model that is trained.
    """
    from holdfast.checkpoints.architecture import anchor_differences

    problems = []
    for method in methods:
        name = getattr(method, "reference", START)
        if name != START and (differences := anchor_differences(anchor_folder(name), config)):
            problems.append(
                Problem(
                    (method.name, "reference"),
                    f"the configuration of {name} differs from that of the trained model in "
                    f"settings that change the meaning of weights: {differences}. Give a "
                    "checkpoint of the trained model.",
                )
            )
    return problems


def unnamed_file(tensors: Mapping[str, torch.Tensor]) -> CheckpointReader:
    """Tensors in a file that has no name any more once it is open, so nothing is left behind
    however the process ends.

    Raises:
        StorageError: the disk has no room for them.
    """
    from safetensors.torch import save_file

    from holdfast.checkpoints.writer import disk_errors
    from holdfast.support.cache import cache_folder
    from holdfast.support.leftovers import scratch_folder

    with disk_errors(cache_folder()):
        cache_folder().mkdir(parents=True, exist_ok=True)
        with scratch_folder(cache_folder(), "anchor-") as folder:
            save_file(
                {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
                f"{folder}/model.safetensors",
            )
            return streamed(folder, tensors)


def kept_anchor(anchor: str, where: str) -> WeightCopy:
    """What `Anchors.keep(anchor, where)` keeps, for `RetentionMethod.copies`."""
    return WeightCopy(what=f"anchor {anchor}", place=_place(anchor, where))


def _place(anchor: str, where: str) -> str:
    """ "auto" is the disk for a folder, which lies there anyway, and the device for the start."""
    return where if where != "auto" else "device" if anchor == START else "disk"


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` with the device and (for DTensors and parts) the sharding of
    `parameter`."""
    import torch

    from holdfast.checkpoints.live_tensors import as_part, part_in

    fragment = part_in(parameter)
    if fragment is not None:
        mine = tensor.detach().reshape(-1)[fragment.start : fragment.start + parameter.numel()]
        return as_part(mine.to(parameter.device, copy=True), fragment)
    tensor = tensor.to(device=parameter.device)
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor.clone(memory_format=torch.contiguous_format)


def aligned(
    anchor: dict[str, torch.Tensor], named: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The anchor as the parameters are now: the same object where nothing changed, sharded and
    moved where a parallel wrapper did so to them.

    Anchors are taken before training begins, and FSDP2 turns parameters into DTensors after that,
    DeepSpeed into parts.
    """
    from holdfast.checkpoints.live_tensors import part_in

    first = next(iter(named.values()), None)
    if first is None:
        return anchor
    tensor = anchor[next(iter(named))]
    if (
        type(tensor) is type(first.data)
        and tensor.device == first.device
        and part_in(tensor) == part_in(first)
    ):
        return anchor
    tensors = {}
    for name, parameter in named.items():
        tensors[name] = like(anchor[name], parameter if part_in(parameter) else parameter.data)
    return tensors
