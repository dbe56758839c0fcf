"""A run over several nodes: one folder that all of them see, one model, one data set.

Processes agree on a checkpoint by reading what each wrote, the first one writes records, and all
read the result when it is whole. On folders of their own they would disagree about what is there:
some would go on from a checkpoint and wait for others that begin anew. So it is looked for before
anything is written.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, RunFolderError

SEEN_WITHIN = 20.0
"""Seconds in which a file of one node has to be there on the others: network file systems remember
for a while that there was none."""


def nodes(environ: Mapping[str, str] = os.environ) -> int:
    """Nodes of the run that this process belongs to, as its launcher says; 1 without one."""
    world = int(environ.get("WORLD_SIZE") or 1)
    return max(1, world // max(1, int(environ.get("LOCAL_WORLD_SIZE") or world)))


def check_shared_folder(folder: Path, args: Any) -> None:
    """Checks that all processes see one folder; each has to call it. The folder is there on the
    first one.

    Args:
        folder: of the run.
        args: its `TrainingArguments`, whose device starts the process group.

    Raises:
        RunFolderError: some see another one, on every process.
    """
    if nodes() == 1:
        return
    from accelerate.utils import broadcast_object_list, gather_object, wait_for_everyone

    assert args.device is not None
    first = args.process_index == 0
    name = broadcast_object_list([f".seen-{uuid.uuid4().hex}" if first else ""])[0]
    if first:
        (folder / name).touch()
    try:
        wait_for_everyone()
        until = time.monotonic() + SEEN_WITHIN
        while not (sees_file := _is_in(name, folder)) and time.monotonic() < until:
            time.sleep(0.2)
        without = [rank for rank, sees in enumerate(gather_object([sees_file])) if not sees]
    finally:
        if first:
            (folder / name).unlink(missing_ok=True)
    if without:
        ranks = ", ".join(map(str, without))
        see = f"processes {ranks} of {args.world_size} see"
        if len(without) == 1:
            see = f"process {ranks} of {args.world_size} sees"
        raise RunFolderError(
            "Expected one output_dir shared by all nodes, such as a folder on a network file "
            f"system, but {see} another {folder}. Give a shared folder."
        )


def check_same(found: Mapping[str, Any], args: Any) -> None:
    """Checks that all processes read the same; each has to call it.

    Args:
        found: hashes by what they are of, in words.
        args: the run's `TrainingArguments`.

    Raises:
        ConfigError: they do not, on every process.
    """
    if nodes() == 1:
        return
    from accelerate.utils import gather_object

    everyones = gather_object([dict(found)])
    problems = []
    for what, expected in everyones[0].items():
        others = [rank for rank, hashes in enumerate(everyones) if hashes.get(what) != expected]
        if others:
            problems.append(
                f"{what} differs between nodes: process {others[0]} reads other files than process "
                "0. Copy the same files to all nodes, or name a shared folder."
            )
    if problems:
        raise ConfigError(problems)


def _is_in(name: str, folder: Path) -> bool:
    try:
        # a listing asks the server anew where a look at the name would not
        return name in os.listdir(folder)
    except OSError:
        return False
