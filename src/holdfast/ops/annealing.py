"""Cross-entropy plus a divergence from a frozen teacher, from hidden states, in one pass over the
vocabulary.

Label annealing (Memory Retaining Finetuning, section 2.2 and appendix A.3) adds to the
cross-entropy of the student a KL term that pulls its next-token distribution back to the frozen
start model's:

    loss = ce_scale * sum_n a_n CE_n  +  kl_scale * sum_n b_n KL_n,    CE_n = -log softmax(z_n)[y_n]
    forward (default, A.3)    KL_n = KL(softmax(w_n / T) || softmax(z_n / T))
    reverse (Eq. 2)           KL_n = KL(softmax(z_n / T) || softmax(w_n / T))
    jsd                       beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q

with student logits z, teacher logits w, q and p their softmaxes at temperature T. Cross-entropy is
always at T = 1 and there is no T^2 factor: the gradient is the paper's. The generalised
Jensen-Shannon divergence (Agarwal et al. 2024, On-Policy Distillation, section 2) lies between the
two KLs.

With `mask_target` p and q of a row with a label are the softmaxes over the vocabulary without it
(Xu et al. 2026, Mask the Target, arXiv:2605.29498): the divergence holds the odds of all other
tokens among each other, and does not stand against the cross-entropy, which moves the label. Its
gradient to the label's logit is exactly 0. Rows without a label keep the whole vocabulary.

The rows' weights a and b (1 where none are given) are constants of the derivative; a may also come
from the pass itself (`Weighting`): from the label's probability, or from the entropy of the
likeliest tokens. Weights change the loss and its gradient and nothing that is reported: sums,
counts and rows of `AnnealedLoss` are those of the model, whatever it is trained on, so that
cross-entropies of differently weighted runs can be compared. The scales divide by counts of tokens,
not by sums of weights.

Whole `[N, V]` tensors never exist (`ops.annealing_chunked`), the element-wise part is one pass of a
fused stage (`ops.annealing_rows`), and logits, softmax and the head's gradient are float32 whatever
the inputs are (`ops.products`), because the student starts AT the teacher and z - w drowns in bf16
rounding.

Backends share one contract: `reference` (plain autograd over whole logits, float64 capable, the
oracle of the tests), `chunked` (any device) and `triton` (CUDA). Shape suffixes: N rows (tokens), H
student width, K teacher width, V student vocabulary, U teacher vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, ShapeError
from holdfast.ops.annealing_chunked import (
    STAGES,
    ChunkedLoss,
    Plan,
    choose_stage,
    default_chunk_rows,
)
from holdfast.ops.annealing_rows import bounded, gates
from holdfast.ops.annealing_terms import FIGURES, GATES, Terms
from holdfast.ops.heads import Head
from holdfast.ops.products import choose_product

__all__ = [
    "IGNORE",
    "AnnealedLoss",
    "NonFiniteLogits",
    "Weighting",
    "annealed_loss",
    "default_chunk_rows",
    "describe_backend",
]

IGNORE = -100
"""Label of a token without cross-entropy, as everywhere in PyTorch and transformers."""

Direction = Literal["forward", "reverse", "jsd"]
Backend = Literal["auto", "reference", "chunked", "triton"]
Rows = Literal["auto", "eager", "compiled", "native"]


class NonFiniteLogits(HoldfastError):
    """NaN or infinite logits, or finite ones so large that their loss is neither. `rows` are the
    offending row numbers (into the `N` rows passed in)."""

    def __init__(self, rows: list[int], whose: str) -> None:
        self.rows = rows
        listed = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        super().__init__(
            f"Expected finite logits, got NaN or infinity from the {whose} in {len(rows)} row(s): "
            f"{listed}."
            if whose != "loss"
            else (
                "Expected logits with a finite loss, got NaN or nearly infinite values in "
                f"{len(rows)} row(s): {listed}. A vocabulary entry masked with the most negative "
                "number (-3e38) can overflow when it is divided by the temperature. Mask with "
                "-1e20 instead, and mask the same entries in both models."
            )
        )


@dataclass(frozen=True)
class AnnealedLoss:
    """The results of one pass. All but `loss` are detached. Scalars are `[]` tensors on the inputs'
    device."""

    loss: Tensor
    """`ce_scale * sum a_n CE_n + kl_scale * sum b_n KL_n`, differentiable; float32 (float64 for
    float64 inputs). Row weights affect only this figure."""
    ce_sum: Tensor
    """Sum of the cross-entropy over the rows with a label, nats."""
    kl_sum: Tensor
    """Sum of the divergence over the rows of the KL mask, nats; 0 without a teacher."""
    entropy_sum: Tensor
    """Sum of the student's entropy at T = 1 over the rows with a label, nats."""
    ce_count: Tensor
    """Number of rows with a label, int64."""
    kl_count: Tensor
    """Number of rows in the KL term, int64."""
    correct: Tensor
    """Number of rows with a label whose most likely token is the label, int64."""
    weight_sum: Tensor
    """Sum of the cross-entropy weights over the rows with a label; without weights, the number of
    these rows."""
    ce_N: Tensor
    """`[N]` cross-entropy of each row, nats; 0 without a label."""
    kl_N: Tensor
    """`[N]` divergence of each row, nats; 0 outside the KL mask."""
    entropy_N: Tensor
    """`[N]` the student's entropy in each row with a label or in the KL mask, nats; 0 elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """How much a row's cross-entropy counts, by what the pass computes of the row:
    `1 - strength + strength * max(gate^power, floor)`, a constant of the derivative.

    Sources: Wu et al. 2025, DFT (arXiv:2508.05629), probability; Diao et al. 2026, EAFT
    (arXiv:2601.02151, section 3.3), entropy.
    """

    gate: Literal["probability", "entropy"]
    """probability: of the label; entropy: of the softmax over the 20 largest logits alone, in nats
    over 3 (the paper's divisor, about log 20)."""
    power: float | Tensor = 1.0
    """Above 0."""
    floor: float = 0.0
    """0 to 1."""
    strength: float = 1.0
    """0 to 1; 0: every row counts 1, to the last bit."""


@torch.compiler.disable
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
    ce_weights_N: Tensor | None = None,
    kl_weights_N: Tensor | None = None,
    weighting: Weighting | None = None,
    temperature: float = 1.0,
    direction: Direction = "forward",
    beta: float = 0.5,
    mask_target: bool = False,
    chunk_rows: int | None = None,
    backend: Backend = "auto",
    rows: Rows = "auto",
    check_finite: bool = True,
) -> AnnealedLoss:
    """Computes the scaled sum of cross-entropy and divergence (label annealing). Gradients reach
    `hidden_NH`, `head.weight_VH` and `head.bias_V`.

    Args:
        hidden_NH: `[N, H]` student hidden states, float; row n predicts `labels_N[n]` (already
            shifted).
        head: the student's head. A weight or bias that does not require grad gets no gradient and
            costs nothing.
        labels_N: `[N]` int64 token ids; a row with -100 has no cross-entropy.
        teacher_hidden_NK: `[N, K]` teacher hidden states of the same rows; None: plain
            cross-entropy.
        teacher_head: the teacher's head. The KL uses only tokens that both vocabularies have;
            padding rows of either have no probability mass.
        ce_scale: factor of the summed cross-entropy, usually 1 / (trained tokens of the whole step,
            over accumulation and ranks).
        kl_scale: factor of the summed divergence, usually weight / (KL tokens of the whole step). 0
            skips the teacher.
        kl_mask_N: `[N]` bool, rows of the KL term; None: the rows with a label.
        ce_weights_N: `[N]` float32 (float64), at least 0: factor of each row in the cross-entropy;
            None: 1. Weights of rows without a label are ignored. They get no gradient.
        kl_weights_N: `[N]` factors of each row in the divergence, likewise.
        weighting: factors of the cross-entropy that the pass computes itself, multiplied with
            `ce_weights_N`; None: 1.
        temperature: T > 0 of the softmaxes in the divergence.
        direction: "forward" (KL, teacher first), "reverse" (KL, student first) or "jsd".
        beta: weight of the teacher in the mixture of "jsd", 0 < beta < 1.
        mask_target: leave the label of each row out of the divergence and renormalise both models'
            probabilities of the other tokens. The reported divergence leaves it out, too.
        chunk_rows: rows per chunk; None: chosen from the size of the vocabulary. It affects only
            rounding and memory.
        backend: "auto" is "triton" on CUDA if Triton is installed, else "chunked".
        rows: the element-wise part of the chunked backend: "native" (C, on CPUs), "eager" (PyTorch)
            or "compiled" (torch.compile). "auto" is native if a C compiler is installed, else
            eager.
        check_finite: check for NaN and infinite logits (one device synchronisation).

    Returns:
        The loss and its parts. If no row is selected, or all selected rows have weight 0, the loss
            is 0 and all gradients are exactly 0.

    Raises:
        ShapeError: shapes, vocabularies, labels, weights or options do not fit (both sides stated).
        NonFiniteLogits: logits are NaN or infinite; the message names the rows.

    Source: Memory Retaining Finetuning, Eq. 2 and appendix A.3; `mask_target`: arXiv:2605.29498.
    """
    _check_arguments(
        hidden_NH,
        head,
        labels_N,
        teacher_hidden_NK,
        teacher_head,
        kl_mask_N,
        temperature,
        direction,
        beta,
        chunk_rows,
    )
    weights = {"ce_weights": ce_weights_N, "kl_weights": kl_weights_N}
    _check_weights(weights, labels_N, finite=check_finite)
    if weighting is not None:
        _check_weighting(weighting)
        if weighting.strength == 0:
            weighting = None
    stage = _stage(backend, rows, hidden_NH)
    anneal = teacher_hidden_NK is not None and not (
        isinstance(kl_scale, (int, float)) and kl_scale == 0
    )
    if not anneal:
        teacher_hidden_NK = teacher_head = kl_mask_N = kl_weights_N = None
    has_label_N = labels_N != IGNORE
    kl_mask_N = None if not anneal else has_label_N if kl_mask_N is None else kl_mask_N.bool()

    # Rows masked for both terms are dropped before the first product.
    keep_N = has_label_N if kl_mask_N is None else has_label_N | kl_mask_N
    kept = keep_N.nonzero().squeeze(-1)
    all_rows = len(kept) == len(labels_N)

    def of_kept(tensor: Tensor) -> Tensor:
        return tensor if all_rows else tensor[kept]

    dtype = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32

    def weights_of_kept(weights_N: Tensor | None) -> Tensor | None:
        return (
            None if weights_N is None else of_kept(weights_N).detach().to(hidden_NH.device, dtype)
        )

    labels = of_kept(labels_N)
    _check_labels(labels, head)
    teacher = None if teacher_head is None else teacher_head.detached()
    terms = Terms(
        logit_scale=head.logit_scale,
        softcap=head.softcap,
        teacher_logit_scale=1.0 if teacher is None else teacher.logit_scale,
        teacher_softcap=None if teacher is None else teacher.softcap,
        temperature=float(temperature),
        direction=direction,
        beta=float(beta),
        mask_target=mask_target,
        gate="none" if weighting is None else weighting.gate,
        floor=0.0 if weighting is None else float(weighting.floor),
        gate_strength=1.0 if weighting is None else float(weighting.strength),
    )
    arguments = (
        of_kept(hidden_NH),
        head.weight_VH,
        head.bias_V,
        labels,
        None if teacher_hidden_NK is None else of_kept(teacher_hidden_NK).detach(),
        None if kl_mask_N is None else of_kept(kl_mask_N),
        weights_of_kept(ce_weights_N),
        weights_of_kept(kl_weights_N),
        None
        if weighting is None
        else torch.as_tensor(weighting.power, dtype=dtype, device=hidden_NH.device).detach(),
        ce_scale,
        kl_scale,
    )
    if stage is None:
        loss, figures = _reference(*arguments, terms, teacher)
    else:
        plan = Plan(terms=terms, teacher=teacher, stage=stage, chunk_rows=chunk_rows)
        loss, figures = ChunkedLoss.apply(*arguments, plan)
    figures = figures.detach()
    if check_finite:
        _check_finite(figures, kept)
    figures_NF = figures.new_zeros(hidden_NH.shape[0], len(FIGURES)).index_copy_(0, kept, figures)
    ce_N, kl_N, entropy_N, correct_N = figures_NF[:, :4].unbind(1)
    weight_N = figures_NF[:, FIGURES.index("weight")]

    def total(row_values: Tensor) -> Tensor:
        return row_values.sum(dtype=torch.float64).to(row_values.dtype)

    return AnnealedLoss(
        loss=loss,
        ce_sum=total(ce_N),
        kl_sum=total(kl_N),
        entropy_sum=total(torch.where(has_label_N, entropy_N, 0.0)),
        ce_count=has_label_N.sum(),
        kl_count=kl_mask_N.sum() if kl_mask_N is not None else torch.zeros_like(has_label_N.sum()),
        correct=correct_N.sum(dtype=torch.int64),
        weight_sum=total(weight_N),
        ce_N=ce_N,
        kl_N=kl_N,
        entropy_N=entropy_N,
    )


