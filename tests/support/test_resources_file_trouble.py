"""What the system says of files and folders, in whatever form a library passes it on, as errors with their names."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, RunFolderError, StorageError, UserError
from holdfast.support.environment import lock_folder, result_folder
from holdfast.support.resources import file_trouble

RUN = Path("runs/mine")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageError, "No space left on the disk of runs/mine."),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "a.json"), StorageError, "No space left on the disk of a.json."),
        (OSError(errno.EFBIG, "File too large", "a.json"), StorageError, "a.json: a file would exceed"),
        (
            RuntimeError("I/O error: File too large (os error 27)"),
            StorageError,
            "runs/mine: a file would exceed",
        ),
        (
            RuntimeError("I/O error: No such file or directory (os error 2)"),
            StorageError,
            "runs/mine: no longer exists",
        ),
        (OSError(errno.ENOENT, "No such file", b"a.json"), StorageError, "a.json: no longer exists"),
        (
            OSError(errno.EACCES, "Permission denied", "a.json"),
            RunFolderError,
            "a.json: cannot be used (Permission den",
        ),
        (RuntimeError("Permission denied (os error 13)"), RunFolderError, "runs/mine: cannot be used (Permission"),
        (OSError(errno.ESTALE, "Stale file handle", "a.json"), StorageError, "a.json: the disk failed (Stale"),
    ],
)
def test_the_object_is_named(error: Exception, kind: type[HoldfastError], said: str) -> None:
    wrapped = RuntimeError("Failed to save")
    wrapped.__cause__ = error
    for one in (error, wrapped):
        trouble = file_trouble(one, RUN)
        assert type(trouble) is kind
        assert str(trouble).startswith(said)


def test_what_is_no_matter_of_files_stays_what_it_is() -> None:
    assert file_trouble(ValueError("odd"), RUN) is None
    assert file_trouble(OSError(errno.ECONNREFUSED, "Connection refused"), RUN) is None


def test_a_writer_of_torch_fails_at_the_limit_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 1024 vs 918")
    assert "No space left on the disk" in str(file_trouble(error, RUN))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (204_800, 204_800))
    assert "the limit of ulimit -f (204,800 bytes)" in str(file_trouble(error, RUN))


@pytest.mark.parametrize("lock", ["", ".watching"])
@pytest.mark.parametrize("raises", [False, True])
def test_a_folder_that_is_moved_meanwhile_is_named(raises: bool, lock: str, tmp_path: Path) -> None:
    """Also where another one of its name has been made since."""
    folder = tmp_path / "run"

    def move() -> None:
        with result_folder(folder, lock=lock) as made:
            made.keep()
            os.rename(folder, tmp_path / "moved")
            folder.mkdir()
            if raises:
                raise OSError("something that came of it")

    with pytest.raises(StorageError, match="run was deleted or moved while holdfast wrote to it"):
        move()


def test_errors_of_the_request_stay_though_the_new_folder_goes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="another key"), result_folder(tmp_path / "run"):
        raise UserError("another key")
    assert not (tmp_path / "run").exists()


def test_what_the_system_says_in_a_folder_gets_its_name(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"No space left on the disk of .*run"), lock_folder(tmp_path / "run"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path / "run"):
        1 / 0  # noqa: B018
    shutil.rmtree(tmp_path / "run")
