"""What a run does, as far as its cost depends on it: how much it reads, in which batches, in which precision, over how
many processes.

**How much.** A corpus is a number of tokens and the lengths of (a sample of) its documents. From the lengths follow
what cutting to the window loses, what padding adds, and how many keys a token is multiplied with. With C tokens
computed, a token of a document of length l sees (l + 1) / 2 keys on average, so over documents

    keys a token = sum l (l + 1) / 2  /  sum l

where attention stays within documents; a whole window of T tokens has (T + 1) / 2. Attention with a mask (padded rows
of different lengths; packed rows under `eager`) computes all T keys of the row and throws half of them away.

**In which precision.** As `holdfast train` would on the GPUs that are asked about, not on the machine that asks:
bfloat16 autocast is TRL's default.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.runs.launch import accelerate_file

if TYPE_CHECKING:
    from holdfast.retention.method import RetentionMethod
    from holdfast.runs.config import TrainConfig

BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Of a number of each dtype."""
AS_ON_A_GPU = "bf16 is off"
"""How the note of a configuration begins that had its bfloat16 taken away because this machine has no accelerator."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training data as counted or stated."""

    lengths: tuple[int, ...]
    """Tokens of documents (rows of the data), or of a sample of them."""
    tokens: float | None
    """Of one epoch, before anything is cut; None: known from the run's steps only."""
    source: str
    """Where the figures are from."""
    stated: bool = True
    """Whether the lengths are known; False: documents are taken to be as long as the window."""


@dataclass(frozen=True, kw_only=True)
class TeacherPlan:
    """Label annealing's teacher."""

    kind: str
    """"online", "adapter_off" or "cached"."""
    dtype: str
    bits: int | None = None
    on_cpu: bool = False
    sharded: bool = False
    cache_dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class KeptPlan:
    """A copy of the trained parameters that a method keeps."""

    method: str
    what: str
    dtype: str | None
    """None: the parameters' own."""
    where: str
    """"device", "host" or "disk"."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run's settings that cost something."""

    window: int
    """Tokens of a row at most."""
    rows: int
    """Of a micro-batch on one process."""
    accumulation: int
    processes: int
    epochs: float
    max_steps: int
    """-1: as the epochs give."""
    packing: str | None
    """TRL's strategy ("bfd", "bfd_split", "wrapped"), "padding_free", or None."""
    attention: str
    """"sdpa", "eager" or "flash"."""
    checkpointing: bool
    reentrant: bool
    """Whether checkpointing repeats a layer's whole forward pass; otherwise it stops at the last tensor that is
    needed."""
    weights: str
    """dtype of the weights in memory."""
    autocast: str | None
    """dtype of products where it is another than the weights'."""
    tf32: bool
    quantised: int | None
    """8 or 4 bits of a frozen base; None: not quantised."""
    use_peft: bool
    lora_dropout: float
    half_frozen: bool
    """Whether half of the adapter is not trained, though computed and kept like the other (`lora_init`)."""
    sharding: str
    """"none", "ddp", "fsdp", "zero1", "zero2" or "zero3"."""
    offloaded: bool
    """Whether optimiser states (ZeRO, FSDP offload) lie in host memory."""
    optimiser: str
    teacher: TeacherPlan | None = None
    kept: tuple[KeptPlan, ...] = ()
    fisher_samples: int = 0
    """Samples whose gradients are computed before the first step, as EWC's Fisher information is."""
    start_passes: int = 0
    """Forward passes of the start model over the training data before the first step, as selective token masking's."""
    methods: tuple[str, ...] = ()
    device: str = "cuda"
    """"cuda" (any GPU) or "cpu": which buffers the loss uses."""

    @property
    def stream(self) -> float:
        """Bytes of a number of the residual stream between layers."""
        if self.sharding == "fsdp" and self.autocast:
            return BYTES[self.autocast]  # FSDP's own mixed precision casts parameters and inputs
        return BYTES[self.weights]

    @property
    def computing(self) -> float:
        """Bytes of a number in products."""
        return BYTES[self.autocast or self.weights]

    @property
    def casts(self) -> bool:
        """Whether autocast copies inputs and weights of every product to another dtype."""
        return self.computing != self.stream


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much a run computes."""

    tokens: float
    """Of the data over all epochs, after cutting."""
    computed: float
    """With padding: what goes through the model."""
    epoch_tokens: float
    """Different tokens: one epoch's, after cutting."""
    steps: int
    """Optimiser steps."""
    keys: float
    """Keys that a computed token is multiplied with, on average, halved where a kernel leaves out those after it."""
    square: float
    """The same without halving: what a count that ignores causality sees."""
    masked: bool
    """Whether attention goes by a mask."""
    micro_tokens: int
    """Tokens of the largest micro-batch of one process, with padding."""
    row: int
    """Tokens of the longest row that attention goes over at once."""
    micro_rows: int
    """Rows of that micro-batch as the model sees them (packed ones are one)."""
    cut: float
    """Share of the corpus's tokens that cutting to the window loses."""
    padding: float
    """Share of computed tokens that are padding."""


