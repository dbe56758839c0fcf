"""What a sequence costs: the benchmark measures what it says, at a size of seconds."""

from __future__ import annotations

import pytest


@pytest.fixture
def bench(script):
    return script("sequence")


@pytest.mark.slow
def test_the_engine_beside_its_runs(bench, tmp_path):
    found = bench.engine(tmp_path, quick=True)
    assert found["jobs"] == 5 and 0 < found["seconds"] < 30 and found["largest"] >= found["mean"] > 0


@pytest.mark.slow
def test_memory_of_every_arm(bench, tmp_path):
    found = bench.memory(tmp_path, quick=True, rounds=1)
    assert set(found["bytes"]) == {"plain", "folder", "copy"} and min(found["bytes"].values()) > 50e6
    assert set(found["above_plain"]) == {"folder", "copy"} and found["weights_bytes"] > 1e5
