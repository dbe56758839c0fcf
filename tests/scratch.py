"""What tests write goes to memory where there is room: many wait until a disk has their files (fsync)."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

MEMORY = Path("/dev/shm")
PREFIX = "holdfast-tests-"
NEEDED = 8 * 2**30
"""Bytes that must be free, in the file system and in memory; all tests together write 1 to 2 GB."""
FOLDER = pytest.StashKey[Path]()
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is not None or not has_room():  # a worker of xdist has its folder below the one here
        return
    remove_left()
    config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=MEMORY))
    config.option.basetemp = str(config.stash[FOLDER] / "tests")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[FAILED] = exitstatus != pytest.ExitCode.OK


def pytest_unconfigure(config: pytest.Config) -> None:
    """Failed tests leave their files, until the next session."""
    if FOLDER in config.stash and not config.stash.get(FAILED, True):
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


def has_room() -> bool:
    """Tests load libraries that they compile, which a file system without execution does not allow."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return False
    return min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) > NEEDED


def remove_left() -> None:
    """The folders of sessions that are no more."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(PREFIX).partition("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)
