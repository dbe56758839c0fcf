"""The elementwise passes of the checkpoint engine: stored elements in, float arithmetic, stored
elements out, in one pass over memory.

    combine          out = anchor + sum_i weight_i (plus_i - minus_i)
    ties             trimmed deltas, elected signs, mean of those that agree (Yadav et al. 2023, arXiv:2306.01708,
                     section 3)
    perturb          out = x + sigma * normal(key, i)
    delta_histogram  how often each magnitude of model - base occurs, for exact quantiles in two rounds
    moments          the sums that distances and cosines are made of

Each runs in C where a compiler was found (`native`) and in PyTorch where not (`kernels_torch`),
with the same bits; the sums of `moments` agree to about 1e-12. The C forms release the interpreter
lock for the whole call, so that threads run side by side; none starts threads of its own.

Arithmetic is float32, float64 as soon as an operand or the result is F64, left to right, without
fused multiplications, with one rounding into `out`. The result is stored in the memory given, which
may be an operand's own memory if both have one type, and does not depend on how a tensor is cut
into blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from holdfast.checkpoints import native
from holdfast.checkpoints.dtypes import count_nonfinite
from holdfast.checkpoints.element_types import Array, Operand
from holdfast.errors import ShapeError


class Term(NamedTuple):
    """`weight * (plus - minus)`; `weight * plus` where `minus` is None."""

    weight: float
    plus: Operand
    minus: Operand | None = None


class Flags(NamedTuple):
    """What a pass came across."""

    nonfinite: int = 0
    """Bit mask of the operands that contain NaN or infinities. The kernel documents their order."""
    overflow: int = 0
    """Number of overflowed elements. Such an element is infinite or NaN in `out`, although every
    operand is finite, or the value was finite before it was rounded."""


def combine(anchor: Operand | None, terms: Sequence[Term], out: Operand) -> Flags:
    """`out = anchor + sum_i weight_i * (plus_i - minus_i)`.

    Weights are rounded to the compute type once. A term of weight 0 is skipped, weight 1 multiplies
    nothing, and without an anchor the first product starts the sum, so that a plain copy keeps
    -0.0; one operand of weight 1 in the type of `out` is copied byte for byte, NaN included. With
    nothing to add up the result is 0.

    Args:
        anchor: `[N]` or None.
        terms: each `[N]`.
        out: `[N]`, written.

    Returns:
        Flags; bit 0 of `nonfinite` is the anchor, bit 1 + 2 i `plus_i`, bit 2 + 2 i `minus_i`.
        Skipped terms are looked at too.

    Raises:
        ShapeError: lengths differ, an element type is no float, a raw array is not contiguous.
    """
    operands = [anchor]
    for term in terms:
        operands += term[1:]
    form = _form("combine", *operands, out)
    double = _is_double([*operands, out])
    weights = [float(term.weight if double else np.float32(term.weight)) for term in terms]
    copied = _copied(anchor, terms, weights)
    if copied is not None and copied.dtype == out.dtype:
        nonfinite = 0
        for bit, operand in enumerate(operands):
            if operand is not None and count_nonfinite(*operand):
                nonfinite |= 1 << bit
        out.raw[:] = copied.raw
        return Flags(nonfinite)
    return Flags(*form.combine(operands, weights, out))


def delta_histogram(
    base: Operand, model: Operand, counts: Array, *, level: int, prefix: int = 0
) -> Flags:
    """Adds to `counts` how often each magnitude of `model - base` occurs.

    The magnitude is the 31 bits m of |model - base| as float32 (the difference of float64 operands
    is rounded to float32), whose order is that of the numbers; NaN counts as 0x7fc00000.

    Args:
        base, model: `[N]`.
        counts: int64, added to. Level 0: `[65536]`, by the upper 16 bits m >> 15. Level 1:
            `[32768]`, by the lower 15 bits of those whose upper bits equal `prefix`.
        level: 0 or 1.
        prefix: level 1 only.

    Returns:
        Flags; bit 0 of `nonfinite` is the base, bit 1 the model; `overflow` counts infinite
        differences of finite operands.

    Raises:
        ShapeError: as `combine`; or `counts` does not fit the level.
    """
    form = _form("delta_histogram", base, model)
    size = {0: 65536, 1: 32768}.get(level)
    if counts.shape != (size,) or counts.dtype != np.int64 or not counts.flags.c_contiguous:
        raise ShapeError(
            f"delta_histogram: expected int64 counts [{size}] at level {level}, got {counts.dtype} "
            f"{list(counts.shape)}."
        )
    return Flags(*form.delta_histogram(base, model, counts, level, prefix))


def ties(
    base: Operand,
    models: Sequence[Operand],
    thresholds: Sequence[float],
    weights: Sequence[float] | None,
    scale: float,
    *,
    original: bool,
    normalize: bool,
    out: Operand,
) -> Flags:
    """TIES: `out = base + scale * mean of the kept deltas whose sign is the elected one`.

    delta_i = model_i - base is kept where its magnitude (as float32) is at least threshold_i, is 0
    elsewhere, and is multiplied by weight_i if weights are given. The elected sign is that of the
    sum over the models. Elements on which nothing agrees keep the base, bit for bit.

    Args:
        base: `[N]`.
        models: each `[N]`.
        thresholds: one a model; 0 keeps all.
        weights: one a model, or None.
        scale: multiplies the merged delta.
        original: True: the mean divides by the number of agreeing deltas (a delta of 0 agrees with
            nothing), and a sum of 0 elects no sign. False: as mergekit, the mean divides by the sum
            of the agreeing weights (by 1 where that is 0), and a sum of 0 elects the positive sign.
        normalize: False: the sum of the agreeing deltas, not their mean.
        out: `[N]`, written.

    Returns:
        Flags; bit 0 of `nonfinite` is the base, bit 1 + i model i.

    Raises:
        ShapeError: as `combine`; or numbers of models, thresholds and weights differ.
    """
    form = _form("ties", base, *models, out)
    if len(thresholds) != len(models) or (weights is not None and len(weights) != len(models)):
        raise ShapeError(
            f"ties: expected a threshold and a weight for each of {len(models)} models, got "
            f"{len(thresholds)} "
            "thresholds" + ("." if weights is None else f" and {len(weights)} weights.")
        )
    return Flags(*form.ties([base, *models], thresholds, weights, scale, original, normalize, out))


def moments(a: Operand, b: Operand) -> Array:
    """The sums over all elements that distances are made of.

    Args:
        a, b: `[N]`.

    Returns:
        `[8]` float64: N, sum (b - a)^2, sum a^2, sum b^2, sum a b, how many signs agree (sign in
        -1, 0, 1), how many of a, of b are NaN or infinite. Sums run in float64 over blocks in a
        fixed order.

    Raises:
        ShapeError: as `combine`.
    """
    return _form("moments", a, b).moments(a, b)


def perturb(x: Operand, noise_key: int, start: int, sigma: float, out: Operand) -> Flags:
    """`out = x + sigma * z`, z the standard normal numbers `counter.normal(noise_key, start, N)`.

    Args:
        x: `[N]`.
        noise_key: of the stream, from `counter.stream_key`.
        start: position of the first element in the stream (its offset in the flattened tensor).
        sigma: standard deviation, rounded to the compute type.
        out: `[N]`, written; it may be `x`.

    Returns:
        Flags; bit 0 of `nonfinite` is x.

    Raises:
        ShapeError: as `combine`.
    """
    return Flags(*_form("perturb", x, out).perturb(x, noise_key, start, sigma, out))


def describe() -> str:
    """What the kernels run in, for reports: `C (gcc ...)`, or `PyTorch (...)` with the reason."""
    library = native.load()
    return f"PyTorch ({native.why_not()})" if library is None else f"C ({library.compiler})"


def _copied(
    anchor: Operand | None, terms: Sequence[Term], weights: Sequence[float]
) -> Operand | None:
    """The one operand that the result is, if it is one."""
    used = [(weight, term) for weight, term in zip(weights, terms, strict=True) if weight != 0]
    if anchor is not None:
        return None if used else anchor
    if len(used) != 1:
        return None
    weight, term = used[0]
    return term.plus if weight == 1 and term.minus is None else None


def _form(kernel: str, *operands: Operand | None) -> Any:
    """What computes: the library, or `kernels_torch`, which has functions of the same names and
    arguments.

    Raises:
        ShapeError: lengths, types and layout that do not fit.
    """
    present = [operand for operand in operands if operand is not None]
    length = len(present[0].raw)
    for raw, dtype in present:
        if dtype.kind != "float":
            raise ShapeError(
                f"{kernel}: expected a float dtype, got {dtype.name}. Integers and booleans can "
                "only be copied."
            )
        if raw.shape != (length,) or raw.dtype != dtype.storage or not raw.flags.c_contiguous:
            raise ShapeError(
                f"{kernel}: expected {length} contiguous elements of {dtype.storage} for "
                f"{dtype.name}, got {list(raw.shape)} of {raw.dtype} with strides {raw.strides}."
            )
    library = native.load()
    known = kernel == "combine" or not _is_double(operands)
    aligned = all(operand.raw.flags.aligned for operand in present)
    if library is not None and known and aligned and len(operands) <= native.MOST_OPERANDS:
        return library
    from holdfast.checkpoints import kernels_torch

    return kernels_torch


def _is_double(operands: Sequence[Operand | None]) -> bool:
    return any(operand is not None and operand.dtype.name == "F64" for operand in operands)
