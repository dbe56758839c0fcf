"""The row stage of the annealing op as one Triton kernel: raw products in, their gradient and the
rows' figures out.

One program a row, several passes over the vocabulary in blocks; the maths are those of
`ops.annealing_rows`.

    pass 1   log-sum-exps of the student (T = 1, and at T over the common columns where that differs) and of the
             teacher, entropy, the label's
             logit, finiteness; for the reverse direction also E_q[w - z], for -d_i - KL(q || p) =
             (E_q[w - z] - (w_i - z_i)) / T
    jsd      sum_j q_j L_j, which its gradient needs, and the divergence itself
    pass 2   the gradient, the label's -1 included, and the divergence; skipped where neither is wanted

Each lane keeps a running maximum m and sum s of its own, so that the loops hold no reduction and no
barrier, and one exponential an element does for the online update: with e = exp(-|x - m|) either s
<- s e + 1, m <- x or s <- s + e.

Precision: float32 on float32 input (float64 on float64), but sums, the rows' scalars and logarithms
in float64, and

    p d + q - p = p phi(-d),   q - p = p (phi(-d) - d),   phi(x) = e^x - 1 - x

with a series for phi where |d| < 1/2, so that a tiny divergence and its gradient have a relative
error of float32 and an unmoved student has exactly none. For the same reason multiplications and
additions are not fused behind our back: scale * w - scale * z would not be 0 for w = z.

No function of libdevice is called by name (expm1, log1p, tanh): the Triton interpreter has none.

Shapes: C rows of a chunk, V student vocabulary, U teacher vocabulary, F figures.

Not here: the products (`ops.annealing_chunked`), and a fused product (it would need 4 H V more
operations a token than it saves).
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from holdfast.ops.annealing_terms import FIGURES, Terms

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # no Triton for this platform: `is_available` says so
    triton = None

    def jit(function):
        return function


BLOCK = 1024
"""Columns a program takes at once. Four a thread take 70 registers on Hopper in the usual case,
three programs a multiprocessor; eight would take 144 and leave one. Chosen from the compiler's
figures, not from timings."""

_DIRECTIONS = ("forward", "reverse", "jsd")


def is_available() -> bool:
    """Whether `rows_triton` can run: Triton is installed and there is a CUDA device, or Triton's
    interpreter was on when Triton was imported."""
    if triton is None:
        return False
    return torch.cuda.is_available() or not isinstance(_row_kernel, triton.runtime.JITFunction)


def rows_triton(
    z_CV: Tensor,
    w_CU: Tensor | None,
    *,
    bias_V: Tensor | None,
    teacher_bias_U: Tensor | None,
    labels_C: Tensor,
    kl_rows_C: Tensor | None,
    ce_weights_C: Tensor | None = None,
    kl_weights_C: Tensor | None = None,
    gate_power: Tensor | None = None,
    ce_scale: Tensor,
    kl_scale: Tensor,
    terms: Terms,
    gradient_CV: Tensor | None,
    figures_CF: Tensor,
    block: int | None = None,
) -> None:
    """The `RowStage` contract of `ops.annealing_rows` on CUDA (or in Triton's interpreter); no host
    synchronisation.

    Rows may have any stride. `z_CV` and `w_CU` are left as they are, unless `gradient_CV` is
    `z_CV`.

    Args:
        block: columns a program takes at once, a power of two; None: `BLOCK`. Changes nothing but
            speed and rounding.
        The others as in `RowStage`.
    """
    rows, vocabulary = z_CV.shape
    assert triton is not None, "ask is_available() first"
    assert (w_CU is None) == (kl_rows_C is None), "expected both w_CU and kl_rows_C, or neither"
    assert terms.direction in _DIRECTIONS, (
        f"direction: expected one of {_DIRECTIONS}, got {terms.direction!r}"
    )
    assert figures_CF.shape == (rows, len(FIGURES)), (
        f"figures_CF: expected {(rows, len(FIGURES))}, got {tuple(figures_CF.shape)}"
    )
    for matrix in (z_CV, w_CU, gradient_CV, figures_CF):
        assert matrix is None or (matrix.stride(1) == 1 and matrix.shape[0] == rows), (
            "rows_triton expects rows with contiguous columns"
        )
    if rows == 0:
        return
    block = block or BLOCK
    anneal = w_CU is not None
    masked = w_CU is not None and terms.mask_target and min(vocabulary, w_CU.shape[1]) > 1
    with torch.cuda.device(z_CV.device) if z_CV.is_cuda else nullcontext():
        _row_kernel[(rows,)](
            z_CV,
            w_CU,
            bias_V,
            teacher_bias_U,
            labels_C.contiguous(),
            None if kl_rows_C is None else kl_rows_C.contiguous().view(torch.uint8),
            None if ce_weights_C is None else ce_weights_C.contiguous(),
            None if kl_weights_C is None else kl_weights_C.contiguous(),
            gate_power,
            ce_scale,
            kl_scale,
            gradient_CV,
            figures_CF,
            vocabulary,
            0 if w_CU is None else w_CU.shape[1],
            z_CV.stride(0),
            0 if w_CU is None else w_CU.stride(0),
            0 if gradient_CV is None else gradient_CV.stride(0),
            figures_CF.stride(0),
            KL=anneal,
            OWN=w_CU is not None
            and (terms.temperature != 1.0 or w_CU.shape[1] < vocabulary or masked),
            DIRECTION=terms.direction if anneal else "",
            WRITE=gradient_CV is not None,
            SCALE=float(terms.logit_scale),
            CAP=None if terms.softcap is None else float(terms.softcap),
            TEACHER_SCALE=float(terms.teacher_logit_scale) if anneal else 1.0,
            TEACHER_CAP=None
            if terms.teacher_softcap is None or not anneal
            else float(terms.teacher_softcap),
            INVERSE_T=1.0 / terms.temperature if anneal else 1.0,
            BETA=float(terms.beta) if terms.direction == "jsd" else 0.0,
            MASK=masked,
            GATE=terms.gate,
            FLOOR=float(terms.floor) if terms.gate != "none" else 0.0,
            STRENGTH=float(terms.gate_strength) if terms.gate != "none" else 0.0,
            SERIES=15 if z_CV.dtype == torch.float64 else 8,
            BLOCK=block,
            num_warps=max(1, min(8, block // 128)),
            enable_fp_fusion=False,
        )


# ------------------------------------------------------------------------------------------- kernel


@jit
def _row_kernel(
    z_ptr,
    w_ptr,
    bias_ptr,
    teacher_bias_ptr,
    labels_ptr,
    kl_rows_ptr,
    ce_weights_ptr,
    kl_weights_ptr,
    gate_power_ptr,
    ce_scale_ptr,
    kl_scale_ptr,
    gradient_ptr,
    figures_ptr,
    V,
    U,
    z_stride,
    w_stride,
    gradient_stride,
    figures_stride,
    KL: tl.constexpr,  # there is a teacher
    OWN: tl.constexpr,  # the divergence has a softmax of its own: T != 1, columns that the teacher lacks, or MASK
    DIRECTION: tl.constexpr,
    WRITE: tl.constexpr,  # the gradient is wanted
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    TEACHER_SCALE: tl.constexpr,
    TEACHER_CAP: tl.constexpr,
    INVERSE_T: tl.constexpr,
    BETA: tl.constexpr,
    MASK: tl.constexpr,  # the divergence leaves the label out
    GATE: tl.constexpr,
    FLOOR: tl.constexpr,
    STRENGTH: tl.constexpr,
    SERIES: tl.constexpr,  # terms of the series of phi
    BLOCK: tl.constexpr,
):
    dtype: tl.constexpr = z_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)  # C V may exceed 2^31
    z_ptr += row * z_stride
    lanes = tl.arange(0, BLOCK)
    label = tl.load(labels_ptr + row)
    has_label = label >= 0
    common = 0
    in_kl = False
    if KL:
        w_ptr += row * w_stride
        common = tl.minimum(V, U)
        in_kl = tl.load(kl_rows_ptr + row) != 0

    # ---- pass 1: sums of exponentials

    high = tl.full([BLOCK], -3e38, dtype)
    total = tl.zeros([BLOCK], tl.float64)
    moment = tl.zeros([BLOCK], tl.float64)  # sum e^u u, for the entropy
    finite = tl.full([BLOCK], 1, tl.int1)
    own_high = high
    own_total = total
    teacher_high = high
    teacher_total = total
    teacher_finite = finite
    gap = total  # sum e^{u / T} (w - u), for the scalar of the reverse direction
    if KL:
        for start in range(0, common, BLOCK):
            columns = start + lanes
            mask = columns < common
            u, _slope, is_finite = _logit(z_ptr, bias_ptr, columns, mask, SCALE, CAP, SERIES)
            finite = finite & is_finite
            w, _slope, is_finite = _logit(
                w_ptr, teacher_bias_ptr, columns, mask, TEACHER_SCALE, TEACHER_CAP, SERIES
            )
            teacher_finite = teacher_finite & is_finite
            high, total, shrink, grow = _online(u, mask, high, total, 1.0)
            moment = tl.fma(moment, shrink, grow * u.to(tl.float64))
            if MASK:
                mask = mask & (columns != label)
            if OWN:
                own_high, own_total, shrink, grow = _online(u, mask, own_high, own_total, INVERSE_T)
            if DIRECTION == "reverse":
                gap = tl.fma(gap, shrink, grow * (w - u).to(tl.float64))
            teacher_high, teacher_total, _shrink, _grow = _online(
                w, mask, teacher_high, teacher_total, INVERSE_T
            )
    for start in range(common, V, BLOCK):
        columns = start + lanes
        mask = columns < V
        u, _slope, is_finite = _logit(z_ptr, bias_ptr, columns, mask, SCALE, CAP, SERIES)
        finite = finite & is_finite
        high, total, shrink, grow = _online(u, mask, high, total, 1.0)
        moment = tl.fma(moment, shrink, grow * u.to(tl.float64))
    if KL:
        for start in range(
            common, U, BLOCK
        ):  # columns only the teacher has: no mass, but they must be numbers
            columns = start + lanes
            teacher_finite = (
                teacher_finite
                & _logit(
                    w_ptr,
                    teacher_bias_ptr,
                    columns,
                    columns < U,
                    TEACHER_SCALE,
                    TEACHER_CAP,
                    SERIES,
                )[2]
            )

    # The label's logit is read before pass 2 may overwrite it; the reductions below hold every warp
    # back until all have read.
    u_label = _logit(z_ptr, bias_ptr, tl.maximum(label, 0), has_label, SCALE, CAP, SERIES)[0]
    top, weight, mass = _row_total(high, total, 1.0)
    log_mass = tl.log(mass)
    entropy = top.to(tl.float64) + log_mass - tl.sum(moment * weight, 0) / mass
    ce = tl.where(has_label, top.to(tl.float64) - u_label.to(tl.float64) + log_mass, 0.0)
    correct = has_label & (u_label >= top)
    bad = 1 - tl.min(finite.to(tl.int32), 0)

    weight_of_row = tl.where(has_label, 1.0, 0.0).to(tl.float64)
    if ce_weights_ptr is not None:
        weight_of_row *= tl.load(ce_weights_ptr + row)
    if GATE != "none":
        power = 1.0
        if gate_power_ptr is not None:
            power = tl.load(gate_power_ptr).to(tl.float64)
        if GATE == "probability":
            gate = tl.exp(-power * ce)
        else:
            entropy_of_largest = _largest_entropy(z_ptr, bias_ptr, V, SCALE, CAP, SERIES, BLOCK)
            gate = tl.where(
                entropy_of_largest > 0,
                tl.exp(power * tl.log(tl.maximum(entropy_of_largest, 1e-300) / 3.0)),
                0.0,
            )
        weight_of_row *= 1.0 - STRENGTH + STRENGTH * tl.maximum(gate, FLOOR)

    teacher_bad = 0
    own_top = top
    own_log_mass = log_mass
    teacher_top = top
    teacher_log_mass = log_mass
    shift = top
    scalar = top  # what the direction's gradient needs: E_q[w - u], or E_q[L]
    divergence = total
    if KL:
        if OWN:
            own_top, weight, mass = _row_total(own_high, own_total, INVERSE_T)
            own_log_mass = tl.log(mass)
        teacher_top, _weight, teacher_mass = _row_total(teacher_high, teacher_total, INVERSE_T)
        teacher_log_mass = tl.log(teacher_mass)
        teacher_bad = 1 - tl.min(teacher_finite.to(tl.int32), 0)
        shift = (
            (teacher_top.to(tl.float64) - own_top.to(tl.float64)) * INVERSE_T
            + (teacher_log_mass - own_log_mass)
        ).to(dtype)
        divergence = tl.zeros([BLOCK], tl.float64)
        if DIRECTION == "reverse":
            scalar = (tl.sum(gap * weight, 0) / mass).to(dtype)

    # ---- jsd: the scalar of its gradient, and the divergence

    if DIRECTION == "jsd":
        mean = tl.zeros([BLOCK], tl.float64)
        for start in range(0, common, BLOCK):
            columns = start + lanes
            mask = columns < common
            u = _logit(z_ptr, bias_ptr, columns, mask, SCALE, CAP, SERIES)[0]
            w = _logit(w_ptr, teacher_bias_ptr, columns, mask, TEACHER_SCALE, TEACHER_CAP, SERIES)[
                0
            ]
            q = _softmax(u, own_top, own_log_mass, INVERSE_T)
            p = _softmax(w, teacher_top, teacher_log_mass, INVERSE_T)
            d = (w - u) * INVERSE_T - shift
            rest = _log_mixture(d, BETA, SERIES)
            ratio = tl.maximum(d, 0.0) + rest
            mixture = BETA * p + (1.0 - BETA) * q
            if MASK:
                mask = mask & (columns != label)
            # beta KL(p || q) - KL(m || q) near 0, beta KL(p || m) + (1 - beta) KL(q || m)
            # elsewhere: the same sum, each precise in its place
            near = BETA * (p * _phi(-d, SERIES)) - mixture * _phi(-ratio, SERIES)
            far = BETA * (p * (tl.minimum(d, 0.0) - rest)) - (1.0 - BETA) * (q * ratio)
            divergence += tl.where(mask, tl.where(tl.abs(d) < 0.5, near, far), 0.0).to(tl.float64)
            mean += tl.where(mask, q * ratio, 0.0).to(tl.float64)
        scalar = tl.sum(mean, 0).to(dtype)

    # ---- pass 2: gradient, and the divergence of the other directions

    if WRITE or (KL and DIRECTION != "jsd"):
        ce_row = (tl.load(ce_scale_ptr) * weight_of_row).to(dtype)
        if WRITE:
            gradient_ptr += row * gradient_stride
        if KL:
            kl_row = tl.where(in_kl, tl.load(kl_scale_ptr).to(dtype) * INVERSE_T, 0.0)
            if kl_weights_ptr is not None:
                kl_row *= tl.load(kl_weights_ptr + row)
            for start in range(0, common, BLOCK):
                columns = start + lanes
                mask = columns < common
                u, slope, _is_finite = _logit(z_ptr, bias_ptr, columns, mask, SCALE, CAP, SERIES)
                w = _logit(
                    w_ptr, teacher_bias_ptr, columns, mask, TEACHER_SCALE, TEACHER_CAP, SERIES
                )[0]
                q = _softmax(u, own_top, own_log_mass, INVERSE_T)
                d = (w - u) * INVERSE_T - shift
                if DIRECTION == "jsd":
                    pull = (1.0 - BETA) * (
                        q * (scalar - (tl.maximum(d, 0.0) + _log_mixture(d, BETA, SERIES)))
                    )
                else:
                    p = _softmax(w, teacher_top, teacher_log_mass, INVERSE_T)
                    near = tl.abs(d) < 0.5
                    if DIRECTION == "forward":
                        phi = _phi(-d, SERIES)
                        pull = tl.where(near, p * (phi - d), q - p)
                        term = tl.where(near, p * phi, p * d + (q - p))
                    else:
                        # -d - KL, in which the shift cancels
                        pull = q * ((scalar - (w - u)) * INVERSE_T)
                        term = tl.where(near, q * _phi(d, SERIES), p - q - q * d)
                    if MASK:
                        term = tl.where(columns == label, 0.0, term)
                    divergence += tl.where(mask, term, 0.0).to(tl.float64)
                if MASK:
                    pull = tl.where(columns == label, 0.0, pull)
                if WRITE:
                    if OWN:
                        q = _softmax(u, top, log_mass, 1.0)
                    g = tl.where(
                        has_label, ce_row * (q - tl.where(columns == label, 1.0, 0.0)), 0.0
                    )
                    g += tl.where(in_kl, kl_row * pull, 0.0)
                    _store(gradient_ptr + columns, g * slope * SCALE, mask)
        if WRITE:
            for start in range(common, V, BLOCK):
                columns = start + lanes
                mask = columns < V
                u, slope, _is_finite = _logit(z_ptr, bias_ptr, columns, mask, SCALE, CAP, SERIES)
                q = _softmax(u, top, log_mass, 1.0)
                g = tl.where(has_label, ce_row * (q - tl.where(columns == label, 1.0, 0.0)), 0.0)
                _store(gradient_ptr + columns, g * slope * SCALE, mask)

    # ---- figures, in the order of FIGURES

    figures_ptr += row * figures_stride
    out: tl.constexpr = figures_ptr.dtype.element_ty
    kl = 0.0
    if KL:
        kl = tl.where(in_kl, tl.sum(divergence, 0), 0.0).to(out)
    tl.store(figures_ptr, ce.to(out))
    tl.store(figures_ptr + 1, kl)
    tl.store(figures_ptr + 2, entropy.to(out))
    tl.store(figures_ptr + 3, correct.to(out))
    tl.store(figures_ptr + 4, bad.to(out))
    tl.store(figures_ptr + 5, teacher_bad)
    tl.store(figures_ptr + 6, weight_of_row.to(out))


@jit
def _largest_entropy(
    z_ptr,
    bias_ptr,
    V,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    SERIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Entropy of the softmax over the row's 20 largest logits alone, float64. The least of those
    found so far gives way to the largest of a block while that is larger: some 150 times over a
    vocabulary in no order."""
    slots = tl.arange(0, 32)
    dtype: tl.constexpr = z_ptr.dtype.element_ty
    # slots beyond the 20th are never the least
    best = tl.where(slots < 20, -3e38, float("inf")).to(dtype)
    lanes = tl.arange(0, BLOCK)
    for start in range(0, V, BLOCK):
        columns = start + lanes
        mask = columns < V
        u = _logit(z_ptr, bias_ptr, columns, mask, SCALE, CAP, SERIES)[0]
        u = tl.where(mask & (u == u), u, -float("inf"))
        top = tl.max(u, 0)
        while top > tl.min(best, 0):
            best = tl.where(slots == tl.argmin(best, 0), top, best)
            u = tl.where(lanes == tl.argmax(u, 0), -float("inf"), u)
            top = tl.max(u, 0)
    x = tl.where(slots < 20, best, -3e38).to(tl.float64)
    x -= tl.max(x, 0)
    e = tl.where(slots < 20, tl.exp(x), 0.0)
    total = tl.sum(e, 0)
    return tl.maximum(tl.log(total) - tl.sum(tl.where(e > 0, e * x, 0.0), 0) / total, 0.0)


@jit
def _logit(
    ptr, bias_ptr, columns, mask, SCALE: tl.constexpr, CAP: tl.constexpr, SERIES: tl.constexpr
):
    """softcap(scale (z + b)) at `columns`, the slope of the cap, and whether it was finite before
    the cap."""
    x = tl.load(ptr + columns, mask=mask, other=0.0)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + columns, mask=mask, other=0.0)
    x = x * SCALE  # a factor of 1 is compiled away, as all that is not used
    finite = tl.abs(x) < float("inf")
    slope = 1.0
    if CAP is not None:
        x, slope = _softcap(x, CAP, SERIES)
    return x, slope, finite


