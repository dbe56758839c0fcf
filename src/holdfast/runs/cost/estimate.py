"""One estimate: operations, memory by part, GPU-hours on named GPUs, and what was assumed.

    hours = sum over kinds of products of  operations / (rate of the GPU x utilisation x processes)

Utilisation is the share of a GPU's peak rate that a run reaches, all operations counted (recomputed ones too; some call
that the hardware's utilisation). It is an assumption until a run was measured: 0.3 to 0.5 is usual for full fine-tuning
with long windows, adapters and short windows stay below. Evaluations, loading and saving come on top.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config.decode import Given, mistakes_in
from holdfast.errors import ConfigError, ModelError
from holdfast.runs.cost.architecture import Architecture, describe
from holdfast.runs.cost.flops import Flops, count_flops
from holdfast.runs.cost.hardware import DEFAULT_GPUS, GPU, find_gpu
from holdfast.runs.cost.memory import RESERVE, Memory, count_memory, known_optimiser
from holdfast.runs.cost.plan import Corpus, RunPlan, Work, run_plan, work_of
from holdfast.runs.cost.request import UTILISATION, CostSettings
from holdfast.support.files import to_jsonable
from holdfast.support.paths import real

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

SHARDED = (2, 4, 8, 16, 32, 64)
"""Numbers of processes that are tried where a run does not fit."""


@dataclass(frozen=True, kw_only=True)
class OnGPU:
    """A run on one kind of GPU."""

    gpu: GPU
    hours: float
    """On the wall, with the run's number of processes, one GPU each."""
    gpu_hours: float
    """Of all GPUs together."""
    fits: bool
    """Whether `Memory.needed` is there."""
    advice: tuple[str, ...] = ()
    """Where it does not fit: changes that make it fit, the cheapest first, each with what is then needed."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What a run costs, before anything runs. `holdfast.support.files.to_jsonable` makes it JSON."""

    model: str
    architecture: Architecture
    plan: RunPlan
    data: str
    """Where the figures of the corpus are from."""
    work: Work
    flops: Flops
    memory: Memory
    """Of one process."""
    utilisation: float
    gpus: tuple[OnGPU, ...]
    assumptions: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Everything as plain JSON values, sums with it: what a run's record can hold."""
        found: dict[str, Any] = to_jsonable(self)
        found["flops"]["total"] = self.flops.total
        found["memory"].update(peak=self.memory.peak, phase=self.memory.phase, needed=self.memory.needed)
        return found


def estimate(
    config: TrainConfig,
    *,
    model: str | None = None,
    tokens: float | None = None,
    mean_length: float | None = None,
    lengths: Sequence[int] | None = None,
    gpus: Sequence[str] = DEFAULT_GPUS,
    utilisation: float = UTILISATION,
    autocast: str | None = "as planned",
    tf32: bool | None = None,
    device: str | None = None,
) -> CostEstimate:
    """What the run of a training configuration costs.

    Args:
        config: as `holdfast.runs.config.train_config` gives it.
        model: the folder or hub id whose config.json counts; None: the configuration's.
        tokens: of one epoch of the training data; None: estimated from local data, or known from `max_steps`.
        mean_length: tokens of a document on average, where there are no `lengths`; all are then taken to be as long.
        lengths: tokens of each document, or of a sample.
        gpus: names of `holdfast.runs.cost.hardware.GPUS`.
        utilisation: share of the peak rate that is reached, in (0, 1].
        autocast, tf32: see `holdfast.runs.cost.plan.run_plan`.
        device: "cuda" or "cpu", whose buffers of the loss count; None: "cpu" with `use_cpu`, else "cuda".

    Raises:
        ConfigError: an unknown GPU, a utilisation out of range, no tokens known: all of them at once.
        ModelError: no config there, or none of a causal LM.
        DataError: local training data cannot be read.
    """
    asked = CostSettings(tokens=tokens, mean_length=mean_length, gpu=tuple(gpus), utilisation=utilisation)
    problems = Given().sentences(mistakes_in(asked))
    if lengths is not None and (not len(lengths) or min(lengths) < 1):
        problems.append("lengths: expected the tokens of at least one document, each 1 or more")
    if tokens is None and lengths is None and config.training.max_steps <= 0 and not _is_here(config):
        problems.append(NO_TOKENS)
    if problems:
        raise ConfigError(problems)
    corpus = _corpus(config, tokens=tokens, mean_length=mean_length, lengths=lengths)
    name = model or str(config.model.model_name_or_path)
    architecture = architecture_of(config, name)
    plan = run_plan(
        config,
        weights_dtype=architecture.weights_dtype,
        positions=positions_of(config, name),
        autocast=autocast,
        tf32=tf32,
        device=device or ("cpu" if config.training.use_cpu else "cuda"),
    )
    if not corpus.lengths:
        corpus = dataclasses.replace(corpus, lengths=(plan.window,))
    lora = None if plan.use_peft else functools.partial(architecture_of, config, name, lora=True)
    return assemble(
        name, architecture, plan, corpus, gpus=gpus, utilisation=utilisation, lora=lora, more=_replayed(config)
    )


