"""Paths as people write them. What pathlib answers with a bare RuntimeError (nobody's home, a link to itself) is a path
here, at which nothing is found."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """With the home folder in the place of `~`; as it is where there is no such home."""
    return Path(os.path.expanduser(path))


def real(path: str | os.PathLike[str]) -> Path:
    """Absolute, without links; as far as they lead anywhere."""
    return Path(os.path.realpath(path))
