"""Memory of one process, by part, at the moment of a step when most is held.

What stays: weights, the optimiser's states, a teacher, copies that methods keep. What comes and goes in a step:

    loss        activations of all layers, logits of one chunk, gradients of hidden states and of the head (the loss op
                computes them in the
                forward pass)
    backward    activations, what the last layer's backward needs beside them, its layer computed again under
                checkpointing
    end         the gradients of all weights; under checkpointing those of all layers but the first, which is computed
                again

Activations fall while gradients grow, so the most is held at one of the two ends; the peak is the larger sum. With
accumulation the gradients are there from the second micro-batch on.

**Activations of a layer** are the tensors that PyTorch's autograd keeps for the backward, counted from how transformers
writes such layers: each matrix keeps its input (one copy where several share it; under autocast each makes its own),
RMSNorm keeps its input in float32 and the normalised one, attention keeps queries, keys, values and its result, a gated
MLP keeps gate, activated gate, up and their product. `eager` attention keeps its weights too, keys x heads a token.
Dropout other than LoRA's is not counted.

Gradient checkpointing keeps the input of each layer, and all of one layer at a time. Adapters: frozen matrices keep no
input, but what their gradients pass through stays.

Bytes as PyTorch's allocator hands them out; beside that a GPU process holds its context and kernels, and the allocator
keeps gaps: `RESERVE`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.runs.cost.architecture import Architecture, Layer, Norm, Product
from holdfast.runs.cost.flops import goes_by_mask
from holdfast.runs.cost.plan import BYTES, RunPlan, Work

RESERVE = (1.0e9, 0.05)
"""Assumed beside the tensors on a GPU: context and kernels in bytes, and gaps as a share of the peak."""
QUANTISED = {8: 1.0, 4: 0.52}
"""Bytes of a quantised weight, scales included (`retention.quantize`)."""
_STATES = (
    (re.compile(r"(paged_)?(adamw|ademamix).*8bit|adamw_bnb_8bit"), 2, 1.03),
    (re.compile(r"(paged_)?lion.*8bit"), 1, 1.03),
    (re.compile(r"(paged_)?lion"), 1, None),
    (re.compile(r"adamw|stable_adamw|radam|adopt"), 2, None),
    (re.compile(r"rmsprop|adagrad"), 1, None),
    (re.compile(r"sgd|adafactor|lomo"), 0, None),
)
"""Optimisers by name: states a parameter, and bytes of each (None: the parameter's)."""
_BACK = re.compile(r"down|c_proj|fc2|fc_out|dense_4h|w2|output")
"""Names of an MLP's last matrix, where dimensions do not tell."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of what is held."""

    name: str
    bytes: float
    where: str = "device"
    """"device", "host" (of each process) or "disk" (of the run)."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one process."""

    parts: tuple[Part, ...]
    """All parts at their largest; those on the device are not all there at once."""
    phases: dict[str, float]
    """Bytes on the device in each phase of a step: "loss", "backward", "end"."""
    activations_of_a_layer: float
    """Bytes of the largest layer's, without checkpointing."""

    @property
    def peak(self) -> float:
        """Most bytes of tensors on the device at a time."""
        return max(self.phases.values())

    @property
    def phase(self) -> str:
        """When that is."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def needed(self) -> float:
        """The peak with `RESERVE`: what a GPU has to have."""
        return self.peak * (1 + RESERVE[1]) + RESERVE[0]

    def of(self, name: str) -> float:
        """Bytes of a part, 0 where there is none."""
        return sum(part.bytes for part in self.parts if part.name == name)


def count_memory(architecture: Architecture, plan: RunPlan, work: Work) -> Memory:
    """Memory of one process of a run."""
    a = architecture
    trained = BYTES["bfloat16"] if plan.use_peft and plan.quantised else _trained_bytes(plan)
    constant = _constant(a, plan, work, trained)
    stays = sum(part.bytes for part in constant if part.where == "device")

    gradients = a.trainable * trained * _share(plan, "gradients")
    layers = [(layer, micro_bytes(a, layer, plan, work)) for layer in a.layers]
    largest = max(bytes_ for _, bytes_ in layers)
    copies = _copies(a, plan)
    between = work.micro_tokens * a.width * plan.stream
    kept = between * a.depth if plan.checkpointing else sum(bytes_ * layer.count for layer, bytes_ in layers)
    kept += work.micro_tokens * _norm_bytes(Norm(elements=a.width, centred=False, trained=not plan.use_peft), plan)
    loss, head_gradient, hidden_gradient, scratch = _loss(a, plan, work)
    working = max(_working(a, layer, plan, work) for layer in a.layers)
    again, cast_again = 0.0, copies
    held = gradients if plan.accumulation > 1 else 0.0
    last = max(gradients + (a.head * trained if a.tied and a.embedding_trained else 0.0), held)
    if plan.checkpointing:
        again, cast_again = largest, max(_copy_bytes(layer, plan) for layer in a.layers)
        # The first layer is computed again when all gradients but its own, and those of embeddings that are not the
        # head, are there.
        first = 0 if plan.use_peft else a.layers[0].parameters + (0 if a.tied else a.embedding)
        first_bytes = first * trained * _share(plan, "gradients")
        last = max(last, gradients - first_bytes + again + working, held + again + working)
    steady = stays + held + kept
    phases = {
        "loss": steady + copies + loss + head_gradient,
        "backward": steady + cast_again + again + head_gradient + hidden_gradient + working + scratch,
        "end": stays + last + between + scratch,
    }
    how = "layers' inputs and one layer whole" if plan.checkpointing else "of all layers"
    passing = [
        Part(name="gradients", bytes=gradients, note="of what is trained"),
        Part(name="activations", bytes=kept + again, note=how),
        Part(name="half-precision weights", bytes=copies, note="autocast's copies, kept for the backward"),
        Part(name="loss", bytes=loss + head_gradient, note="logits of a chunk, gradients of hidden states and head"),
        Part(name="backward's own", bytes=working, note="what a layer's backward needs for a moment"),
    ]
    found = [*constant, *(part for part in passing if part.bytes or part.name != "half-precision weights")]
    parts = sorted(found, key=lambda part: part.where != "device")
    return Memory(parts=tuple(parts), phases=phases, activations_of_a_layer=largest)


# ------------------------------------------------------------------------------------------------------- what stays


_SHARDED = {"zero1": ("states",), "zero2": ("states", "gradients"), "zero3": ("states", "gradients", "weights")}
_SHARDED["fsdp"] = _SHARDED["zero3"]
"""What each kind of sharding shares out over the processes."""


def _share(plan: RunPlan, what: str) -> float:
    """The share of weights, gradients or states that one process holds."""
    return 1 / plan.processes if what in _SHARDED.get(plan.sharding, ()) else 1.0


def _trained_bytes(plan: RunPlan) -> float:
    """Of a trained parameter and its gradient: PEFT keeps adapters of half-precision models in float32."""
    return 4.0 if plan.use_peft and plan.sharding != "zero3" else BYTES[plan.weights]


def _constant(a: Architecture, plan: RunPlan, work: Work, trained: float) -> list[Part]:
    """What is there in every phase of a step.

    Args:
        trained: bytes of a trained parameter.
    """
    aside = "host" if plan.offloaded else "device"
    zero = plan.sharding.startswith("zero")
    share, own = _share(plan, "states"), "the engine's own copy of what is trained"
    count, each = next(((n, b) for pattern, n, b in _STATES if pattern.match(plan.optimiser)), (2, None))
    each = each if each is not None else 4.0 if zero else trained
    states = a.trainable * count * each * share
    found = [_weights(a, plan)]
    if states:
        found.append(Part(name="optimiser states", bytes=states, where=aside, note=plan.optimiser))
    if zero and plan.weights != "float32":
        found.append(Part(name="float32 weights", bytes=4.0 * a.trainable * share, where=aside, note=own))
    if plan.sharding == "ddp":
        found.append(Part(name="gradient buckets", bytes=a.trainable * trained, note="DDP sums gradients in a copy"))
    found += _teacher(a, plan, work)
    found += _kept(a, plan, trained)
    if plan.sharding in ("fsdp", "zero3"):
        gathered = (2 * a.largest + a.embedding + (0 if a.tied else a.head)) * plan.computing
        note = "whole weights of two layers, embeddings and head"
        found.append(Part(name="gathered layers", bytes=gathered, note=note))
    return found


def _weights(a: Architecture, plan: RunPlan) -> Part:
    share = _share(plan, "weights")
    base, note = a.parameters * BYTES[plan.weights], plan.weights
    if plan.quantised:
        base += a.matrices * (QUANTISED[plan.quantised] - BYTES[plan.weights])
        note = f"{plan.quantised} bits, the rest in {plan.weights}"
    adapter = a.adapter * (BYTES["bfloat16"] if plan.quantised else _trained_bytes(plan))
    note += f", over {plan.processes} processes" if share < 1 else ""
    return Part(name="weights", bytes=(base + adapter) * share, note=note)


def _kept(a: Architecture, plan: RunPlan, trained: float) -> list[Part]:
    """Copies that methods keep, those on the device in one part."""
    found = []
    for kept in plan.kept:
        bytes_ = a.trainable * (trained if kept.dtype is None else BYTES[kept.dtype]) * _share(plan, "weights")
        note = f"{kept.method}: {kept.what}"
        found.append(Part(name="kept by methods", bytes=bytes_, where=kept.where, note=note))
    here = [part for part in found if part.where == "device"]
    if not here:
        return found
    note = ", ".join(part.note for part in here)
    together = Part(name="kept by methods", bytes=sum(part.bytes for part in here), note=note)
    return [together, *(part for part in found if part.where != "device")]


def known_optimiser(name: str) -> bool:
    """Whether the states of an optimiser are known; others are taken to be Adam's."""
    return any(pattern.match(name) for pattern, _, _ in _STATES)


def _teacher(a: Architecture, plan: RunPlan, work: Work) -> list[Part]:
    teacher = plan.teacher
    if teacher is None or teacher.kind == "adapter_off":
        return []
    if teacher.kind == "cached":
        found = [
            Part(
                name="teacher cache",
                bytes=work.epoch_tokens * a.width * BYTES[teacher.cache_dtype],
                where="disk",
                note=f"hidden states of {work.epoch_tokens:,.0f} tokens in {teacher.cache_dtype}, read as files of "
                f"which the system caches what fits",
            )
        ]
        if a.head_trained:
            found.append(Part(name="teacher's head", bytes=a.head * BYTES[plan.weights], note="a copy of the start's"))
        return found
    each = BYTES[teacher.dtype]
    bytes_ = a.parameters * each
    if teacher.bits:
        bytes_ += a.matrices * (QUANTISED[teacher.bits] - each)
        return [Part(name="teacher", bytes=bytes_, note=f"the start model in {teacher.bits} bits")]
    if teacher.on_cpu:
        inside = sum(layer.parameters * layer.count for layer in a.layers)
        there = (a.parameters - inside + 2 * a.largest) * each
        return [
            Part(name="teacher", bytes=there, note="embeddings, head and two layers"),
            Part(name="teacher", bytes=inside * each, where="host", note="its layers, packed"),
        ]
    if teacher.sharded:
        note = f"over {plan.processes} processes, and its head whole"
        return [Part(name="teacher", bytes=bytes_ / plan.processes + a.head * each, note=note)]
    return [Part(name="teacher", bytes=bytes_, note=f"the start model in {teacher.dtype}")]


# ------------------------------------------------------------------------------------------------------- activations


def micro_bytes(a: Architecture, layer: Layer, plan: RunPlan, work: Work) -> float:
    """Bytes that autograd keeps of one layer in the largest micro-batch."""
    bytes_ = work.micro_tokens * token_bytes(a, layer, plan, masked=goes_by_mask(layer, plan, work))
    if layer.attends and plan.attention == "eager":
        # softmax in float32, and its copy in the dtype of the values
        bytes_ += work.micro_rows * work.row**2 * a.heads * (4.0 if plan.computing == 4 else 4.0 + plan.computing)
    elif layer.attends and goes_by_mask(layer, plan, work):
        bytes_ += work.micro_rows * work.row**2 * plan.computing  # the mask as a number to add
    return bytes_


def token_bytes(a: Architecture, layer: Layer, plan: RunPlan, *, masked: bool = False) -> float:
    """Bytes that autograd keeps of one layer for each token, attention's weights left out."""
    found = sum(_norm_bytes(norm, plan) for norm in layer.norms)
    found += _attention_bytes(a, layer, plan, masked=masked)
    found += _mlp_bytes(a, [p for p in layer.products if p.place in ("mlp", "router")], plan)
    found += _expert_bytes(a, [p for p in layer.products if p.place == "expert"], plan)
    return found + sum(_adapter_bytes(p, plan) for p in layer.products)


def _norm_bytes(norm: Norm, plan: RunPlan) -> float:
    if norm.centred:
        return norm.elements * (4.0 if plan.casts else plan.stream)
    return norm.elements * (4.0 + (plan.stream if norm.trained else 0.0))


def _inputs(products: list[Product], plan: RunPlan) -> float:
    """Copies of a shared input that matrices keep, as a multiple of it: none where nothing is trained on it."""
    wanting = [p for p in products if p.trained]
    if plan.casts:
        return float(len(wanting))
    return 1.0 if wanting or any(_shares(p, plan) for p in products) else 0.0


def _shares(product: Product, plan: RunPlan) -> bool:
    """Whether an adapter keeps the very input that the matrix gets."""
    return product.rank > 0 and not plan.lora_dropout and not plan.casts and plan.computing == 4


def _adapter_bytes(product: Product, plan: RunPlan) -> float:
    """What LoRA's two matrices keep: the input as they get it, and what lies between them."""
    if not product.rank:
        return 0.0
    own = 0.0
    if not _shares(product, plan):
        copy = plan.computing if plan.casts else (2.0 if plan.quantised else 4.0)
        own = product.inputs * (copy + (1.0 if plan.lora_dropout else 0.0))
    return own + product.rank * (plan.computing if plan.casts else 4.0)


def _attention_bytes(a: Architecture, layer: Layer, plan: RunPlan, *, masked: bool) -> float:
    products = [p for p in layer.products if p.place == "attention"]
    if not products:
        return 0.0
    result = next((p for p in reversed(products) if p.outputs == a.width), products[-1])
    projections = [p for p in products if p is not result]
    queries = a.heads * a.key_width
    heads = (
        a.heads if masked or plan.attention == "eager" else a.kv_heads
    )  # keys and values are repeated for kernels that want them so
    kept = (
        queries + heads * (a.key_width + a.value_width) + a.heads * a.value_width
        if layer.attends
        else sum(p.outputs for p in projections)
    )
    inputs = max((p.inputs for p in projections), default=a.width)
    return plan.computing * (kept + inputs * _inputs(projections, plan)) + 4.0 * a.heads


def _mlp_bytes(a: Architecture, products: list[Product], plan: RunPlan) -> float:
    back = [
        p
        for p in products
        if p.place == "mlp" and p.outputs == a.width and (p.inputs != a.width or _BACK.search(p.name))
    ]
    into = [p for p in products if p not in back]
    inputs = a.width * _inputs(into, plan)
    wide, inner = sum(p.outputs for p in into if p.place == "mlp"), sum(p.inputs for p in back)
    gated = wide >= 2 * inner
    between = (3 * wide / 2 if gated else wide * _activation(a)) if back else 0.0
    last = inner if any(p.trained or _shares(p, plan) for p in back) else 0.0
    return plan.computing * (between + last + inputs)


def _activation(a: Architecture) -> float:
    """Tensors of the inner width that an activation keeps: one, unless transformers writes it out in several
    operations."""
    return 4.0 if a.activation in ("gelu_new", "gelu_fast") else 1.0


def _expert_bytes(a: Architecture, products: list[Product], plan: RunPlan) -> float:
    if not products:
        return 0.0
    stored = BYTES[plan.weights] if any(p.stacked for p in products) else plan.computing
    into = [p for p in products if p.outputs != a.width]
    back = [p for p in products if p.outputs == a.width]
    wide = sum(p.outputs for p in into) * (into[0].uses if into else 0.0)
    uses = back[0].uses if back else 1.0
    trained = any(p.trained for p in products)
    # gate and up, the activated gate, their product; a token's copy for each expert, and each expert's result, which is
    # weighted
    numbers = wide + wide / 2 + (wide / 2 if trained else 0.0) + (2 * a.width * uses if trained else 0.0)
    return stored * numbers


def _copy_bytes(layer: Layer, plan: RunPlan) -> float:
    """Autocast's copies of a layer's matrices."""
    return plan.computing * layer.matrices if plan.casts else 0.0


def _copies(a: Architecture, plan: RunPlan) -> float:
    """Autocast's copies of all matrices that are alive at the end of the forward pass."""
    if plan.checkpointing and plan.use_peft:
        return 0.0  # copies of frozen weights are not kept, and nothing holds them
    return sum(_copy_bytes(layer, plan) * layer.count for layer in a.layers)


# -------------------------------------------------------------------------------------------------------- the ends


def _loss(a: Architecture, plan: RunPlan, work: Work) -> tuple[float, float, float, float]:
    """Bytes while the loss is computed: its buffers and hidden states, the head's gradient, that of hidden states, and
    what is kept afterwards."""
    from holdfast.ops.annealing_chunked import default_chunk_rows

    rows = work.micro_tokens
    chunk = default_chunk_rows(a.vocabulary, rows, device=plan.device)
    logits = 4.0 * chunk * a.vocabulary
    models = 2 if plan.teacher is not None else 1
    half = plan.stream == 2
    if plan.device == "cpu":
        # A buffer, and oneDNN's result in a tensor of its own (more than there is on Intel's, where
        # MKL writes to the buffer).
        buffers, scratch = logits * 2 * models, sum(logits for _ in range(models) if logits <= 128 << 20)
    else:
        buffers, scratch = logits * models + (logits / 2 if half else 0.0), 0.0
    hidden_gradient = 4.0 * rows * a.width
    states = rows * a.width * plan.stream * (2 if work.micro_rows > 1 or plan.packing else 1) * models
    head_gradient = 4.0 * a.head if a.head_trained else 0.0
    return buffers + hidden_gradient + states, head_gradient, hidden_gradient, scratch


def _working(a: Architecture, layer: Layer, plan: RunPlan, work: Work) -> float:
    """Gradients of activations that a layer's backward holds at a time: of the MLP's inner width, beside the residual
    stream's."""
    inner = max(
        (p.outputs * p.uses for p in layer.products if p.place in ("mlp", "expert") and p.outputs != a.width),
        default=float(a.width),
    )
    return work.micro_tokens * (2.0 * inner * plan.computing + a.width * plan.stream)
