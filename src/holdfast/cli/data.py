"""`holdfast data`: text to a corpus, and a corpus to passages that a model knows."""

from __future__ import annotations

import importlib

from holdfast.config.command_line import read_step

HELP = """\
usage: holdfast data prepare|select [options]

  prepare   files and folders of text to one corpus: by date, each document once, a part held out
  select    passages of a corpus that a model knows, ranked by its perplexity, and a sample to probe with

examples
  holdfast data prepare --input news/ --after 2024-01-01 --output new.jsonl
  holdfast train --config run.yaml --dataset_name new.jsonl
  holdfast data select --model base --input corpus/ --tokens 20000000 \\
      --output passages

'holdfast data prepare --help', and so on, explains the options. Public data sets need no command: 'holdfast train'
reads them from the hub by a template of prompt and completion; configs/data/ has ready ones.
"""

STEPS = {
    "prepare": "holdfast.cli.data_prepare",
    "select": "holdfast.cli.data_select",
}
"""Step: the module that runs it."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast data --help`."""
    step, rest = read_step(argv, STEPS, command="holdfast data", text=HELP)
    return int(importlib.import_module(STEPS[step]).run(rest))
