"""Paths among a method's parameters, looked at before anything is loaded. Sentences, no exceptions;
no torch.

Replay data may also be a hub data set: only a name that means a path (see
`holdfast.data.sources.is_path`) has to exist. Anchors are looked at by `holdfast.retention.anchor`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.config.yaml_file import nearest_sibling
from holdfast.errors import Problem
from holdfast.support.paths import expanded


def data_problems(key: str, name: str) -> list[Problem]:
    """Says so where data that looks like a file or folder is not there."""
    from holdfast.data.sources import is_path

    path = expanded(name)
    if not name or not is_path(name) or path.exists():
        return []
    return [
        Problem(
            key,
            f"no such file or folder: {name} (working directory: "
            f"{Path.cwd()}).{nearest_sibling(path)}",
        )
    ]
