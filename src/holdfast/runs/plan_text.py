"""What a run would do, as the text that `holdfast check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.printable import lines
from holdfast.runs.trainers import TRAINERS
from holdfast.support.environment import shown_bytes, shown_seconds

if TYPE_CHECKING:
    from holdfast.runs.config import Machine, TrainConfig
    from holdfast.runs.dry_run import Look
    from holdfast.runs.rehearsal import Rehearsal

Rows = list[tuple[str, str]]
"""Subjects and what is said of them."""


def plan_text(
    config: TrainConfig,
    look: Look,
    rehearsal: Rehearsal | str,
    *,
    machine: Machine,
    command: list[str] | None = None,
    flops_per_second: float | None = None,
) -> str:
    """What would be done.

    Args:
        config: of the run.
        look: what was seen of its model and data.
        rehearsal: of the run, or why there was none.
        machine: that the run is for.
        command: what starts its processes, where there are several.
        flops_per_second: floating-point operations a second that a device reaches.
    """
    args, model = config.training, config.model
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "no autocast"
    length = (
        f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    )
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    sequences, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    processes = f"{config.processes} process{'es' if config.processes != 1 else ''}"
    in_all = sequences * accumulated * config.processes
    rows: Rows = [
        (
            "model",
            f"{model.model_name_or_path} ({_trained_weights(config)}, weights in {model.dtype}, "
            f"{precision})",
        ),
        ("data", _data(config)),
        (
            "training",
            f"{length}, learning rate {args.learning_rate:g} ({schedule}), seed {args.seed}",
        ),
        (
            "batch",
            f"{in_all} sequences a step = {sequences} x {accumulated} accumulated x {processes}",
        ),
    ]
    rows += amounts(config, look, machine=machine, flops_per_second=flops_per_second)
    methods = [method.label() + (" (off)" if method.off else "") for method in config.retention]
    rows += _under("retention", methods or ["none: plain fine-tuning"])
    rows += _under("before", drawn_before(config, look))
    for suite in config.evaluation.suites:
        entries = [f"{e.name} ({e.kind})" for e in config.evaluation.entries if e.suite == suite]
        rows += _under(suite, entries)
    if not config.evaluation.entries:
        rows.append(
            (
                "evaluation",
                "nothing. To measure what is kept and learnt, add --keep and --learn",
            )
        )
    weights_file = "adapter_model.safetensors" if model.use_peft else "model.safetensors"
    files = (
        f"run.json, metrics.jsonl, evaluations/, checkpoints, {weights_file}, README.md, "
        "report.html"
    )
    rows.append(("output", f"{args.output_dir} ({files})"))
    rows += [("note", note) for note in config.notes]
    if command:
        rows.append(("starts", " ".join(without_secrets(command))))
    title = "No problem was found, but the run was not rehearsed: " + str(rehearsal)
    if not isinstance(rehearsal, str):
        title = "The request is sound"
        if not machine.here:
            title += " for a machine with a GPU, whose packages were not checked"
        rows += _rehearsed(rehearsal)
    title += "; nothing was trained."
    return lines(title, "", *(f"  {subject:<11} {text}" for subject, text in rows))


def _rehearsed(rehearsal: Rehearsal) -> Rows:
    """What was rehearsed, and on what."""
    did = "a step, a checkpoint, a resume, a sample of each entry"
    rows = [("rehearsed", f"{did}, in {shown_seconds(rehearsal.seconds)}")]
    rows.append(("", f"on a copy of the model: {', '.join(rehearsal.smaller)}"))
    if rehearsal.left_out:
        rows.append(("", f"NOT rehearsed: {', '.join(rehearsal.left_out)}"))
    return rows


def amounts(
    config: TrainConfig, look: Look, *, machine: Machine, flops_per_second: float | None
) -> Rows:
    """Rows, tokens, steps, memory, operations and time, as far as they can be told."""
    preview, cost = look.preview, look.cost
    if preview is None:
        return []
    about, sample = "", ""
    if preview.looked != preview.of:
        about, sample = "about ", f", measured on {preview.looked} rows"
    tokens = (
        f"{about}{look.tokens:,.0f} tokens an epoch ({preview.share:.0%} of them trained{sample})"
    )
    rows = [("rows", f"{preview.of:,} rows, {tokens}")]
    if cost is None:
        return rows
    device = "GPU memory" if machine.accelerator and not config.training.use_cpu else "memory"
    rows += [
        ("steps", f"{cost.work.steps:,}, {cost.work.tokens:,.0f} tokens in all"),
        ("memory", f"about {shown_bytes(cost.memory)} of {device} per process"),
        ("operations", f"about {cost.operations:.2e}, training alone"),
    ]
    if flops_per_second is None:
        rows.append(("time", "unknown; give the device's speed with --flops_per_second"))
    else:
        seconds = shown_seconds(cost.operations / flops_per_second / config.processes)
        rows.append(
            (
                "time",
                f"about {seconds}, if each process does {flops_per_second:.3g} operations per "
                "second",
            )
        )
    return rows


def drawn_before(config: TrainConfig, look: Look) -> list[str]:
    """What the initial model has to write before the first step, one sentence a method."""
    from holdfast.training.data_services import BATCH_SIZES

    sentences: list[str] = []
    if look.preview is None:
        return sentences
    for method in config.retention:
        draws = None
        if not method.off:
            draws = method.draws(
                rows=look.preview.of,
                tokens=look.tokens,
                window=int(config.training.max_length or 1 << 30),
                at_once=BATCH_SIZES["cpu" if config.training.use_cpu else "cuda"],
            )
        if draws is None:
            continue
        text = (
            f"{method.name}: about {draws.tokens:,.0f} tokens of text from the initial model, "
            "unless cached"
        )
        if draws.passes:
            text += f"; {draws.passes:,} passes of up to {min(draws.batch, draws.samples)} samples"
        sentences.append(f"{text}; the time is shown after the first batch")
    return sentences


def without_secrets(words: list[str]) -> list[str]:
    """A command line whose tokens and keys are not shown."""
    from holdfast.support.secrets import SECRET

    public: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.removeprefix("--").replace("-", "_").partition("=")
        secret = word.startswith("--") and name in SECRET
        if is_value:
            word = "***"
        elif secret and equals:
            word = f"--{name}=***"
        public.append(word)
        is_value = secret and not equals
    return public


def _trained_weights(config: TrainConfig) -> str:
    if config.holdfast.train_only:
        return f"trained only: {', '.join(config.holdfast.train_only)}"
    if not config.model.use_peft:
        return "all weights"
    if config.adapter.peft_method == "osf":
        return "OSF"
    return f"LoRA r={config.model.lora_r} alpha={config.model.lora_alpha}"


def _data(config: TrainConfig) -> str:
    entries = config.mixture.datasets
    name = (
        ", ".join(str(entry.path) for entry in entries)
        if entries
        else str(config.script.dataset_name)
    )
    if config.holdfast.on_policy is not None:
        longest = config.holdfast.on_policy.max_completion_length
        return f"{name} (prompts; the model's own answers of up to {longest} tokens)"
    if TRAINERS[config.holdfast.trainer].columns:
        return f"{name} ({TRAINERS[config.holdfast.trainer].rows})"
    facts = [
        f"{key} template"
        for key in ("text", "prompt", "completion")
        if getattr(config.holdfast.data, key, None)
    ]
    packed = "packed to" if config.training.packing else "at most"
    facts.append(
        f"{packed} {config.training.max_length} tokens"
        if config.training.max_length
        else "any length"
    )
    return f"{name} ({', '.join(facts)})"


def _under(subject: str, values: list[str]) -> Rows:
    """Rows of one subject, which only the first names."""
    return [(subject if number == 0 else "", value) for number, value in enumerate(values)]