def describe_backend(hidden_NH: Tensor, head: Head) -> str:
    """One line for logs: which way `annealed_loss` computes such inputs, and why not a faster one.

    Args:
        hidden_NH: any tensor of the hidden states' dtype and device.
        head: the student's head.
    """
    stage = _stage("auto", "auto", hidden_NH)
    dtype = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
    product = choose_product(head.weight_VH[:2].detach(), hidden_NH.dtype, dtype)
    backend = "triton" if stage == "triton" else f"chunked, {stage} rows"
    reason = ""
    if stage == "eager" and hidden_NH.device.type == "cpu" and dtype == torch.float32:
        from holdfast.ops import native

        reason = f" (native rows are not used: {native.why_not()})"
    elif stage == "eager" and hidden_NH.device.type == "cuda":
        reason = " (Triton is not installed)"
    return f"{backend}, {product.name}{reason}"


def _stage(backend: str, rows: str, hidden: Tensor) -> str | None:
    """The row stage to use, None for the reference."""
    if backend not in ("auto", "reference", "chunked", "triton"):
        raise ShapeError(
            f"annealed_loss: backend: expected auto, reference, chunked or triton, got {backend!r}."
        )
    if rows not in ("auto", *STAGES):
        raise ShapeError(
            f"annealed_loss: rows: expected auto, eager, compiled or native, got {rows!r}."
        )
    if backend == "reference":
        return None
    if backend == "triton":
        return "triton"
    if rows != "auto":
        if rows == "native" and (hidden.device.type != "cpu" or hidden.dtype == torch.float64):
            raise ShapeError(
                "annealed_loss: rows='native' expects float32 or half-precision inputs on a CPU, "
                f"got {hidden.dtype} on {hidden.device}."
            )
        return rows
    stage = choose_stage(
        hidden.device, torch.float64 if hidden.dtype == torch.float64 else torch.float32
    )
    return "eager" if backend == "chunked" and stage == "triton" else stage


