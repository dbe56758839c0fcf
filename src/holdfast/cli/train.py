"""`holdfast train`: checks the request, starts more processes where asked for, and hands over to
`holdfast.runs.run`."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.config.command_line import CONFIG
from holdfast.config.declare import settings_of
from holdfast.config.help import default_text, explained, render_help
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

DESCRIPTION = """\
Fine-tunes a causal language model, keeps what it knew with the retention methods you name, measures both sides before
and after, and writes report.html. All keys of 'trl sft' work, in the YAML and as options; the command line wins.
Interrupted? The same command continues.
"""
EPILOG = """\
examples
  # the least: a model and data
  holdfast train --model_name_or_path Qwen/Qwen3-0.6B --dataset_name train.jsonl

  # keep the old skills, and measure: 'source' is to be kept, 'target' is learnt
  holdfast train --model_name_or_path ./my-model --dataset_name train.jsonl --learning_rate 1e-5 \\
      --retention label_annealing:weight=1.0 --source prose.jsonl --source hellaswag --target held_out.jsonl

  # LoRA, two methods together, four GPUs
  holdfast train --config run.yaml --use_peft --lora_r 16 \\
      --retention label_annealing:weight=0.5,temperature=2 --retention sfa:p=0.25 --num_processes 4

  # check everything, train nothing
  holdfast train --config run.yaml --dry_run

run.yaml
  model_name_or_path: Qwen/Qwen3-0.6B      # a local folder (safetensors) or a hub id
  dataset_name: train.jsonl                # a file, a folder or a hub id
  learning_rate: 1e-5
  num_train_epochs: 2
  retention:
    - label_annealing: {weight: 1.0, temperature: 2}
  evaluation:
    source: [prose.jsonl, hellaswag]       # data files (perplexity) and lm-evaluation-harness tasks
    target: [held_out.jsonl]
  output_dir: runs/first

data
  JSONL, JSON, Parquet, CSV or text, or a hub data set. The columns decide how it is read:
    messages                                chat (role and content); the tokenizer needs a chat template
    prompt + completion                     only the completion is trained
    instruction [+ input] + output          the same, put together from its parts
    question + answer                       the same
    text                                    plain text: everything is trained
  For other columns write templates:
    data: {prompt: "Question: {question}\\nAnswer:", completion: " {answer}"}      # or {text: "{title}\\n{body}"}

retention methods
{methods}
switches: --packing, --packing false, --no_packing. Lists: --lora_target_modules q_proj v_proj.
Several processes: --num_processes N, --accelerate_config fsdp2 (or multi_gpu, zero3, a file), as in trl.
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What `holdfast train` takes beside a run's settings."""

    dry_run: bool = False
    """Checks the request and prints the plan."""
    debug: bool = False
    """Full tracebacks."""
    help_all: bool = False
    """Every key of trl sft and accelerate launch, with its default."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast train --help`."""
    words, flags = [], set()
    for word in argv:
        name = word.replace("-", "_")
        if name in ("__help", "_h", "__help_all", "__dry_run"):
            flags.add(name)
        else:
            words.append(word)
    if flags & {"__help", "_h"}:
        print(help_text(), end="")
        return 0
    if "__help_all" in flags:
        print(_all_keys())
        return 0
    if not words:
        raise ConfigError(
            "nothing to train: expected at least a model and data, as in\n  holdfast train --model_name_or_path MODEL "
            "--dataset_name train.jsonl\n"
            "or --config run.yaml. 'holdfast train --help' explains the rest."
        )

    from holdfast.runs import launch
    from holdfast.runs.config import has_accelerator, load_train_config

    launch.check_world()
    config = load_train_config(words)
    accelerator = has_accelerator()
    relaunch = launch.is_needed(config.launch, has_accelerator=accelerator)
    if "__dry_run" in flags:
        return _dry_run(config, launch.command(config.launch, words, has_accelerator=accelerator) if relaunch else None)
    if relaunch:
        launch.start(config.launch, words, has_accelerator=accelerator)

    from holdfast.cli.console import stdout_console
    from holdfast.runs.run import train
    from holdfast.support.environment import EVALUATION_CACHE

    train(config, console=stdout_console(), evaluation_cache=os.environ.get(EVALUATION_CACHE))
    return 0


