"""Floating-point operations of a run: a multiplication and an addition are two.

With N multiplications a token (`Architecture.multiplied`: matrices of the layers, of experts those that a token visits,
and the output head; not the embeddings, which are looked up) and D tokens through the model:

    forward              2 N D
    backward             4 N D             2 through the activations, 2 for the gradients of weights; these only where
                                           weights are trained
    attention            2 h (d_k + d_v) K D forward, 2.5 times that backward
                         h heads, K keys a token (see `plan`); flash kernels form
                                                                                  the scores again, five products for
                                                                                  two; `eager` two times
    checkpointing        the layers' forward pass again; but for its last product, where nothing asks for the result
    online teacher       2 N D and its attention       (a LoRA run's own base with adapters off: the same)
    cached teacher       2 V H D a pass for its head, and once 2 (N - V H) for each different token
    the start's losses   once 2 N for each different token
    LoRA                 6 r (inputs + outputs) a matrix and token; no weight gradients of the base
    EWC                  its Fisher information: forward and backward over the samples, once

The plain figure of papers is 6 x parameters x tokens x epochs, with all parameters and nothing else (Balancing
Continuous Pre-Training); it is stated beside. Element-wise work (norms, activations, the optimiser, pulls to an anchor)
is no product and is not counted. Nor are evaluations.

The head and its gradients are computed for tokens with a label only; all are taken to have one, which is an upper bound
where prompts are masked. Sources: Kaplan et al. 2020, Scaling laws for neural language models (arXiv:2001.08361),
section 2.1; Dao 2023, FlashAttention-2 (arXiv:2307.08691), section 4; Balancing Continuous Pre-Training, section on
cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.runs.cost.architecture import Architecture, Layer, Product
from holdfast.runs.cost.plan import RunPlan, Work

BACKWARD = {"flash": 2.5, "sdpa": 2.5, "eager": 2.0}
"""Attention's backward over its forward, by implementation."""


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Operations of a whole run, over all processes."""

    forward: float
    """Matrices of the layers, forward."""
    backward: float
    """Matrices of the layers, backward."""
    head: float
    """Output head, both."""
    attention: float
    """Between tokens, both."""
    recomputed: float
    """Forward passes of layers repeated by gradient checkpointing, attention included."""
    adapters: float
    """LoRA's own matrices."""
    teacher: float
    """Label annealing's teacher: its forward pass and head, and filling a cache once."""
    prepared: float
    """Before the first step (EWC's Fisher information)."""
    paper: float
    """6 x parameters x tokens x epochs."""
    per_token: float
    """Of training, without what is done once: `total` over computed tokens."""
    by_precision: dict[str, float] = field(default_factory=dict)
    """The total by the kind of product: "half", "tf32", "single" (see `hardware`)."""

    @property
    def total(self) -> float:
        """All of it."""
        parts = (
            self.forward,
            self.backward,
            self.head,
            self.attention,
            self.recomputed,
            self.adapters,
            self.teacher,
            self.prepared,
        )
        return sum(parts)


def plain_flops(parameters: float, tokens: float, epochs: float = 1) -> float:
    """6 x parameters x tokens x epochs.

    Args:
        parameters: all of them.
        tokens: of one epoch.
        epochs: passes over them.

    Source: Balancing Continuous Pre-Training, section on cost.
    """
    return 6.0 * parameters * tokens * epochs


