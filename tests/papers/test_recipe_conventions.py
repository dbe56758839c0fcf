"""What holds for every recipe and shipped configuration: no text is dropped by packing, and comments are true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(
    path
    for folder in ("src/holdfast/papers/recipes", "configs")
    for path in (ROOT / folder).rglob("*.yaml")
    if not path.is_symlink()
)
WHOLE = ("wrapped", "bfd_split")
"""Packing strategies that train every token; TRL's default, bfd, drops what of a row is beyond max_length."""


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings of a file, from the outermost on."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(inner)


def test_there_are_recipes() -> None:
    assert len(RECIPES) > 40


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packing_drops_no_text_and_comments_are_true(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    settings = list(mappings(yaml.safe_load(text)))
    for values in settings:
        if values.get("packing") or "packing_strategy" in values:
            assert values.get("packing_strategy") in WHOLE, (
                f"got {values.get('packing_strategy')}, expected one of {WHOLE}"
            )
    comments = [line.partition("#")[2] for line in text.splitlines()]
    if any("computes in bfloat16" in comment for comment in comments):
        assert any(values.get("bf16") is True for values in settings), "what the comment says is set"
    if any(values.get("task") == "ifeval" for values in settings):
        assert any("template" in comment for comment in comments), "how IFEval is asked"
    if any("instruction_residual" in values.get("suites", ()) for values in settings if "suites" in values):
        assert any("IFEval without a chat template" in comment for comment in comments)
