"""Parameters in memory as the engine sees tensors: by the names that checkpoints use, flattened,
and each rank only its own part.

A plain tensor is all of itself. A DTensor (FSDP2, tensor parallelism) is a box cut out of the whole
tensor, a `FlatPart` (DeepSpeed ZeRO) a stretch of the flattened whole: `spans` says where its
elements lie there, so that a rank reads only its share of a file and draws only its share of the
noise. Two names of one tensor count once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from holdfast.checkpoints.layers import WRAPPERS
from holdfast.checkpoints.sources import bullets
from holdfast.errors import ModelError

_ADAPTER = re.compile(r"(\.lora_\w+)\.(?!weight$|bias$)[^.]+(?=\.|$)")
_WHOLE_MODULE = re.compile(r"\.modules_to_save(\.[^.]+(?=\.\w))?(?=\.)")
_PEFT = "base_model.model."
_MERGED = (
    (re.compile(r"^(?:model\.)?language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^(?:model\.)?language_model\.(?:model\.)?"), "model.language_model."),
    (re.compile(r"^(?:model\.)?vision_tower\.(?:vision_model\.)?"), "model.vision_tower."),
    (re.compile(r"^(?:model\.)?(multi_modal_projector|visual)\."), r"model.\1."),
    (re.compile(r"^(?:model\.)?image_newline$"), "model.image_newline"),
)
"""Parts of vision-language models, whose files have kept the names of earlier versions of
transformers."""


def checkpoint_names(name: str) -> tuple[str, ...]:
    """A parameter's names as checkpoints write them: in an adapter's files, and in a model's where
    that differs.

    Wrappers (DDP, compilation, activation checkpointing) leave no trace there, PEFT leaves the
    adapter's name out of an adapter's files, and the weights below an adapter have the base model's
    names.

    Args:
        name: as `named_parameters` gives it.
    """
    plain = WRAPPERS.sub("", name)
    stored = _WHOLE_MODULE.sub("", _ADAPTER.sub(r"\1", plain)).replace(".default.", ".")
    if stored.endswith(".lora_magnitude_vector.weight"):
        return stored, stored.removesuffix(".weight")
    if not plain.startswith(_PEFT):
        return _merged(stored)
    if stored != plain or ".lora_" in plain:
        return (stored,)
    base = stored.removeprefix(_PEFT).replace(".base_layer.", ".").replace(".original_module.", ".")
    return stored, *_merged(base)


def _merged(name: str) -> tuple[str, ...]:
    """A parameter's name as it is now, and as a file of the language model alone, or of an earlier
    version, has it."""
    for pattern, now in _MERGED:
        changed = pattern.sub(now, name)
        if changed != name or pattern.match(name):
            inner = "model.language_model."
            return (
                (changed, "model." + changed.removeprefix(inner))
                if changed.startswith(inner)
                else (changed,)
            )
    return (name,)


class FlatPart(NamedTuple):
    """What a 1-D tensor is of a whole one that is flattened and dealt out over ranks in
    stretches."""

    shape: tuple[int, ...]
    """Of the whole."""
    start: int
    """Where the stretch begins in the flattened whole; its length is the tensor's."""
    group: Any = None
    """The ranks whose stretches make up the whole, as a `torch.distributed` process group; None:
    all ranks."""


def as_part(flat: Tensor, part: FlatPart) -> Tensor:
    """The tensor, seen as a stretch of a whole one from now on. Views and copies of it do not know
    of it."""
    flat._holdfast_part = part  # type: ignore[attr-defined]
    return flat


