"""Cross-entropy plus KL to a frozen teacher, from hidden states, in one pass over the vocabulary.

Label annealing (paper 000, section 2.2 and appendix A.3) adds to the cross-entropy of the student a KL term that pulls its next-token
distribution back to the frozen start model's:

    loss = ce_scale * sum_n -log softmax(z_n)[y_n]  +  kl_scale * sum_n KL_n
    forward (default, A.3)    KL_n = KL(softmax(w_n / T) || softmax(z_n / T))     d KL / d z   = (q - p) / T
    reverse (Eq. 2)           KL_n = KL(softmax(z_n / T) || softmax(w_n / T))     d KL / d z_i = q_i (log q_i - log p_i - KL) / T

with student logits z, teacher logits w, q and p their softmaxes at temperature T. Cross-entropy is always at T = 1 and there is no T^2
factor: the gradient is the paper's.

Whole `[N, V]` tensors never exist. The logits of a few hundred rows are made, turned into their own gradient in place, multiplied back into the
gradients of hidden states and head, and forgotten. The gradients are linear in the upstream scalar, so they are computed in the forward pass and
only scaled in the backward: 8 N H V floating-point operations, nothing recomputed. Logits, softmax and the head's gradient are float32 whatever the
inputs are, because the student starts AT the teacher and z - w drowns in bf16 rounding.

Backends share one contract: `reference` (plain autograd over whole logits, float64 capable, the oracle of the tests) and `chunked`
(any device). Precision: float32, or float64 for float64 inputs.

Shape suffixes: N rows (tokens), C rows of a chunk, H student width, K teacher width, V student vocabulary, U teacher vocabulary.

Not here: generalised JSD, compiled and Triton backends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, ShapeError
from holdfast.ops.heads import Head

IGNORE = -100
"""Label of a token without cross-entropy, as everywhere in PyTorch and transformers."""

Direction = Literal["forward", "reverse"]


class NonFiniteLogits(HoldfastError):
    """NaN or infinite logits. `rows` are the offending row numbers (into the `N` rows passed in)."""

    def __init__(self, rows: list[int], whose: str) -> None:
        self.rows = rows
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        super().__init__(f"Expected finite logits, got NaN or infinity from the {whose} in {len(rows)} row(s): {shown}.")


@dataclass(frozen=True)
class AnnealedLoss:
    """What one pass yields. Everything but `loss` is detached. Scalars are `[]` tensors on the inputs' device."""

    loss: Tensor
    """`ce_scale * ce_sum + kl_scale * kl_sum`, differentiable; float32 (float64 for float64 inputs)."""
    ce_sum: Tensor
    """Cross-entropy summed over the rows with a label, nats."""
    kl_sum: Tensor
    """KL summed over the rows of the KL mask, nats; 0 without a teacher."""
    ce_count: Tensor
    """Rows with a label, int64."""
    kl_count: Tensor
    """Rows in the KL term, int64."""
    correct: Tensor
    """Rows with a label whose most likely token is the label, int64."""


