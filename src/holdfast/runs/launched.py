"""A study's training over several processes: the study itself is one process, so it starts what
`holdfast train --num_processes` starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, Interrupted, NotFinite, TrainingDiverged
from holdfast.runs.run_folder import ENDED
from holdfast.support.files import read_object

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig


def train_in_processes(
    wanted: TrainConfig, folder: Path, *, evaluations: Path | None = None
) -> None:
    """A run over several processes, through the launcher that `holdfast train` uses.

    Args:
        wanted: the configuration; `wanted.processes` is more than 1.
        folder: of the run.
        evaluations: where measurements are shared between runs; None: nowhere.

    Raises:
        TrainingDiverged, NotFinite: one of the processes ended so.
        HoldfastError: it failed.
        Interrupted: it was interrupted; the same call continues.
    """
    import yaml

    from holdfast.runs import launch
    from holdfast.runs.config import has_accelerator
    from holdfast.support.environment import EVALUATION_CACHE
    from holdfast.support.files import write_bytes_atomic

    request = folder.parent / f"{folder.name}.yaml"
    (folder / ENDED).unlink(missing_ok=True)
    write_bytes_atomic(request, yaml.safe_dump(wanted.resolved, sort_keys=False).encode())
    words = launch.command(
        wanted.launch, ["--config", str(request)], has_accelerator=has_accelerator()
    )
    environment = {**os.environ, launch.LAUNCHED: str(wanted.processes)}
    if evaluations is not None:
        environment[EVALUATION_CACHE] = str(evaluations)
    process = subprocess.Popen(words, env=environment)
    try:
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)  # a step's end and a checkpoint, then out
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if code == Interrupted.exit_code:
        raise Interrupted(f"Interrupted; finished work is kept in {folder}.")
    if code != 0:
        if (folder / ENDED).is_file():
            failure = read_object(folder / ENDED)
            (folder / ENDED).unlink()
            kinds = {kind.__name__: kind for kind in (TrainingDiverged, NotFinite)}
            raise kinds.get(str(failure.get("kind")), HoldfastError)(
                *str(failure.get("error")).split("\n")
            )
        raise HoldfastError(
            f"Training over {wanted.processes} processes ended with exit code {code}. Its output "
            "is above, or in a log."
        )
