"""What the tests of the checkpoint engine share."""

from __future__ import annotations

import pytest
from elements import needs_compiler

from holdfast.checkpoints import kernels


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of a few elements, so that small tensors are cut as large ones are."""
    for module in ("engine", "provenance", "execute"):
        monkeypatch.setattr(f"holdfast.checkpoints.{module}.UNIT", 64)
    return 64


@pytest.fixture(params=[pytest.param("C", marks=needs_compiler), "PyTorch"])
def form(request, monkeypatch):
    """Runs a test of the elementwise passes in C and in PyTorch."""
    monkeypatch.setenv("HOLDFAST_NATIVE", "1" if request.param == "C" else "0")
    assert kernels.describe().startswith(request.param)
    return request.param
