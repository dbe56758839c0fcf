"""What a run takes, by one formula each: memory of a process, floating-point operations, hours.

The shapes come from the model's config.json: transformers builds it on torch's meta device, PEFT
adds the adapter. With N parameters that multiply a token (matrices of the layers and the head; of
experts those that a token visits), of which N' are trained, and D tokens through the model, a
multiplication and an addition being two operations:

    operations  =  (4 N + 2 N') D               forward and backward
                 + 6 x layers x width x T D     attention; T: tokens that attend to each other, half of them before one
                 + 2 N D                        gradient checkpointing: the layers' forward pass again
                 + 2 N D                        a teacher's forward pass; of a cached teacher the head's alone

    memory      =  weights + optimiser states + copies that methods keep + teacher
                 + the larger of  activations + loss  and  gradients, or their sum with accumulation
    activations =  what each matrix of the layers reads and yields, for each token of a micro-batch; with gradient
                   checkpointing the width of each layer, and one layer whole

    hours       =  operations / (operations a second of a device x devices)

How many operations a second a device reaches is for the user to say: its peak rate times the share
of it that runs reach. Evaluations, loading and saving, `eager` attention's scores and what methods
compute before the first step are not counted.

Sources: Kaplan et al. 2020 (arXiv:2001.08361), section 2.1; Chowdhery et al. 2022
(arXiv:2204.02311), appendix B.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.runs.launch import accelerate_file

if TYPE_CHECKING:
    from holdfast.retention.protocol import WeightCopy
    from holdfast.runs.config import TrainConfig

BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Of a number of each dtype."""
QUANTISED = {8: 1.0, 4: 0.52}
"""Bytes of a quantised weight, scales included."""
RESERVE = (1.0e9, 0.05)
"""Beside the tensors of a GPU: context and kernels in bytes, and gaps of the allocator as a share
of the rest."""
SHARDED = {
    "zero1": ("states",),
    "zero2": ("states", "gradients"),
    "zero3": ("states", "gradients", "weights"),
}
SHARDED["fsdp"] = SHARDED["zero3"]
"""What each kind of sharding shares out over the processes."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """A model's sizes, as far as its cost depends on them."""

    parameters: int
    """All of the base model, tied ones once, adapters left out."""
    trainable: int
    adapter: int
    matrices: float
    """Parameters of the layers that multiply a token."""
    trained_matrices: float
    """Those of them that are trained."""
    head: int
    """Vocabulary x width."""
    head_trained: bool
    activations: float
    """Numbers that the matrices of all layers read and yield for a token."""
    depth: int
    width: int
    attention_width: int
    """Heads x width of a head."""
    vocabulary: int
    dtype: str
    """What the checkpoint was saved in."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much a run computes."""

    steps: int
    tokens: float
    """Of the data, over all epochs."""
    computed: float
    """The same with padding."""
    attending: float
    """Tokens that attend to each other, on average over tokens."""
    micro_tokens: int
    """Of the largest micro-batch of a process, with padding."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run takes."""

    work: Work
    memory: float
    """Bytes that a device has to have."""
    operations: float
    """Of the whole run, over all processes."""


def estimate(config: TrainConfig, *, tokens: float, lengths: Sequence[int]) -> Cost:
    """What the run of a training configuration takes.

    Args:
        config: checked.
        tokens: of one epoch of the training data.
        lengths: tokens of each row, or of a sample of rows.

    Raises:
        ModelError: there is no model, or none with an output head.
    """
    from holdfast.training.adapters import adapter_config
    from holdfast.training.skeleton import build_skeleton

    model = build_skeleton(
        str(config.model.model_name_or_path),
        revision=config.model.model_revision,
        trust_remote_code=bool(config.training.trust_remote_code),
        adapter=adapter_config(config.model, config.adapter),
    )
    shapes = shapes_of(model)
    for method in config.retention:
        if not method.off:
            tokens /= 1 - method.replayed()
    work = count_work(config, tokens=tokens, lengths=lengths)
    memory = count_memory(config, shapes, work)
    if not config.training.use_cpu:
        memory += RESERVE[0] + RESERVE[1] * memory
    return Cost(work=work, memory=memory, operations=count_operations(config, shapes, work))


# ---------------------------------------------------------------------------------------- the model


