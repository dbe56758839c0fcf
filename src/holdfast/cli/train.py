"""`holdfast train`: checks the request, starts more processes where asked for, and hands over to
`holdfast.runs.run`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

from holdfast.cli.check import CheckFlags, check, flags, split_words
from holdfast.cli.console import write
from holdfast.config.command_line import CONFIG
from holdfast.config.declare import Meta
from holdfast.config.help import Help, Section, help_topic
from holdfast.errors import ConfigError
from holdfast.printable import lines

DESCRIPTION = """\
Fine-tunes a language model, and measures what it learnt and what it forgot. Takes every key of 'trl sft'. Interrupted?
Run the same command to continue.
"""
EPILOG = """\
example
  holdfast train --model_name_or_path ./my-model --dataset_name train.jsonl \\
      --retention label_annealing:weight=1.0 --keep prose.jsonl
"""
EXAMPLES = """\
  # the minimum: a model and data
  holdfast train --model_name_or_path Qwen/Qwen3-0.6B --dataset_name train.jsonl

  # keep old skills, and measure: --keep must not get worse, --learn should get better
  holdfast train --model_name_or_path ./my-model --dataset_name train.jsonl \\
      --learning_rate 1e-5 --retention label_annealing:weight=1.0 \\
      --keep prose.jsonl --keep hellaswag --learn held_out.jsonl

  # LoRA, two methods together, four GPUs
  holdfast train --config run.yaml --use_peft --lora_r 16 \\
      --retention label_annealing:weight=0.5,temperature=2 \\
      --retention sfa:p=0.25 --num_processes 4

  # check everything, train nothing ('holdfast check run.yaml' is the same);
  # on a laptop, for the machine that trains
  holdfast train --config run.yaml --dry_run
  holdfast train --config run.yaml --dry_run --for gpu

Switches: --packing, --packing false, --no_packing. Lists: --lora_target_modules q_proj v_proj.
Several processes: --num_processes N, --accelerate_config fsdp2 (or multi_gpu, zero3, a file), as in trl.

run.yaml
  # a local folder (safetensors) or a hub id
  model_name_or_path: Qwen/Qwen3-0.6B
  dataset_name: train.jsonl                # a file, a folder or a hub id
  learning_rate: 1e-5
  num_train_epochs: 2
  retention:
    - label_annealing: {weight: 1.0, temperature: 2}
  evaluation:
    # data files (perplexity) and lm-evaluation-harness tasks
    keep: [prose.jsonl, hellaswag]
    learn: [held_out.jsonl]
  output_dir: runs/first
"""
DATA = """\
JSONL, JSON, Parquet, CSV or text, or a hub data set. The columns decide how it is read:
  messages, or conversations        chat (role and content; ShareGPT); the tokenizer needs a chat template
  prompt + completion               only the completion is trained
  instruction [+ input] + output    the same; the prompt is made of instruction and input
  question + answer                 the same
  text                              plain text: everything is trained
  input_ids [+ labels, masks]       tokenised already

For other columns write templates:
  data: {prompt: "Question: {question}\\nAnswer:", completion: " {answer}"}
  data: {text: "{title}\\n{body}"}
