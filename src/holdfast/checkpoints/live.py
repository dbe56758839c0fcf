"""Arithmetic on the weights of a model in memory, in place: averages, and noise that can be taken
back exactly.

    lerp_           theta <- (1 - weight) theta + weight other
    perturb_        theta <- theta + scale std normal(seed, name, i)
                    (Overtrained Language Models, "Gaussian perturbation"), with `undo`

The other operand may be tensors in memory or a checkpoint folder, which is then streamed: no second
model is ever held, and a rank whose parameters are sharded (DTensors) reads its own part only.
Half-precision weights are computed on in float32 and rounded once. Everything is checked before
anything is changed.

Undo without a copy. Noise comes from a counter (`counter`), so it can be made again; but rounding
loses bits of theta wherever theta + noise is much larger than theta, so (theta + noise) - noise is
not always theta. While perturbing, each block is undone on trial, and the elements that miss are
recorded (`corrections`). Bytes kept, as a share of a copy of the weights, for N(0, std^2) weights
(their standard deviation is the noise's unit):

    scale        0.001     0.01      0.1       1
    float32      0.3 %     1.2 %     5.7 %     12.1 %
    bfloat16     0.5 %     1.4 %     7.8 %     22.9 %

One CPU core takes about 15 ns an element to perturb and 11 to undo, 6 of them to make the noise.
The noise is that of `perturb_checkpoint` for the same seed, scale and names, whatever the device,
the block size and the sharding. A model whose parameters are named or laid out differently in
memory and on disk (mixtures of experts) gets other noise than its folder does, equally distributed.

Buffers and quantised weights are not touched; nothing here knows optimisers or trainers.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.checkpoints import corrections, counter, counter_torch
from holdfast.checkpoints.corrections import Corrections
from holdfast.checkpoints.kernels_torch import INTEGERS, TORCH, compute_type
from holdfast.checkpoints.live_tensors import (
    LiveTensor,
    checkpoint_names,
    is_sharded,
    live_tensors,
    part_in,
    refuse,
)
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.sources import Source, listing
from holdfast.errors import ConfigError, ModelError

Weights: TypeAlias = Mapping[str, Tensor] | Source | str | os.PathLike[str]
"""Tensors by name, a folder, or a reader of one."""

Live: TypeAlias = nn.Module | Mapping[str, Tensor]
"""What is changed: a model, all its parameters, or some parameters by name."""

_WITH_FLOAT64 = ("cuda", "xpu")
"""Accelerators that make the numbers of `counter` themselves; for all others the CPU makes them."""
_NATIVE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types that `torch.lerp` takes; it computes on the short ones in float32 with one rounding."""


@torch.no_grad()
def lerp_(named: Live, other: Weights, weight: float) -> None:
    """`theta <- (1 - weight) theta + weight other` in place, as `torch.lerp` computes it.

    Weight 1 gives `other` bit for bit (where the dtype can hold it), weight 0 changes nothing.

    Args:
        named: a model, or parameters by name: any shapes and float dtypes, plain tensors or
            DTensors placed by Shard and Replicate. Under FSDP2 give the model: outside training
            steps some of its parameters may be gathered copies, which are put away first.
        other: what to go towards, of the same names (or those that checkpoints use, see
            `checkpoint_names`) and whole shapes, any float dtype. It may hold more. A folder or
            reader is streamed.
        weight: of `other`; usually in [0, 1].

    Raises:
        ModelError: names missing, shapes that differ, elements of no float type, parameters that
            cannot be worked on: all of them, before any change.
        ConfigError: the weight is not finite.
    """
    _finite("weight", weight)
    with _opened(other) as source:
        pieces = Pieces(
            _parameters(named), [source], [f"lerp_: {_label(source)}"], model="the model"
        )
        if weight != 0:
            _each_bucket(pieces, lambda bucket: _lerp_bucket(bucket, weight))