def shapes_of(model: Any) -> Shapes:
    """Counts the parameters of a model, bare or with an adapter, on any device.

    Raises:
        ModelError: a model without an output head.
    """
    from torch import nn

    from holdfast.ops.heads import causal_lm, describe_head

    lm: Any = causal_lm(model)
    config = lm.config.get_text_config()
    head = describe_head(lm).weight_VH
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    parameters = trainable = adapter = 0
    matrices = trained = activations = 0.0
    for name, parameter in model.named_parameters():
        size = parameter.numel()
        is_adapter = ".lora_" in name or ".modules_to_save." in name
        if is_adapter:
            adapter += size
        else:
            parameters += size
        if parameter.requires_grad:
            trainable += size
        if parameter.dim() < 2 or parameter is head or id(parameter) in tables:
            continue
        share = _expert_share(config) if ".experts." in name else 1.0
        matrices += size * share
        if parameter.requires_grad:
            trained += size * share
        if is_adapter:
            activations += min(parameter.shape)
        else:
            activations += sum(parameter.shape[-2:]) * _copies_read(config, name, parameter)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    width = int(head.shape[1])
    head_width = getattr(config, "head_dim", None) or width // max(heads, 1)
    dtype = getattr(config, "dtype", None) or "float32"
    return Shapes(
        parameters=parameters,
        trainable=trainable,
        adapter=adapter,
        matrices=matrices,
        trained_matrices=trained,
        head=head.numel(),
        head_trained=bool(head.requires_grad),
        activations=activations,
        depth=int(config.num_hidden_layers),
        width=width,
        attention_width=heads * int(head_width),
        vocabulary=int(head.shape[0]),
        dtype=str(dtype).removeprefix("torch."),
    )


def _experts(config: Any) -> tuple[int, int]:
    """Experts of a layer and those of them that a token visits; (1, 1) where the config does not
    say."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    visited = getattr(config, "num_experts_per_tok", None)
    return (int(experts), int(visited)) if experts and visited else (1, 1)


def _expert_share(config: Any) -> float:
    experts, visited = _experts(config)
    return visited / experts


def _copies_read(config: Any, name: str, parameter: Any) -> float:
    """How many matrices of a parameter a token is multiplied with: all experts of a layer may be
    one parameter."""
    if ".experts." not in name:
        return 1.0
    return _experts(config)[1] if parameter.dim() == 3 else _expert_share(config)


# ----------------------------------------------------------------------------------------- how much


def count_work(config: TrainConfig, *, tokens: float, lengths: Sequence[int]) -> Work:
    """Steps and tokens of a run.

    Args:
        config: the run's.
        tokens: of one epoch, replayed ones among them.
        lengths: tokens of each row, or of a sample of rows.
    """
    args = config.training
    window = int(args.max_length or max(lengths))
    rows = int(args.per_device_train_batch_size)
    a_step = rows * int(args.gradient_accumulation_steps) * config.processes
    strategy = str(args.packing_strategy) if args.packing else None
    if strategy == "bfd_split":
        pieces = list(itertools.chain(*(_split(length, window) for length in lengths)))
    else:
        pieces = [min(length, window) for length in lengths]
    read_share = 1.0 if strategy == "wrapped" else sum(pieces) / sum(lengths)
    attending = sum(piece**2 for piece in pieces) / sum(pieces)
    padded = 1.0
    if strategy == "wrapped":
        attending = float(window)
    elif strategy is None and not args.padding_free:
        batches = [pieces[start : start + rows] for start in range(0, len(pieces), rows)]
        widths = [max(batch) * len(batch) for batch in batches]
        padded = sum(widths) / sum(pieces)
    row = float(window) if strategy else sum(pieces) / len(pieces)
    if args.max_steps > 0:
        steps = float(args.max_steps)
        read = steps * a_step * row
    else:
        epoch = tokens * read_share
        steps = max(1, math.ceil(epoch / row / a_step - 1e-9)) * float(args.num_train_epochs)
        read = epoch * float(args.num_train_epochs)
    return Work(
        steps=math.ceil(steps - 1e-9),
        tokens=read,
        computed=read * padded,
        attending=attending,
        micro_tokens=rows * (window if strategy else max(pieces)),
    )


def _split(length: int, window: int) -> list[int]:
    count, rest = divmod(length, window)
    return [window] * count + ([rest] if rest else [])


# ---------------------------------------------------------------------------- operations and memory


def count_operations(config: TrainConfig, shapes: Shapes, work: Work) -> float:
    """Floating-point operations of a run, over all processes."""
    head_trained = shapes.head if shapes.head_trained else 0
    forward = 2 * (shapes.matrices + shapes.head)
    attention = 2 * shapes.depth * shapes.attention_width * work.attending
    a_token = 2 * forward + 2 * (shapes.trained_matrices + head_trained) + 3 * attention
    if config.training.gradient_checkpointing:
        a_token += 2 * shapes.matrices + attention
    teacher = _teacher(config)
    if teacher is not None and teacher.kind == "cached":
        a_token += 2 * shapes.head
    elif teacher is not None:
        a_token += forward + attention
    return a_token * work.computed


def count_memory(config: TrainConfig, shapes: Shapes, work: Work) -> float:
    """Bytes of tensors on the device of one process, when most are there."""
    from holdfast.ops.annealing_chunked import default_chunk_rows

    args, model = config.training, config.model
    sharding, offloaded = sharding_of(config.launch, config.processes)
    stored = str(model.dtype or "float32")
    stored = shapes.dtype if stored == "auto" else stored
    computing = _autocast(config) or stored
    trained = stored
    if model.use_peft:
        trained = "float32"  # PEFT keeps adapters of half-precision models so
    elif sharding == "fsdp" and _autocast(config) is not None:
        stored = trained = "float32"  # accelerate keeps what FSDP2 trains so
    elif sharding.startswith("zero"):
        stored = trained = (
            computing  # the engine casts the model and keeps float32 weights among its states
        )

    def shared(what: str) -> float:
        return 1 / config.processes if what in SHARDED.get(sharding, ()) else 1.0

    weights = shapes.parameters * BYTES[stored] + shapes.adapter * BYTES[trained]
    if model.load_in_4bit or model.load_in_8bit:
        weights -= shapes.matrices * (BYTES[stored] - QUANTISED[4 if model.load_in_4bit else 8])
    gradients = shapes.trainable * BYTES[trained] * shared("gradients")
    states = 12.0 if sharding.startswith("zero") else _states(config) * BYTES[trained]
    lasting = weights * shared("weights")
    if not offloaded:
        lasting += shapes.trainable * states * shared("states")
    if sharding == "ddp":
        lasting += gradients  # DDP sums gradients in a copy
    lasting += shapes.trainable * _kept(config, stored) * shared("weights")

    teacher = _teacher(config)
    second = teacher is not None and teacher.kind == "online"
    if teacher is not None and second:
        lasting += (
            shapes.parameters
            * BYTES[teacher.dtype or stored]
            / (config.processes if teacher.sharded else 1)
        )

    activations = work.micro_tokens * shapes.activations * BYTES[computing]
    if args.gradient_checkpointing:
        activations = (
            activations / shapes.depth
            + work.micro_tokens * shapes.width * shapes.depth * BYTES[stored]
        )
    if computing != stored and not (args.gradient_checkpointing and model.use_peft):
        activations += shapes.matrices * BYTES[computing]  # autocast's copies
    rows = default_chunk_rows(
        shapes.vocabulary, work.micro_tokens, device="cpu" if args.use_cpu else "cuda"
    )
    logits = 4.0 * rows * shapes.vocabulary * (2 if teacher is not None else 1)
    loss = (
        logits
        + 4.0 * work.micro_tokens * shapes.width
        + (4.0 * shapes.head if shapes.head_trained else 0.0)
    )
    if args.gradient_accumulation_steps > 1:
        return lasting + activations + loss + gradients
    return lasting + max(activations + loss, gradients)


def _states(config: TrainConfig) -> float:
    """Numbers that the optimiser keeps for a trained parameter, in the parameter's own dtype."""
    name = str(getattr(config.training.optim, "value", config.training.optim))
    if name.startswith(("sgd", "adafactor", "lomo")):
        return 0.0
    numbers = 1.0 if "lion" in name or name.startswith(("rmsprop", "adagrad")) else 2.0
    return numbers / 4 if "8bit" in name else numbers


