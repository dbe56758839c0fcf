"""`holdfast train`: checks the request, starts more processes where asked for, and hands over to
`holdfast.runs.run`."""

from __future__ import annotations

import dataclasses
import math
import os
import textwrap
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from holdfast.cli.console import write
from holdfast.config.command_line import CONFIG
from holdfast.config.declare import Meta, Setting, settings_of
from holdfast.config.help import default_text, explained, render_help
from holdfast.errors import ConfigError
from holdfast.printable import lines

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

  # check everything, train nothing; on a laptop, for the machine that will train
  holdfast train --config run.yaml --dry_run
  holdfast train --config run.yaml --dry_run --for gpu

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
    """Reads model and data to the end and prints the plan: rows, tokens, steps, memory, operations, three rows with
    what is trained in them. Nothing is trained."""
    for_: Literal["here", "gpu"] = "here"
    """With --dry_run: checks the settings for another machine, one with a GPU, in place of this one."""
    flops_per_second: Annotated[float | None, Meta(gt=0, metavar="F")] = None
    """With --dry_run: floating-point operations a second that a device reaches, its peak rate times the share that you
    expect (4e14: about 40 % of an H100). The plan then says how many hours training takes."""
    debug: bool = False
    """Full tracebacks."""
    help_all: bool = False
    """Every key of trl sft and accelerate launch, with its default."""


def flags() -> tuple[Setting, ...]:
    """The fields of `Flags` as options: `for` is no name that Python takes."""
    return tuple(dataclasses.replace(s, name=s.name.removesuffix("_")) for s in settings_of(Flags))


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast train --help`."""
    words, given, target, rate = list[str](), set[str](), "here", ""
    left = list(argv)
    while left:
        word = left.pop(0)
        name = word.replace("-", "_")
        if name in ("__help", "_h", "__help_all", "__dry_run"):
            given.add(name)
        elif name.partition("=")[0] == "__for":
            target = _value(word, left)
        elif name.partition("=")[0] == "__flops_per_second":
            rate = _value(word, left)
        else:
            words.append(word)
    if target not in ("here", "gpu") or (target == "gpu" and "__dry_run" not in given):
        raise ConfigError(f"--for: expected here or gpu, with --dry_run, got {target!r}.")
    flops_per_second = _rate(rate) if rate else None
    if rate and "__dry_run" not in given:
        raise ConfigError("--flops_per_second: takes effect with --dry_run only. Add it, or leave this out.")
    if given & {"__help", "_h"}:
        write(*help_text().splitlines())
        return 0
    if "__help_all" in given:
        write(*_all_keys().splitlines())
        return 0
    if not words:
        raise ConfigError(
            lines(
                "nothing to train: expected at least a model and data, as in",
                "  holdfast train --model_name_or_path MODEL --dataset_name train.jsonl",
                "or --config run.yaml. 'holdfast train --help' explains the rest.",
            )
        )

    from holdfast.runs import launch
    from holdfast.runs.config import GPU, load_train_config, this_machine

    launch.check_world()
    machine = GPU if target == "gpu" else this_machine()
    config, accelerator = load_train_config(words, machine=machine), machine.accelerator
    relaunch = launch.is_needed(config.launch, has_accelerator=accelerator)
    if "__dry_run" in given:
        from holdfast.cli.train_dry_run import dry_run

        command = launch.command(config.launch, words, has_accelerator=accelerator) if relaunch else None
        return dry_run(config, command, machine=machine, flops_per_second=flops_per_second)
    if relaunch:
        launch.start(config.launch, words, has_accelerator=accelerator)

    from holdfast.cli.console import stdout_console
    from holdfast.runs.run import train
    from holdfast.support.environment import EVALUATION_CACHE

    train(config, console=stdout_console(), evaluation_cache=os.environ.get(EVALUATION_CACHE))
    return 0


def _value(word: str, left: list[str]) -> str:
    """What an option says: behind its `=`, or the next word, which is taken."""
    return word.partition("=")[2] or (left.pop(0) if left else "")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ConfigError(f"--flops_per_second: expected a number above 0, such as 4e14, got {text!r}.")
    return rate


# ----------------------------------------------------------------------------------------------------------------- help


def help_text() -> str:
    """The text of `--help`; imports no TRL."""
    from holdfast.runs.settings import OWN

    settings = (CONFIG, *OWN.values(), *flags())
    usage = "holdfast train [--config run.yaml] [--key value ...]"
    return render_help(usage, settings, description=DESCRIPTION, epilog=EPILOG.replace("{methods}", _methods()))


def _methods() -> str:
    from holdfast.retention.presets import PRESETS
    from holdfast.retention.registry import METHODS

    lines = []
    known: dict[str, Any] = {**METHODS, **PRESETS}
    for name, cls in known.items():
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
