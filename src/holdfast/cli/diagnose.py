"""`holdfast diagnose`: has a fine-tuned model forgotten, or does it only not show what it knows?"""

from __future__ import annotations

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.help import Section
from holdfast.studies.stages.settings import StagesSettings

PROG = "holdfast diagnose"

DESCRIPTION = """\
If a score fell after fine-tuning, is the knowledge gone (actual forgetting)? Or is it only hidden because the text
pattern shifted, so that an epoch of plain text brings the score back (pseudo forgetting)? The remedies differ. This
command restores every checkpoint: it trains the checkpoint on text that the base finds easy. As a control, the base is
restored, too. Base, fine-tuned, restored and control are compared question by question. The verdict for each
checkpoint and task is: gained, no forgetting, pseudo forgetting, actual forgetting, not yet restored, or inconclusive
with the reason. Interrupted? Run the same command to continue. Several machines: --help study.
"""
STAGES = """\
stages.yaml
  base: MODEL
  train:                             # or tuned: [CHECKPOINT, ...]
    dataset_name: alpaca.jsonl
    num_train_epochs: 10
    learning_rate: 2.0e-5
  corpus: [web/]                     # text like the base's pre-training; or generated
  suite: forgetting_stages           # or entries of your own under keep:
  # keys of 'holdfast train'; default: the paper's values
  restore: {learning_rate: 3.0e-5}
  doses: [1, 4]                      # restores once, and again with four times the text
  margin: 1pt                        # a loss that does not matter
"""
GENERATED = """\
You have no text like the base's pre-training data? With --corpus generated the base writes it: each text starts after
the beginning-of-text token (or else the end token) and is sampled at temperature 1 without truncation. The base stops
when there is enough text for --tokens and --probing_passages (500). The text is not ranked by perplexity, because the
easiest samples are repetitive. Ranking finds text that the base already knows. Its own samples need no ranking: on
average, they teach it nothing. The texts are stored in texts/generated.jsonl and then used like a file. They depend on
--seed, are cached while they are written, and are generated once per base.

Limit: a base writes what it knows. If its text contains the answers, restoring teaches them again, and forgotten
knowledge looks like pseudo forgetting. A verdict of actual forgetting is as reliable as with a file; a verdict of
pseudo forgetting is less reliable.
"""
EXAMPLES = """\
  # the steps that would be taken
  holdfast diagnose --config stages.yaml --dry_run
  holdfast diagnose --config stages.yaml --with_retention label_annealing
  holdfast diagnose --config stages.yaml --doses 1 4
  # offline, some minutes on two cores
  holdfast diagnose --config configs/stages/tiny.yaml
  holdfast diagnose status runs/diagnosis --watch
  # verdicts and page once more, of what was measured
  holdfast diagnose report runs/diagnosis
"""
EPILOG = """\
examples
  holdfast diagnose --base meta-llama/Llama-2-7b-hf \\
      --tuned run/checkpoint-100 run/checkpoint-200 --corpus web.jsonl.gz \\
      --tokens 5000000 --suite forgetting_stages
  holdfast diagnose --base base --tuned tuned --corpus generated \\
      --tokens 1000000 --suite forgetting_stages
"""


COMMAND = Command(
    name=PROG,
    request=StagesSettings,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="examples", summary="more commands", text=EXAMPLES),
        Section(name="generated", summary="text that the base writes", text=GENERATED),
        Section(name="yaml", summary="an example of stages.yaml with its keys", text=STAGES),
    ),
    usage="--base MODEL --tuned CHECKPOINT...|--train FILE --corpus FILE... [options] | --config FILE | "
    "worker | status | report",
    more=(study_commands.dry_run("steps"),),
)
WORKER, STATUS, REPORT = study_commands.step_commands(PROG)
STUDY = study_commands.StudyCommand(
    command=COMMAND,
    steps=(WORKER, STATUS, REPORT),
    kind="holdfast.studies.stages.study:StagesStudy",
)
run = STUDY.run
