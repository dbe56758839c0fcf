"""`holdfast update`: keep an instruct model current: continue its base on new text, add the instruction residual,
measure, report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.console import stdout_console, write
from holdfast.config.command_line import Command, switch_is_on
from holdfast.config.declare import Meta
from holdfast.config.decode import Given
from holdfast.config.help import Section
from holdfast.studies.update.settings import UpdateSettings

if TYPE_CHECKING:
    from holdfast.studies.update.plan import ResidualConfig

DESCRIPTION = """\
Keeps an instruct model current without instruction data. To train it on new text ruins how it follows instructions; so
its BASE is trained on the new text, and what instruction tuning had changed is added back:

  new instruct model = (base + new text) + scale * (instruct - base)

Documents are packed whole into windows, none sees another one; a part is held out and measured. Base, instruct and
result are measured alike and held against each other. Interrupted? The same command continues; nothing finished is done
again.
"""
UPDATE = """\
update.yaml (every key is an option too)
  base: meta-llama/Meta-Llama-3-8B
  instruct: meta-llama/Meta-Llama-3-8B-Instruct
  corpus: [news/, more.jsonl.gz]        # text, JSONL, Parquet; folders too
  after: 2023-12-01                     # only what is new
  tokens: 100M                          # of it; left out: all
  # keys of 'holdfast train' for the continued base
  train:
    learning_rate: 1.0e-5
    use_peft: true                      # LoRA in place of full fine-tuning
    retention: [{label_annealing: {weight: 0.3}}]
  evaluation: {suites: [instruction_residual]}
  # also continue the instruct model itself, to see what that would have cost
  continued_instruct: true
  # and bring it back by on-policy distillation, as the residual's rival
  restore: {prompts: prompts.jsonl}
  # try several; 1 is kept unless another is better with its whole interval
  scales: [0.5, 0.75, 1, 1.25]
  output_dir: runs/update
"""
OUTPUT = """\
output
  FOLDER/models/<result>/    the updated model: safetensors, the instruct model's tokenizer and chat template
  FOLDER/report.html         what was gained, what was kept, how it was made
  FOLDER/update.json         the same for programs
"""
EPILOG = """\
examples
  # checks models, corpus, tasks
  holdfast update --base BASE --instruct INSTRUCT --corpus news/ --dry_run
  holdfast update --base BASE --instruct INSTRUCT --corpus news/ \\
      --after 2024-01-01 --tokens 100M \\
      --train learning_rate=1e-5 use_peft=true \\
      --evaluation instruction_residual
  holdfast update --config update.yaml
"""


@dataclass(frozen=True, kw_only=True)
class UpdateRequest(UpdateSettings):
    """`holdfast update`."""

    dry_run: Annotated[bool, Meta(yaml=False)] = False
    """Checks models, corpus files and tasks, and prints what would be done."""


COMMAND = Command(
    name="holdfast update",
    request=UpdateRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="output", summary="the files that are written", text=OUTPUT),
        Section(name="yaml", summary="update.yaml, by an example", text=UPDATE),
    ),
    usage="--base MODEL --instruct MODEL --corpus PATH... [options]",
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast update --help`."""
    given = COMMAND.given(argv)
    dry_run = switch_is_on(given, next(s for s in COMMAND.settings if s.name == "dry_run"))
    config = read_config(given)
    if dry_run:
        return _dry_run(config)
    from holdfast.reports.update_report import print_update
    from holdfast.studies.update.session import update

    shown = stdout_console()
    record = update(config, console=shown)
    print_update(record, config.output_dir, shown)
    return 0


def read_config(given: Given) -> ResidualConfig:
    """The configuration of a request.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.studies.update.plan import update_config

    given.take("dry_run")
    if "train" in given.from_line and (parts := given.values.get("train")):
        given.values["train"] = {k: v for part in parts for k, v in part.items()} if _only_keys(parts) else parts[0]
    if "evaluation" in given.from_line:
        given.values["evaluation"] = {"suites": given.values["evaluation"]}
    return update_config(given)


def _only_keys(parts: list[Any]) -> bool:
    return all(isinstance(part, dict) for part in parts)


def _dry_run(config: ResidualConfig) -> int:
    from holdfast.studies.update.new_text import corpus_request
    from holdfast.studies.update.session import check_measuring, check_models, whole_plan
    from holdfast.support.token_counts import shown_tokens

    notes, _ = check_models(config)
    check_measuring(config)
    corpus_request(config, Path(config.output_dir) / "corpus" / "all.jsonl")
    budget = config.budgets[0]
    plan = [
        f"New text: {', '.join(config.corpus)} ({'all of it' if budget is None else shown_tokens(budget) + ' tokens'})"
    ]
    plan += [
        f"{number}. {model.label}" + ("" if model.continued else "  (as it is)")
        for number, model in enumerate(config.models(), 1)
    ]
    if config.evaluation:
        entries = ", ".join(f"{e.suite}/{e.name}" for e in whole_plan(config).entries)
        plan.append(f"Measured of each: the held-out new text, {entries}")
    else:
        plan.append(
            "Measured of each: the held-out new text alone. Add evaluation: to see what was kept, such as "
            "--evaluation instruction_residual."
        )
    plan += [f"Note: {note}" for note in notes]
    plan.append(f"Folder: {config.output_dir}")
    write(*plan)
    return 0