# ---------------------------------------------------------------------------------------- reference


def _reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    teacher_hidden: Tensor | None,
    kl_mask: Tensor | None,
    ce_weights: Tensor | None,
    kl_weights: Tensor | None,
    gate_power: Tensor | None,
    ce_scale: Any,
    kl_scale: Any,
    terms: Terms,
    teacher: Head | None,
) -> tuple[Tensor, Tensor]:
    """The definition, in autograd, over whole logits."""
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32

    def logits_of(
        states: Tensor, matrix: Tensor, offset: Tensor | None, scale: float, cap: float | None
    ) -> Tensor:
        z = states.to(dtype) @ matrix.to(dtype).T
        z = (z if offset is None else z + offset.to(dtype)) * scale
        return z if cap is None else cap * torch.tanh(z / cap)

    with torch.autocast(hidden.device.type, enabled=False):
        z = logits_of(hidden, weight, bias, terms.logit_scale, terms.softcap)
        labelled = labels != IGNORE
        ce = torch.nn.functional.cross_entropy(z, labels, ignore_index=IGNORE, reduction="none")
        weight = (
            labelled.to(dtype) if ce_weights is None else torch.where(labelled, ce_weights, 0.0)
        )
        if terms.gate != "none":
            s = terms.gate_strength
            weight = (
                weight
                * (1 - s + s * gates(z, ce, gate_power, terms).clamp(min=terms.floor)).detach()
            )
        loss = ce_scale * (weight * ce).sum()
        top = z.amax(1) if len(z) else z.new_zeros(0)
        log_q = z.log_softmax(-1)
        figures = {
            "ce": ce,
            "kl": torch.zeros_like(ce),
            "entropy": -(log_q.exp() * log_q).sum(-1),
            "correct": (z.gather(1, labels.clamp(min=0)[:, None]).squeeze(1) >= top) & labelled,
            "bad_student": ~z.isfinite().all(1),
            "bad_teacher": torch.zeros_like(labelled),
            "weight": weight,
        }
        if teacher_hidden is not None:
            assert teacher is not None and kl_mask is not None
            w = logits_of(
                teacher_hidden,
                teacher.weight_VH,
                teacher.bias_V,
                teacher.logit_scale,
                teacher.softcap,
            )
            figures["bad_teacher"] = ~w.isfinite().all(1)
            common = min(z.shape[1], w.shape[1])
            z, w = z[:, :common] / terms.temperature, w[:, :common] / terms.temperature
            if terms.mask_target and common > 1:
                # 0 in both log-probabilities contributes nothing to any divergence
                label = torch.arange(common, device=z.device) == labels[:, None]
                log_q = z.masked_fill(label, -math.inf).log_softmax(-1).masked_fill(label, 0.0)
                log_p = w.masked_fill(label, -math.inf).log_softmax(-1).masked_fill(label, 0.0)
            else:
                log_q, log_p = z.log_softmax(-1), w.log_softmax(-1)
            kl = _divergence(log_p, log_q, terms)
            figures["kl"] = torch.where(kl_mask | ~bounded(kl), kl, 0.0)
            kl = torch.where(kl_mask, kl, 0.0)
            loss = loss + kl_scale * (kl if kl_weights is None else kl_weights * kl).sum()
    return loss, torch.stack([figures[name].to(dtype) for name in FIGURES], 1)


