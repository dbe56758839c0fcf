"""Merges onto real file systems that are full or read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from merge_case import Case

from checkpoint_folders import read_folder
from holdfast.checkpoints.merge import merge
from holdfast.errors import RunFolderError, StorageError


def fill(disk: Path, *, leave: int) -> Path:
    """Takes all the room but so many bytes."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(disk).free - leave))
    return ballast


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_without_room_is_noticed_before_anything_is_written(small_disk: Path, tmp_path: Path) -> None:
    case = Case(tmp_path / "in", output=small_disk / "out")
    fill(small_disk, leave=8192)
    with pytest.raises(StorageError, match=r"out needs [0-9,]+ bytes and the disk has [0-9,]+ left"):
        case.prepared().write(case.output, overwrite=True)
    case.check()


def test_a_disk_that_fills_up_in_the_middle_and_is_tidied_then(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else takes the room that was there at the beginning. What is finished is kept for the next try."""
    case = Case(tmp_path / "in", output=small_disk / "out", width=64, shards=7)
    ballast = fill(small_disk, leave=130_000)
    usage = shutil.disk_usage(small_disk)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    with pytest.raises(StorageError, match=r"Could not write .*out \(No space left on device\)"):
        case.prepared().write(case.output, overwrite=True, workers=1)
    assert case.now() == case.before
    (left,) = [p for p in small_disk.iterdir() if p.name.startswith(".")]
    kept = sorted(f.name for f in left.iterdir() if f.name != ".lock")
    assert 0 < len(kept) < 7
    ballast.unlink()
    built = case.prepared().write(case.output, overwrite=True)
    assert sorted(built.resumed) == kept
    case.prepared().write(tmp_path / "elsewhere")
    assert read_folder(case.output) == read_folder(tmp_path / "elsewhere")
    case.check(changed=case.output)


def test_a_disk_that_is_read_only(small_disk: Path, tmp_path: Path) -> None:
    case = Case(tmp_path / "in", output=small_disk / "out")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for output in (case.output, small_disk / "other", small_disk / "deep" / "er"):
        with pytest.raises(
            RunFolderError, match=r"cannot be written \(Read-only file system\)\. Choose a folder that you may write to"
        ):
            case.prepared().write(output, overwrite=True)
    case.check()
    merge([case.output, case.output], tmp_path / "from-there", sync=False)  # reading needs no right to write
    assert read_folder(tmp_path / "from-there") == read_folder(case.output)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    case = Case(tmp_path)
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(RunFolderError, match=r"cannot be written \(Permission denied\)"):
        case.prepared().write(tmp_path / "locked" / "out")
    case.check()
