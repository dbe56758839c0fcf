"""Nothing is left behind: folders that a refused request made go with it, and what a killed process
was in the middle of writing goes at the next call.

Whoever writes a temporary file or folder holds a lock on it (flock), which ends with the process,
however that ends. So one that nobody holds is a dead process's and may be deleted. Where a file
system has no locks, nothing is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.errors import UserError


class NewFolder:
    """A folder that is made, with its parents, where it is not there; to be used in a `with`
    statement. A body that ends with a `UserError` takes away again what was made, unless it has
    called `keep`.

    Args:
        path: the folder.
        content: with all that was put into it meanwhile; else only where it is empty.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, *, content: bool = True) -> None:
        self.content = content
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        self._whole = self._made[:1] == [path]

    def keep(self) -> None:
        """From here on there is something of worth in it."""
        self._made = []

    def remove(self) -> None:
        """Takes away what was made."""
        if self.content and self._whole and self._made:
            shutil.rmtree(self._made[0], ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):  # not empty, or gone
                folder.rmdir()
        self._made = []

    def __enter__(self) -> NewFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, UserError):
            self.remove()


def temporary_file(path: Path) -> Any:
    """A new file beside `path` to write its content to (`tempfile.NamedTemporaryFile`,
    `.<name>.<8 letters>.tmp`), held while it is open. What dead processes left of the same name
    goes first.

    Raises:
        OSError: the folder cannot be written.
    """
    _remove_dead(path.parent, re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.tmp"))
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        )
        if _held(file.fileno(), Path(file.name)):
            return file
        file.close()


@contextlib.contextmanager
def scratch_folder(parent: Path | None, prefix: str) -> Iterator[Path]:
    """A folder for the body, `<prefix><8 letters>`, gone after it. Those of dead processes go
    first.

    Args:
        parent: where; must exist. None: the system's place for temporary files.
        prefix: of its name, which nothing else in `parent` begins with.

    Raises:
        OSError: the folder cannot be written.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_dead(parent, re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}"))
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        if _held(descriptor, folder):
            break
        os.close(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_unless_held(path: Path) -> None:
    """Deletes a temporary file or folder whose process is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone meanwhile, another user's, or nothing of ours
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _remove_dead(folder: Path, names: re.Pattern[str]) -> None:
    with os.scandir(folder) as entries:
        left = [entry.path for entry in entries if names.fullmatch(entry.name)]
    for path in left:
        remove_unless_held(Path(path))


def _held(descriptor: int, path: Path) -> bool:
    """Holds a new temporary file or folder; False where another process took it for a dead one's
    before that."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
