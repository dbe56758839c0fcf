"""C sources of the package as libraries: built at first use with the machine's own C compiler,
kept, loaded through ctypes. No torch.

Building takes a second or less, once per machine, source and compiler; a library lies in
`cache_folder()/native`, named by the hash of all that went into it. HOLDFAST_NATIVE=0 switches all
of it off, CC names a compiler. Whether a library gives the right numbers is for its owner to check
before use (`ops.native`, `checkpoints.native`), and every owner does without one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.support.cache import cache_folder
from holdfast.support.leftovers import scratch_folder

_BUILDING = threading.Lock()


class Settings(NamedTuple):
    """What the environment says; owners keep what they built under it."""

    switch: str
    """The value of HOLDFAST_NATIVE."""
    compiler: str
    """The value of CC; if empty, cc, gcc or clang."""


class Built(NamedTuple):
    """A loaded library."""

    library: ctypes.CDLL
    compiler: str
    """The compiler's first line about itself."""


def settings() -> Settings:
    """The environment's settings as they are now."""
    return Settings(os.environ.get("HOLDFAST_NATIVE", "1"), os.environ.get("CC", ""))


def build(
    source: Path,
    *,
    flags: Sequence[str],
    link: Sequence[str] = ("-lm",),
    wanted: Settings | None = None,
) -> Built | str:
    """The library of one C file, compiled unless it lies in the cache already; a string says, as
    half a sentence, why there is none.

    Args:
        source: the C file; its stem names the library.
        flags: for compiling.
        link: for linking, after `-shared` and the object file.
        wanted: None: `settings()`.
    """
    switch, name = wanted or settings()
    if switch.lower() in ("0", "false", "off", "no"):
        return "it is switched off (HOLDFAST_NATIVE=0)"
    compiler = next(
        (path for n in ([name] if name else ["cc", "gcc", "clang"]) if (path := shutil.which(n))),
        None,
    )
    if compiler is None:
        return f"no C compiler was found ({name or 'cc, gcc, clang'})"
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=20, check=True
        ).stdout.partition("\n")[0]
        with _BUILDING:
            return Built(_library(source, flags, link, compiler, version), version)
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or str(error)).strip()
        return f"building it failed: {output.splitlines()[0] if output else type(error).__name__}"


def _library(
    source: Path, flags: Sequence[str], link: Sequence[str], compiler: str, version: str
) -> ctypes.CDLL:
    parts = (source.read_bytes(), tuple(flags), tuple(link), version, _processor())
    key = hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
    folder = cache_folder() / "native"
    path = folder / f"{source.stem}-{key}.so"
    keep = _is_ours(folder)
    if keep and path.is_file():
        return ctypes.CDLL(str(path))
    with scratch_folder(folder if keep else None, "holdfast-build-") as work:
        compiled, linked = work / "compiled.o", work / "linked.so"
        for command in (
            [compiler, *flags, "-c", str(source), "-o", str(compiled)],
            [compiler, "-shared", str(compiled), "-o", str(linked), *link],
        ):
            subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        if keep:
            os.replace(linked, path)
        return ctypes.CDLL(str(path if keep else linked))  # once loaded, the file may go


def _is_ours(folder: Path) -> bool:
    """Whether libraries may be kept and trusted there: a library that somebody else could have put
    there is not loaded."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return (
            os.access(folder, os.W_OK)
            and folder.stat().st_uid == os.getuid()
            and not folder.stat().st_mode & 0o022
        )
    except OSError:
        return False


def _processor() -> str:
    """What `-march=native` depends on: a cache folder may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return " ".join(os.uname()[3:5])
    return "\n".join(
        sorted(
            {
                line
                for line in lines
                if line.startswith(("model name", "flags", "Features", "CPU part"))
            }
        )
    )