def assemble(
    name: str,
    architecture: Architecture,
    plan: RunPlan,
    corpus: Corpus,
    *,
    gpus: Sequence[str] = DEFAULT_GPUS,
    utilisation: float = UTILISATION,
    lora: Callable[[], Architecture] | None = None,
    more: Sequence[str] = (),
) -> CostEstimate:
    """The estimate of a plan, for callers without a training configuration.

    Args:
        name: of the model.
        architecture: with the adapter where one is trained.
        plan: settings.
        corpus: training data.
        gpus: names.
        utilisation: share of the peak rate, in (0, 1].
        lora: the architecture with a LoRA adapter, for advice; None: no such advice.
        more: further assumptions.
    """
    work = work_of(plan, corpus)
    flops, memory = count_flops(architecture, plan, work), count_memory(architecture, plan, work)
    found = []
    for gpu in map(find_gpu, gpus):
        gpu_hours = (
            sum(amount / gpu.rate(precision) for precision, amount in flops.by_precision.items()) / utilisation / 3600
        )
        fits = memory.needed <= gpu.memory * 1e9
        advice = () if fits else tuple(_advice(architecture, plan, corpus, gpu, lora))
        found.append(OnGPU(gpu=gpu, hours=gpu_hours / plan.processes, gpu_hours=gpu_hours, fits=fits, advice=advice))
    return CostEstimate(
        model=name,
        architecture=architecture,
        plan=plan,
        data=corpus.source,
        work=work,
        flops=flops,
        memory=memory,
        utilisation=utilisation,
        gpus=tuple(found),
        assumptions=(*_assumptions(architecture, plan, corpus, work, utilisation), *more),
    )


def architecture_of(config: TrainConfig, name: str, *, lora: bool = False) -> Architecture:
    """The shapes of a run's model, from its config.json, with the run's adapter.

    Args:
        config: names revision, remote code and adapter.
        name: folder or hub id.
        lora: with the LoRA adapter that `use_peft` would give, for a run without one.

    Raises:
        ConfigError: the adapter is OSF, which is not counted.
        ModelError: there is no model of this name, or its shapes are not known here.
    """
    from holdfast.training.adapters import adapter_config

    model = config.model
    if not (model.use_peft or lora):
        return _full(name, model.model_revision, bool(config.training.trust_remote_code), _stamp(name))
    if config.adapter.peft_method == "osf":
        raise ConfigError(
            "peft_method: expected lora, got osf; what OSF takes apart and keeps is not counted here. A run of a few "
            "steps shows it."
        )
    from holdfast.training.skeleton import build_skeleton

    adapter = adapter_config(dataclasses.replace(model, use_peft=True), config.adapter)
    skeleton = build_skeleton(
        name, revision=model.model_revision, trust_remote_code=bool(config.training.trust_remote_code), adapter=adapter
    )
    return describe(skeleton, name=name)