@jit
def _store(pointers, x, mask):
    if (
        pointers.dtype.element_ty.primitive_bitwidth == 16
    ):  # no device converts float64 to bfloat16 in one step
        x = x.to(tl.float32)
    tl.store(pointers, x.to(pointers.dtype.element_ty), mask=mask)


@jit
def _online(x, mask, high, total, INVERSE_T: tl.constexpr):
    """One step of each lane's running maximum and sum of e^{(x - maximum) / T}; also what sums
    beside it shrink and grow by, in float64."""
    gap = x - high
    up = mask & (gap > 0)
    e = tl.exp(-tl.abs(gap) * INVERSE_T).to(tl.float64)
    shrink = tl.where(up, e, 1.0)
    grow = tl.where(mask, tl.where(up, 1.0, e), 0.0)
    return tl.where(up, x, high), tl.fma(total, shrink, grow), shrink, grow


@jit
def _row_total(high, total, INVERSE_T: tl.constexpr):
    """The row's maximum, each lane's weight against it, and the row's sum of exponentials."""
    top = tl.max(high, 0)
    weight = tl.exp((high.to(tl.float64) - top.to(tl.float64)) * INVERSE_T)
    return top, weight, tl.sum(total * weight, 0)


@jit
def _softmax(x, top, log_mass, INVERSE_T: tl.constexpr):
    return tl.exp((x - top) * INVERSE_T - log_mass.to(x.dtype))


