"""`holdfast fisher`: the diagonal Fisher information of a model on old data, for EWC and for Fisher
merging."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.checkpoint_options import missing_folders
from holdfast.cli.console import print_line, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, part_of
from holdfast.errors import Problem
from holdfast.runs.fisher import FisherSettings
from holdfast.support.environment import shown_seconds

DESCRIPTION = """\
How much do the model's predictions on some data depend on each weight? Computes the diagonal of the Fisher
information: the squared gradients of the log-likelihood, sample by sample, averaged over trained tokens. The result
is a folder of its own, and the model's folder does not change. EWC (retention method 'ewc') and 'holdfast merge
--method fisher' read it.
"""
EPILOG = """\
examples
  # writes base-fisher beside base
  holdfast fisher base --data old_task.jsonl
  holdfast fisher base --data old_task.jsonl --samples 1024 \\
      --estimator sampled --output_dir old-fisher

  # then keep what the old task needs while learning the new one
  holdfast train --model_name_or_path base --dataset_name train.jsonl \\
      --retention ewc:fisher=base-fisher,coefficient=10

  # or average two models, each weight by its Fisher information
  holdfast merge math code --method fisher --fisher math-fisher code-fisher \\
      --output_dir both

--estimator
  empirical   gradients for the data's own labels (the default)
  sampled     gradients for labels drawn from the model: the true Fisher information; one more forward pass per sample
"""


@dataclass(frozen=True, kw_only=True)
class _Source:
    model: Annotated[str, Meta(positional=True, metavar="MODEL")]
    """Folder or hub id."""
    data: Annotated[str, Meta(metavar="FILE")]
    """Data of the old task: file, folder or hub id, in any format that 'holdfast train' reads."""


@dataclass(frozen=True, kw_only=True)
class FisherRequest(FisherSettings, _Source):
    """`holdfast fisher`: the arguments of `compute_fisher`."""

    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder to write (default: MODEL-fisher beside MODEL). After an interruption it is either
    complete or absent."""
    overwrite: bool = False
    """Replace a Fisher diagonal that exists in the output folder."""

    def problems(self) -> list[str | Problem]:
        """A model or a GPU that is not there."""
        return [*missing_folders(self, "model"), *super().problems()]


COMMAND = Command(
    name="holdfast fisher",
    request=FisherRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="MODEL --data FILE [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast fisher --help`."""
    request = COMMAND.read(argv)

    from holdfast.runs.fisher import compute_fisher

    began, say = time.monotonic(), functools.partial(print_line, stdout_console())
    with stoppable():
        fisher = compute_fisher(
            request.model,
            request.data,
            part_of(request, FisherSettings),
            output_dir=request.output_dir,
            overwrite=request.overwrite,
            say=say,
        )
    size = sum(entry.size for entry in fisher.reader.entries.values())
    seconds = shown_seconds(time.monotonic() - began)
    say(
        f"{fisher.folder}: {size:,} parameters, {fisher.record['tokens']:,} trained tokens, "
        f"{seconds}"
    )
    return 0