def run_plan(
    config: TrainConfig,
    *,
    weights_dtype: str,
    positions: int | None = None,
    autocast: str | None = "as planned",
    tf32: bool | None = None,
    device: str = "cuda",
) -> RunPlan:
    """The costly settings of a training configuration.

    Args:
        config: checked.
        weights_dtype: what the checkpoint was saved in, for `dtype: auto`.
        positions: the model's context; a longer window is cut to it, as a run does.
        autocast: "bfloat16", "float16" or None; "as planned": as the configuration says, or as it would say on a GPU
            with bfloat16.
        tf32: whether float32 products are rounded to TF32; None: as the configuration says.
        device: "cuda" or "cpu".

    Raises:
        ConfigError: an adapter whose cost is not known (OSF, DoRA).
    """
    args, model = config.training, config.model
    if model.use_peft and config.adapter.peft_method == "osf":
        raise ConfigError(
            "peft_method: expected lora, got osf; what OSF takes apart and keeps is not counted here. A run of a few "
            "steps shows it."
        )
    if autocast == "as planned":
        autocast = planned_autocast(config)
    if model.use_peft and model.use_dora:
        raise ConfigError(
            "use_dora: what DoRA's norms take, a product of the whole matrix's size for each adapted matrix and pass, "
            "is not counted here. A run of a few steps shows it."
        )
    weights = str(model.dtype or "float32")
    weights = weights_dtype if weights == "auto" else weights
    loaded = weights
    sharding, offloaded = sharding_of(config.launch, config.processes)
    if sharding == "fsdp" and autocast and not model.use_peft:
        weights = "float32"  # accelerate keeps what is trained in float32 under FSDP2
    if sharding.startswith("zero") and autocast:
        weights, autocast = autocast, None  # the engine casts the model and keeps float32 copies of its own
    window = int(args.max_length or positions or 1024)
    kwargs = args.gradient_checkpointing_kwargs
    kwargs = kwargs if isinstance(kwargs, Mapping) else {}
    methods = [m for m in config.retention if not m.off]
    attention = str(model.attn_implementation or "sdpa")
    return RunPlan(
        window=min(window, positions) if positions else window,
        rows=int(args.per_device_train_batch_size),
        accumulation=int(args.gradient_accumulation_steps),
        processes=config.processes,
        epochs=float(args.num_train_epochs),
        max_steps=int(args.max_steps),
        packing=str(args.packing_strategy) if args.packing else "padding_free" if args.padding_free else None,
        attention="flash" if "flash" in attention else attention if attention in ("sdpa", "eager") else "sdpa",
        checkpointing=bool(args.gradient_checkpointing),
        reentrant=bool(kwargs.get("use_reentrant", False)),
        weights=weights,
        autocast=autocast if autocast != weights else None,
        tf32=bool(args.tf32 if tf32 is None else tf32),
        quantised=4 if model.load_in_4bit else 8 if model.load_in_8bit else None,
        use_peft=bool(model.use_peft),
        lora_dropout=float(model.lora_dropout or 0.0) if model.use_peft else 0.0,
        half_frozen=bool(model.use_peft and config.adapter.lora_init),
        sharding=sharding,
        offloaded=offloaded,
        optimiser=str(getattr(args.optim, "value", args.optim)),
        teacher=_teacher(methods, weights if sharding.startswith("zero") else loaded, peft=bool(model.use_peft)),
        kept=tuple(_kept(methods, None if model.use_peft else loaded)),
        fisher_samples=sum(m.samples_before() for m in methods),
        start_passes=sum(m.passes_before() for m in methods),
        methods=tuple(m.name for m in methods),
        device=device,
    )


def planned_autocast(config: TrainConfig) -> str | None:
    """The dtype of autocast on a GPU that can do bfloat16, whatever this machine can."""
    args = config.training
    if args.bf16 or (any(note.startswith(AS_ON_A_GPU) for note in config.notes) and not args.use_cpu):
        return "bfloat16"
    return "float16" if args.fp16 else None


def sharding_of(launch: Mapping[str, Any], processes: int) -> tuple[str, bool]:
    """How parameters are shared out over processes, and whether optimiser states are kept in host memory."""
    found = accelerate_file(launch)
    kind = str(found.distributed_type).upper()
    if kind == "FSDP" or launch.get("use_fsdp"):
        return "fsdp", bool(found.fsdp_config.get("fsdp_offload_params"))
    if kind == "DEEPSPEED" or launch.get("use_deepspeed"):
        inside = found.deepspeed_config
        stage = launch.get("zero_stage") or inside.get("zero_stage") or 2
        offload = inside.get("offload_optimizer_device") not in ("none", None)
        return f"zero{stage}" if str(stage) in ("1", "2", "3") else "ddp", offload
    return ("ddp" if processes > 1 else "none"), False


