"""Two processes on this machine, over gloo: how the tests see what more than one rank does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


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
