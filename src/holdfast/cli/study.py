"""`holdfast study`: the papers' studies from their files: a ladder, an overtraining study, a study
of the residual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.cli import study_commands
from holdfast.config.command_line import Command, find_option, read_step
from holdfast.config.help import Section, help_topic
from holdfast.errors import ConfigError
from holdfast.papers.ladder.settings import LadderSettings
from holdfast.papers.overtraining.settings import OvertrainingSettings
from holdfast.papers.residual.settings import StudySettings

PROG = "holdfast study"

HELP = """\
usage: holdfast study run FILE [options]
       holdfast study status|report FOLDER [options]
       holdfast study worker [options]

Runs a study of a paper from its YAML file. The keys of the file say which study it is:

  sizes     a ladder: pre-trains one model at rising token budgets, with one run per budget
  ladder    overtraining: what noise, few bits, pruning and fine-tuning cost each checkpoint of a ladder
  families  the instruction residual: budgets, siblings, derived models and scales

  run       begins or continues a study; options override the file's keys
  status    shows the progress
  report    prints the table and writes the page again
  worker    joins a study that another process or machine has begun

examples
  holdfast study run configs/ladder/tiny.yaml --dry_run  # the runs
  holdfast study run configs/ladder/tiny.yaml            # offline, a minute
  holdfast study run configs/overtraining/tiny.yaml      # uses that ladder
  holdfast study status runs/ladder-tiny --watch
  holdfast study report runs/ladder-tiny