def _kept(config: TrainConfig, stored: str) -> float:
    """Bytes for each trained parameter of the copies that methods keep on the device; methods that
    keep the same thing share one."""
    copies: dict[str, WeightCopy] = {}
    for method in config.retention:
        if not method.off:
            copies |= {copy.what: copy for copy in method.copies() if copy.place == "device"}
    trained = "float32" if config.model.use_peft else stored
    return sum(BYTES[copy.dtype or trained] for copy in copies.values())


def _teacher(config: TrainConfig) -> Any:
    """The settings of the run's teacher, with its kind decided; None without one."""
    for method in config.retention:
        term = None if method.off else method.token_loss()
        if term is not None:
            kind = term.teacher.kind
            if kind == "auto":
                kind = "adapter_off" if config.model.use_peft else "online"
            return dataclasses.replace(term.teacher, kind=kind)
    return None


def _autocast(config: TrainConfig) -> str | None:
    """The dtype of autocast, on a GPU that can do bfloat16 where the run is for one."""
    args = config.training
    from holdfast.runs.config import BF16_OFF

    lost = not args.use_cpu and any(note.code == BF16_OFF for note in config.notes)
    if args.bf16 or lost:
        return "bfloat16"
    return "float16" if args.fp16 else None


def keeps_float32(config: TrainConfig) -> bool:
    """Whether weights that are loaded in half precision are trained in float32 all the same:
    DeepSpeed keeps such weights beside them, and accelerate casts what FSDP2 trains under
    autocast."""
    sharding, _ = sharding_of(config.launch, config.processes)
    if sharding == "fsdp":
        return _autocast(config) is not None
    return bool(config.training.deepspeed) or sharding.startswith("zero")


def sharding_of(launch: Mapping[str, Any], processes: int) -> tuple[str, bool]:
    """How parameters are shared out over processes ("none", "ddp", "fsdp", "zero1", "zero2",
    "zero3"), and whether optimiser states are kept in host memory."""
    file = accelerate_file(launch)
    kind = str(file.distributed_type).upper()
    if kind == "FSDP" or launch.get("use_fsdp"):
        return "fsdp", bool(file.fsdp_config.get("fsdp_offload_params"))
    if kind == "DEEPSPEED" or launch.get("use_deepspeed"):
        inside = file.deepspeed_config
        stage = launch.get("zero_stage") or inside.get("zero_stage") or 2
        offload = inside.get("offload_optimizer_device") not in ("none", None)
        return f"zero{stage}" if str(stage) in ("1", "2", "3") else "ddp", offload
    return ("ddp" if processes > 1 else "none"), False