def _stamp(name: str) -> tuple[str, int, int] | None:
    """What changes when a local config.json does."""
    file = Path(name) / "config.json"
    return (str(real(file)), file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else None


@functools.lru_cache(maxsize=8)
def _full(name: str, revision: str, trust_remote_code: bool, stamp: tuple[str, int, int] | None) -> Architecture:
    from holdfast.models import takes_images
    from holdfast.training.skeleton import build_skeleton

    if takes_images(name, revision, trust_remote_code=trust_remote_code):
        raise ModelError(
            f"{name} is a vision-language model: what its tower takes depends on the images, and is not counted."
        )
    return describe(build_skeleton(name, revision=revision, trust_remote_code=trust_remote_code), name=name)


def positions_of(config: TrainConfig, name: str) -> int | None:
    """The model's context in tokens, None where its config does not say."""
    from holdfast.models import check_causal_lm

    found: Any = check_causal_lm(
        name, revision=config.model.model_revision, trust_remote_code=bool(config.training.trust_remote_code)
    )
    text = found.get_text_config() if hasattr(found, "get_text_config") else found
    limit = getattr(text, "max_position_embeddings", None)
    return int(limit) if limit else None


# ----------------------------------------------------------------------------------------------------------- the corpus


NO_TOKENS = (
    "tokens: expected how much is trained on: --tokens N (of one epoch), max_steps, or training data that "
    "lies on this machine; got none"
)


def _is_here(config: TrainConfig) -> bool:
    """Whether the training data can be read without a download."""
    from holdfast.data.sources import is_path

    name = config.script.dataset_name
    return name is not None and is_path(name) and not config.script.dataset_streaming


def _corpus(
    config: TrainConfig, *, tokens: float | None, mean_length: float | None, lengths: Sequence[int] | None
) -> Corpus:
    """The training data as stated or read; where nothing says how long documents are, lengths are left out and become
    the window later."""
    stated = (
        tuple(int(n) for n in lengths)
        if lengths is not None
        else (round(mean_length),)
        if mean_length is not None
        else ()
    )
    if tokens is not None:
        how = f"{tokens:,.0f} tokens, as stated" + (
            f", documents of {mean_length:g}" if mean_length is not None and lengths is None else ""
        )
        return _with_replay(config, Corpus(lengths=stated, tokens=float(tokens), source=how, stated=bool(stated)))
    if lengths is not None:
        return _with_replay(
            config, Corpus(lengths=stated, tokens=float(sum(stated)), source=f"{len(stated):,} documents, as given")
        )
    if _is_here(config):
        from holdfast.runs.cost.lengths import read_corpus

        return _with_replay(config, read_corpus(config))
    return Corpus(
        lengths=stated,
        tokens=None,
        source=f"{config.training.max_steps:,} steps of the run's batches",
        stated=bool(stated),
    )


def _with_replay(config: TrainConfig, corpus: Corpus) -> Corpus:
    """Replay makes the data longer: a share f of the mixture is old."""
    for method in config.retention:
        share = method.replayed()
        if share and not method.off and corpus.tokens is not None:
            corpus = dataclasses.replace(
                corpus,
                tokens=corpus.tokens / (1 - share),
                source=f"{corpus.source}, and {share:.0%} of the mixture replayed",
            )
    return corpus


def _replayed(config: TrainConfig) -> list[str]:
    """What of the methods' data is not counted, and of an adapter's start."""
    found = list(dict.fromkeys(f"{m.name}: {m.not_in_cost}" for m in config.retention if m.not_in_cost and not m.off))
    if config.model.use_peft and config.adapter.lora_init is not None:
        rank = config.model.lora_r
        found.append(
            f"lora_init: an adapter of rank {2 * rank}, of which rank {rank} is trained, is counted whole; the pass "
            f"over lora_init_data and the decompositions before the first step are not"
        )
    return found


# --------------------------------------------------------------------------------------------------- what was assumed


def _assumptions(a: Architecture, plan: RunPlan, corpus: Corpus, work: Work, utilisation: float) -> list[str]:
    found = [
        f"a utilisation of {utilisation:g} of the peak rate, all operations counted; GPUs' rates and memory are their "
        f"makers' figures",
        f"{RESERVE[0] / 1e9:g} GB and {RESERVE[1]:.0%} of the peak beside the tensors: context, kernels, gaps of the "
        f"allocator",
    ]
    if not corpus.stated:
        how = "documents fill the window" if plan.packing != "wrapped" else "rows fill the window"
        found.append(f"{how} of {plan.window} tokens; --mean_length says otherwise")
    elif len(corpus.lengths) == 1:
        found.append(
            f"every document has {corpus.lengths[0]} tokens; where lengths differ, long ones make attention cost more"
        )
    if work.cut > 0.0005:
        found.append(f"{work.cut:.1%} of the tokens are beyond the window and are cut off")
    if work.masked and plan.attention != "eager":
        found.append("rows of different lengths are padded, and attention with a mask computes whole rows")
    if plan.computing == 2 and plan.stream == 4:
        rate = "TF32" if plan.tf32 else "float32"
        found.append(
            f"the loss's products run in {rate}: weights are {plan.weights}, and the loss leaves autocast (dtype: "
            f"bfloat16 makes them faster)"
        )
    if plan.sharding in ("fsdp", "zero1", "zero2", "zero3", "ddp"):
        found.append(f"{plan.sharding} over {plan.processes} processes, one GPU each; communication costs no time")
    if not known_optimiser(plan.optimiser):
        found.append(f"the states of optim: {plan.optimiser} are not known; two a parameter, as of Adam")
    if plan.teacher is not None and plan.teacher.kind == "cached":
        found.append("the teacher's cache is filled by this run; a run that finds it pays less")
    if plan.start_passes:
        found.append(
            "the start model's losses over the training data are computed by this run; one that finds them pays less"
        )
    found.append("every token has a label; where prompts are masked the head computes less")
    found.append("evaluation before, during and after training is not counted")
    return [*found, *a.notes]


# ------------------------------------------------------------------------------------------------ what makes it fit


def _advice(
    a: Architecture, plan: RunPlan, corpus: Corpus, gpu: GPU, lora: Callable[[], Architecture] | None
) -> list[str]:
    """Changes after which a run fits: each that is enough by itself, else several together."""
    replace = dataclasses.replace
    wider = [n for n in SHARDED if n > plan.processes]

    def fitting(words: str, architecture: Architecture, changed: RunPlan) -> str | None:
        needed = count_memory(architecture, changed, work_of(changed, corpus)).needed
        return f"{words}: {needed / 1e9:.1f} GB" if needed <= gpu.memory * 1e9 else None

    def first(options: Iterable[tuple[str, Architecture, RunPlan]]) -> list[str]:
        return next(([text] for option in options if (text := fitting(*option)) is not None), [])

    def adapted(changed: RunPlan, **more: Any) -> RunPlan:
        return replace(changed, use_peft=True, teacher=_without_copy(plan), kept=(), **more)

    half = {"weights": "bfloat16", "autocast": None}
    adapter = a if lora is None else lora()
    singles: list[list[tuple[str, Architecture, RunPlan]]] = [
        [("gradient_checkpointing: true", a, replace(plan, checkpointing=True))] if not plan.checkpointing else []
    ]
    smaller = [n for n in (plan.rows // 2, plan.rows // 4, 1) if 1 <= n < plan.rows]
    accumulated = {n: -(-plan.accumulation * plan.rows // n) for n in smaller}
    batch = "per_device_train_batch_size: {} with gradient_accumulation_steps: {}"
    singles.append([(batch.format(n, k), a, replace(plan, rows=n, accumulation=k)) for n, k in accumulated.items()])
    peft = "use_peft: true (LoRA)"
    if lora is not None:
        half_plan = adapted(plan, **half)
        singles.append([(peft, adapter, adapted(plan)), (f"{peft} with dtype: bfloat16", adapter, half_plan)])
    shards = "accelerate_config: fsdp2 with num_processes: {}"
    singles.append([(shards.format(n), a, _sharded(plan, n)) for n in wider])
    if works := [text for options in singles for text in first(options)]:
        return works
    smallest = replace(plan, checkpointing=True, rows=1, accumulation=plan.accumulation * plan.rows)
    words = {"gradient_checkpointing: true": not plan.checkpointing, "per_device_train_batch_size: 1": plan.rows > 1}
    common = [word for word, wanted in words.items() if wanted]

    def together(*more: str) -> str:
        return ", ".join([*common, *more])

    found = []
    if lora is not None:
        small = adapted(smallest, **half)
        four_bits = (together(peft, "dtype: bfloat16", "load_in_4bit: true"), adapter, replace(small, quantised=4))
        found += first([(together(peft, "dtype: bfloat16"), adapter, small), four_bits])
    sharded = [(together(shards.format(n)), a, _sharded(smallest, n)) for n in wider]
    found += first([(together(), a, smallest), *sharded])
    return found or ["nothing tried here makes it fit: a smaller model, a shorter window, or a larger GPU"]


def _sharded(plan: RunPlan, processes: int) -> RunPlan:
    """The same run under FSDP2, with the same sequences a step where the processes divide them."""
    weights = "float32" if plan.autocast and not plan.use_peft else plan.weights
    accumulation = max(1, plan.accumulation * plan.processes // processes)
    return dataclasses.replace(plan, sharding="fsdp", processes=processes, accumulation=accumulation, weights=weights)


def _without_copy(plan: RunPlan) -> Any:
    """LoRA's teacher is its own base."""
    return (
        None
        if plan.teacher is None
        else dataclasses.replace(plan.teacher, kind="adapter_off")
        if plan.teacher.kind == "online"
        else plan.teacher
    )
