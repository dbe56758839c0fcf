"""Memory that is free goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from pathlib import Path
import torch
from holdfast.support.resources import release_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

kept, freed, begun = [], [], resident()
for _ in range(3000):
    freed.append(torch.ones(20_000))  # 80 kB each, with small blocks between them that stay
    kept.append(torch.ones(10))
grown = resident() - begun
del freed
release_memory()
print((resident() - begun) / grown)
"""


@pytest.mark.slow
def test_free_pages_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.3
