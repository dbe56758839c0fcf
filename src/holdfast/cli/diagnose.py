"""`holdfast diagnose`: has a fine-tuned model forgotten, or does it only not show what it knows?"""

from __future__ import annotations

from holdfast.cli import study_commands
from holdfast.config.command_line import Command
from holdfast.config.help import Section
from holdfast.studies.stages.settings import StagesSettings

PROG = "holdfast diagnose"

DESCRIPTION = """\
A score that fell after fine-tuning may be a shifted text pattern, which an epoch of plain text brings back (pseudo
forgetting), or knowledge that is gone (actual forgetting); the remedy differs. This restores every checkpoint on text
that the base finds easy, restores the base in the same way as a control, and compares base, fine-tuned, restored and
control question by question. It says of each checkpoint and task: gained, no, pseudo or actual forgetting, not yet
restored, or inconclusive and why. Interrupted? The same command continues. Several machines: --help study.
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
  # keys of 'holdfast train'; the paper's where nothing is said
  restore: {learning_rate: 3.0e-5}
  doses: [1, 4]                      # with four times as much text, too: is it lost, or not back yet?
  margin: 1pt                        # a loss that does not matter
"""
GENERATED = """\
No text like the base's pre-training at hand? --corpus generated has the base write it: each text after the
beginning-of-text token (else the end token), at temperature 1 with nothing left out, until --tokens and
--probing_passages (500) are there. It is not ranked: what a model draws from itself teaches it nothing on average,
while the easiest part of it is text that repeats itself. Otherwise it goes the way of a file: texts/generated.jsonl.
It is drawn with --seed, kept in the cache as it comes, and drawn once for a base.

What it cannot tell: a base writes what it knows. Where its text holds the answers, restoring teaches them again, and
what was forgotten looks like pseudo forgetting. Actual forgetting is as sure as with a file; pseudo forgetting is not.
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
        Section(name="yaml", summary="stages.yaml: its keys, by an example", text=STAGES),
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
