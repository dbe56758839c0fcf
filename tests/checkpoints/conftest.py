"""What the tests of the checkpoint engine share."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of a few elements, so that small tensors are cut as large ones are."""
    for module in ("engine", "provenance", "build"):
        monkeypatch.setattr(f"holdfast.checkpoints.{module}.UNIT", 64)
    return 64
