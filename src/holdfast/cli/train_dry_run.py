"""`holdfast train --dry_run`: what would be done, once everything that the run reads was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.named import check_on_hub
from holdfast.cli.checkpoint_options import seconds_text, size_text
from holdfast.cli.console import print_line, stdout_console, write
from holdfast.printable import lines, printable

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.runs.config import Machine, TrainConfig
    from holdfast.runs.dry_run import Look
    from holdfast.runs.preview import PreparedRow

EXAMPLES = 3
LONGEST = 800
"""Characters of a stretch that are shown: its beginning and its end."""


def dry_run(
    config: TrainConfig,
    command: list[str] | None,
    *,
    machine: Machine,
    flops_per_second: float | None = None,
) -> int:
    """Prints the plan, once the output folder (free, empty, or with this very run) and all files are seen to be
    sound."""
    from holdfast.records.run import RunFolder
    from holdfast.runs.dry_run import look
    from holdfast.runs.run_folder import run_to_continue
    from holdfast.support.environment import quiet_datasets, quiet_libraries

    folder = config.training.output_dir
    record = run_to_continue(RunFolder(folder), config)
    with quiet_libraries(), quiet_datasets():
        if machine.here:
            check_on_hub(str(config.model.model_name_or_path))
        found = look(config)
    config.notes.extend(found.notes)
    write(plan(config, command=command, found=found, machine=machine, flops_per_second=flops_per_second))
    if record is not None:
        write(f"  {'continues':<11} the run in {folder} (status {record.status}, stage '{record.stage}')")
    if found.preview is not None:
        print_examples(found, stdout_console())
    return 0


def amounts(
    config: TrainConfig, found: Look, *, machine: Machine, flops_per_second: float | None
) -> list[tuple[str, str]]:
    """Rows, tokens, steps, memory, operations and time, as far as they can be told."""
    if found.preview is None:
        return []
    seen, whole = found.preview, found.preview.looked == found.preview.of
    about = "" if whole else "about "
    share = f"{seen.share:.0%} of them trained" + ("" if whole else f", by {seen.looked} rows")
    rows = [("rows", f"{seen.of:,} rows, {about}{found.tokens:,.0f} tokens an epoch ({share})")]
    if (cost := found.cost) is None:
        return rows
    rows.append(("steps", f"{cost.work.steps:,}, {cost.work.tokens:,.0f} tokens in all"))
    device = "GPU memory" if machine.accelerator and not config.training.use_cpu else "memory"
    rows.append(("memory", f"about {size_text(cost.memory)} of {device} for each process"))
    rows.append(("operations", f"about {cost.operations:.2e}, training alone"))
    if flops_per_second is None:
        rows.append(("time", "unknown: give the device's rate with --flops_per_second"))
    else:
        seconds = cost.operations / flops_per_second / config.processes
        rate = f"{flops_per_second:.3g} operations a second of each process"
        rows.append(("time", f"about {seconds_text(seconds)} at {rate}"))
    return rows


def drawn_before(config: TrainConfig, found: Look) -> list[str]:
    """What the start model has to write before the first step."""
    from holdfast.training.data_host import BATCH_SIZES

    seen, lines = found.preview, list[str]()
    if seen is None:
        return []
    for method in (m for m in config.retention if not m.off):
        wanted = method.draws(
            rows=seen.of,
            tokens=found.tokens,
            window=int(config.training.max_length or 1 << 30),
            at_once=BATCH_SIZES["cpu" if config.training.use_cpu else "cuda"],
        )
        if wanted is None:
            continue
        text = f"{method.name}: about {wanted.tokens:,.0f} tokens of the start model's own text, unless they are there"
        if wanted.passes:
            text += f"; {wanted.passes:,} passes of up to {min(wanted.batch, wanted.samples)} samples"
        lines.append(f"{text}; how long is said after the first batch")
    return lines


def print_examples(found: Look, console: Console) -> None:
    """A few rows as they are trained on: what counts in colour, or between » and « where there is none."""
    from rich.text import Text

    assert found.preview is not None
    rows = found.preview.rows
    shown = [rows[i * (len(rows) - 1) // max(1, min(EXAMPLES, len(rows)) - 1)] for i in range(min(EXAMPLES, len(rows)))]
    plain = console.color_system is None
    how = "between » and «" if plain else "green"
    print_line(console)
    print_line(console, f"What is trained is {how}, the rest is only read.")
    for number, row in enumerate(shown, 1):
        print_line(console)
        print_line(console, f"  example {number}: {len(row.ids):,} tokens, {sum(row.trained):,} trained")
        text = Text()
        for piece, trained in pieces(row, found.tokenizer):
            marked = f"»{piece}«" if plain and trained else piece
            text.append(printable(marked, breaks=True), style="green" if trained else "dim")
        console.print(text, soft_wrap=True)


def pieces(row: PreparedRow, tokenizer: Any) -> list[tuple[str, bool]]:
    """A row's text in stretches, long ones with their middle left out."""
    return [
        (text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 2 :]}", trained)
        for text, trained in row.pieces(tokenizer)
    ]


