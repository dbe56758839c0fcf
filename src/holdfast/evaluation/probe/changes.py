"""Changes of a model's weights that a probe makes in place and takes back exactly.

    noise      theta + gamma std z            std as the model was initialised, z by seed and name (Overtrained
                                              Language Models, section 3)
    quantize   dequantise(quantise(theta))    rounding to nearest, without data:
               int8   one scale a row of each matrix, symmetric (LLM.int8(), Dettmers et al. 2022, without outliers)
               int4   16 levels between least and largest of 128 neighbours of a row (the baseline of GPTQ and AWQ)
               nf4    the 16 levels of QLoRA (Dettmers et al. 2023, appendix E), one scale for 64 neighbours
    prune      the smallest magnitudes of each matrix become 0 (Han et al. 2015)
    toward     theta + share (other - theta)  beyond it where the share is above 1

Quantising and pruning change matrices (parameters of two or more dimensions) that are no embeddings
and no head, as quantisers do; a row is what lies along the last dimension, of a `Conv1D` (GPT-2)
along the first. What is computed is computed in float32 and rounded once to the weights' dtype.

Noise keeps no copy (`checkpoints.live`). The others keep one of what they change until it is taken
back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from holdfast.checkpoints.live import lerp_, perturbed
from holdfast.errors import ModelError
from holdfast.ops.weights import hidden_matrices
from holdfast.records.probe import NOISE, PRUNE, QUANTIZE, TOWARD

Scheme = Literal["int8", "int4", "nf4"]
INT4_GROUP, NF4_BLOCK = 128, 64
LARGE = 10.0
"""Standard deviations of noise, or steps towards other weights, from which on activations are
watched."""
BITS = {"int8": 8, "int4": 4, "nf4": 4}
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Levels of the 4-bit normal float, as QLoRA prints them."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What changes need to know of the model that they change."""

    stds: Mapping[str, float] | None = None
    """Standard deviations by parameter, for noise."""
    others: Mapping[str, Any] | None = None
    """Weights that steps go towards, by label: a folder or an open source."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Gaussian noise, gamma times each tensor's standard deviation at initialisation."""

    kind: ClassVar[str] = NOISE
    size: float
    seed: int
    label: str = ""

    @property
    def name(self) -> str:
        return f"noise-{self.size:g}.seed-{self.seed}"

    @contextlib.contextmanager
    def on(self, model: nn.Module, material: Material) -> Iterator[None]:
        assert material.stds is not None
        with (
            perturbed(model, seed=self.seed, scale=self.size, stds=material.stds),
            overflow_shown(model, self.size),
        ):
            yield


@dataclass(frozen=True, kw_only=True)
class Quantize:
    """Matrices rounded to what a few bits can hold."""

    kind: ClassVar[str] = QUANTIZE
    label: Scheme
    seed: None = None

    @property
    def size(self) -> float:
        return float(BITS[self.label])

    @property
    def name(self) -> str:
        return self.label

    def on(self, model: nn.Module, material: Material) -> contextlib.AbstractContextManager[Any]:
        return _replaced(model, lambda weight_RC: quantized(weight_RC, self.label))


@dataclass(frozen=True, kw_only=True)
class Prune:
    """The smallest magnitudes of each matrix set to zero."""

    kind: ClassVar[str] = PRUNE
    size: float
    label: str = ""
    seed: None = None

    @property
    def name(self) -> str:
        return f"prune-{self.size:g}"

    def on(self, model: nn.Module, material: Material) -> contextlib.AbstractContextManager[Any]:
        return _replaced(model, lambda weight_RC: pruned(weight_RC, self.size))


@dataclass(frozen=True, kw_only=True)
class Toward:
    """A step towards other weights: fine-tuned ones, or any of the same shapes."""

    kind: ClassVar[str] = TOWARD
    size: float
    label: str
    seed: None = None

    @property
    def name(self) -> str:
        return f"toward-{self.label}-{self.size:g}"

    @contextlib.contextmanager
    def on(self, model: nn.Module, material: Material) -> Iterator[None]:
        assert material.others is not None
        with kept(list(model.parameters())):
            lerp_(model, material.others[self.label], self.size)
            with overflow_shown(model, self.size):
                yield


Change = Noise | Quantize | Prune | Toward
"""One change: its kind (of `records.probe.KINDS`), size (gamma, bits, pruned share or share of the
way), label without size and seed, seed of noise, and `name`, that of a folder. `on` gives a block
in which the model is changed; after it its weights are bit for bit as before."""


# ----------------------------------------------------------------------------------------- in place