"""
TRL = (
    "These are the keys at holdfast's release. 'holdfast schema train' lists the keys of the "
    "installed TRL."
)
EXAMPLE_PARAMETERS: dict[str, str] = {
    "label_annealing": "weight=1.0",
    "token_weighting": "kind=eaft",
    "l2": "coefficient=0.01",
    "ewc": "data=old.jsonl,coefficient=1",
    "sfa": "p=0.25",
    "wise_ft": "alpha=0.5",
    "ema": "decay=0.999",
    "mofo": "fraction=0.15",
    "replay": "data=old.jsonl,fraction=0.1",
    "self_replay": "fraction=0.1",
    "multitask": "data=old.jsonl",
    "budget": "kl=0.05 + label_annealing",
    "asft": "weight=0.05",
    "auto": "fraction=0.5",
}
"""What the help on a method or preset shows as its example: its parameters, and a method that it
needs beside it."""


@dataclass(frozen=True, kw_only=True)
class Flags(CheckFlags):
    """What `holdfast train` takes beside a run's settings; those of the check with `dry_run`
    only."""

    dry_run: bool = False
    """Check and rehearse the request without training. The same as 'holdfast check', whose options
    are allowed, too."""
    debug: Annotated[bool, Meta(section="running")] = False
    """Full tracebacks."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast train --help`."""
    if (topic := help_topic(argv)) is not None:
        write(*train_help().text(topic).splitlines())
        return 0
    values, words = split_words(argv, flags(Flags))
    dry_run = bool(values.get("dry_run"))
    for setting in flags():
        if setting.name in values and not dry_run:
            raise ConfigError(
                f"--{setting.name}: has an effect only with --dry_run. Add --dry_run, or leave "
                "this out."
            )
    if not words:
        raise ConfigError(
            lines(
                "nothing to train: expected at least a model and data, as in",
                "  holdfast train --model_name_or_path MODEL --dataset_name train.jsonl",
                "or --config run.yaml. 'holdfast train --help' explains the rest.",
            )
        )

    if dry_run:
        return check(words, values)
    from holdfast.runs import launch
    from holdfast.runs.config import load_train_config, this_machine
    from holdfast.support.environment import EVALUATION_CACHE

    launch.check_world()
    machine = this_machine()
    config, accelerator = load_train_config(words, machine=machine), machine.accelerator
    relaunch = launch.is_needed(config.launch, has_accelerator=accelerator)
    if relaunch:
        launch.start(config.launch, words, has_accelerator=accelerator)

    from holdfast.cli.console import stdout_console
    from holdfast.runs.run import train

    train(config, console=stdout_console(), evaluation_cache=os.environ.get(EVALUATION_CACHE))
    return 0


# --------------------------------------------------------------------------------------------- help


def train_help() -> Help:
    """What `--help` says; imports no TRL."""
    from holdfast.retention.presets import PRESETS
    from holdfast.retention.registry import METHODS
    from holdfast.runs.settings import OWN, shipped_settings

    methods = [_method_section(cls) for cls in [*METHODS.values(), *PRESETS.values()]]
    settings = [*shipped_settings(), *OWN.values(), CONFIG, *flags(Flags)]
    return Help(
        command="holdfast train",
        usage="[--config run.yaml] [--key value ...]",
        settings=sorted(settings, key=lambda setting: setting.meta.section == "trl"),
        sections=(
            *methods,
            Section(name="data", summary="formats and columns, --data, --chat_template", text=DATA),
            Section(
                name="training",
                summary="learning rates by layer, --train_only, --on_policy, --fused_layers",
            ),
            Section(name="evaluation", summary="what is measured, held-out rows, --early_stopping"),
            Section(
                name="running", summary="--for gpu, --flops_per_second, --quick, --env, --debug"
            ),
            Section(
                name="trl", summary="the other keys of trl sft and accelerate launch", text=TRL
            ),
            Section(name="examples", summary="more commands, and run.yaml", text=EXAMPLES),
        ),
        description=DESCRIPTION,
        epilog=EPILOG,
    )


def _method_section(cls: Any) -> Section:
    """The help on a retention method or a preset."""
    parameters, _, other = EXAMPLE_PARAMETERS[cls.name].partition(" + ")
    in_yaml = parameters.replace("=", ": ").replace(",", ", ")
    text = f"""\
from: {cls.source}

example
  --retention {cls.name}:{parameters}{f" --retention {other}" if other else ""}

as YAML
  retention:
    - {cls.name}: {{{in_yaml}}}
{f"    - {other}" if other else ""}
"""
    group = "retention methods"
    return Section(
        name=cls.name, summary=cls.summary, group=group, declared=cls, prefix="", text=text
    )
