"""The package's source as syntax trees, for the laws that read it."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"


def parsed_package() -> dict[str, ast.Module]:
    """Every module's tree by its path below `holdfast`, with "/" between folders."""
    gc.disable()  # it would look through a million nodes again and again, in vain
    try:
        return {
            file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
            for file in sorted(PACKAGE.rglob("*.py"))
        }
    finally:
        gc.enable()
