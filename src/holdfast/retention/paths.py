"""Paths among a method's parameters, looked at before anything is loaded. Sentences, no exceptions; no torch.

Replay data may also be a hub data set: only a name that means a path (see `holdfast.data.sources.is_path`) has to
exist. Anchors are looked at by `holdfast.retention.anchor`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import did_you_mean


def data_problems(key: str, name: str) -> list[str]:
    """Says so where data that looks like a file or folder is not there."""
    from holdfast.data.sources import is_path

    path = Path(name).expanduser()
    if not name or not is_path(name) or path.exists():
        return []
    return [f"{key}: no such file or folder: {name} (working directory: {Path.cwd()}).{_nearest(path, lambda _: True)}"]


def _nearest(path: Path, accept: Callable[[Path], bool]) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    try:
        return did_you_mean(path.name, [p.name for p in path.parent.iterdir() if accept(p)])
    except OSError:
        return ""