@contextlib.contextmanager
def overflow_shown(model: nn.Module, size: float) -> Iterator[None]:
    """Norms give NaN inside the block where the squares of a row overflow float32: 1 / sqrt(inf) is
    0, so that a model whose activations are lost would pass for one that guesses.

    Args:
        model: changed already.
        size: of the change; below `LARGE` nothing is watched, for nothing comes near.
    """

    def shown(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        largest = args[0].abs().amax(-1, keepdim=True).double()
        fits = largest.square() * args[0].shape[-1] <= torch.finfo(torch.float32).max
        return output.masked_fill(~fits, torch.nan)

    norms = (
        [m for m in model.modules() if "norm" in type(m).__name__.lower()]
        if abs(size) >= LARGE
        else []
    )
    handles = [norm.register_forward_hook(shown) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def kept(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Copies of parameters, which get their bits back when the block ends, also when it ends in an
    error."""
    copies = [p.detach().clone() for p in parameters]
    try:
        yield copies
    finally:
        with torch.no_grad():
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.copy_(copy)


@contextlib.contextmanager
def _replaced(model: nn.Module, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Every matrix replaced by a function of it, as `[rows, columns]` float32."""
    matrices = hidden_matrices(model)
    if not matrices:
        raise ModelError(
            f"Expected a {type(model).__name__} with weight matrices that can be changed, found "
            "only embeddings and vectors."
        )
    with kept([parameter for parameter, _ in matrices]):
        with torch.no_grad():
            for parameter, is_transposed in matrices:
                if is_transposed:
                    parameter.copy_(_unfolded(function, parameter.mT).mT)
                else:
                    parameter.copy_(_unfolded(function, parameter))
        yield


def _unfolded(function: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    rows = weight.reshape(-1, weight.shape[-1]).float()
    return function(rows).reshape(weight.shape)


# ----------------------------------------------------------------------------------------- rounding


def quantized(weight_RC: Tensor, scheme: Scheme) -> Tensor:
    """What a matrix becomes by quantising it and back; see the module's docstring.

    Args:
        weight_RC: `[rows, columns]` float32. Columns that fill no whole group are a group of their
            own.
        scheme: how.

    Returns:
        `[rows, columns]` float32.
    """
    if scheme == "int8":
        scale_R1 = _nonzero(weight_RC.abs().amax(1, keepdim=True) / 127)
        return (weight_RC / scale_R1).round_() * scale_R1
    if scheme == "int4":
        groups_GC = _groups(weight_RC, INT4_GROUP)
        low_G1, high_G1 = groups_GC.amin(1, keepdim=True), groups_GC.amax(1, keepdim=True)
        step_G1 = _nonzero((high_G1 - low_G1) / 15)
        levels_GC = ((groups_GC - low_G1) / step_G1).round_() * step_G1 + low_G1
        return _joined(levels_GC, weight_RC)
    blocks_BC = _groups(weight_RC, NF4_BLOCK)
    scale_B1 = _nonzero(blocks_BC.abs().amax(1, keepdim=True))
    codes = torch.tensor(NF4, device=weight_RC.device)
    nearest_BC = torch.bucketize(blocks_BC / scale_B1, (codes[1:] + codes[:-1]) / 2)
    return _joined(codes[nearest_BC] * scale_B1, weight_RC)


def _nonzero(scale: Tensor) -> Tensor:
    """Groups of equal values have no width: they stay as they are whatever they are divided by."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def _groups(weight_RC: Tensor, size: int) -> Tensor:
    """`[groups, size]`: neighbours of a row. A short last group is filled up with its row's last
    value, which moves neither its range nor its largest magnitude."""
    size = min(size, weight_RC.shape[1])
    short = -weight_RC.shape[1] % size
    if short:
        weight_RC = torch.cat([weight_RC, weight_RC[:, -1:].expand(-1, short)], dim=1)
    return weight_RC.reshape(-1, size)


def _joined(groups_GC: Tensor, weight_RC: Tensor) -> Tensor:
    return groups_GC.reshape(weight_RC.shape[0], -1)[:, : weight_RC.shape[1]]


def pruned(weight_RC: Tensor, share: float) -> Tensor:
    """A matrix with the `share` of its elements that have the smallest magnitudes set to 0: exactly
    so many, the first of equal ones.

    Args:
        weight_RC: `[rows, columns]` float32.
        share: in (0, 1).

    Returns:
        `[rows, columns]` float32.
    """
    flat = weight_RC.flatten()
    count = round(share * flat.numel())
    if count == 0:
        return weight_RC
    size = flat.abs()
    border = size.kthvalue(count).values
    gone = size < border
    equal = (size == border).nonzero()[:, 0]
    gone[equal[: count - int(gone.sum())]] = True
    return flat.masked_fill(gone, 0.0).reshape(weight_RC.shape)
