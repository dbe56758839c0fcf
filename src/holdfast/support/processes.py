"""Workers of a study as processes of their own, so that one that runs out of memory takes its trial
with it and nothing else.

Each gets its share of the cores, or a GPU; all are interrupted when the command that started them
ends, and one whose command was killed ends by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.errors import Interrupted
from holdfast.support.environment import cores

PARENT_VARIABLE = "HOLDFAST_SWEEP_PARENT"
"""Environment variable with the process that a worker was started by; without it the worker ends
too. A worker started by hand has none."""
MOST_RESTARTS = 3
PATIENCE_SECONDS = 60.0
"""How long an interrupted worker may take to write its checkpoint."""


class Workers:
    """Processes of one command; a context manager that starts them, and interrupts them when the
    body ends early.

    Args:
        command: of each worker.
        count: how many.
        logs: folder of their `worker-<n>.log`.
        environment: variables beside this process's own.
    """

    def __init__(
        self, command: Sequence[str], *, count: int, logs: Path, environment: Mapping[str, str]
    ) -> None:
        self.command, self.count, self.logs, self.extra = (
            list(command),
            count,
            logs,
            dict(environment),
        )
        self.processes: list[subprocess.Popen[bytes]] = []
        self.restarts = 0

    def __enter__(self) -> Workers:
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            for number in range(self.count):
                self.processes.append(self._start(number))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def ended(self) -> bool:
        """Whether none is at work any more."""
        return all(p.poll() is not None for p in self.processes)

    def restart_killed(self, say: Callable[[str], None]) -> None:
        """Puts another worker in the place of one that was killed, by the kernel for memory or by
        hand; a few times."""
        for number, process in enumerate(self.processes):
            code = process.poll()
            if code is not None and code < 0 and self.restarts < MOST_RESTARTS:
                self.restarts += 1
                say(f"Worker {number} was killed (signal {-code}). A new worker replaces it.")
                self.processes[number] = self._start(number)

    def last_words(self) -> list[str]:
        """The end of the log that was written to last; empty where there is none."""
        logs = sorted(self.logs.glob("worker-*.log"), key=lambda p: p.stat().st_mtime)
        if not logs:
            return []
        lines = [line for line in logs[-1].read_text(errors="replace").splitlines() if line.strip()]
        last_line = next(
            (line for line in reversed(lines) if line.startswith("error:")),
            lines[-1] if lines else "",
        )
        after = lines[lines.index(last_line) + 1 :][:6] if last_line in lines else []
        return [f"Last lines of {logs[-1]}:", *(f"  {line}" for line in [last_line, *after])]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with open(self.logs / f"worker-{number}.log", "ab") as log:
            return subprocess.Popen(
                self.command,
                env=self._environment(number),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C of the terminal comes to this process, which passes it on once
            )

    def _environment(self, number: int) -> dict[str, str]:
        import torch

        variables = {
            **os.environ,
            **self.extra,
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
        }
        if not variables.get(
            "OMP_NUM_THREADS"
        ):  # two threads a core are many times slower than one
            variables["OMP_NUM_THREADS"] = str(max(1, cores() // max(1, self.count)))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if torch.cuda.is_available() and torch.cuda.device_count() > 1:
            devices = (
                visible.split(",")
                if visible
                else [str(i) for i in range(torch.cuda.device_count())]
            )
            variables["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
        return variables

    def _stop(self) -> None:
        alive = [p for p in self.processes if p.poll() is None]
        for process in alive:
            # what a shell starts in the background ignores SIGINT, and so do these
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for process in alive:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def without_parent() -> bool:
    """Whether whoever started this worker was killed; False for one that was started by hand."""
    parent = os.environ.get(PARENT_VARIABLE)
    return bool(parent) and os.getppid() != int(str(parent))


def stop_without_parent() -> None:
    """Whoever started this worker was killed: nobody would see it work, and the next start would
    find the machine busy.

    Raises:
        Interrupted: it was.
    """
    if without_parent():
        raise Interrupted(
            "The command that started this worker has ended. The next worker will continue "
            "the trial."
        )


def python_module(*words: str) -> list[str]:
    """The command line of `holdfast WORDS` in this Python."""
    return [sys.executable, "-m", "holdfast", *words]


def good_workers() -> int:
    """One a GPU; without any, two on two and more cores."""
    import torch

    if torch.accelerator.is_available():
        return max(1, torch.accelerator.device_count())
    return 2 if cores() >= 2 else 1
