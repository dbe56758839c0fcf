"""Two processes on this machine, over gloo: how the tests see what more than one rank does."""

from __future__ import annotations

import functools
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import commandline


def launch(worker: Path, out: Path, *words: str, timeout: int = 400) -> Path:
    """Runs a worker script by torchrun in two processes of one thread each, and gives `out` back.

    Args:
        worker: the script; gets `out` and `words`.
        out: a folder for what it writes.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            "2",
            str(worker),
            str(out),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def fork(worker: Path, out: Path, *words: str, timeout: int = 250) -> Path:
    """What `launch` does, in forks of this process, which have the libraries: each of torchrun's processes takes ten
    seconds to import them."""
    commandline.preload()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}

    def work(rank: int) -> None:
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, PartialState, GradientState):
            state._reset_state()  # of a trainer of this process, which was alone
        os.environ |= {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            **address,
        }
        sys.argv = [str(worker), str(out), *words]
        runpy.run_path(str(worker), run_name="__main__")

    logs = [(out / f".{rank}.out", out / f".{rank}.err") for rank in (0, 1)]
    ranks = [commandline.started(functools.partial(work, rank), out, logs[rank], limit=timeout) for rank in (0, 1)]
    ended = [os.waitpid(rank, 0)[1] for rank in ranks]
    assert ended == [0, 0], "\n".join(errors.read_text(errors="replace")[-3000:] for _, errors in logs)
    return out
