"""Fixtures that write run folders as training and evaluation would leave them (see `synthetic_runs`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run

from holdfast.records.run import RunFolder

MakeRun = Callable[..., RunFolder]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(name, comparisons=..., metrics=..., **record fields)` writes a folder and returns it."""

    def make(name: str = "run", /, **changes: Any) -> RunFolder:
        return write_run(tmp_path / name, **changes)

    return make