def plan(
    config: TrainConfig,
    *,
    found: Look,
    machine: Machine,
    command: list[str] | None = None,
    flops_per_second: float | None = None,
) -> str:
    """What would be done, as text."""
    args, model = config.training, config.model
    rows_each, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    batch = (
        f"{rows_each * accumulated * config.processes} sequences a step = {rows_each} x {accumulated} "
        f"accumulated x {_count(config.processes)}"
    )
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "no autocast"
    adapter = "OSF" if config.adapter.peft_method == "osf" else f"LoRA r={model.lora_r} alpha={model.lora_alpha}"
    how = adapter if model.use_peft else "all weights"
    if config.train_only:
        how = f"trained only: {', '.join(config.train_only)}"
    length = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    weights_file = "adapter_model.safetensors" if model.use_peft else "model.safetensors"
    rows = [
        ("model", f"{model.model_name_or_path} ({how}, weights in {model.dtype}, {precision})"),
        ("data", _data(config)),
        (
            "training",
            f"{length}, learning rate {args.learning_rate:g} ({_value(args.lr_scheduler_type)}), seed {args.seed}",
        ),
        ("batch", batch),
        *amounts(config, found, machine=machine, flops_per_second=flops_per_second),
        *_many(
            "retention",
            [m.label() + (" (off)" if m.off else "") for m in config.retention] or ["none: plain fine-tuning"],
        ),
        *_many("before", drawn_before(config, found)),
    ]
    entries = config.evaluation.entries
    for suite in config.evaluation.suites:
        rows += _many(suite, [f"{e.name} ({e.kind})" for e in entries if e.suite == suite])
    if not entries:
        rows.append(("evaluation", "nothing: add --source and --target to see what is kept and what is learnt"))
    rows.append(
        (
            "output",
            f"{args.output_dir} (run.json, metrics.jsonl, evaluations/, checkpoints, {weights_file}, README.md, "
            f"report.html)",
        )
    )
    rows += [("note", note) for note in config.notes]
    if command:
        rows.append(("starts", " ".join(without_secrets(command))))
    there = "" if machine.here else " for a machine with a GPU, whose packages are not known here"
    title = f"Dry run: the request is sound{there}; nothing was trained."
    return lines(title, "", *(f"  {k:<11} {v}" for k, v in rows))


def without_secrets(words: list[str]) -> list[str]:
    """A command line whose tokens and keys are not shown."""
    from holdfast.support.secrets import SECRET

    shown, hidden = list[str](), False
    for word in words:
        name, equals, _ = word.removeprefix("--").replace("-", "_").partition("=")
        secret = word.startswith("--") and name in SECRET
        shown.append("***" if hidden else f"--{name}=***" if secret and equals else word)
        hidden = secret and not equals
    return shown


def _data(config: TrainConfig) -> str:
    entries = config.mixture.datasets
    name = ", ".join(str(e.path) for e in entries) if entries else str(config.script.dataset_name)
    if config.on_policy is not None:
        return f"{name} (prompts; the model's own answers of up to {config.on_policy.max_completion_length} tokens)"
    found = [f"{n} template" for n in ("text", "prompt", "completion") if getattr(config.templates, n, None)]
    packed = "packed to" if config.training.packing else "at most"
    found.append(f"{packed} {config.training.max_length} tokens" if config.training.max_length else "any length")
    return f"{name} ({', '.join(found)})"


def _many(name: str, values: list[str]) -> list[tuple[str, str]]:
    return [(name if i == 0 else "", v) for i, v in enumerate(values)]


def _count(processes: int) -> str:
    return f"{processes} process{'es' if processes != 1 else ''}"


def _value(value: Any) -> str:
    return str(getattr(value, "value", value))