def annealed_loss(
    hidden_NH: Tensor,
    head: Head,
    labels_N: Tensor,
    *,
    teacher_hidden_NK: Tensor | None = None,
    teacher_head: Head | None = None,
    ce_scale: float | Tensor = 1.0,
    kl_scale: float | Tensor = 0.0,
    kl_mask_N: Tensor | None = None,
    temperature: float = 1.0,
    direction: Direction = "forward",
    chunk_rows: int | None = None,
    backend: Literal["auto", "reference", "chunked"] = "auto",
    check_finite: bool = True,
) -> AnnealedLoss:
    """Scaled sum of cross-entropy and KL, with gradients for `hidden_NH`, `head.weight_VH` and `head.bias_V`.

    Args:
        hidden_NH: `[N, H]` student hidden states, float; row n predicts `labels_N[n]` (already shifted).
        head: the student's head; a weight or bias that does not require grad gets none and costs none.
        labels_N: `[N]` int64 token ids, -100: no cross-entropy in this row.
        teacher_hidden_NK: `[N, K]` teacher hidden states of the same rows; None: plain cross-entropy.
        teacher_head: the teacher's head. Only the token rows that both vocabularies have take part in the KL; padding rows of either carry no mass.
        ce_scale: factor of the summed cross-entropy, usually 1 / (trained tokens of the whole step, over accumulation and ranks).
        kl_scale: factor of the summed KL, usually weight / (KL tokens of the whole step). 0 skips the teacher altogether.
        kl_mask_N: `[N]` bool, rows of the KL term; None: the rows with a label.
        temperature: T > 0 of the KL's softmaxes.
        direction: "forward" (teacher first) or "reverse" (student first).
        chunk_rows: rows per chunk; None: chosen from the vocabulary. Changes nothing but rounding and memory.
        backend: "auto" takes "chunked".
        check_finite: look for NaN and infinite logits (one device synchronisation).

    Returns:
        AnnealedLoss. Without any selected row the loss is 0 and all gradients are exactly 0.

    Raises:
        ShapeError: shapes, vocabularies, labels or options that do not fit (both sides stated).
        NonFiniteLogits: NaN or infinite logits, naming the rows.

    Source: paper 000, Eq. 2 and appendix A.3.
    """
    _check_arguments(hidden_NH, head, labels_N, teacher_hidden_NK, teacher_head, kl_mask_N, temperature, direction, chunk_rows)
    anneal = teacher_hidden_NK is not None and not (isinstance(kl_scale, (int, float)) and kl_scale == 0)
    if not anneal:
        teacher_hidden_NK = teacher_head = kl_mask_N = None
    has_label_N = labels_N != IGNORE
    kl_mask_N = None if not anneal else has_label_N if kl_mask_N is None else kl_mask_N.bool()

    # Rows masked for both terms are dropped before the first product.
    keep_N = has_label_N if kl_mask_N is None else has_label_N | kl_mask_N
    rows_N = keep_N.nonzero().squeeze(-1)
    labels = labels_N[rows_N]
    _check_labels(labels, head)
    arguments = dict(
        hidden=hidden_NH[rows_N],
        weight=head.weight_VH,
        bias=head.bias_V,
        labels=labels,
        teacher_hidden=None if teacher_hidden_NK is None else teacher_hidden_NK[rows_N].detach(),
        kl_mask=None if kl_mask_N is None else kl_mask_N[rows_N],
        ce_scale=ce_scale,
        kl_scale=kl_scale,
        options=_Options(
            logit_scale=head.logit_scale,
            softcap=head.softcap,
            teacher=None if teacher_head is None else teacher_head.detached(),
            temperature=float(temperature),
            direction=direction,
            chunk_rows=chunk_rows,
        ),
    )
    if backend == "reference":
        loss, ce_sum, kl_sum, correct, bad = _reference(**arguments)
    else:
        a = arguments
        loss, ce_sum, kl_sum, correct, bad = _Chunked.apply(
            a["hidden"], a["weight"], a["bias"], a["labels"], a["teacher_hidden"], a["kl_mask"], a["ce_scale"], a["kl_scale"], a["options"]
        )
    if check_finite and bool(bad.any()):
        for column, whose in ((0, "student"), (1, "teacher")):
            rows = rows_N[bad[:, column].nonzero().squeeze(-1)].tolist()
            if rows:
                raise NonFiniteLogits(rows, whose)
    return AnnealedLoss(
        loss=loss,
        ce_sum=ce_sum.detach(),
        kl_sum=kl_sum.detach(),
        ce_count=has_label_N.sum(),
        kl_count=kl_mask_N.sum() if kl_mask_N is not None else torch.zeros_like(has_label_N.sum()),
        correct=correct.detach(),
    )


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What stays the same over all rows."""

    logit_scale: float
    softcap: float | None
    teacher: Head | None
    temperature: float
    direction: Direction
    chunk_rows: int | None


# ------------------------------------------------------------------------------------------------------ reference


def _reference(
    *,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    teacher_hidden: Tensor | None,
    kl_mask: Tensor | None,
    ce_scale: Any,
    kl_scale: Any,
    options: _Options,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The definition, in autograd, over whole logits."""
    dtype = _compute_dtype(hidden)

    def logits_of(states: Tensor, matrix: Tensor, offset: Tensor | None, scale: float, cap: float | None) -> Tensor:
        z = states.to(dtype) @ matrix.to(dtype).T
        z = (z if offset is None else z + offset.to(dtype)) * scale
        return z if cap is None else cap * torch.tanh(z / cap)

    with torch.autocast(hidden.device.type, enabled=False):
        z = logits_of(hidden, weight, bias, options.logit_scale, options.softcap)
        labelled = labels != IGNORE
        ce = torch.nn.functional.cross_entropy(z, labels, ignore_index=IGNORE, reduction="none")
        ce_sum, loss = ce.sum(), ce_scale * ce.sum()
        correct = ((z.gather(1, labels.clamp(min=0)[:, None]).squeeze(1) >= z.amax(1)) & labelled).sum() if len(z) else labelled.sum()
        bad = torch.stack([~z.isfinite().all(1), torch.zeros_like(labelled)], 1)
        kl_sum = torch.zeros_like(ce_sum)
        if teacher_hidden is not None:
            t = options.teacher
            assert t is not None and kl_mask is not None
            w = logits_of(teacher_hidden, t.weight_VH, t.bias_V, t.logit_scale, t.softcap)
            bad = torch.stack([bad[:, 0], ~w.isfinite().all(1)], 1)
            common = min(z.shape[1], w.shape[1])
            log_q = (z[:, :common] / options.temperature).log_softmax(-1)
            log_p = (w[:, :common] / options.temperature).log_softmax(-1)
            first, second = (log_p, log_q) if options.direction == "forward" else (log_q, log_p)
            kl = (first.exp() * (first - second) + second.exp() - first.exp()).sum(-1)
            kl_sum = torch.where(kl_mask, kl, torch.zeros_like(kl)).sum()
            loss = loss + kl_scale * kl_sum
    return loss, ce_sum, kl_sum, correct, bad


