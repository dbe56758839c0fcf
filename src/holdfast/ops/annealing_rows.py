"""The element-wise part of the annealing op: logits of a few rows in, their gradient and their
figures out.

What lies between the two logit products and the two gradient products of `ops.annealing_chunked`.
For each row, with raw products z (student) and w (teacher), bias b, logit scale s and soft-cap c of
each model:

    u = softcap(s (z + b))         softcap(x) = c tanh(x / c)
    CE  = lse(u) - u_y                                            d CE / d u_i  = softmax(u)_i - [i = y]
    q = softmax(u_student / T), p = softmax(u_teacher / T), over the columns both vocabularies have;
    d = log p - log q
    forward  KL(p || q) = sum p d + q - p                         d / d u_i = (q_i - p_i) / T
    reverse  KL(q || p) = sum -q d + p - q                        d / d u_i = q_i (-d_i - KL) / T
    jsd      beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q
             L = log(m / q) = log(1 + beta (e^d - 1))             d / d u_i = (1 - beta) q_i (-L_i + sum_j q_j L_j) / T
    mask_target: q and p over those columns without the label's, which has q = p = 0 and no gradient
    entropy  -sum softmax(u) log softmax(u)                       (T = 1, nats)
    weight   a (1 - s + s max(gate^power, floor)) of a row with a label, from its own figures and held constant:
             a the weight given, s the strength
             gate probability: softmax(u)_y     entropy: H20 / 3, H20 of the softmax over the 20 largest u alone

and d / d z = s (1 - (u / c)^2) d / d u, each term's part times the row's weight in it. The sums are
non-negative term by term, and d is formed as (w - z) - (lse_w - lse_z), exact where the student has
hardly moved, so that a tiny divergence does not drown in cancellation.

`RowStage` is the contract. Here are the stages for any device, in PyTorch (`EagerRows`, and the
same under `torch.compile`), and the one in C for CPUs (`NativeRows`, from `ops.native`);
`ops.annealing_triton` has the one for GPUs.

Shapes: C rows of a chunk, V student vocabulary, U teacher vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from holdfast.ops import native
from holdfast.ops.annealing_terms import Terms

LARGEST = 20
"""Logits that the gate "entropy" looks at."""
MOST_ENTROPY = 3.0
"""Nats that it divides by: the EAFT paper's and its code's, for log 20 = 2.996."""


class RowStage(Protocol):
    """Turns a chunk's raw products into the gradient of the loss and the rows' figures."""

    def __call__(
        self,
        z_CV: Tensor,
        w_CU: Tensor | None,
        *,
        bias_V: Tensor | None,
        teacher_bias_U: Tensor | None,
        labels_C: Tensor,
        kl_rows_C: Tensor | None,
        ce_weights_C: Tensor | None,
        kl_weights_C: Tensor | None,
        gate_power: Tensor | None,
        ce_scale: Tensor,
        kl_scale: Tensor,
        terms: Terms,
        gradient_CV: Tensor | None,
        figures_CF: Tensor,
    ) -> None:
        """Writes `gradient_CV` and `figures_CF` in place.

        Args:
            z_CV: `[C, V]` float32 (float64) raw student products, before bias, scale and cap; last
                dimension contiguous; may be destroyed.
            w_CU: `[C, U]` the same of the teacher; None: cross-entropy only.
            bias_V, teacher_bias_U: `[V]`, `[U]` of the same dtype as z, or None.
            labels_C: `[C]` int64, -100: no cross-entropy in this row.
            kl_rows_C: `[C]` bool, rows of the KL term; None exactly when `w_CU` is None.
            ce_weights_C, kl_weights_C: `[C]` of the same dtype as z: each row's factor in the
                gradient of either term;
                None: 1. The figures are without them.
            gate_power: `[]` of the same dtype as z, above 0; not among the terms because it may
                change from step to step, and those are compiled in. None: 1.
            ce_scale, kl_scale: `[]` float32 (float64) factors of the two terms in the gradient.
            terms: the rest.
            gradient_CV: `[C, V]` where d loss / d z goes, float32, float64, bfloat16 or float16;
                may be `z_CV` itself;
                None: not wanted. Rows of neither term, and columns of no mass, are exactly 0.
            figures_CF: `[C, 7]` float32 (float64), columns as in `FIGURES`: cross-entropy (0
                without a label), divergence (outside the KL's rows 0, unless it is not `bounded`),
                entropy, 1 where the label is the most likely token, 1 where the student's or the
                teacher's products are not finite, and the weight of the cross-entropy (0 without a
                label).
        """
        ...


# ------------------------------------------------------------------------------------------ PyTorch


class EagerRows:
    """The row stage in PyTorch operations, in place where possible; float32 and float64, any
    device.

    Scratch buffers live as long as the object, so that the chunks of one call share them.

    Args:
        compiled: through `torch.compile`, which fuses the passes over the vocabulary (20 s the
            first time, then from its cache).
    """

    def __init__(self, *, compiled: bool = False) -> None:
        self.compiled = compiled
        self._buffers: dict[str, Tensor] = {}

    def __call__(
        self,
        z_CV: Tensor,
        w_CU: Tensor | None,
        *,
        gradient_CV: Tensor | None,
        figures_CF: Tensor,
        **more: Any,
    ) -> None:
        if self.compiled:
            _compiled()(
                z_CV,
                w_CU,
                gradient_CV=gradient_CV,
                figures_CF=figures_CF,
                q_CV=None,
                p_CU=None,
                **more,
            )
            return
        # The softmax of the student turns into the gradient in place, so it is written where the
        # gradient goes if that fits.
        fits = (
            gradient_CV is not None
            and gradient_CV.dtype == z_CV.dtype
            and gradient_CV.data_ptr() != z_CV.data_ptr()
        )
        q_CV = gradient_CV if fits else self._buffer("q", z_CV)
        _eager_rows(
            z_CV,
            w_CU,
            gradient_CV=gradient_CV,
            figures_CF=figures_CF,
            q_CV=q_CV,
            p_CU=None if w_CU is None else self._buffer("p", w_CU),
            **more,
        )

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape[0] < like.shape[0] or buffer.shape[1] != like.shape[1]:
            buffer = self._buffers[name] = torch.empty_like(like)
        return buffer[: like.shape[0]]


def _eager_rows(
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
    q_CV: Tensor | None,
    p_CU: Tensor | None,
) -> None:
    """`RowStage`, with scratch for the two softmaxes (None: the compiler's affair)."""
    labelled = labels_C != -100
    z = cap_logits(z_CV, bias_V, terms.logit_scale, terms.softcap)
    high = z.amax(1)
    q, lse = _softmax(z, high, q_CV)
    index = labels_C.clamp(min=0)[:, None]
    z_y = z.gather(1, index).squeeze(1)
    zero = torch.zeros((), dtype=z.dtype, device=z.device)
    ce = torch.where(labelled, (lse - z_y).to(z.dtype), zero)
    # Rounding can leave -1e-7 where all mass is on one token.
    entropy = (lse - torch.linalg.vecdot(q, z)).to(z.dtype).clamp(min=0)
    correct = labelled & (z_y >= high)
    kl = teacher_finite = None
    finite = high.isfinite() & z.amin(1).isfinite()
    weight = torch.where(labelled, _row_weights(z, ce, ce_weights_C, gate_power, terms), zero)
    ce_row = ce_scale * weight

    slope = None
    if (
        gradient_CV is not None and terms.softcap is not None
    ):  # d (c tanh(x / c)) / dx = 1 - (z / c)^2, before z is overwritten
        slope = 1.0 - (z / terms.softcap).square()
    if w_CU is None:
        gradient = q.mul_(ce_row[:, None])
    else:
        assert kl_rows_C is not None
        w = cap_logits(w_CU, teacher_bias_U, terms.teacher_logit_scale, terms.teacher_softcap)
        w_high = w.amax(1)
        teacher_finite = w_high.isfinite() & w.amin(1).isfinite()
        kl_row = torch.where(
            kl_rows_C, kl_scale if kl_weights_C is None else kl_scale * kl_weights_C, zero
        )
        if terms.temperature == 1.0 and z.shape[1] == w.shape[1] and not terms.mask_target:
            p, w_lse = _softmax(w, w_high, p_CU)
            kl, gradient = _shared_softmax(
                z, q, w, p, (w_lse - lse).to(z.dtype), ce_row, kl_row, terms
            )
        else:
            common = min(z.shape[1], w.shape[1])
            kl, own = _own_softmax(z[:, :common], w[:, :common], labels_C, terms)
            gradient = q.mul_(ce_row[:, None])
            gradient[:, :common] += own.mul_(kl_row[:, None])
        kl = torch.where(kl_rows_C | ~bounded(kl), kl, zero)
    # Together: stored column by column, PyTorch's compiler fails where the number of rows varies.
    none = torch.zeros_like(ce)
    columns = [
        ce,
        none if kl is None else kl,
        entropy,
        correct,
        ~finite,
        none if teacher_finite is None else ~teacher_finite,
        weight,
    ]
    figures_CF.copy_(torch.stack([column.to(z.dtype) for column in columns], 1))
    if gradient_CV is None:
        return
    gradient = gradient.scatter_add_(1, index, -ce_row[:, None])
    if slope is not None:
        gradient = gradient.mul_(slope)
    if terms.logit_scale != 1.0:
        gradient = gradient.mul_(terms.logit_scale)
    if gradient.data_ptr() != gradient_CV.data_ptr() if not torch.compiler.is_compiling() else True:
        gradient_CV.copy_(gradient)


def bounded(kl_C: Tensor) -> Tensor:
    """`[C]` whether rows' divergences are numbers small enough to be added to any other; where not,
    neither figure nor gradient of the row is to be trusted."""
    return kl_C.abs() < 1e-9 * torch.finfo(kl_C.dtype).max


def _row_weights(
    z: Tensor, ce_C: Tensor, given_C: Tensor | None, gate_power: Tensor | None, terms: Terms
) -> Tensor:
    """`[C]` weights of the rows' cross-entropies, from capped logits."""
    weight_C = torch.ones_like(ce_C) if given_C is None else given_C
    if terms.gate == "none":
        return weight_C
    s = terms.gate_strength
    return weight_C * (1.0 - s + s * gates(z, ce_C, gate_power, terms).clamp(min=terms.floor))


def gates(z_CV: Tensor, ce_C: Tensor, gate_power: Tensor | None, terms: Terms) -> Tensor:
    """`[C]` gate^power of the rows of capped logits, with their cross-entropies; in PyTorch
    operations."""
    power = 1.0 if gate_power is None else gate_power
    if terms.gate == "probability":
        return torch.exp(-power * ce_C)
    top = torch.topk(z_CV, min(LARGEST, z_CV.shape[1]), dim=1, sorted=False).values
    log_r = top.double().log_softmax(1)
    entropy = -(log_r.exp() * log_r).sum(1).clamp(max=0.0)
    return (entropy / MOST_ENTROPY).pow(power).to(ce_C.dtype)


def cap_logits(z_CV: Tensor, bias_V: Tensor | None, scale: float, cap: float | None) -> Tensor:
    """`c tanh(s (z + b) / c)` in place: raw products become logits."""
    if bias_V is not None:
        z_CV.add_(bias_V)
    if scale != 1.0:
        z_CV.mul_(scale)
    if cap is not None:
        z_CV.mul_(1.0 / cap).tanh_().mul_(cap)
    return z_CV


def _softmax(z: Tensor, high_C: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Softmax, and the log-sum-exp of each row in float64.

    One fused pass. The log-sum-exp comes from the largest probability, `lse = max z - log max q`,
    because `logsumexp` costs two more passes. In float64, so that the difference of two of them
    does not drown a KL of 1e-6 nats.
    """
    q = torch.softmax(z, 1) if out is None else torch.softmax(z, 1, out=out)
    return q, high_C.double() - q.amax(1).double().log()


def _shared_softmax(
    z: Tensor,
    q: Tensor,
    w: Tensor,
    p: Tensor,
    shift_C: Tensor,
    ce_C: Tensor,
    kl_C: Tensor,
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """T = 1 and one vocabulary: the divergence's softmax is the cross-entropy's. Rows' divergence
    and the gradient of both terms, in `q`."""
    d = w.sub_(z).sub_(shift_C[:, None])
    if terms.direction == "forward":
        kl = (
            torch.addcmul(q, p, d).sub_(p).sum(1)
            if torch.compiler.is_compiling()
            else torch.addcmul(q, p, d, out=d).sub_(p).sum(1)
        )
        return kl, q.mul_((ce_C + kl_C)[:, None]).addcmul_(p, -kl_C[:, None])
    kl, slope = _divergence_slope(q, p, d, terms)
    return kl, q.mul_(slope.mul_(kl_C[:, None]).add_(ce_C[:, None]))


def _own_softmax(z: Tensor, w: Tensor, labels_C: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Any temperature, vocabularies cut to their common columns, without the label where it is
    masked. Rows' divergence and its gradient, unscaled."""
    inverse, common = 1.0 / terms.temperature, z.shape[1]
    z, w = z.mul_(inverse), w.mul_(inverse)
    masked = terms.mask_target and common > 1
    index = labels_C.clamp(min=0, max=common - 1)[:, None]
    has_label = ((labels_C >= 0) & (labels_C < common))[:, None]
    if masked:
        _set_label(z, index, has_label, -float("inf"))
        _set_label(w, index, has_label, -float("inf"))
    p, w_lse = _softmax(w, w.amax(1), None)
    q, z_lse = _softmax(z, z.amax(1), None)
    if masked:  # where p and q are 0, any number will do for d
        _set_label(z, index, has_label, 0.0)
        _set_label(w, index, has_label, 0.0)
    d = w.sub_(z).sub_((w_lse - z_lse).to(z.dtype)[:, None])
    if terms.direction == "forward":
        kl = torch.addcmul(q, p, d).sub_(p).sum(1)
        return kl, q.sub_(p).mul_(inverse)
    kl, slope = _divergence_slope(q, p, d, terms)
    return kl, q.mul_(slope).mul_(inverse)


def _set_label(logits: Tensor, index_C1: Tensor, has_label_C1: Tensor, value: float) -> None:
    """Writes a value over the label's column in place, in rows that have one."""
    old = logits.gather(1, index_C1)
    logits.scatter_(1, index_C1, old.masked_fill(has_label_C1, value))


def _divergence_slope(q: Tensor, p: Tensor, d: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Rows' reverse KL or JSD, and what q has to be multiplied with to become its gradient.
    Destroys p and d."""
    if terms.direction == "reverse":
        kl = p.addcmul_(q, d, value=-1).sub_(q).sum(1)
        return kl, d.add_(kl[:, None]).neg_()
    beta = terms.beta
    # L = log(1 + beta (e^d - 1)) from the side on which e^d cannot overflow, and d - L without the
    # difference of two large numbers; of two numbers torch.where would make float32
    share = torch.full_like(d, beta).masked_fill_(d > 0, 1.0 - beta)
    above = d.clamp(min=0)
    rest = torch.log1p(share * torch.expm1(-d.abs()))
    below = d.sub_(above).sub_(rest)
    log_m = rest.add_(above)
    divergence = (beta * p * below - (1.0 - beta) * q * log_m).sum(1)
    mean = torch.linalg.vecdot(q, log_m)
    return divergence, log_m.neg_().add_(mean[:, None]).mul_(1.0 - beta)


@functools.cache
def _compiled() -> Callable[..., None]:
    return torch.compile(_eager_rows, dynamic=None)


# ------------------------------------------------------------------------------------------------ C


class NativeRows:
    """The row stage in C, for float32 logits on CPUs.

    Args:
        library: from `ops.native.load()`.
    """

    def __init__(self, library: native.Native) -> None:
        self.library = library

    def __call__(
        self,
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
    ) -> None:
        z = cap_logits(z_CV, bias_V, terms.logit_scale, terms.softcap)
        w = (
            None
            if w_CU is None
            else cap_logits(w_CU, teacher_bias_U, terms.teacher_logit_scale, terms.teacher_softcap)
        )
        self.library.rows(
            z,
            w,
            labels_C=labels_C.contiguous(),
            kl_rows_C=None if kl_rows_C is None else kl_rows_C.contiguous(),
            ce_weights_C=None if ce_weights_C is None else ce_weights_C.contiguous(),
            kl_weights_C=None if kl_weights_C is None else kl_weights_C.contiguous(),
            gate_power=1.0 if gate_power is None else float(gate_power),
            ce_scale=float(ce_scale),
            kl_scale=float(kl_scale),
            terms=terms,
            gradient_CV=gradient_CV,
            figures_CF=figures_CF,
        )
