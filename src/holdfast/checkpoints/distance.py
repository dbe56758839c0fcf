"""How far weights moved: L2 norm of the difference, relative norm, cosine, agreement of signs; for
every tensor, layer and in total.

    l2 = |b - a|     relative = |b - a| / |a|     cosine = a.b / (|a| |b|)
                     sign agreement = share of i with sign(a_i) = sign(b_i)

All come from six sums, accumulated in float64 over one pass: `distance` streams two checkpoint
folders, `layer_distances` looks at pairs of tensors in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.layers import layer_of
from holdfast.checkpoints.sources import listing
from holdfast.records.run import LayerDistance

if TYPE_CHECKING:
    import os

    import numpy as np
    import torch

    from holdfast.checkpoints.engine import Job, Scratch
    from holdfast.checkpoints.sources import Entry, Source


@dataclass(frozen=True, kw_only=True)
class TensorDistance:
    """How far one tensor is from another."""

    name: str
    layer: str
    """As in `LayerDistance`."""
    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    """Of the two tensors, as stored."""
    l2: float
    relative: float
    """`l2` over the norm of the first (infinite where that is 0 and they differ)."""
    cosine: float
    sign_agreement: float


@dataclass(frozen=True, kw_only=True)
class CheckpointDistance:
    """The distance between two checkpoints."""

    start: str
    result: str
    tensors: tuple[TensorDistance, ...] = field(repr=False)
    """Distances by tensor, in the first checkpoint's order."""
    layers: tuple[LayerDistance, ...]
    """Distances by layer; the last is "total"."""
    notes: tuple[str, ...]
    """What could not be compared, and why."""
    seconds: float

    @property
    def total(self) -> LayerDistance:
        """The distance over all tensors that were compared."""
        return self.layers[-1]


def distance(
    start: str | os.PathLike[str], result: str | os.PathLike[str], *, workers: int | None = None
) -> CheckpointDistance:
    """Measures the distance between two checkpoints, in one pass over both.

    Args:
        start, result: folders, hub ids or adapters. Adapters are merged into their base on the fly;
            if an adapter does not name its base, `start` is used.
        workers: number of threads; None: all cores.

    Returns:
        The distances of all floating-point tensors that both checkpoints have in the same shape. If
            the vocabularies differ, rows of embeddings and heads are matched by token. `notes` says
            what was left out.

    Raises:
        ModelError: a checkpoint cannot be read or holds NaN or infinities, or the two have no
            tensor in common.
    """
    from holdfast.checkpoints.engine import job_of, map_blocks, nonfinite_error
    from holdfast.checkpoints.kernels import moments
    from holdfast.checkpoints.locate import open_source
    from holdfast.checkpoints.parents import Findings, Parents
    from holdfast.checkpoints.plan import quantised
    from holdfast.checkpoints.vocabulary import align_vocabularies
    from holdfast.errors import ModelError
    from holdfast.support.progress import progress

    began = time.perf_counter()
    notes: list[str] = []
    sources = [open_source(start), open_source(result, base=start)]
    for source in sources:
        if method := quantised(source):
            notes.append(
                f"{source.label} is quantised ({method}): distances are computed on the stored "
                "numbers, not on its weights."
            )
    findings = Findings(notes=notes)
    parents = Parents(sources=tuple(sources), roles=("the start", "the result"), base=0)
    a, b = align_vocabularies(parents, "zero", findings).sources
    jobs = [job_of(entry, 2) for entry in comparable(a, b)]
    notes += _left_out(a.entries, b.entries, {job.name for job in jobs})
    if not jobs:
        raise ModelError(
            f"{a.label} and {b.label} have no tensor in common. Give two checkpoints of one "
            "architecture.",
            *notes,
        )
    sums: dict[str, np.ndarray] = {}

    def look(job: Job, begin: int, end: int, scratch: Scratch) -> np.ndarray:
        first = a.read(job.name, begin, end, scratch.buffers[0])
        sums_of_block = moments(first, b.read(job.name, begin, end, scratch.buffers[1]))
        if sums_of_block[6] or sums_of_block[7]:
            raise nonfinite_error(a if sums_of_block[6] else b, job.name)
        return sums_of_block

    def add(job: Job, block: np.ndarray) -> None:
        sums[job.name] = block if job.name not in sums else sums[job.name] + block

    with progress(
        "Comparing", total=sum(j.size * j.dtype.itemsize for j in jobs), unit="bytes"
    ) as advance:
        map_blocks(jobs, look, sources=2, workers=workers, reduce=add, advance=advance)
    tensors = []
    for job in jobs:
        dtypes = job.dtype.name, b.entries[job.name].dtype.name
        figures = _figures(sums[job.name])
        tensors.append(
            TensorDistance(
                name=job.name, layer=layer_of(job.name), shape=job.shape, dtypes=dtypes, **figures
            )
        )
    return CheckpointDistance(
        start=a.label,
        result=b.label,
        tensors=tuple(tensors),
        layers=by_layer((job.name, sums[job.name]) for job in jobs),
        notes=tuple(notes),
        seconds=time.perf_counter() - began,
    )


