"""Checkpoint folders of a run: their names, which are there, removing old ones, putting files on
the disk for good."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from holdfast.checkpoints.writer import fsync_path
from holdfast.errors import RunFolderError
from holdfast.support.leftovers import remove_unless_held

SAVING = ".saving"
"""Where a checkpoint grows until it is whole."""
_NAME = re.compile(r"checkpoint-([1-9][0-9]*)")


def step_of(path: Path) -> int | None:
    """The optimiser step in the name of a checkpoint; None for another name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def checkpoints_in(folder: Path, *, before: int | None = None) -> list[Path]:
    """The `checkpoint-N` folders of a run by step, the last one last, whole or not.

    Args:
        folder: the run's.
        before: leaves out those of this step and later ones.
    """
    by_step: dict[int, Path] = {}
    for path in _named(folder):
        step = step_of(path)
        if path.is_dir() and step is not None and (before is None or step < before):
            by_step[step] = path
    return [by_step[step] for step in sorted(by_step)]


def refuse_files(folder: Path) -> None:
    """Nothing but a folder may have a checkpoint's name.

    Raises:
        RunFolderError: a file has one.
    """
    for path in _named(folder):
        if not path.is_dir():
            raise RunFolderError(
                f"Expected a folder at {path}, where a checkpoint of the run belongs, found a "
                "file. Move or rename it."
            )


def _named(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if step_of(path) is not None]


def remove_folder(path: Path) -> None:
    """Deletes a folder tree if it is there; renamed first, so that no half-deleted folder passes
    for a whole one. Of a link the link goes."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    elif path.is_dir():
        doomed = path.with_name(f".deleting-{path.name}")
        with contextlib.suppress(
            FileNotFoundError
        ):  # another process may be deleting the same folder
            shutil.rmtree(doomed)
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Deletes what a killed process was still writing or deleting in a run's folder: half a
    checkpoint, half a result, temporary files."""
    for left in (folder / SAVING, folder / ".final", *folder.glob(".deleting-*")):
        shutil.rmtree(left, ignore_errors=True)
    for file in folder.rglob(".*.tmp"):
        remove_unless_held(file)


def sync_folder(path: Path) -> None:
    """fsync of every file below `path`, so that a rename is never ahead of the content."""
    for file in path.rglob("*"):
        if file.is_file():
            fsync_path(file)
