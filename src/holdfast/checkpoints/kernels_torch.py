"""The elementwise passes in PyTorch: where there is no C compiler, and for float64 elements.
`kernels` and `dtypes` say what each function computes; the results have the bits of the C forms.

Operands come as NumPy arrays whose memory the tensors share. Work goes in pieces that stay in the
second-level cache and are too small for PyTorch to start threads of its own. What models in memory
are changed by is in `live`.

A float64 is rounded to float32 "to odd" before it is rounded to a smaller type: the last bit says
whether anything was lost, so that the second rounding is right (Boldo and Melquiond, "Emulation of
FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoints import counter
from holdfast.checkpoints.element_types import Array, DType, Operand

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""PyTorch's float types by the names of safetensors."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of as many bytes as a float has."""
_PIECE = 32768
"""Elements; PyTorch works on more than that with several threads."""
_LARGEST_E4M3 = 464.0
"""What still rounds to 448. Beyond it NaN is due, where PyTorch gives 448."""
_INFINITE = 0x7F800000
"""The bits of a float32."""

Flags = tuple[int, int]
"""As `kernels.Flags`."""


def compute_type(*types: torch.dtype) -> torch.dtype:
    """float64 where one of the types is, else float32."""
    return torch.float64 if torch.float64 in types else torch.float32


# -------------------------------------------------------------------------------------- conversions


def decode(raw: Array, dtype: DType, out: Array) -> None:
    """See `dtypes.decode`."""
    torch.from_numpy(out).copy_(_tensor(Operand(raw, dtype)))


def encode(values: Array, dtype: DType, out: Array) -> int:
    """See `dtypes.encode`."""
    return _store(torch.from_numpy(values), _tensor(Operand(out, dtype)), dtype)


def count_nonfinite(raw: Array, dtype: DType) -> int:
    """See `dtypes.count_nonfinite`; float types only."""
    values = _tensor(Operand(raw, dtype))
    return sum(_nonfinite(_widened(values[piece])) for piece in _pieces(len(values)))


def _tensor(operand: Operand) -> Tensor:
    """The elements in their own type and memory (in a copy of it, if that is read-only)."""
    raw, dtype = operand
    memory = raw if raw.flags.writeable else raw.copy()
    return torch.from_numpy(memory).view(TORCH[dtype.name])


def _widened(values: Tensor) -> Tensor:
    return values.to(compute_type(values.dtype))


def _nonfinite(values: Tensor) -> int:
    return int((~values.isfinite()).sum())


def _largest(values: Tensor) -> Tensor:
    """The largest magnitude; NaN where there is one."""
    return values.abs().max() if values.numel() else torch.zeros((), dtype=values.dtype)


def _store(values: Tensor, out: Tensor, dtype: DType) -> int:
    """Rounds numbers into `out`; how many finite ones became infinite or NaN."""
    to_narrow = values.dtype == torch.float64 and out.itemsize < 4
    single = _rounded_to_odd(values) if to_narrow else values
    is_finite, is_nan = None, None
    if not _largest(values) <= torch.finfo(out.dtype).max:
        is_finite, is_nan = values.isfinite(), values.isnan()
    out.copy_(single)
    if is_finite is None or is_nan is None:
        return 0
    bits = out.view(INTEGERS[out.itemsize])
    if dtype.name == "F8_E4M3":
        bits[single > _LARGEST_E4M3] = 0x7F
        bits[single < -_LARGEST_E4M3] = -1  # 0xFF
    bits[is_nan] = dtype.nan
    return int((is_finite & ~_widened(out).isfinite()).sum())


def _rounded_to_odd(values: Tensor) -> Tensor:
    """float64 as float32, inexact results with the last bit set: a later rounding to at most 22
    bits is then as if it were the only one."""
    near = values.float()
    bits = near.view(torch.int32)
    is_even_and_inexact = (near.double() != values) & (bits & 1 == 0) & ~values.isnan()
    towards_value = torch.where(near.double().abs() > values.abs(), -1, 1)
    return (bits + is_even_and_inexact * towards_value).to(torch.int32).view(torch.float32)


# ------------------------------------------------------------------------------------------- passes


def combine(operands: Sequence[Operand | None], weights: Sequence[float], out: Operand) -> Flags:
    """See `kernels.combine`; operands are the anchor, plus_0, minus_0, plus_1 ..."""
    anchor, *others = [None if operand is None else _tensor(operand) for operand in operands]
    compute = _compute_type_of(*operands, out)
    terms, skipped = [], list(operands)
    skipped[0] = None
    for number, (weight, plus, minus) in enumerate(
        zip(weights, others[::2], others[1::2], strict=True)
    ):
        if weight != 0 and plus is not None:
            terms.append((weight, plus, minus))
            skipped[1 + 2 * number : 3 + 2 * number] = [None, None]

    def result(piece: slice) -> Tensor:
        total = None if anchor is None else anchor[piece].to(compute)
        for weight, plus, minus in terms:
            value = plus[piece].to(compute)
            if minus is not None:
                value = value - minus[piece].to(compute)
            if weight != 1:
                value = value * weight
            total = value if total is None else total + value
        return torch.zeros(len(out.raw[piece]), dtype=compute) if total is None else total

    return _written(result, operands, out, mask=_nonfinite_mask(skipped))


