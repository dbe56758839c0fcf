"""Paths as people write them. What pathlib answers with a bare RuntimeError (nobody's home, a link
to itself) is a path here, at which nothing is found."""

from __future__ import annotations

import os
from pathlib import Path, PurePath


def expanded(path: str | os.PathLike[str]) -> Path:
    """With the home folder in the place of `~`; as it is where there is no such home."""
    return Path(os.path.expanduser(path))


def real(path: str | os.PathLike[str]) -> Path:
    """Absolute, without links; as far as they lead anywhere."""
    return Path(os.path.realpath(path))


def impossible_path(path: str | os.PathLike[str]) -> str:
    """Why nothing can be at a path, whatever it is for; empty where something can. A dry run
    creates no folder, and is not to call a request sound that none can be created for."""
    path = PurePath(path)
    longest = max(len(os.fsencode(name)) for name in (*path.parts, "."))
    if longest > 255 or len(os.fsencode(path)) > 4000:
        return "A name may have 255 bytes at most, a path 4,000."
    for parent in path.parents:
        if os.path.exists(parent) and not os.path.isdir(parent):
            return f"{parent} is a file, not a folder."
    return ""