'holdfast study run FILE --help' explains the options of that file's study.
"""

LADDER_TEXT = """\
Pre-trains a ladder: decoders of the sizes that you name, at rising token budgets. Every budget is a run of its own,
and its learning rate ends at zero. The text is tokenised once into memory-mapped windows that all runs share. Runs of
a size begin with the same weights and read the same windows in the same order. Each run has an ordinary run folder of
'holdfast train' and is measured on the entries that you name. 'holdfast probe --ladder' reads the ladder's files.
Interrupted? Run the same command to continue. Several machines: use one --storage and a shared folder, and start
'holdfast study worker' on the others.
"""
LADDER_FILE = """\
ladder.yaml
  # read at most once, unless max_passes allows more
  text: [c4/*.jsonl.gz]
  # or vocab_size: 8192, and one is trained on the text
  tokenizer: allenai/OLMo-1B-hf
  # any decoder of transformers with the usual names
  architecture: olmo2
  sizes:
    15M: {layers: 3, width: 192, heads: 3}
    30M: {layers: 6, width: 384, heads: 6}
  budgets: [4B, 8B, 16B, 32B, 64B, 128B]
  context: 1024
  batch_size: 256                          # windows a step
  learning_rate: 3.0e-4
  base_width: 192                          # muP: learning_rate is for this width
  train: {bf16: true}                      # keys of 'holdfast train'
  evaluation: [{perplexity: held_out.jsonl, name: web}]
"""
OVERTRAINING_TEXT = """\
Takes the checkpoints of a ladder (one model at rising pre-training budgets) and modifies all of them in the same ways.
Without training: noise, quantisation and pruning. With training: fine-tuning on your tasks, with various learning
rates, batch sizes and schedules, with LoRA, and with retention methods. Shows what each modification costs at each
budget, at which budget longer pre-training begins to harm (the inflection point), which learning rate is best on
validation data at each budget, and whether retention methods change these results. For tasks with images, checkpoints
get a vision tower first (align). Each figure is paired with that of the unmodified checkpoint. Intervals cover seeds
and samples. Interrupted? Run the same command to continue.
"""
OVERTRAINING_FILE = """\
overtraining.yaml
  # as a ladder study writes it, or a list of models with tokens
  ladder: runs/ladder/15M.yaml
  probe: {noise: [0.01, 0.03], quantize: [int4]}
  tasks:
    sentiment:
      train: {dataset_name: mr-train.jsonl}
      # chooses the learning rate of each budget
      validation: [{multiple_choice: mr-valid.jsonl}]
      learn: [{multiple_choice: mr-test.jsonl}]                 # is reported
  keep: [{perplexity: web.jsonl}, {task: arc_easy, num_fewshot: 5}]
  # keys of 'holdfast train'; 4 epochs, early stopping
  train: {per_device_train_batch_size: 64}
  arms:
    - direct
    - label_annealing: {weight: 1}
    - sfa
    - [{train: {use_peft: true}}, {label: LoRA}]
  vary:
    learning_rate: {log: [1.0e-5, 1.0e-3], points: 7}
  seeds: [0, 1, 2]
"""
RESIDUAL_TEXT = """\
Makes each model of a grid once and measures all in the same way. The grid: base and instruct model; both trained
further on each budget of new text; base + residual at each budget; residuals on sibling versions and derived models;
several scales. The page has the paper's tables with the paper's figures and yours, scores against the number of new
tokens, and whether residuals transfer. Interrupted? Run the same command to continue. Several machines: use one
--storage and a shared folder, and start 'holdfast study worker' on the others.
"""
RESIDUAL_FILE = """\
study.yaml
  families:                             # pairs of base and instruct
    llama-3:
      base: meta-llama/Meta-Llama-3-8B
      instruct: meta-llama/Meta-Llama-3-8B-Instruct
    llama-3.1:
      base: meta-llama/Llama-3.1-8B
      instruct: meta-llama/Llama-3.1-8B-Instruct
  # families whose models are trained further on the new text (default: the first)
  continued: [llama-3]
  starts: [base, instruct]              # models of a family that are trained further
  corpus: [news/]
  after: 2023-12-01
  budgets: [100M, 500M, 1B]             # one column each
  derived: {docchat: cerebras/Llama3-DocChat-1.0-8B}
  scales: [1]                           # of the residual
  # also fine-tune the continued base on your conversations
  retuned: {dataset_name: conversations.jsonl}
  seeds: [0]
  train: {learning_rate: 1.0e-5, bf16: true}
  evaluation: {suites: [instruction_residual]}
  output_dir: runs/residual
"""


WORKER, STATUS, REPORT = study_commands.step_commands(PROG)
STEPS = (WORKER, STATUS, REPORT)


def study_command(
    request: type[Any], description: str, file: str, kind: str
) -> study_commands.StudyCommand:
    """One kind of study: its settings, the text of `holdfast study run FILE --help`, an example of
    its file, and its class."""
    command = Command(
        name=f"{PROG} run",
        request=request,
        description=description,
        sections=(Section(name="yaml", summary="an example of the file with its keys", text=file),),
        usage="FILE [options]",
        more=(study_commands.dry_run("jobs"),),
    )
    return study_commands.StudyCommand(command=command, steps=STEPS, kind=kind, file_needed=True)


STUDIES: dict[str, study_commands.StudyCommand] = {
    "ladder": study_command(
        LadderSettings,
        LADDER_TEXT,
        LADDER_FILE,
        "holdfast.papers.ladder.study:LadderStudy",
    ),
    "overtraining": study_command(
        OvertrainingSettings,
        OVERTRAINING_TEXT,
        OVERTRAINING_FILE,
        "holdfast.papers.overtraining.study:OvertrainingStudy",
    ),
    "residual": study_command(
        StudySettings,
        RESIDUAL_TEXT,
        RESIDUAL_FILE,
        "holdfast.papers.residual.study:ResidualStudy",
    ),
}
MARKS: dict[str, str] = {
    "sizes": "ladder",
    "ladder": "overtraining",
    "families": "residual",
    "starts": "residual",
}
"""A key of a file: the study that it is of. A study of the residual in a small world names no
families."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast study --help`."""
    step, words = read_step(argv, ("run", *study_commands.STEPS), command=PROG, text=HELP)
    if step != "run":
        return study_commands.run_step(STEPS, step, words)
    if words and not words[0].startswith("-"):
        words = ["--config", *words]
    file = find_option(words, "config")
    if file is None and help_topic(words) is not None:
        read_step(["--help"], (), command=PROG, text=HELP)
    if file is None:
        raise ConfigError(
            f"FILE is missing: expected a study's file, as in '{PROG} run study.yaml'."
        )
    return STUDIES[kind_of_file(Path(file))].run(words)


def kind_of_file(path: Path) -> str:
    """Which study a file is of.

    Raises:
        ConfigError: the file cannot be read, or has the keys of none or of several studies.
    """
    from holdfast.config.yaml_file import read_yaml

    keys = read_yaml(path, option="FILE").values
    kinds = sorted({MARKS[key] for key in MARKS.keys() & keys})
    if len(kinds) == 1:
        return kinds[0]
    came = f"the keys of {' and '.join(kinds)}" if kinds else f"{', '.join(keys) or 'no keys'}"
    raise ConfigError(
        "expected the file of a ladder (it has 'sizes'), of an overtraining study ('ladder') or of "
        f"a study of the residual ('families' or 'starts'), got {came}. Other studies have "
        "commands of their own: sweep, sequence, diagnose.",
        source=str(path),
    )