def _lerp_bucket(bucket: list[tuple[Tensor, Tensor]], weight: float) -> None:
    """`lerp_` on stretches of parameters and the same of the other operand; those of one type in
    one call."""
    if weight == 1:
        torch._foreach_copy_([parameter for parameter, _ in bucket], [other for _, other in bucket])
        return
    parameters, others = [], []
    for parameter, other in bucket:
        if parameter.dtype == other.dtype and parameter.dtype in _NATIVE:
            parameters.append(parameter)
            others.append(other)
        else:
            compute = compute_type(parameter.dtype, other.dtype)
            parameter.copy_(parameter.to(compute).lerp_(other.to(compute), weight))
    if parameters:
        torch._foreach_lerp_(parameters, others, weight)


# -------------------------------------------------------------------------------------------- noise


class Perturbation:
    """Noise that lies on a model's weights, and what it takes to remove it exactly; made by
    `perturb_`."""

    def __init__(self, weights: Live, seed: int, scale: float) -> None:
        self._weights = weights
        self.seed = seed
        self.scale = scale
        self.elements = 0
        """Weights that got noise, on this rank."""
        self.missed = 0
        """Of these, weights that mere subtraction of the noise would not bring back."""
        self.undone = False
        self._tensors: list[_Perturbed] = []

    @property
    def bytes_kept(self) -> int:
        """Bytes held until `undo`: the elements that miss, and a sum for every block."""
        return sum(block.nbytes for tensor in self._tensors for block in tensor.blocks)

    @torch.no_grad()
    def undo(self) -> None:
        """Gives every weight the bits it had before.

        Before anything is changed the weights are looked at: a sum of the bit patterns of each
        block has to be what it was after the noise was added. That is one pass of reading, about
        0.4 ns an element on a CPU core (taking the noise off: 11). It misses changes that leave the
        sum as it is, such as two pairs of float32 elements exchanged within a block.

        Raises:
            ModelError: the noise is off already, or weights were changed meanwhile (they are named,
                and nothing is done).
        """
        if self.undone:
            raise ModelError(
                "The perturbation was already undone. Perturb again to get the same noise, which "
                "depends only on the seed and the tensor names."
            )
        _parameters(self._weights)
        changed = [t.target.name for t in self._tensors if t.changed()]
        if changed:
            raise ModelError(
                "The perturbation cannot be undone, because weights were changed after it "
                f"({len(changed)} of {len(self._tensors)} tensors: {listing(changed)}). Undo "
                "before training or loading, or load the weights again."
            )
        self._remove()

    def _remove(self) -> None:
        for _ in _noisy(self._tensors, _Perturbed.restore):
            pass
        self.undone = True
        self._tensors, self._weights = [], {}


@torch.no_grad()
def perturb_(named: Live, *, seed: int, scale: float, stds: Mapping[str, float]) -> Perturbation:
    """`theta <- theta + scale std z` in place, z standard normal by (seed, name, place in the
    tensor); gives the handle that takes it back.

    The noise does not depend on the device, on sharding or on which other tensors are perturbed.
    Tied tensors get that of the first of their names. If this call fails or is interrupted, what
    was added is taken back.

    Args:
        named: as in `lerp_`. The handle keeps these tensors and works on what they hold when `undo`
            is called.
        seed: of the noise.
        scale: gamma of Overtrained Language Models, at least 0.
        stds: standard deviation of each tensor's initialisation (see
            `training.fresh_init.init_stds`), by the parameters' names or by those that checkpoints
            use. Tensors of std 0 stay as they are; names that `named` does not have are ignored.

    Raises:
        ModelError: parameters without a std, or that cannot be worked on: all of them, before any
            change.
        ConfigError: a scale or std that is negative or not finite.
    """
    problems = [] if 0 <= scale < math.inf else [f"scale: expected 0 or more, got {scale}"]
    for name, std in stds.items():
        if not 0 <= std < math.inf:
            problems.append(f"{name}: expected a std of 0 or more, got {std}")
    if problems:
        raise ConfigError(problems)
    handle = Perturbation(named, seed, scale)
    parameters = _parameters(named)
    targets, problems = live_tensors(parameters)
    todo = []
    for target in targets:
        key = next(
            (name for name in (target.name, *checkpoint_names(target.name)) if name in stds), None
        )
        if key is None:
            problems.append(f"{target.name}: no std is given")
        elif scale * stds[key] > 0 and target.local().numel():
            todo.append(
                _Perturbed(
                    target, counter.stream_key(seed, checkpoint_names(key)[-1]), scale * stds[key]
                )
            )
    refuse(
        "perturb_: these weights cannot be perturbed",
        problems,
        len(parameters),
        "Expected floating-point weights and a std for each.",
    )
    handle._tensors = todo
    try:
        for missed in _noisy(todo, _Perturbed.disturb):
            handle.missed += missed
        handle.elements = sum(t.target.local().numel() for t in todo)
    except BaseException:
        for tensor in todo:
            tensor.forget_unwritten()
        handle._remove()
        raise
    return handle


