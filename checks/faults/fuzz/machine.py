"""The machine: a full disk, little memory, a cache that cannot be written, clocks that jump, odd surroundings."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from commandline import Outcome
from fuzz.case import Case
from fuzz.folders import EVALUATE, TRAIN, same_figures, same_weights

MERGE = ["merge", "math", "code", "--base", "base", "--method", "ties", "--density", "0.3", "--output_dir", "out"]
WRITERS: list[list[str]] = [
    TRAIN,
    EVALUATE,
    MERGE,
    ["probe", "base", "--noise", "0.1", "--write", "out"],
    ["fisher", "base", "--data", "old.jsonl", "--samples", "4", "--output_dir", "out"],
    ["data", "prepare", "--input", "news.jsonl", "--output", "out/rows.jsonl"],
    ["residual", "extract", "--instruct", "instruct", "--base", "base", "--output_dir", "out"],
]
Check = Callable[[Path, Outcome], str | None]
CHECKS: list[tuple[list[str], Check]] = [(TRAIN, same_weights("out", "whole")), (EVALUATE, same_figures)]


def machine_case(rng: random.Random) -> Case:
    """A machine that lacks something."""
    return rng.choice((_full, _full, _memory, _memory, _read_only, _clock, _clock, _surroundings, _surroundings))(rng)


# ------------------------------------------------------------------------------------------------------ disk and memory


def _full(rng: random.Random) -> Case:
    """A file system of its own that is too small, where there is one to be had; else a limit on the size of files."""
    words, size = rng.choice(WRITERS), rng.choice((0, 8192, 40_000, 150_000, 400_000))
    place = rng.choice(("full", "full", "cache"))
    if place == "full":
        words = [f"full/{word}" if word.startswith("out") else word for word in words]

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[list[str]]:
        if not _mounted(folder / place, size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        yield []

    return Case(
        what=f"{words[0]} with {size:,} bytes of disk in {place}",
        words=words,
        valid=None,
        names=("space", "room", "disk", "too large"),
        copies=("cache",) if place == "cache" else (),
        around=around,
        codes=(1, 2),
    )


def _mounted(place: Path, size: int) -> bool:
    """Puts a file system of so many bytes there, for this process alone; False where that is not allowed."""
    new_mounts = 0x00020000
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(new_mounts) != 0:
        return False
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(exist_ok=True)
    private = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={max(size, 4096)}", "tmpfs", place], capture_output=True
    )
    return private.returncode == made.returncode == 0


def _memory(rng: random.Random) -> Case:
    words = rng.choice(WRITERS)
    megabytes = rng.choice((1, 20, 60, 120, 250))
    return Case(
        what=f"{words[0]} with {megabytes} MB of memory",
        words=words,
        valid=None,
        names=("memory",),
        codes=(1, 2),
        memory=megabytes << 20,
        may_abort=True,
    )


# ---------------------------------------------------------------------------------------------------------------- cache


def _read_only(rng: random.Random) -> Case:
    """A cache that can be read, or one that cannot even be made."""
    words, check = rng.choice(CHECKS)
    if rng.random() < 0.4:
        where = rng.choice(("/dev/null/cache", "/proc/cache", "/sys/cache", "train.jsonl/cache"))

        @contextlib.contextmanager
        def nowhere(folder: Path) -> Iterator[list[str]]:
            os.environ["HOLDFAST_CACHE"] = where
            yield []

        return Case(
            what=f"{words[0]} with its cache in {where}",
            words=words,
            valid=None,
            names=("cache",),
            codes=(1, 2),  # the disk's fault, as far as a program can tell
            around=nowhere,
            check=check,
        )

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[list[str]]:
        subprocess.run(["chmod", "-R", "a+rX,a-w", folder / "cache"], check=True)
        if os.geteuid() == 0:  # who may write everywhere
            folder.chmod(0o777)
            os.setgid(65534)
            os.setuid(65534)
        yield []

    return Case(
        what=f"{words[0]} with a cache that cannot be written",
        words=words,
        valid=None,
        names=("cache",),
        copies=("cache",),
        around=around,
        check=check,
    )


# ---------------------------------------------------------------------------------------------------------------- clock


def _clock(rng: random.Random) -> Case:
    """The time of day jumps, or files are from the future; what comes out is the same."""
    kind = rng.choice(("back a day", "on ten years", "back and forth", "stopped", "1970", "files of the future"))
    words, check = rng.choice(
        [*CHECKS, (MERGE, lambda folder, outcome: None), (["report", "runs/direct"], lambda folder, outcome: None)]
    )
    seed = rng.random()

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[list[str]]:
        real, began, own = time.time, time.time(), random.Random(seed)

        def now() -> float:
            late = real() - began > 0.3
            offsets = {
                "back a day": -86400 * late,
                "on ten years": 315_360_000 * late,
                "back and forth": own.choice((-86400, 0, 86400)),
                "stopped": began - real(),
                "1970": -began,
            }
            return real() + offsets.get(kind, 0)

        if kind == "files of the future":
            for path in (*folder.rglob("*.json*"), *folder.rglob("*.safetensors")):
                if not path.is_symlink():
                    os.utime(path, (began + 10**8, began + 10**8))
        else:
            time.time, time.time_ns = now, lambda: int(now() * 1e9)
        yield []

    return Case(
        what=f"{words[0]} with a clock: {kind}",
        words=words,
        valid=True,
        copies=("math", "code", "base", "train.jsonl", "runs"),
        around=around,
        check=check,
    )


# --------------------------------------------------------------------------------------------------------- surroundings


def _surroundings(rng: random.Random) -> Case:
    """Streams, folders and variables that are not as usual."""

    def ascii_output(folder: Path) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="ascii", errors="strict")  # type: ignore[union-attr]

    def closed(*numbers: int) -> Callable[[Path], None]:
        return lambda folder: [os.close(n) for n in numbers] and None

    def full_output(folder: Path) -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    def variables(**values: str) -> Callable[[Path], None]:
        return lambda folder: os.environ.update(values)

    def elsewhere(name: bytes) -> Callable[[Path], None]:
        def go(folder: Path) -> None:
            new = os.path.join(os.fsencode(folder), name)
            os.mkdir(new)
            for entry in list(folder.iterdir()):
                if os.fsencode(entry) != new:
                    os.symlink(os.fsencode(entry), os.path.join(new, os.fsencode(entry.name)))
            os.chdir(new)

        return go

    ways: dict[str, tuple[Callable[[Path], None], bool | None]] = {
        "an output that is ASCII": (ascii_output, True),
        "no input": (closed(0), True),
        "no output": (closed(1), None),
        "an output that is full": (full_output, None),
        "no home": (variables(HOME="/nowhere"), True),
        "no folder for temporary files": (variables(TMPDIR="/nowhere"), True),
        "a terminal of no width": (variables(COLUMNS="0"), True),
        "a terminal that is text": (variables(COLUMNS="wide"), True),
        "another language": (variables(LANG="tr_TR.UTF-8", LC_ALL="C"), True),
        "a folder with spaces": (elsewhere(b"a b [1] 'c' %s {d}"), True),
        "a folder of another script": (elsewhere("狐 ä".encode()), True),
        "a folder with a line break": (elsewhere(b"a\nb"), True),
        "a folder that is no UTF-8": (elsewhere(b"a\xffb"), None),
        "few open files": (lambda folder: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)), None),
    }
    what = rng.choice(list(ways))
    act, valid = ways[what]
    words = rng.choice(
        [
            TRAIN,
            EVALUATE,
            MERGE,
            ["report", "runs/direct"],
            ["sweep", "status", "study"],
            ["inspect", "base"],
            ["compare", "measured:base", "measured:math"],
            ["train", "--help"],
        ]
    )

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[list[str]]:
        act(folder)
        yield []

    return Case(
        what=f"{' '.join(words[:2])} in {what}",
        words=words,
        valid=valid,
        copies=("runs", "study", "measured"),
        around=around,
        codes=(1, 2, 141),
    )