def ties(
    operands: Sequence[Operand],
    thresholds: Sequence[float],
    weights: Sequence[float] | None,
    scale: float,
    by_count: bool,
    normalize: bool,
    out: Operand,
) -> Flags:
    """See `kernels.ties`; operands are the base and the models, `by_count` is its `original`."""
    base, *models = [_tensor(operand) for operand in operands]
    compute = _compute_type_of(*operands, out)
    limits = [float(np.float32(threshold)) for threshold in thresholds]
    factors = [1.0] * len(models) if weights is None else list(weights)

    def result(piece: slice) -> Tensor:
        start = base[piece].to(compute)
        deltas = []
        for model, limit, factor in zip(models, limits, factors, strict=True):
            delta = model[piece].to(compute) - start
            delta = torch.where(delta.abs().float() < limit, 0, delta)
            deltas.append(delta * factor)
        total = torch.zeros_like(start)
        for delta in deltas:
            total = total + delta
        rises = total > 0 if by_count else total >= 0
        merged, share = torch.zeros_like(start), torch.zeros_like(start)
        for delta, factor in zip(deltas, factors, strict=True):
            agrees = torch.where(rises, delta, -delta) > 0
            merged = torch.where(agrees, merged + delta, merged)
            share = torch.where(agrees, share + (1.0 if by_count else factor), share)
        if normalize:
            merged = merged / torch.where(share == 0, 1, share)
        merged = merged * scale
        stays = merged == 0
        if by_count:
            stays |= total == 0
        return torch.where(stays, start, start + merged)

    return _written(result, operands, out, mask=_nonfinite_mask(operands))


def perturb(x: Operand, noise_key: int, start: int, sigma: float, out: Operand) -> Flags:
    """See `kernels.perturb`."""
    values, compute = _tensor(x), _compute_type_of(x, out)

    def result(piece: slice) -> Tensor:
        noise = counter.normal(noise_key, start + piece.start, piece.stop - piece.start)
        return values[piece].to(compute) + torch.from_numpy(noise).to(compute) * sigma

    return _written(result, [x], out)


def delta_histogram(base: Operand, model: Operand, counts: Array, level: int, prefix: int) -> Flags:
    """See `kernels.delta_histogram`."""
    before, after = _tensor(base), _tensor(model)
    compute = _compute_type_of(base, model)
    total, unusual = torch.from_numpy(counts), 0
    for piece in _pieces(len(before)):
        delta = (after[piece].to(compute) - before[piece].to(compute)).float()
        bits = delta.view(torch.int32) & 0x7FFFFFFF
        unusual += int((bits >= _INFINITE).sum())
        bits = torch.where(bits > _INFINITE, 0x7FC00000, bits)
        if level == 0:
            total += torch.bincount(bits >> 15, minlength=len(counts))
        else:
            total += torch.bincount(bits[bits >> 15 == prefix] & 0x7FFF, minlength=len(counts))
    mask = _nonfinite_mask([base, model]) if unusual else 0
    return mask, 0 if mask else unusual


def moments(a: Operand, b: Operand) -> Array:
    """See `kernels.moments`."""
    before, after = _tensor(a), _tensor(b)
    sums = torch.zeros(5, dtype=torch.float64)
    for piece in _pieces(len(before)):
        x, y = before[piece].double(), after[piece].double()
        moved = y - x
        agree = (x.sign() == y.sign()) & ~x.isnan() & ~y.isnan()
        products = [moved * moved, x * x, y * y, x * y, agree.double()]
        sums += torch.stack([product.sum() for product in products])
    return np.array([len(before), *sums.tolist(), count_nonfinite(*a), count_nonfinite(*b)])


def _compute_type_of(*operands: Operand | None) -> torch.dtype:
    return compute_type(*(TORCH[operand.dtype.name] for operand in operands if operand is not None))


def _pieces(length: int) -> Iterator[slice]:
    for start in range(0, length, _PIECE):
        yield slice(start, min(start + _PIECE, length))


def _nonfinite_mask(operands: Sequence[Operand | None]) -> int:
    mask = 0
    for bit, operand in enumerate(operands):
        if operand is not None and count_nonfinite(*operand):
            mask |= 1 << bit
    return mask


def _written(
    result: Callable[[slice], Tensor],
    operands: Sequence[Operand | None],
    out: Operand,
    *,
    mask: int = 0,
) -> Flags:
    """Writes what is computed piece by piece. Operands that are not finite show in the result, and
    are looked for only there; before a piece is written, as `out` may be one of them.

    Args:
        result: of a piece.
        operands: what it is computed of.
        out: where to.
        mask: of operands that are known not to be finite.
    """
    target = _tensor(out)
    lost = unusual = 0
    for piece in _pieces(len(target)):
        values = result(piece)
        if not _largest(values).isfinite():
            unusual += _nonfinite(values)
            mask |= _nonfinite_mask(
                [None if o is None else Operand(o.raw[piece], o.dtype) for o in operands]
            )
        lost += _store(values, target[piece], out.dtype)
    return mask, lost + (0 if mask else unusual)