def _divergence(log_p: Tensor, log_q: Tensor, terms: Terms) -> Tensor:
    """`[N]` divergence of the rows of two `[N, V]` log-probabilities, teacher first."""

    def kl(first: Tensor, second: Tensor) -> Tensor:
        return (first.exp() * (first - second) + second.exp() - first.exp()).sum(-1)

    if terms.direction == "jsd":
        # not the logarithm of a sum: where both probabilities underflow that is -inf, and 0 times
        # -inf is no number
        log_m = torch.logaddexp(log_p + math.log(terms.beta), log_q + math.log1p(-terms.beta))
        return terms.beta * kl(log_p, log_m) + (1 - terms.beta) * kl(log_q, log_m)
    return kl(log_p, log_q) if terms.direction == "forward" else kl(log_q, log_p)


# ------------------------------------------------------------------------------------------- checks


def _check_finite(figures: Tensor, kept: Tensor) -> None:
    ce, kl = figures[:, :2].unbind(1)
    unbounded = ~ce.isfinite() | ~bounded(kl)
    flags = figures[:, [FIGURES.index("bad_student"), FIGURES.index("bad_teacher")]] != 0
    bad = torch.cat([flags, unbounded[:, None]], 1)
    if not bool(bad.any()):
        return
    for column, whose in enumerate(("student", "teacher", "loss")):
        rows = kept[bad[:, column].nonzero().squeeze(-1)].tolist()
        if rows:
            raise NonFiniteLogits(rows, whose)


