"""The engine holds a few results at a time, whatever its threads do."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoints import engine
from holdfast.checkpoints.element_types import DTYPES
from holdfast.checkpoints.engine import Job, map_blocks


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "UNIT", 64)


def test_a_thread_left_aside_does_not_let_results_pile_up(small_units: int) -> None:
    """While the first block is not done the others go on for a few blocks and then wait; memory stays that of a few
    results."""
    import time

    jobs = [Job("t", DTYPES["F32"], (64_000,), 64_000, "file", (True,))]
    done: list[int] = []
    ahead: list[int] = []

    def work(job: Job, start: int, stop: int, scratch: Any) -> int:
        if start == 0:
            seen = -1
            while seen != len(done):  # until nothing moves any more
                seen = len(done)
                time.sleep(0.1)
            ahead.append(seen)
        else:
            done.append(start)
        return start

    order: list[int] = []
    map_blocks(jobs, work, sources=1, workers=3, reduce=lambda job, value: order.append(value))
    assert 2 <= ahead[0] <= 3 * engine.AHEAD + 3  # those that wait, and the blocks that were being worked on
    assert order == list(range(0, 64_000, 64))
