"""A folder's manifest: size and digest of every file in it, written last. A folder whose files are
as the manifest says is whole.

Digests are XXH3-128 of the content, as `xxh128sum` prints them: with a thread a file, hashing costs
a few percent of writing, because it reads what the page cache still holds (`docs/log` has the
figures; SHA-256 costs as much as the writing). They find damage and mistakes; they are no
protection against someone who wants a changed file to pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import DataError
from holdfast.support.environment import cores
from holdfast.support.files import fingerprint, read_json, write_json

FILE = "manifest.json"
FORMAT = "holdfast.manifest/1"
DIGEST = "xxh3_128"
PIECE = 4_194_304
"""Bytes that are read at a time."""
MOST_THREADS = 8


class Written(NamedTuple):
    """A file as it was written."""

    nbytes: int
    digest: str


def files_in(folder: Path) -> list[str]:
    """Every file below a folder but the manifest, as relative names with `/`, sorted."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != FILE)


def measured(folder: Path, names: Iterable[str], *, sync: bool = False) -> dict[str, Written]:
    """Sizes and digests of files, several at a time.

    Args:
        folder: where they are.
        names: relative names.
        sync: put each on the disk too (fsync), which waits while others are hashed.

    Raises:
        OSError: a file cannot be read.
    """

    def measure(name: str) -> Written:
        import xxhash

        digest, buffer, size = xxhash.xxh3_128(), bytearray(PIECE), 0
        with open(folder / name, "rb", buffering=0) as file:
            while got := file.readinto(buffer):
                digest.update(memoryview(buffer)[:got])
                size += got
            if sync:
                os.fsync(file.fileno())
        return Written(size, digest.hexdigest())

    listed = list(names)
    with ThreadPoolExecutor(
        max_workers=max(1, min(MOST_THREADS, 2 * cores(), len(listed)))
    ) as pool:
        return dict(zip(listed, pool.map(measure, listed), strict=True))


def write_manifest(folder: Path, files: Mapping[str, Written]) -> None:
    """Writes the manifest of a folder, atomically.

    Raises:
        StorageError: the disk is full.
    """
    listed = {
        name: {"bytes": files[name].nbytes, DIGEST: files[name].digest} for name in sorted(files)
    }
    write_json(
        folder / FILE, {"format": FORMAT, "files": listed, "fingerprint": fingerprint(listed)}
    )


def read_manifest(folder: Path) -> dict[str, Written] | None:
    """The files of a folder as they were written, by relative name; None where there is no
    manifest.

    Raises:
        DataError: it cannot be read, or is not as it was written.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content: Any = read_json(path)
        if content["format"] != FORMAT or content["fingerprint"] != fingerprint(content["files"]):
            raise ValueError
        files = {
            name: Written(entry["bytes"], entry[DIGEST]) for name, entry in content["files"].items()
        }
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        raise DataError(
            f"Expected a manifest in {path} ({FORMAT}), got another format. Copy or download the "
            "folder again."
        ) from None
    return files


def damage(
    folder: Path, files: Mapping[str, Written], *, read: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """What is not as a manifest says, half a sentence a file; empty where everything is.

    Args:
        folder: where the files are.
        files: as `read_manifest` gives them.
        read: which files to read, where others read the rest; sizes are compared for all.
    """
    problems = []
    for name, written in files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif (size := path.stat().st_size) != written.nbytes:
            problems.append(f"{name} has {size:,} bytes instead of {written.nbytes:,}")
    if problems:
        return problems
    try:
        now = measured(folder, [name for name in files if read(name)])
    except OSError as error:
        return [f"{error.filename or 'a file'} cannot be read ({error.strerror or error})"]
    return [
        f"{name} was changed after it was written"
        for name, written in now.items()
        if written != files[name]
    ]