# -------------------------------------------------------------------------------------------------------- chunked


class _Chunked(torch.autograd.Function):
    """Row chunks, closed-form gradients computed in the forward pass, buffers reused."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *more: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # type: ignore[override]
        with torch.autocast(hidden.device.type, enabled=False):  # logits stay float32 whatever surrounds the call
            return _forward_chunks(ctx, hidden, *more)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        grads: list[Tensor | None] = []
        for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            if grad is None:
                grads.append(None)
                continue
            # In place, because a second copy of dW can be gigabytes and nobody else holds it; a second backward over the same graph is then
            # refused by autograd's version check. float64 is the tests' dtype, and gradcheck walks one graph many times.
            scale = grad_loss.to(grad.dtype)
            grads.append((grad * scale if grad.dtype == torch.float64 else grad.mul_(scale)).to(dtype))
        return (*grads, None, None, None, None, None, None)


def _forward_chunks(
    ctx: Any,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    teacher_hidden: Tensor | None,
    kl_mask: Tensor | None,
    ce_scale: float | Tensor,
    kl_scale: float | Tensor,
    options: _Options,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    dtype = _compute_dtype(hidden)
    needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    any_grad = needs_hidden or needs_weight or needs_bias
    student = _Product(weight, bias, hidden, dtype)
    frozen = options.teacher
    teacher = None if teacher_hidden is None or frozen is None else _Product(frozen.weight_VH, frozen.bias_V, teacher_hidden, dtype)

    grad_hidden = torch.zeros_like(hidden, dtype=dtype) if needs_hidden else None
    grad_weight = torch.zeros(weight.shape, dtype=dtype, device=weight.device) if needs_weight else None
    grad_bias = torch.zeros(vocabulary, dtype=dtype, device=weight.device) if needs_bias and bias is not None else None

    ce_sum, kl_sum = hidden.new_zeros((), dtype=dtype), hidden.new_zeros((), dtype=dtype)
    correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
    bad = torch.zeros(rows, 2, dtype=torch.bool, device=hidden.device)
    chunk = options.chunk_rows or default_chunk_rows(vocabulary, rows)
    buffers: dict[str, Tensor] = {}

    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        z = student.logits(part, options.logit_scale, options.softcap, _buffer(buffers, "z", part, vocabulary, z_like=hidden, dtype=dtype))
        y = labels[part]
        labelled = y != IGNORE

        # Cross-entropy. The maximum gives accuracy, and with the minimum the finiteness check, for next to nothing.
        high = z.amax(1)
        q = _buffer(buffers, "q", part, vocabulary, z_like=hidden, dtype=dtype)
        lse = _softmax(z, high, out=q)  # float64 [C]
        z_y = z.gather(1, y.clamp(min=0)[:, None]).squeeze(1)
        ce_sum += torch.where(labelled, lse - z_y, torch.zeros_like(lse)).sum().to(dtype)
        correct += (labelled & (z_y >= high)).sum()
        bad[part, 0] = ~(high.isfinite() & z.amin(1).isfinite())
        ce_row = torch.where(labelled, 1.0, 0.0).to(dtype) * ce_scale

        cap_slope = None
        if any_grad and options.softcap is not None:
            # d (c tanh(u / c)) / du = 1 - (z / c)^2, from z before it is overwritten.
            cap_slope = _buffer(buffers, "cap", part, vocabulary, z_like=hidden, dtype=dtype)
            torch.mul(z, 1.0 / options.softcap, out=cap_slope).square_().neg_().add_(1.0)

        # From here on q turns from the student's softmax into the gradient of the loss with respect to the (capped) logits.
        if teacher is None:
            if any_grad:
                q.mul_(ce_row[:, None])
        else:
            assert frozen is not None and kl_mask is not None
            w = _buffer(buffers, "w", part, frozen.vocabulary, z_like=hidden, dtype=dtype)
            w = teacher.logits(part, frozen.logit_scale, frozen.softcap, w)
            high = w.amax(1)
            bad[part, 1] = ~(high.isfinite() & w.amin(1).isfinite())
            kl_row = torch.where(kl_mask[part], 1.0, 0.0).to(dtype) * kl_scale
            if options.temperature == 1.0 and frozen.vocabulary == vocabulary:
                p = _buffer(buffers, "p", part, vocabulary, z_like=hidden, dtype=dtype)
                shift = (_softmax(w, high, out=p) - lse).to(dtype)
                kl = _kl_shared_softmax(z, q, w, p, shift, ce_row, kl_row, options.direction)
            else:
                q.mul_(ce_row[:, None])
                common = min(vocabulary, frozen.vocabulary)
                own = _buffer(buffers, "own", part, common, z_like=hidden, dtype=dtype)
                common_p = _buffer(buffers, "common p", part, common, z_like=hidden, dtype=dtype)
                kl = _kl_own_softmax(z[:, :common], own, w[:, :common], common_p, options)
                q[:, :common].addcmul_(own, kl_row[:, None])
            kl_sum += torch.where(kl_mask[part], kl, torch.zeros_like(kl)).sum()
        if not any_grad:
            continue
        q.scatter_add_(1, y.clamp(min=0)[:, None], -ce_row[:, None])
        if cap_slope is not None:
            q.mul_(cap_slope)
        if options.logit_scale != 1.0:
            q.mul_(options.logit_scale)
        student.accumulate(part, q, grad_hidden, grad_weight, grad_bias)

    loss = ce_scale * ce_sum + (kl_scale * kl_sum if teacher is not None else 0.0)
    ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
    ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
    ctx.mark_non_differentiable(correct, bad)
    return loss, ce_sum, kl_sum, correct, bad


def _softmax(z_CV: Tensor, high_C: Tensor, *, out: Tensor) -> Tensor:
    """Softmax of each row into `out`; returns the rows' log-sum-exp `[C]` in float64.

    One fused kernel makes the softmax. Its largest entry is at least 1 / V and so gives `lse = max z - log max q` without a second pass of
    exponentials. In float32 the lse of a large vocabulary (about 10) would be rounded by 5e-7, more than a small KL can bear.
    """
    torch.softmax(z_CV, 1, out=out)
    wide = torch.float64 if z_CV.device.type != "mps" else torch.float32
    return high_C.to(wide) - out.amax(1).to(wide).log()


def _kl_shared_softmax(
    z_CV: Tensor, q_CV: Tensor, w_CV: Tensor, p_CV: Tensor, shift_C: Tensor, ce_C: Tensor, kl_C: Tensor, direction: Direction
) -> Tensor:
    """The usual case, T = 1 and one vocabulary: cross-entropy and KL share the student's softmax.

    Turns `q_CV` into `ce q + kl dKL/dz` (the one-hot of the cross-entropy is left to the caller); destroys `w_CV` and `p_CV`. Returns the KL of
    each row `[C]`. With `shift = lse(w) - lse(z)`, `d = log p - log q = (w - z) - shift` is exact where the student has hardly moved, and the sum
    `p d + q - p` is non-negative term by term, so a tiny KL does not drown in cancellation.
    """
    d = w_CV.sub_(z_CV).sub_(shift_C[:, None])
    if direction == "forward":
        kl = torch.addcmul(q_CV, p_CV, d, out=d).sub_(p_CV).sum(1)
        q_CV.mul_((ce_C + kl_C)[:, None]).addcmul_(p_CV, -kl_C[:, None])
    else:
        kl = p_CV.addcmul_(q_CV, d, value=-1).sub_(q_CV).sum(1)
        q_CV.mul_(d.add_(kl[:, None]).mul_(-kl_C[:, None]).add_(ce_C[:, None]))
    return kl


def _kl_own_softmax(z_CV: Tensor, out_CV: Tensor, w_CV: Tensor, p_CV: Tensor, options: _Options) -> Tensor:
    """Any temperature, and vocabularies cut to their common columns: the KL has softmaxes of its own.

    Writes dKL/dz into `out_CV`; destroys the other three. Returns the KL of each row `[C]`.
    """
    inverse = 1.0 / options.temperature
    z_CV.mul_(inverse)
    w_CV.mul_(inverse)
    q_CV = out_CV
    shift = _softmax(w_CV, w_CV.amax(1), out=p_CV) - _softmax(z_CV, z_CV.amax(1), out=q_CV)
    d = w_CV.sub_(z_CV).sub_(shift.to(z_CV.dtype)[:, None])
    if options.direction == "forward":
        kl = torch.addcmul(q_CV, p_CV, d, out=d).sub_(p_CV).sum(1)
        q_CV.sub_(p_CV).mul_(inverse)
    else:
        kl = p_CV.addcmul_(q_CV, d, value=-1).sub_(q_CV).sum(1)
        q_CV.mul_(d.add_(kl[:, None])).mul_(-inverse)
    return kl


class _Product:
    """Rows of hidden states times one head, and the two products back.

    Half-precision inputs are multiplied with float32 accumulation and float32 results; on devices without such a product the
    head is converted once per call, not once per chunk.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, hidden: Tensor, dtype: torch.dtype) -> None:
        self.hidden = hidden
        self.half = hidden.dtype in (torch.bfloat16, torch.float16)
        self.mixed = self.half and hidden.is_cuda
        self.weight = weight.to(hidden.dtype) if self.mixed else weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        self.dtype = dtype

    def logits(self, part: slice, scale: float, cap: float | None, out: Tensor) -> Tensor:
        if self.mixed:
            torch.mm(self.hidden[part], self.weight.T, out_dtype=self.dtype, out=out)
        else:
            torch.mm(self.hidden[part].to(self.dtype), self.weight.T, out=out)
        if self.bias is not None:
            out.add_(self.bias)
        if scale != 1.0:
            out.mul_(scale)
        if cap is not None:
            out.mul_(1.0 / cap).tanh_().mul_(cap)
        return out

    def accumulate(self, part: slice, gradient: Tensor, grad_hidden: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None) -> None:
        states = self.hidden[part]
        if self.mixed:
            # Storing the logit GRADIENT in half precision costs 0.2 % of its accuracy, unlike storing the logits.
            half = gradient.to(states.dtype)
            if grad_hidden is not None:
                torch.mm(half, self.weight, out_dtype=self.dtype, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight.add_(torch.mm(half.T, states, out_dtype=self.dtype))
        else:
            if grad_hidden is not None:
                torch.mm(gradient, self.weight, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight.addmm_(gradient.T, states.to(self.dtype))
        if grad_bias is not None:
            grad_bias.add_(gradient.sum(0))


def default_chunk_rows(vocabulary: int, rows: int, *, elements: int = 1 << 23) -> int:
    """Rows per chunk: about `elements` logits (32 MB in float32), at least 64 rows, in equal parts so that the last is no stump."""
    limit = max(64, elements // max(vocabulary, 1))
    parts = max(1, -(-rows // limit))
    return max(1, -(-rows // parts))


def _buffer(buffers: dict[str, Tensor], name: str, part: slice, columns: int, *, z_like: Tensor, dtype: torch.dtype) -> Tensor:
    """`[C, columns]` scratch, allocated once for the first (largest) chunk."""
    rows = part.stop - part.start
    if name not in buffers:
        buffers[name] = torch.empty(rows, columns, dtype=dtype, device=z_like.device)
    return buffers[name][:rows]


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


# --------------------------------------------------------------------------------------------------------- checks


def _check_arguments(
    hidden: Tensor,
    head: Head,
    labels: Tensor,
    teacher_hidden: Tensor | None,
    teacher_head: Head | None,
    kl_mask: Tensor | None,
    temperature: float,
    direction: str,
    chunk_rows: int | None,
) -> None:
    problems: list[str] = []

    def expect(condition: Callable[[], bool], message: str) -> None:
        if not condition():
            problems.append(message)

    shape = tuple
    expect(lambda: hidden.dim() == 2 and hidden.is_floating_point(), f"hidden: expected float [N, H], got {hidden.dtype} {shape(hidden.shape)}")
    expect(
        lambda: head.weight_VH.dim() == 2 and head.weight_VH.shape[1] == hidden.shape[-1],
        f"head weight {shape(head.weight_VH.shape)} does not fit hidden states {shape(hidden.shape)}: expected [V, {hidden.shape[-1]}]",
    )
    expect(
        lambda: head.bias_V is None or head.bias_V.shape == head.weight_VH.shape[:1],
        f"head bias {shape(head.bias_V.shape) if head.bias_V is not None else ()} does not fit a vocabulary of {head.weight_VH.shape[0]}",
    )
    expect(
        lambda: labels.shape == hidden.shape[:1] and not labels.is_floating_point(),
        f"labels: expected int64 [{hidden.shape[0]}], got {labels.dtype} {shape(labels.shape)}",
    )
    expect(lambda: (teacher_hidden is None) == (teacher_head is None), "teacher: hidden states and head come together; one of them is None")
    if teacher_hidden is not None and teacher_head is not None:
        expect(
            lambda: teacher_hidden.dim() == 2 and teacher_hidden.shape[0] == hidden.shape[0],
            f"teacher hidden states {shape(teacher_hidden.shape)} do not fit {hidden.shape[0]} student rows",
        )
        expect(
            lambda: teacher_head.weight_VH.dim() == 2 and teacher_head.weight_VH.shape[1] == teacher_hidden.shape[-1],
            f"teacher head {shape(teacher_head.weight_VH.shape)} does not fit teacher hidden states {shape(teacher_hidden.shape)}",
        )
    expect(
        lambda: kl_mask is None or kl_mask.shape == labels.shape,
        f"kl_mask: expected bool {shape(labels.shape)}, got {shape(kl_mask.shape) if kl_mask is not None else ()}",
    )
    expect(lambda: temperature > 0, f"temperature: expected T > 0, got {temperature}")
    expect(lambda: direction in ("forward", "reverse"), f"direction: expected 'forward' or 'reverse', got {direction!r}")
    expect(lambda: chunk_rows is None or chunk_rows >= 1, f"chunk_rows: expected at least 1, got {chunk_rows}")
    if problems:
        raise ShapeError("annealed_loss cannot run:\n" + "\n".join(f"  - {p}" for p in problems))


def _check_labels(labels: Tensor, head: Head) -> None:
    """Out-of-range labels would index foreign memory on some devices and read a wrong logit on none: refuse."""
    if labels.numel() == 0:
        return
    wrong = (labels != IGNORE) & ((labels < 0) | (labels >= head.vocabulary))
    if bool(wrong.any()):
        example = int(labels[wrong][0])
        raise ShapeError(
            f"labels: expected token ids in 0..{head.vocabulary - 1} or {IGNORE}, got {example} ({int(wrong.sum())} such labels). "
            "Do the tokenizer and the model belong together?"
        )