def part_in(tensor: Tensor) -> FlatPart | None:
    """What `as_part` noted, None for any other tensor."""
    return getattr(tensor, "_holdfast_part", None)


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank, from a part or a DTensor; all ranks have to call it. A plain
    tensor as it is."""
    flat_part = part_in(tensor)
    if flat_part is not None:
        import torch.distributed as dist

        complete = tensor.new_zeros(math.prod(flat_part.shape))
        complete[flat_part.start : flat_part.start + tensor.numel()] = tensor.detach()
        dist.all_reduce(complete, group=flat_part.group)
        return complete.view(flat_part.shape)
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[no-any-return, attr-defined]


@dataclass(frozen=True)
class LiveTensor:
    """One parameter, or this rank's part of it."""

    name: str
    """As the caller names it."""
    parameter: Tensor
    offsets: tuple[int, ...]
    """Of this rank's part in the whole tensor, one a dimension; zeros for a plain tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        flat_part = part_in(self.parameter)
        return tuple(self.parameter.shape) if flat_part is None else flat_part.shape

    def local(self) -> Tensor:
        """This rank's part as a plain tensor that shares its memory, without autograd."""
        return _local(self.parameter)

    def flat(self) -> tuple[Tensor, bool]:
        """This rank's part, `[elements]`, and whether it is a copy (where the part does not lie in
        one piece) that has to be written back."""
        local = self.local()
        if local.is_contiguous():
            return local.view(-1), False
        return local.contiguous().view(-1), True

    def write_back(self, flat: Tensor) -> None:
        """Takes over what was done to the copy that `flat` gave."""
        local = self.local()
        local.copy_(flat.view(local.shape))

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Where elements [start, stop) of this rank's flattened part lie in the flattened whole
        tensor: (first, count), in order."""
        flat_part = part_in(self.parameter)
        if flat_part is not None:
            if start < stop:
                yield flat_part.start + start, stop - start
            return
        local, shape = self.local().shape, self.shape
        cut = max((d for d in range(len(shape)) if local[d] != shape[d]), default=0)
        inner = math.prod(shape[cut + 1 :])
        run = math.prod(local[cut:])  # elements that lie side by side in the whole, too
        while start < stop:
            index, within = divmod(start, run) if run else (0, 0)
            first, stride = within, math.prod(shape[cut:])
            first += self.offsets[cut] * inner if shape else 0
            for d in range(cut - 1, -1, -1):
                index, at = divmod(index, local[d])
                first += (at + self.offsets[d]) * stride
                stride *= shape[d]
            count = min(stop - start, run - within)
            yield first, count
            start += count

    def part_of(self, whole: Tensor) -> Tensor:
        """This rank's part of another tensor of the same whole shape, `[elements]`.

        Args:
            whole: plain, or a DTensor, which is gathered (by all ranks) if it is laid out
                differently. Beside a `FlatPart` also the same part.
        """
        flat_part = part_in(self.parameter)
        if flat_part is not None:
            flat = whole.detach().reshape(-1)
            if part_in(whole) == flat_part:
                return flat
            return flat[flat_part.start : flat_part.start + self.parameter.numel()]
        if is_sharded(whole):
            mine = self.parameter
            if is_sharded(mine) and (whole.device_mesh, whole.placements) == (
                mine.device_mesh,
                mine.placements,
            ):
                return _local(whole).reshape(-1)
            whole = whole.full_tensor()
        whole = whole.detach()
        if not self.local().numel():
            return whole.reshape(-1)[:0]
        for dimension, (offset, length) in enumerate(
            zip(self.offsets, self.local().shape, strict=True)
        ):
            whole = whole.narrow(dimension, offset, length)
        return whole.reshape(-1)


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "device_mesh")


def live_tensors(named: Mapping[str, Tensor]) -> tuple[list[LiveTensor], list[str]]:
    """The parameters one after the other, tied ones once (under the first of their names), and
    sentences about those that cannot be worked on."""
    tensors: list[LiveTensor] = []
    problems: list[str] = []
    ranges: dict[int, list[tuple[int, int, tuple[object, ...], str]]] = {}
    for name, parameter in named.items():
        problem, offsets = _placed(parameter)
        if not parameter.is_floating_point():
            problem = f"expected floating-point weights, got {parameter.dtype}"
        elif parameter.device.type == "meta":
            problem = "has no values (it is on the meta device)"
        if problem:
            problems.append(f"{name}: {problem}")
            continue
        local = _local(parameter)
        if local.numel():
            first = local.storage_offset() * local.itemsize
            elements = 1
            for size, stride in zip(local.shape, local.stride(), strict=True):
                elements += (size - 1) * stride
            last = first + elements * local.itemsize
            layout = (first, local.shape, local.stride(), local.dtype)
            areas = ranges.setdefault(local.untyped_storage().data_ptr(), [])
            if any(other == layout for _, _, other, _ in areas):
                continue
            shared = [other for begin, end, _, other in areas if begin < last and first < end]
            if shared:
                problems.append(
                    f"{name}: shares memory with {shared[0]}, as another view of it. This memory "
                    "would be changed twice"
                )
                continue
            areas.append((first, last, layout, name))
        tensors.append(LiveTensor(name, parameter, offsets))
    return tensors, problems


def refuse(header: str, problems: list[str], count: int, expected: str) -> None:
    """Raises one ModelError about all problems, if there are any.

    Args:
        header: what does not work.
        problems: a sentence a parameter.
        count: parameters in all.
        expected: what to do.
    """
    if problems:
        title = f"{header} ({len(problems)} of {count} parameters):"
        raise ModelError(title, bullets(problems, 20), f"{expected} Nothing was changed.")


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def _placed(parameter: Tensor) -> tuple[str, tuple[int, ...]]:
    """What stands in the way (or ""), and the offsets of this rank's part in the whole."""
    offsets, lengths = [0] * parameter.dim(), list(parameter.shape)
    if not is_sharded(parameter):
        return "", tuple(offsets)
    from torch.distributed.tensor import Replicate, Shard

    mesh = parameter.device_mesh
    placements = parameter.placements
    coordinate = mesh.get_coordinate()
    if not all(type(p) in (Shard, Replicate) for p in placements):
        return f"expected a DTensor placed by Shard and Replicate, got {placements}", tuple(offsets)
    if coordinate is None:
        return "", tuple(offsets)
    for ranks, rank, placement in zip(mesh.shape, coordinate, placements, strict=True):
        if type(placement) is Shard:
            d = placement.dim % len(lengths)
            step = -(-lengths[d] // ranks)
            begin = min(rank * step, lengths[d])
            offsets[d], lengths[d] = offsets[d] + begin, min(step, lengths[d] - begin)
    if tuple(lengths) != tuple(_local(parameter).shape):
        return (
            f"expected this rank's part to be {tuple(lengths)}, got "
            f"{tuple(_local(parameter).shape)} under {placements}",
            tuple(offsets),
        )
    return "", tuple(offsets)