@contextlib.contextmanager
def perturbed(
    named: Live, *, seed: int, scale: float, stds: Mapping[str, float]
) -> Iterator[Perturbation]:
    """Adds noise to the weights with `perturb_` inside a `with` block. The weights are restored
    when the block ends, even by an error.

    Args:
        named, seed, scale, stds: see `perturb_`.

    Raises:
        ModelError: see `perturb_` and `Perturbation.undo`.
        ConfigError: see `perturb_`.
    """
    handle = perturb_(named, seed=seed, scale=scale, stds=stds)
    try:
        yield handle
    finally:
        if not handle.undone:
            handle.undo()


class _Block(NamedTuple):
    """What is kept of one block."""

    total: int
    """The sum of its bits with the noise on."""
    record: Corrections | Tensor | None
    """What subtraction misses; None: nothing. A tensor: the block itself, where a record would have
    been larger."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 8 + (0 if self.record is None else self.record.nbytes)


def _noise(target: LiveTensor, key: int, start: int, stop: int, device: torch.device) -> Tensor:
    """`[stop - start]` float32 standard normal numbers on the device, by the elements' places in
    the whole tensor."""
    spans = list(target.spans(start, stop))
    if device.type in _WITH_FLOAT64:
        return _noise_on_device(key, spans, device)
    noise = np.empty(stop - start, np.float32)
    done = 0
    for first, count in spans:
        counter.normal(key, first, count, out=noise[done : done + count])
        done += count
    return torch.from_numpy(noise).to(device)


def _noise_on_device(key: int, spans: list[tuple[int, int]], device: torch.device) -> Tensor:
    """The same, computed on the device."""
    if len(spans) == 1:
        return counter_torch.normal(key, *spans[0], device)
    first, counts = torch.tensor(spans, device=device).unbind(1)
    ends = counts.cumsum(0)
    within = torch.arange(int(ends[-1]), device=device) - (ends - counts).repeat_interleave(counts)
    return counter_torch.normal_at(key, first.repeat_interleave(counts) + within)


class _Perturbed:
    """One tensor with its noise."""

    def __init__(self, target: LiveTensor, key: int, sigma: float) -> None:
        self.target = target
        self.key = key
        self.sigma = sigma
        self.stretches = _stretches(target)
        """The blocks' elements: (start, stop) in this rank's part; the same wherever the weights
        are moved to."""
        self.blocks: list[_Block] = []

    def disturb(self, number: int, weights: Tensor, noise: Tensor) -> int:
        """Adds the noise to one block and records what subtracting it would miss; gives how many
        elements that is."""
        compute, integer = compute_type(weights.dtype), INTEGERS[weights.itemsize]
        noise = noise.to(compute).mul_(self.sigma)
        moved = (weights.to(compute) + noise).to(weights.dtype)
        bits = weights.view(integer)
        back = (moved.to(compute) - noise).to(weights.dtype).view(integer)
        places = (back != bits).nonzero().squeeze(1)
        record: Corrections | Tensor | None = None
        if len(places):
            before = bits[places]
            steps = _ordered(before.long(), integer) - _ordered(back[places].long(), integer)
            record = corrections.pack(
                places.cpu().numpy(), steps.cpu().numpy(), before.cpu().numpy(), len(weights)
            )
            if record.nbytes >= weights.nbytes:
                record = weights.clone()
        # first, so that an interruption finds either both or one that can be recognised
        self.blocks.append(_Block(_sum_of_bits(moved), record))
        weights.copy_(moved)
        return len(places)

    def restore(self, number: int, weights: Tensor, noise: Tensor) -> int:
        """Takes the noise off one block."""
        record = self.blocks[number].record
        if isinstance(record, Tensor):
            weights.copy_(record)
            return 0
        compute, integer = compute_type(weights.dtype), INTEGERS[weights.itemsize]
        back = (weights.to(compute) - noise.to(compute).mul_(self.sigma)).to(weights.dtype)
        if record is not None:
            stored_places, stored_steps = corrections.unpack(record, len(weights))
            places = torch.from_numpy(stored_places).to(weights.device)
            steps = torch.from_numpy(stored_steps).to(weights.device)
            bits = back.view(integer)
            moved = _ordered(_ordered(bits[places].long(), integer) + steps.long(), integer).to(
                integer
            )
            moved[steps == corrections.ESCAPE] = torch.from_numpy(record.escapes).to(weights.device)
            bits[places] = moved
        weights.copy_(back)
        return 0

    def changed(self) -> bool:
        """Whether the tensor is no longer what it was with the noise on."""
        return len(self.stretches) != len(self.blocks) or not all(self._as_written())

    def forget_unwritten(self) -> None:
        """After an interruption: leaves out what was recorded but not written, which is the last
        block, or all of a tensor that works on a copy."""
        if not all(self._as_written()):
            self.blocks = [] if self.target.flat()[1] else self.blocks[:-1]

    def _as_written(self) -> list[bool]:
        """Of each block that is recorded: whether it holds what was written."""
        flat, _ = self.target.flat()
        recorded = zip(self.stretches, self.blocks, strict=False)
        return [_sum_of_bits(flat[start:stop]) == block.total for (start, stop), block in recorded]


def _noisy(
    tensors: Iterable[_Perturbed], act: Callable[[_Perturbed, int, Tensor, Tensor], int]
) -> Iterator[int]:
    """Calls `act` for every block with its noise, which threads make ahead of time for tensors on
    the CPU."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) if threads > 1 else contextlib.nullcontext() as pool:
        for tensor in tensors:
            flat, copied = tensor.target.flat()
            # While perturbing no blocks are there yet; while undoing, those that were perturbed.
            is_new = act is _Perturbed.disturb
            stretches = tensor.stretches if is_new else tensor.stretches[: len(tensor.blocks)]
            noises = _ahead(tensor, stretches, flat.device, pool, threads)
            for number, ((start, stop), noise) in enumerate(zip(stretches, noises, strict=True)):
                yield act(tensor, number, flat[start:stop], noise)
            if copied:
                tensor.target.write_back(flat)