def comparable(a: Source, b: Source) -> list[Entry]:
    """The floating-point tensors of `a` that `b` has in the same shape."""
    entries = []
    for name, entry in a.entries.items():
        other = b.entries.get(name)
        if (
            other is not None
            and other.shape == entry.shape
            and entry.dtype.kind == other.dtype.kind == "float"
        ):
            entries.append(entry)
    return entries


def _left_out(a: Mapping[str, Any], b: Mapping[str, Any], compared: set[str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name in [*a, *(name for name in b if name not in a)]:
        if name not in b:
            reason = "only in the start"
        elif name not in a:
            reason = "only in the result"
        elif a[name].shape != b[name].shape:
            reason = "of different shapes"
        else:
            reason = "" if name in compared else "not of floating-point numbers"
        names.setdefault(reason, []).append(name)
    reasons = (
        "only in the start",
        "only in the result",
        "of different shapes",
        "not of floating-point numbers",
    )
    sentences = []
    for reason in reasons:
        if reason in names:
            count, listed = len(names[reason]), listing(names[reason])
            sentences.append(f"{count} tensors {reason}: {listed}")
    return sentences


def layer_distances(pairs: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> list[LayerDistance]:
    """Distances per layer and, last, "total", of tensors in memory.

    Args:
        pairs: `(parameter name, start, result)`, tensors of one shape, any floating dtype.
    """
    import numpy as np

    def moments_of(start: torch.Tensor, result: torch.Tensor) -> np.ndarray:
        a, b = start.detach().float(), result.detach().to(start.device).float()
        squares = [(b - a).square().sum(), a.square().sum(), b.square().sum()]
        agree = (a.sign() == b.sign()).sum()
        sums = (a.numel(), *squares, (a * b).sum(), agree, 0, 0)
        return np.array([float(value) for value in sums])

    return list(by_layer((name, moments_of(start, result)) for name, start, result in pairs))


def share_changed(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The share of elements that are not what they were; NaN without any.

    Args:
        pairs: `(start, result)`, tensors of one shape; the start is rounded to the result's dtype.
    """
    changed = total = 0
    for start, result in pairs:
        total += result.numel()
        changed += int((start.to(result.device, result.dtype) != result.detach()).sum())
    return changed / total if total else math.nan


def by_layer(moments: Iterable[tuple[str, np.ndarray]]) -> tuple[LayerDistance, ...]:
    """Layers in order ("total" last) from tensors' names and sums, as `kernels.moments` gives
    them."""
    sums: dict[str, np.ndarray] = {}
    for name, of_tensor in moments:
        for layer in (layer_of(name), "total"):
            sums[layer] = of_tensor if layer not in sums else sums[layer] + of_tensor
    layers = []
    for layer in sorted(sums, key=_order):
        of_layer = sums[layer]
        layers.append(LayerDistance(layer=layer, parameters=int(of_layer[0]), **_figures(of_layer)))
    return tuple(layers)


def _figures(sums: np.ndarray) -> dict[str, float]:
    count, moved, start, result, product, agree = (float(v) for v in sums[:6])
    l2 = math.sqrt(moved)
    relative = l2 / math.sqrt(start) if start > 0 else (math.inf if l2 > 0 else 0.0)
    cosine = (
        max(-1.0, min(1.0, product / math.sqrt(start * result)))
        if start > 0 and result > 0
        else math.nan
    )
    agreement = agree / count if count else math.nan
    return {"l2": l2, "relative": relative, "cosine": cosine, "sign_agreement": agreement}


def _order(layer: str) -> tuple[int, int]:
    if layer.isdigit():
        return (1, int(layer))
    return ({"embed": 0, "norm": 2, "head": 3, "other": 4, "total": 5}[layer], 0)
