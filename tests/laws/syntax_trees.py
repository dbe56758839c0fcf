"""The package's source as syntax trees, for the laws that read it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"


@pytest.fixture(scope="module", autouse=True)
def no_collection() -> Iterator[None]:
    """The collector would look through a million nodes again and again, in vain."""
    gc.disable()
    yield
    gc.enable()


def parsed_package() -> dict[str, ast.Module]:
    """Every module's tree by its path below `holdfast`, with "/" between folders."""
    return {
        file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
    }
