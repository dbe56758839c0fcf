"""Checkpoint folders of a run: finding whole ones, removing old ones, and putting files on the disk for good."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def checkpoints_in(folder: Path) -> Iterator[Path]:
    """Whole `checkpoint-N` folders (the trainer's state is the last file of one)."""
    if folder.is_dir():
        for path in folder.iterdir():
            if (
                path.name.startswith("checkpoint-")
                and path.name[11:].isdigit()
                and (path / "trainer_state.json").is_file()
            ):
                yield path


def last_checkpoint(folder: Path) -> Path | None:
    """The whole checkpoint with the highest step, or None."""
    return max(checkpoints_in(folder), key=lambda p: int(p.name[11:]), default=None)


def remove_folder(path: Path) -> None:
    """Deletes a folder tree if it is there; renamed first, so that no half-deleted folder passes for a whole one."""
    if path.is_dir():
        doomed = path.with_name(f".deleting-{path.name}")
        with contextlib.suppress(FileNotFoundError):  # another process may be deleting the same folder
            shutil.rmtree(doomed)
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """fsync of every file below `path`, so that a rename is never ahead of the content."""
    for file in path.rglob("*"):
        if file.is_file():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
