"""`holdfast ladder`: one model at rising pre-training budgets, to study what longer pre-training does to fragility."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import ConfigError, did_you_mean
from holdfast.papers.ladder.settings import LadderSettings

PROG = "holdfast ladder"

HELP = """\
usage: holdfast ladder train|worker|status|report [options]

  train     pre-trains decoders of your sizes at rising token budgets, every budget a run of its own
  worker    joins a ladder that another process or machine has begun
  status    how far it is
  report    table and page once more

examples
  holdfast ladder train --config ladder.yaml --dry_run        # the runs, and all mistakes at once
  holdfast ladder train --config ladder.yaml --workers 2
  holdfast ladder status runs/ladder --watch
  holdfast probe --ladder runs/ladder/15M.yaml --corpus held_out.jsonl

'holdfast ladder train --help' explains the options.
"""
DESCRIPTION = """\
Pre-trains a ladder: decoders of the sizes you name, at token budgets that rise, every budget a run of its own whose
learning rate ends at zero. The text is tokenised once into memory-mapped windows that all runs share; runs of a size
begin with the same weights and read the same windows in the same order. Each run is an ordinary run folder of 'holdfast
train' (resumed after a crash, FSDP and bf16 by its keys), is measured on what you name, and its tokens a second
are logged. The ladder's files are what 'holdfast probe --ladder' takes.
Interrupted? The same command continues. Several machines: one --storage and a shared folder, 'holdfast ladder worker'
on the others.
"""
EPILOG = """\
ladder.yaml
  text: [c4/*.jsonl.gz]                    # read once at most, unless max_passes says more
  tokenizer: allenai/OLMo-1B-hf            # or vocab_size: 8192, and one is trained on the text
  architecture: olmo2                      # any decoder of transformers with the usual names
  sizes:
    15M: {layers: 3, width: 192, heads: 3}
    30M: {layers: 6, width: 384, heads: 6}
  budgets: [4B, 8B, 16B, 32B, 64B, 128B]
  context: 1024
  batch_size: 256                          # windows a step
  learning_rate: 3.0e-4
  base_width: 192                          # muP: the rate holds at this width
  train: {bf16: true}                      # keys of 'holdfast train'
  evaluation: [{perplexity: held_out.jsonl, name: web}]

examples
  holdfast ladder train --config ladder.yaml --dry_run
  holdfast ladder train --config configs/ladder/tiny.yaml     # offline, a minute on two cores
"""


@dataclass(frozen=True, kw_only=True)
class LadderRequest(LadderSettings):
    """`holdfast ladder train`."""

    dry_run: Annotated[bool, Meta(yaml=False)] = False
    """Checks the request and lists the runs."""


COMMAND = Command(
    name=f"{PROG} train",
    request=LadderRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--config ladder.yaml [options]",
)
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    config="holdfast.papers.ladder.plan:ladder_config",
    execute="holdfast.papers.ladder.study:run_ladder",
    show="holdfast.papers.ladder.page:print_ladder",
    kind="holdfast.papers.ladder.study:LadderStudy",
    file_needed=True,
    prog=PROG,
)
WORKER, STATUS, REPORT = STUDY.steps


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast ladder --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    step, *rest = argv
    known = ("train", *study_commands.STEPS)
    if step not in known:
        raise ConfigError(
            f"expected 'holdfast ladder' with one of {', '.join(known)}, got '{step}'.{did_you_mean(step, known)}"
        )
    return STUDY.run(rest if step == "train" else argv)