def _check_arguments(
    hidden: Tensor,
    head: Head,
    labels: Tensor,
    teacher_hidden: Tensor | None,
    teacher_head: Head | None,
    kl_mask: Tensor | None,
    temperature: float,
    direction: str,
    beta: float,
    chunk_rows: int | None,
) -> None:
    problems: list[str] = []

    def expect(condition: bool, message: str) -> None:
        if not condition:
            problems.append(message)

    shape = tuple
    expect(
        hidden.dim() == 2 and hidden.is_floating_point(),
        f"hidden: expected float [N, H], got {hidden.dtype} {shape(hidden.shape)}",
    )
    expect(
        head.weight_VH.dim() == 2 and head.weight_VH.shape[1] == hidden.shape[-1],
        f"head weight {shape(head.weight_VH.shape)} does not fit hidden states "
        f"{shape(hidden.shape)}: expected [V, {hidden.shape[-1]}]",
    )
    expect(
        head.bias_V is None or head.bias_V.shape == head.weight_VH.shape[:1],
        f"head bias {shape(head.bias_V.shape) if head.bias_V is not None else ()} does not fit a "
        f"vocabulary of {head.weight_VH.shape[0]}",
    )
    expect(
        labels.shape == hidden.shape[:1] and not labels.is_floating_point(),
        f"labels: expected int64 [{hidden.shape[0]}], got {labels.dtype} {shape(labels.shape)}",
    )
    expect(
        (teacher_hidden is None) == (teacher_head is None),
        "teacher: expected hidden states and head together; one of them is None",
    )
    if teacher_hidden is not None and teacher_head is not None:
        expect(
            teacher_hidden.dim() == 2 and teacher_hidden.shape[0] == hidden.shape[0],
            f"teacher hidden states {shape(teacher_hidden.shape)} do not fit {hidden.shape[0]} "
            "student rows",
        )
        expect(
            teacher_head.weight_VH.dim() == 2
            and teacher_head.weight_VH.shape[1] == teacher_hidden.shape[-1],
            f"teacher head {shape(teacher_head.weight_VH.shape)} does not fit teacher hidden "
            f"states {shape(teacher_hidden.shape)}",
        )
    expect(
        kl_mask is None or kl_mask.shape == labels.shape,
        f"kl_mask: expected bool {shape(labels.shape)}, got "
        f"{shape(kl_mask.shape) if kl_mask is not None else ()}",
    )
    expect(temperature > 0, f"temperature: expected T > 0, got {temperature}")
    expect(
        direction in ("forward", "reverse", "jsd"),
        f"direction: expected 'forward', 'reverse' or 'jsd', got {direction!r}",
    )
    expect(
        direction != "jsd" or 0 < beta < 1,
        f"beta: expected 0 < beta < 1 (0 is direction='forward', 1 'reverse'), got {beta}",
    )
    expect(
        chunk_rows is None or chunk_rows >= 1, f"chunk_rows: expected at least 1, got {chunk_rows}"
    )
    if problems:
        raise ShapeError("annealed_loss cannot run:", *(f"  - {p}" for p in problems))