@jit
def _phi(x, SERIES: tl.constexpr):
    """e^x - 1 - x by its series, for |x| < 1/2 (meaningless beyond)."""
    one = tl.full(x.shape, 1.0, x.dtype)
    tail = one
    for k in tl.static_range(SERIES, 2, -1):
        tail = tl.fma(x * (1.0 / k), tail, one)
    return 0.5 * x * x * tail


@jit
def _expm1(x, SERIES: tl.constexpr):
    return tl.where(tl.abs(x) < 0.5, x + _phi(x, SERIES), tl.exp(x) - 1.0)


@jit
def _softcap(x, CAP: tl.constexpr, SERIES: tl.constexpr):
    """cap tanh(y) and its slope 1 - tanh(y)^2, y = x / cap, from a = e^{-2 |y|}: (1 - a) / (1 + a)
    and 4 a / (1 + a)^2; nothing overflows."""
    exponent = -2.0 * tl.abs(x * (1.0 / CAP))
    a = tl.exp(exponent)
    inverse = 1.0 / (1.0 + a)
    size = tl.where(exponent > -0.5, -exponent - _phi(exponent, SERIES), 1.0 - a) * inverse * CAP
    return tl.where(x < 0, -size, size), 4.0 * a * inverse * inverse


@jit
def _log_mixture(d, BETA: tl.constexpr, SERIES: tl.constexpr):
    """log(m / q) = log(1 + beta (e^d - 1)) from d = log(p / q), less d where that is above 0: log(m
    / max(p, q))."""
    small = _expm1(-tl.abs(d), SERIES)
    return tl.where(d > 0, _log1p((1.0 - BETA) * small, SERIES), _log1p(BETA * small, SERIES))


@jit
def _log1p(a, SERIES: tl.constexpr):
    """log(1 + a) for -1 < a <= 0: 2 artanh(a / (2 + a)) by its series down to -1/2."""
    s = a / (2.0 + a)
    square = s * s
    one = tl.full(a.shape, 1.0, a.dtype)
    tail = one * (1.0 / (2 * SERIES + 1))
    for k in tl.static_range(SERIES - 1, -1, -1):
        tail = tl.fma(square, tail, one * (1.0 / (2 * k + 1)))
    return tl.where(a > -0.5, 2.0 * s * tail, tl.log(1.0 + tl.where(a > -0.5, 0.0, a)))
