"""Commands run as `python -m holdfast` runs them, each in a process of its own, without importing the libraries anew
each time."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DATASETS_OFFLINE": "1",
    "COLUMNS": "120",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "CUDA_VISIBLE_DEVICES": "",
    "HOLDFAST_DEBUG": "",
}
"""Environment of every command: one thread, no network, no accelerator, plain text."""
LIMIT = 1500
"""Seconds that a command may take."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str
    signal: int = 0
    """What ended it, 0 where it ended by itself."""

    @property
    def timed_out(self) -> bool:
        """Whether it took longer than it may."""
        return self.signal == signal.SIGALRM


def preload() -> None:
    """Imports what commands need of other packages, so that their processes start with it."""
    import lm_eval.api.task
    import lm_eval.tasks  # noqa: F401
    import optuna  # noqa: F401
    import pandas  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers
    import trl
    from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer  # noqa: F401

    assert torch and transformers and trl


def started(
    work: Callable[[], int | None], folder: Path, logs: tuple[Path, Path], *, limit: float, memory: int | None = None
) -> int:
    """A fork of this process that does `work` in a group of its own and ends with its code; the id of the fork.

    Args:
        work: the function.
        folder: its working directory, with a cache in it.
        logs: where its output and its errors go.
        limit: seconds that it may take.
        memory: bytes that it may map beyond what this process has.
    """
    for log in logs:
        log.write_bytes(b"")  # it may be killed before it has opened them
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        # whoever of the two is first: the group has to be there when it gets a signal
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    code = 1
    gc.freeze()  # every run asks for a full collection, which would look through all that the libraries made
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell started in the background
        os.chdir(folder)
        index = Path(os.environ["HOLDFAST_CACHE"]) / "harness"
        for place in (folder / "cache", index):
            place.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # the index of the harness's tasks takes seconds: one for all tests
            (folder / "cache" / "harness").symlink_to(index)
        os.environ["HOLDFAST_CACHE"] = str(folder / "cache")
        for number, log in zip((1, 2), logs, strict=True):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        # those of a test are pytest's
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit)
        if memory is not None:
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
        code = work() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def in_process(
    work: Callable[[], int | None],
    folder: Path,
    *,
    name: str = "work",
    stop_when: Callable[[], bool] | None = None,
    stop_with: int = signal.SIGINT,
    limit: float = LIMIT,
    memory: int | None = None,
    may_die: bool = False,
) -> Outcome:
    """Runs a function in a fork of this process, with `folder` as its working directory and a cache in it.

    Args:
        work: the function.
        folder: where its output goes, too.
        name: of the files with its output.
        stop_when: as soon as this says so, the process and those that it started get a signal.
        stop_with: the signal; by default what Ctrl-C sends.
        limit: seconds that it may take.
        memory: bytes that it may map beyond what this process has.
        may_die: whether an end by a signal is an outcome.

    Raises:
        RuntimeError: it ended by a signal, as it does when it takes too long.
    """
    logs = (folder / f".{name}.out", folder / f".{name}.err")
    child = started(work, folder, logs, limit=limit, memory=memory)
    ended, status = 0, 0
    while stop_when is not None and not ended:
        if stop_when():
            os.killpg(child, stop_with)
            break
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        status = os.waitpid(child, 0)[1]
    out, err = (log.read_text(errors="replace") for log in logs)
    if not os.WIFSIGNALED(status):
        return Outcome(code=os.WEXITSTATUS(status), out=out, err=err)
    with contextlib.suppress(ProcessLookupError):  # those that it started
        os.killpg(child, signal.SIGKILL)
    if not may_die:
        raise RuntimeError(f"{name} ended by signal {os.WTERMSIG(status)}:\n{err[-2000:]}")
    return Outcome(code=-1, out=out, err=err, signal=os.WTERMSIG(status))


def holdfast(words: Sequence[str], folder: Path, *, stop_when: Callable[[], bool] | None = None) -> Outcome:
    """One command of the tree under test; see `in_process`."""

    def work() -> None:
        sys.argv = ["holdfast", *words]
        runpy.run_module("holdfast", run_name="__main__", alter_sys=True)

    return in_process(work, folder, name=words[0] if words else "none", stop_when=stop_when)
