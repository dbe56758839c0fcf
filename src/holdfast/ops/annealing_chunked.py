"""The annealing op in row chunks: products, row stage, products; gradients computed in the forward
pass.

Whole `[N, V]` tensors never exist. For a few hundred rows at a time the two logit products are
made, the row stage (`ops.annealing_rows`) turns them into the gradient of the loss with respect to
the student's logits, and two more products carry it to hidden states and head. The gradients are
linear in the upstream scalar, so they are computed in the forward pass and only scaled in the
backward: 8 N H V floating-point operations, nothing recomputed; 6 N H V under a frozen head, 4 N H
V when nothing wants a gradient.

Shape suffixes: N rows (tokens), C rows of a chunk, H student width, K teacher width, V student
vocabulary, U teacher vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.ops import native
from holdfast.ops.annealing_rows import EagerRows, NativeRows, RowStage
from holdfast.ops.annealing_terms import FIGURES, Terms
from holdfast.ops.heads import Head
from holdfast.ops.products import Product, choose_product

STAGES = ("eager", "compiled", "native", "triton")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What stays the same over all rows of a call."""

    terms: Terms
    teacher: Head | None
    stage: str
    """One of `STAGES`."""
    chunk_rows: int | None


def choose_stage(device: torch.device, dtype: torch.dtype) -> str:
    """The fastest row stage at hand for logits of `dtype` on `device`."""
    if device.type == "cuda":
        from holdfast.ops import annealing_triton  # importing Triton takes 0.2 s

        if annealing_triton.is_available():
            return "triton"
    if device.type == "cpu" and dtype == torch.float32 and native.load() is not None:
        return "native"
    return "eager"


