"""`holdfast data`: text to a corpus, and a corpus to passages that a model knows."""

from __future__ import annotations

import importlib

from holdfast.config.command_line import read_step

HELP = """\
usage: holdfast data prepare|select [options]

  prepare   make one corpus of files and folders of text: select by date, remove duplicates, hold out a part
  select    find passages of a corpus that a model knows, by perplexity; also draws a random sample for probing

examples
  holdfast data prepare --input news/ --after 2024-01-01 --output new.jsonl
  holdfast train --config run.yaml --dataset_name new.jsonl
  holdfast data select --model base --input corpus/ --tokens 20000000 \\
      --output passages

'holdfast data prepare --help' and 'holdfast data select --help' explain the options. Public data sets need neither
command: 'holdfast train' reads them from the hub, with a template for prompt and completion. configs/data/ has
templates for many.
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