def _check_weights(weights: dict[str, Tensor | None], labels: Tensor, *, finite: bool) -> None:
    """Shapes, and, where numbers are looked at, that every row's factor is one."""
    for name, weights_N in weights.items():
        if weights_N is None:
            continue
        if weights_N.shape != labels.shape or not weights_N.is_floating_point():
            raise ShapeError(
                f"annealed_loss: {name}: expected float {tuple(labels.shape)}, got {weights_N.dtype} "
                f"{tuple(weights_N.shape)}."
            )
        wrong = ~((weights_N >= 0) & weights_N.isfinite()) if finite else None
        if wrong is not None and bool(wrong.any()):
            raise ShapeError(
                f"annealed_loss: {name}: expected finite weights of at least 0, got "
                f"{float(weights_N[wrong][0]):g} in {int(wrong.sum())} row(s)."
            )


def _check_weighting(weighting: Weighting) -> None:
    problems = []
    if weighting.gate not in GATES[1:]:
        problems.append(f"gate: expected {' or '.join(GATES[1:])}, got {weighting.gate!r}")
    if not isinstance(weighting.power, Tensor) and not 0 < weighting.power < math.inf:
        problems.append(f"power: expected a number above 0, got {weighting.power}")
    for name in ("floor", "strength"):
        if not 0 <= getattr(weighting, name) <= 1:
            problems.append(f"{name}: expected 0 to 1, got {getattr(weighting, name)}")
    if problems:
        raise ShapeError("annealed_loss: weighting: " + "; ".join(problems) + ".")


def _check_labels(labels: Tensor, head: Head) -> None:
    """Out-of-range labels would index foreign memory on some devices and read a wrong logit on
    none: refuse."""
    if labels.numel() == 0:
        return
    wrong = (labels != IGNORE) & ((labels < 0) | (labels >= head.vocabulary))
    if bool(wrong.any()):
        example = int(labels[wrong][0])
        raise ShapeError(
            f"labels: expected token ids in 0..{head.vocabulary - 1} or {IGNORE}, got {example} "
            f"({int(wrong.sum())} such labels). Check that the tokenizer belongs to the model."
        )
