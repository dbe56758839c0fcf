"""What cases are about: one small example of everything that holdfast makes, made once by its own commands."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commandline
import gallery
from commandline import Outcome
from fuzz.case import Case, verdict

MADE = ("train-direct", "evaluate", "sweep", "update", "residual-study", "merge-ties")
"""Steps of the gallery whose results are damaged."""
RESUMABLE = ["train", "--config", "train.yaml", "--retention", "label_annealing:weight=1.0,teacher=cached"]
RESUMABLE += ["--save_steps", "2", "--output_dir", "half"]
"""A run that is stopped when its second checkpoint is there, and the same run to its end."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of a case."""

    what: str
    verdict: str
    outcome: Outcome
    wrong: str | None
    """What is wrong with the result of an accepted request."""
    seconds: float


SHOWN = [
    ["report", "runs/direct"],
    ["compare", "runs/direct"],
    ["report", "measured"],
    ["compare", "measured:base", "measured:math"],
    ["sweep", "status", "study"],
    ["sweep", "report", "study"],
]
"""Commands that show what is there; what they say of it undamaged lies in the stage."""


def said_by(words: list[str]) -> str:
    """The stage's file with what a command says."""
    return f"said-{'-'.join(words).replace('/', '-').replace(':', '-')}.txt"


class Stage:
    """A folder with everything in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Models, data, requests, and what the commands make of them. Takes a minute or two.

        Raises:
            RuntimeError: a command failed.
        """
        gallery.material_in(self.folder)
        gallery.make(self.folder, [(name, words) for name, words in gallery.STEPS if name in MADE])
        run(
            ["evaluate", "base", "math", "--suite", "suite.yaml", "--output_dir", "first", "--cache", "shared"],
            self.folder,
        )
        whole = run([*RESUMABLE[:-1], "whole"], self.folder)
        half = run(RESUMABLE, self.folder, case=Case(what="", words=RESUMABLE, valid=None, around=interrupted))
        if whole.code != 0 or half.code != 130:
            raise RuntimeError(f"{whole.err}\n{half.err}")
        for words in SHOWN:
            (self.folder / said_by(words)).write_text(run(words, self.folder).out)

    def offer(self, folder: Path, copies: Iterable[str] = ()) -> None:
        """Fills a new folder: what a case changes is copied, with its times, the rest is linked."""
        folder.mkdir(parents=True)
        for entry in self.folder.iterdir():
            if entry.name.startswith("."):
                continue
            if entry.name not in copies:
                (folder / entry.name).symlink_to(entry)
            elif entry.is_dir():
                shutil.copytree(entry, folder / entry.name, symlinks=True)
            else:
                shutil.copy2(entry, folder / entry.name)

    def play(self, case: Case, folder: Path) -> Played:
        """Runs a case in a new folder."""
        self.offer(folder, case.copies)
        more = case.prepare(folder)
        began = time.monotonic()
        outcome = run(case.words, folder, case=case)
        wrong = case.check(folder, outcome) if outcome.code == 0 else None
        return Played(
            what=f"{case.what}: {more}" if more else case.what,
            verdict=verdict(case, outcome, wrong),
            outcome=outcome,
            wrong=wrong,
            seconds=time.monotonic() - began,
        )


@contextlib.contextmanager
def interrupted(folder: Path) -> Iterator[list[str]]:
    """Ctrl-C in the fifth step."""
    from holdfast.training.mixin import RetentionMixin

    step = RetentionMixin.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 4:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    RetentionMixin.training_step = training_step  # type: ignore[method-assign]
    yield []


def preload() -> None:
    """Imports what commands need, so that every case starts with it."""
    os.environ.update(commandline.QUIET)
    commandline.preload()
    import holdfast.cli

    for module in pkgutil.iter_modules(holdfast.cli.__path__, "holdfast.cli."):
        importlib.import_module(module.name)
    from holdfast.runs.settings import known_settings

    known_settings()


def run(words: list[str], folder: Path, *, case: Case | None = None, **how: object) -> Outcome:
    """One command in a fork of this process; with a case, in what is around it and within its limits."""

    def work() -> int:
        from holdfast.cli.main import main

        sys.argv = ["holdfast", *words]
        if case is None:
            return main(words)
        os.environ.update(case.environment)
        with contextlib.ExitStack() as stack:
            return main([*words, *stack.enter_context(case.around(folder))])

    if case is not None:
        how = {"limit": case.limit, "memory": case.memory, "may_die": True, **how}
    return commandline.in_process(work, folder, name="command", **how)  # type: ignore[arg-type]