def count_flops(architecture: Architecture, plan: RunPlan, work: Work, *, causal: bool = True) -> Flops:
    """Operations of a run.

    Args:
        architecture: the model's, with the adapter where one is trained.
        plan: its settings.
        work: how much it computes.
        causal: keys after a token are left out, as kernels without a mask do. False: whole squares, which is what
            PyTorch's counter counts for attention kernels on GPUs.
    """
    a, tokens = architecture, work.computed
    attention = sum(_attention(a, layer, plan, work, causal=causal) * layer.count for layer in a.layers)
    active, trained = a.active, sum(layer.active_trained * layer.count for layer in a.layers)
    adapters = sum(layer.adapters * layer.count for layer in a.layers)
    forward = 2 * active
    backward = 2 * active + 2 * trained
    head = (6.0 if a.head_trained else 4.0) * a.head
    recomputed = 0.0
    if plan.checkpointing:
        recomputed = sum(_again(a, layer, plan, work, causal=causal) * layer.count for layer in a.layers)
    teacher, once = _teacher(a, plan, attention)
    fisher = plan.fisher_samples * (
        work.computed / max(work.steps, 1) / max(plan.rows * plan.accumulation * plan.processes, 1)
    )
    prepared = (
        fisher * (forward + backward + head + attention * (1 + BACKWARD[plan.attention]))
        if plan.fisher_samples
        else 0.0
    ) + plan.start_passes * (forward + 2.0 * a.head + attention) * work.epoch_tokens
    both = attention * (1 + BACKWARD[plan.attention])
    per_token = forward + backward + head + both + recomputed + 6 * adapters + teacher
    total = per_token * tokens + once * work.epoch_tokens + prepared
    return Flops(
        forward=forward * tokens,
        backward=backward * tokens,
        head=head * tokens,
        attention=both * tokens,
        recomputed=recomputed * tokens,
        adapters=6.0 * adapters * tokens,
        teacher=teacher * tokens + once * work.epoch_tokens,
        prepared=prepared,
        paper=plain_flops(a.parameters, work.tokens),
        per_token=per_token,
        by_precision=_by_precision(a, plan, per_token, tokens, total),
    )


def _attention(a: Architecture, layer: Layer, plan: RunPlan, work: Work, *, causal: bool) -> float:
    """Forward operations of a token in one layer's attention."""
    if not layer.attends:
        return 0.0
    keys = work.keys if causal and not goes_by_mask(layer, plan, work) else work.square
    if layer.window is not None and plan.attention == "flash":
        keys = min(keys, float(layer.window))
    return 2.0 * a.heads * (a.key_width + a.value_width) * keys


def goes_by_mask(layer: Layer, plan: RunPlan, work: Work) -> bool:
    """Whether a layer's attention computes all keys of a row and masks those that are not to be seen."""
    slides = layer.window is not None and layer.window < work.row and plan.attention != "flash"
    return work.masked or slides


def _again(a: Architecture, layer: Layer, plan: RunPlan, work: Work, *, causal: bool) -> float:
    """What checkpointing repeats of a layer, operations a token."""
    whole = 2 * layer.active + 2 * layer.adapters + _attention(a, layer, plan, work, causal=causal)
    last = last_product(layer)
    if plan.reentrant or last is None:
        return whole
    # PyTorch stops a repeated pass as soon as it has the last tensor that the backward needs: the input of the layer's
    # last product.
    return whole - (2 * last.rank * last.outputs if last.rank else 2 * last.active)


def last_product(layer: Layer) -> Product | None:
    """The layer's last matrix, None where experts are (their results are weighted, so they are needed)."""
    if any(p.place == "expert" for p in layer.products):
        return None
    found = [p for p in layer.products if p.place == "mlp"]
    return found[-1] if found else None


def _teacher(a: Architecture, plan: RunPlan, attention: float) -> tuple[float, float]:
    """Operations of the teacher a token of training, and once a different token."""
    if plan.teacher is None:
        return 0.0, 0.0
    if plan.teacher.kind == "cached":
        return 2.0 * a.head, 2 * a.active + attention
    return 2.0 * a.head + 2 * a.active + attention, 0.0


def _by_precision(a: Architecture, plan: RunPlan, per_token: float, tokens: float, total: float) -> dict[str, float]:
    """Which products run at which rate. Two kinds follow the weights, not autocast: the loss's, which switches it off,
    and stacked experts."""
    single = "tf32" if plan.tf32 else "single"
    computing = "half" if plan.computing == 2 else single
    stored = "half" if plan.stream == 2 else single
    passes = 3.0 if a.head_trained else 2.0
    head = 2.0 * a.head * (passes + (1 if plan.teacher is not None else 0))
    stacked = sum(p.active * layer.count for layer in a.layers for p in layer.products if p.stacked)
    again = 1 if plan.checkpointing else 0
    teacher = 1 if plan.teacher is not None and plan.teacher.kind != "cached" else 0
    experts = 2.0 * stacked * (3 + again + teacher) if not plan.use_peft else 2.0 * stacked * (2 + again + teacher)
    aside = min((head + experts) * tokens, total)
    found = {computing: total - aside}
    found[stored] = found.get(stored, 0.0) + aside
    return {k: v for k, v in found.items() if v}