# -------------------------------------------------------------------------------------------------------------- dry run


def _dry_run(config: TrainConfig, command: list[str] | None) -> int:
    """Prints the plan, once the output folder (free, empty, or with this very run) and all files are seen to be
    sound."""
    from holdfast.records.run import RunFolder
    from holdfast.runs.loading import check_files
    from holdfast.runs.run_folder import run_to_continue
    from holdfast.support.environment import quiet_datasets, quiet_libraries

    folder = config.training.output_dir
    record = run_to_continue(RunFolder(folder), config)
    with quiet_libraries(), quiet_datasets():
        config.notes.extend(check_files(config))
    print(plan(config, command=command))
    if record is not None:
        print(f"  {'continues':<11} the run in {folder} (status {record.status}, stage '{record.stage}')")
    return 0


def plan(config: TrainConfig, *, command: list[str] | None = None) -> str:
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
    length = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    rows = [
        ("model", f"{model.model_name_or_path} ({how}, weights in {model.dtype}, {precision})"),
        ("data", _data(config)),
        (
            "training",
            f"{length}, learning rate {args.learning_rate:g} ({_value(args.lr_scheduler_type)}), seed {args.seed}",
        ),
        ("batch", batch),
        *_many(
            "retention",
            [m.label() + (" (off)" if m.off else "") for m in config.retention] or ["none: plain fine-tuning"],
        ),
    ]
    entries = config.evaluation.entries
    for suite in config.evaluation.suites:
        rows += _many(suite, [f"{e.name} ({e.kind})" for e in entries if e.suite == suite])
    if not entries:
        rows.append(("evaluation", "nothing: add --source and --target to see what is kept and what is learnt"))
    rows.append(
        (
            "output",
            f"{args.output_dir} (run.json, metrics.jsonl, evaluations/, checkpoints, model.safetensors, README.md, "
            f"report.html)",
        )
    )
    rows += _many("note", config.notes)
    if command:
        rows.append(("starts", " ".join(command)))
    return "\n".join(["Dry run: the request is sound; nothing was trained.", "", *(f"  {k:<11} {v}" for k, v in rows)])


def _data(config: TrainConfig) -> str:
    entries = config.mixture.datasets
    name = ", ".join(str(e.path) for e in entries) if entries else str(config.script.dataset_name)
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


# ----------------------------------------------------------------------------------------------------------------- help


def help_text() -> str:
    """The text of `--help`; imports no TRL."""
    from holdfast.runs.settings import OWN

    settings = (CONFIG, *OWN.values(), *settings_of(Flags))
    usage = "holdfast train [--config run.yaml] [--key value ...]"
    return render_help(usage, settings, description=DESCRIPTION, epilog=EPILOG.replace("{methods}", _methods()))


def _methods() -> str:
    from holdfast.retention.registry import METHODS

    lines = []
    for name, cls in METHODS.items():
        lines.append(f"  {name}: {cls.summary}")
        lines.append(f"      from: {cls.source}")
        for s in settings_of(cls):
            text = f"{s.name}: {explained(s)}"
            lines += textwrap.wrap(text, 116, initial_indent="      ", subsequent_indent="          ")
    return "\n".join(lines) + "\n"


def _all_keys() -> str:
    """Every key with its type, default and help, by group. Imports TRL."""
    from holdfast.runs.settings import OWN, known_settings

    titles = {
        "script": "data (trl ScriptArguments)",
        "mixture": "several data sets (trl DatasetMixtureConfig)",
        "model": "model (trl ModelConfig)",
        "adapter": "orthogonal subspace fine-tuning",
        "training": "training (trl SFTConfig)",
        "launch": "several processes (accelerate launch)",
    }
    lines = ["holdfast's own keys (see 'holdfast train --help')", *(f"  {s.name}: {s.help}" for s in OWN.values())]
    for source, title in titles.items():
        lines += ["", title]
        for s in known_settings().values():
            if s.source == source:
                default = "" if s.default is None or source == "launch" else f", default {default_text(s.default)}"
                lines.append(f"  --{s.name}  [{s.expected}{default}]")
                lines += textwrap.wrap(s.help, 112, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)