def _teacher(methods: Sequence[Any], weights: str, *, peft: bool) -> TeacherPlan | None:
    term = next((t for t in (m.token_loss() for m in methods) if t is not None), None)
    if term is None:
        return None
    asked = term.teacher
    kind = ("adapter_off" if peft else "online") if asked.kind == "auto" else asked.kind
    # What the backbone's forward yields: the stream's dtype.
    return TeacherPlan(
        kind=kind,
        dtype=asked.dtype or weights,
        bits=asked.bits,
        on_cpu=asked.on_cpu,
        sharded=asked.sharded,
        cache_dtype=asked.cache_dtype or weights,
    )


def _kept(methods: Sequence[RetentionMethod], loaded: str | None) -> list[KeptPlan]:
    """Copies of trained parameters, taken before training begins and so in the dtype they were loaded in; methods that
    keep the same thing on the device share one."""
    places = {"device": "device", "cpu": "host", "disk": "disk"}
    found: list[KeptPlan] = []
    for method in methods:
        for copy in method.copies():
            where = places[copy.place]
            if not any(k.what == copy.what and k.where == where == "device" for k in found):
                found.append(KeptPlan(method=method.name, what=copy.what, dtype=copy.dtype or loaded, where=where))
    return found


# ------------------------------------------------------------------------------------------------------------ how much


def work_of(plan: RunPlan, corpus: Corpus) -> Work:
    """What the corpus becomes in the run's batches.

    Raises:
        ConfigError: neither the corpus's tokens nor the run's steps are known, or there are no lengths.
    """
    if not corpus.lengths or min(corpus.lengths) < 1:
        raise ConfigError("lengths: expected the tokens of at least one document, each 1 or more.")
    if corpus.tokens is None and plan.max_steps <= 0:
        raise ConfigError(
            "tokens: expected how much is trained on (--tokens N, of one epoch), max_steps, or training data that can "
            "be read here."
        )
    window, lengths = plan.window, corpus.lengths
    if plan.packing == "bfd_split":
        pieces = [
            p
            for length in lengths
            for p in [window] * (length // window) + ([length % window] if length % window else [])
        ]
    else:
        pieces = [min(length, window) for length in lengths]
    kept = sum(pieces) / sum(lengths) if plan.packing != "wrapped" else 1.0
    masked, flat = False, plan.packing in ("bfd", "bfd_split", "padding_free")
    padded = 1.0
    if plan.packing == "wrapped":
        square, row, longest = float(window), window, window
    elif flat and plan.attention != "eager":
        square, row, longest = sum(p * p for p in pieces) / sum(pieces), max(pieces), window
    elif flat:
        row = window * plan.rows  # TRL lays the rows of a batch one after the other, and the mask is over all of them
        square, masked, longest = float(row), True, window
    else:
        batches = _batches(pieces, plan.rows)
        widths = [(max(batch), len(batch)) for batch in batches]
        padded = sum(w * n for w, n in widths) / sum(map(sum, batches))
        masked = any(max(b) != min(b) for b in batches)
        square = sum(w * w * n for w, n in widths) / sum(w * n for w, n in widths)
        longest = row = max(pieces)
    masked = masked or plan.attention == "eager"  # which has no kernel that leaves keys out
    per_step = plan.rows * plan.accumulation * plan.processes
    row_tokens = window if plan.packing and plan.packing != "padding_free" else sum(pieces) / len(pieces)
    if plan.max_steps > 0:
        tokens, steps = plan.max_steps * per_step * row_tokens, float(plan.max_steps)
        epoch = min(tokens, corpus.tokens * kept) if corpus.tokens is not None else tokens
    else:
        assert corpus.tokens is not None
        epoch = corpus.tokens * kept
        tokens = epoch * plan.epochs
        steps = max(1, math.ceil(epoch / row_tokens / per_step - 1e-9)) * plan.epochs
    micro = plan.rows * (longest if plan.packing != "padding_free" else max(pieces))
    return Work(
        tokens=tokens,
        computed=tokens * padded,
        epoch_tokens=epoch,
        steps=math.ceil(steps - 1e-9),
        keys=square if masked else (square + 1) / 2,
        square=square,
        masked=masked,
        micro_tokens=int(micro),
        row=int(row),
        micro_rows=1 if flat else plan.rows,
        cut=1 - kept,
        padding=1 - 1 / padded,
    )


def _batches(pieces: Sequence[int], rows: int) -> list[list[int]]:
    """Documents in random order, `rows` together; all alike where the sample is smaller than a batch."""
    order = list(pieces)
    if len(order) < rows:
        order = (order * (rows // len(order) + 1))[: rows * 1]
    random.Random(0).shuffle(order)
    return [order[i : i + rows] for i in range(0, len(order) - rows + 1, rows)]