def default_chunk_rows(vocabulary: int, rows: int, *, device: str = "cpu") -> int:
    """Rows per chunk, in equal parts so that the last is no stump, at least 64.

    On CPUs 16M logits a buffer (64 MB; from there on larger chunks gain nothing). On GPUs 96M: the
    traffic of the head's gradient, read and written once a chunk, equals its product at about 735
    rows, and two float32 buffers and the half-precision gradient stay near 1 GB.
    """
    limit = max(64, (96 << 20 if device == "cuda" else 1 << 24) // max(vocabulary, 1))
    parts = max(1, -(-rows // limit))
    return max(1, -(-rows // parts))


class ChunkedLoss(torch.autograd.Function):
    """`loss, figures` of the selected rows: differentiable in hidden states, head weight and head
    bias.

    `figures` is `[N, 7]` as in `annealing_terms.FIGURES`.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *more: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        with torch.autocast(
            hidden.device.type, enabled=False
        ):  # logits stay float32 whatever surrounds the call
            return _forward_chunks(ctx, hidden, *more)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        grads: list[Tensor | None] = []
        for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            if grad is None:
                grads.append(None)
                continue
            # In place, because a second copy of dW can be gigabytes and nobody else holds it; a
            # second backward over the same graph is then refused by autograd's version check.
            # float64 is the tests' dtype, and gradcheck walks one graph many times.
            scale = (
                grad_loss.to(torch.float64 if grad.dtype == torch.float64 else torch.float32)
                * ctx.unit
            )
            if grad.dtype == torch.float64:
                grad = grad * scale
            elif (
                grad.device.type != "cpu" or float(scale) != 1.0
            ):  # looking at it costs nothing on a CPU, a pass over dW does
                grad = grad.mul_(scale)
            grads.append(grad.to(dtype))
        return (*grads, *(None for _ in range(9)))


def _forward_chunks(
    ctx: Any,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    teacher_hidden: Tensor | None,
    kl_rows: Tensor | None,
    ce_weights: Tensor | None,
    kl_weights: Tensor | None,
    gate_power: Tensor | None,
    ce_scale: float | Tensor,
    kl_scale: float | Tensor,
    plan: Plan,
) -> tuple[Tensor, Tensor]:
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    device = hidden.device
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    any_grad = needs_hidden or needs_weight or needs_bias
    library = native.load() if device.type == "cpu" else None

    def empty(count: int, columns: int, kind: torch.dtype) -> Tensor:
        return (
            torch.empty(count, columns, dtype=kind, device=device)
            if library is None
            else library.fresh(count, columns, kind)
        )

    scratch = _Scratch.take(device)

    def buffer(whose: str, name: str, count: int, columns: int, kind: torch.dtype) -> Tensor:
        return scratch.get(f"{whose} {name}", count, columns, kind, empty)

    student = choose_product(weight, hidden.dtype, dtype, memory=partial(buffer, "student"))
    frozen = plan.teacher
    teacher: Product | None = None
    teacher_bias = None
    if frozen is not None and teacher_hidden is not None:
        teacher = choose_product(
            frozen.weight_VH, teacher_hidden.dtype, dtype, memory=partial(buffer, "teacher")
        )
        teacher_bias = None if frozen.bias_V is None else frozen.bias_V.to(dtype)
    student_bias = None if bias is None else bias.to(dtype)

    grad_hidden = torch.zeros_like(hidden, dtype=dtype) if needs_hidden else None
    grad_weight = empty(vocabulary, weight.shape[1], dtype) if needs_weight else None
    if grad_weight is not None and rows == 0:
        grad_weight.zero_()
    grad_bias = (
        torch.zeros(vocabulary, dtype=dtype, device=device)
        if needs_bias and bias is not None
        else None
    )

    ce = torch.as_tensor(ce_scale, dtype=dtype, device=device)
    kl = torch.as_tensor(kl_scale, dtype=dtype, device=device)
    unit = torch.ones((), dtype=dtype, device=device)
    if student.gradient_dtype == torch.float16:
        # 1 / tokens times a probability falls below what float16 can hold; stored in units of the
        # larger factor it does not.
        unit = torch.maximum(ce.abs(), kl.abs()).clamp(min=torch.finfo(torch.float32).tiny)

    figures = torch.empty(rows, len(FIGURES), dtype=dtype, device=device)
    stage = make_stage(plan.stage)
    chunk = plan.chunk_rows or default_chunk_rows(vocabulary, rows, device=device.type)
    # C and Triton overwrite the logits row by row with a gradient of the same dtype; PyTorch's
    # operations need the student's softmax beside them.
    in_place = plan.stage in ("native", "triton") and student.gradient_dtype == dtype
    # The head's gradient is read and written once for so many chunks: at bfloat16 speeds that
    # traffic is a tenth of its product, and the gradient of four chunks takes no more memory than
    # the two logits of one.
    together = 1
    if plan.stage == "native" and not in_place and grad_weight is not None:
        together = 4
        chunk = plan.chunk_rows or max(1, -(-chunk // 2))
    # native products read pairs
    columns = vocabulary + vocabulary % 2 if plan.stage == "native" else vocabulary
    first = 0  # of the rows whose part of the head's gradient is still to come
    for start in range(0, rows, chunk):
        slice_C = slice(start, min(start + chunk, rows))
        count = slice_C.stop - slice_C.start
        z = student.logits(hidden[slice_C], buffer("student", "logits", count, vocabulary, dtype))
        w = None
        if teacher is not None and frozen is not None and teacher_hidden is not None:
            w = teacher.logits(
                teacher_hidden[slice_C],
                buffer("teacher", "logits", count, frozen.vocabulary, dtype),
            )
        gradient = gathered = None
        if any_grad and in_place:
            gradient = gathered = z
        elif any_grad:
            gathered = buffer(
                "student", "gradient", min(together * chunk, rows), columns, student.gradient_dtype
            )[: slice_C.stop - first, :vocabulary]
            gradient = gathered[slice_C.start - first :]
        stage(
            z,
            w,
            bias_V=student_bias,
            teacher_bias_U=teacher_bias,
            labels_C=labels[slice_C],
            kl_rows_C=None if w is None or kl_rows is None else kl_rows[slice_C],
            ce_weights_C=None if ce_weights is None else ce_weights[slice_C],
            kl_weights_C=None if w is None or kl_weights is None else kl_weights[slice_C],
            gate_power=gate_power,
            ce_scale=ce / unit,
            kl_scale=kl / unit,
            terms=plan.terms,
            gradient_CV=gradient,
            figures_CF=figures[slice_C],
        )
        del w  # some products give tensors of their own: what is done with is freed before the next is made
        if gradient is not None and grad_bias is not None:
            grad_bias.add_(gradient.sum(0, dtype=dtype))
        if gathered is not None and (
            slice_C.stop - first >= together * chunk or slice_C.stop == rows
        ):
            if grad_hidden is not None:
                student.hidden_gradient(gathered, grad_hidden[first : slice_C.stop])
            if grad_weight is not None:
                student.weight_gradient(
                    gathered, hidden[first : slice_C.stop], grad_weight, add=first > 0
                )
            first = slice_C.stop
        del z, gradient, gathered

    scratch.give_back()
    ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
    ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
    ctx.unit = unit
    ctx.mark_non_differentiable(figures)
    values = figures[:, :2]
    if ce_weights is not None or kl_weights is not None or plan.terms.gate != "none":
        weights = (figures[:, FIGURES.index("weight")], kl_weights)
        values = torch.stack(
            [v if w is None else v * w for v, w in zip(values.unbind(1), weights, strict=True)], 1
        )
    sums = values.sum(0, dtype=torch.float64).to(dtype)
    # without a second term the bits of plain cross-entropy
    loss = ce * sums[0] if teacher is None else ce * sums[0] + kl * sums[1]
    return loss, figures


class _Scratch:
    """The buffers of one call; on CPUs kept for the next one, because the system clears fresh pages
    (3 % of a call at V = 32000).

    One set is kept, each buffer of at most 128 MB. CUDA's allocator does this itself. Calls in
    several threads at once each have their own.
    """

    _kept: ClassVar[list[_Scratch]] = []

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held: dict[str, Tensor] = {}

    @classmethod
    def take(cls, device: torch.device) -> _Scratch:
        try:
            return cls._kept.pop() if device.type == "cpu" else cls(device)
        except IndexError:
            return cls(device)

    def get(
        self,
        name: str,
        rows: int,
        columns: int,
        dtype: torch.dtype,
        empty: Callable[[int, int, torch.dtype], Tensor],
    ) -> Tensor:
        """`[rows, columns]`, uninitialised; the first chunk of a call asks for the most."""
        size = rows * columns * dtype.itemsize
        buffer = self.held.get(name)
        if buffer is None or buffer.numel() < size:
            self.held.pop(name, None)
            buffer = self.held[name] = empty(1, size, torch.uint8).view(-1)
        return buffer[:size].view(dtype).view(rows, columns)

    def give_back(self) -> None:
        """Keeps the buffers that are small enough for the next call."""
        if self.device.type == "cpu" and not self._kept:
            self.held = {
                name: buffer for name, buffer in self.held.items() if buffer.numel() <= 128 << 20
            }
            self._kept.append(self)


def make_stage(name: str) -> RowStage:
    """The row stage of that name.

    Raises:
        RuntimeError: it cannot run here.
    """
    if name == "native":
        library = native.load()
        if library is None:
            raise RuntimeError(
                f"The native kernels of label annealing are not available: {native.why_not()}."
            )
        return NativeRows(library)
    if name == "triton":
        from holdfast.ops import annealing_triton

        if not annealing_triton.is_available():
            raise RuntimeError(
                "The Triton kernel of label annealing is not available: it needs a CUDA device and "
                "the package triton."
            )
        return annealing_triton.rows_triton
    return EagerRows(compiled=name == "compiled")
