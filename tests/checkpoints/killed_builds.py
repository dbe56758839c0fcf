"""Builds in a forked process that kills itself at the n-th call that changes the disk."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_folders import llama_shapes, random_model, write_folder
from holdfast.checkpoints.build import Built
from holdfast.checkpoints.merge import merge
from holdfast.checkpoints.residual import extract_residual

CALLS = ("pwrite", "rename", "unlink", "rmdir", "ftruncate", "mkdir", "fsync")
TOKENS = [f"t{i}" for i in range(40)]


def in_child(work: Callable[[], Any]) -> int:
    """Runs in a forked process; its wait status (0: all went well)."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def at_call(number: int, act: Callable[[], None], calls: tuple[str, ...] = CALLS) -> None:
    """From now on the process acts before the `number`-th call (from 0) that changes the disk."""
    done = iter(range(10**9))
    for name in calls:
        real = getattr(os, name)

        def call(*arguments: Any, real: Callable[..., Any] = real, **more: Any) -> Any:
            if next(done) == number:
                act()
            return real(*arguments, **more)

        setattr(os, name, call)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Parents:
    """A base in 6 shards and two fine-tunes."""

    def __init__(self, folder: Path, *, dtype: str = "BF16") -> None:
        base = random_model(0, dtype, llama_shapes(layers=3))
        models = [base, *(random_model(i, dtype, llama_shapes(layers=3), near=base) for i in (1, 2))]
        names = ("base", "math", "code")
        self.folder, self.output = folder, folder / "out"
        self.parents = [
            write_folder(folder / n, m, shards=6, tokens=TOKENS, files={"chat_template.jinja": n})
            for n, m in zip(names, models, strict=True)
        ]

    def merge(self, output: Path | None = None, **more: Any) -> Built:
        request = {"method": "ties", "density": 0.4, "base": self.parents[0], "workers": 2, "overwrite": True}
        return merge(self.parents[1:], output or self.output, **(request | more))

    def extract(self, output: Path | None = None, **more: Any) -> Built:
        return extract_residual(self.parents[1], self.parents[0], output or self.output, overwrite=True, **more)


def hidden(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.startswith(".")]


def half_done(parents: Parents) -> None:
    def work() -> None:
        at_call(4, die, ("rename",))
        parents.merge(workers=1)

    assert in_child(work) != 0 and len(list(hidden(parents.folder)[0].glob("*.safetensors"))) == 4