def _ahead(
    tensor: _Perturbed,
    stretches: list[tuple[int, int]],
    device: torch.device,
    pool: Any,
    threads: int,
) -> Iterator[Tensor]:
    """The noise of each stretch."""

    def noise(stretch: tuple[int, int]) -> Tensor:
        return _noise(tensor.target, tensor.key, *stretch, device)

    if device.type != "cpu" or pool is None:
        yield from map(noise, stretches)
        return
    waiting: deque[Future[Tensor]] = deque()
    for stretch in stretches:
        waiting.append(pool.submit(noise, stretch))
        if len(waiting) > threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _ordered(bits: Tensor, integer: torch.dtype) -> Tensor:
    """Bit patterns of floats (int64) as integers in the order of the numbers, -0.0 just below 0.0;
    its own inverse."""
    return bits ^ (bits >> 63 & torch.iinfo(integer).max)


def _sum_of_bits(flat: Tensor) -> int:
    """The sum modulo 2^64 of the bits read as 64-bit integers (and of the last few elements)."""
    width = 8 // flat.itemsize
    aligned = len(flat) // width * width
    head, tail = flat[:aligned], flat[aligned:]
    if head.storage_offset() % width:
        head = head.clone()
    total = int(head.view(torch.int64).sum()) + int(
        tail.view(INTEGERS[flat.itemsize]).sum(dtype=torch.int64)
    )
    return total & 0xFFFFFFFFFFFFFFFF


# ------------------------------------------------------------------------------------------- pieces


class _Stretch(NamedTuple):
    """A stretch of one parameter (of this rank's part), `[elements]`, with the same stretch of what
    belongs to it, all on the parameter's device."""

    name: str
    weight: Tensor
    """Shares the parameter's memory."""
    gradient: Tensor | None
    """Shares the gradient's memory; None where there is no gradient."""
    others: list[Tensor]
    """Of each operand, in its own dtype."""


class Piece(_Stretch):
    """A stretch that knows where it lies in the whole tensor."""

    target: LiveTensor
    start: int
    """Of the stretch in this rank's part."""

    def at(self, target: LiveTensor, start: int) -> Piece:
        """The same piece, which knows its place from now on."""
        self.target, self.start = target, start
        return self

    def normal(self, seed: int, *names: str) -> Tensor:
        """`[elements]` float32 standard normal numbers on the weight's device, decided by the seed,
        the parameter, the names and the elements' places in the whole tensor: the same however the
        parameter is sharded."""
        key = counter.stream_key(seed, checkpoint_names(self.name)[-1], *names)
        return _noise(
            self.target, key, self.start, self.start + len(self.weight), self.weight.device
        )


class Pieces:
    """Parameters and operands of the same names, stretch by stretch: what stays in a core's cache
    at a time, or keeps an accelerator busy.

    What is streamed is read by a thread of its own, one stretch ahead of the one that is worked on.

    Args:
        named: parameters by name, as in `lerp_`.
        others: operands as in `lerp_`; those in memory may lie on another device, folders and
            readers are streamed.
        labels: what errors call each operand.
        model: what errors call the parameters.

    Raises:
        ModelError: see `lerp_`.
    """

    def __init__(
        self,
        named: Mapping[str, Tensor],
        others: Sequence[Mapping[str, Tensor] | Source],
        labels: Sequence[str],
        *,
        model: str = "the model being trained",
    ) -> None:
        self._others = list(others)
        self._targets: list[LiveTensor] = []
        self._keys: list[list[str]] = []
        """Of each target, what each operand calls it."""
        for other, label in zip(others, labels, strict=True):
            pairs = counterparts(named, other, header=f"{label} does not fit {model}")
            if not self._targets:
                self._targets = [target for target, _ in pairs]
                self._keys = [[] for _ in pairs]
            for keys, (_, key) in zip(self._keys, pairs, strict=True):
                keys.append(key)

    def moves_on(self, piece: Piece) -> bool:
        """Whether a piece has to be worked on before the next one is asked for: it is a copy, or
        memory that the next one is read into."""
        in_memory = all(isinstance(other, Mapping) for other in self._others)
        return not in_memory or not piece.target.local().is_contiguous()

    @torch.no_grad()
    def __iter__(self) -> Iterator[Piece]:
        with self._read_ahead() as stretches:
            for target, keys in zip(self._targets, self._keys, strict=True):
                flat, copied = target.flat()
                gradient, gradient_copied = _flat_gradient(target)
                in_memory: list[Tensor | None] = []
                for other, key in zip(self._others, keys, strict=True):
                    in_memory.append(
                        target.part_of(other[key]) if isinstance(other, Mapping) else None
                    )
                for start, stop in _stretches(target):
                    streamed = next(stretches)
                    values = []
                    for number, whole_part in enumerate(in_memory):
                        value = streamed[number] if whole_part is None else whole_part[start:stop]
                        values.append(value.to(flat.device))
                    weight, of_gradient = (
                        flat[start:stop],
                        None if gradient is None else gradient[start:stop],
                    )
                    yield Piece(target.name, weight, of_gradient, values).at(target, start)
                if copied:
                    target.write_back(flat)
                if gradient is not None and gradient_copied:
                    LiveTensor(target.name, target.parameter.grad, target.offsets).write_back(
                        gradient
                    )  # type: ignore[arg-type]

    @contextlib.contextmanager
    def _read_ahead(self) -> Iterator[Iterator[dict[int, Tensor]]]:
        """Inside it, each stretch's streamed operands by their place, in the order of `__iter__`;
        valid until the next is asked for."""
        streams = {
            number: other
            for number, other in enumerate(self._others)
            if not isinstance(other, Mapping)
        }
        if not streams:
            yield itertools.repeat({})
            return
        jobs, longest = [], 0
        for target, keys in zip(self._targets, self._keys, strict=True):
            for start, stop in _stretches(target):
                jobs.append((target, keys, start, stop))
                longest = max(longest, stop - start)
        pair = []
        for _ in range(2):
            pair.append({number: np.empty(8 * longest, np.uint8) for number in streams})
        buffers = itertools.cycle(pair)

        def read(
            job: tuple[LiveTensor, list[str], int, int], into: dict[int, Any]
        ) -> dict[int, Tensor]:
            target, keys, start, stop = job
            pieces = {}
            for number, other in streams.items():
                pieces[number] = _read(other, target, keys[number], start, stop, into[number])
            return pieces

        def stretches() -> Iterator[dict[int, Tensor]]:
            ahead: deque[Future[dict[int, Tensor]]] = deque()
            for job in jobs:
                ahead.append(pool.submit(read, job, next(buffers)))
                if len(ahead) == 2:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

        with ThreadPoolExecutor(1, "holdfast-anchor") as pool:
            yield stretches()

    def total(self, function: Callable[[Piece], Tensor]) -> float:
        """The sum of a scalar over all pieces, over all ranks where parameters are sharded, in
        float64."""
        sums: dict[str, Tensor] = {}
        for piece in self:
            value = function(piece).double()
            sums[piece.name] = sums[piece.name] + value if piece.name in sums else value
        nothing = torch.zeros((), dtype=torch.float64)  # of a rank whose part is empty
        totals = []
        for target in self._targets:
            of_rank = sums.get(target.name, nothing.to(target.parameter.device))
            totals.append(float(summed(target, of_rank)))
        return sum(totals)


def _stretches(target: LiveTensor) -> list[tuple[int, int]]:
    """Of this rank's part: (start, stop)."""
    local = target.local()
    size, total = _block_elements(local.device), local.numel()
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def _flat_gradient(target: LiveTensor) -> tuple[Tensor | None, bool]:
    gradient = target.parameter.grad
    return (
        (None, False)
        if gradient is None
        else LiveTensor(target.name, gradient, target.offsets).flat()
    )


def summed(target: LiveTensor, value: Tensor) -> Tensor:
    """Sums over this rank's part, of any shape, as the sums over the whole tensor; all ranks have
    to call it."""
    parameter = target.parameter
    flat_part = part_in(parameter)
    if flat_part is not None:
        import torch.distributed as dist

        value = value.clone()
        dist.all_reduce(value, group=flat_part.group)
        return value
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    placements = [Partial() if type(p) is Shard else Replicate() for p in parameter.placements]
    return DTensor.from_local(
        value, parameter.device_mesh, placements, run_check=False
    ).full_tensor()


# ----------------------------------------------------------------------------------------- operands


def _parameters(weights: Live) -> Mapping[str, Tensor]:
    """By name. FSDP2 may have left gathered copies in the place of sharded parameters (after a
    forward without a backward); a change to them would be lost, and a change to the shards would
    not be seen."""
    if not isinstance(weights, nn.Module):
        return weights
    for module in weights.modules():
        if any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            module.reshard()
    return dict(weights.named_parameters())


@contextlib.contextmanager
def _opened(weights: Weights) -> Iterator[Mapping[str, Tensor] | Source]:
    if isinstance(weights, (str, os.PathLike)):
        with CheckpointReader(weights) as reader:
            yield reader
    else:
        yield weights


def counterparts(
    named: Mapping[str, Tensor], other: Mapping[str, Tensor] | Source, *, header: str
) -> list[tuple[LiveTensor, str]]:
    """Each parameter with the name that `other` has for it; tied parameters once.

    Args:
        named: as in `lerp_`.
        other: tensors by name, or an open source.
        header: how an error begins.

    Raises:
        ModelError: names missing, shapes that differ, elements of no float type, parameters that
            cannot be worked on: all of them.
    """
    targets, problems = live_tensors(named)
    known = {checkpoint_names(name)[0]: name for name in _names(other)}
    pairs = []
    for target in targets:
        key = next((known[name] for name in checkpoint_names(target.name) if name in known), None)
        if key is None:
            problems.append(f"{target.name}: not in the checkpoint")
            continue
        shape, is_float = _described(other, key)
        if shape != target.shape:
            problems.append(f"{target.name}: expected {target.shape}, the checkpoint has {shape}")
        elif not is_float:
            problems.append(
                f"{target.name}: expected floating-point values, the checkpoint has integers"
            )
        pairs.append((target, key))
    expected = (
        "Expected a checkpoint of the same architecture and vocabulary (for LoRA: of the same "
        "adapter shape)."
    )
    refuse(header, problems, len(named), expected)
    return pairs


def _label(weights: Mapping[str, Tensor] | Source) -> str:
    return "the mapping given" if isinstance(weights, Mapping) else weights.label


def _names(weights: Mapping[str, Tensor] | Source) -> Iterable[str]:
    return weights if isinstance(weights, Mapping) else weights.entries


def _described(weights: Mapping[str, Tensor] | Source, key: str) -> tuple[tuple[int, ...], bool]:
    """Shape, and whether the elements are floats."""
    if isinstance(weights, Mapping):
        return LiveTensor(key, weights[key], ()).shape, weights[key].is_floating_point()
    return weights.entries[key].shape, weights.entries[key].dtype.kind == "float"


def _each_bucket(pieces: Pieces, step: Callable[[list[tuple[Tensor, Tensor]]], None]) -> None:
    """Calls `step` with lists of (stretch of a parameter, the same stretch of the one operand),
    `[elements]` each, on the parameter's device: as many at a time as `Pieces` gives at once, so
    that small parameters share one call."""
    bucket: list[tuple[Tensor, Tensor]] = []
    for piece in pieces:
        count = sum(len(weight) for weight, _ in bucket) + len(piece.weight)
        if bucket and count > _block_elements(piece.weight.device):
            step(bucket)
            bucket = []
        bucket.append((piece.weight, piece.others[0]))
        if pieces.moves_on(piece):
            step(bucket)
            bucket = []
    if bucket:
        step(bucket)


def _read(source: Any, target: LiveTensor, key: str, start: int, stop: int, buffer: Any) -> Tensor:
    """Elements [start, stop) of this rank's part from a source, in a buffer's memory."""
    itemsize = source.entries[key].dtype.itemsize
    operands, used = [], 0
    for first, count in target.spans(start, stop):
        operands.append(source.read(key, first, first + count, buffer[used:]))
        used += count * itemsize
    raw = (
        operands[0].raw
        if len(operands) == 1
        else np.concatenate([operand.raw for operand in operands])
    )
    return torch.from_numpy(raw.view(np.uint8)).view(TORCH[operands[0].dtype.name])


def _block_elements(device: torch.device) -> int:
    """What stays in a core's cache, or keeps an accelerator busy."""
    return 1 << 18 if device.type == "cpu" else 1 << 22


def _finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name}: expected a finite number, got {value}.")
